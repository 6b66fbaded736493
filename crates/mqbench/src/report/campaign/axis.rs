//! The ordinate of a figure: linear, logarithmic, or split.

/// An ordinate: one part, or two with a break between them.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Axis {
    /// The parts from below: the whole ordinate, or the two parts of a split one.
    parts: Vec<AxisPart>,
}

/// A stretch of the ordinate.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct AxisPart {
    pub(super) low: f64,
    pub(super) high: f64,
    /// The distance between ticks of a linear part; `None` for a logarithmic one.
    step: Option<f64>,
}

/// The share of the height that the upper part of a split ordinate has.
pub(super) const UPPER: f64 = 0.4;
/// The share of the height that the break has.
pub(super) const BREAK: f64 = 0.04;

impl Axis {
    pub(super) fn new(least: f64, most: f64, logarithmic: bool) -> Self {
        Self {
            parts: vec![AxisPart::new(least, most, logarithmic)],
        }
    }

    /// Makes an axis with a linear part for boxes, and above it a logarithmic one for outliers. `None` if the outliers
    /// are so near that the linear part can hold them.
    pub(super) fn split(least: f64, boxes: f64, most: f64) -> Option<Self> {
        let lower = AxisPart::new(least, boxes, false);
        if lower.high <= 0.0 || most <= lower.high + (lower.high - lower.low) / 2.0 {
            return None;
        }
        let above = AxisPart::new(lower.high, most, true);
        let upper = AxisPart {
            low: lower.high,
            ..above
        };
        Some(Self {
            parts: vec![lower, upper],
        })
    }

    /// Returns the lower part, and the upper one of a split ordinate.
    pub(super) fn parts(&self) -> &[AxisPart] {
        &self.parts
    }

    /// Returns the height of a value as a share of the axis, from 0 to 1.
    pub(super) fn share(&self, value: f64) -> f64 {
        match &self.parts[..] {
            [lower, upper] if value > lower.high => 1.0 - UPPER + UPPER * upper.share(value),
            [lower, _] => (1.0 - UPPER - BREAK) * lower.share(value),
            [one, ..] => one.share(value),
            [] => 0.0,
        }
    }

    pub(super) fn ticks(&self) -> Vec<f64> {
        let mut all = Vec::new();
        for part in &self.parts {
            // The break has one tick.
            let from = all.last().copied();
            all.extend(
                part.ticks()
                    .into_iter()
                    .filter(|tick| from.is_none_or(|from| *tick > from)),
            );
        }
        all
    }
}

impl AxisPart {
    fn new(least: f64, most: f64, logarithmic: bool) -> Self {
        if !(least.is_finite() && most.is_finite() && least <= most) {
            return Self::new(0.0, 1.0, false);
        }
        if logarithmic {
            let low = decades(least).into_iter().rfind(|tick| *tick <= least);
            let high = decades(most).into_iter().find(|tick| *tick >= most);
            return Self {
                low: low.unwrap_or(least),
                high: high.unwrap_or(most),
                step: None,
            };
        }
        let span = if most > least {
            most - least
        } else {
            most.abs().max(1.0)
        };
        let rough = span / 5.0;
        let power = 10_f64.powf(rough.log10().floor());
        let nice = [1.0, 2.0, 2.5, 5.0, 10.0].into_iter();
        let step = power * nice.clone().find(|n| n * power >= rough).unwrap_or(10.0);
        let high = (most / step).ceil() * step;
        let low = (least / step).floor() * step;
        Self {
            low,
            high: if high > low { high } else { low + step },
            step: Some(step),
        }
    }

    fn share(&self, value: f64) -> f64 {
        let of = |value: f64| {
            if self.step.is_some() {
                value
            } else {
                value.ln()
            }
        };
        let value = value.clamp(self.low, self.high);
        (of(value) - of(self.low)) / (of(self.high) - of(self.low))
    }

    fn ticks(&self) -> Vec<f64> {
        let within = |tick: &f64| (self.low * 0.999_999..=self.high * 1.000_001).contains(tick);
        let Some(step) = self.step else {
            let mut all = decades(self.low);
            all.extend(decades(self.high));
            let mut all: Vec<f64> = all.into_iter().filter(within).collect();
            all.sort_by(f64::total_cmp);
            all.dedup_by(|a, b| (*a - *b).abs() < *b * 1e-6);
            return all;
        };
        let mut all = vec![self.low];
        while all.len() < 20 && all[all.len() - 1] + step < self.high + step / 2.0 {
            all.push(all[all.len() - 1] + step);
        }
        all
    }
}

/// Returns the values 1, 2 and 5 in the decade of a value and in its neighbours.
fn decades(value: f64) -> Vec<f64> {
    let power = value.log10().floor();
    let powers = [-2.0, -1.0, 0.0, 1.0, 2.0].map(|by| 10_f64.powf(power + by));
    let steps = powers
        .iter()
        .flat_map(|power| [1.0, 2.0, 5.0].map(|step| step * power));
    steps.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-9
    }

    #[test]
    fn axes_have_round_ends() {
        let axis = Axis::new(25.0, 45.8, false);
        assert_eq!(axis.ticks(), [25.0, 30.0, 35.0, 40.0, 45.0, 50.0]);
        assert!(is(axis.share(25.0), 0.0) && is(axis.share(50.0), 1.0));
        let axis = Axis::new(25.0, 430.0, true);
        assert_eq!(axis.ticks(), [20.0, 50.0, 100.0, 200.0, 500.0]);
        assert_eq!(Axis::new(0.0, 0.0, false).ticks(), [0.0, 0.2]);
        assert!(!Axis::new(f64::MAX, f64::MIN, false).ticks().is_empty());
    }

    #[test]
    fn outliers_above_the_boxes_have_a_logarithmic_part_of_their_own() {
        let axis = Axis::split(25.2, 25.9, 430.0).unwrap();
        let [lower, upper] = axis.parts() else {
            panic!("{axis:?}");
        };
        assert!(lower.low <= 25.2 && is(lower.high, upper.low), "{axis:?}");
        // The boxes have more than half of the height, and values keep their order over the break.
        assert!(is(axis.share(lower.high), 1.0 - UPPER - BREAK));
        assert!(axis.share(lower.high * 1.001) > 1.0 - UPPER);
        assert!(axis.share(430.0) > axis.share(100.0) && is(axis.share(500.0), 1.0));
        // Equal factors have equal heights above the break.
        let step = |low: f64| axis.share(2.0 * low) - axis.share(low);
        assert!(is(step(50.0), step(200.0)));
        assert!(axis.ticks().is_sorted() && axis.ticks().contains(&100.0));
        // Outliers just above the boxes need no break.
        assert_eq!(Axis::split(25.0, 26.0, 26.3), None);
    }
}
