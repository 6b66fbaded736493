//! Campaign files: factors, levels and the plot.

use std::{collections::BTreeMap, path::Path};

use anyhow::Context as _;
use serde::{Deserialize, Serialize};
use toml::{Spanned, Value};

use super::{
    cell::{Cell, shown},
    changes::{self, Changes},
    claims,
    record::{self, METRICS},
};
use crate::{hosts::file::line, nearest};

/// A campaign: its cells, how often each is run, and the plot of its report.
#[derive(Clone, Debug)]
pub(crate) struct Campaign {
    /// The file's name without its ending, with its changes: `s22-fig4`, `s22-fig4@repeat=probe`.
    pub(crate) name: String,
    pub(crate) title: String,
    /// The paper's figure, such as `S22 Fig. 4`.
    pub(crate) source: String,
    /// Every combination of levels, with the levels that make it, in the order of the file.
    pub(crate) cells: Vec<Combination>,
    pub(crate) repetitions: u32,
    pub(crate) seed: u64,
    pub(crate) plot: Plot,
    /// The files of `profiles/claims` that the campaign is judged against.
    pub(crate) claims: Vec<String>,
}

/// A cell with its levels.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Combination {
    /// Factor and level, as the file writes them.
    pub(crate) levels: BTreeMap<String, String>,
    pub(crate) cell: Cell,
}

/// How much of a campaign is run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Extent {
    /// The file with its `[quick]` changes: a look.
    Quick,
    /// The papers' own numbers.
    Full,
}

/// The plot of a campaign.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Plot {
    pub(crate) kind: PlotKind,
    /// The quantity of a run, see `Metric`.
    pub(crate) metric: String,
    /// The factor along the abscissa.
    pub(crate) x: String,
    /// The factor that tells lines or bars apart.
    pub(crate) series: String,
    /// The factor with a plot for each level, if there is one.
    pub(crate) facet: Option<String>,
    /// What boxes are of.
    #[serde(default)]
    pub(crate) boxes: BoxesOf,
}

/// What a box is of.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum BoxesOf {
    /// Runs, where a cell has enough of them.
    #[default]
    Runs,
    /// The messages of all runs.
    Messages,
}

/// The papers' forms.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum PlotKind {
    /// Bars with the mean and its interval, from the link's delay as a baseline.
    Bars,
    /// Lines with intervals.
    Lines,
    /// Boxes with whiskers at 1.5 times the box's height (S21).
    BoxTukey,
    /// Boxes with whiskers at the 5th and 95th percentile (S22).
    BoxPercentiles,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawFile {
    title: String,
    source: String,
    #[serde(default)]
    claims: Vec<String>,
    #[serde(default)]
    repetitions: Option<u32>,
    #[serde(default)]
    seed: Option<u64>,
    work: BTreeMap<Spanned<String>, Spanned<Value>>,
    factors: BTreeMap<Spanned<String>, Vec<Spanned<Value>>>,
    /// The levels of the factor [`VARIANT`].
    #[serde(default)]
    variants: Variants,
    /// Combinations that are left out.
    #[serde(default)]
    exclude: Vec<Spanned<Exclusion>>,
    #[serde(default)]
    quick: RawQuick,
    plot: Plot,
}

/// The factor whose levels each set several keys of the cell.
const VARIANT: &str = "variant";

/// The keys of a cell, by the variant's name.
type Variants = BTreeMap<String, BTreeMap<Spanned<String>, Spanned<Value>>>;

/// Factors and levels: a combination that has one of the levels of each factor is left out.
type Exclusion = BTreeMap<Spanned<String>, Excluded>;

/// A level, or several.
#[derive(Deserialize)]
#[serde(untagged)]
enum Excluded {
    Several(Vec<Value>),
    One(Value),
}

impl Excluded {
    fn levels(&self) -> &[Value] {
        match self {
            Self::Several(levels) => levels,
            Self::One(level) => std::slice::from_ref(level),
        }
    }
}

/// The changes for a quick run.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct RawQuick {
    repetitions: Option<u32>,
    work: BTreeMap<Spanned<String>, Spanned<Value>>,
    /// Fewer levels.
    factors: BTreeMap<Spanned<String>, Vec<Spanned<Value>>>,
}

impl Campaign {
    /// Reads a campaign file.
    ///
    /// # Errors
    /// One line that names the file, the line in it, the key, and what would be right.
    pub(crate) fn load(path: &Path, extent: Extent) -> anyhow::Result<Self> {
        let (path, name) = changes::file_and_name(path);
        let text = std::fs::read_to_string(&path)
            .with_context(|| format!("cannot read the campaign {}", path.display()))?;
        Self::parse(&name, &text, extent).map_err(|wrong| {
            let file = path.display();
            match wrong.at {
                Some(at) => anyhow::anyhow!("{file}:{}: {}", line(&text, at), wrong.problem),
                None => anyhow::anyhow!("{file}: {}", wrong.problem),
            }
        })
    }

    fn parse(name: &str, text: &str, extent: Extent) -> Result<Self, Wrong> {
        let raw: RawFile = toml::from_str(text).map_err(|error| {
            let at = error.span().map(|span| span.start);
            Wrong::at(at, error.message().replace('\n', " "))
        })?;
        let (mut work, mut factors) = (raw.work, raw.factors);
        check_exclusions(&raw.exclude, &factors, &raw.quick.factors)?;
        let mut repetitions = raw.repetitions.unwrap_or(1);
        if extent == Extent::Quick {
            repetitions = raw.quick.repetitions.unwrap_or(1);
            replace(&mut work, raw.quick.work);
            replace(&mut factors, raw.quick.factors);
        }
        let changes = Changes::of(name).map_err(|problem| Wrong::at(None, problem))?;
        if let Some(key) = changes
            .keys()
            .find(|key| factors.keys().any(|factor| factor.get_ref() == key))
        {
            let problem = format!("@{key}: it is a factor of this file, and has its levels");
            return Err(Wrong::at(None, problem));
        }
        let cells = combinations(&work, &factors, &raw.variants, &raw.exclude, &changes)?;
        let Plot {
            x, series, facet, ..
        } = &raw.plot;
        for factor in [x, series].into_iter().chain(facet) {
            if !factors.keys().any(|known| known.get_ref() == factor) {
                let problem = format!("the plot wants the factor `{factor}`, and there is none");
                return Err(Wrong::at(None, problem));
            }
        }
        let metric = &raw.plot.metric;
        if !record::is_metric(metric) {
            let known = METRICS.iter().map(|(name, ..)| *name);
            let (_, name) = metric.split_once(':').unwrap_or(("", metric));
            let problem = nearest::none("metric", name, known);
            return Err(Wrong::at(None, format!("the plot: {problem}")));
        }
        for paper in &raw.claims {
            if !claims::papers().any(|known| known == paper) {
                let problem = nearest::none("file of claims", paper, claims::papers());
                return Err(Wrong::at(None, format!("claims: {problem}")));
            }
        }
        Ok(Self {
            name: name.to_owned(),
            title: if changes.is_empty() {
                raw.title
            } else {
                let (_, changes) = changes::base_and_changes(name);
                format!("{} ({changes})", raw.title)
            },
            source: raw.source,
            cells,
            repetitions,
            seed: raw.seed.unwrap_or(1),
            plot: raw.plot,
            claims: raw.claims,
        })
    }
}

/// The mistake in a file, and its byte.
#[derive(Debug)]
struct Wrong {
    at: Option<usize>,
    problem: String,
}

impl Wrong {
    fn at(at: impl Into<Option<usize>>, problem: String) -> Self {
        let at = at.into();
        Self { at, problem }
    }
}

/// Keys are equal if their texts are, at any place.
fn replace<V>(all: &mut BTreeMap<Spanned<String>, V>, by: BTreeMap<Spanned<String>, V>) {
    for (key, value) in by {
        all.retain(|known, _| known.get_ref() != key.get_ref());
        all.insert(key, value);
    }
}

/// Checks that exclusions name factors and levels that the file has in one of the extents: a misspelt exclusion
/// would exclude nothing.
fn check_exclusions(
    exclusions: &[Spanned<Exclusion>],
    factors: &BTreeMap<Spanned<String>, Vec<Spanned<Value>>>,
    quick: &BTreeMap<Spanned<String>, Vec<Spanned<Value>>>,
) -> Result<(), Wrong> {
    for exclusion in exclusions {
        if exclusion.get_ref().is_empty() {
            let problem = "exclude: name at least one factor and its level".to_owned();
            return Err(Wrong::at(exclusion.span().start, problem));
        }
        for (factor, excluded) in exclusion.get_ref() {
            let at = factor.span().start;
            let factor = factor.get_ref();
            let mut known = factors.iter().chain(quick);
            if !known.any(|(known, _)| known.get_ref() == factor) {
                let problem = format!("exclude: there is no factor `{factor}`");
                return Err(Wrong::at(at, problem));
            }
            let known = factors.iter().chain(quick);
            let of_factor = known.filter(|(known, _)| known.get_ref() == factor);
            let levels: Vec<_> = of_factor
                .flat_map(|(_, levels)| levels.iter().map(|level| shown(level.get_ref())))
                .collect();
            for level in excluded.levels().iter().map(shown) {
                if !levels.contains(&level) {
                    let known = levels.join(", ");
                    let problem =
                        format!("exclude: {factor} has no level `{level}`: it has {known}");
                    return Err(Wrong::at(at, problem));
                }
            }
        }
    }
    Ok(())
}

fn is_excluded(exclusions: &[Spanned<Exclusion>], names: &BTreeMap<String, String>) -> bool {
    exclusions.iter().any(|exclusion| {
        exclusion.get_ref().iter().all(|(factor, excluded)| {
            let level = names.get(factor.get_ref());
            level.is_some_and(|level| excluded.levels().iter().any(|one| shown(one) == *level))
        })
    })
}

/// Every combination of levels that is not excluded. The last factor changes fastest.
fn combinations(
    work: &BTreeMap<Spanned<String>, Spanned<Value>>,
    factors: &BTreeMap<Spanned<String>, Vec<Spanned<Value>>>,
    variants: &Variants,
    exclusions: &[Spanned<Exclusion>],
    changes: &Changes,
) -> Result<Vec<Combination>, Wrong> {
    let mut base = Cell::default();
    for (key, value) in work {
        set(&mut base, key, value)?;
    }
    let mut all = vec![(BTreeMap::new(), base)];
    for (key, levels) in factors {
        if levels.is_empty() {
            let problem = format!("the factor `{}` has no levels", key.get_ref());
            return Err(Wrong::at(key.span().start, problem));
        }
        let mut more = Vec::with_capacity(all.len() * levels.len());
        for (names, cell) in &all {
            for level in levels {
                let (mut names, mut cell) = (names.clone(), cell.clone());
                if key.get_ref() == VARIANT {
                    set_variant(&mut cell, variants, level)?;
                } else {
                    set(&mut cell, key, level)?;
                }
                names.insert(key.get_ref().clone(), shown(level.get_ref()));
                more.push((names, cell));
            }
        }
        all = more;
    }
    all.retain(|(names, _)| !is_excluded(exclusions, names));
    if all.is_empty() {
        let at = exclusions.first().map(|exclusion| exclusion.span().start);
        return Err(Wrong::at(at, "exclude: nothing is left".to_owned()));
    }
    all.into_iter()
        .map(|(levels, mut cell)| {
            changes
                .apply(&mut cell)
                .map_err(|problem| Wrong::at(None, problem))?;
            if let Some((key, problem)) = cell.contradiction() {
                let places = work.keys().chain(factors.keys());
                let place = places.into_iter().find(|known| known.get_ref() == key);
                let at = place.map(|key| key.span().start);
                return Err(Wrong::at(at, format!("{key}: {problem}")));
            }
            Ok(Combination { levels, cell })
        })
        .collect()
}

fn set(cell: &mut Cell, key: &Spanned<String>, value: &Spanned<Value>) -> Result<(), Wrong> {
    let set = cell.set(key.get_ref(), value.get_ref());
    set.map_err(|problem| {
        let problem = format!("{}: {problem}", key.get_ref());
        Wrong::at(value.span().start, problem)
    })
}

fn set_variant(cell: &mut Cell, variants: &Variants, level: &Spanned<Value>) -> Result<(), Wrong> {
    let name = shown(level.get_ref());
    let Some(keys) = variants.get(&name) else {
        let known: Vec<_> = variants.keys().map(String::as_str).collect();
        let problem = format!(
            "there is no [variants.\"{name}\"]: there are {}",
            known.join(", ")
        );
        return Err(Wrong::at(level.span().start, problem));
    };
    for (key, value) in keys {
        set(cell, key, value)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::campaign::cell::Tickets;

    #[test]
    fn a_variant_sets_several_keys() {
        let file = r#"
title = "t"
source = "s"
[work]
pattern = "periodic"
link = "s22/wifi"
[variants."TLS tuned"]
transport = "tls"
tcp_rto_min = "25ms"
[variants.repeated]
transport = "quic"
repeat = "3ms"
[factors]
loss = ["5%"]
variant = ["TLS tuned", "repeated"]
[plot]
kind = "lines"
metric = "latency_mean"
x = "loss"
series = "variant"
"#;
        let campaign = Campaign::parse("c", file, Extent::Full).unwrap();
        let [tuned, repeated] = &campaign.cells[..] else {
            panic!("{:?}", campaign.cells);
        };
        assert_eq!(tuned.levels["variant"], "TLS tuned");
        assert_eq!(tuned.cell.tcp_rto_min_ns, Some(25_000_000));
        assert_eq!(repeated.cell.repeat, "3ms");
        let wrong = file.replace("\"TLS tuned\", ", "\"tuned\", ");
        let wrong = Campaign::parse("c", &wrong, Extent::Full).unwrap_err();
        assert_eq!(
            wrong.problem,
            "there is no [variants.\"tuned\"]: there are TLS tuned, repeated"
        );
    }

    #[test]
    fn changes_concern_the_cells_of_their_transport_alone() {
        let file = r#"
title = "t"
source = "s"
work.link = "s22/wifi"
factors.loss = ["5%"]
factors.transport = ["tls", "quic"]
plot = { kind = "lines", metric = "latency_mean", x = "loss", series = "transport" }
"#;
        let parse = |name: &str| Campaign::parse(name, file, Extent::Full);
        let (plain, changed) = (
            parse("c").unwrap(),
            parse("c@repeat=probe,tcp_thin=true,size=200").unwrap(),
        );
        assert_eq!(changed.title, "t (repeat=probe,tcp_thin=true,size=200)");
        let [tls, quic] = [0, 1].map(|at: usize| &changed.cells[at].cell);
        assert_eq!(
            (&tls.repeat[..], tls.tcp_thin, tls.size),
            ("off", true, 200)
        );
        assert_eq!(
            (&quic.repeat[..], quic.tcp_thin, quic.size),
            ("probe", false, 200)
        );
        let probed = parse("c@repeat=probe").unwrap();
        assert_eq!(probed.cells[0], plain.cells[0]);
        for (name, says) in [
            ("c@repeat", "a change is KEY=VALUE"),
            ("c@repeat=now", "@repeat: repeat cannot be `now`"),
            ("c@loss=1%", "@loss: it is a factor of this file"),
            ("c@link=s22/cellular", "a change is KEY=VALUE"),
            ("c@reapet=off", "@reapet: there is no key"),
        ] {
            let problem = parse(name).unwrap_err().problem;
            assert!(problem.contains(says), "{name}: {problem}");
        }
    }

    const STORM: &str = r#"
title = "t"
source = "s"
[work]
messages = 10000
resumption = "resumed"
[factors]
pattern = ["storm"]
transport = ["tls", "quic"]
tickets = ["kept", "lost"]
[plot]
kind = "bars"
metric = "back_99"
x = "tickets"
series = "transport"
"#;

    #[test]
    fn a_storm_keeps_or_loses_tickets_and_takes_no_link() {
        let campaign = Campaign::parse("storm", STORM, Extent::Full).unwrap();
        let levels: Vec<_> = campaign.cells.iter().map(|one| one.cell.tickets).collect();
        assert_eq!(
            levels,
            [Tickets::Kept, Tickets::Kept, Tickets::Lost, Tickets::Lost]
        );
        let written = |cell: &Cell| serde_json::to_value(cell).unwrap();
        let has_tickets = |one: &Combination| written(&one.cell).get("tickets").is_some();
        // As records without the key were written.
        let has: Vec<_> = campaign.cells.iter().map(has_tickets).collect();
        assert_eq!(has, [false, false, true, true]);
        for one in &campaign.cells {
            let read: Cell = serde_json::from_value(written(&one.cell)).unwrap();
            assert_eq!(read, one.cell);
        }
        for (from, to, at, says) in [
            (
                "messages",
                "link = \"w20/wifi\"\nmessages",
                5,
                "link: a storm has no link",
            ),
            (
                "messages",
                "medium = \"s21/medium\"\nmessages",
                5,
                "medium: a storm has no link",
            ),
            (
                "messages",
                "loss = \"1%\"\nmessages",
                5,
                "loss: a storm has no link",
            ),
            (
                "messages",
                "topology = \"both\"\nmessages",
                5,
                "topology: a storm has no link",
            ),
            (
                "10000",
                "20001",
                5,
                "messages: a storm has 20000 devices at most",
            ),
            (
                "\"resumed\"",
                "\"full\"",
                10,
                "tickets: a full handshake uses no tickets",
            ),
            (
                "\"storm\"",
                "\"reconnect\"",
                10,
                "tickets: this pattern restarts no broker",
            ),
            ("\"lost\"", "\"sold\"", 10, "unknown variant `sold`"),
            ("\"quic\"", "\"tcp\"", 6, "plain TCP has no sessions"),
        ] {
            let text = STORM.replacen(from, to, 1);
            assert_ne!(text, STORM, "{from}");
            let wrong = Campaign::parse("storm", &text, Extent::Full).unwrap_err();
            assert!(wrong.problem.contains(says), "{to}: {}", wrong.problem);
            let found = wrong.at.map(|at| line(&text, at));
            assert_eq!(found, Some(at), "{to}: {}", wrong.problem);
        }
    }

    const FILE: &str = r#"
title = "Mean delay over loss"
source = "S22 Fig. 4"
claims = ["s22"]
repetitions = 3
[work]
pattern = "periodic"
link = "s22/wifi"
[factors]
loss = ["0%", "5%"]
transport = ["tls", "quic"]
[quick]
repetitions = 1
work.messages = 50
work.interval = "100ms"
[plot]
kind = "bars"
metric = "latency_mean"
x = "loss"
series = "transport"
"#;

    #[test]
    fn every_combination_of_levels_is_a_cell() {
        let campaign = Campaign::parse("s22-fig4", FILE, Extent::Full).unwrap();
        let levels: Vec<_> = campaign
            .cells
            .iter()
            .map(|combination| {
                (
                    &combination.levels["loss"][..],
                    &combination.levels["transport"][..],
                )
            })
            .collect();
        assert_eq!(
            levels,
            [("0%", "tls"), ("0%", "quic"), ("5%", "tls"), ("5%", "quic")]
        );
        assert_eq!(campaign.repetitions, 3);
        let cell = &campaign.cells[3].cell;
        assert_eq!((cell.messages, cell.interval_ns), (1000, 1_000_000_000));
        assert_eq!(cell.links()[0].as_deref(), Some("s22/wifi@loss=5%"));
    }

    #[test]
    fn a_quick_run_changes_only_what_quick_names() {
        let campaign = Campaign::parse("s22-fig4", FILE, Extent::Quick).unwrap();
        assert_eq!((campaign.repetitions, campaign.cells.len()), (1, 4));
        let cell = &campaign.cells[0].cell;
        assert_eq!((cell.messages, cell.interval_ns), (50, 100_000_000));
    }

    #[test]
    fn excluded_combinations_are_left_out() {
        let with = |exclude: &str, extent| {
            let text = FILE.replace("[plot]", &format!("{exclude}\n[plot]"));
            Campaign::parse("x", &text, extent)
        };
        let levels = |campaign: Campaign| -> Vec<String> {
            let cells = campaign.cells.iter();
            cells
                .map(|one| format!("{} {}", one.levels["loss"], one.levels["transport"]))
                .collect()
        };
        let one = "[[exclude]]\nloss = \"5%\"\ntransport = \"tls\"";
        for extent in [Extent::Full, Extent::Quick] {
            let left = levels(with(one, extent).unwrap());
            assert_eq!(left, ["0% tls", "0% quic", "5% quic"]);
        }
        let two = "[[exclude]]\ntransport = \"tls\"\n[[exclude]]\nloss = [\"5%\"]";
        assert_eq!(levels(with(two, Extent::Full).unwrap()), ["0% quic"]);
        // A contradiction is allowed if it is excluded.
        let resumed = FILE
            .replace("pattern = \"periodic\"", "pattern = \"connect\"")
            .replace(
                "[\"tls\", \"quic\"]",
                "[\"tcp\", \"quic\"]\nresumption = [\"full\", \"0-rtt\"]",
            );
        assert!(Campaign::parse("x", &resumed, Extent::Full).is_err());
        let left_out = "[[exclude]]\ntransport = \"tcp\"\nresumption = \"0-rtt\"\n[plot]";
        let resumed = resumed.replace("[plot]", left_out);
        let campaign = Campaign::parse("x", &resumed, Extent::Full).unwrap();
        assert_eq!(campaign.cells.len(), 2 * 3);

        let all = "[[exclude]]\nloss = [\"0%\", \"5%\"]";
        for (exclude, says) in [
            ("[[exclude]]\nlos = \"5%\"", "no factor `los`"),
            ("[[exclude]]\nlink = \"s22/wifi\"", "no factor `link`"),
            ("[[exclude]]\nloss = \"6%\"", "no level `6%`: it has 0%, 5%"),
            ("[[exclude]]", "at least one factor"),
            (all, "nothing is left"),
        ] {
            let wrong = with(exclude, Extent::Full).unwrap_err();
            assert!(wrong.problem.contains(says), "{exclude}: {}", wrong.problem);
            assert!(wrong.at.is_some(), "{exclude}");
        }
    }

    #[test]
    fn streams_are_for_quic_and_those_of_the_broker_for_mqtt_5() {
        let with = |work: &str, transports: &str| {
            let text = FILE
                .replace("[factors]", &format!("{work}\n[factors]"))
                .replace("[\"tls\", \"quic\"]", transports);
            Campaign::parse("x", &text, Extent::Full)
        };
        let campaign = with("deliveries = \"per-topic:63\"\nmqtt = \"5\"", "[\"quic\"]").unwrap();
        let cell = &campaign.cells[0].cell;
        assert_eq!(
            (&cell.streams[..], &cell.deliveries[..]),
            ("control", "per-topic")
        );
        let written = |campaign: Campaign| serde_json::to_value(&campaign.cells[0].cell).unwrap();
        assert!(written(campaign).get("deliveries").is_some());
        // As records without the key were written.
        let without = with("streams = \"auto\"", "[\"quic\"]").unwrap();
        assert!(written(without).get("deliveries").is_none());
        for (work, transports, says) in [
            (
                "deliveries = \"auto\"",
                "[\"tls\"]",
                "deliveries: only QUIC has them",
            ),
            (
                "deliveries = \"auto\"",
                "[\"quic\"]",
                "deliveries: they are for MQTT 5",
            ),
            (
                "deliveries = \"by-priority\"",
                "[\"quic\"]",
                "it cannot be `by-priority`: use one of control",
            ),
        ] {
            let wrong = with(work, transports).unwrap_err();
            assert!(wrong.problem.contains(says), "{work}: {}", wrong.problem);
        }
    }

    #[test]
    fn a_quantity_that_nobody_measures_and_claims_of_nobody_are_refused() {
        for (from, to, says) in [
            (
                "\"latency_mean\"",
                "\"latency_maen\"",
                "did you mean `latency_mean`?",
            ),
            (
                "\"latency_mean\"",
                "\"xi_w20:dleta\"",
                "no metric `dleta`: did you mean `delta`?",
            ),
            ("\"latency_mean\"", "\"xi_w21:delta\"", "no metric"),
            (
                "[\"s22\"]",
                "[\"s23\"]",
                "no file of claims `s23`: did you mean `s22`?",
            ),
        ] {
            let wrong = Campaign::parse("x", &FILE.replace(from, to), Extent::Full).unwrap_err();
            assert!(wrong.problem.contains(says), "{}", wrong.problem);
        }
        let ratio = FILE.replace("\"latency_mean\"", "\"xi_s21:latency_mean\"");
        assert!(Campaign::parse("x", &ratio, Extent::Full).is_ok());
    }

    #[test]
    fn mistakes_name_the_line_the_key_and_what_is_right() {
        for (from, to, at, says) in [
            (
                "link = ",
                "lnik = ",
                8,
                "there is no key `lnik`: did you mean `link`?",
            ),
            ("s22/wifi", "s22/wlan", 8, "s22/wifi"),
            (
                "\"tls\", ",
                "\"udp\", ",
                11,
                "transport: unknown variant `udp`",
            ),
            ("\"5%\"]", "\"5\"]", 10, "loss: `5` is no probability"),
            ("loss = [\"0%\", \"5%\"]", "loss = []", 10, "no levels"),
            ("link = \"s22/wifi\"", "stations = 3", 8, "only a medium"),
            (
                "link = \"s22/wifi\"",
                "link = \"s22/wifi\"\ntopics = 257",
                9,
                "topics: 257 is not within 1 and 256",
            ),
            (
                "link = \"s22/wifi\"",
                "interval = \"fast\"",
                8,
                "interval: a time is",
            ),
            (
                "link = \"s22/wifi\"",
                "link = \"s22/wifi\"\ninterval = \"50us\"",
                9,
                "the link carries",
            ),
            (
                "link = \"s22/wifi\"",
                "link = \"s22/wifi\"\nresumption = \"0-rtt\"",
                9,
                "connects once",
            ),
            (
                "link = \"s22/wifi\"",
                "link = \"s22/wifi\"\non_handover = \"reconnect\"",
                9,
                "there is no handover",
            ),
            (
                "link = \"s22/wifi\"",
                "link = \"s22/wifi\"\nhandover = \"dl\"\ntopology = \"both\"",
                9,
                "the topology is `publisher`",
            ),
            (
                "link = \"s22/wifi\"",
                "keep_alive = \"1500ms\"",
                8,
                "whole seconds",
            ),
            ("title", "titel", 2, "titel"),
        ] {
            let text = FILE.replacen(from, to, 1);
            assert_ne!(text, FILE, "{from}");
            let wrong = Campaign::parse("x", &text, Extent::Full).unwrap_err();
            assert_eq!(
                wrong.at.map(|at| line(&text, at)),
                Some(at),
                "{to}: {}",
                wrong.problem
            );
            assert!(wrong.problem.contains(says), "{to}: {}", wrong.problem);
            assert_eq!(wrong.problem.lines().count(), 1, "{}", wrong.problem);
        }
        let text = FILE.replace("x = \"loss\"", "x = \"rate\"");
        let wrong = Campaign::parse("x", &text, Extent::Full).unwrap_err();
        assert!(
            wrong.problem.contains("the factor `rate`"),
            "{}",
            wrong.problem
        );
    }
}
