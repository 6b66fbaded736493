//! Tests of what ships: campaigns in `profiles/campaigns`, claims in `profiles/claims`.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use super::{
    cell_keys::KEYS,
    claims::{Claim, ClaimForm, parse},
    file::{Campaign, Extent},
    record::{METRICS, is_metric},
};

fn files(folder: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../profiles")
        .join(folder);
    let entries = std::fs::read_dir(&folder).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = paths
        .filter(|path| path.extension().is_some_and(|ending| ending == "toml"))
        .collect();
    files.sort();
    assert!(!files.is_empty(), "{}", folder.display());
    files
}

/// Loads the campaigns that ship, by their names.
pub(crate) fn campaigns(extent: Extent) -> BTreeMap<String, Campaign> {
    let load = |file: &PathBuf| Campaign::load(file, extent).unwrap_or_else(|e| panic!("{e:#}"));
    let all = files("campaigns");
    let all = all.iter().map(load);
    all.map(|campaign| (campaign.name.clone(), campaign))
        .collect()
}

fn levels(campaign: &Campaign, factor: &str) -> BTreeSet<String> {
    let cells = campaign.cells.iter();
    cells
        .filter_map(|one| one.levels.get(factor).cloned())
        .collect()
}

/// Returns `true` if the campaign has a cell with these levels.
fn has_cells(campaign: &Campaign, wanted: &BTreeMap<String, String>) -> bool {
    campaign.cells.iter().any(|one| {
        let mut wanted = wanted.iter();
        wanted.all(|(factor, level)| one.levels.get(factor) == Some(level))
    })
}

/// Returns the first and the last column below a heading of docs/reference/campaign.md.
fn documented(heading: &str) -> BTreeMap<String, String> {
    let page = include_str!("../../../../docs/reference/campaign.md");
    let (_, section) = page.split_once(&format!("\n## {heading}\n")).unwrap();
    let section = section.split("\n## ").next().unwrap();
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `"));
    let row = |row: &str| {
        let (key, rest) = row.split_once('`').unwrap();
        let last = rest.trim_end_matches(" |").rsplit(" | ").next().unwrap();
        (key.to_owned(), last.to_owned())
    };
    rows.map(row).collect()
}

#[test]
fn the_reference_has_every_key_and_every_metric() {
    let metrics = METRICS.iter();
    let metrics = metrics.map(|(name, _, what)| ((*name).to_owned(), (*what).to_owned()));
    assert_eq!(documented("Metrics"), metrics.collect());
    let keys: BTreeSet<_> = KEYS.split(", ").map(str::to_owned).collect();
    assert_eq!(
        documented("A cell").into_keys().collect::<BTreeSet<_>>(),
        keys
    );
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("some.toml");
    std::fs::write(&file, "no-such-key = 1\n").unwrap();
    let unknown = format!("{:#}", Campaign::load(&file, Extent::Full).unwrap_err());
    let (_, expected) = unknown.split_once("expected ").unwrap();
    let expected = expected.split('`').skip(1).step_by(2).map(str::to_owned);
    let expected: BTreeSet<_> = expected.collect();
    assert_eq!(
        documented("The file").into_keys().collect::<BTreeSet<_>>(),
        expected
    );
}

#[test]
fn campaigns_load_in_both_extents_and_name_what_there_is() {
    for extent in [Extent::Quick, Extent::Full] {
        for (name, campaign) in campaigns(extent) {
            let plot = &campaign.plot;
            assert!(is_metric(&plot.metric), "{name}: {}", plot.metric);
            assert!(!campaign.title.is_empty(), "{name}");
            assert!(!campaign.source.is_empty(), "{name}");
            for claims in &campaign.claims {
                let file = format!("claims/{claims}.toml");
                let known = files("claims");
                assert!(known.iter().any(|path| path.ends_with(&file)), "{name}");
            }
            // A mark in a plot is one cell; a ratio takes the cells of both transports.
            let drawn = [Some(&plot.x), Some(&plot.series), plot.facet.as_ref()];
            let mut drawn: Vec<_> = drawn.into_iter().flatten().collect();
            let transport = "transport".to_owned();
            if plot.metric.contains(':') {
                drawn.push(&transport);
            }
            let marks: BTreeSet<Vec<_>> = campaign
                .cells
                .iter()
                .map(|one| drawn.iter().map(|factor| &one.levels[*factor]).collect())
                .collect();
            assert_eq!(marks.len(), campaign.cells.len(), "{name}: plot");
        }
    }
}

#[test]
fn the_guide_lists_every_campaign() {
    let guide = include_str!("../../../../docs/guide/campaigns.md");
    for name in campaigns(Extent::Full).keys() {
        assert!(guide.contains(&format!("`{name}`")), "{name}");
    }
}

#[test]
fn a_quick_level_is_one_of_the_full_extent() {
    let full = campaigns(Extent::Full);
    for (name, quick) in campaigns(Extent::Quick) {
        for one in &quick.cells {
            assert!(has_cells(&full[&name], &one.levels), "{:?}", one.levels);
        }
    }
}

#[test]
fn the_documented_file_loads() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide/campaigns.md");
    let docs = std::fs::read_to_string(docs).unwrap();
    let example = docs.split("```toml\n").nth(1).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("example.toml");
    std::fs::write(&file, example.split("```").next().unwrap()).unwrap();
    for (extent, cells) in [(Extent::Full, 2 * 2 * 3), (Extent::Quick, 2 * 3)] {
        let campaign = Campaign::load(&file, extent).unwrap_or_else(|e| panic!("{e:#}"));
        assert_eq!(campaign.cells.len(), cells);
    }
}

/// Asserts that a claim has the fields of its form and no others.
fn check_form(claim: &Claim) {
    let has = [
        ("compare", claim.compare.is_some()),
        ("figure", claim.figure.is_some()),
        ("expected", claim.expected.is_some()),
        ("along", claim.along.is_some()),
        ("direction", claim.direction.is_some()),
    ];
    let has: Vec<_> = has
        .iter()
        .filter(|(_, has)| *has)
        .map(|(name, _)| *name)
        .collect();
    let right: &[&str] = match claim.form {
        ClaimForm::Relative | ClaimForm::Ratio if claim.expected.is_some() => {
            &["compare", "figure", "expected"]
        }
        ClaimForm::Relative | ClaimForm::Ratio => &["compare", "figure"],
        ClaimForm::Value if claim.expected.is_some() => &["figure", "expected"],
        ClaimForm::Value => &["figure"],
        ClaimForm::Order => &["compare", "expected"],
        ClaimForm::Trend => &["along", "direction"],
        ClaimForm::Differs => &["along"],
    };
    assert_eq!(has, right, "{}", claim.id);
    let metric = METRICS.iter().find(|(name, ..)| *name == claim.metric);
    let unit = match claim.form {
        ClaimForm::Value => metric.map(|(_, unit, _)| *unit),
        _ => Some(""),
    };
    assert_eq!(unit, Some(&claim.unit[..]), "{}: unit", claim.id);
}

/// Asserts that a claim names existing levels, and that they determine its cells.
fn check_levels(claim: &Claim, campaign: &Campaign) {
    assert!(is_metric(&claim.metric), "{}: {}", claim.id, claim.metric);
    let mut places = vec![claim.at.clone()];
    if let Some(compare) = &claim.compare {
        assert_ne!(compare.of, compare.with, "{}", claim.id);
        let levels = [&compare.of, &compare.with].map(|level| {
            let mut place = claim.at.clone();
            let before = place.insert(compare.factor.clone(), level.clone());
            assert_eq!(before, None, "{}", claim.id);
            place
        });
        places = levels.to_vec();
    }
    if let Some(along) = &claim.along {
        assert!(!claim.at.contains_key(along), "{}", claim.id);
        assert!(levels(campaign, along).len() > 1, "{}: {along}", claim.id);
    }
    for place in &places {
        assert!(has_cells(campaign, place), "{}: {place:?}", claim.id);
        // The levels select one cell, except for the factor of a trend and the transports of a ratio.
        let matching = campaign.cells.iter().filter(|one| {
            let mut place = place.iter();
            place.all(|(factor, level)| one.levels.get(factor) == Some(level))
        });
        let expected = claim.along.as_ref().map_or(1, |along| {
            let transports = 1 + usize::from(claim.metric.starts_with("xi"));
            levels(campaign, along).len() * transports
        });
        assert_eq!(matching.count(), expected, "{}: {place:?}", claim.id);
    }
}

#[test]
fn claims_are_of_campaigns_and_levels_that_there_are() {
    let campaigns = campaigns(Extent::Full);
    let mut ids = BTreeSet::new();
    let mut claimed = BTreeSet::new();
    for file in files("claims") {
        let text = std::fs::read_to_string(&file).unwrap();
        let name = file.display().to_string();
        let claims = parse(&name, &text).unwrap_or_else(|error| panic!("{error:#}"));
        let table: toml::Table = toml::from_str(&text).unwrap();
        for claim in table["claim"].as_array().unwrap() {
            assert!(claim.get("at").is_some(), "{name}: {claim:?}");
        }
        let paper = file.file_stem().unwrap().to_str().unwrap().to_owned();
        for claim in claims {
            assert!(
                claim.id.starts_with(&format!("{paper}-")),
                "{}: {paper}",
                claim.id
            );
            assert!(ids.insert(claim.id.clone()), "twice: {}", claim.id);
            assert!(!claim.source.is_empty() && !claim.says.is_empty());
            assert!(claim.note.as_ref().is_none_or(|note| !note.is_empty()));
            let campaign = campaigns
                .get(&claim.campaign)
                .unwrap_or_else(|| panic!("{}: no campaign {}", claim.id, claim.campaign));
            assert!(campaign.claims.contains(&paper), "{}", claim.id);
            check_form(&claim);
            check_levels(&claim, campaign);
            claimed.insert(claim.campaign.clone());
        }
    }
    for (name, campaign) in campaigns {
        assert_eq!(
            !campaign.claims.is_empty(),
            claimed.contains(&name),
            "{name}"
        );
    }
}
