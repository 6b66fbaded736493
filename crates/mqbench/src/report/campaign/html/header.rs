//! The head of the page: a guide to it, notices, and its contents.

use super::elements::escape;
use crate::{campaign::file::Extent, report::campaign::model::Report};

/// The rule by which claims are judged, and the other words that a reader needs.
const HOW_TO_READ: &str = "\
<section class=\"how\" aria-labelledby=\"how\">\n<h2 id=\"how\">How to read this</h2>\n<ul>\n\
<li>A claim <b>held</b> if the whole 90 % interval of our value is where the paper says: within a fifth of \
the printed effect, beyond a printed bound, or 2 % or more to the claimed side. A claim that transports differ \
held if a test over runs is significant.</li>\n\
<li>It did <b>not</b> hold if the whole interval contradicts it: it is opposite, of another size, or shows no \
difference. It is <b>open</b> if the interval has room for both, if there is none, or if a model computed the value.</li>\n\
<li>An <b>interval</b> says how far chance may have moved a mean. Those of figures are of 95 %: over runs, or \
over one run’s messages and then too narrow.</li>\n\
<li>A run is <b>disturbed</b> if the machine was late, a meter had gaps or the run failed. It is repeated; \
its last attempt counts.</li>\n</ul>\n</section>\n";

pub(super) fn header(report: &Report) -> String {
    format!(
        "<header>\n<h1>MQTT over TCP, TLS and QUIC</h1>\n{HOW_TO_READ}{}</header>\n",
        notices(report)
    )
}

fn notices(report: &Report) -> String {
    let mut warnings = report.campaigns.iter().flat_map(|one| &one.warnings);
    let counts = || report.campaigns.iter().map(|one| &one.runs.counts);
    let disturbed: usize = counts().map(|counts| counts.disturbed).sum();
    let finished: usize = counts().map(|counts| counts.finished).sum();
    let with = counts().filter(|counts| counts.disturbed > 0).count();
    let notices = [
        (
            report.extent == Extent::Quick,
            "<strong>A quick run.</strong> It has fewer messages, levels and repetitions than the \
             papers: a look at the shape of things, no figures to quote."
                .to_owned(),
        ),
        (
            report.manifest.profile == "debug",
            "<strong>A debug build.</strong> It was built without optimisation: its times are not \
             those of the program."
                .to_owned(),
        ),
        (
            warnings.any(|warning| warning.kind == "emulated"),
            "<strong>Emulated.</strong> An emulator did what a machine was to do: no time is that \
             of such a machine. The warnings name it."
                .to_owned(),
        ),
        (
            disturbed > 0,
            format!(
                "<strong>{disturbed} of {finished} runs disturbed</strong> in their last attempt, in \
                 {with} of {} campaigns. They count, and their figures say so. A run \
                 that campaigns share is counted in each.",
                report.campaigns.len()
            ),
        ),
    ];
    let notices = notices.into_iter().filter(|(applies, _)| *applies);
    let notices = notices.map(|(_, text)| format!("<p class=\"notice\">{text}</p>\n"));
    notices.collect()
}

/// Formats the list of the campaigns of the page.
pub(super) fn contents(report: &Report) -> String {
    let campaigns = report.campaigns.iter().enumerate();
    let entries = campaigns.map(|(number, campaign)| {
        format!(
            "<li><a href=\"#c{number}\">{}</a> <span class=\"quiet\">{}</span></li>",
            escape(&campaign.title),
            escape(&campaign.source)
        )
    });
    format!(
        "<nav aria-labelledby=\"contents\"><h2 id=\"contents\">Figures</h2><ul>{}</ul></nav>\n",
        entries.collect::<String>()
    )
}
