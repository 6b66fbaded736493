//! Fidelity of every shipped link to its profile, by UDP probes, ping and iperf3.
//!
//! How close times can be depends on the machine's other work. They must be within half a millisecond of the
//! delay; with `MQ_IDLE_MACHINE=1` within what docs/reference/emulation.md promises for an idle machine. Without
//! ping or iperf3 their part is skipped, and says so.

use std::{
    io,
    process::{Child, Command, Stdio},
    time::Duration,
};

use mq_netem::{Direction, Host, Lab, Link};

use super::{
    Test,
    probe::{HEADERS, Pair},
};

pub(crate) const TESTS: &[Test] = &[
    ("one_way_delays_are_kept", one_way_delays_are_kept),
    ("ping_sees_both_directions", ping_sees_both_directions),
    ("loss_is_what_it_says", loss_is_what_it_says),
    ("loss_knows_no_sizes", loss_knows_no_sizes),
    ("iperf3_gets_the_rate", iperf3_gets_the_rate),
];

/// The first of the seeds of the links' chances. One seed in a hundred is outside its interval, such as
/// 2.
const SEED: u64 = 11;

/// Bits a second of the fastest probe: frames of 82 bytes, one a millisecond.
const PROBE_RATE: u64 = 656_000;

/// Makes a pair of hosts for each link without changes or a trace that carries so many bits a second.
fn pairs(lab: &mut Lab, changes: &str, least: u64) -> Vec<(&'static str, Link, Pair)> {
    let links =
        Link::shipped().map(|name| (name, Link::load(&format!("{name}{changes}")).unwrap()));
    let links = links.filter(|(_, link)| link.up.changes.is_empty() && link.up.trace.is_none());
    let carries = |direction: &Direction| {
        let rate = direction.rate;
        rate.is_none_or(|rate| rate.bits_per_second() >= least)
    };
    let links = links.filter(|(_, link)| carries(&link.up) && carries(&link.down));
    let pair = |((name, link), seed): ((_, Link), _)| {
        let pair = Pair::new(lab, &link, seed);
        (name, link, pair)
    };
    links.zip(SEED..).map(pair).collect()
}

/// Returns the time of a packet on an idle link, in milliseconds.
fn expected_ms(direction: &Direction, frame: usize) -> f64 {
    let sending = direction
        .rate
        .map_or(0, |rate| rate.nanoseconds_for(frame as u64));
    (direction.delay + Duration::from_nanos(sending)).as_secs_f64() * 1e3
}

fn idle() -> bool {
    std::env::var_os("MQ_IDLE_MACHINE").is_some()
}

/// The smallest frame of Ethernet, as in the same probe of the kernel's test.
const SIZE: usize = 60;

fn one_way_delays_are_kept(lab: &mut Lab) {
    println!("  one way, ms          profile    mean     p50     p99     max");
    for (name, link, pair) in pairs(lab, "", PROBE_RATE) {
        for (side, direction) in [("up", &link.up), ("down", &link.down)] {
            let expected = expected_ms(direction, SIZE);
            let probe = match side {
                "up" => Pair::probe,
                _ => Pair::probe_back,
            };
            // A virtual machine stands still for some milliseconds now and then.
            let tries = (0..3).map(|_| Times::measure(&pair, probe));
            let mut tries = tries.inspect(|times| {
                println!(
                    "  {name:<15} {side:<4} {expected:>7.3} {:>7.3} {:>7.3} {:>7.3} {:>7.3}",
                    times.mean, times.p50, times.p99, times.max
                );
                // No packet comes early, except by the clock's own grain.
                assert!(times.min > expected - 0.01, "{name} {side}: {}", times.min);
            });
            assert!(
                tries.any(|times| times.are_kept(expected)),
                "{name} {side}: three times late"
            );
        }
    }
}

/// One-way delays, milliseconds.
struct Times {
    min: f64,
    mean: f64,
    p50: f64,
    p99: f64,
    max: f64,
}

type Probe = fn(&Pair, u32, usize, Duration) -> Vec<(u32, Duration)>;

impl Times {
    fn measure(pair: &Pair, probe: Probe) -> Self {
        const COUNT: u32 = 500;
        let took = probe(pair, COUNT, SIZE - HEADERS, Duration::from_millis(3));
        assert_eq!(took.len(), COUNT as usize);
        assert!(
            took.is_sorted_by_key(|(number, _)| *number),
            "reordered: {took:?}"
        );
        let ms = took.iter().map(|(_, took)| took.as_secs_f64() * 1e3);
        let mut ms: Vec<_> = ms.collect();
        ms.sort_by(f64::total_cmp);
        Self {
            min: ms[0],
            mean: ms.iter().sum::<f64>() / f64::from(COUNT),
            p50: ms[250],
            p99: ms[495],
            max: ms[499],
        }
    }

    fn are_kept(&self, expected: f64) -> bool {
        if idle() {
            self.mean < expected + 0.2 && self.p99 < expected + 0.5
        } else {
            self.p50 < expected + 0.5
        }
    }
}

fn ping_sees_both_directions(lab: &mut Lab) {
    if missing("ping", "-V") {
        return;
    }
    println!("  ping, ms        profile  median");
    for (name, link, pair) in pairs(lab, "", PROBE_RATE) {
        let mut ping = Command::new("ping");
        ping.args(["-n", "-c", "100", "-i", "0.02", "-W", "2"]);
        ping.arg(pair.addresses.far.to_string());
        let output = pair.hosts[0].run(|| ping.output()).unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let times = text
            .lines()
            .filter_map(|line| line.split_once("time=")?.1.split(' ').next());
        let mut ms: Vec<f64> = times.map(|ms| ms.parse().unwrap()).collect();
        assert_eq!(ms.len(), 100, "{name}: {text}");
        ms.sort_by(f64::total_cmp);
        // 56 bytes, an ICMP header of 8, IPv4 and Ethernet.
        let expected = expected_ms(&link.up, 98) + expected_ms(&link.down, 98);
        println!("  {name:<15} {expected:>8.3} {:>8.3}", ms[50]);
        // ping shows three digits.
        let grain = if expected < 100.0 { 0.1 } else { 1.0 };
        assert!(ms[0] > expected - grain, "{name}: {}", ms[0]);
        assert!(ms[50] < expected + 1.0, "{name}: {}", ms[50]);
    }
}

const PACKETS: u32 = 20_000;

/// Returns `true` if the loss is outside the interval of 99 in 100 runs: 2.58 standard deviations around `share`.
fn is_off(lost: u32, of: u32, share: f64) -> bool {
    let of = f64::from(of);
    let likely = 2.58 * (share * (1.0 - share) / of).sqrt();
    (f64::from(lost) / of - share).abs() > likely
}

fn loss_is_what_it_says(lab: &mut Lab) {
    let before = lab.reports().len();
    let pairs = pairs(lab, "@loss=5%", PROBE_RATE);
    // All packets at once: the test measures chance, not time.
    let lost: Vec<_> = std::thread::scope(|scope| {
        let interval = Duration::from_millis(1);
        let probe = |pair| scope.spawn(move || Pair::probe(pair, PACKETS, 40, interval).len());
        let running: Vec<_> = pairs.iter().map(|(_, _, pair)| probe(pair)).collect();
        let arrived = running.into_iter().map(|probe| probe.join().unwrap());
        arrived
            .map(|arrived| PACKETS - u32::try_from(arrived).unwrap())
            .collect()
    });
    let reports = &lab.reports()[before..];
    for ((((name, ..), lost), report), seed) in pairs.iter().zip(lost).zip(reports).zip(SEED..) {
        println!("  {name:<15} lost {lost} of {PACKETS} (seed {seed})");
        assert!(!is_off(lost, PACKETS, 0.05), "{name}: {lost}");
        assert_eq!(report.up.counts.lost, u64::from(lost), "{name}");
        assert_eq!(report.up.counts.overflowed, 0, "{name}");
    }
}

fn loss_knows_no_sizes(lab: &mut Lab) {
    let link = Link::load("s22/wifi@loss=5%").unwrap();
    let pair = Pair::new(lab, &link, SEED);
    let size = |number: u32| [40, 1400][(number % 2) as usize];
    let arrived = pair.probe_sizes(PACKETS, size, Duration::from_micros(500));
    for (parity, size) in [(0, 40), (1, 1400)] {
        let of_size = arrived
            .iter()
            .filter(|(number, _)| number % 2 == parity)
            .count();
        let lost = PACKETS / 2 - u32::try_from(of_size).unwrap();
        println!("  {size} B: lost {lost} of {} (seed {})", PACKETS / 2, SEED);
        assert!(!is_off(lost, PACKETS / 2, 0.05), "{size} B: {lost}");
    }
}

/// The fastest rate that the test requires of the emulator on any machine; 10 Gbit/s is too much.
const REACHED: u64 = 100_000_000;

fn iperf3_gets_the_rate(lab: &mut Lab) {
    if missing("iperf3", "--version") {
        return;
    }
    let with_rate = |link: &Link| {
        link.up
            .rate
            .is_some_and(|rate| rate.bits_per_second() <= REACHED)
    };
    let pairs: Vec<_> = pairs(lab, "", 0)
        .into_iter()
        .filter(|(_, link, _)| with_rate(link))
        .collect();
    let servers: Vec<_> = pairs
        .iter()
        .map(|(_, _, pair)| server(&pair.hosts[1]))
        .collect();
    std::thread::sleep(Duration::from_millis(300));
    let clients: Vec<_> = pairs
        .iter()
        .map(|(_, link, pair)| client(link, pair))
        .collect();
    for client in clients {
        assert!(client.wait_with_output().unwrap().status.success());
    }
    println!("  iperf3, bit/s   profile    got");
    for ((name, link, _), server) in pairs.iter().zip(servers) {
        let output = server.wait_with_output().unwrap();
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let rates: Vec<_> = report["intervals"]
            .as_array()
            .unwrap()
            .iter()
            .map(|interval| interval["sum"]["bits_per_second"].as_f64().unwrap())
            .collect();
        // Without the intervals in which the first packet and the last are on their way.
        let steady = &rates[2..rates.len() - 2];
        #[expect(clippy::cast_precision_loss, reason = "a few intervals, and megabits")]
        let (got, rate) = (
            steady.iter().sum::<f64>() / steady.len() as f64 * FRAME / PAYLOAD,
            link.up.rate.unwrap().bits_per_second() as f64,
        );
        println!("  {name:<15} {rate:>9} {got:>9.0}");
        assert!((got / rate - 1.0).abs() < 0.02, "{name}: {got} {rate}");
    }
}

/// The bytes of an iperf3 datagram, and of its whole frame.
const PAYLOAD: f64 = 1000.0;
const FRAME: f64 = 1042.0;

fn server(host: &Host) -> Child {
    let mut server = Command::new("iperf3");
    server.args(["-s", "-1", "-J"]).stdout(Stdio::piped());
    host.run(|| server.spawn()).unwrap()
}

/// Sends 5 % more than the link carries.
fn client(link: &Link, pair: &Pair) -> Child {
    let rate = link.up.rate.unwrap().bits_per_second() * 105 / 100;
    let mut client = Command::new("iperf3");
    client.args(["-c", &pair.addresses.far.to_string()]);
    client.args(["-u", "-l", "1000", "-b", &rate.to_string(), "-t", "8"]);
    client.stdout(Stdio::null());
    pair.hosts[0].run(|| client.spawn()).unwrap()
}

fn missing(program: &str, version: &str) -> bool {
    let tried = Command::new(program).arg(version).output();
    let missing = tried.is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
    if missing {
        let line = format!("  SKIPPED: there is no {program}");
        // `.ci/run` has installed it.
        assert!(std::env::var_os("MQ_NO_SKIPS").is_none(), "{line}");
        println!("{line}");
    }
    missing
}
