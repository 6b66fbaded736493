//! mqbroker.toml(5), as `mqbroker manual` writes it, has every key that the program takes.

use std::fs;

use crate::program::mqbroker;

/// Returns the keys of a table, as `check-config` lists them where it meets one that it does not know.
fn keys(folder: &std::path::Path, table: &str) -> Vec<String> {
    let config = folder.join("broker.toml");
    fs::write(&config, format!("{table}\nno-such-key = 1\n")).unwrap();
    let output = mqbroker(&["check-config".as_ref(), config.as_os_str()], "");
    let said = String::from_utf8(output.stdout).unwrap();
    // Others follow, such as a key that has to be there.
    let mut lines = said.lines();
    let (_, expected) = lines.find_map(|line| line.split_once("expected ")).unwrap();
    let names = expected.split('`').skip(1).step_by(2);
    names.map(str::to_owned).collect()
}

#[test]
fn the_manual_page_has_every_key() {
    let folder = tempfile::tempdir().unwrap();
    let output = mqbroker(&["manual".as_ref(), folder.path().as_os_str()], "");
    assert!(output.status.success(), "{output:?}");
    let page = fs::read_to_string(folder.path().join("man/man5/mqbroker.toml.5")).unwrap();
    let has = |section: &str, key: &str| {
        let found = page.split("\n.SH ").find(|text| text.starts_with(section));
        let section = found.unwrap_or_else(|| panic!("no section {section}"));
        let entry = format!("\n.TP\n\\fB{key}\\fR: ");
        assert!(section.contains(&entry), "{key} is missing in {section}");
    };
    let tables = keys(folder.path(), "");
    assert!(tables.len() > 5, "{tables:?}");
    let within = ["auth.jwt", "bridge.topic"];
    for table in tables.iter().map(String::as_str).chain(within) {
        if table == "listen" {
            has("\"Without a table\"", table);
            continue;
        }
        // Of these there may be many.
        let (before, heading) = match table {
            "bridge" | "listener" => ("", format!("[[{table}]]")),
            "bridge.topic" => ("[[bridge]]\n", "[[bridge.topic]]".to_owned()),
            table => ("", format!("[{table}]")),
        };
        let own = keys(folder.path(), &format!("{before}{heading}"));
        assert!(!own.is_empty(), "{table}");
        for key in own {
            has(&heading, &key);
        }
    }
}
