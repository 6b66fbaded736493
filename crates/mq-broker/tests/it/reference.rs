//! `docs/reference/broker.md` has every key that the configuration has, and no others.

use std::collections::BTreeSet;

use mq_broker::Config;

const PAGE: &str = include_str!("../../../../docs/reference/broker.md");

/// Returns the keys of a table, as the parser lists them where it meets one that it does not know.
fn keys(table: &str) -> BTreeSet<String> {
    let text = format!("{table}\nno-such-key = 1\n");
    let error = toml::from_str::<Config>(&text).unwrap_err();
    let (_, expected) = error.message().split_once("expected ").unwrap();
    // Each stands between backticks.
    let names = expected.split('`').skip(1).step_by(2);
    names.map(str::to_owned).collect()
}

/// Returns the keys in the first column below a heading.
fn documented(heading: &str) -> BTreeSet<String> {
    let heading = format!("\n## {heading}\n");
    let (_, section) = PAGE.split_once(&heading).unwrap();
    let section = section.split("\n## ").next().unwrap();
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `"));
    rows.map(|row| row.split('`').next().unwrap().to_owned())
        .collect()
}

#[test]
fn the_reference_has_every_key() {
    let tables: BTreeSet<_> = keys("");
    let (with_table, without): (BTreeSet<_>, _) =
        tables.into_iter().partition(|key| key != "listen");
    assert_eq!(documented("Without a table"), without);
    for table in
        with_table
            .iter()
            .map(String::as_str)
            .chain(["auth.jwt", "bridge.queue", "bridge.topic"])
    {
        // Of bridges and listeners there may be many.
        let name = if ["bridge", "bridge.topic", "listener"].contains(&table) {
            format!("[[{table}]]")
        } else {
            format!("[{table}]")
        };
        let within = if table.starts_with("bridge.") {
            "[[bridge]]\n"
        } else {
            ""
        };
        let known = keys(&format!("{within}{name}"));
        assert_eq!(documented(&format!("`{name}`")), known, "{name}");
    }
}
