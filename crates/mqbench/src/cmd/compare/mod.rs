//! `mqbench compare`: the same work over each transport, interleaved, in one table.

mod compared_transport;
mod options;
mod result;

use std::{fmt::Write as _, num::NonZeroU32};

use anyhow::{Context, bail};
use indicatif::ProgressBar;
use mq_client::{QuicStreams, Spread};
use mq_measure::result::RunResult;
use mq_transport::{Address, CongestionControl, ConnectOptions, Scheme, Trust};

use crate::{
    broker_under_test::{BrokerOptions, BrokerProcess, TestCertificate, configuration},
    report,
    testbed::Testbed,
    this_program::create_output_directory,
};
use compared_transport::ComparedTransport;
pub(crate) use options::Args;
use options::Compared;
use result::result;

/// Returns the congestion control of a comparison that names none: cubic, or reno where this kernel keeps cubic from
/// this user. On a testbed's hosts the programs run as root, which may always use cubic.
fn default_congestion(on_testbed: bool) -> CongestionControl {
    if on_testbed || CongestionControl::Cubic.is_allowed() {
        CongestionControl::Cubic
    } else {
        CongestionControl::Reno
    }
}

/// Our own broker, and the options that its clients have in common with it.
struct OwnBroker {
    process: BrokerProcess,
    is_repeated: bool,
    options: ConnectOptions,
    /// Files of the broker, removed with this value.
    _certificate: TestCertificate,
}

impl OwnBroker {
    /// Starts a broker for these transports; `None` without any. A broker repeats datagrams to all its clients or to none.
    async fn start(
        args: &Args,
        compared: &[(Compared, Option<Address>)],
        is_repeated: bool,
        testbed: Option<&Testbed>,
    ) -> anyhow::Result<Option<Self>> {
        let compared = compared.iter().map(|(one, _)| one);
        let compared = compared.filter(|one| one.is_repeated == is_repeated);
        let schemes: Vec<Scheme> = compared.map(|one| one.scheme).collect();
        if schemes.is_empty() {
            return Ok(None);
        }
        let mut options = args.options(is_repeated);
        let addresses = testbed.into_iter().flat_map(Testbed::broker_addresses);
        let configuration = configuration(&BrokerOptions::of(
            &options.quic,
            &options.crypto.key_exchange_groups,
        ));
        let certificate = TestCertificate::make(addresses.map(Into::into), 0, &configuration)?;
        let transport = &args.client.transport;
        if !transport.insecure && transport.ca.is_none() {
            options.trust = Trust::CaFile(certificate.certificate());
        }
        let host = testbed.map(Testbed::broker);
        let congestion = transport.congestion;
        let process = BrokerProcess::start(&schemes, &certificate, congestion, host).await?;
        Ok(Some(Self {
            process,
            is_repeated,
            options,
            _certificate: certificate,
        }))
    }
}

pub(crate) async fn run(mut args: Args, mut testbed: Option<Testbed>) -> anyhow::Result<()> {
    let mut is_reno_by_default = false;
    if args.broker.is_empty() {
        // For a fair comparison our own broker has the same congestion control on each transport.
        let congestion = &mut args.client.transport.congestion;
        is_reno_by_default = congestion.is_none()
            && *congestion.insert(default_congestion(testbed.is_some())) == CongestionControl::Reno;
    }
    if args.size < crate::payload::MIN_SIZE {
        bail!(
            "--size {} is too small: a measured message has at least 8 bytes",
            args.size
        );
    }
    if let Some(out) = &args.out {
        // Create the directory before the work, so that a failure costs nothing.
        create_output_directory(out)?;
    }
    let rows = args.compared()?;
    let mut own = Vec::new();
    if args.broker.is_empty() {
        for is_repeated in [false, true] {
            own.extend(OwnBroker::start(&args, &rows, is_repeated, testbed.as_ref()).await?);
        }
    }
    let mut compared = rows
        .iter()
        .map(|(row, address)| clients(&args, *row, address.as_ref(), &own, testbed.as_ref()))
        .collect::<anyhow::Result<Vec<_>>>()?;
    if is_reno_by_default {
        eprintln!(
            "reno on all transports: this kernel keeps cubic from this user \
             (net.ipv4.tcp_allowed_congestion_control)"
        );
    }
    let progress = progress_bar(&args, compared.len());
    let measured = measure(&args, &mut compared, testbed.as_ref(), &progress).await;
    progress.finish_and_clear();
    if let Some(testbed) = &mut testbed {
        testbed.finish_captures()?;
    }
    // What was measured before an error is still a result.
    if compared
        .iter()
        .any(|transport| !transport.rounds.is_empty())
    {
        let result = result(&args, &compared, !own.is_empty(), testbed.as_ref());
        if let Some(out) = &args.out {
            write_files(out, &compared, &result)?;
        }
        if args.json {
            report::print(&report::pretty_json(&result)?)?;
        } else {
            report::print(&text(&args, &compared, &result, testbed.as_ref()))?;
        }
    }
    measured?;
    for broker in own {
        broker.process.stop().await?;
    }
    Ok(())
}

/// Makes the clients of a compared transport, of another broker's address or of our own broker.
fn clients(
    args: &Args,
    row: Compared,
    address: Option<&Address>,
    own: &[OwnBroker],
    testbed: Option<&Testbed>,
) -> anyhow::Result<ComparedTransport> {
    let name = row.to_string();
    if let Some(address) = address {
        let options = args.options(row.is_repeated);
        return ComparedTransport::new(name, address, &options, None, testbed);
    }
    let mut brokers = own.iter();
    let broker = brokers.find(|broker| broker.is_repeated == row.is_repeated);
    let broker = broker.context("no broker was started")?;
    let address = broker.process.address(row.scheme)?;
    let pid = broker.process.pid();
    ComparedTransport::new(name, &address, &broker.options, pid, testbed)
}

fn progress_bar(args: &Args, transports: usize) -> ProgressBar {
    let all = args.messages_per_round() * u64::from(args.rounds) * transports as u64;
    report::progress_bar(all, "{prefix:>11} {wide_bar} {pos}/{len} {eta} left")
}

/// Lets the transports take turns. In each round every transport sends its share. The order moves on by one each
/// round, so that drift of the machine affects all alike.
async fn measure(
    args: &Args,
    compared: &mut [ComparedTransport],
    testbed: Option<&Testbed>,
    progress: &ProgressBar,
) -> anyhow::Result<()> {
    let count = compared.len();
    for round in 0..args.rounds {
        for turn in 0..count {
            let offset = usize::try_from(round).unwrap_or(0);
            let transport = &mut compared[(turn + offset) % count];
            progress.set_prefix(transport.name.clone());
            let turn = u32::try_from(turn).unwrap_or(u32::MAX);
            transport
                .send(args, round, turn, testbed, progress)
                .await
                .with_context(|| format!("over {}", transport.publisher.address))?;
        }
        for transport in compared.iter_mut() {
            transport
                .dial(args)
                .await
                .with_context(|| format!("over {}", transport.publisher.address))?;
        }
    }
    Ok(())
}

fn text(
    args: &Args,
    compared: &[ComparedTransport],
    result: &RunResult,
    testbed: Option<&Testbed>,
) -> String {
    let mqtt = args.client.mqtt.get();
    let mut text = format!(
        "MQTT {} · QoS {} · {} B every {:?} · {} messages over each transport in {} rounds · \
         congestion control {}\n",
        mqtt.version,
        mqtt.qos,
        args.size,
        args.interval,
        args.messages_per_round() * u64::from(args.rounds),
        args.rounds,
        args.client
            .transport
            .congestion
            .map_or("as each has it".to_owned(), |name| name.to_string()),
    );
    if args.topics > NonZeroU32::MIN {
        let _ = writeln!(text, "{} topics in turn", args.topics);
    }
    if mqtt.streams != QuicStreams::Control {
        let _ = writeln!(text, "QUIC streams: {}", mqtt.streams);
    }
    if mqtt.deliveries != Spread::Control {
        let _ = writeln!(text, "QUIC streams of the broker: {}", mqtt.deliveries);
    }
    if mqtt.datagrams {
        text.push_str("QoS 0 goes as QUIC datagrams where it fits\n");
    }
    let tuning = args.links.tcp_tuning();
    if let Some(least) = tuning.rto_min {
        let _ = writeln!(text, "TCP's shortest retransmission time-out: {least:?}");
    }
    if tuning.thin {
        text.push_str("the time-outs of a thin TCP flow do not double\n");
    }
    if let Some(testbed) = testbed {
        text.push_str(&testbed.describe());
    }
    let recorders: Vec<_> = compared.iter().map(ComparedTransport::recorder).collect();
    text + &report::compare::whole(result, &recorders)
}

fn write_files(
    out: &std::path::Path,
    compared: &[ComparedTransport],
    result: &RunResult,
) -> anyhow::Result<()> {
    let recorders: Vec<_> = compared.iter().map(ComparedTransport::recorder).collect();
    for transport in compared {
        transport
            .samples_since_epoch()
            .save(&out.join(format!("samples-{}.csv", transport.name)))?;
    }
    let start = std::time::SystemTime::now();
    let tagged: Vec<_> = compared
        .iter()
        .zip(&recorders)
        .map(
            |(transport, recorder)| mq_measure::recorder::TaggedHistogram {
                tag: &transport.name,
                start,
                duration: transport
                    .rounds
                    .iter()
                    .map(|round| round.outcome.elapsed)
                    .sum(),
                recorder,
            },
        )
        .collect();
    let path = out.join("latency.hlog");
    let file =
        std::fs::File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
    mq_measure::recorder::write_log(std::io::BufWriter::new(file), &path, &tagged)?;
    result.save(&out.join("result.json"))?;
    Ok(())
}
