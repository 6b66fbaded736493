//! The logs of a run's roles, and the metrics of its cell.

use std::time::Duration;

use mq_energy::Window;
use mq_measure::{Counts, LastSendEstimator, Samples, clock::Relation, log, schedule::Lateness};

use crate::{
    campaign::{cell::Cell, pattern::Pattern},
    lab::{findings::Findings, metered_energy},
    units::ns_to_ms,
};

/// Names of logs, in the run's folder on a host.
pub(super) const SENT: &str = "send.csv";
pub(super) const RECEIVED: &str = "receive.csv";
pub(super) const SAMPLES: &str = "samples.csv";

/// The logs of a run. They are evaluated when the clocks have been compared again.
pub(super) enum RunLogs {
    /// A send log and a receive log.
    Pair(Vec<u8>, Vec<u8>),
    /// Samples of one clock.
    Samples(Samples),
}

/// Computes a cell's metrics from its logs. The send log's times are converted to the subscriber's clock.
pub(super) fn evaluate(
    cell: &Cell,
    logs: &RunLogs,
    relation: Option<&Relation>,
    findings: &mut Findings,
) -> anyhow::Result<()> {
    let (sent, received) = match logs {
        RunLogs::Samples(samples) if cell.pattern == Pattern::Connect => {
            return findings.add_connections(samples);
        }
        RunLogs::Samples(samples) => return job_result(cell, samples, findings),
        RunLogs::Pair(sent, received) => (sent, received),
    };
    let sent = log::parse_send_log(&sent[..], SENT.as_ref())?.records;
    let received = log::parse_receive_log(&received[..], RECEIVED.as_ref())?.records;
    let joined = log::join_topics(&sent, &received, relation, cell.topics);
    if let Some(uncertainty_ns) = joined.uncertainty_ns {
        findings.set_metric("clock_uncertainty", ns_to_ms(uncertainty_ns));
    }
    match cell.pattern {
        Pattern::StopAndWait => {
            // Without the time in which the publisher learns of each arrival.
            let delta = joined.samples.latencies_sent_ns().iter().sum();
            findings.add_stop_and_wait(Duration::from_nanos(delta), &joined.samples)?;
        }
        Pattern::Reconnect => findings.add_reconnects(&joined.samples)?,
        _ => {
            findings.add_distribution("latency", &joined.samples.latencies_intended_ns())?;
            let mut lateness = Lateness::new();
            for record in &sent {
                lateness.note(record.intended_ns, record.sent_ns);
            }
            findings.add_counts(joined.counts, &lateness, cell.interval_ns);
            findings.add_arrivals(cell, &joined.samples);
            // Samples are on the subscriber's clock and give the length of the window; its beginning is on the
            // publisher's clock.
            let lasted =
                metered_energy::sending_window(&joined.samples).map(|window| window.duration_ns());
            let began = sent.iter().map(|record| record.intended_ns).min();
            findings.so_far.sending = began
                .zip(lasted)
                .map(|(began, lasted)| Window::new(began, began + lasted));
        }
    }
    findings.validity.extend(joined.warnings);
    Ok(())
}

/// Adds the metrics of jobs, by one clock, to the findings.
fn job_result(cell: &Cell, samples: &Samples, findings: &mut Findings) -> anyhow::Result<()> {
    let mut lateness = Lateness::new();
    let mut events = Vec::new();
    for sample in &samples.0 {
        lateness.note(sample.intended_ns, sample.sent_ns);
        events.push((sample.sent_ns, true));
        events.extend(sample.received_ns.map(|at| (at, false)));
    }
    events.sort_unstable();
    let mut estimator = LastSendEstimator::new();
    let mut last = Vec::new();
    for (at, is_sent) in events {
        if is_sent {
            estimator.sent(at);
        } else {
            last.extend(estimator.received(at));
        }
    }
    let round_trips = samples.latencies_sent_ns();
    let (sent, received) = (samples.0.len() as u64, round_trips.len() as u64);
    findings.add_distribution("rtt", &round_trips)?;
    findings.add_distribution("rtt_last", &last)?;
    let counts = Counts {
        sent,
        received,
        lost: sent - received,
        ..Counts::default()
    };
    findings.add_counts(counts, &lateness, cell.interval_ns);
    Ok(())
}
