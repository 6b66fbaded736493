//! The combinations of a campaign's levels, each of which is a cell; and those that a file leaves out.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use toml::{Spanned, Value};

use super::mistake::Mistake;
use crate::{
    campaign::{cell::Cell, cell_keys::toml_text, changes::Changes},
    suggestion,
};

/// A cell with its levels.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Combination {
    /// Factor and level, as the file writes them.
    pub(crate) levels: BTreeMap<String, String>,
    pub(crate) cell: Cell,
}

/// The factor whose levels each set several keys of the cell.
const VARIANT: &str = "variant";

/// The keys of a cell, by the variant's name.
pub(super) type Variants = BTreeMap<String, BTreeMap<Spanned<String>, Spanned<Value>>>;

/// Factors and levels of an exclusion: a combination that has one of the levels of each factor is left out.
pub(super) type Exclusion = BTreeMap<Spanned<String>, Excluded>;

/// A level, or several.
#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum Excluded {
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

/// Checks that exclusions name factors and levels that the file has in one of the extents: a misspelt exclusion
/// would exclude nothing.
pub(super) fn check_exclusions(
    exclusions: &[Spanned<Exclusion>],
    factors: &BTreeMap<Spanned<String>, Vec<Spanned<Value>>>,
    quick: &BTreeMap<Spanned<String>, Vec<Spanned<Value>>>,
) -> Result<(), Mistake> {
    for exclusion in exclusions {
        if exclusion.get_ref().is_empty() {
            let problem = "exclude: name at least one factor and its level".to_owned();
            return Err(Mistake::at(exclusion.span().start, problem));
        }
        for (factor, excluded) in exclusion.get_ref() {
            let at = factor.span().start;
            let factor = factor.get_ref();
            let mut known = factors.iter().chain(quick);
            if !known.any(|(known, _)| known.get_ref() == factor) {
                let known = factors.keys().chain(quick.keys());
                let known: BTreeSet<_> = known.map(|key| key.get_ref().as_str()).collect();
                let problem = suggestion::unknown("factor", factor, known);
                let problem = format!("exclude: {problem}");
                return Err(Mistake::at(at, problem));
            }
            let known = factors.iter().chain(quick);
            let of_factor = known.filter(|(known, _)| known.get_ref() == factor);
            let levels: Vec<_> = of_factor
                .flat_map(|(_, levels)| levels.iter().map(|level| toml_text(level.get_ref())))
                .collect();
            for level in excluded.levels().iter().map(toml_text) {
                if !levels.contains(&level) {
                    let known = levels.join(", ");
                    let problem =
                        format!("exclude: {factor} has no level `{level}`: it has {known}");
                    return Err(Mistake::at(at, problem));
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
            level.is_some_and(|level| excluded.levels().iter().any(|one| toml_text(one) == *level))
        })
    })
}

/// Makes every combination of levels that is not excluded. The last factor changes fastest.
pub(super) fn combinations(
    work: &BTreeMap<Spanned<String>, Spanned<Value>>,
    factors: &BTreeMap<Spanned<String>, Vec<Spanned<Value>>>,
    variants: &Variants,
    exclusions: &[Spanned<Exclusion>],
    changes: &Changes,
) -> Result<Vec<Combination>, Mistake> {
    let mut base = Cell::default();
    for (key, value) in work {
        set(&mut base, key, value)?;
    }
    let mut all = vec![(BTreeMap::new(), base)];
    for (key, levels) in factors {
        if levels.is_empty() {
            let problem = format!("the factor `{}` has no levels", key.get_ref());
            return Err(Mistake::at(key.span().start, problem));
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
                names.insert(key.get_ref().clone(), toml_text(level.get_ref()));
                more.push((names, cell));
            }
        }
        all = more;
    }
    all.retain(|(names, _)| !is_excluded(exclusions, names));
    if all.is_empty() {
        let at = exclusions.first().map(|exclusion| exclusion.span().start);
        return Err(Mistake::at(at, "exclude: nothing is left".to_owned()));
    }
    all.into_iter()
        .map(|(levels, mut cell)| {
            changes
                .apply(&mut cell)
                .map_err(|problem| Mistake::at(None, problem))?;
            if let Some((key, problem)) = cell.contradiction() {
                let places = work.keys().chain(factors.keys());
                let place = places.into_iter().find(|known| known.get_ref() == key);
                let at = place.map(|key| key.span().start);
                return Err(Mistake::at(at, format!("{key}: {problem}")));
            }
            Ok(Combination { levels, cell })
        })
        .collect()
}

fn set(cell: &mut Cell, key: &Spanned<String>, value: &Spanned<Value>) -> Result<(), Mistake> {
    let set = cell.set(key.get_ref(), value.get_ref());
    set.map_err(|problem| {
        let problem = format!("{}: {problem}", key.get_ref());
        Mistake::at(value.span().start, problem)
    })
}

fn set_variant(
    cell: &mut Cell,
    variants: &Variants,
    level: &Spanned<Value>,
) -> Result<(), Mistake> {
    let name = toml_text(level.get_ref());
    let Some(keys) = variants.get(&name) else {
        let known = variants.keys().map(String::as_str);
        let problem = suggestion::unknown("variant", &name, known);
        return Err(Mistake::at(level.span().start, problem));
    };
    for (key, value) in keys {
        set(cell, key, value)?;
    }
    Ok(())
}
