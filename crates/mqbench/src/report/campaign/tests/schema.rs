//! Holds `docs/spec/report.schema.json` and the report together.

use mq_measure::stats;
use mq_testkit::schema_problems;
use serde_json::Value;

use super::fixture;
use crate::{
    campaign::claims,
    report::campaign::{
        assemble::report,
        model::{ClaimTest, EstimatorPair, Estimators},
    },
};

/// Returns the places where a report does not fit its schema.
fn problems(report: &Value) -> Vec<String> {
    let text = include_str!("../../../../../../docs/spec/report.schema.json");
    let schema = serde_json::from_str(text).unwrap();
    schema_problems(&schema, "", report)
}

fn whole() -> Value {
    let folder = tempfile::tempdir().unwrap();
    let set = fixture::set(folder.path());
    let mut claims = claims::shipped().unwrap();
    // The first one of these is measured.
    claims.retain(|claim| claim.id.starts_with("s22-wifi-5"));
    let mut report = report(&set.head, &set.campaigns, &set.records, &claims);
    // No run of the fixture is of DL, which alone has tests and two estimators.
    let kruskal_wallis = stats::kruskal_wallis(&[&[1.0, 2.0], &[3.0, 4.0]]).unwrap();
    report.claims[0].test = Some(ClaimTest {
        kruskal_wallis,
        holm_p: kruskal_wallis.p,
    });
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

/// Leaves the first element of each array, whose fields are those of the others.
fn leave_first(value: &mut Value) {
    match value {
        Value::Array(elements) => {
            elements.truncate(1);
            elements.iter_mut().for_each(leave_first);
        }
        Value::Object(fields) => fields.values_mut().for_each(leave_first),
        _ => {}
    }
}

#[test]
fn reports_fit_the_schema() {
    assert_eq!(problems(&whole()), [""; 0]);
}

#[test]
fn a_missing_or_added_field_is_noticed() {
    let mut whole = whole();
    leave_first(&mut whole);
    for pointer in [
        "",
        "/papers/0",
        "/claims/0",
        "/claims/0/claim",
        "/claims/0/measured",
        "/claims/0/test",
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
            assert!(!problems(&less).is_empty(), "no {pointer}/{name}");
        }
        let mut more = whole.clone();
        more.pointer_mut(pointer).unwrap()["surplus"] = 1.into();
        assert!(!problems(&more).is_empty(), "surplus in {pointer}");
    }
}
