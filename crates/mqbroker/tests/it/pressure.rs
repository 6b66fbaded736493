//! Subscribers that stop reading and clients that are silent: their effect on the broker's memory
//! and on other clients.
//!
//! 50 MB and 1,000 silent clients; `MQ_MEGABYTES=1000` and `MQ_SILENT=20000` for more,
//! `MQ_TIDY_S=60` to see how much memory is returned, `MQ_CROWDS=2` for the memory of a second
//! crowd, `MQ_SCHEMES=tls` for one transport. Delays are printed; completeness of the messages and
//! the bound on memory are asserted.

use std::{
    io::{BufRead as _, BufReader, Read as _},
    net::{IpAddr, SocketAddr},
    process::{Child, ChildStdout, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use mq_client::{
    Client, ConnectOptions, Outgoing, QoS, Reconnect, SubscribeOptions, Subscription, Trust,
};
use mq_transport::{Connector, Link, QuicOptions};
use nix::{
    sched::{CpuSet, sched_getaffinity, sched_setaffinity},
    sys::resource::{Resource, getrlimit, setrlimit},
    unistd::Pid,
};
use tokio::{
    io::AsyncWriteExt as _,
    net::{TcpSocket, TcpStream},
    runtime::{Builder, Runtime},
    sync::{Mutex, oneshot},
    task::{JoinHandle, spawn_blocking},
    time::{interval, sleep, timeout},
};

use crate::program::Broker;

const MEGABYTE: usize = 1_000_000;

/// A lock for one test at a time: each would disturb the other's measurements.
static ALONE: Mutex<()> = Mutex::const_new(());

fn variable(name: &str, default: usize) -> usize {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}

/// Delays of the messages received, and `true` if any is missing.
#[derive(Default)]
struct Delays(Vec<Duration>);

impl Delays {
    fn percentile(&mut self, share: f64) -> Duration {
        self.0.sort_unstable();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "an index"
        )]
        let index = (self.0.len() as f64 * share) as usize;
        self.0[index.min(self.0.len() - 1)]
    }

    fn print(&mut self, what: &str) -> Duration {
        let [median, p99, most] = [0.5, 0.99, 1.0].map(|share| self.percentile(share));
        let count = self.0.len();
        println!("{what}: {count} messages, median {median:?}, p99 {p99:?}, most {most:?}");
        p99
    }
}

/// Makes a payload of that size with the message's number and its time of sending.
fn stamped(number: u64, began: Instant, size: usize) -> Vec<u8> {
    let sent = u64::try_from(began.elapsed().as_nanos()).unwrap();
    let mut payload = vec![0; size];
    payload[..8].copy_from_slice(&number.to_le_bytes());
    payload[8..16].copy_from_slice(&sent.to_le_bytes());
    payload
}

/// Takes `count` messages, which must be complete and in order.
async fn take(messages: &mut Subscription, first: u64, count: u64, began: Instant) -> Delays {
    let mut delays = Delays::default();
    for number in first..first + count {
        let message = timeout(Duration::from_secs(30), messages.recv()).await;
        let payload = message.expect("a message").expect("a connection").payload;
        let came = began.elapsed();
        let word = |at: usize| u64::from_le_bytes(payload[at..at + 8].try_into().unwrap());
        assert_eq!(word(0), number, "a gap");
        delays
            .0
            .push(came.saturating_sub(Duration::from_nanos(word(8))));
    }
    delays
}

/// Publishes `count` messages to `t`, 500 a second: a reader on a busy machine keeps up with that.
async fn publish(client: &Client, first: u64, count: u64, size: usize, began: Instant) {
    let mut ticks = interval(Duration::from_millis(2));
    for number in first..first + count {
        ticks.tick().await;
        let message = Outgoing::to("t", stamped(number, began, size)).unwrap();
        client.send(message).await.unwrap();
    }
}

#[expect(clippy::cast_precision_loss, reason = "for eyes")]
fn megabytes(bytes: usize) -> f64 {
    bytes as f64 / 1e6
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subscriber_that_stops_reading_costs_bounded_memory_and_nobody_else_anything() {
    const CEILING: usize = 64 * MEGABYTE;
    const SIZE: usize = 10_000;
    /// Bytes of the allocator and of the connections.
    const BESIDES: usize = 24 * MEGABYTE;
    let _alone = ALONE.lock().await;
    let published = variable("MQ_MEGABYTES", 50);
    for scheme in ["tcp", "quic"] {
        let limits = format!(
            "[limits]\nmemory = {CEILING}\nmailbox_bytes = 10000000000\nmailbox_messages = 1000000\n"
        );
        let broker = Broker::new(scheme, &limits);
        let began = Instant::now();
        let reader = broker.client("reader").build().await.unwrap();
        let mut messages = reader.subscribe("t", QoS::AtMostOnce).await.unwrap();
        let writer = broker.client("writer").build().await.unwrap();
        let (warm_up, normal) = (1_000, 4_000);
        tokio::join!(
            publish(&writer, 0, warm_up, SIZE, began),
            take(&mut messages, 0, warm_up, began)
        );
        let ((), mut before) = tokio::join!(
            publish(&writer, warm_up, normal, SIZE, began),
            take(&mut messages, warm_up, normal, began)
        );
        let (empty, _) = broker.resident();

        let stalled = broker.client("stalled").reconnect(Reconnect::never());
        let stalled = stalled.build().await.unwrap();
        let filter = mq_client::TopicFilter::new("t").unwrap();
        let unread = SubscribeOptions::new(filter, QoS::AtMostOnce).capacity(1);
        let _unread = stalled.subscribe_with(unread).await.unwrap();
        let first = warm_up + normal;
        let count = u64::try_from(published * MEGABYTE / SIZE).unwrap();
        let ((), mut after) = tokio::join!(
            publish(&writer, first, count, SIZE, began),
            take(&mut messages, first, count, began)
        );
        let (_, most) = broker.resident();
        println!("{scheme}, {published} MB at one that does not read:");
        let normal = before.print("  before");
        let beside = after.print("  beside");
        println!(
            "  p99 {:.2} times the normal; memory {:.1} MB before, {:.1} MB at most, ceiling {:.0} MB",
            beside.as_secs_f64() / normal.as_secs_f64(),
            megabytes(empty),
            megabytes(most),
            megabytes(CEILING)
        );
        assert!(most < empty + CEILING + BESIDES, "{most}");
    }
}

/// Raises the limit of open files of this process and those that it starts to that number, or as
/// far as it may.
fn allow_files(wanted: u64) {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    let allowed = setrlimit(Resource::RLIMIT_NOFILE, wanted, hard.max(wanted))
        .or_else(|_| setrlimit(Resource::RLIMIT_NOFILE, hard.min(wanted), hard));
    allowed.unwrap();
    if hard < wanted {
        println!("of {wanted} files this process may open {hard}");
    }
}

/// The most bytes of a silent connection on any transport.
const MOST_OF_ONE: usize = 64 * 1024;

/// The number of addresses from which a crowd connects.
const HOSTS: u8 = 199;

/// The connection of a silent client.
#[expect(dead_code, reason = "held, not used")]
enum Silent {
    Tcp(TcpStream),
    Link(Box<Link>),
}

/// Connects and sends nothing, or, every hundredth client, garbage.
async fn come(
    number: usize,
    address: mq_client::Address,
    (from, connector): (IpAddr, Connector),
) -> Option<Silent> {
    if address.scheme == mq_transport::Scheme::Tcp {
        let at: SocketAddr = format!("{}:{}", address.host, address.port)
            .parse()
            .unwrap();
        let socket = TcpSocket::new_v4().ok()?;
        socket.bind(SocketAddr::new(from, 0)).ok()?;
        let mut stream = socket.connect(at).await.ok()?;
        if number.is_multiple_of(100) {
            stream.write_all(&[0xF3; 300]).await.ok()?;
        }
        return Some(Silent::Tcp(stream));
    }
    let mut link = connector.connect(&address).await.ok()?;
    link.handshake_complete().await.ok()?;
    if number.is_multiple_of(100) {
        let mut outbox = mq_proto::Outbox::new();
        let put = outbox.put(mq_proto::LaneId::CONTROL, |out| {
            out.extend_from_slice(&[0xF3; 300]);
            Ok::<_, ()>(())
        });
        put.unwrap();
        link.progress(&mut outbox, false).await.ok()?;
    }
    Some(Silent::Link(Box::new(link)))
}

/// Makes a runtime, whose threads have the processor affinity of the present one.
fn runtime() -> Runtime {
    let mut runtime = Builder::new_multi_thread();
    runtime.worker_threads(2).enable_all().build().unwrap()
}

/// Sends a message every 5 ms until the flag is set; the task returns their delays.
fn probe(writer: Client, mut messages: Subscription) -> (Arc<AtomicBool>, JoinHandle<Delays>) {
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let task = tokio::spawn(async move {
        let began = Instant::now();
        let mut delays = Delays::default();
        let mut ticks = interval(Duration::from_millis(5));
        for number in 0.. {
            if stopped.load(Ordering::Relaxed) {
                break;
            }
            ticks.tick().await;
            let message = Outgoing::to("p", stamped(number, began, 100)).unwrap();
            writer.send(message).await.unwrap();
            let mut one = take(&mut messages, number, 1, began).await;
            delays.0.append(&mut one.0);
        }
        delays
    });
    (stop, task)
}

/// The variables of the crowd's process: the broker's URL, and its own processor.
const CROWD_URL: &str = "MQ_CROWD_URL";
const CROWD_CA: &str = "MQ_CROWD_CA";
const CROWD_PROCESSOR: &str = "MQ_CROWD_PROCESSOR";

/// Restricts this thread, and those and the processes that it starts, to these processors.
fn keep_to(processors: impl IntoIterator<Item = usize>) {
    let mut set = CpuSet::new();
    for processor in processors {
        set.set(processor).unwrap();
    }
    sched_setaffinity(Pid::from_raw(0), &set).unwrap();
}

/// Leaves the last processor of this machine to the crowd, which would run on other machines in
/// practice: no thread of this process runs there, and a broker has a worker for each of the
/// others. Where there is only one, all share it.
fn leave_one_processor() -> Option<usize> {
    let mine = sched_getaffinity(Pid::from_raw(0)).unwrap();
    let mut mine: Vec<_> = (0..CpuSet::count())
        .filter(|at| mine.is_set(*at).unwrap())
        .collect();
    let last = mine.pop().filter(|_| !mine.is_empty())?;
    keep_to(mine);
    Some(last)
}

/// The crowd: `MQ_SILENT` clients that connect, `MQ_SILENT_PER_S` of them a second, and stay, in a
/// process of their own.
struct Crowd {
    process: Child,
    lines: std::io::Lines<BufReader<ChildStdout>>,
}

impl Crowd {
    fn new(broker: &Broker, processor: Option<usize>) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "pressure::crowd", "--ignored", "--nocapture"])
            .env(CROWD_URL, &broker.url)
            .env(CROWD_CA, broker.file("cert.pem"))
            .envs(processor.map(|at| (CROWD_PROCESSOR, at.to_string())))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = process.stdout.take().unwrap();
        Self {
            process,
            lines: BufReader::new(output).lines(),
        }
    }

    /// Waits until all clients are connected, and returns the crowd's report. Blocks.
    fn there(&mut self) -> String {
        let said = self.lines.by_ref().map(Result::unwrap);
        let there = said.filter_map(|line| line.split_once("there: ").map(|at| at.1.to_owned()));
        there.take(1).last().expect("a crowd")
    }

    fn leave(mut self) {
        drop(self.process.stdin.take());
        assert!(self.process.wait().unwrap().success());
    }
}

#[test]
#[ignore = "the process of the silent clients, which their test starts"]
fn crowd() {
    if let Ok(processor) = std::env::var(CROWD_PROCESSOR) {
        keep_to([processor.parse().unwrap()]);
    }
    runtime().block_on(come_all());
}

async fn come_all() {
    let url = std::env::var(CROWD_URL).unwrap();
    let address: mq_client::Address = url.parse().unwrap();
    // From one address the kernel's search for free ports would take longer and longer, and one
    // socket would receive everything that the broker sends over QUIC.
    let hosts: Vec<_> = (0..HOSTS)
        .map(|host| {
            let from = IpAddr::from([127, 0, 1, host]);
            let options = ConnectOptions {
                trust: Trust::CaFile(std::env::var_os(CROWD_CA).unwrap().into()),
                local_address: Some(from),
                // A lost first packet is sent again soon, as handshakes have a time limit.
                quic: QuicOptions {
                    initial_rtt: Duration::from_millis(50),
                    ..QuicOptions::default()
                },
                ..ConnectOptions::default()
            };
            (from, Connector::new(options).unwrap())
        })
        .collect();
    let silent = variable("MQ_SILENT", 1_000);
    let a_second = variable("MQ_SILENT_PER_S", 2_000);
    allow_files(u64::try_from(silent).unwrap() + 100);
    let began = Instant::now();
    let mut ticks = interval(Duration::from_millis(1));
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..silent {
        if number.is_multiple_of((a_second / 1_000).max(1)) {
            ticks.tick().await;
        }
        let host = hosts[number % hosts.len()].clone();
        tasks.spawn(come(number, address.clone(), host));
    }
    let held: Vec<_> = tasks.join_all().await.into_iter().flatten().collect();
    // A QUIC crowd of many thousands may be too slow for its own timeouts.
    assert!(held.len() >= silent / 2, "a crowd of {}", held.len());
    println!(
        "there: {} of {silent} silent clients within {:?}",
        held.len(),
        began.elapsed()
    );
    let mut rest = Vec::new();
    std::io::stdin().read_to_end(&mut rest).unwrap();
}

#[test]
fn silent_clients_leave_the_others_and_the_memory_alone() {
    let _alone = ALONE.blocking_lock();
    let left = leave_one_processor();
    runtime().block_on(be_crowded(left));
}

async fn be_crowded(processor: Option<usize>) {
    allow_files(u64::try_from(variable("MQ_SILENT", 1_000)).unwrap() + 100);
    let patience = u64::try_from(variable("MQ_TIDY_S", 30)).unwrap();
    let patience = Duration::from_secs(patience);
    let schemes = std::env::var("MQ_SCHEMES").unwrap_or_else(|_| "tcp tls quic".to_owned());
    for scheme in schemes.split_whitespace() {
        let limits = "[limits]\nmax_handshakes = 30000\nhandshake_timeout_s = 10\n";
        let broker = Broker::new(scheme, limits);
        let writer = broker.client("writer").build().await.unwrap();
        let reader = broker.client("reader").build().await.unwrap();
        for _ in 0..variable("MQ_CROWDS", 1) {
            println!("{scheme}:");
            meet_a_crowd(&broker, processor, (&writer, &reader), patience).await;
        }
    }
}

/// Prints the effect of a crowd that connects and disconnects on other clients and on the broker.
async fn meet_a_crowd(
    broker: &Broker,
    processor: Option<usize>,
    (writer, reader): (&Client, &Client),
    patience: Duration,
) {
    let measure = async |time: &mut (dyn Future<Output = ()> + Unpin)| {
        let messages = reader.subscribe("p", QoS::AtMostOnce).await.unwrap();
        let (stop, task) = probe(writer.clone(), messages);
        time.await;
        stop.store(true, Ordering::Relaxed);
        task.await.unwrap()
    };
    let mut before = measure(&mut Box::pin(sleep(Duration::from_secs(5)))).await;
    let (empty, _) = broker.resident();
    let mut crowd = Crowd::new(broker, processor);
    let (sender, there) = oneshot::channel();
    let mut coming = Box::pin(async {
        let (said, crowd) = spawn_blocking(move || (crowd.there(), crowd))
            .await
            .unwrap();
        println!("  {said}");
        sleep(Duration::from_secs(3)).await;
        assert!(sender.send(crowd).is_ok());
    });
    let mut beside = measure(&mut coming).await;
    let crowd = there.await.unwrap();
    // All disconnect at once.
    let mut leaving = measure(&mut Box::pin(async {
        spawn_blocking(|| crowd.leave()).await.unwrap();
        sleep(Duration::from_secs(2)).await;
    }))
    .await;
    let (mut left, most) = broker.resident();
    let silent = variable("MQ_SILENT", 1_000);
    assert!(most < empty + silent * MOST_OF_ONE, "{most}");
    let normal = before.print("  before");
    let p99 = beside.print("  beside");
    leaving.print("  while they leave");
    let gone = Instant::now();
    // QUIC clients that disappear without a CONNECTION_CLOSE have 10 s for CONNECT, and are dropped
    // within 10 s more; then workers return memory.
    while left > empty + empty / 10 && gone.elapsed() < patience {
        sleep(Duration::from_secs(1)).await;
        left = broker.resident().0;
    }
    println!(
        "  p99 {:.2} times the normal; memory {:.1} MB before, {:.1} MB at most so far, {:.1} MB {} s after",
        p99.as_secs_f64() / normal.as_secs_f64(),
        megabytes(empty),
        megabytes(most),
        megabytes(left),
        gone.elapsed().as_secs()
    );
    assert!(left < 2 * empty, "{left}");
}
