//! `mqbench clock measure`: asks another machine for its time, and relates the clocks.

use std::{
    hash::{BuildHasher as _, RandomState},
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use anyhow::{Context as _, bail};
use mq_measure::clock::{
    Assumptions, ClockFile, CrossCheck, DATAGRAM, Exchange, Kind, LeastDelays, Probe, Side,
};
use tokio::{
    net::UdpSocket,
    time::{Instant, MissedTickBehavior},
};

use super::{
    PORT,
    socket::{Arrival, Stamped},
};
use crate::{
    clock::nanoseconds,
    {
        clock::{WallClock, chrony, host_name},
        report,
        units::{format_time, parse_duration},
    },
};

/// Time to wait for answers after the last question. A later answer was delayed by a queue, and would narrow no bound.
const LINGER: Duration = Duration::from_secs(2);

/// Options of `clock measure`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Args {
    /// Host that runs `mqbench clock serve`, with its port if that is not 14568
    #[arg(value_name = "HOST")]
    host: String,
    /// Duration of the measurement; Ctrl-C ends it earlier, and the measurement until then counts
    #[arg(long = "for", value_name = "TIME", default_value = "30s", value_parser = parse_duration)]
    lasts: Duration,
    /// Time between questions
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = interval)]
    interval: Duration,
    /// Lower bound of the delay to HOST, such as an emulated delay
    #[arg(long, value_name = "TIME", default_value = "0ms", value_parser = parse_duration)]
    least_there: Duration,
    /// Lower bound of the delay from HOST
    #[arg(long, value_name = "TIME", default_value = "0ms", value_parser = parse_duration)]
    least_back: Duration,
    /// Largest change of the clocks' rates during the measurement, in parts per million
    #[arg(long, value_name = "PPM", default_value_t = 1.0, value_parser = ppm)]
    wander: f64,
    /// File for the measurement (JSON), for `mqbench join --clock`
    #[arg(short, long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(args: &Args) -> anyhow::Result<()> {
    let clock = WallClock::from_env()?;
    let remote = resolve(&args.host).await?;
    let any: IpAddr = match remote {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0)).await.context("cannot ask")?;
    socket
        .connect(remote)
        .await
        .with_context(|| format!("cannot ask {remote}"))?;
    let socket = Stamped::new(socket, clock).context("cannot stamp datagrams")?;
    let mut measurement = ClockMeasurement::new(socket);
    measurement.run(args.interval, args.lasts).await?;
    let file = measurement.finish(args, remote).await?;
    if let Some(path) = &args.out {
        file.save(path)?;
    }
    if args.json {
        report::print(&report::pretty_json(&file)?)
    } else {
        report::print(&describe(&file))
    }
}

/// Questions that are sent, and their answers.
struct ClockMeasurement {
    socket: Stamped,
    host: String,
    session: u64,
    /// Questions by their numbers: the time at which each was sent, and its exchange once it is answered.
    asked: Vec<(u64, Option<Exchange>)>,
    /// The server's name and error bound.
    remote: Option<Side>,
    /// The last error of the socket, as the reason why no answer arrives.
    refusal: Option<io::Error>,
}

impl ClockMeasurement {
    fn new(socket: Stamped) -> Self {
        Self {
            socket,
            host: host_name(),
            session: RandomState::new().hash_one(std::process::id()),
            asked: Vec::new(),
            remote: None,
            refusal: None,
        }
    }

    /// Sends questions until the time is over or the user interrupts, then waits for the last answers.
    async fn run(&mut self, interval: Duration, lasts: Duration) -> anyhow::Result<()> {
        let mut questions = tokio::time::interval(interval);
        // A burst of questions would only queue.
        questions.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let end = Instant::now() + lasts;
        let interrupted = tokio::signal::ctrl_c();
        tokio::pin!(interrupted);
        let mut buffer = [0; DATAGRAM + 1];
        loop {
            tokio::select! {
                arrival = self.socket.receive(&mut buffer) => self.record_answer(arrival, &buffer),
                _ = questions.tick() => self.ask().await,
                () = tokio::time::sleep_until(end) => break,
                signal = &mut interrupted => {
                    signal?;
                    break;
                }
            }
        }
        let last = Instant::now() + LINGER;
        while self.asked.iter().any(|(_, exchange)| exchange.is_none()) {
            let arrival = self.socket.receive(&mut buffer);
            let Ok(arrival) = tokio::time::timeout_at(last, arrival).await else {
                break;
            };
            self.record_answer(arrival, &buffer);
        }
        Ok(())
    }

    async fn ask(&mut self) {
        let t1_ns = self.socket.now_ns();
        let question = Probe {
            kind: Kind::Question,
            session: self.session,
            number: self.asked.len() as u64,
            t1_ns,
            t2_ns: 0,
            t3_ns: 0,
            error_bound_ns: None,
            host: self.host.clone(),
        };
        self.asked.push((t1_ns, None));
        if let Err(error) = self.socket.socket().send(&question.encode()).await {
            self.refusal = Some(error);
        }
    }

    /// Records an answer to a question that has none yet; drops other datagrams.
    fn record_answer(&mut self, arrival: io::Result<Arrival>, buffer: &[u8]) {
        let arrival = match arrival {
            Ok(arrival) => arrival,
            Err(error) => {
                self.refusal = Some(error);
                return;
            }
        };
        let Some(answer) = Probe::decode(&buffer[..arrival.length]) else {
            return;
        };
        let number = usize::try_from(answer.number).unwrap_or(usize::MAX);
        let Some((t1_ns, exchange)) = self.asked.get_mut(number) else {
            return;
        };
        let own = answer.kind == Kind::Answer && answer.session == self.session;
        if own && answer.t1_ns == *t1_ns && exchange.is_none() {
            *exchange = Some(answer.exchange(arrival.at_ns));
            self.remote = Some(Side {
                host: answer.host,
                error_bound_ns: answer.error_bound_ns,
            });
        }
    }

    /// Builds the clock file from the answers.
    async fn finish(self, args: &Args, remote: SocketAddr) -> anyhow::Result<ClockFile> {
        let Some(side) = self.remote else {
            let why = self
                .refusal
                .map_or_else(String::new, |why| format!(": {why}"));
            bail!(
                "nobody tells the time at udp://{remote}{why}; start `mqbench clock serve` there"
            );
        };
        let local = Side {
            host: self.host,
            error_bound_ns: chrony::error_bound_ns().await,
        };
        let assumptions = Assumptions {
            least: LeastDelays {
                there_ns: nanoseconds(args.least_there),
                back_ns: nanoseconds(args.least_back),
            },
            wander_ppb: args.wander * 1e3,
        };
        let asked = self.asked.len() as u64;
        let exchanges = self.asked.into_iter().filter_map(|(_, exchange)| exchange);
        let exchanges = exchanges.collect();
        Ok(ClockFile::new(local, side, assumptions, asked, exchanges)?)
    }
}

/// Resolves `HOST` or `HOST:PORT`; an IPv6 address with a port stands in brackets.
async fn resolve(host: &str) -> anyhow::Result<SocketAddr> {
    if let Ok(address) = host.parse::<SocketAddr>() {
        return Ok(address);
    }
    if let Ok(address) = host.parse::<IpAddr>() {
        return Ok((address, PORT).into());
    }
    let (name, port) = match host.rsplit_once(':') {
        Some((name, port)) => {
            let port = port.parse();
            let port = port.with_context(|| format!("{host} is not HOST or HOST:PORT"))?;
            (name, port)
        }
        None => (host, PORT),
    };
    let mut addresses = tokio::net::lookup_host((name, port))
        .await
        .with_context(|| format!("cannot find {name}"))?;
    addresses
        .next()
        .with_context(|| format!("{name} has no address"))
}

/// Parses the interval between questions, at least 1 ms.
fn interval(text: &str) -> Result<Duration, String> {
    parse_duration(text).and_then(|interval| match interval {
        interval if interval < Duration::from_millis(1) => {
            Err("questions are 1ms apart at least".to_owned())
        }
        interval => Ok(interval),
    })
}

fn ppm(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|ppm| (0.0..=1e5).contains(ppm))
        .ok_or_else(|| "parts per million are a number from 0 to 100000".to_owned())
}

/// Formats the result as text.
fn describe(file: &ClockFile) -> String {
    let summary = &file.summary;
    let offset = format_time(summary.offset_ns.unsigned_abs());
    let than = if summary.offset_ns < 0 {
        "behind"
    } else {
        "ahead of"
    };
    let rate = if summary.skew_ppb < 0.0 {
        "slower"
    } else {
        "faster"
    };
    let answered = file.exchanges.len() as u64;
    let mut text = format!(
        "{}'s clock is {offset} {than} {}'s, at most {} more or less\n\
         it runs {:.3} ppm {rate}\n\
         least round trip {}; {answered} of {} questions answered, {} lost\n",
        file.remote.host,
        file.local.host,
        format_time(summary.uncertainty_ns),
        summary.skew_ppb.abs() / 1e3,
        format_time(summary.least_round_trip_ns),
        file.asked,
        file.asked - answered,
    );
    text.push_str(&match file.cross_check {
        CrossCheck::NotPossible => "chrony does not say how good both clocks are\n".to_owned(),
        CrossCheck::Agrees { bound_ns } => format!(
            "chrony agrees: both clocks are within {} of UTC, added up\n",
            format_time(bound_ns)
        ),
        CrossCheck::Disagrees { bound_ns } => format!(
            "chrony disagrees: it has both clocks within {} of UTC, added up\n",
            format_time(bound_ns)
        ),
    });
    text + &report::warnings(&file.validity.warnings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_host_may_have_a_port() {
        let at = |host: &'static str| async move { resolve(host).await.unwrap().to_string() };
        assert_eq!(at("127.0.0.1").await, "127.0.0.1:14568");
        assert_eq!(at("127.0.0.1:7").await, "127.0.0.1:7");
        assert_eq!(at("::1").await, "[::1]:14568");
        assert_eq!(at("[::1]:7").await, "[::1]:7");
        let error = resolve("host:seven").await.unwrap_err().to_string();
        assert!(error.contains("HOST:PORT"), "{error}");
    }

    #[test]
    fn questions_keep_their_distance() {
        assert!(interval("0ms").is_err() && interval("500us").is_err());
        assert_eq!(interval("1ms"), Ok(Duration::from_millis(1)));
        assert_eq!(ppm("0.5"), Ok(0.5));
        assert!(ppm("-1").is_err() && ppm("NaN").is_err());
    }
}
