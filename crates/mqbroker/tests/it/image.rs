//! The container image of `deploy/image`, run by runc as an engine would: as the image's user,
//! without a capability, on a read-only root.
//!
//! CI makes the image of the program that the tests use, which is not static: the image gets the
//! machine's libraries. `MQ_IMAGE=target/packages/mqbroker_VERSION_amd64.oci.tar cargo test -p
//! mqbroker --test it image::` tests a released image.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    time::Duration,
};

use mq_client::{Client, ConnectOptions, Connector, QoS, Trust};
use serde_json::{Value, json};

use mq_testkit::free_port;

use crate::runc::{Bundle, bind};

const STATE: &str = "/var/lib/mqbroker";
const ARCH: &str = if cfg!(target_arch = "aarch64") {
    "arm64"
} else {
    "amd64"
};

fn succeed(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {output:?}");
    output
}

/// Makes the image in a folder.
fn make(folder: &Path) -> PathBuf {
    let program = folder.join("mqbroker");
    let built = env!("CARGO_BIN_EXE_mqbroker");
    succeed(Command::new("strip").arg("-o").arg(&program).arg(built));
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/image");
    let make = |out: &str| {
        let mut command = Command::new("python3");
        command
            .arg(&script)
            .arg("--program")
            .arg(&program)
            .arg(ARCH);
        let command = command.arg("--out").arg(folder.join(out));
        succeed(command.env("SOURCE_DATE_EPOCH", "0"));
        let mut made = fs::read_dir(folder.join(out)).unwrap();
        made.next().unwrap().unwrap().path()
    };
    let (image, again) = (make("image"), make("again"));
    let is_same = fs::read(&image).unwrap() == fs::read(again).unwrap();
    assert!(is_same, "the same program gives another image");
    image
}

/// A container of the image as an engine makes it: a root, a volume, and the configuration of its
/// processes.
struct Container {
    bundle: Bundle,
    config: Value,
    broker: Option<Child>,
    id: String,
}

impl Container {
    fn unpack(image: &Path, folder: tempfile::TempDir) -> Self {
        let bundle = Bundle::new(folder);
        let place = |name: &str| bundle.folder().join(name);
        let unpack = |archive: &Path, to: &str| {
            fs::create_dir_all(place(to)).unwrap();
            succeed(
                Command::new("tar")
                    .arg("-xpf")
                    .arg(archive)
                    .arg("-C")
                    .arg(place(to)),
            );
        };
        unpack(image, "layout");
        let json = |name: &str| -> Value {
            serde_json::from_slice(&fs::read(place("layout").join(name)).unwrap()).unwrap()
        };
        let blob = |of: &Value| {
            let digest = of["digest"].as_str().unwrap();
            format!("blobs/{}", digest.replace(':', "/"))
        };
        let manifest = json(&blob(&json("index.json")["manifests"][0]));
        let config = json(&blob(&manifest["config"]));
        for layer in manifest["layers"].as_array().unwrap() {
            unpack(&place("layout").join(blob(layer)), "bundle/rootfs");
        }
        // An engine makes a volume with the owner and mode of the folder in the image.
        let state = place("bundle/rootfs").join(&STATE[1..]);
        succeed(Command::new("cp").arg("-a").arg(state).arg(place("volume")));
        Self {
            id: format!("mq-image-{}", std::process::id()),
            config: config["config"].clone(),
            broker: None,
            bundle,
        }
    }

    fn words(&self, key: &str) -> Vec<String> {
        serde_json::from_value(self.config[key].clone()).unwrap()
    }

    /// Returns the command that runs the program with these arguments, in a container of that name.
    fn run(&self, id: &str, arguments: &[String]) -> Command {
        let mut words = self.words("Entrypoint");
        words.extend(arguments.iter().cloned());
        let user = self.config["User"].as_str().unwrap();
        let (user, group) = user.split_once(':').unwrap();
        let volume = self.bundle.folder().join("volume");
        let mut mounts = vec![
            json!({"destination": "/proc", "type": "proc", "source": "proc"}),
            bind(volume, STATE, "rw"),
        ];
        // Libraries for a program that is not static.
        if std::env::var_os("MQ_IMAGE").is_none() {
            let folders = ["/lib", "/lib64", "/usr/lib"];
            let here = folders.iter().filter(|folder| Path::new(folder).exists());
            mounts.extend(here.map(|folder| bind(folder, folder, "ro")));
        }
        let [user, group]: [u32; 2] = [user.parse().unwrap(), group.parse().unwrap()];
        let process = json!({
            "user": {"uid": user, "gid": group},
            "args": words,
            "env": self.config["Env"],
            "cwd": self.config["WorkingDir"],
            "noNewPrivileges": true,
        });
        // Without a namespace of the network: the test's clients are outside.
        let namespaces = ["pid", "ipc", "uts", "mount"];
        self.bundle.run(id, &process, true, &mounts, &namespaces)
    }

    /// Runs the image's health check, whose result `docker ps` shows.
    fn health(&self) -> Output {
        let test = self.config["Healthcheck"]["Test"].as_array().unwrap();
        let words: Vec<_> = test.iter().map(|word| word.as_str().unwrap()).collect();
        assert_eq!(words[0], "CMD");
        let mut runc = self.bundle.runc();
        runc.arg("exec")
            .arg(&self.id)
            .args(&words[1..])
            .output()
            .unwrap()
    }

    fn log(&self) -> String {
        fs::read_to_string(self.bundle.folder().join("log")).unwrap()
    }

    /// Ends the broker as `docker stop` does, and waits for it.
    fn stop(&mut self) {
        let signal = self.config["StopSignal"].as_str().unwrap();
        succeed(self.bundle.runc().args(["kill", &self.id, signal]));
        let status = self.broker.take().unwrap().wait().unwrap();
        assert!(status.success(), "{status}\n{}", self.log());
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        if let Some(mut broker) = self.broker.take() {
            let _ = self
                .bundle
                .runc()
                .args(["delete", "--force", &self.id])
                .output();
            let _ = broker.wait();
        }
    }
}

/// Lists every file below a folder with its mode, owner, size and time, except mount points of
/// runc.
fn listing(root: &Path) -> String {
    let find = "find . -xdev \\( -path ./lib -o -path ./lib64 -o -path ./usr/lib -o -path ./proc -o -path ./dev \\) -prune \
                -o -type f -printf '%p %m %U:%G %s %T@\\n' -o -type d -printf '%p %m %U:%G\\n' | sort";
    let output = succeed(Command::new("sh").arg("-c").arg(find).current_dir(root));
    String::from_utf8(output.stdout).unwrap()
}

async fn exchange(url: &str) {
    let options = ConnectOptions {
        trust: Trust::Insecure,
        ..ConnectOptions::default()
    };
    let client = Client::builder(url)
        .unwrap()
        .client_id("device")
        .unwrap()
        .credentials("ann", "secret")
        .unwrap()
        .connector(Connector::new(options).unwrap());
    let client = client.build().await.unwrap();
    let mut messages = client.subscribe("a/+", QoS::AtLeastOnce).await.unwrap();
    client
        .publish("a/b", "hello", QoS::AtLeastOnce)
        .await
        .unwrap();
    let message = messages.recv().await.unwrap();
    assert_eq!(message.payload, "hello");
    client.disconnect().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_image_serves_as_its_own_user_and_writes_to_its_volume_alone() {
    if !crate::runc::is_usable() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = match std::env::var_os("MQ_IMAGE") {
        Some(image) => Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../..")
            .join(image),
        None => make(folder.path()),
    };
    let mut container = Container::unpack(&image, folder);
    assert!(container.config["Volumes"][STATE].is_object());
    let before = listing(&container.bundle.root());
    for line in before
        .lines()
        .filter(|line| !line.starts_with("./var/lib/mqbroker "))
    {
        assert!(
            line.contains(" 0:0"),
            "only the volume is the user's: {line}"
        );
    }

    // The guide's first command, which adds a user.
    let passwd = ["passwd", "/var/lib/mqbroker/passwords", "ann"].map(str::to_owned);
    let mut passwd = container.run("mq-image-passwd", &passwd);
    let mut child = passwd
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"secret\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    for config in ["mqbroker.toml", "open.toml"] {
        let check = ["check-config".to_owned(), format!("/etc/mqbroker/{config}")];
        succeed(&mut container.run("mq-image-check", &check));
    }

    // The guide's second command, with listeners that no other test has.
    let urls = ["tls", "quic"].map(|scheme| format!("{scheme}://127.0.0.1:{}", free_port()));
    let mut words = container.words("Cmd");
    words.extend(
        urls.iter()
            .flat_map(|url| ["--listen".to_owned(), url.clone()]),
    );
    let log = fs::File::create(container.bundle.folder().join("log")).unwrap();
    let id = container.id.clone();
    let child = container.run(&id, &words).stderr(log).spawn().unwrap();
    container.broker = Some(child);
    let mut patience = 200;
    while !container.health().status.success() {
        patience -= 1;
        assert!(
            patience > 0,
            "{:?}\n{}",
            container.health(),
            container.log()
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    for url in &urls {
        exchange(url).await;
    }
    container.stop();

    let log = container.log();
    assert!(
        !log.contains("Read-only") && !log.contains("denied"),
        "{log}"
    );
    assert_eq!(listing(&container.bundle.root()), before);
    let volume = container.bundle.folder().join("volume");
    assert!(volume.join("store").is_file(), "{}", listing(&volume));
    let mode = fs::metadata(&volume).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
}
