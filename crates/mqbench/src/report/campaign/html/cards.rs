//! The answers: a card for each paper with its counts and sentences. A set without claims has a card for each
//! campaign with what its figures show.

use super::elements::{escape, panel_title};
use crate::report::campaign::model::{CampaignReport, PaperReport, Report};

/// Greatest number of sentences on a campaign's card; the campaign's section has all.
const SENTENCES: usize = 3;

pub(super) fn cards(report: &Report) -> String {
    let cards: String = if report.papers.is_empty() {
        let campaigns = report.campaigns.iter().enumerate();
        campaigns
            .map(|(number, one)| campaign(number, one))
            .collect()
    } else {
        report.papers.iter().map(paper).collect()
    };
    let title = if report.papers.is_empty() {
        "What the figures show"
    } else {
        "What holds"
    };
    format!(
        "<section id=\"answers\">\n<h2>{title}</h2>\n<div class=\"cards\">\n{cards}</div>\n</section>\n"
    )
}

fn paper(paper: &PaperReport) -> String {
    let other = paper.failed - paper.no_difference;
    let counts = [
        ("yes", "✓", paper.held, "held"),
        ("same", "≈", paper.no_difference, "no difference"),
        ("no", "✗", other, "contradicted"),
        ("none", "?", paper.open, "open"),
    ];
    // A paper without such claims needs no word of them.
    let named = counts
        .iter()
        .filter(|(class, _, count, _)| *class != "same" || *count > 0);
    let words = named.map(|(class, sign, count, words)| {
        format!(
            "<span class=\"badge {class}\"><span aria-hidden=\"true\">{sign}</span> {count} {words}</span>"
        )
    });
    // The counts as lengths; the words say the same.
    let bar = counts.iter().filter(|(_, _, count, _)| *count > 0);
    let bar = bar.map(|(class, _, count, _)| {
        format!("<span class=\"{class}\" style=\"flex-grow:{count}\"></span>")
    });
    let doi = paper.doi.as_ref().map_or_else(String::new, |doi| {
        let doi = escape(doi);
        format!(" <a href=\"https://doi.org/{doi}\">doi:{doi}</a>")
    });
    format!(
        "<article class=\"card\">\n<h3>{}: {}</h3>\n<p class=\"counts\">{}</p>\n\
         <div class=\"share\" aria-hidden=\"true\">{}</div>\n{}\
         <p class=\"quiet\">{}.{doi}</p>\n</article>\n",
        escape(&paper.name),
        escape(&paper.title),
        words.collect::<Vec<_>>().join(" "),
        bar.collect::<String>(),
        sentences(paper.says.iter().map(|says| escape(says))),
        escape(&paper.authors),
    )
}

fn campaign(number: usize, campaign: &CampaignReport) -> String {
    let shown = campaign
        .panels
        .iter()
        .filter(|panel| !panel.shows.is_empty());
    let one = shown.clone().count() == 1;
    let says = shown.take(SENTENCES).map(|panel| {
        let says = escape(&panel.shows);
        if one {
            return says;
        }
        format!("<b>{}</b>: {says}", escape(&panel_title(campaign, panel)))
    });
    format!(
        "<article class=\"card\">\n<h3><a href=\"#c{number}\">{}</a></h3>\n{}\
         <p class=\"quiet\">{}. {}.</p>\n</article>\n",
        escape(&campaign.title),
        sentences(says),
        escape(&campaign.source),
        escape(&campaign.runs.counts.to_string()),
    )
}

fn sentences(all: impl Iterator<Item = String>) -> String {
    let mut text = String::new();
    for one in all {
        text.push_str(&format!("<p>{one}</p>\n"));
    }
    text
}
