//! Tables.

use super::elements::escape;

/// Formats a table with a caption; the first `texts` columns are text, the others numbers. Cells are HTML.
pub(crate) fn table(
    caption: &str,
    columns: &[&str],
    rows: impl Iterator<Item = Vec<String>>,
    texts: usize,
) -> String {
    let columns: Vec<String> = columns.iter().map(|name| escape(name)).collect();
    let columns: Vec<&str> = columns.iter().map(|name| &name[..]).collect();
    table_of(caption, &columns, rows, texts)
}

/// Formats a table like [`table`], whose column names are HTML already.
pub(super) fn table_of(
    caption: &str,
    columns: &[&str],
    rows: impl Iterator<Item = Vec<String>>,
    texts: usize,
) -> String {
    let head = columns
        .iter()
        .map(|name| format!("<th scope=\"col\">{name}</th>"));
    let class = |at: usize| if at < texts { "" } else { " class=\"num\"" };
    let rows = rows.map(|row| {
        let cells = row.iter().enumerate();
        let cells = cells.map(|(at, cell)| format!("<td{}>{cell}</td>", class(at)));
        format!("<tr>{}</tr>\n", cells.collect::<String>())
    });
    format!(
        "<div class=\"table\" tabindex=\"0\" role=\"region\" aria-label=\"{caption}\"><table>\
         <caption>{caption}</caption><thead><tr>{}</tr></thead>\n<tbody>{}</tbody></table></div>\n",
        head.collect::<String>(),
        rows.collect::<String>(),
        caption = escape(caption),
    )
}
