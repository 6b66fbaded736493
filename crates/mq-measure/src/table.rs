//! The CSV of samples and logs: comment lines, a line of column names, whole numbers.

use std::io::BufRead;
use std::path::Path;

use crate::Error;

/// A row of `N` columns; `None` is an empty cell.
pub type Row<const N: usize> = [Option<u64>; N];

/// A table that was read.
pub struct Table<const N: usize> {
    /// The lines that began with `#`, without the `#`.
    pub comments: Vec<String>,
    /// The rows, each with its line in the file.
    pub rows: Vec<(u64, Row<N>)>,
    /// `true` if the last line had no line break because its writer was aborted; the line is left out.
    pub truncated: bool,
}

/// Reads a table whose columns are called `columns`; `name` is for messages only.
///
/// # Errors
/// [`Error::Io`], [`Error::Format`] without column names, [`Error::Line`] with the line that is wrong.
pub fn read<const N: usize>(
    mut input: impl BufRead,
    name: &Path,
    columns: &str,
) -> Result<Table<N>, Error> {
    let mut table = Table {
        comments: Vec::new(),
        rows: Vec::new(),
        truncated: false,
    };
    let mut seen_columns = false;
    let mut text = String::new();
    for line in 1.. {
        text.clear();
        if input.read_line(&mut text).map_err(Error::io(name))? == 0 {
            break;
        }
        let Some(whole) = text.strip_suffix('\n') else {
            table.truncated = true;
            break;
        };
        let whole = whole.trim_end_matches('\r');
        if let Some(comment) = whole.strip_prefix('#') {
            table.comments.push(comment.trim().to_owned());
        } else if !seen_columns {
            if whole != columns {
                let problem = format!("expected the column names `{columns}`, found `{whole}`");
                return Err(Error::Line {
                    path: name.to_owned(),
                    line,
                    problem,
                });
            }
            seen_columns = true;
        } else if !whole.is_empty() {
            let row = parse(whole).map_err(|problem| Error::Line {
                path: name.to_owned(),
                line,
                problem,
            })?;
            table.rows.push((line, row));
        }
    }
    if !seen_columns {
        return Err(Error::Format {
            path: name.to_owned(),
            expected: format!("a table with the columns `{columns}`"),
            found: "no column names".to_owned(),
        });
    }
    Ok(table)
}

/// Returns the value of a cell that must not be empty.
///
/// # Errors
/// [`Error::Line`] if it is empty.
pub fn required(cell: Option<u64>, column: &str, name: &Path, line: u64) -> Result<u64, Error> {
    cell.ok_or_else(|| Error::Line {
        path: name.to_owned(),
        line,
        problem: format!("{column} is empty, should be a whole number"),
    })
}

fn parse<const N: usize>(line: &str) -> Result<Row<N>, String> {
    let mut row = [None; N];
    let mut cells = line.split(',');
    for slot in &mut row {
        let cell = cells.next().ok_or_else(|| count_problem::<N>(line))?;
        if !cell.is_empty() {
            let number = cell
                .parse()
                .map_err(|_| format!("`{cell}` is not a whole number below 2^64"))?;
            *slot = Some(number);
        }
    }
    if cells.next().is_some() {
        return Err(count_problem::<N>(line));
    }
    Ok(row)
}

fn count_problem<const N: usize>(line: &str) -> String {
    format!("{} columns, should be {N}", line.split(',').count())
}
