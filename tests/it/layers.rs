//! Dependencies that the crates of the MQTT half may have: the arrows of CONTRIBUTING.md.

use std::{collections::BTreeSet, path::Path};

/// A crate, and all of this workspace's crates that it may be built with.
const ARROWS: [(&str, &[&str]); 7] = [
    ("mq-codec", &[]),
    ("mq-lane", &[]),
    ("mq-proto", &["mq-codec", "mq-lane"]),
    ("mq-transport", &["mq-lane"]),
    ("mq-client", &["mq-codec", "mq-proto", "mq-transport"]),
    ("mq-broker", &["mq-codec", "mq-proto", "mq-transport"]),
    ("mq-relay", &["mq-codec", "mq-transport"]),
];

/// Lists the packages that a crate is built with; those of its tests and examples do not count.
fn dependencies(package: &str) -> BTreeSet<String> {
    let manifest =
        Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../crates/{package}/Cargo.toml"));
    let manifest: toml::Table =
        toml::from_str(&std::fs::read_to_string(manifest).unwrap()).unwrap();
    let own = manifest.get("dependencies").into_iter();
    let by_target = manifest
        .get("target")
        .and_then(|targets| targets.as_table())
        .into_iter()
        .flat_map(|targets| targets.values())
        .filter_map(|target| target.get("dependencies"));
    own.chain(by_target)
        .flat_map(|table| table.as_table().unwrap().keys().cloned())
        .collect()
}

#[test]
fn arrows_point_one_way() {
    for (package, allowed) in ARROWS {
        let of_ours = dependencies(package);
        let of_ours: Vec<_> = of_ours
            .iter()
            .filter(|name| name.starts_with("mq"))
            .collect();
        assert!(
            of_ours.iter().all(|name| allowed.contains(&name.as_str())),
            "{package} depends on {of_ours:?}, and may on {allowed:?}"
        );
    }
}

#[test]
fn codec_lanes_and_session_are_pure() {
    for package in ["mq-codec", "mq-lane", "mq-proto"] {
        let impure = ["tokio", "quinn", "rustls", "nix", "libc", "socket2", "rand"];
        let all = dependencies(package);
        assert!(
            !impure.iter().any(|name| all.contains(*name)),
            "{package}: {all:?}"
        );
    }
}
