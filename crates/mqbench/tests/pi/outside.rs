//! The testbed's other two hosts: their commands run in the test's own network namespace.

use std::{
    io::{BufRead as _, BufReader, Write as _, copy},
    net::{Shutdown, TcpListener, TcpStream},
    path::Path,
    process::{Command, Stdio},
};

/// The last parts of their addresses, as the page has them.
const HOSTS: [u8; 2] = [10, 12];

/// The port of ssh.
const PORT: u16 = 22;

/// Makes the hosts' addresses, and runs the commands that `guest/ssh` sends.
pub(crate) fn start() {
    // The interface has to exist, though packets to this machine's own addresses pass lo.
    for words in [
        "link set lo up",
        "link add eth0 type veth peer name nobody",
        "link set eth0 up",
    ] {
        ip(words);
    }
    // The emulator forwards pings if its user may send them.
    std::fs::write("/proc/sys/net/ipv4/ping_group_range", "0 0").unwrap();
    for host in HOSTS {
        for network in ["10.0.0", "192.168.1"] {
            ip(&format!("address add {network}.{host}/32 dev eth0"));
        }
        let listener = TcpListener::bind((format!("192.168.1.{host}"), PORT)).unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                std::thread::spawn(move || serve(&stream.unwrap()));
            }
        });
    }
}

/// Runs one command. The input has the command, as lines up to a mark, then its standard input; the answer is its
/// output and then its exit code.
fn serve(stream: &TcpStream) {
    let mut input = BufReader::new(stream.try_clone().unwrap());
    let mut command = String::new();
    while !command.ends_with("@@end@@\n") {
        assert!(input.read_line(&mut command).unwrap() > 0, "{command}");
    }
    let command = command.trim_end_matches("@@end@@\n");
    let own = Path::new(env!("CARGO_BIN_EXE_mqbench")).parent().unwrap();
    let path = std::env::var("PATH").unwrap_or_default();
    let mut child = Command::new("sh")
        .args(["-c", command])
        .env("PATH", format!("{}:{path}", own.display()))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut to, mut from) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    std::thread::spawn(move || {
        // Either end may be closed first.
        let _ = copy(&mut input, &mut to);
    });
    let mut stream = stream;
    let _ = copy(&mut from, &mut stream);
    let code = child.wait().unwrap().code().unwrap_or(255);
    let _ = writeln!(stream, "@@exit {code}");
    let _ = stream.shutdown(Shutdown::Both);
}

fn ip(words: &str) {
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    let done = Command::new("ip")
        .args(words.split(' '))
        .env("PATH", path)
        .status()
        .unwrap();
    assert!(done.success(), "ip {words}");
}
