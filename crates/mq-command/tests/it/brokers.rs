//! `mq` with the broker of another project, mosquitto: over TCP, TLS and WebSocket, in each version of MQTT, with a user
//! and a password. More brokers are in `tests/suites/run`.

use std::{
    io::{BufRead as _, BufReader, Read as _},
    net::{SocketAddr, TcpStream},
    path::Path,
    process::{ChildStdout, Command, Output, Stdio},
    time::{Duration, Instant},
};

use mq_testkit::{Running, free_port, program};

/// A step that takes longer has failed.
const PATIENCE: Duration = Duration::from_secs(20);

const VERSIONS: [&str; 3] = ["5", "mqttv311", "mqttv31"];

/// Hash of the password `pencil`, as `mosquitto_passwd` writes it.
const HASH: &str = "$7$101$FZZ0UNgSFP8t2lxC$HnZt7dEpxtgrXAUGYtFCa+ZgSH3DaGu9eqP+6sRF1GFeIOcND243Nblmv4oxdSdxNUG+InsvCCeZY658jWztvw==";

/// Makes a certificate and its key for a host; returns their files.
pub(crate) fn certificate(folder: &Path, host: &str) -> [String; 2] {
    let made = rcgen::generate_simple_self_signed([host.to_owned()]).unwrap();
    let files = ["cert", "key"].map(|name| folder.join(name));
    std::fs::write(&files[0], made.cert.pem()).unwrap();
    std::fs::write(&files[1], made.signing_key.serialize_pem()).unwrap();
    files.map(|file| file.to_str().unwrap().to_owned())
}

/// mosquitto, whose only user is ann, and the options that lead to it over each transport.
struct Mosquitto {
    folder: tempfile::TempDir,
    ways: Vec<Vec<String>>,
    _running: Running,
}

impl Mosquitto {
    fn start() -> Option<Self> {
        program(&["mosquitto"])?;
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| folder.path().join(name).display().to_string();
        std::fs::write(file("passwords"), format!("ann:{HASH}\n")).unwrap();
        let ports = [free_port(), free_port(), free_port()];
        let [tcp, tls, ws] = ports;
        let ([cert, key], passwords) = (certificate(folder.path(), "127.0.0.1"), file("passwords"));
        let config = format!(
            "user root\nallow_anonymous false\npassword_file {passwords}\n\
             listener {tcp} 127.0.0.1\n\
             listener {tls} 127.0.0.1\ncertfile {cert}\nkeyfile {key}\n\
             listener {ws} 127.0.0.1\nprotocol websockets\n"
        );
        std::fs::write(file("config"), config).unwrap();
        let mut command = Command::new("mosquitto");
        command.arg("-c").arg(file("config")).stderr(Stdio::null());
        let running = Running(command.spawn().unwrap());
        let begin = Instant::now();
        for port in ports {
            let address = SocketAddr::from(([127, 0, 0, 1], port));
            while TcpStream::connect(address).is_err() {
                assert!(begin.elapsed() < PATIENCE, "mosquitto should listen");
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        let way = |port: u16, more: &[&str]| {
            let port = port.to_string();
            let words = ["-h", "127.0.0.1", "-p", &port];
            words
                .iter()
                .chain(more)
                .map(|word| (*word).to_owned())
                .collect()
        };
        let ways = vec![
            way(tcp, &[]),
            way(tls, &["--cafile", &cert]),
            way(ws, &["--transport", "ws"]),
        ];
        Some(Self {
            folder,
            ways,
            _running: running,
        })
    }
}

fn mq(name: &str, way: &[String], version: &str, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mq"));
    command.arg(name).args(way).args(["-V", version]).args(args);
    command.env_remove("MQ_PASSWORD").stdin(Stdio::null());
    command
}

/// Makes a command as the user ann.
fn as_ann(name: &str, way: &[String], version: &str, args: &[&str]) -> Command {
    let mut command = mq(name, way, version, args);
    command.args(["-u", "ann"]).env("MQ_PASSWORD", "pencil");
    command
}

fn printed(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{:?}: {said}", output.status);
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Starts a subscriber and waits for its first line, of the message that the broker keeps for its last filter: its
/// subscriptions are then in force.
fn subscriber(mut command: Command, first: &str) -> (Running, BufReader<ChildStdout>) {
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    lines.read_line(&mut line).unwrap();
    assert_eq!(line, first);
    (Running(child), lines)
}

#[test]
fn each_command_works_over_each_transport_in_each_version() {
    let Some(mosquitto) = Mosquitto::start() else {
        return;
    };
    for way in &mosquitto.ways {
        for version in VERSIONS {
            let run = |name: &str, args: &[&str]| {
                let output = as_ann(name, way, version, args).output().unwrap();
                printed(&output)
            };
            let what = format!("{way:?} {version}");
            run("pub", &["-t", "there", "-m", "yes", "-r", "-q", "1"]);
            let args = [
                "-t",
                "live/#",
                "-t",
                "there",
                "-q",
                "2",
                "-C",
                "4",
                "-W",
                "20",
                "-F",
                "%t %q %r %p",
            ];
            let subscribe = as_ann("sub", way, version, &args);
            let (mut child, mut lines) = subscriber(subscribe, "there 1 1 yes\n");
            for qos in ["0", "1", "2"] {
                run("pub", &["-t", "live/1", "-m", qos, "-q", qos]);
            }
            let mut rest = String::new();
            lines.read_to_string(&mut rest).unwrap();
            assert_eq!(rest, "live/1 0 0 0\nlive/1 1 0 1\nlive/1 2 0 2\n", "{what}");
            assert!(child.0.wait().unwrap().success(), "{what}");

            // A responder by the same program: it reads the request, and publishes the response.
            let args = [
                "-t", "ask", "-t", "there", "-C", "2", "-W", "20", "-F", "%p|%R|%D",
            ];
            let (_responder, mut requests) =
                subscriber(as_ann("sub", way, version, &args), "yes||\n");
            let args = ["-t", "ask", "-e", "answer", "-m", "6 * 7", "-W", "20"];
            let mut request = as_ann("rr", way, version, &args);
            let request = request
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            let mut line = String::new();
            requests.read_line(&mut line).unwrap();
            let fields: Vec<_> = line.trim_end().split('|').collect();
            let respond = if version == "5" {
                assert_eq!(fields[..2], ["6 * 7", "answer"], "{what}");
                let correlation = ["-D", "publish", "correlation-data", fields[2]];
                [&["-t", "answer", "-m", "42"][..], &correlation].concat()
            } else {
                assert_eq!(fields, ["6 * 7", "", ""], "{what}");
                vec!["-t", "answer", "-m", "42"]
            };
            run("pub", &respond);
            assert_eq!(
                printed(&request.wait_with_output().unwrap()),
                "42\n",
                "{what}"
            );

            let pinged = run("ping", &["-C", "2", "--interval", "0.01"]);
            assert!(
                pinged.contains("2 messages, 2 came back"),
                "{what}: {pinged}"
            );
        }
    }
}

#[test]
fn a_wrong_password_is_one_line_and_the_brokers_reason() {
    let Some(mosquitto) = Mosquitto::start() else {
        return;
    };
    let file = mosquitto.folder.path().join("password");
    let file = file.to_str().unwrap();
    for way in &mosquitto.ways {
        for version in VERSIONS {
            let what = format!("{way:?} {version}");
            std::fs::write(file, "guessed\n").unwrap();
            let message = ["-t", "a", "-m", "x", "-u", "ann", "--password-file", file];
            let output = mq("pub", way, version, &message).output().unwrap();
            let said = String::from_utf8(output.stderr).unwrap();
            assert_eq!(said.lines().count(), 1, "{what}: {said}");
            assert!(said.contains("refused"), "{what}: {said}");
            // Not authorized (0x87).
            assert_eq!(output.status.code(), Some(135), "{what}: {said}");
            std::fs::write(file, "pencil\n").unwrap();
            let output = mq("pub", way, version, &message).output().unwrap();
            printed(&output);
        }
    }
}
