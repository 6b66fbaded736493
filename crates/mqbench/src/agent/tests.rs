//! An agent and those who ask it, over loopback.

use std::{
    io::{BufRead as _, BufReader},
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use mq_transport::{Connector, ListenOptions, Listener, Trust};
use tempfile::TempDir;

use super::{
    channel::Channel,
    controller::{options, url},
    identity::{AgentState, ControllerState},
    message::Reply,
    *,
};

/// Bound on anything that should happen at once.
const SOON: Duration = Duration::from_secs(20);

/// An agent in this process, with folders that end with it.
struct Place {
    folder: TempDir,
    address: SocketAddr,
    _serving: tokio::task::JoinSet<()>,
}

impl Place {
    async fn new(lease: Duration) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let any = "127.0.0.1:0".parse().unwrap();
        let state = folder.path().join("agent");
        let server = Server::open(&state, any, program(), lease, true);
        let server = server.await.unwrap();
        let address = socket(&server.address().to_string());
        let mut serving = tokio::task::JoinSet::new();
        serving.spawn(async { drop(server.run().await.unwrap()) });
        Self {
            folder,
            address,
            _serving: serving,
        }
    }

    fn agent(&self) -> PathBuf {
        self.folder.path().join("agent")
    }

    fn controller(&self, name: &str) -> Controller {
        Controller::open(&self.folder.path().join(name)).unwrap()
    }

    /// A controller that is known.
    async fn known(&self, name: &str) -> Controller {
        let controller = self.controller(name);
        let code = open_code(&self.agent()).unwrap();
        controller.enrol(self.address, &code).await.unwrap();
        controller
    }

    async fn asked(&self) -> Agent {
        self.known("controller")
            .await
            .connect(self.address)
            .await
            .unwrap()
    }

    fn work(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.agent().join("work")).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.collect()
    }
}

/// The program that these tests belong to.
fn program() -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let program = tests
        .parent()
        .and_then(Path::parent)
        .unwrap()
        .join("mqbench");
    assert!(program.exists(), "build it first: cargo build -p mqbench");
    program
}

fn socket(url: &str) -> SocketAddr {
    url.trim_start_matches("quic://").trim().parse().unwrap()
}

fn name(text: &str) -> Name {
    Name::try_from(text.to_owned()).unwrap()
}

fn broker() -> Role {
    Role::Broker {
        listen: vec!["tcp://127.0.0.1:0".to_owned()],
        certificate: None,
        key: None,
        congestion: None,
    }
}

/// Waits until something is so.
async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < SOON, "{what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn listens(url: &str) -> bool {
    let address: SocketAddr = url.trim_start_matches("mqtt://").parse().unwrap();
    TcpStream::connect(address).is_ok()
}

#[tokio::test]
async fn a_code_enrols_one_controller() {
    let place = Place::new(LEASE).await;
    let code = open_code(&place.agent()).unwrap();
    let first = place.controller("first");
    let report = first.enrol(place.address, &code).await.unwrap();
    assert_eq!(report.version, env!("CARGO_PKG_VERSION"));
    let mut agent = first.connect(place.address).await.unwrap();
    assert_eq!(
        agent.report().await.unwrap().machine,
        std::env::consts::ARCH
    );
    agent.close().await.unwrap();
    let second = place.controller("second");
    let error = second.enrol(place.address, &code).await.unwrap_err();
    assert!(error.to_string().contains("no code is open"), "{error:#}");
    let error = second.connect(place.address).await.unwrap_err();
    assert!(error.to_string().contains("is not enrolled"), "{error:#}");
}

#[tokio::test]
async fn a_code_of_another_agent_is_not_said() {
    let (place, other) = (Place::new(LEASE).await, Place::new(LEASE).await);
    let code = open_code(&other.agent()).unwrap();
    let open = open_code(&place.agent()).unwrap();
    let controller = place.controller("controller");
    let error = controller.enrol(place.address, &code).await.unwrap_err();
    assert!(
        error.to_string().contains("not the one that made"),
        "{error:#}"
    );
    // It was not taken for a guess.
    controller.enrol(place.address, &open).await.unwrap();
}

#[tokio::test]
async fn a_wrong_code_is_refused_and_ends_the_right_one() {
    let place = Place::new(LEASE).await;
    let right = open_code(&place.agent()).unwrap();
    let mut text = right.to_string();
    let digit = if text.starts_with('0') { "1" } else { "0" };
    text.replace_range(..1, digit);
    let controller = place.controller("controller");
    for (code, says) in [(text.parse().unwrap(), "wrong"), (right, "no code is open")] {
        let error = controller.enrol(place.address, &code).await.unwrap_err();
        assert!(error.to_string().contains(says), "{error:#}");
    }
}

#[tokio::test]
async fn an_unknown_certificate_is_refused() {
    let place = Place::new(LEASE).await;
    let known = place.known("known").await;
    // It knows the agent all the same.
    let folder = place.folder.path();
    let print = ControllerState::open(&folder.join("known")).unwrap();
    let print = print.fingerprint(place.address).unwrap();
    let stranger = place.controller("stranger");
    let state = ControllerState::open(&folder.join("stranger")).unwrap();
    state.remember(place.address, &print).unwrap();
    let asked = async { stranger.connect(place.address).await?.report().await };
    let error = asked.await.unwrap_err();
    assert!(
        !format!("{error:#}").contains("refuses"),
        "not even heard: {error:#}"
    );
    let mut agent = known.connect(place.address).await.unwrap();
    agent.report().await.unwrap();
}

#[tokio::test]
async fn a_stranger_may_enrol_and_nothing_else() {
    let place = Place::new(LEASE).await;
    let _known = place.known("known").await;
    let connector = Connector::new(options(Trust::Insecure, None)).unwrap();
    for ask in [r#"{"ask":"report"}"#, r#"{"ask":"get","name":"a"}"#, "{}"] {
        let link = connector.connect(&url(place.address)).await.unwrap();
        let mut channel = Channel::new(link);
        let value: serde_json::Value = serde_json::from_str(ask).unwrap();
        channel.send_text(&value).await.unwrap();
        let reply: Reply = channel.receive_text().await.unwrap();
        let Reply::Refused { why } = reply else {
            panic!("{ask}: {reply:?}");
        };
        assert!(why.contains("does not know you"), "{why}");
        assert!(channel.receive().await.is_err(), "it is over");
    }
}

#[tokio::test]
async fn what_is_no_role_and_no_file_of_its_own_is_refused() {
    let place = Place::new(LEASE).await;
    let mut agent = place.asked().await;
    for (ask, says) in [
        (
            r#"{"ask":"get","name":"../agent.key"}"#,
            "no name of a file",
        ),
        (r#"{"ask":"get","name":"/etc/passwd"}"#, "no name of a file"),
        (
            r#"{"ask":"put","name":"../x","size":1}"#,
            "no name of a file",
        ),
        (
            r#"{"ask":"start","role":{"role":"shell","command":"id"}}"#,
            "unknown variant `shell`",
        ),
        (
            r#"{"ask":"start","role":{"role":"broker","listen":[],"config":"/etc/shadow"}}"#,
            "unknown field `config`",
        ),
        (
            r#"{"ask":"start","role":{"role":"link","interface":"--keep","link":"s22/wifi","direction":"up"}}"#,
            "no interface",
        ),
        (r#"{"ask":"do","what":"anything"}"#, "unknown variant `do`"),
        (r#"{"ask":"get","name":"absent"}"#, "cannot read absent"),
        (r#"{"ask":"look","id":7}"#, "no role 7"),
    ] {
        let value: serde_json::Value = serde_json::from_str(ask).unwrap();
        let reply = agent.raw(&value).await.unwrap();
        let Reply::Refused { why } = reply else {
            panic!("{ask}: {reply:?}");
        };
        assert!(why.contains(says), "{ask}: {why}");
    }
    // And it goes on.
    agent.stay().await.unwrap();
}

#[tokio::test]
async fn files_go_there_and_back_and_leave_nothing() {
    let place = Place::new(LEASE).await;
    let mut agent = place.asked().await;
    for size in [0, 1, 200_000] {
        let bytes: Vec<u8> = (0..size).map(|n: u32| n.to_le_bytes()[0]).collect();
        agent.put(&name("file"), &bytes).await.unwrap();
        assert_eq!(agent.get(&name("file")).await.unwrap(), bytes);
    }
    assert_eq!(place.work(), ["file"]);
    agent.close().await.unwrap();
    until("the folder is emptied", || place.work().is_empty()).await;
}

#[tokio::test]
async fn one_controller_at_a_time() {
    let place = Place::new(LEASE).await;
    let mut first = place.asked().await;
    first.stay().await.unwrap();
    let second = place.known("second").await;
    let error = second.connect(place.address).await.unwrap().stay().await;
    let error = error.unwrap_err().to_string();
    assert!(error.contains("another controller"), "{error}");
    first.close().await.unwrap();
    let began = Instant::now();
    while second
        .connect(place.address)
        .await
        .unwrap()
        .stay()
        .await
        .is_err()
    {
        assert!(began.elapsed() < SOON, "the first one has gone");
    }
}

#[tokio::test]
async fn a_program_with_another_checksum_is_refused() {
    let place = Place::new(LEASE).await;
    let mut agent = place.asked().await;
    agent.put(&name("mqbench"), b"text").await.unwrap();
    for (program, sha256, says) in [
        ("mqbench", sha256(b"test"), "SHA-256"),
        ("absent", sha256(b"text"), "cannot read the program"),
        ("../agent.key", sha256(b"text"), "no name of a file"),
    ] {
        let ask = serde_json::json!({ "ask": "upgrade", "program": program, "sha256": sha256 });
        let Reply::Refused { why } = agent.raw(&ask).await.unwrap() else {
            panic!("{program} was taken");
        };
        assert!(why.contains(says), "{why}");
    }
    let (id, _) = agent.start(broker()).await.unwrap();
    let error = agent.upgrade(b"text").await.unwrap_err().to_string();
    assert!(error.contains("a role is running"), "{id}: {error}");
    assert!(!place.agent().join("bin").exists());
}

#[tokio::test]
async fn an_agent_of_another_protocol_is_named_as_such() {
    let place = Place::new(LEASE).await;
    let state = AgentState::open(&place.agent()).unwrap();
    let options = ListenOptions {
        identity: Some(state.identity().unwrap()),
        alpn: vec![b"mqbench-agent/2".to_vec()],
        ..ListenOptions::default()
    };
    let any = url("127.0.0.1:0".parse().unwrap());
    let mut other = Listener::bind(&any, &options).await.unwrap();
    let address = socket(&other.local_address().to_string());
    let controller = place.controller("controller");
    let known = ControllerState::open(&place.folder.path().join("controller")).unwrap();
    known.remember(address, &sha256(&[])).unwrap();
    let accepting = async { other.accept().await.unwrap().handshake().await };
    let (asked, _) = tokio::join!(controller.connect(address), accepting);
    let error = format!("{:#}", asked.unwrap_err());
    assert!(error.contains("does not speak mqbench-agent/1"), "{error}");
    assert_eq!(error.lines().count(), 1, "{error}");
}

#[tokio::test]
async fn clocks_of_one_machine_agree() {
    let place = Place::new(LEASE).await;
    let mut agent = place.asked().await;
    let clock = crate::clock::WallClock::default();
    let times: [u64; 4] = agent.clock(&clock).await.unwrap().into();
    assert!(times.is_sorted(), "{times:?}");
}

#[tokio::test]
async fn a_role_runs_until_it_is_stopped() {
    let place = Place::new(LEASE).await;
    let mut agent = place.asked().await;
    let (id, addresses) = agent.start(broker()).await.unwrap();
    assert!(listens(&addresses[0]));
    assert_eq!(agent.look(id).await.unwrap(), State::Running {});
    let State::Ended { code, said } = agent.stop(id).await.unwrap() else {
        panic!("it was stopped");
    };
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("shutting down"), "{said}");
    assert!(!listens(&addresses[0]));
}

/// Of the broker at this address.
fn subscriber(broker: &str) -> Role {
    Role::Subscriber {
        client: roles::Client {
            broker: format!("mqtt://{broker}"),
            topic: "t".to_owned(),
            run: "r".to_owned(),
            qos: 0,
            mqtt: crate::args::MqttVersion::V5,
            ca: None,
            congestion: None,
            initial_rtt_ns: None,
        },
        count: 1,
        idle_ns: 1_000_000_000,
        log: name("receive.csv"),
    }
}

#[tokio::test]
async fn a_role_that_fails_says_why() {
    let place = Place::new(LEASE).await;
    let mut agent = place.asked().await;
    let started = agent.start(subscriber("127.0.0.1:1")).await;
    let said = started.unwrap_err().to_string();
    assert!(
        said.contains("127.0.0.1:1") && said.lines().count() == 1,
        "{said}"
    );
    agent.stay().await.unwrap();
}

#[tokio::test]
async fn a_controller_that_goes_while_a_role_begins_is_not_waited_for() {
    let place = Place::new(LEASE).await;
    let mut agent = place.asked().await;
    // It accepts, and says nothing, for which a subscriber has twenty seconds' patience.
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let _held = tokio::select! {
        started = agent.start(subscriber(&address)) => panic!("{started:?}"),
        accepted = silent.accept() => accepted.unwrap(),
    };
    drop(agent);
    let gone = Instant::now();
    until("the folder is emptied", || place.work().is_empty()).await;
    assert!(gone.elapsed() < SOON / 2, "{:?}", gone.elapsed());
}

#[tokio::test]
async fn a_controller_that_falls_silent_is_cleaned_up_after() {
    let place = Place::new(Duration::from_secs(1)).await;
    let mut agent = place.asked().await;
    agent.put(&name("file"), b"text").await.unwrap();
    let (_, addresses) = agent.start(broker()).await.unwrap();
    // Its connection is still there, and it says nothing.
    until("the role has ended", || !listens(&addresses[0])).await;
    until("the folder is emptied", || place.work().is_empty()).await;
    assert!(agent.stay().await.is_err());
}

#[tokio::test]
async fn roles_end_with_an_agent_that_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("agent");
    let mut process = Command::new(program())
        .args(["agent", "run", "--listen", "127.0.0.1:0", "--state"])
        .arg(&state)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let output = process.stdout.take().unwrap();
    BufReader::new(output).read_line(&mut line).unwrap();
    let address = socket(&line);
    let controller = Controller::open(&folder.path().join("controller")).unwrap();
    let code = open_code(&state).unwrap();
    controller.enrol(address, &code).await.unwrap();
    let mut agent = controller.connect(address).await.unwrap();
    let (_, addresses) = agent.start(broker()).await.unwrap();
    assert!(listens(&addresses[0]));
    process.kill().unwrap();
    process.wait().unwrap();
    until("the role has ended", || !listens(&addresses[0])).await;
}
