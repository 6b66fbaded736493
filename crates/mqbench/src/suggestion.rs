//! Suggestions for a misspelt name.

/// Likeness, from 0 to 1, above which one name is taken for a misspelling of the other.
const ALIKE: f64 = 0.7;

/// Returns the message for a name that is not known: "unknown metric `latncy_mean`: did you mean `latency_mean`?", or with
/// all known names if none is near, so far as any is known.
pub(crate) fn unknown<'a>(
    what: &str,
    asked: &str,
    known: impl IntoIterator<Item = &'a str>,
) -> String {
    let known: Vec<_> = known.into_iter().collect();
    let near = known.iter().map(|name| (strsim::jaro(asked, name), name));
    let nearest = near.max_by(|(a, _), (b, _)| a.total_cmp(b));
    match nearest {
        Some((alike, name)) if alike > ALIKE => {
            format!("unknown {what} `{asked}`: did you mean `{name}`?")
        }
        None => format!("unknown {what} `{asked}`"),
        Some(_) => format!(
            "unknown {what} `{asked}`: expected one of {}",
            known.join(", ")
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_near_is_suggested_and_else_all_are_listed() {
        let known = ["latency_mean", "latency_max", "delta"];
        let near = unknown("metric", "latncy_mean", known);
        assert_eq!(
            near,
            "unknown metric `latncy_mean`: did you mean `latency_mean`?"
        );
        assert_eq!(
            unknown("metric", "jitter", known),
            "unknown metric `jitter`: expected one of latency_mean, latency_max, delta"
        );
        assert_eq!(unknown("metric", "x", []), "unknown metric `x`");
    }
}
