//! A figure as an SVG file, for papers and slides, as the page draws it in a browser.

use mq_measure::convert::float_len;

use super::{
    axis::{Axis, BREAK, UPPER},
    chart, formatting,
    html::escape,
    labels,
    model::{CampaignReport, Panel, Point},
};
use crate::campaign::file::PlotKind;

const WIDTH: f64 = 640.0;
/// Left edge of the drawing.
const LEFT: f64 = 70.0;
/// Right edge of the drawing.
const RIGHT: f64 = 625.0;
/// Lower edge of the drawing.
const BOTTOM: f64 = 345.0;
/// Width of a character of the labels.
const CHARACTER: f64 = 6.2;
/// Height of a line of the labels.
const LINE: f64 = 14.0;

/// The page's colours on white.
const COLOURS: [(&str, &str); 3] = [("tcp", "#737b85"), ("tls", "#2166ac"), ("quic", "#d1531f")];
const OTHERS: [&str; 8] = [
    "#6a51a3", "#2b8a57", "#b5458a", "#a67c00", "#1b7f8c", "#7a4b2a", "#3a3f45", "#9a8fd8",
];

/// Returns the file's name and content.
pub(crate) fn file(campaign: &CampaignReport, panel: &Panel) -> (String, String) {
    let name = chart::file_name(campaign, panel) + ".svg";
    (name, Drawing::new(campaign, panel).draw())
}

struct Drawing<'a> {
    campaign: &'a CampaignReport,
    panel: &'a Panel,
    axis: Axis,
    /// The drawing's upper edge, below the legend.
    top: f64,
    text: String,
}

impl<'a> Drawing<'a> {
    fn new(campaign: &'a CampaignReport, panel: &'a Panel) -> Self {
        Self {
            campaign,
            panel,
            axis: axis(campaign, panel),
            top: 0.0,
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
                labels::title(&self.panel.levels)
            )
        };
        self.label(LEFT, 22.0, "start", 15, &title);
        let below_legend = self.legend();
        let ordinate = chart::ordinate(self.campaign, self.panel);
        self.label(14.0, below_legend + 12.0, "start", 11, &ordinate);
        self.top = below_legend + 28.0;
        self.grid();
        let deepest = self.abscissa();
        let middle = f64::midpoint(LEFT, RIGHT);
        self.label(middle, deepest + 20.0, "middle", 11, &plot.abscissa);
        if let Some(mark) = chart::mark(self.campaign, self.panel) {
            let y = self.y(mark);
            self.line((LEFT, y), (RIGHT, y), "#1d2126", 1.0, "4 3");
        }
        for at in 0..self.panel.series.len() {
            self.series(at);
        }
        self.line((LEFT, BOTTOM), (RIGHT, BOTTOM), "#5b636d", 1.0, "");
        self.upright();
        let height = deepest + 35.0;
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
             width=\"{WIDTH}\" height=\"{height}\" role=\"img\" \
             font-family=\"system-ui, DejaVu Sans, sans-serif\" fill=\"#1d2126\">\n\
             <title>{}</title>\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n{}</svg>\n",
            escape(&title),
            self.text
        )
    }

    fn grid(&mut self) {
        for tick in self.axis.ticks() {
            let y = self.y(tick);
            self.line((LEFT, y), (RIGHT, y), "#e3e6e9", 1.0, "");
            let text = formatting::tick(tick);
            self.label(LEFT - 6.0, y + 4.0, "end", 11, &text);
        }
    }

    /// Draws the line of the ordinate; two strokes across it show a break.
    fn upright(&mut self) {
        let (height, top) = (BOTTOM - self.top, self.top);
        if self.axis.parts().len() == 1 {
            self.line((LEFT, top), (LEFT, BOTTOM), "#5b636d", 1.0, "");
            return;
        }
        let above = top + UPPER * height;
        let below = above + BREAK * height;
        self.line((LEFT, top), (LEFT, above), "#5b636d", 1.0, "");
        self.line((LEFT, below), (LEFT, BOTTOM), "#5b636d", 1.0, "");
        for y in [above, below] {
            let (from, to) = ((LEFT - 6.0, y + 3.0), (LEFT + 6.0, y - 3.0));
            self.line(from, to, "#5b636d", 1.5, "");
        }
    }

    /// Draws the names of the series, in as many rows as they need; returns the lower edge of the last.
    fn legend(&mut self) -> f64 {
        let (mut x, mut y) = (LEFT, 33.0);
        for at in 0..self.panel.series.len() {
            let series = &self.panel.series[at];
            let name = labels::series(&self.campaign.plot.series, &series.name);
            let width = 17.0 + CHARACTER * float_len(name.chars().count()) + 14.0;
            if x > LEFT && x + width > RIGHT {
                x = LEFT;
                y += 18.0;
            }
            self.rect((x, y), (12.0, 10.0), colour(self.panel, at), 1.0);
            self.label(x + 17.0, y + 9.0, "start", 11, &name);
            x += width;
        }
        y + 12.0
    }

    /// Draws the levels along the abscissa, in as many lines as they need; returns the base of the last line.
    fn abscissa(&mut self) -> f64 {
        let mut deepest = BOTTOM + LINE + 4.0;
        for (at, x) in self.panel.x.iter().enumerate() {
            let name = labels::level(&self.campaign.plot.x, x);
            let mut y = BOTTOM + LINE + 4.0;
            for line in lines(&name, self.slot() / CHARACTER) {
                self.label(self.centre(at), y, "middle", 11, &line);
                deepest = deepest.max(y);
                y += LINE;
            }
        }
        deepest
    }

    fn y(&self, value: f64) -> f64 {
        BOTTOM - self.axis.share(value) * (BOTTOM - self.top)
    }

    /// Draws a series.
    fn series(&mut self, at: usize) {
        let panel = self.panel;
        let (series, colour) = (&panel.series[at], colour(panel, at));
        let slot = (self.slot() * 0.78 / float_len(panel.series.len())).min(52.0);
        let kind = self.campaign.plot.kind;
        let mut before: Option<(f64, f64)> = None;
        for (place, point) in series.points.iter().enumerate() {
            let Some(point) = point else {
                before = None;
                continue;
            };
            let aside = (float_len(at) - (float_len(panel.series.len()) - 1.0) / 2.0) * slot;
            match kind {
                PlotKind::Bars => self.bar(point, self.centre(place) + aside, slot * 0.84, colour),
                PlotKind::Lines => {
                    let here = (self.centre(place), self.y(point.mean));
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
        let foot = self.y(self.panel.baseline.unwrap_or(0.0));
        let top = self.y(point.mean);
        let corner = (centre - width / 2.0, foot.min(top));
        self.rect(corner, (width, (foot - top).abs().max(1.0)), colour, 1.0);
        self.whisker(point, centre, "#1d2126");
    }

    fn whisker(&mut self, point: &Point, centre: f64, colour: &str) {
        let (Some(low), Some(high)) = (point.low, point.high) else {
            return;
        };
        let (low, high) = (self.y(low), self.y(high));
        self.line((centre, low), (centre, high), colour, 1.5, "");
        for y in [low, high] {
            self.line((centre - 5.0, y), (centre + 5.0, y), colour, 1.5, "");
        }
    }

    fn boxed(&mut self, point: &Point, centre: f64, width: f64, colour: &str) {
        let Some(one) = &point.quartiles else {
            let y = self.y(point.mean);
            self.circle((centre, y), 4.0, colour, colour);
            return;
        };
        let [q1, q3] = [one.q1, one.q3].map(|value| self.y(value));
        for (edge, end) in [(q1, one.low), (q3, one.high)] {
            let end = self.y(end);
            self.line((centre, edge), (centre, end), colour, 1.5, "");
            let half = width / 4.0;
            self.line((centre - half, end), (centre + half, end), colour, 1.5, "");
        }
        let left = centre - width / 2.0;
        self.rect((left, q3), (width, (q1 - q3).max(1.0)), colour, 0.35);
        let y = self.y(one.median);
        self.line((left, y), (left + width, y), colour, 3.0, "");
        for outlier in &one.outliers {
            let y = self.y(*outlier);
            self.circle((centre, y), 2.2, "none", colour);
        }
    }

    /// Returns the width of one level of the abscissa.
    fn slot(&self) -> f64 {
        (RIGHT - LEFT) / float_len(self.panel.x.len().max(1))
    }

    fn centre(&self, place: usize) -> f64 {
        LEFT + self.slot() * (float_len(place) + 0.5)
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

/// Makes the ordinate that the values need.
fn axis(campaign: &CampaignReport, panel: &Panel) -> Axis {
    if let Some(split) = chart::split_axis(campaign, panel) {
        return split;
    }
    let ends = panel
        .points()
        .flat_map(|point| chart::ends(campaign, point));
    let mark = chart::mark(campaign, panel);
    let (least, most) = ends
        .chain(mark)
        .fold((f64::MAX, f64::MIN), |(low, high), value| {
            (low.min(value), high.max(value))
        });
    let is_logarithmic = chart::starts_logarithmic(campaign, panel);
    let from_zero = campaign.plot.kind == PlotKind::Bars && panel.baseline.is_none();
    let least = if from_zero && !is_logarithmic {
        least.min(0.0)
    } else {
        least
    };
    Axis::new(least, most, is_logarithmic)
}

/// Breaks words into lines of at most `most` characters; a longer word has a line of its own.
fn lines(text: &str, most: f64) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match all.last_mut() {
            Some(line) if float_len(line.chars().count() + 1 + word.chars().count()) <= most => {
                line.push(' ');
                line.push_str(word);
            }
            _ => all.push(word.to_owned()),
        }
    }
    all
}

fn colour(panel: &Panel, at: usize) -> &'static str {
    let name = &panel.series[at].name;
    // Of a transport's connections, those with a full handshake have its colour.
    let name = name.strip_suffix(" full").unwrap_or(name);
    let own = COLOURS.iter();
    let mut own = own.filter(|(known, _)| name.eq_ignore_ascii_case(known));
    own.next()
        .map_or(OTHERS[at % OTHERS.len()], |(_, colour)| colour)
}
