//! The report of records made by hand.

#[cfg(unix)]
mod browser;
mod figures;
pub(crate) mod fixture;
mod schema;

use std::sync::LazyLock;

use mq_measure::Warning;
use sha2::{Digest as _, Sha256};

use super::{
    assemble::report,
    csv,
    html::{self, Sections, charts_library},
    markdown,
    metric_values::{FinishedRuns, Metric},
    model::{Basis, Report},
    svg::file as svg,
};
use crate::campaign::{
    claims::{self, Verdict},
    record::Record,
    run_counts::RunCounts,
    store::ResultSet,
};

/// Formats a report of runs without captures.
fn page(report: &Report) -> String {
    html::page(report, &Sections::default())
}

/// Makes the report once, since writing a set syncs each of its records.
fn make() -> &'static (ResultSet, Report) {
    static MADE: LazyLock<(ResultSet, Report)> = LazyLock::new(|| {
        let folder = tempfile::tempdir().unwrap();
        let set = fixture::set(folder.path());
        let claims = claims::shipped().unwrap();
        let report = report(&set.head, &set.campaigns, &set.records, &claims);
        (set, report)
    });
    &MADE
}

#[test]
fn emulated_runs_are_named_at_the_top() {
    let (set, report_without) = make();
    let notice = "<strong>Emulated.</strong>";
    assert!(!page(report_without).contains(notice));
    let mut records = set.records.clone();
    records[0].outcome.warnings.push(Warning::Emulated {
        host: Some("pi-2".to_owned()),
        found: "its processor is QEMU's".to_owned(),
    });
    let claims = claims::shipped().unwrap();
    let report = report(&set.head, &set.campaigns, &records, &claims);
    assert!(page(&report).contains(notice));
    assert!(markdown::render(&report).contains("host pi-2 is emulated"));
}

/// The campaign of the fixture's first figure once more, with QUIC's runs as late as TLS's.
#[test]
fn a_campaign_with_changes_has_a_column_of_verdicts_beside_its_own() {
    let (set, without) = make();
    let mut campaigns = set.campaigns.clone();
    let mut changed = campaigns[0].clone();
    changed.name.push_str("@repeat=probe");
    let runs = set
        .records
        .iter()
        .filter(|run| run.campaign == campaigns[0].name);
    let runs = runs.map(|run| {
        let mut run = run.clone();
        run.campaign.clone_from(&changed.name);
        run.outcome
            .metrics
            .insert("latency_mean".to_owned(), 30.0 + f64::from(run.repetition));
        run
    });
    let records: Vec<_> = set.records.iter().cloned().chain(runs).collect();
    campaigns.push(changed);
    let claims = claims::shipped().unwrap();
    let report = report(&set.head, &campaigns, &records, &claims);
    assert_eq!(report.changes(), ["repeat=probe"]);
    for (one, before) in report.claims.iter().zip(&without.claims) {
        let of_fixture = one.claim.campaign == set.campaigns[0].name;
        assert_eq!(
            one.beside.len(),
            usize::from(of_fixture),
            "{}",
            one.claim.id
        );
        assert_eq!(
            (one.verdict, one.measured),
            (before.verdict, before.measured)
        );
    }
    let claim = |id: &str| report.claims.iter().find(|one| one.claim.id == id).unwrap();
    let wifi = claim("s22-wifi-5-mean");
    let measured = wifi.beside[0].measured.unwrap();
    assert!(measured.estimate.abs() < 1e-9, "{measured:?}");
    assert_ne!(wifi.measured, wifi.beside[0].measured);
    for text in [page(&report), markdown::render(&report)] {
        assert!(text.contains("with repeat=probe"), "{text}");
        assert!(text.contains("With repeat=probe"), "{text}");
    }
    assert!(!page(without).contains("repeat=probe"));
}

/// The default of the initial RTT was 100 ms when the kept sets were made.
#[test]
fn a_report_has_the_initial_rtt_of_its_runs_and_not_this_programs_default() {
    let (set, now) = make();
    let mut records = set.records.clone();
    for record in &mut records {
        record.cell.initial_rtt_ns = Some(100_000_000);
    }
    let before = report(&set.head, &set.campaigns, &records, &[]);
    for (report, ns, text) in [
        (now, 333_000_000, "initial RTT: 333 ms (RFC 9002)"),
        (&before, 100_000_000, "initial RTT: 100 ms (tuned)"),
    ] {
        for campaign in &report.campaigns {
            assert_eq!(campaign.fixed["initial_rtt_ns"], ns, "{}", campaign.name);
            assert_eq!(campaign.initial_rtts_ns, [ns].into(), "{}", campaign.name);
        }
        let count = report.campaigns.len();
        assert_eq!(page(report).matches(text).count(), count);
        assert_eq!(markdown::render(report).matches(text).count(), count);
    }
}

#[test]
fn a_disturbed_attempt_does_not_count() {
    let (_, report) = make();
    let bars = &report.campaigns[0];
    let runs = &bars.runs.counts;
    assert_eq!((runs.planned, runs.good, runs.repeated), (72, 72, 1));
    // It says 1000 s.
    let points = || {
        bars.panels
            .iter()
            .flat_map(|p| &p.series)
            .flat_map(|s| &s.points)
    };
    assert!(
        points()
            .flatten()
            .all(|point| point.n == 6 && point.mean < 1000.0)
    );
    assert_eq!(bars.repeated[0].warnings.len(), 1);
    let kinds: Vec<_> = bars
        .warnings
        .iter()
        .map(|w| (&w.kind[..], w.runs))
        .collect();
    assert_eq!(kinds, [("reordered-messages", 6)]);
}

#[test]
fn a_run_is_counted_once_by_its_last_attempt() {
    let (set, _) = make();
    let (campaign, mut records) = (&set.campaigns[0], set.records.clone());
    // One of the 72 runs has a disturbed attempt before a good one.
    assert_eq!(
        RunCounts::of(campaign, &records).to_string(),
        "72 of 72 runs good, 0 disturbed; 1 attempt repeated"
    );
    let mine = |record: &Record| record.campaign == campaign.name;
    let last = records.iter().rposition(mine).unwrap();
    records[last].outcome.error = Some("the broker ended".to_owned());
    let counts = RunCounts::of(campaign, &records);
    assert_eq!(
        (counts.good, counts.disturbed, counts.finished),
        (71, 1, 72)
    );
    let first = records.iter().position(mine).unwrap();
    records.remove(first);
    assert_eq!(
        RunCounts::of(campaign, &records).to_string(),
        "70 of 72 runs good, 1 disturbed, 1 missing; 1 attempt repeated"
    );
}

#[test]
fn every_level_of_the_facet_has_a_figure_with_its_baseline() {
    let (_, report) = make();
    let panels = &report.campaigns[0].panels;
    let baselines: Vec<_> = panels
        .iter()
        .map(|p| (&p.levels["link"][..], p.baseline))
        .collect();
    assert_eq!(
        baselines,
        [("s22/wifi", Some(25.0)), ("s22/satellite", Some(600.0))]
    );
    let point = panels[0].series[1].points[2].as_ref().unwrap();
    let (low, high) = (point.low.unwrap(), point.high.unwrap());
    assert!(low < point.mean && point.mean < high, "{point:?}");
    assert_eq!(point.interval_of, Basis::Repetitions);
}

#[test]
fn one_run_is_judged_by_its_messages() {
    let (_, report) = make();
    let boxes = &report.campaigns[1];
    let point = boxes.panels[0].series[0].points[1].as_ref().unwrap();
    assert_eq!((point.n, point.interval_of), (1, Basis::Messages));
    let one = point.quartiles.as_ref().unwrap();
    assert_eq!((one.of, one.n), (Basis::Messages, 200));
    // Whiskers at p5 and p95 leave a tenth out; below, several values are one in the histogram.
    assert!((10..=20).contains(&one.outlier_count), "{one:?}");
    let test = &boxes.panels[0].tests[1];
    assert_eq!((test.of, test.pairs.len()), (Basis::Messages, 3));
    assert_eq!(boxes.panels[0].distributions.len(), 6);
}

#[test]
fn xi_divides_by_the_run_beside_or_by_the_mean() {
    let (set, report) = make();
    let campaign = set
        .campaigns
        .iter()
        .find(|one| one.name == "w20-fig4")
        .unwrap();
    let finished = FinishedRuns::of(campaign, &set.records);
    let at = |transport: &str| {
        [
            ("link", "w20/wifi"),
            ("loss", "5%"),
            ("transport", transport),
        ]
        .map(|(factor, level)| (factor.to_owned(), level.to_owned()))
        .into()
    };
    let values = |metric: &str, transport| finished.values(&Metric::parse(metric), &at(transport));
    let (quic, tls) = (values("delta", "quic"), values("delta", "tls"));
    let paired: Vec<_> = quic
        .iter()
        .zip(&tls)
        .map(|(quic, tls)| quic / tls)
        .collect();
    assert_eq!(values("xi_w20:delta", "quic"), paired);
    let mean = tls.iter().sum::<f64>() / 6.0;
    for (xi, quic) in values("xi_s21:delta", "quic").iter().zip(&quic) {
        assert!((xi - quic / mean).abs() < 1e-12);
    }
    assert!(values("xi_w20:delta", "tls").is_empty());
    // Resumption follows from the transport, and ξ has both: there is one figure.
    let panels = &report.campaigns[2].panels;
    assert_eq!((panels.len(), panels[0].levels.len()), (1, 0));
    let series: Vec<_> = panels[0].series.iter().map(|s| &s.name[..]).collect();
    assert_eq!(series, ["w20/wifi", "w20/satellite"]);
    let point = panels[0].series[0].points[1].as_ref().unwrap();
    assert_eq!(point.values, paired);
    // Both sides of each are beside it.
    assert_eq!(panels[0].distributions.len(), 2 * 2 * 2);
}

#[test]
fn claims_are_judged_by_the_runs() {
    let (_, report) = make();
    let verdict = |id: &str| report.claims.iter().find(|c| c.claim.id == id).unwrap();
    let wifi = verdict("s22-wifi-tls-steep");
    assert_eq!(
        (wifi.verdict, wifi.of),
        (Verdict::Reproduced, Basis::Repetitions),
        "{wifi:?}"
    );
    // 330 against 90 ms a loss: about -29 %, and six runs do not know it to a fifth.
    let size = verdict("s22-wifi-5-mean");
    assert_eq!(size.verdict, Verdict::Undecided, "{size:?}");
    // There is no cellular link in this set.
    assert_eq!(verdict("s22-cellular-5-mean").verdict, Verdict::NotMeasured);
}

#[test]
fn series_that_differ_are_told_apart() {
    let (_, report) = make();
    let tests = &report.campaigns[0].panels[0].tests;
    let (same, lossy) = (&tests[0], &tests[2]);
    assert_eq!((same.of, &lossy.x[..]), (Basis::Repetitions, "5%"));
    assert!(lossy.pairs[0].p.unwrap() < 0.05 && lossy.pairs[0].size == "large");
    assert!(lossy.kruskal_wallis.unwrap().p < 0.05);
}

#[test]
fn csv_has_a_line_for_each_metric_of_each_run() {
    let (set, _) = make();
    let text = csv(&set.campaigns, &set.records);
    let mut lines = text.lines();
    assert_eq!(
        lines.next().unwrap(),
        "campaign,link,loss,resumption,transport,repetition,metric,value"
    );
    assert_eq!(lines.clone().count(), (72 + 6 + 48) * 4);
    let first = lines.next().unwrap();
    assert!(
        first.starts_with("s22-fig4,s22/satellite,0%,,quic,0,delta,1201"),
        "{first}"
    );
    assert!(text.contains("w20-fig4,w20/wifi,0%,0-rtt,quic,0,"));
}

#[test]
fn markdown_has_verdicts_and_means() {
    let (_, report) = make();
    let text = markdown(report);
    for part in [
        "| verdict | claim |",
        "| undecided | QUIC's mean delay over WiFi at 5 % loss is 25.5 % below TCP's | S22 §5.1 | -25.5 % |",
        "; the same text says more than 40 ms for TCP; with QUIC at 37 ms this figure needs 49.7 |",
        "### link s22/satellite",
        "| loss | transport | runs | latency_mean [ms] | 95 % interval | over | median |",
        "- reordered-messages in 6 runs: 3 of 200 messages",
    ] {
        assert!(text.contains(part), "no {part} in\n{text}");
    }
}

#[test]
fn the_page_loads_nothing_from_elsewhere() {
    let (_, report) = make();
    let page = page(report);
    assert!(page.contains("default-src 'none'"));
    // ECharts has addresses in comments and XML namespaces, which a page does not load.
    let ours = page.replace(&charts_library(), "");
    assert!(ours.len() < page.len(), "the page has its charts");
    for loads in ["<link", "src=\"", "@import", "url(http", "<img", "<iframe"] {
        assert!(!ours.contains(loads), "{loads}");
    }
    assert_eq!(page.matches("<figure").count(), 2 + 1 + 1 + 2 + 1 + 1);
}

#[test]
fn the_answer_comes_first_and_provenance_last() {
    let (_, report) = make();
    let page = page(report);
    let place = |part: &str| page.find(part).unwrap_or_else(|| panic!("no {part}"));
    let order = [
        "How to read this",
        "<article class=\"card\">",
        "https://doi.org/10.3390/s22103694",
        "<figure",
        "Where this is from",
        "<dt>Kernel</dt>",
    ];
    assert!(order.map(place).is_sorted(), "{:?}", order.map(place));
    // The rule before this one had these shares.
    assert!(!page.contains("a quarter of the printed effect"));
    let [paper] = &report.papers[..] else {
        panic!("{:?}", report.papers);
    };
    assert!(
        paper.held > 0 && paper.says[0].starts_with("Held: “"),
        "{paper:?}"
    );
    for says in &paper.says {
        assert!(page.contains(&says.replace('"', "&quot;")), "{says}");
    }
}

#[test]
fn a_set_without_claims_begins_with_what_its_figures_show() {
    let (set, _) = make();
    let report = report(&set.head, &set.campaigns, &set.records, &[]);
    let page = page(&report);
    let answers = page.split("id=\"answers\"").nth(1).unwrap();
    let answers = answers.split("</section>").next().unwrap();
    assert_eq!(answers.matches("<article").count(), 3);
    assert!(answers.contains(&report.campaigns[0].panels[0].shows));
}

#[test]
fn a_figure_says_what_it_shows() {
    let (_, report) = make();
    let of = |campaign: usize, panel: usize| &report.campaigns[campaign].panels[panel].shows;
    let numbers = |campaign: usize, panel: usize, series: usize, x: usize| {
        let series = &report.campaigns[campaign].panels[panel].series[series];
        series.points[x].as_ref().unwrap().mean
    };
    let (tls, quic) = (numbers(0, 0, 0, 2), numbers(0, 0, 1, 2));
    assert_eq!(
        *of(0, 0),
        format!(
            "At 5 % packet loss QUIC's mean delay is {quic:.2} ms and TLS's {tls:.2} ms: QUIC is \
             {:.0} % lower; without loss they differ by less than 1 %.",
            (1.0 - quic / tls) * 100.0
        )
    );
    assert!(
        of(1, 0).starts_with("At 5 % packet loss QUIC's median is 25."),
        "{}",
        of(1, 0)
    );
    assert!(
        of(1, 0).contains("; the longest at 5 % packet loss: TCP "),
        "{}",
        of(1, 0)
    );
    let xi = of(2, 0);
    assert!(
        xi.starts_with("At 5 % packet loss QUIC takes, beside TLS: "),
        "{xi}"
    );
    assert!(
        xi.ends_with("without loss: less than 1 % apart in all."),
        "{xi}"
    );
}

#[test]
fn axes_and_series_are_named_in_words() {
    let (_, report) = make();
    let page = page(report);
    let data = page.split("id=\"data\">").nth(1).unwrap();
    let data: serde_json::Value =
        serde_json::from_str(data.split("</script>").next().unwrap()).unwrap();
    let charts = data["charts"].as_array().unwrap();
    let bars = &charts[0]["option"];
    assert_eq!(
        bars["yAxis"]["name"],
        "mean delay from publisher to subscriber [ms]"
    );
    assert_eq!(bars["xAxis"]["name"], "packet loss");
    assert_eq!(
        bars["xAxis"]["data"],
        serde_json::json!(["0 %", "2 %", "5 %"])
    );
    let names: Vec<_> = bars["series"]
        .as_array()
        .unwrap()
        .iter()
        .map(|s| &s["name"])
        .collect();
    assert_eq!(names, ["TLS", "QUIC"]);
    // Boxes of messages are not of the runs' medians.
    let boxes = charts.iter().find(|chart| chart["id"] == "c1p0").unwrap();
    let name = &boxes["option"]["yAxis"]["name"];
    assert_eq!(name, "delay from publisher to subscriber [ms]");
    // The data keeps the identifiers.
    assert!(charts[0]["csv"].as_str().unwrap().contains("5%,quic,6,"));
}

#[test]
fn effects_are_said_in_words_that_agree() {
    let (_, report) = make();
    let pair = &report.campaigns[0].panels[0].tests[2].pairs[0];
    assert_eq!((&pair.a[..], &pair.b[..]), ("quic", "tls"));
    assert!((pair.above - pair.below - pair.cliffs_delta).abs() < 1e-9);
    let ratio = pair.ratio.unwrap();
    assert!(pair.cliffs_delta < 0.0 && ratio.estimate < 1.0, "{pair:?}");
    let words = format!(
        "QUIC below TLS in {:.0} % of pairs, its mean {:.0} % lower",
        pair.below * 100.0,
        (1.0 - ratio.estimate) * 100.0
    );
    assert!(page(report).contains(&words), "{words}");
}

#[test]
fn figures_of_disturbed_runs_say_how_many() {
    let (set, without) = make();
    let banner = "1 run of this figure was disturbed in its last attempt";
    assert!(!page(without).contains(banner));
    let mut records = set.records.clone();
    let last = records.iter().rposition(|run| {
        run.campaign == "s22-fig4" && run.levels["link"] == "s22/wifi" && run.levels["loss"] == "5%"
    });
    records[last.unwrap()]
        .outcome
        .warnings
        .push(Warning::GeneratorLate {
            p99_late_ns: 7_000_000,
            interval_ns: 10_000_000,
        });
    let claims = claims::shipped().unwrap();
    let report = report(&set.head, &set.campaigns, &records, &claims);
    let campaign = &report.campaigns[0];
    let panels: Vec<_> = campaign
        .panels
        .iter()
        .map(|panel| panel.disturbed)
        .collect();
    assert_eq!((panels, campaign.runs.counts.disturbed), (vec![1, 0], 1));
    let page = page(&report);
    assert_eq!(page.matches(banner).count(), 1);
    assert!(page.contains("<strong>1 of 126 runs disturbed</strong>"));
    assert!(page.contains("71 of 72 runs good, 1 disturbed; 1 attempt repeated"));
    assert!(
        page.contains("6 values, 1 run disturbed"),
        "the data has the cell"
    );
}

#[test]
fn levels_cannot_break_the_page() {
    let (set, _) = make();
    let mut campaigns = set.campaigns.clone();
    for campaign in &mut campaigns {
        campaign.title = "</script><script>alert(1)</script>".to_owned();
    }
    let page = page(&report(&set.head, &campaigns, &set.records, &[]));
    assert!(!page.contains("<script>alert"));
    assert_eq!(page.matches("</script>").count(), 3);
}

#[test]
fn the_vendored_charts_are_the_ones_that_the_notes_name() {
    let notes = include_str!("../../../../assets/README.md");
    let charts = charts_library();
    let version = notes.split("npm package `echarts` ").nth(1).unwrap();
    let version = version.split(',').next().unwrap();
    assert!(charts.contains(&format!("\"{version}\"")), "{version}");
    let digest = Sha256::digest(charts);
    let digest: Vec<_> = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    assert!(notes.contains(&digest.concat()), "{digest:?}");
}

#[test]
fn every_figure_is_an_svg_file_of_its_own() {
    let (_, report) = make();
    let mut names = Vec::new();
    for campaign in &report.campaigns {
        for panel in &campaign.panels {
            let (name, text) = svg(campaign, panel);
            assert!(text.starts_with("<svg ") && !text.contains("NaN"), "{name}");
            assert_eq!(
                text.matches("<text").count(),
                text.matches("</text>").count()
            );
            if let Some(folder) = std::env::var_os("MQ_SCREENSHOTS") {
                std::fs::write(std::path::Path::new(&folder).join(&name), &text).unwrap();
            }
            names.push(name);
        }
    }
    assert_eq!(
        names,
        [
            "s22-fig4-s22_wifi.svg",
            "s22-fig4-s22_satellite.svg",
            "s22-fig5.svg",
            "w20-fig4.svg"
        ]
    );
    // Outliers are above a break of the ordinate: its two strokes.
    let strokes = |text: &str| text.matches("x1=\"64.0\"").count();
    let (_, boxes) = svg(&report.campaigns[1], &report.campaigns[1].panels[0]);
    assert_eq!(strokes(&boxes), 2);
    assert!(boxes.contains(">500</text>"));
    // Two series at three levels, the legend, and the ground.
    let (_, bars) = svg(&report.campaigns[0], &report.campaigns[0].panels[0]);
    assert_eq!(bars.matches("<rect").count(), 6 + 2 + 1);
    assert_eq!(strokes(&bars), 0);
}
