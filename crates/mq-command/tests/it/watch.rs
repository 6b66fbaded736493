//! `mq watch` in a pseudo-terminal: what it shows, what it does with keys and signals, and what it leaves behind.

use std::{
    fs::File,
    io::{Read as _, Write as _},
    os::unix::process::ExitStatusExt as _,
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use mq_client::{Client, Outgoing, QoS};
use mq_testkit::{Scheme, TestBroker};
use nix::{
    pty::{OpenptyResult, Winsize, openpty},
    sys::{
        signal::{Signal, kill},
        termios::{Termios, tcgetattr},
    },
    unistd::Pid,
};

/// A step that takes longer has failed.
const PATIENCE: Duration = Duration::from_secs(20);

/// Sequences that switch a terminal to its alternate screen, and back to the usual one with a cursor.
const ENTER: &[u8] = b"\x1b[?1049h";
const LEAVE: &[u8] = b"\x1b[?1049l";
const SHOW_CURSOR: &[u8] = b"\x1b[?25h";

/// `mq watch` and its terminal of 80 by 24.
struct Watch {
    child: Child,
    keyboard: File,
    /// The terminal's own end, by which its mode is read.
    terminal: File,
    before: Termios,
    /// Everything that was written to the terminal.
    written: Arc<Mutex<Vec<u8>>>,
}

impl Watch {
    fn start(args: &[&str]) -> Self {
        let watch = Self::start_unread(args);
        let mut screen = watch.keyboard.try_clone().unwrap();
        let kept = watch.written.clone();
        std::thread::spawn(move || {
            let mut buffer = vec![0; 65_536];
            // It ends with an error once no process has the terminal.
            while let Ok(count @ 1..) = screen.read(&mut buffer) {
                kept.lock().unwrap().extend_from_slice(&buffer[..count]);
            }
        });
        watch
    }

    /// Starts the view in a terminal that takes some kilobytes and then nothing more.
    fn start_unread(args: &[&str]) -> Self {
        let size = Winsize {
            ws_row: 24,
            ws_col: 80,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        let OpenptyResult { master, slave } = openpty(&size, None).unwrap();
        let before = tcgetattr(&slave).unwrap();
        let terminal = || Stdio::from(slave.try_clone().unwrap());
        let mut command = Command::new(env!("CARGO_BIN_EXE_mq"));
        command.arg("watch").args(args).env("TERM", "xterm");
        command.stdin(terminal()).stdout(terminal());
        let child = command.stderr(terminal()).spawn().unwrap();
        Self {
            child,
            keyboard: master.into(),
            terminal: slave.into(),
            before,
            written: Arc::default(),
        }
    }

    fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    /// Returns the text that the terminal shows.
    fn text(&self) -> String {
        let written = self.written.lock().unwrap().clone();
        shown(&String::from_utf8_lossy(&written))
    }

    async fn shows(&self, wanted: &str) {
        let begin = Instant::now();
        while !self.text().contains(wanted) {
            assert!(begin.elapsed() < PATIENCE, "no {wanted}: {}", self.text());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    async fn end(&mut self) -> ExitStatus {
        let begin = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(begin.elapsed() < PATIENCE, "it does not end");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Waits until the terminal has its usual screen, a cursor and its mode again.
    async fn is_restored(&self) {
        let begin = Instant::now();
        loop {
            let written = self.written.lock().unwrap().clone();
            let last = |what: &[u8]| written.windows(what.len()).rposition(|at| at == what);
            let left = last(LEAVE).is_some() && last(LEAVE) > last(ENTER);
            if left && last(SHOW_CURSOR) > last(ENTER) {
                break;
            }
            assert!(
                begin.elapsed() < PATIENCE,
                "{:?}",
                String::from_utf8_lossy(&written)
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let after = tcgetattr(&self.terminal).unwrap();
        assert_eq!(after.local_flags, self.before.local_flags);
        assert_eq!(after.input_flags, self.before.input_flags);
        assert_eq!(after.output_flags, self.before.output_flags);
    }
}

/// Returns the lines of a terminal of 80 by 24 that got this: texts, positions of the cursor and erasures. Colours are
/// left out, and anything else is a mistake.
fn shown(written: &str) -> String {
    let mut cells = vec![[' '; 80]; 24];
    let (mut x, mut y) = (0, 0);
    let mut rest = written.chars();
    while let Some(one) = rest.next() {
        match one {
            '\n' => (x, y) = (0, (y + 1).min(23)),
            '\r' => x = 0,
            '\u{1b}' => {
                let sequence = rest.as_str();
                let length = sequence.find(|one: char| one.is_ascii_alphabetic());
                // The rest of it has not come yet.
                let Some(length) = length else { break };
                let (values, what) = sequence.split_at(length);
                rest = what[1..].chars();
                let values = values.strip_prefix('[').expect("no other sequence is used");
                match what.as_bytes()[0] {
                    b'H' => {
                        let (row, column) = values.split_once(';').unwrap_or(("1", "1"));
                        y = row.parse::<usize>().unwrap() - 1;
                        x = column.parse::<usize>().unwrap() - 1;
                    }
                    b'J' => cells = vec![[' '; 80]; 24],
                    b'm' | b'h' | b'l' => {}
                    other => panic!("ESC [ {values} {}", other as char),
                }
            }
            one => {
                assert!(!one.is_control(), "{one:?}");
                if x < 80 {
                    cells[y][x] = one;
                    x += 1;
                }
            }
        }
    }
    let line = |cells: &[char; 80]| cells.iter().collect::<String>().trim_end().to_owned();
    cells.iter().map(line).collect::<Vec<_>>().join("\n")
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

async fn publisher(broker: &TestBroker) -> Client {
    let builder = broker.client(Scheme::Tcp, "publisher");
    builder.build().await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_value_is_on_the_screen_and_q_gives_the_terminal_back() {
    let broker = TestBroker::start().await;
    let ca = broker.certificate().to_str().unwrap().to_owned();
    let publisher = publisher(&broker).await;
    let retained = Outgoing::to("plant/7/temperature", "{\"celsius\":21.5}").unwrap();
    publisher.send(retained.retain(true)).await.unwrap();
    for scheme in [Scheme::Tcp, Scheme::Quic] {
        let url = broker.address(scheme).to_string();
        let mut watch = Watch::start(&[&url, "-t", "plant/#", "--cafile", &ca]);
        watch.shows("connected").await;
        watch.shows("{\"celsius\":21.5}").await;
        watch.shows("temperature").await;
        watch.shows("RTT").await;
        watch.press("G");
        // The value's own part, where JSON has a space.
        watch.shows("\"celsius\": 21.5").await;
        publisher
            .publish("plant/8", "later", QoS::AtLeastOnce)
            .await
            .unwrap();
        watch.shows("later").await;
        watch.press("q");
        assert_eq!(watch.end().await.code(), Some(0), "{scheme}");
        watch.is_restored().await;
    }
    broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn signals_and_ctrl_c_give_the_terminal_back() {
    let broker = TestBroker::start().await;
    let url = broker.address(Scheme::Tcp).to_string();
    for (signal, code) in [
        (Some(Signal::SIGTERM), 143),
        (Some(Signal::SIGHUP), 129),
        (Some(Signal::SIGINT), 130),
        (None, 0),
    ] {
        let mut watch = Watch::start(&[&url]);
        watch.shows("q quit").await;
        match signal {
            Some(signal) => {
                let id = Pid::from_raw(watch.child.id().try_into().unwrap());
                kill(id, signal).unwrap();
            }
            None => watch.press("\u{3}"),
        }
        let status = watch.end().await;
        assert_eq!(
            (status.code(), status.signal()),
            (Some(code), None),
            "{signal:?}"
        );
        watch.is_restored().await;
    }
    broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_ends_it_in_a_terminal_that_takes_nothing() {
    let broker = TestBroker::start().await;
    let url = broker.address(Scheme::Tcp).to_string();
    let publisher = publisher(&broker).await;
    let mut watch = Watch::start_unread(&[&url]);
    // Each frame has other values, so that the terminal is full after some of them.
    for number in 0..1_000 {
        let topic = format!("t/{}", number % 20);
        let value = number.to_string().repeat(9);
        publisher
            .publish(topic, value, QoS::AtLeastOnce)
            .await
            .unwrap();
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let id = Pid::from_raw(watch.child.id().try_into().unwrap());
    kill(id, Signal::SIGTERM).unwrap();
    assert_eq!(watch.end().await.code(), Some(143));
    let after = tcgetattr(&watch.terminal).unwrap();
    assert_eq!(after.local_flags, watch.before.local_flags);
    broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_goes_and_comes_back_is_seen_to_do_so() {
    let broker = TestBroker::start().await;
    let url = broker.address(Scheme::Tcp).to_string();
    let mut watch = Watch::start(&[&url]);
    watch.shows("connected").await;
    let is_seen = || {
        let seen = watch.shows("not connected");
        tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(seen));
    };
    let broker = broker.restart_after(is_seen, |_| {}).await;
    let again = publisher(&broker).await;
    let begin = Instant::now();
    // Subscribed again, and connected.
    while !watch.text().contains("back again") {
        assert!(begin.elapsed() < PATIENCE, "{}", watch.text());
        again
            .publish("news", "back again", QoS::AtLeastOnce)
            .await
            .unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    watch.press("q");
    assert_eq!(watch.end().await.code(), Some(0));
    watch.is_restored().await;
    broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_messages_do_not_reach_the_terminal() {
    let broker = TestBroker::start().await;
    let url = broker.address(Scheme::Tcp).to_string();
    let mut watch = Watch::start(&[&url]);
    watch.shows("q quit").await;
    let publisher = publisher(&broker).await;
    // A broker takes no control character in a topic; a payload is free.
    let evil = "\u{1b}[5;5Hmoved\u{1b}]0;title\u{7}\u{9b}2J\r\n";
    for (topic, payload) in [("a\u{202e}b", evil), ("z", evil), ("end", "of it")] {
        publisher
            .publish(topic, payload, QoS::AtLeastOnce)
            .await
            .unwrap();
    }
    watch.shows("of it").await;
    watch.press("G");
    // Reading the screen has found nothing but texts and places, each within it.
    watch.shows("␛[5;5Hmoved␛]0;title␇\u{fffd}2J").await;
    watch.shows("a\u{fffd}b").await;
    watch.press("q");
    assert_eq!(watch.end().await.code(), Some(0));
    broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_leaves_keys_and_frames() {
    let broker = TestBroker::start().await;
    let url = broker.address(Scheme::Tcp).to_string();
    let mut watch = Watch::start(&[&url, "--topics", "50"]);
    watch.shows("q quit").await;
    let publisher = publisher(&broker).await;
    let flood = tokio::spawn(async move {
        for number in 0_u64.. {
            let message = Outgoing::to(format!("flood/{}", number % 200), "x").unwrap();
            publisher.send(message).await.unwrap();
        }
    });
    watch.shows("(full:").await;
    let before = watch.written.lock().unwrap().len();
    let begin = Instant::now();
    watch.press("?");
    watch.shows("forget what came").await;
    let took = begin.elapsed();
    let frames = watch.written.lock().unwrap().len() - before;
    watch.press("q");
    assert_eq!(watch.end().await.code(), Some(0));
    // Of a screen of 80 by 24, which takes some kilobytes, ten a second at most.
    let most = 20_000 * (took.as_millis() as usize / 100 + 2);
    assert!(frames < most, "{frames} bytes in {took:?}");
    flood.abort();
    broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_terminal_one_line_says_so() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mq"));
    let output = command.args(["watch", "-h", "127.0.0.1"]).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.contains("terminal"), "{said}");
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stdout.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_cannot_be_reached_is_one_line_and_no_screen() {
    // Nobody listens on it.
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let mut watch = Watch::start(&["-h", "127.0.0.1", "-p", &port.to_string()]);
    assert_eq!(watch.end().await.code(), Some(1));
    watch.shows("mq: ").await;
    let written = watch.written.lock().unwrap().clone();
    assert!(!written.windows(ENTER.len()).any(|at| at == ENTER));
    assert_eq!(watch.text().trim().lines().count(), 1);
}
