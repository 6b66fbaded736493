//! The number of each reading, also when some were lost on the way.

use crate::{Error, Note};

/// Least value that is not a reading: 9.9E37 is an overload, 9.91E37 is not a number.
const NO_READING: f64 = 9.0e37;

/// Readings with their numbers, which count from 0 at the trigger.
#[derive(Debug, Default)]
pub(super) struct Readings {
    /// Number of each reading, and its current in ampere.
    values: Vec<(u64, f64)>,
    /// The number of the oldest reading that is still in the instrument.
    next: u64,
    /// The beginning of a number whose end has not come.
    tail: String,
    /// The question whose answer has not come in full.
    asked: Option<Asked>,
    lost: u64,
    overload: u64,
    overflowed: bool,
}

/// A question for readings.
#[derive(Clone, Copy, Debug)]
struct Asked {
    count: u64,
    /// Number of readings in the instrument's memory before the question.
    waiting: u64,
    /// Number of readings that should have been taken when the question was sent; `None` without a timer.
    due: Option<u64>,
    /// Number of readings of the answer that have come.
    taken: u64,
}

impl Readings {
    /// Notes a question for the next `count` of `waiting` readings, when `due` should have been taken.
    pub(super) fn ask(&mut self, count: u64, waiting: u64, due: Option<u64>) {
        self.tail.clear();
        self.asked = Some(Asked {
            count,
            waiting,
            due,
            taken: 0,
        });
    }

    /// Takes a piece of the answer. `keep` gets each whole reading, as the instrument wrote it, before the
    /// reading is counted.
    pub(super) fn take(
        &mut self,
        piece: &[u8],
        mut keep: impl FnMut(u64, &str) -> Result<(), Error>,
    ) -> Result<(), Error> {
        for byte in piece {
            match byte {
                b',' => self.reading(&mut keep)?,
                byte => self.tail.push(char::from(*byte)),
            }
        }
        Ok(())
    }

    /// Notes the end of the answer.
    pub(super) fn end(
        &mut self,
        mut keep: impl FnMut(u64, &str) -> Result<(), Error>,
    ) -> Result<(), Error> {
        if !self.tail.trim().is_empty() {
            self.reading(&mut keep)?;
        }
        // Fewer readings than asked for are no error: the memory had no more.
        self.asked = None;
        Ok(())
    }

    fn reading(
        &mut self,
        keep: &mut impl FnMut(u64, &str) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let text = std::mem::take(&mut self.tail);
        let text = text.trim();
        let value: f64 = text.parse().map_err(|_| Error::Instrument {
            instrument: "multimeter".to_owned(),
            command: "R?".to_owned(),
            problem: format!("`{text}` is no reading"),
        })?;
        // An overload keeps its number, and has no value.
        if value.abs() < NO_READING {
            keep(self.next, text)?;
            self.values.push((self.next, value));
        } else {
            self.overload += 1;
        }
        self.next += 1;
        if let Some(asked) = &mut self.asked {
            asked.taken += 1;
        }
        Ok(())
    }

    /// Finds out what became of a question whose answer broke off, when `waiting` readings are in the memory
    /// and `due` should have been taken.
    ///
    /// If any of the answer came, the instrument had removed all readings that were asked for. If none came,
    /// the number of readings in the memory shows whether it had.
    pub(super) fn settle(&mut self, waiting: u64, due: Option<u64>) {
        let Some(asked) = self.asked.take() else {
            return;
        };
        self.tail.clear();
        let removed = asked.taken > 0 || {
            let since = asked
                .due
                .zip(due)
                .map_or(0, |(before, now)| now.saturating_sub(before));
            // The memory holds asked.waiting + since readings, or asked.count fewer: which is nearer?
            waiting + asked.count.div_ceil(2) <= asked.waiting + since
        };
        if removed {
            self.skip(asked.count.saturating_sub(asked.taken));
        }
    }

    /// Counts the oldest readings as lost after the memory was full: those that should be in it and are not.
    pub(super) fn overflow(&mut self, waiting: u64, due: Option<u64>) {
        self.overflowed = true;
        if let Some(due) = due {
            // The instrument's clock and this one differ a little.
            let tolerance = 10 + due / 5_000;
            let missing = due.saturating_sub(self.next + waiting);
            if missing > tolerance {
                self.skip(missing);
            }
        }
    }

    fn skip(&mut self, count: u64) {
        self.lost += count;
        self.next += count;
    }

    /// Returns the number of readings that have left the instrument's memory, lost ones included.
    pub(super) fn count(&self) -> u64 {
        self.next
    }

    /// Returns number and ampere of each reading that came.
    pub(super) fn values(&self) -> &[(u64, f64)] {
        &self.values
    }

    /// Remarks on the readings.
    pub(super) fn notes(&self) -> impl Iterator<Item = Note> {
        let notes = [
            (self.overload > 0).then_some(Note::Overload {
                count: self.overload,
            }),
            (self.lost > 0).then_some(Note::LostReadings { count: self.lost }),
            self.overflowed.then_some(Note::MemoryOverflow),
        ];
        notes.into_iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[expect(clippy::unnecessary_wraps, reason = "what a journal does")]
    fn keep(_: u64, _: &str) -> Result<(), Error> {
        Ok(())
    }

    /// Readings of which 0 to 9 have come.
    fn begun() -> Readings {
        let mut readings = Readings::default();
        readings.ask(10, 10, Some(10));
        for i in 0..10 {
            readings.take(format!("+{i}E-01").as_bytes(), keep).unwrap();
            readings.take(if i < 9 { b"," } else { b"" }, keep).unwrap();
        }
        readings.end(keep).unwrap();
        assert_eq!((readings.count(), readings.values().len()), (10, 10));
        readings
    }

    fn numbers(readings: &Readings) -> Vec<u64> {
        readings
            .values()
            .iter()
            .map(|(number, _)| *number)
            .collect()
    }

    #[test]
    fn pieces_may_end_anywhere() {
        let text = b"-4.98748741E-01,-4.35163427E-01,-7.41859188E-01";
        for cut in 0..=text.len() {
            let mut readings = Readings::default();
            let mut kept = Vec::new();
            readings.ask(3, 3, None);
            for piece in [&text[..cut], &text[cut..]] {
                readings
                    .take(piece, |number, text| {
                        kept.push((number, text.to_owned()));
                        Ok(())
                    })
                    .unwrap();
            }
            readings
                .end(|number, text| {
                    kept.push((number, text.to_owned()));
                    Ok(())
                })
                .unwrap();
            assert_eq!(kept[2], (2, "-7.41859188E-01".to_owned()), "{cut}");
            assert_eq!(readings.values()[1], (1, -0.435_163_427), "{cut}");
        }
    }

    #[test]
    fn an_overload_has_a_number_and_no_value() {
        let mut readings = Readings::default();
        readings.ask(3, 3, None);
        readings
            .take(b"+1.0E-01,+9.90000000E+37,+3.0E-01", keep)
            .unwrap();
        readings.end(keep).unwrap();
        assert_eq!(numbers(&readings), [0, 2]);
        assert_eq!(
            readings.notes().collect::<Vec<_>>(),
            [Note::Overload { count: 1 }]
        );
    }

    #[test]
    fn an_answer_that_breaks_off_loses_the_rest_of_it_and_nothing_else() {
        let mut readings = begun();
        readings.ask(10, 10, Some(20));
        readings.take(b"+1.0E-01,+1.0E-01,+1.0E-0", keep).unwrap();
        // After the new connection: five more have been taken.
        readings.settle(5, Some(25));
        readings.ask(5, 5, Some(25));
        readings.take(b"1,2,3,4,5", keep).unwrap();
        readings.end(keep).unwrap();
        assert_eq!(numbers(&readings)[10..], [10, 11, 20, 21, 22, 23, 24]);
        let lost = Note::LostReadings { count: 8 };
        assert_eq!(readings.notes().collect::<Vec<_>>(), [lost]);
    }

    #[test]
    fn a_question_that_did_not_arrive_removed_nothing() {
        let mut readings = begun();
        readings.ask(10, 10, Some(20));
        readings.settle(15, Some(25));
        assert_eq!(readings.count(), 10);
        assert_eq!(readings.notes().count(), 0);
    }

    #[test]
    fn a_question_whose_whole_answer_was_lost_removed_all() {
        let mut readings = begun();
        readings.ask(10, 10, Some(20));
        readings.settle(5, Some(25));
        assert_eq!(readings.count(), 20);
        let lost = Note::LostReadings { count: 10 };
        assert_eq!(readings.notes().collect::<Vec<_>>(), [lost]);
    }

    #[test]
    fn an_overflow_moves_the_numbers_on() {
        let mut readings = begun();
        readings.overflow(10_000, Some(30_010));
        assert_eq!(readings.count(), 20_010);
        let notes: Vec<_> = readings.notes().collect();
        assert_eq!(
            notes,
            [Note::LostReadings { count: 20_000 }, Note::MemoryOverflow]
        );
        // A difference within that of the clocks is no overflow.
        readings.overflow(10_000, Some(30_012));
        assert_eq!(readings.count(), 20_010);
    }

    #[test]
    fn a_word_that_is_no_reading_is_an_error() {
        let mut readings = Readings::default();
        readings.ask(1, 1, None);
        let error = readings.take(b"ERROR,", keep).unwrap_err();
        assert!(
            error.to_string().contains("`ERROR` is no reading"),
            "{error}"
        );
    }

    #[test]
    fn a_reading_that_cannot_be_kept_does_not_count() {
        let mut readings = Readings::default();
        readings.ask(2, 2, None);
        let full = |_: u64, _: &str| {
            Err(Error::NoMeter {
                meter: "disk".to_owned(),
                problem: "full".to_owned(),
            })
        };
        assert!(readings.take(b"1,2", full).is_err());
        assert_eq!((readings.count(), readings.values().len()), (0, 0));
    }
}
