//! Holds `docs/spec/compare.schema.json` and [`RunResult`] together.

use std::collections::{BTreeMap, BTreeSet};

use mq_measure::manifest::{LinkContext, Manifest, Software};
use mq_measure::result::{
    Comparison, ConnectKind, ConnectTimes, HostPackets, ProcessUse, Round, RunResult, SCHEMA,
    TransportResult, WireUse,
};
use mq_measure::stats::Bootstrap;
use mq_measure::topics::TopicFigures;
use mq_measure::{Counts, LatencyRecorder, Summary, Validity, Warning};
use serde_json::{Value, json};

fn schema() -> Value {
    serde_json::from_str(include_str!("../../../../docs/spec/compare.schema.json")).unwrap()
}

fn software(name: &str) -> Software {
    Software {
        name: name.to_owned(),
        version: Some("0.1.0".to_owned()),
        revision: Some("0123abcd".to_owned()),
    }
}

/// Builds a result that has every property of the schema, and an entry in every list.
fn full() -> RunResult {
    let exact = Summary::from_samples(&[1_000, 2_000, 4_000, 5_000]);
    let mut recorder = LatencyRecorder::new();
    recorder.extend([1_000, 3_000]);
    let counts = Counts {
        sent: 4,
        received: 4,
        ..Counts::default()
    };
    let mut manifest = Manifest::now(software("mqbench"), software("mqbroker"), json!({"qos": 1}));
    manifest.host.emulated = Some("its processor is QEMU's".to_owned());
    manifest.seeds = BTreeMap::from([("order".to_owned(), 7)]);
    manifest.link = LinkContext {
        configured: Some(json!({"delay_ns": 1})),
        measured: Some(json!({})),
    };
    let process = ProcessUse {
        role: "broker".to_owned(),
        cpu_ns: 1,
        user_ns: 1,
        system_ns: 0,
        peak_rss_bytes: 4096,
        elapsed_ns: 10,
    };
    let connect = |kind| ConnectTimes {
        kind,
        count: 2,
        failed: 0,
        usable: exact,
        connack: exact,
    };
    let transport = TransportResult {
        transport: "quic-repeat".to_owned(),
        repeat: Some("3ms".to_owned()),
        url: "quic://127.0.0.1:14567".to_owned(),
        latency: exact,
        latency_from_send: recorder.summary(),
        rtt_last: exact,
        counts,
        wire: Some(WireUse {
            packets_sent: Some(1),
            packets_received: None,
            ..WireUse::default()
        }),
        publisher_host: Some(HostPackets {
            sent: 3,
            received: Some(2),
            elapsed_ns: 1_000_000_000,
        }),
        neighbours_sent: Some(8),
        topics: Some(TopicFigures {
            topics: std::num::NonZeroU32::new(8).unwrap(),
            inter_topic_spread_ns: Some(0.5),
            spike_isolation_ratio: Some(0.25),
            above_link_mean_ns: Some(-1.0),
            above_link_worst_ns: Some(2.0),
            late_share: Some(0.5),
            late_through_others: Some(0.0),
        }),
        processes: vec![process],
        connect: [
            ConnectKind::Tcp,
            ConnectKind::Full,
            ConnectKind::Resumed,
            ConnectKind::ZeroRtt,
        ]
        .map(connect)
        .to_vec(),
        rounds: vec![Round {
            round: 0,
            turn: 1,
            latency: exact,
            duration_ns: 9,
            counts,
        }],
        warnings: vec![Warning::TooFewSamples {
            percentile: 99.9,
            count: 4,
            needed: 1000,
        }],
    };
    RunResult {
        schema: SCHEMA.to_owned(),
        manifest,
        parameters: json!({"rate": 100}),
        transports: vec![transport],
        comparisons: vec![Comparison {
            quantity: "mean delay".to_owned(),
            transport: "quic".to_owned(),
            baseline: "tcp".to_owned(),
            ratio: Bootstrap::new(1).mean_ratio(&[1.0, 3.0], &[2.0, 6.0]),
        }],
        validity: Validity {
            warnings: vec![Warning::DebugBuild, Warning::ClocksNotCompared],
        },
    }
}

/// Builds the result of [`full`] without its optional measurements, host, link and transport warnings.
fn empty() -> RunResult {
    let mut result = full();
    let transport = &mut result.transports[0];
    (transport.latency, transport.latency_from_send) = (None, None);
    (transport.rtt_last, transport.wire) = (None, None);
    transport.publisher_host = transport.publisher_host.map(|host| HostPackets {
        received: None,
        ..host
    });
    transport.neighbours_sent = None;
    transport.repeat = None;
    transport.topics = transport.topics.map(|figures| TopicFigures {
        inter_topic_spread_ns: None,
        spike_isolation_ratio: None,
        above_link_mean_ns: None,
        above_link_worst_ns: None,
        late_share: None,
        late_through_others: None,
        ..figures
    });
    transport.connect.truncate(1);
    (transport.connect[0].usable, transport.connect[0].connack) = (None, None);
    transport.rounds[0].latency = None;
    transport.warnings.clear();
    result.comparisons[0].ratio = None;
    result.manifest.link = LinkContext::default();
    result.manifest.host = mq_measure::context::HostContext::default();
    result
}

/// Checks the part of JSON Schema that our schema uses; each problem is a line with its place.
struct Checker {
    root: Value,
    problems: Vec<String>,
    /// The definitions and the properties of each that were seen in a value.
    seen: BTreeSet<(String, String)>,
}

impl Checker {
    fn check(value: &Value) -> Self {
        let root = schema();
        let mut checker = Self {
            root: root.clone(),
            problems: Vec::new(),
            seen: BTreeSet::new(),
        };
        checker.at(&root, "", value, "$");
        checker
    }

    fn at(&mut self, schema: &Value, definition: &str, value: &Value, place: &str) {
        for (key, rule) in schema.as_object().expect("a schema is an object") {
            let holds = match key.as_str() {
                "$ref" => {
                    let name = rule
                        .as_str()
                        .unwrap()
                        .strip_prefix("#/$defs/")
                        .unwrap()
                        .to_owned();
                    let target = self.root["$defs"][&name].clone();
                    assert!(target.is_object(), "no definition {name}");
                    self.at(&target, &name, value, place);
                    true
                }
                "type" => match rule {
                    Value::Array(types) => types.iter().any(|t| is_of(value, t)),
                    one => is_of(value, one),
                },
                "minimum" => value.is_null() || value.as_f64() >= rule.as_f64(),
                "const" => value == rule,
                "enum" => rule.as_array().unwrap().contains(value),
                "anyOf" => self.any_of(rule.as_array().unwrap(), value, place),
                "required" => {
                    let names = rule.as_array().unwrap();
                    names
                        .iter()
                        .all(|name| value.get(name.as_str().unwrap()).is_some())
                }
                "properties" => {
                    for (name, schema) in rule.as_object().unwrap() {
                        if let Some(member) = value.get(name) {
                            self.seen.insert((definition.to_owned(), name.clone()));
                            self.at(schema, definition, member, &format!("{place}.{name}"));
                        }
                    }
                    true
                }
                "additionalProperties" => self.additional(schema, rule, value, place),
                "items" => {
                    for (i, item) in value.as_array().into_iter().flatten().enumerate() {
                        self.at(rule, definition, item, &format!("{place}[{i}]"));
                    }
                    true
                }
                "$schema" | "$defs" | "title" | "description" | "format" => true,
                other => panic!("this checker does not know {other:?}"),
            };
            if !holds {
                self.problems
                    .push(format!("{place}: {key} {rule} does not hold for {value}"));
            }
        }
    }

    fn any_of(&mut self, choices: &[Value], value: &Value, place: &str) -> bool {
        choices.iter().any(|choice| {
            let mut trial = Self {
                root: self.root.clone(),
                problems: Vec::new(),
                seen: BTreeSet::new(),
            };
            trial.at(choice, "", value, place);
            self.seen.append(&mut trial.seen);
            trial.problems.is_empty()
        })
    }

    fn additional(&mut self, schema: &Value, rule: &Value, value: &Value, place: &str) -> bool {
        let known = |name: &str| schema["properties"].get(name).is_some();
        let members = value.as_object().into_iter().flatten();
        let mut others = members.filter(|(name, _)| !known(name)).peekable();
        if *rule == Value::Bool(false) {
            return others.peek().is_none();
        }
        for (name, member) in others {
            self.at(rule, "", member, &format!("{place}.{name}"));
        }
        true
    }
}

fn is_of(value: &Value, name: &Value) -> bool {
    match name.as_str().expect("a type is a string") {
        "null" => value.is_null(),
        "string" => value.is_string(),
        "integer" => value.is_u64() || value.is_i64(),
        "number" => value.is_number(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("type {other:?}"),
    }
}

#[test]
fn results_fit_the_schema() {
    for result in [full(), empty()] {
        let checker = Checker::check(&serde_json::to_value(&result).unwrap());
        assert_eq!(checker.problems, [""; 0]);
    }
}

#[test]
fn everything_in_the_schema_is_in_a_full_result() {
    let schema = schema();
    let seen = Checker::check(&serde_json::to_value(full()).unwrap()).seen;
    let definitions = schema["$defs"].as_object().unwrap().iter();
    for (name, definition) in definitions
        .map(|(n, d)| (n.as_str(), d))
        .chain([("", &schema)])
    {
        for property in definition["properties"].as_object().unwrap().keys() {
            let pair = (name.to_owned(), property.clone());
            assert!(seen.contains(&pair), "no value has {name}.{property}");
        }
    }
}

#[test]
fn a_missing_or_added_field_is_noticed() {
    let whole = serde_json::to_value(full()).unwrap();
    for pointer in [
        "",
        "/manifest/host",
        "/transports/0",
        "/transports/0/latency",
    ] {
        for name in whole.pointer(pointer).unwrap().as_object().unwrap().keys() {
            let mut less = whole.clone();
            less.pointer_mut(pointer)
                .unwrap()
                .as_object_mut()
                .unwrap()
                .remove(name);
            assert!(
                !Checker::check(&less).problems.is_empty(),
                "without {pointer}/{name}"
            );
        }
        let mut more = whole.clone();
        more.pointer_mut(pointer).unwrap()["surplus"] = json!(1);
        assert!(
            !Checker::check(&more).problems.is_empty(),
            "surplus in {pointer}"
        );
        assert!(serde_json::from_value::<RunResult>(more).is_err());
    }
}

#[test]
fn every_warning_kind_is_in_the_schema() {
    // serde's error for an unknown kind lists all kinds.
    let error = serde_json::from_value::<Warning>(json!({"kind": "?"}))
        .unwrap_err()
        .to_string();
    let kinds: BTreeSet<String> = error
        .split('`')
        .skip(3)
        .step_by(2)
        .map(str::to_owned)
        .collect();
    assert!(kinds.len() > 10, "{error}");
    let schema = schema();
    let listed = schema["$defs"]["warning"]["properties"]["kind"]["enum"]
        .as_array()
        .unwrap();
    let listed: BTreeSet<String> = listed
        .iter()
        .map(|kind| kind.as_str().unwrap().to_owned())
        .collect();
    assert_eq!(kinds, listed);
}

#[test]
fn results_round_trip_through_a_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("result.json");
    for result in [full(), empty()] {
        result.save(&path).unwrap();
        assert_eq!(RunResult::load(&path).unwrap(), result);
    }
}

#[test]
fn other_schemas_are_refused_by_name() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("r.json");
    let error = |text: &str| {
        std::fs::write(&path, text).unwrap();
        RunResult::load(&path).unwrap_err().to_string()
    };
    let file = path.display();
    assert_eq!(
        error(r#"{"schema": "mq-compare/9"}"#),
        format!("{file}: expected schema mq-compare/1, found mq-compare/9")
    );
    let unfinished = error("{");
    assert!(unfinished.starts_with(&format!("{file}: ")), "{unfinished}");
}
