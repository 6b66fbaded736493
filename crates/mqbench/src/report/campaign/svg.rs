//! A figure as an SVG file, for papers and slides, as the page draws it in a browser.

use super::{
    chart,
    html::escape,
    model::{CampaignReport, Panel, Point},
    words,
};
use crate::campaign::file::PlotKind;

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 400.0;
/// The drawing's edges.
const LEFT: f64 = 70.0;
const RIGHT: f64 = 625.0;
const TOP: f64 = 70.0;
const BOTTOM: f64 = 345.0;

/// The page's colours on white.
const COLOURS: [(&str, &str); 3] = [("tcp", "#737b85"), ("tls", "#2166ac"), ("quic", "#d1531f")];
const OTHERS: [&str; 6] = [
    "#6a51a3", "#2b8a57", "#b5458a", "#8a6d00", "#1b7f8c", "#737b85",
];

/// File name and content.
pub(crate) fn file(campaign: &CampaignReport, panel: &Panel) -> (String, String) {
    let name = chart::file_name(campaign, panel) + ".svg";
    (name, Drawing::new(campaign, panel).draw())
}

struct Drawing<'a> {
    campaign: &'a CampaignReport,
    panel: &'a Panel,
    axis: Axis,
    text: String,
}

impl<'a> Drawing<'a> {
    fn new(campaign: &'a CampaignReport, panel: &'a Panel) -> Self {
        let points = panel.series.iter().flat_map(|series| &series.points);
        let ends = points.flatten().flat_map(|point| match campaign.plot.kind {
            PlotKind::Bars | PlotKind::Lines => vec![chart::low(point), chart::high(point)],
            _ => chart::boxed(point),
        });
        let mark = chart::mark(campaign, panel);
        let (least, most) = ends
            .chain(mark)
            .fold((f64::MAX, f64::MIN), |(low, high), value| {
                (low.min(value), high.max(value))
            });
        let from_zero = campaign.plot.kind == PlotKind::Bars && panel.baseline.is_none();
        let least = if from_zero { least.min(0.0) } else { least };
        Self {
            campaign,
            panel,
            axis: Axis::new(least, most, chart::starts_logarithmic(campaign, panel)),
            text: String::new(),
        }
    }

    fn draw(mut self) -> String {
        let plot = &self.campaign.plot;
        let title = if self.panel.levels.is_empty() {
            self.campaign.title.clone()
        } else {
            format!(
                "{}: {}",
                self.campaign.title,
                words::levels(&self.panel.levels)
            )
        };
        self.label(LEFT, 22.0, "start", 15, &title);
        self.label(
            14.0,
            60.0,
            "start",
            11,
            &words::with_unit(&plot.metric, &plot.unit),
        );
        self.grid();
        for (at, x) in self.panel.x.iter().enumerate() {
            let centre = self.centre(at);
            self.label(centre, BOTTOM + 18.0, "middle", 11, x);
        }
        let middle = f64::midpoint(LEFT, RIGHT);
        self.label(middle, BOTTOM + 40.0, "middle", 11, &plot.x);
        if let Some(mark) = chart::mark(self.campaign, self.panel) {
            let y = self.axis.y(mark);
            self.line((LEFT, y), (RIGHT, y), "#1d2126", 1.0, "4 3");
        }
        for at in 0..self.panel.series.len() {
            self.series(at);
        }
        self.line((LEFT, BOTTOM), (RIGHT, BOTTOM), "#5b636d", 1.0, "");
        self.line((LEFT, TOP), (LEFT, BOTTOM), "#5b636d", 1.0, "");
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
             width=\"{WIDTH}\" height=\"{HEIGHT}\" role=\"img\" \
             font-family=\"system-ui, DejaVu Sans, sans-serif\" fill=\"#1d2126\">\n\
             <title>{}</title>\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n{}</svg>\n",
            escape(&title),
            self.text
        )
    }

    fn grid(&mut self) {
        for tick in self.axis.ticks() {
            let y = self.axis.y(tick);
            self.line((LEFT, y), (RIGHT, y), "#e3e6e9", 1.0, "");
            let text = words::tick(tick);
            self.label(LEFT - 6.0, y + 4.0, "end", 11, &text);
        }
    }

    /// One series and its entry in the legend.
    fn series(&mut self, at: usize) {
        let panel = self.panel;
        let (series, colour) = (&panel.series[at], colour(panel, at));
        let x = LEFT + 90.0 * float(at);
        self.rect((x, 33.0), (12.0, 10.0), colour, 1.0);
        self.label(x + 17.0, 42.0, "start", 11, &series.name);
        let slot = (self.slot() * 0.78 / float(panel.series.len())).min(52.0);
        let kind = self.campaign.plot.kind;
        let mut before: Option<(f64, f64)> = None;
        for (place, point) in series.points.iter().enumerate() {
            let Some(point) = point else {
                before = None;
                continue;
            };
            let aside = (float(at) - (float(panel.series.len()) - 1.0) / 2.0) * slot;
            match kind {
                PlotKind::Bars => self.bar(point, self.centre(place) + aside, slot * 0.84, colour),
                PlotKind::Lines => {
                    let here = (self.centre(place), self.axis.y(point.mean));
                    if let Some(before) = before {
                        self.line(before, here, colour, 2.0, "");
                    }
                    self.whisker(point, here.0, colour);
                    self.circle(here, 4.0, colour, colour);
                    before = Some(here);
                }
                _ => self.boxed(point, self.centre(place) + aside, slot * 0.84, colour),
            }
        }
    }

    fn bar(&mut self, point: &Point, centre: f64, width: f64, colour: &str) {
        let foot = self.axis.y(self.panel.baseline.unwrap_or(0.0));
        let top = self.axis.y(point.mean);
        let corner = (centre - width / 2.0, foot.min(top));
        self.rect(corner, (width, (foot - top).abs().max(1.0)), colour, 1.0);
        self.whisker(point, centre, "#1d2126");
    }

    fn whisker(&mut self, point: &Point, centre: f64, colour: &str) {
        let (Some(low), Some(high)) = (point.low, point.high) else {
            return;
        };
        let (low, high) = (self.axis.y(low), self.axis.y(high));
        self.line((centre, low), (centre, high), colour, 1.5, "");
        for y in [low, high] {
            self.line((centre - 5.0, y), (centre + 5.0, y), colour, 1.5, "");
        }
    }

    fn boxed(&mut self, point: &Point, centre: f64, width: f64, colour: &str) {
        let Some(one) = &point.quartiles else {
            let y = self.axis.y(point.mean);
            self.circle((centre, y), 4.0, colour, colour);
            return;
        };
        let [q1, q3] = [one.q1, one.q3].map(|value| self.axis.y(value));
        for (edge, end) in [(q1, one.low), (q3, one.high)] {
            let end = self.axis.y(end);
            self.line((centre, edge), (centre, end), colour, 1.5, "");
            let half = width / 4.0;
            self.line((centre - half, end), (centre + half, end), colour, 1.5, "");
        }
        let left = centre - width / 2.0;
        self.rect((left, q3), (width, (q1 - q3).max(1.0)), colour, 0.35);
        let y = self.axis.y(one.median);
        self.line((left, y), (left + width, y), colour, 3.0, "");
        for outlier in &one.outliers {
            let y = self.axis.y(*outlier);
            self.circle((centre, y), 2.2, "none", colour);
        }
    }

    /// The width of one level of the abscissa.
    fn slot(&self) -> f64 {
        (RIGHT - LEFT) / float(self.panel.x.len().max(1))
    }

    fn centre(&self, place: usize) -> f64 {
        LEFT + self.slot() * (float(place) + 0.5)
    }

    fn label(&mut self, x: f64, y: f64, anchor: &str, size: u8, text: &str) {
        let text = escape(text);
        self.text.push_str(&format!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" font-size=\"{size}\">{text}</text>\n"
        ));
    }

    fn line(&mut self, from: (f64, f64), to: (f64, f64), colour: &str, width: f64, dash: &str) {
        let dash = if dash.is_empty() {
            String::new()
        } else {
            format!(" stroke-dasharray=\"{dash}\"")
        };
        self.text.push_str(&format!(
            "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" stroke=\"{colour}\" \
             stroke-width=\"{width}\"{dash}/>\n",
            from.0, from.1, to.0, to.1
        ));
    }

    fn rect(&mut self, corner: (f64, f64), size: (f64, f64), colour: &str, opacity: f64) {
        self.text.push_str(&format!(
            "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{colour}\" \
             fill-opacity=\"{opacity}\"/>\n",
            corner.0, corner.1, size.0, size.1
        ));
    }

    fn circle(&mut self, centre: (f64, f64), radius: f64, fill: &str, stroke: &str) {
        self.text.push_str(&format!(
            "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"{radius}\" fill=\"{fill}\" stroke=\"{stroke}\"/>\n",
            centre.0, centre.1
        ));
    }
}

fn colour(panel: &Panel, at: usize) -> &'static str {
    let name = &panel.series[at].name;
    let own = COLOURS.iter().find(|(known, _)| known == name);
    own.map_or(OTHERS[at % OTHERS.len()], |(_, colour)| colour)
}

#[expect(clippy::cast_precision_loss, reason = "a place among a few")]
fn float(n: usize) -> f64 {
    n as f64
}

/// The ordinate.
struct Axis {
    low: f64,
    high: f64,
    /// The distance between ticks of a linear axis; `None` for a logarithmic one.
    step: Option<f64>,
}

impl Axis {
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

    fn y(&self, value: f64) -> f64 {
        let of = |value: f64| {
            if self.step.is_some() {
                value
            } else {
                value.ln()
            }
        };
        let value = value.clamp(self.low, self.high);
        let share = (of(value) - of(self.low)) / (of(self.high) - of(self.low));
        BOTTOM - share * (BOTTOM - TOP)
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
            all.push(self.low + step * float(all.len()));
        }
        all
    }
}

/// The values 1, 2 and 5 in the decade of a value and in its neighbours.
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

    #[test]
    fn axes_have_round_ends() {
        let axis = Axis::new(25.0, 45.8, false);
        assert_eq!(axis.ticks(), [25.0, 30.0, 35.0, 40.0, 45.0, 50.0]);
        assert!((axis.y(25.0) - BOTTOM).abs() < 1e-9 && (axis.y(50.0) - TOP).abs() < 1e-9);
        let axis = Axis::new(25.0, 430.0, true);
        assert_eq!(axis.ticks(), [20.0, 50.0, 100.0, 200.0, 500.0]);
        assert_eq!(Axis::new(0.0, 0.0, false).ticks(), [0.0, 0.2]);
        assert!(!Axis::new(f64::MAX, f64::MIN, false).ticks().is_empty());
    }
}
