//! Coefficients from measured runs, by least squares without negative coefficients.
//!
//! The fitted quantity is each run's mean power: its energy over its length. It is modelled as a sum of
//! rates (CPU time a second, packets a second, ...) times coefficients. So a long run counts as much as a
//! short one. R² is the share of the differences between the runs' powers that the terms explain; that
//! longer runs need more energy does not raise it.
//!
//! The non-negative solution is Lawson and Hanson's (*Solving Least Squares Problems*, 1974, chapter 23). If
//! no coefficient is at its bound of 0, it is the ordinary least squares solution. Standard errors are the
//! ordinary ones of the terms that are not at the bound, given that the others are 0.

use std::fs::{File, OpenOptions};
use std::io::{BufReader, Write as _};
use std::path::Path;

use super::Error;
use super::profile::{Activity, Coefficient, Origin, Profile, Term};
use mq_measure::{convert, table};

/// Share of a rate's squared length: if the other rates explain all of the rate but this share or less, it counts as a
/// combination of them.
const COLLINEAR: f64 = 1e-10;

/// The columns of a file of runs.
const COLUMNS: &str =
    "energy_uj,elapsed_ns,cpu_ns,packets_sent,packets_received,bytes_sent,bytes_received";

/// A run whose energy was measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Run {
    /// The energy that the meter found.
    pub energy_uj: f64,
    /// The machine's activity in the run.
    pub activity: Activity,
}

impl Run {
    /// Reads runs from a file with the columns `energy_uj`, `elapsed_ns`, `cpu_ns`,
    /// `packets_sent`, `packets_received`, `bytes_sent`, `bytes_received`.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn read_all(path: &Path) -> Result<Vec<Self>, Error> {
        let file = File::open(path).map_err(Error::io(path))?;
        let table = table::read::<7>(BufReader::new(file), path, COLUMNS)?;
        let rows = table.rows.into_iter();
        let runs = rows.map(|(line, row)| {
            let names = COLUMNS.split(',').zip(row);
            let values = names.map(|(name, cell)| table::required(cell, name, path, line));
            let values: Vec<_> = values.collect::<Result<_, _>>()?;
            let elapsed_ns = values[1];
            if elapsed_ns == 0 {
                let problem = "elapsed_ns is 0: such a run has no power";
                return Err(Error::line(path, line, problem.to_owned()));
            }
            Ok(Self {
                energy_uj: convert::float(values[0]),
                activity: Activity {
                    elapsed_ns,
                    cpu_ns: values[2],
                    packets_sent: values[3],
                    packets_received: values[4],
                    bytes_sent: values[5],
                    bytes_received: values[6],
                },
            })
        });
        runs.collect()
    }

    /// Adds the run to such a file, and creates the file if need be.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn append(&self, path: &Path) -> Result<(), Error> {
        let file = OpenOptions::new().create(true).append(true).open(path);
        let mut file = file.map_err(Error::io(path))?;
        let empty = file.metadata().map_err(Error::io(path))?.len() == 0;
        let head = if empty {
            format!("{COLUMNS}\n")
        } else {
            String::new()
        };
        let Activity {
            elapsed_ns,
            cpu_ns,
            packets_sent,
            packets_received,
            bytes_sent,
            bytes_received,
        } = self.activity;
        let energy_uj = convert::round(self.energy_uj);
        let line = format!(
            "{head}{energy_uj},{elapsed_ns},{cpu_ns},{packets_sent},{packets_received},\
             {bytes_sent},{bytes_received}\n"
        );
        file.write_all(line.as_bytes()).map_err(Error::io(path))
    }

    fn power_uw(&self) -> f64 {
        self.energy_uj / (convert::float(self.activity.elapsed_ns) / 1e9)
    }

    fn rate(&self, term: Term) -> f64 {
        term.amount(&self.activity) / (convert::float(self.activity.elapsed_ns) / 1e9)
    }
}

/// A coefficient that was fitted.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Fitted {
    /// The term that the coefficient belongs to.
    pub term: Term,
    /// Value of the coefficient, in the unit that the term's name ends with, such as `_uw`.
    pub value: f64,
    /// Standard error of the coefficient; `None` at the bound of 0, or with as many terms as runs.
    pub standard_error: Option<f64>,
}

/// Fitted coefficients, and figures of how well they explain the runs.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Fit {
    /// The fitted coefficients.
    pub terms: Vec<Fitted>,
    /// Number of runs that the coefficients were fitted to.
    pub runs: usize,
    /// The share of the variance of the runs' mean powers that the coefficients explain; `None` if all runs
    /// have the same power.
    pub r_squared: Option<f64>,
    /// The residual standard error; `None` with as many terms as runs.
    pub residual_uw: Option<f64>,
    /// The largest difference between a run's mean power and its fitted power.
    pub worst_uw: f64,
}

/// Range of values allowed for fitted coefficients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sign {
    /// 0 or more: work gains no energy.
    NonNegative,
    /// Any value, to see what the runs say by themselves. A negative coefficient shows that the terms or the
    /// runs are not the right ones.
    Any,
}

impl Fit {
    /// Returns the terms that are not 0 in all runs.
    #[must_use]
    pub fn terms_in(runs: &[Run]) -> Vec<Term> {
        let some = |term: &Term| runs.iter().any(|run| term.amount(&run.activity) > 0.0);
        Term::ALL.into_iter().filter(some).collect()
    }

    /// Fits the coefficients of `terms` to the runs.
    ///
    /// # Errors
    /// [`Error::Fit`] if there are fewer runs than terms, or if the runs cannot tell a term from
    /// the others.
    pub fn of(runs: &[Run], terms: &[Term], sign: Sign) -> Result<Self, Error> {
        let system = System::of(runs, terms)?;
        let all: Vec<_> = (0..terms.len()).collect();
        let solution = match sign {
            Sign::Any => system.solve(&all),
            Sign::NonNegative => system.solve_non_negative(),
        };
        let scaled = solution.ok_or_else(|| Error::Fit {
            problem: "the equations have no unique solution".to_owned(),
        })?;
        let residuals = runs.iter().zip(&system.rates).map(|(run, rates)| {
            let terms = rates.iter().zip(&scaled);
            let modelled: f64 = terms.map(|(rate, value)| rate * value).sum();
            run.power_uw() - modelled
        });
        let residuals: Vec<_> = residuals.collect();
        let squares: f64 = residuals.iter().map(|residual| residual.powi(2)).sum();
        let free: Vec<_> = match sign {
            Sign::Any => all,
            Sign::NonNegative => all.into_iter().filter(|i| scaled[*i] > 0.0).collect(),
        };
        let degrees = runs.len().saturating_sub(free.len());
        let variance = (degrees > 0).then(|| squares / convert::float_len(degrees));
        let powers: Vec<_> = runs.iter().map(Run::power_uw).collect();
        let mean = mq_measure::stats::mean(&powers).unwrap_or_default();
        let spread: f64 = powers.iter().map(|power| (power - mean).powi(2)).sum();
        let fitted = terms.iter().enumerate().map(|(i, term)| Fitted {
            term: *term,
            value: scaled[i] / system.lengths[i],
            standard_error: variance.and_then(|variance| {
                let inverse = system.inverse_diagonal(&free, i)?;
                Some((variance * inverse).sqrt() / system.lengths[i])
            }),
        });
        Ok(Self {
            terms: fitted.collect(),
            runs: runs.len(),
            r_squared: (spread > 0.0).then(|| 1.0 - squares / spread),
            residual_uw: variance.map(f64::sqrt),
            worst_uw: residuals
                .iter()
                .fold(0.0, |worst: f64, one| worst.max(one.abs())),
        })
    }

    /// Makes a profile of the fit; a term that was not fitted has the assumption 0.
    #[must_use]
    pub fn profile(&self, name: &str, description: &str, source: &str) -> Profile {
        let coefficients = Term::ALL.map(|term| {
            let fitted = self.terms.iter().find(|fitted| fitted.term == term);
            fitted.map_or_else(
                || Coefficient {
                    value: 0.0,
                    origin: Origin::Assumed,
                    source: format!("not fitted: {source}"),
                    standard_error: None,
                },
                |fitted| Coefficient {
                    value: fitted.value,
                    origin: Origin::Measured,
                    source: source.to_owned(),
                    standard_error: fitted.standard_error,
                },
            )
        });
        Profile::new(name, description, coefficients)
    }
}

/// The normal equations of rates that are scaled to the length 1, so that rates of bytes and of seconds are
/// of one size.
struct System {
    /// A row a run, a column a term, each column of length 1.
    rates: Vec<Vec<f64>>,
    /// The divisor of each column.
    lengths: Vec<f64>,
    /// The columns' products with each other.
    gram: Vec<Vec<f64>>,
    /// The columns' products with the powers.
    powers: Vec<f64>,
}

impl System {
    fn of(runs: &[Run], terms: &[Term]) -> Result<Self, Error> {
        let unfit = |problem: String| Err(Error::Fit { problem });
        if terms.is_empty() {
            return unfit("no term is asked for".to_owned());
        }
        if runs.len() < terms.len() {
            return unfit(format!(
                "{} runs cannot tell {} coefficients apart; measure at least {}, each with another \
                 rate, payload or transport",
                runs.len(),
                terms.len(),
                terms.len() + 2
            ));
        }
        let mut rates: Vec<Vec<_>> = runs
            .iter()
            .map(|run| terms.iter().map(|term| run.rate(*term)).collect())
            .collect();
        let lengths: Vec<f64> = (0..terms.len())
            .map(|i| rates.iter().map(|row| row[i].powi(2)).sum::<f64>().sqrt())
            .collect();
        if let Some((term, _)) = terms
            .iter()
            .zip(&lengths)
            .find(|(_, length)| **length <= 0.0)
        {
            return unfit(format!(
                "no run has anything of {}: leave it out, or measure some",
                term.name()
            ));
        }
        for row in &mut rates {
            for (rate, length) in row.iter_mut().zip(&lengths) {
                *rate /= length;
            }
        }
        let product = |i: usize, j: usize| rates.iter().map(|row| row[i] * row[j]).sum::<f64>();
        let columns = 0..terms.len();
        let gram: Vec<Vec<f64>> = columns
            .clone()
            .map(|i| columns.clone().map(|j| product(i, j)).collect())
            .collect();
        let powers = columns.clone().map(|i| {
            let rows = rates.iter().zip(runs);
            rows.map(|(row, run)| row[i] * run.power_uw()).sum::<f64>()
        });
        let powers = powers.collect();
        for i in columns {
            let before: Vec<_> = (0..=i).collect();
            if cholesky(&gram, &before).is_none() {
                let others: Vec<_> = terms[..i].iter().map(|term| term.name()).collect();
                return unfit(format!(
                    "the runs cannot tell {} from {}: vary it on its own, or leave it out",
                    terms[i].name(),
                    others.join(" and ")
                ));
            }
        }
        Ok(Self {
            rates,
            lengths,
            gram,
            powers,
        })
    }

    /// Computes the coefficients if those of `free` are fitted and all others are 0.
    fn solve(&self, free: &[usize]) -> Option<Vec<f64>> {
        let wanted: Vec<_> = free.iter().map(|i| self.powers[*i]).collect();
        let found = substitute(&cholesky(&self.gram, free)?, &wanted);
        let mut all = vec![0.0; self.powers.len()];
        for (i, value) in free.iter().zip(found) {
            all[*i] = value;
        }
        Some(all)
    }

    /// Solves for coefficients of which none is negative, by Lawson and Hanson's NNLS.
    fn solve_non_negative(&self) -> Option<Vec<f64>> {
        let count = self.powers.len();
        let tolerance = 1e-12
            * self
                .powers
                .iter()
                .fold(0.0, |most: f64, one| most.max(one.abs()));
        let mut free: Vec<usize> = Vec::new();
        let mut now = vec![0.0; count];
        // Each set of free terms comes up at most once; this many steps have always been enough.
        for _ in 0..10 * count + 10 {
            let gradient = |i: usize| {
                let row = self.gram[i].iter().zip(&now);
                self.powers[i] - row.map(|(g, value)| g * value).sum::<f64>()
            };
            let bound = (0..count).filter(|i| !free.contains(i));
            let steepest = bound
                .map(|i| (i, gradient(i)))
                .filter(|(_, slope)| *slope > tolerance)
                .max_by(|a, b| a.1.total_cmp(&b.1));
            let Some((enters, _)) = steepest else {
                return Some(now);
            };
            free.push(enters);
            loop {
                let next = self.solve(&free)?;
                let leaves = free.iter().filter(|i| next[**i] <= 0.0);
                // How far to go until the first coefficient is 0.
                let step = leaves
                    .map(|i| now[*i] / (now[*i] - next[*i]))
                    .fold(1.0, f64::min);
                if free.iter().all(|i| next[*i] > 0.0) {
                    now = next;
                    break;
                }
                for (value, next) in now.iter_mut().zip(&next) {
                    *value += step * (next - *value);
                }
                free.retain(|i| now[*i] > tolerance.max(f64::EPSILON));
                for (i, value) in now.iter_mut().enumerate() {
                    if !free.contains(&i) {
                        *value = 0.0;
                    }
                }
            }
        }
        None
    }

    /// Returns the diagonal element of the inverse that belongs to term `i`; `None` if it is not free.
    fn inverse_diagonal(&self, free: &[usize], i: usize) -> Option<f64> {
        let place = free.iter().position(|one| *one == i)?;
        let mut unit = vec![0.0; free.len()];
        unit[place] = 1.0;
        let column = substitute(&cholesky(&self.gram, free)?, &unit);
        column.get(place).copied()
    }
}

/// Returns the lower triangle L with L Lᵀ = the rows and columns `chosen` of a symmetric matrix with 1s on its
/// diagonal; `None` if a chosen column is, but for rounding, a combination of those before it.
fn cholesky(matrix: &[Vec<f64>], chosen: &[usize]) -> Option<Vec<Vec<f64>>> {
    let mut lower: Vec<Vec<f64>> = Vec::with_capacity(chosen.len());
    for (i, row) in chosen.iter().enumerate() {
        let mut line: Vec<f64> = Vec::with_capacity(i + 1);
        for (j, column) in chosen[..=i].iter().enumerate() {
            let other = if j < i { &lower[j] } else { &line };
            let known: f64 = line.iter().zip(other).take(j).map(|(a, b)| a * b).sum();
            let rest = matrix[*row][*column] - known;
            if j < i {
                line.push(rest / lower[j][j]);
            } else if rest > COLLINEAR {
                line.push(rest.sqrt());
            } else {
                return None;
            }
        }
        lower.push(line);
    }
    Some(lower)
}

/// Solves L Lᵀ x = b.
fn substitute(lower: &[Vec<f64>], b: &[f64]) -> Vec<f64> {
    let mut x = b.to_vec();
    for (i, row) in lower.iter().enumerate() {
        let known: f64 = row.iter().zip(&x).take(i).map(|(l, x)| l * x).sum();
        x[i] = (x[i] - known) / row[i];
    }
    for i in (0..x.len()).rev() {
        let known: f64 = (i + 1..x.len()).map(|k| lower[k][i] * x[k]).sum();
        x[i] = (x[i] - known) / lower[i][i];
    }
    x
}

#[cfg(test)]
mod tests;
