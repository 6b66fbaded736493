//! Suggestions for a misspelt name.

/// Likeness, from 0 to 1, above which one name is taken for a misspelling of the other.
const ALIKE: f64 = 0.7;

/// Returns the message for a name that is not known: "there is no metric `latncy_mean`: did you mean `latency_mean`?", or
/// without the question if no name is near.
pub(crate) fn unknown<'a>(
    what: &str,
    asked: &str,
    known: impl IntoIterator<Item = &'a str>,
) -> String {
    let near = known
        .into_iter()
        .map(|name| (strsim::jaro(asked, name), name));
    let nearest = near.max_by(|(a, _), (b, _)| a.total_cmp(b));
    match nearest {
        Some((alike, name)) if alike > ALIKE => {
            format!("there is no {what} `{asked}`: did you mean `{name}`?")
        }
        _ => format!("there is no {what} `{asked}`"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_near_is_asked_for_and_no_other() {
        let known = ["latency_mean", "latency_max", "delta"];
        let near = unknown("metric", "latncy_mean", known);
        assert_eq!(
            near,
            "there is no metric `latncy_mean`: did you mean `latency_mean`?"
        );
        assert_eq!(
            unknown("metric", "jitter", known),
            "there is no metric `jitter`"
        );
        assert_eq!(unknown("metric", "x", []), "there is no metric `x`");
    }
}
