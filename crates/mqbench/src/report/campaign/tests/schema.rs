//! Holds `docs/spec/report.schema.json` and the report together.

use serde_json::Value;

use super::fixture;
use crate::{
    campaign::claims,
    report::campaign::{
        build::report,
        model::{EstimatorPair, Estimators},
    },
};

/// Checks the part of JSON Schema that our schema uses; each problem is a line with its place.
struct Checker {
    root: Value,
    problems: Vec<String>,
}

impl Checker {
    fn check(value: &Value) -> Vec<String> {
        let text = include_str!("../../../../../../docs/spec/report.schema.json");
        let root: Value = serde_json::from_str(text).unwrap();
        let mut checker = Self {
            root: root.clone(),
            problems: Vec::new(),
        };
        checker.at(&root, value, "$");
        checker.problems
    }

    fn at(&mut self, schema: &Value, value: &Value, place: &str) {
        for (key, rule) in schema.as_object().unwrap() {
            let holds = match key.as_str() {
                "$ref" => {
                    let pointer = rule.as_str().unwrap().trim_start_matches('#');
                    let target = self.root.pointer(pointer).unwrap().clone();
                    self.at(&target, value, place);
                    true
                }
                "type" => match rule {
                    Value::Array(types) => types.iter().any(|one| is_of(value, one)),
                    one => is_of(value, one),
                },
                "minimum" => value.is_null() || value.as_f64() >= rule.as_f64(),
                "const" => value == rule,
                "enum" => rule.as_array().unwrap().contains(value),
                "anyOf" => rule.as_array().unwrap().iter().any(|choice| {
                    let mut trial = Self {
                        root: self.root.clone(),
                        problems: Vec::new(),
                    };
                    trial.at(choice, value, place);
                    trial.problems.is_empty()
                }),
                "required" => {
                    let mut names = rule.as_array().unwrap().iter();
                    names.all(|name| value.get(name.as_str().unwrap()).is_some())
                }
                "properties" => {
                    for (name, schema) in rule.as_object().unwrap() {
                        if let Some(member) = value.get(name) {
                            self.at(schema, member, &format!("{place}.{name}"));
                        }
                    }
                    true
                }
                "additionalProperties" => self.additional(schema, rule, value, place),
                "items" => {
                    for (at, item) in value.as_array().into_iter().flatten().enumerate() {
                        self.at(rule, item, &format!("{place}[{at}]"));
                    }
                    true
                }
                "$schema" | "$defs" | "title" | "description" | "format" => true,
                other => panic!("this checker does not know {other:?}"),
            };
            if !holds {
                let found: String = value.to_string().chars().take(200).collect();
                let problem = format!("{place}: {key} {rule} does not hold for {found}");
                self.problems.push(problem);
            }
        }
    }

    fn additional(&mut self, schema: &Value, rule: &Value, value: &Value, place: &str) -> bool {
        let members = value.as_object().into_iter().flatten();
        let mut others = members
            .filter(|(name, _)| schema["properties"].get(name).is_none())
            .peekable();
        if *rule == Value::Bool(false) {
            return others.peek().is_none();
        }
        for (name, member) in others {
            self.at(rule, member, &format!("{place}.{name}"));
        }
        true
    }
}

fn is_of(value: &Value, name: &Value) -> bool {
    match name.as_str().unwrap() {
        "null" => value.is_null(),
        "string" => value.is_string(),
        "integer" => value.is_u64() || value.is_i64(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("type {other:?}"),
    }
}

fn whole() -> Value {
    let folder = tempfile::tempdir().unwrap();
    let set = fixture::set(folder.path());
    let mut claims = claims::shipped().unwrap();
    // The first one of these is measured.
    claims.retain(|claim| claim.id.starts_with("s22-wifi-5"));
    let mut report = report(&set.head, &set.campaigns, &set.records, &claims);
    // No run of the fixture is of DL.
    report.campaigns[0].estimators = Some(Estimators {
        conclusion: "none".to_owned(),
        pairs: vec![EstimatorPair {
            says: "a claim".to_owned(),
            last: "a-last".to_owned(),
            matched: "a-seq".to_owned(),
            turned: false,
        }],
    });
    serde_json::to_value(&report).unwrap()
}

#[test]
fn reports_fit_the_schema() {
    assert_eq!(Checker::check(&whole()), [""; 0]);
}

#[test]
fn a_missing_or_added_field_is_noticed() {
    let whole = whole();
    for pointer in [
        "",
        "/papers/0",
        "/claims/0",
        "/claims/0/claim",
        "/claims/0/measured",
        "/campaigns/0",
        "/campaigns/0/plot",
        "/campaigns/0/runs",
        "/campaigns/0/panels/0",
        "/campaigns/0/panels/0/series/0",
        "/campaigns/0/panels/0/series/0/points/0",
        "/campaigns/0/panels/0/series/0/points/0/box",
        "/campaigns/0/panels/0/tests/0",
        "/campaigns/0/panels/0/tests/0/kruskal_wallis",
        "/campaigns/0/panels/0/tests/0/pairs/0",
        "/campaigns/0/panels/0/distributions/0",
        "/campaigns/0/links/0",
        "/campaigns/0/links/0/configured",
        "/campaigns/0/links/0/measured",
        "/campaigns/0/warnings/0",
        "/campaigns/0/warnings/0/found/0",
        "/campaigns/0/repeated/0",
        "/campaigns/0/estimators",
        "/campaigns/0/estimators/pairs/0",
    ] {
        let part = whole.pointer(pointer).expect(pointer);
        for name in part.as_object().expect(pointer).keys() {
            let mut less = whole.clone();
            let part = less.pointer_mut(pointer).and_then(Value::as_object_mut);
            part.unwrap().remove(name);
            assert!(!Checker::check(&less).is_empty(), "no {pointer}/{name}");
        }
        let mut more = whole.clone();
        more.pointer_mut(pointer).unwrap()["surplus"] = 1.into();
        assert!(!Checker::check(&more).is_empty(), "surplus in {pointer}");
    }
}
