//! Measures how long a thread takes to answer another, on a schedule that does not wait for the
//! answer: `latency [MESSAGES]`.
//!
//! `cargo run -p mq-measure --example latency`
#![expect(clippy::print_stdout, reason = "an example says what it does")]

use std::{
    error::Error,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use mq_measure::{
    Arrival, LatencyRecorder, Tracker,
    schedule::{Lateness, OpenLoop},
    validity,
};

fn main() -> Result<(), Box<dyn Error>> {
    let messages = std::env::args()
        .nth(1)
        .map_or(Ok(200), |text| text.parse())?;
    let (questions, asked) = mpsc::channel();
    let (answers, answered) = mpsc::channel();
    let echo = thread::spawn(move || asked.into_iter().try_for_each(|seq| answers.send(seq)));

    let origin = Instant::now();
    let now_ns = || u64::try_from(origin.elapsed().as_nanos()).unwrap_or(u64::MAX);
    // Message i is due i ms after the origin, whatever became of those before it.
    let interval_ns = 1_000_000;
    let schedule = OpenLoop::new(0, Duration::from_nanos(interval_ns));
    let (mut tracker, mut lateness) = (Tracker::new(messages), Lateness::new());
    let mut latencies = LatencyRecorder::new();
    let mut receive = |tracker: &mut Tracker, seq| {
        if let Arrival::First {
            latency_intended_ns,
            ..
        } = tracker.received(seq, now_ns())
        {
            latencies.record(latency_intended_ns);
        }
    };
    for seq in 0..messages {
        let due = schedule.intended_ns(seq);
        while let Some(left) = due.checked_sub(now_ns()).filter(|left| *left > 0) {
            if let Ok(answer) = answered.recv_timeout(Duration::from_nanos(left)) {
                receive(&mut tracker, answer);
            }
        }
        let sent = now_ns();
        lateness.note(due, sent);
        tracker.sent(seq, due, sent);
        questions.send(seq)?;
    }
    drop(questions);
    for answer in answered {
        receive(&mut tracker, answer);
    }
    echo.join().expect("the other thread does not panic")?;

    let summary = latencies.summary().ok_or("no messages")?;
    println!(
        "{} latencies, mean {:.0} ns",
        summary.count, summary.mean_ns
    );
    for percent in [50.0, 99.0, 99.9] {
        let latency = latencies.percentile_ns(percent).unwrap_or_default();
        println!("{percent} % within {latency} ns");
    }
    let counts = tracker.counts();
    println!("lost {}, duplicates {}", counts.lost, counts.duplicates);
    // Why these figures may not be trusted.
    let warnings = lateness.warning(interval_ns);
    for warning in warnings
        .into_iter()
        .chain(validity::too_few_samples(99.9, summary.count))
    {
        println!("warning: {warning}");
    }
    Ok(())
}
