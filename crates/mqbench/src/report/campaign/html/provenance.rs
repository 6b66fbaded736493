//! Origin of the results: program, machine, and who resumed the set. It is at the end of the page.

use super::elements::escape;
use crate::report::campaign::{formatting, model::Report};

pub(super) fn provenance(report: &Report) -> String {
    let manifest = &report.manifest;
    let (program, host) = (&manifest.program, &manifest.host);
    let unknown = || "unknown".to_owned();
    let facts = [
        ("Begun", manifest.started_at.clone()),
        (
            "Program",
            format!(
                "{} {} ({})",
                program.name,
                program.version.clone().unwrap_or_default(),
                manifest.profile
            ),
        ),
        ("Revision", program.revision.clone().unwrap_or_else(unknown)),
        ("Broker", manifest.broker.name.clone()),
        (
            "Machine",
            format!(
                "{}, {} cores",
                host.cpu.clone().unwrap_or_else(unknown),
                host.cores
            ),
        ),
        ("Kernel", host.kernel.clone().unwrap_or_else(unknown)),
    ];
    let facts = facts
        .iter()
        .map(|(name, value)| format!("<div><dt>{name}</dt><dd>{}</dd></div>", escape(value)));
    let continued = formatting::continued(report).map_or_else(String::new, |others| {
        let each = others.split("; ");
        let each = each.map(|one| format!("<li>{}</li>", escape(one)));
        format!(
            "<details class=\"more\"><summary>Continued by other revisions</summary><ul>{}</ul>\
             </details>\n",
            each.collect::<String>()
        )
    });
    format!(
        "<footer>\n<h2>Where this is from</h2>\n<dl class=\"facts\">{}</dl>\n{continued}\
         <p class=\"quiet\">{}, schema {}. Charts: Apache ECharts, under the Apache License \
         2.0. This page loads nothing.</p>\n</footer>\n",
        facts.collect::<String>(),
        escape(&program.name),
        report.schema
    )
}
