//! Warnings: reasons not to trust a run, as values with their remedy.
//!
//! A bad measurement is data, not an error. Each rule is a pure function that gives a [`Warning`]
//! or nothing.

mod display;
mod rules;

pub use rules::{
    clock_extrapolated, clock_stepped, clock_uncertain, clocks_disagree, clocks_not_compared,
    congestion_control, counts, cpu_governor, emulated, generator_late, link_off_profile,
    most_by_chance, too_few_samples,
};

use std::fmt;

use serde::{Deserialize, Serialize};

use display::{machine, three_digits, time};

/// A reason not to trust a run. Its `Display` is one line: what is wrong, then the remedy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, thiserror::Error)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
#[non_exhaustive]
pub enum Warning {
    /// The generator did not keep to its schedule.
    #[error(
        "the generator was late: 1 % of the messages by {} or more, at an interval of {}; lower \
         the rate, or give the generator a core of its own",
        time(*p99_late_ns),
        time(*interval_ns)
    )]
    GeneratorLate {
        /// 99th percentile of actual minus intended send time.
        p99_late_ns: u64,
        /// The schedule's interval.
        interval_ns: u64,
    },
    /// A percentile rests on less than one sample beyond it.
    #[error(
        "p{percentile} of {count} samples is nearly their maximum; send at least {needed} \
         messages, or do not use it"
    )]
    TooFewSamples {
        /// The percentile, 0 to 100.
        percentile: f64,
        /// The samples there are.
        count: u64,
        /// The samples that the percentile needs.
        needed: u64,
    },
    /// The offset between two machines' clocks is not known well enough for the effect.
    #[error(
        "the clocks' offset is uncertain by {}, the effect is {}; synchronise the clocks better, \
         or measure the round trip on one clock",
        time(*uncertainty_ns),
        time(*effect_ns)
    )]
    ClockUncertain {
        /// Half the width of the offset's interval.
        uncertainty_ns: u64,
        /// The effect that was measured: a latency, or a difference of two.
        effect_ns: u64,
    },
    /// The clocks were compared, but not while some messages were under way.
    #[error(
        "the clocks were not compared while {messages} messages were under way; compare them from \
         before a run until after it"
    )]
    ClockExtrapolated {
        /// Number of messages sent while the clocks were not compared.
        messages: u64,
    },
    /// A clock was set while clocks were compared.
    #[error(
        "a clock was set by {}{} at {}.{:03} s since 1970, and what was measured around that time \
         is uncertain by as much; let the clocks come into step before a run",
        if *by_ns < 0 { "-" } else { "" },
        time(by_ns.unsigned_abs()),
        at_ns / 1_000_000_000,
        at_ns / 1_000_000 % 1_000
    )]
    ClockStepped {
        /// Time of the step by the local clock, that of the machine that asked, in nanoseconds since the Unix epoch.
        at_ns: u64,
        /// Change of the offset, remote minus local clock, in nanoseconds.
        by_ns: i64,
    },
    /// The clocks' measured offset is larger than chrony's bounds allow.
    #[error(
        "the clocks differ by {} ± {}, but chrony has both within {} of UTC; look whether they \
         follow the same server",
        time(offset_ns.unsigned_abs()),
        time(*uncertainty_ns),
        time(*bound_ns)
    )]
    ClocksDisagree {
        /// The measured offset, remote minus local clock.
        offset_ns: i64,
        /// The most that the offset is wrong by.
        uncertainty_ns: u64,
        /// Sum of both clocks' greatest errors against UTC, by chrony.
        bound_ns: u64,
    },
    /// The logs are of two machines, whose clocks were not compared.
    #[error(
        "the logs are of two machines, and how their clocks differ is not known; measure it with \
         mqbench clock, and give the file to join"
    )]
    ClocksNotCompared,
    /// Messages seem to have arrived before they were sent.
    #[error(
        "{count} messages seem to have arrived before they were sent; synchronise the clocks of \
         sender and receiver"
    )]
    NegativeLatencies {
        /// Number of messages with a negative latency.
        count: u64,
    },
    /// Messages were sent and did not arrive.
    #[error(
        "{lost} of {sent} messages were lost, and latencies are of the others only; use QoS 1, \
         wait longer at the end, or report the loss with the latency"
    )]
    LostMessages {
        /// Number of messages lost.
        lost: u64,
        /// Number of messages sent.
        sent: u64,
    },
    /// Messages arrived more than once.
    #[error(
        "{duplicates} duplicates of {received} messages arrived, and the first of each counts; \
         check for reconnections, or use QoS 2"
    )]
    DuplicateMessages {
        /// Arrivals beyond the first.
        duplicates: u64,
        /// Number of messages that arrived at least once.
        received: u64,
    },
    /// Messages arrived out of order.
    #[error(
        "{reordered} of {received} messages arrived out of order; use one lane a topic if order \
         matters"
    )]
    ReorderedMessages {
        /// Number of messages reordered by the definition of RFC 4737.
        reordered: u64,
        /// Number of messages that arrived at least once.
        received: u64,
    },
    /// Messages arrived that this run did not send.
    #[error(
        "{count} messages arrived that this run did not send; use a topic of its own for each run"
    )]
    UnknownMessages {
        /// Number of arrivals of unknown numbers.
        count: u64,
    },
    /// Connections could not be made.
    #[error(
        "{failed} of {tried} connections failed, the last since {last_error}, and times are of the \
         others only; report them with the times, or look at the broker's log"
    )]
    ConnectionsFailed {
        /// Number of connections that failed.
        failed: u64,
        /// Number of connections that were tried.
        tried: u64,
        /// The error of the last that failed.
        last_error: String,
    },
    /// A part of the run did not end in time.
    #[error(
        "{phase} did not end within {}; allow more time, or look at the broker's log",
        time(*after_ns)
    )]
    TimedOut {
        /// The part, such as `connect`.
        phase: String,
        /// The time it had.
        after_ns: u64,
    },
    /// TCP and QUIC ran with different congestion controls.
    #[error("TCP used {tcp} and QUIC {quic} as congestion control; choose the same for both")]
    KernelCongestionControl {
        /// TCP's congestion control, which the kernel has.
        tcp: String,
        /// QUIC's congestion control.
        quic: String,
    },
    /// The emulated link measured differently from its configuration.
    #[error(
        "the link's {quantity} is {} instead of {}; check for offloads and for other traffic",
        three_digits(*measured),
        three_digits(*configured)
    )]
    LinkOffProfile {
        /// The quantity with its unit, such as `delay_ns`.
        quantity: String,
        /// The configured value, in the unit of `quantity`.
        configured: f64,
        /// The measured value, in the unit of `quantity`.
        measured: f64,
    },
    /// The meter has no readings for a part of the run, so there is no energy.
    #[error(
        "{} of {} were not measured, so there is no energy; look at the meter's notes",
        time(*missing_ns),
        time(*window_ns)
    )]
    EnergyGaps {
        /// Part of the window that has no readings.
        missing_ns: u64,
        /// The time in which messages were sent.
        window_ns: u64,
    },
    /// The program was built without optimisation.
    #[error("this is a debug build; measure with --release")]
    DebugBuild,
    /// The CPU may change its frequency during the run.
    #[error("the CPU governor is {governor}, so its frequency changes; set it to performance")]
    CpuGovernor {
        /// The governor of the CPU's frequency.
        governor: String,
    },
    /// An emulator executed the instructions; its times are not those of a real machine.
    #[error(
        "{} is emulated ({found}), and no time is that of the machine it stands for; measure on a \
         real one",
        machine(host.as_deref())
    )]
    Emulated {
        /// The host's name in a testbed; `None` for the machine that measured.
        host: Option<String>,
        /// The evidence for the emulator, from [`emulated`](crate::context::emulated()).
        found: String,
    },
}

/// All warnings of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Validity {
    /// The warnings, in the order in which they were found; none is good news.
    pub warnings: Vec<Warning>,
}

impl Validity {
    /// Adds a warning, if there is one, unless an equal one is there.
    pub fn note(&mut self, warning: impl Into<Option<Warning>>) {
        if let Some(warning) = warning
            .into()
            .filter(|warning| !self.warnings.contains(warning))
        {
            self.warnings.push(warning);
        }
    }
}

impl Extend<Warning> for Validity {
    fn extend<I: IntoIterator<Item = Warning>>(&mut self, warnings: I) {
        for warning in warnings {
            self.note(warning);
        }
    }
}

impl fmt::Display for Validity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, warning) in self.warnings.iter().enumerate() {
            write!(f, "{}{warning}", if i > 0 { "\n" } else { "" })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
