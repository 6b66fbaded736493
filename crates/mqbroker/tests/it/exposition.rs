//! The metrics, by a strict reader of the text format; and log lines in JSON.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use mq_client::Reconnect;
use mq_testkit::free_port;

use crate::program::{Broker, get_with};

/// A family of metrics: its type, its unit and its samples.
#[derive(Default, Debug)]
struct Family {
    kind: String,
    unit: Option<String>,
    has_help: bool,
    /// The name's suffix, the labels, and the value.
    samples: Vec<(String, BTreeMap<String, String>, f64)>,
}

/// Reads the labels behind `{`, and returns the rest behind `}`.
fn read_labels(mut text: &str) -> (BTreeMap<String, String>, &str) {
    let mut labels = BTreeMap::new();
    loop {
        let (name, rest) = text.split_once("=\"").unwrap();
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        assert!(name.chars().all(is_name) && !name.is_empty(), "{text}");
        let mut value = String::new();
        let mut characters = rest.char_indices();
        let end = loop {
            let (at, character) = characters.next().unwrap();
            match character {
                '"' => break at + 1,
                '\\' => match characters.next().unwrap().1 {
                    'n' => value.push('\n'),
                    escaped @ ('"' | '\\') => value.push(escaped),
                    other => panic!("\\{other} in {text}"),
                },
                '\n' => panic!("{text}"),
                other => value.push(other),
            }
        };
        let was = labels.insert(name.to_owned(), value);
        assert!(was.is_none(), "{name} twice: {text}");
        match &rest[end..=end] {
            "," => text = &rest[end + 1..],
            "}" => return (labels, &rest[end + 1..]),
            other => panic!("{other} in {text}"),
        }
    }
}

fn number(text: &str) -> f64 {
    if text == "+Inf" {
        return f64::INFINITY;
    }
    let value: f64 = text.parse().unwrap();
    assert!(value.is_finite(), "{text}");
    value
}

/// Reads a whole exposition.
fn read(text: &str) -> BTreeMap<String, Family> {
    let text = text.strip_suffix("# EOF\n").expect("it ends with EOF");
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    let mut current = String::new();
    for line in text.lines() {
        if let Some(about) = line.strip_prefix("# ") {
            let mut words = about.splitn(3, ' ');
            let [what, name, rest] = [(); 3].map(|()| words.next().unwrap());
            if current != name {
                let is_new = !families.contains_key(name);
                assert!(is_new, "the lines of {name} are not together");
                name.clone_into(&mut current);
            }
            let family = families.entry(name.to_owned()).or_default();
            assert!(family.samples.is_empty(), "{line}");
            match what {
                "HELP" => family.has_help = !rest.is_empty(),
                "TYPE" => rest.clone_into(&mut family.kind),
                "UNIT" => family.unit = Some(rest.to_owned()),
                other => panic!("{other}"),
            }
            continue;
        }
        let end = line.find(['{', ' ']).unwrap();
        let suffix = line[..end].strip_prefix(&*current);
        let suffix = suffix.unwrap_or_else(|| panic!("{line} below {current}"));
        let (labels, value) = match &line[end..=end] {
            "{" => read_labels(&line[end + 1..]),
            _ => (BTreeMap::new(), &line[end..]),
        };
        let value = number(value.strip_prefix(' ').unwrap());
        let family = families.get_mut(&current).unwrap();
        family.samples.push((suffix.to_owned(), labels, value));
    }
    families
}

/// A sample of a histogram: the name's suffix, the bound of a bucket, and the value.
type Sample<'a> = (&'a str, Option<f64>, f64);

/// Checks a histogram: for each set of labels ascending bounds up to +Inf, ascending counts, their sum and their number.
fn check_histogram(name: &str, family: &Family) {
    let mut sets: BTreeMap<BTreeMap<String, String>, Vec<Sample<'_>>> = BTreeMap::new();
    for (suffix, labels, value) in &family.samples {
        let mut labels = labels.clone();
        let bound = labels.remove("le").map(|bound| number(&bound));
        assert_eq!(bound.is_some(), suffix == "_bucket", "{name}{suffix}");
        let set = sets.entry(labels).or_default();
        set.push((suffix, bound, *value));
    }
    for (labels, samples) in &sets {
        let of = |suffix: &str| {
            let mut found = samples.iter().filter(|(name, ..)| *name == suffix);
            let value = found.next().map(|(.., value)| *value);
            assert!(found.next().is_none(), "{name}{suffix} twice: {labels:?}");
            value.unwrap_or_else(|| panic!("no {name}{suffix}"))
        };
        let (sum, count) = (of("_sum"), of("_count"));
        assert!(sum >= 0.0);
        let buckets = samples.iter().filter(|(.., bound, _)| bound.is_some());
        let buckets: Vec<_> = buckets
            .map(|(_, bound, value)| (bound.unwrap(), *value))
            .collect();
        for pair in buckets.windows(2) {
            assert!(pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1, "{name}");
        }
        let last = buckets.last().unwrap();
        assert!(last.0.is_infinite(), "{name} ends at le={}", last.0);
        assert!((last.1 - count).abs() < 0.5, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_are_openmetrics_with_whole_histograms_and_one_name_for_seconds() {
    let admin = free_port();
    let configuration = format!(
        "[store]\npath = \"FOLDER/store\"\n[admin]\nhttp = \"127.0.0.1:{admin}\"\n\
         [[bridge]]\nname = \"c\"\naddress = [\"tcp://127.0.0.1:1\"]\nplaintext = true\n\
         [[bridge.topic]]\npattern = \"#\"\n"
    );
    let broker = Broker::new("tcp", &configuration);
    let client = broker.client("c").session_expiry(Duration::from_hours(1));
    let client = client.build().await.unwrap();
    client.disconnect().await.unwrap();
    let text = scraped(
        admin,
        "Accept: application/openmetrics-text; version=1.0.0, */*; q=0.1\r\n",
    );
    let families = read(&text);
    assert!(families.len() > 60, "{}", families.len());
    for (name, family) in &families {
        assert!(family.has_help, "{name}");
        assert!(name.starts_with("mqbroker_"), "{name}");
        let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        assert!(name.chars().all(allowed), "{name}");
        for abbreviation in ["_s", "_ms", "_us", "_b", "_total"] {
            assert!(!name.ends_with(abbreviation), "{name}");
        }
        if let Some(unit) = &family.unit {
            assert!(name.ends_with(&format!("_{unit}")), "{name}: {unit}");
        }
        let keys = family.samples.iter();
        let keys: BTreeSet<_> = keys.map(|(suffix, labels, _)| (suffix, labels)).collect();
        assert_eq!(
            keys.len(),
            family.samples.len(),
            "{name} has a sample twice"
        );
        match &*family.kind {
            "counter" => {
                let is_count =
                    |(suffix, _, value): &(String, _, f64)| suffix == "_total" && *value >= 0.0;
                assert!(family.samples.iter().all(is_count), "{name}");
            }
            "gauge" => assert!(
                family.samples.iter().all(|(suffix, ..)| suffix.is_empty()),
                "{name}"
            ),
            "histogram" => check_histogram(name, family),
            other => panic!("{name}: {other}"),
        }
    }
    for histogram in ["rtt", "bridge_rtt", "store_settling"] {
        let family = &families[&format!("mqbroker_{histogram}_seconds")];
        assert!(!family.samples.is_empty(), "{histogram}");
    }
    // A reader of the older text format wants a counter's type under the name of its samples.
    let text = scraped(admin, "");
    let counter = "mqbroker_messages_received_total";
    assert!(
        text.contains(&format!("\n# TYPE {counter} counter\n{counter} ")),
        "{text}"
    );
    assert!(
        !text.contains("# UNIT") && !text.contains("# EOF"),
        "{text}"
    );
    assert_eq!(read(&(text + "# EOF\n")).len(), families.len());
}

/// Reads the metrics, in a request with that header.
fn scraped(admin: u16, header: &str) -> String {
    let (status, text) = get_with(admin, "/metrics", header);
    assert_eq!(status, 200);
    text
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_line_in_json_has_each_text_as_the_client_sent_it() {
    const NAMES: [&str; 5] = [
        "a b",
        "x\" user=root",
        "Zürich\\n",
        "\u{202e}gnp.exe",
        "plain",
    ];

    const CONFIGURATION: &str =
        "[log]\nformat = \"json\"\n[auth]\npassword_file = \"FOLDER/passwords\"\n";

    let broker = Broker::with_log("tcp", CONFIGURATION, &[("passwords", "")]);
    for name in NAMES {
        let client = broker.client("c").credentials(name, "x").unwrap();
        assert!(client.reconnect(Reconnect::never()).build().await.is_err());
    }
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        let log = std::fs::read_to_string(broker.file("log")).unwrap();
        let lines = log.lines().map(serde_json::from_str::<serde_json::Value>);
        let users: Vec<_> = lines
            .filter_map(|line| Some(line.ok()?["user"].as_str()?.to_owned()))
            .collect();
        if users.len() >= NAMES.len() {
            assert_eq!(users, NAMES);
            assert!(!log.contains('\u{202e}'), "it would turn the line");
            return;
        }
        assert!(Instant::now() < until, "{log}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
