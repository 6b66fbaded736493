//! The caption of a figure: a sentence made from its data.

use super::{
    formatting, labels,
    metric_values::{Metric, TRANSPORT},
    model::{Basis, Panel, PlotReport, Point, Series},
};

/// Least difference of a ratio from 1 that a sentence calls a difference.
const LEAST: f64 = 0.01;
/// Name of an energy that no meter measured.
const MODELLED: &str = "modelled";
/// Greatest number of places of an abscissa without an order that are all named; of more places, the first and the last
/// are.
const PLACES: usize = 3;

/// Writes the sentence of a figure; empty if no cell has a run. `beside` is the transport that ξ divides by.
pub(super) fn sentence(plot: &PlotReport, panel: &Panel, beside: &str) -> String {
    let caption = Caption {
        plot,
        panel,
        beside,
    };
    let text = if Metric::parse(&plot.metric).xi.is_some() {
        caption.describe_ratios()
    } else {
        match caption.sides() {
            Some((of, with)) => caption.compare_two(of, with),
            None if panel.series.len() > 1 => caption.compare_many(),
            None => caption.describe_one(),
        }
    };
    let (longest, single) = (caption.longest(), caption.single_runs());
    match text {
        Some(text) => capital(&format!("{text}{longest}{single}.")),
        None => String::new(),
    }
}

/// Makes the first letter a capital; a Greek one is a symbol, and stays.
pub(super) fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| {
        first.to_ascii_uppercase().to_string() + letters.as_str()
    })
}

struct Caption<'a> {
    plot: &'a PlotReport,
    panel: &'a Panel,
    beside: &'a str,
}

/// A cell of one series, at a place of the abscissa.
#[derive(Clone, Copy)]
struct SeriesPoint<'a> {
    series: &'a Series,
    point: &'a Point,
}

impl<'a> Caption<'a> {
    /// Returns the two series that the figure compares: QUIC and TLS, or plain TCP, or the only two.
    fn sides(&self) -> Option<(&'a Series, &'a Series)> {
        let all = &self.panel.series;
        let named = |name: &str| all.iter().find(|one| one.name == name);
        if self.plot.series == TRANSPORT {
            return Some((named("quic")?, named("tls").or_else(|| named("tcp"))?));
        }
        match &all[..] {
            [with, of] => Some((of, with)),
            _ => None,
        }
    }

    fn cell(series: &'a Series, at: usize) -> Option<SeriesPoint<'a>> {
        let point = series.points.get(at)?.as_ref()?;
        Some(SeriesPoint { series, point })
    }

    /// Returns the cells of the series that have runs at this place.
    fn cells(&self, at: usize) -> Vec<SeriesPoint<'a>> {
        let all = self.panel.series.iter();
        all.filter_map(|series| Self::cell(series, at)).collect()
    }

    /// Returns the places to speak of: the last one first, where an abscissa has an order.
    fn places_to_name(&self, has: impl Fn(usize) -> bool) -> Vec<usize> {
        let all: Vec<usize> = (0..self.panel.x.len()).filter(|at| has(*at)).collect();
        let ordered = ["loss", "size", "interval", "stations", "retries"];
        let (Some(first), Some(last)) = (all.first(), all.last()) else {
            return all;
        };
        if ordered.contains(&&self.plot.x[..]) {
            let mut ends = vec![*last, *first];
            ends.dedup();
            return ends;
        }
        if all.len() > PLACES {
            return vec![*first, *last];
        }
        all
    }

    fn place(&self, at: usize) -> String {
        let level = &self.panel.x[at];
        if self.plot.abscissa == labels::FRAMES {
            let share = labels::level(&self.plot.x, level);
            return match &level[..] {
                "0%" => "with no frame damaged".to_owned(),
                _ => format!("with {share} of frames damaged"),
            };
        }
        labels::place(&self.plot.x, level)
    }

    /// Names a series; a name with a comma is in quotes, so that its end is seen.
    fn name(&self, series: &Series) -> String {
        let name = labels::series(&self.plot.series, &series.name);
        if name.contains(',') {
            return format!("“{name}”");
        }
        name
    }

    fn number(&self, value: f64) -> String {
        let number = formatting::tick(formatting::number(value).parse().unwrap_or(value));
        match &self.plot.unit[..] {
            "" => number,
            "1/s" => format!("{number} a second"),
            unit => format!("{number} {unit}"),
        }
    }

    fn quantity(&self) -> String {
        let has_quartiles = self.panel.points().any(|p| p.quartiles.is_some());
        if has_quartiles && self.plot.kind.is_boxes() {
            return "median".to_owned();
        }
        let quantity = labels::short(&self.plot.metric);
        if self.plot.quantity.contains(MODELLED) {
            return format!("{MODELLED} {quantity}");
        }
        quantity.to_owned()
    }

    /// Compares two series: `At 5 % packet loss QUIC's mean delay is 25.9 ms and TLS's 30.7 ms: QUIC is 16 % lower`.
    fn compare_two(&self, of: &'a Series, with: &'a Series) -> Option<String> {
        let both = |at: usize| Some((Self::cell(of, at)?, Self::cell(with, at)?));
        let places = self.places_to_name(|at| both(at).is_some());
        let (of_name, with_name) = (self.name(of), self.name(with));
        let mut parts = Vec::new();
        let mut before = "";
        for at in places {
            let (of, with) = both(at)?;
            let place = self.place(at);
            let difference = difference(self.value(of), self.value(with));
            let found = match &difference {
                Some(way) => format!("{of_name} is {way}{}", self.chance_note(at, of, with)),
                None if before == "alike" => "likewise".to_owned(),
                None => "they differ by less than 1 %".to_owned(),
            };
            parts.push(if parts.is_empty() {
                format!(
                    "{place} {of_name}'s {} is {} and {with_name}'s {}: {found}",
                    self.quantity(),
                    self.number(self.value(of)),
                    self.number(self.value(with)),
                )
            } else {
                format!("{place} {found}")
            });
            before = if difference.is_none() { "alike" } else { "" };
        }
        (!parts.is_empty()).then(|| parts.join("; "))
    }

    /// Compares all series: `At 5 % packet loss BBR has the lowest mean delay (110 ms) and CUBIC the highest (4900
    /// ms)`.
    fn compare_many(&self) -> Option<String> {
        let places = self.places_to_name(|at| self.cells(at).len() > 1);
        let mut parts = Vec::new();
        for at in places {
            let mut cells = self.cells(at);
            cells.sort_by(|a, b| self.value(*a).total_cmp(&self.value(*b)));
            let (least, most) = (cells.first()?, cells.last()?);
            let place = self.place(at);
            let (low, high) = (self.value(*least), self.value(*most));
            parts.push(match difference(high, low) {
                None => format!("{place} all differ by less than 1 %"),
                Some(_) => format!(
                    "{place} {} has the lowest {} ({}) and {} the highest ({}){}",
                    self.name(least.series),
                    self.quantity(),
                    self.number(low),
                    self.name(most.series),
                    self.number(high),
                    self.chance_note(at, *most, *least),
                ),
            });
        }
        (!parts.is_empty()).then(|| parts.join("; "))
    }

    fn describe_one(&self) -> Option<String> {
        let series = self.panel.series.first()?;
        let mut places = self.places_to_name(|at| Self::cell(series, at).is_some());
        places.sort_unstable();
        let each = places.into_iter().filter_map(|at| {
            let value = self.number(self.value(Self::cell(series, at)?));
            Some(format!("{value} {}", self.place(at)))
        });
        let each: Vec<_> = each.collect();
        let name = self.name(series);
        let quantity = self.quantity();
        (!each.is_empty()).then(|| format!("{name}'s {quantity} is {}", each.join(", ")))
    }

    /// Describes ratios: `At 5 % packet loss QUIC takes, beside TLS: 32 % less over WiFi, 6 % more over satellite`.
    fn describe_ratios(&self) -> Option<String> {
        let beside = labels::level(TRANSPORT, self.beside);
        let mut parts = Vec::new();
        for at in self.places_to_name(|at| !self.cells(at).is_empty()) {
            // What was found, and the series that found it.
            let mut found: Vec<(String, Vec<String>)> = Vec::new();
            for cell in self.cells(at) {
                let place = labels::place(&self.plot.series, &cell.series.name);
                let is = self.compared_with_one(cell);
                match found.iter_mut().find(|(other, _)| *other == is) {
                    Some((_, places)) => places.push(place),
                    None => found.push((is, vec![place])),
                }
            }
            let each = found.iter().map(|(is, places)| match found.len() {
                1 if places.len() > 1 => format!("{is} in all"),
                _ => format!("{is} {}", places.join(" and ")),
            });
            let each: Vec<_> = each.collect();
            let (place, each) = (self.place(at), each.join(", "));
            parts.push(match parts.len() {
                0 => format!("{place} QUIC takes, beside {beside}: {each}"),
                _ => format!("{place}: {each}"),
            });
        }
        (!parts.is_empty()).then(|| parts.join("; "))
    }

    /// Compares a ξ with 1, in words.
    fn compared_with_one(&self, cell: SeriesPoint) -> String {
        let value = self.value(cell);
        let away = match (cell.point.low, cell.point.high) {
            (Some(low), Some(high)) => high < 1.0 || low > 1.0,
            _ => false,
        };
        if difference(value, 1.0).is_none() {
            return "less than 1 % apart".to_owned();
        }
        if !away {
            return "no difference that the runs show".to_owned();
        }
        let way = if value < 1.0 { "less" } else { "more" };
        format!("{} % {way}", percent(value - 1.0))
    }

    /// Describes the longest delays, where the figure draws those of all messages.
    fn longest(&self) -> String {
        let last = self.places_to_name(|at| !self.cells(at).is_empty());
        let Some(at) = last.first() else {
            return String::new();
        };
        let each = self.cells(*at).into_iter().filter_map(|cell| {
            let one = cell.point.quartiles.as_ref()?;
            let most = one
                .outliers
                .last()
                .map_or(one.high, |value| value.max(one.high));
            (self.plot.kind.is_boxes() && one.of == Basis::Messages)
                .then(|| format!("{} {}", self.name(cell.series), self.number(most)))
        });
        let each: Vec<_> = each.collect();
        if each.is_empty() {
            return String::new();
        }
        format!("; the longest {}: {}", self.place(*at), each.join(", "))
    }

    /// Names the times whose mean is mostly that of one run.
    fn single_runs(&self) -> String {
        let is_time = ["ms", "s"].contains(&&self.plot.unit[..]);
        if self.plot.kind.is_boxes() || !is_time {
            return String::new();
        }
        let mut text = String::new();
        for at in self.places_to_name(|at| !self.cells(at).is_empty()) {
            for cell in self.cells(at) {
                let values = &cell.point.values;
                let most = values.iter().copied().fold(0.0, f64::max);
                if values.len() <= 2 || most * 2.0 <= values.iter().sum::<f64>() {
                    continue;
                }
                text.push_str(&format!(
                    "; {}'s mean {} is mostly that of one run of {}, {}: their median is {}",
                    self.name(cell.series),
                    self.place(at),
                    values.len(),
                    self.number(most),
                    self.number(cell.point.median),
                ));
            }
        }
        text
    }

    fn value(&self, cell: SeriesPoint) -> f64 {
        match &cell.point.quartiles {
            Some(one) if self.plot.kind.is_boxes() => one.median,
            _ => cell.point.mean,
        }
    }

    /// Returns a note on a difference of two cells that may be chance.
    fn chance_note(&self, at: usize, a: SeriesPoint, b: SeriesPoint) -> &'static str {
        if a.point.n < 2 || b.point.n < 2 {
            return " (one run each)";
        }
        let pairs = self
            .panel
            .tests
            .iter()
            .filter(|test| test.x == self.panel.x[at]);
        let mut pairs = pairs
            .filter(|test| test.of == Basis::Repetitions)
            .flat_map(|test| &test.pairs);
        let names = [&a.series.name, &b.series.name];
        let tested = pairs.find(|pair| names.contains(&&pair.a) && names.contains(&&pair.b));
        let differs = match (tested.and_then(|pair| pair.p), a.point, b.point) {
            (Some(p), ..) => p < 0.05,
            (
                None,
                Point {
                    low: Some(a_low),
                    high: Some(a_high),
                    ..
                },
                Point {
                    low: Some(b_low),
                    high: Some(b_high),
                    ..
                },
            ) => a_high < b_low || b_high < a_low,
            _ => false,
        };
        if differs {
            ""
        } else {
            ", within the spread of the runs"
        }
    }
}

/// Formats a difference, such as `16 % lower` or `3.2 times as high`; `None` below 1 %.
pub(super) fn difference(of: f64, with: f64) -> Option<String> {
    let ratio = of / with;
    let equal = (of - with).abs() < f64::EPSILON;
    if equal || (ratio - 1.0).abs() < LEAST {
        return None;
    }
    if !ratio.is_finite() || ratio <= 0.0 {
        return Some(if of < with { "lower" } else { "higher" }.to_owned());
    }
    if ratio >= 2.0 {
        return Some(format!(
            "{} times as high",
            formatting::tick((ratio * 10.0).round() / 10.0)
        ));
    }
    let way = if ratio < 1.0 { "lower" } else { "higher" };
    Some(format!("{} % {way}", percent(ratio - 1.0)))
}

/// Formats a share in percent with two digits, without its sign.
fn percent(share: f64) -> String {
    let percent = (share * 100.0).abs();
    let digits = usize::from(percent < 9.5);
    format!("{percent:.digits$}")
}

#[cfg(test)]
mod tests;
