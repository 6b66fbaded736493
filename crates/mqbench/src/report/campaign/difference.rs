//! The differences of a second result set from a first one, cell by cell.

use mq_measure::stats::{self, Bootstrap, Interval};

use super::{
    formatting, markdown,
    metric_values::{FinishedRuns, Levels, Metric},
};
use crate::campaign::store::ResultSet;

/// A cell that both sets have.
struct Row {
    levels: Levels,
    runs: (usize, usize),
    means: (f64, f64),
    /// The interval of the second mean less the first; `None` with fewer than two runs on a side.
    difference: Option<Interval>,
}

/// Formats the differences as Markdown: a table for each campaign that both sets have.
pub(crate) fn render(first: &ResultSet, second: &ResultSet) -> String {
    let mut text = format!(
        "# {} beside {}\n\nDifferences are of the second less the first. Intervals are of 95 %, by \
         bootstrap over runs.\n\n",
        second.directory().display(),
        first.directory().display()
    );
    for campaign in &first.campaigns {
        let other = second.campaigns.iter();
        let Some(other) = other.into_iter().find(|one| one.name == campaign.name) else {
            continue;
        };
        let metric = Metric::parse(&campaign.plot.metric);
        let (a, b) = (
            FinishedRuns::of(campaign, &first.records),
            FinishedRuns::of(other, &second.records),
        );
        let cells = campaign.cells.iter().map(|cell| &cell.levels);
        let rows = cells.filter_map(|levels| row(&a, &b, &metric, levels));
        let [of_first, of_second] =
            ["first", "second"].map(|name| formatting::with_unit(name, &metric.unit));
        let columns = [
            "cell",
            "runs",
            &of_first,
            &of_second,
            "difference",
            "95 % interval",
            "shown",
        ];
        text.push_str(&format!(
            "## {}: {}\n\n{}",
            campaign.name,
            metric.asked,
            markdown::table(&columns, rows.map(|row| row.cells()))
        ));
    }
    text
}

fn row(a: &FinishedRuns, b: &FinishedRuns, metric: &Metric, levels: &Levels) -> Option<Row> {
    let (a_values, b_values) = (a.values(metric, levels), b.values(metric, levels));
    let enough = a_values.len() >= 2 && b_values.len() >= 2;
    let bootstrap = Bootstrap::new(a.campaign.seed);
    Some(Row {
        levels: levels.clone(),
        runs: (a_values.len(), b_values.len()),
        means: (stats::mean(&a_values)?, stats::mean(&b_values)?),
        difference: enough
            .then(|| bootstrap.mean_difference(&b_values, &a_values))
            .flatten(),
    })
}

impl Row {
    fn cells(&self) -> Vec<String> {
        let (first, second) = self.means;
        let relative = (first != 0.0).then(|| (second - first) / first * 100.0);
        let relative = relative.map_or_else(String::new, |share| format!(" ({share:+.1} %)"));
        let shown = self.difference.map(|difference| match difference {
            none if none.contains(0.0) => "no difference",
            more if more.low > 0.0 => "more",
            _ => "less",
        });
        vec![
            formatting::levels(&self.levels),
            format!("{} / {}", self.runs.0, self.runs.1),
            formatting::number(first),
            formatting::number(second),
            format!("{}{relative}", formatting::number(second - first)),
            self.difference.map_or_else(formatting::dash, |difference| {
                formatting::range(difference.low, difference.high)
            }),
            shown.map_or_else(formatting::dash, str::to_owned),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::campaign::tests::fixture;

    #[test]
    fn a_set_beside_itself_shows_no_difference_and_a_slower_one_does() {
        let folder = tempfile::tempdir().unwrap();
        let first = fixture::set(folder.path());
        let mut second = ResultSet::load(first.directory()).unwrap();
        let text = render(&first, &second);
        assert_eq!(text.matches("no difference").count(), 12 + 4, "{text}");
        for record in &mut second.records {
            if record.levels["transport"] == "quic" {
                let mean = record.outcome.metrics.get_mut("latency_mean").unwrap();
                *mean += 100.0;
            }
        }
        let text = render(&first, &second);
        let line = text
            .lines()
            .find(|line| line.contains("s22/wifi, loss 5%, transport quic"));
        let line = line.unwrap();
        assert!(
            line.contains("| 6 / 6 |") && line.ends_with("| more |"),
            "{line}"
        );
        // A single run has no interval.
        assert!(
            text.contains("| loss 5%, transport tls | 1 / 1 |"),
            "{text}"
        );
        assert!(text.contains("| – | – |"), "{text}");
    }
}
