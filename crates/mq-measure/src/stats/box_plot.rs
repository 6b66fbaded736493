//! The values of a box plot: quartiles, whiskers and outliers.

use super::interpolated;

/// A box with its whiskers, and the outliers beyond them.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct BoxPlot {
    /// The first quartile, the lower edge of the box.
    pub q1: f64,
    /// The median of the values.
    pub median: f64,
    /// The third quartile.
    pub q3: f64,
    /// The end of the lower whisker.
    pub low: f64,
    /// The end of the upper whisker.
    pub high: f64,
    /// Values beyond the whiskers, in ascending order.
    pub outliers: Vec<f64>,
}

impl BoxPlot {
    /// Computes the box with whiskers to the last values within 1.5 times the box's height from the box: Tukey's, and
    /// S21's (§6.1).
    ///
    /// `None` if there is no value. As Matplotlib draws it, a whisker is never inside the box.
    #[must_use]
    pub fn tukey(values: &[f64]) -> Option<Self> {
        let mut plot = Self::new(values)?;
        let reach = 1.5 * (plot.q3 - plot.q1);
        let within = values
            .iter()
            .copied()
            .filter(|value| (plot.q1 - reach..=plot.q3 + reach).contains(value));
        let (low, high) = within.fold((plot.q1, plot.q3), |(low, high), value| {
            (low.min(value), high.max(value))
        });
        plot.set_whiskers(low, high, values);
        Some(plot)
    }

    /// Computes the box with whiskers at the 5th and the 95th percentile, so that a tenth of all values is drawn as
    /// outliers: S22's (§5.1).
    ///
    /// `None` if there is no value.
    #[must_use]
    pub fn percentiles(values: &[f64]) -> Option<Self> {
        let mut plot = Self::new(values)?;
        plot.set_whiskers(plot.low, plot.high, values);
        Some(plot)
    }

    fn new(values: &[f64]) -> Option<Self> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let at = |percent| interpolated(&sorted, percent);
        Some(Self {
            q1: at(25.0)?,
            median: at(50.0)?,
            q3: at(75.0)?,
            low: at(5.0)?,
            high: at(95.0)?,
            outliers: Vec::new(),
        })
    }

    fn set_whiskers(&mut self, low: f64, high: f64, values: &[f64]) {
        (self.low, self.high) = (low, high);
        let beyond = values.iter().filter(|value| !(low..=high).contains(value));
        self.outliers = beyond.copied().collect();
        self.outliers.sort_by(f64::total_cmp);
    }
}
