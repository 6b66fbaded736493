//! Pieces of the page that its parts share.

use crate::report::campaign::{
    labels,
    model::{CampaignReport, Panel},
};

/// Returns a figure's title: `WiFi, QoS 1`, or the campaign's own title if it has one figure.
pub(super) fn panel_title(campaign: &CampaignReport, panel: &Panel) -> String {
    if panel.levels.is_empty() {
        campaign.title.clone()
    } else {
        labels::title(&panel.levels)
    }
}

/// Returns a part of the page that is folded away until the reader opens it.
pub(super) fn more(title: &str, count: usize, content: &str) -> String {
    format!(
        "<details class=\"more\"><summary>{title} <span class=\"quiet\">{count}</span></summary>\n\
         {content}</details>\n"
    )
}

/// Escapes a text for HTML and SVG.
pub(crate) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            other => escaped.push(other),
        }
    }
    escaped
}
