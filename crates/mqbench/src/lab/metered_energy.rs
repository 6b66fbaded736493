//! The energy of a run by a meter, over the time in which the run sent.

use mq_energy::{Window, average_power_uw};
use mq_measure::{Samples, Warning};

use crate::{
    campaign::record::{ENERGY_METRICS, MODEL_ENERGY_METRICS, MeterReading, Outcome},
    meter::MeterRecording,
};

/// The time in which messages were sent, by the clock of the machine that read the meter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SendingWindow {
    /// The window, in nanoseconds since 1970.
    pub(crate) window: Window,
    /// Bound of the error of the window's two ends.
    pub(crate) uncertainty_ns: u64,
}

/// Returns the time from the first message's turn until the last message arrived, or was sent. This is S22's time to
/// send all packets (§5.2), with retransmissions. `None` if nothing was sent.
pub(crate) fn sending_window(samples: &Samples) -> Option<Window> {
    let first = samples.0.iter().map(|sample| sample.intended_ns).min()?;
    let last = samples.0.iter();
    let last = last.map(|sample| sample.received_ns.unwrap_or(0).max(sample.sent_ns));
    Some(Window::new(first, last.max()?))
}

impl MeterRecording {
    /// Sets a run's energy to that of the time in which it sent.
    pub(crate) fn set_energy(&self, outcome: &mut Outcome, sending_window: SendingWindow) {
        for metric in ENERGY_METRICS.into_iter().chain(MODEL_ENERGY_METRICS) {
            outcome.metrics.remove(metric);
        }
        let since = |ns: u64| ns.saturating_sub(self.origin_ns);
        let window = sending_window.window;
        let window = Window::new(since(window.from_ns), since(window.to_ns));
        let energy = self.recording.energy(window);
        if energy.gaps.is_empty() {
            let power_uw = average_power_uw(energy.energy_uj, window.duration_ns());
            let each_uj = energy.per_message_uj(outcome.counts.received);
            let found = [
                Some(energy.energy_uj / 1e6),
                power_uw.map(|uw| uw / 1e6),
                each_uj,
            ];
            for (metric, value) in ENERGY_METRICS.into_iter().zip(found) {
                outcome
                    .metrics
                    .extend(value.map(|value| (metric.to_owned(), value)));
            }
        } else {
            outcome.warnings.push(Warning::EnergyGaps {
                missing_ns: energy.window_ns - energy.covered_ns,
                window_ns: energy.window_ns,
            });
        }
        outcome.energy_meter = Some(self.meter.clone());
        outcome.energy_reading = Some(MeterReading {
            scope: self.scope.clone(),
            window: sending_window.window,
            uncertainty_ns: self.recording.uncertainty_ns + sending_window.uncertainty_ns,
            journal: self.journal.clone(),
            notes: self.recording.notes.clone(),
        });
    }
}

#[cfg(test)]
mod tests {
    use mq_energy::{Recording, Series, trace::Trace};

    use super::*;

    /// Makes a recording of 2 W from the origin on, for a second, with a hole in it or not.
    fn taken(has_hole: bool) -> MeterRecording {
        let mut trace = Trace::new(20_000_000);
        for at in (0..=100).filter(|at| !has_hole || !(40..60).contains(at)) {
            trace.push(at * 10_000_000, 2e6);
        }
        MeterRecording {
            meter: "dmm:10.0.0.9".to_owned(),
            scope: "the current".to_owned(),
            journal: Some("some-1.csv".to_owned()),
            origin_ns: 1_000_000_000_000,
            recording: Recording {
                series: Series::Power(trace),
                uncertainty_ns: 5,
                notes: Vec::new(),
            },
        }
    }

    fn modelled() -> Outcome {
        let mut outcome = Outcome {
            energy_meter: Some("model:pi-3b".to_owned()),
            ..Outcome::default()
        };
        outcome.counts.received = 10;
        for metric in ENERGY_METRICS {
            outcome.metrics.insert(metric.to_owned(), 99.0);
        }
        outcome
    }

    fn sending_window() -> SendingWindow {
        SendingWindow {
            window: Window::new(1_000_250_000_000, 1_000_750_000_000),
            uncertainty_ns: 7,
        }
    }

    #[test]
    fn a_run_has_the_energy_of_the_time_in_which_it_sent() {
        let mut outcome = modelled();
        // Through the JSON in which another host hands it over.
        let text = serde_json::to_string(&taken(false)).unwrap();
        let taken: MeterRecording = serde_json::from_str(&text).unwrap();
        taken.set_energy(&mut outcome, sending_window());
        for (metric, right) in ENERGY_METRICS.into_iter().zip([1.0, 2.0, 100_000.0]) {
            let found = outcome.metrics[metric];
            assert!((found - right).abs() < 1e-9 * right, "{metric}: {found}");
        }
        assert_eq!(outcome.energy_meter.as_deref(), Some("dmm:10.0.0.9"));
        let reading = outcome.energy_reading.unwrap();
        assert_eq!(reading.uncertainty_ns, 12);
        assert_eq!(reading.journal.as_deref(), Some("some-1.csv"));
        assert_eq!(outcome.warnings, []);
    }

    #[test]
    fn a_run_with_gaps_has_no_energy_and_not_the_models_either() {
        let mut outcome = modelled();
        taken(true).set_energy(&mut outcome, sending_window());
        assert!(outcome.metrics.is_empty(), "{outcome:?}");
        assert!(matches!(
            outcome.warnings[..],
            [Warning::EnergyGaps {
                missing_ns: 210_000_000,
                window_ns: 500_000_000
            }]
        ));
        assert_eq!(outcome.energy_meter.as_deref(), Some("dmm:10.0.0.9"));
    }
}
