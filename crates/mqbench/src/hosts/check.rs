//! Problems that bar or spoil a measurement on a host.

use anyhow::bail;

use super::{HostSession, Hosts, Machine, Ssh, report::HostReport, ssh::mqbench};
use crate::{
    meter::{ConfiguredMeter, MeterSpec},
    this_program::this_software,
};

/// The version of this program.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The disk space that a host needs for the logs of a run, with some to spare.
const LEAST_FREE: u64 = 100 << 20;

/// Makes sure, before a campaign begins, that every host can do its part. Problems that only make figures
/// doubtful are printed on standard error.
///
/// # Errors
/// The first problem that bars the campaign.
pub(crate) async fn ensure_ready(ssh: &Ssh, hosts: &Hosts) -> anyhow::Result<()> {
    for host in hosts.machines() {
        let found = report_of(ssh, host).await?;
        for problem in problems_of(ssh, &found, host).await {
            if problem.blocks {
                bail!("host {}: {}", host.name, problem.text);
            }
            eprintln!("mqbench: host {}: {}", host.name, problem.text);
        }
    }
    Ok(())
}

/// Makes sure that every host and every multimeter answers.
///
/// # Errors
/// The first that does not answer.
pub(crate) async fn ensure_reachable(ssh: &Ssh, hosts: &Hosts) -> anyhow::Result<()> {
    for host in hosts.machines() {
        report_of(ssh, host).await?;
        if let Some(problem) = unanswered_meter(host).await {
            bail!("host {}: {}", host.name, problem.text);
        }
    }
    Ok(())
}

pub(crate) async fn report_of(ssh: &Ssh, host: &Machine) -> anyhow::Result<HostReport> {
    let session = HostSession::open(ssh, host).await?;
    let found = session.report.clone();
    session.close().await?;
    Ok(found)
}

/// Lists all problems of a host.
pub(crate) async fn problems_of(ssh: &Ssh, found: &HostReport, host: &Machine) -> Vec<Problem> {
    let mut problems = problems(found, host);
    problems.extend(cannot_shape(ssh, found, host).await);
    problems.extend(unanswered_meter(host).await);
    problems
}

pub(crate) fn summary(found: &HostReport) -> String {
    let text = |value: &Option<String>| value.clone().unwrap_or_else(|| "?".to_owned());
    format!(
        "{}, {}, {} on {}, Linux {}, governor {}\n",
        found.host,
        build(found),
        found.machine,
        text(&found.context.cpu),
        text(&found.context.kernel),
        text(&found.context.governor),
    )
}

/// Describes the mqbench that the host has.
fn build(found: &HostReport) -> String {
    let revision = found.revision.as_deref().unwrap_or("?");
    format!("mqbench {} ({revision})", found.version)
}

/// A problem that makes a host's figures doubtful, or bars a campaign on the host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Problem {
    pub(crate) text: String,
    pub(crate) blocks: bool,
}

impl Problem {
    fn blocks(text: String) -> Self {
        Self { text, blocks: true }
    }

    fn taints(text: String) -> Self {
        Self {
            text,
            blocks: false,
        }
    }
}

/// Checks that the program may shape the interface, by itself or by sudo; returns the problem if it may not.
async fn cannot_shape(ssh: &Ssh, found: &HostReport, host: &Machine) -> Option<Problem> {
    if found.may_shape {
        return None;
    }
    let show = mqbench(host, true, ["net", "show"].into_iter());
    let error = ssh.run(host, &show, b"").await.err()?;
    Some(Problem::taints(format!(
        "its mqbench may not shape {}, by itself or by sudo, which campaigns with a link need: see \
         docs/guide/hosts.md ({error:#})",
        host.interface
    )))
}

/// Checks that a multimeter identifies itself; returns the problem if it does not.
async fn unanswered_meter(host: &Machine) -> Option<Problem> {
    let configured_meter = host.configured_meter()?;
    let error = configured_meter.answers().await.err()?;
    Some(Problem::blocks(format!(
        "its meter {}: {error:#}",
        configured_meter.spec
    )))
}

fn problems(found: &HostReport, host: &Machine) -> Vec<Problem> {
    let interface = &host.interface;
    let mut problems = Vec::new();
    if found.version != VERSION {
        let text = format!(
            "its mqbench is {}, this one {VERSION}: `mqbench hosts upgrade` puts this one there",
            found.version
        );
        problems.push(Problem::blocks(text));
    } else if let Some(revision) = &found.revision
        && let Some(own) = this_software("mqbench").revision
        && *revision != own
    {
        problems.push(Problem::taints(format!(
            "its mqbench was built from {revision}, this one from {own}: \
             `mqbench hosts upgrade` puts this one there"
        )));
    }
    if let Some(ConfiguredMeter { spec, .. }) = host.configured_meter()
        && matches!(spec, MeterSpec::Rapl | MeterSpec::Sensor(..))
        && !found.meters.contains(&spec.to_string())
    {
        let text = format!("it has no meter {spec} that mqbench may read there");
        problems.push(Problem::blocks(text));
    }
    if !found.interfaces.iter().any(|one| one == interface) {
        problems.push(Problem::blocks(format!("it has no interface {interface}")));
    }
    if found.free_bytes.is_some_and(|free| free < LEAST_FREE) {
        let text = "it has less than 100 MB of free disk".to_owned();
        problems.push(Problem::blocks(text));
    }
    if let Some(governor) = &found.context.governor
        && governor != "performance"
    {
        problems.push(Problem::taints(format!(
            "its CPU governor is {governor}: `echo performance | tee \
             /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor`"
        )));
    }
    if let Some(throttled) = &found.throttled
        && !matches!(&throttled[..], "0" | "0x0")
    {
        let text = format!("it was throttled or short of voltage: {throttled}");
        problems.push(Problem::taints(text));
    }
    if let Some(emulated) = &found.context.emulated {
        let text = format!("it is emulated, its times are no machine's: {emulated}");
        problems.push(Problem::taints(text));
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes the report of a host without problems.
    fn fine() -> HostReport {
        HostReport {
            version: VERSION.to_owned(),
            revision: None,
            host: "pi".to_owned(),
            machine: "aarch64".to_owned(),
            context: mq_measure::context::HostContext {
                governor: Some("performance".to_owned()),
                ..Default::default()
            },
            clock_bound_ns: None,
            may_shape: true,
            folder: "/tmp/mqbench-x".into(),
            interfaces: vec!["eth0".to_owned(), "lo".to_owned()],
            free_bytes: Some(1 << 30),
            throttled: Some("0".to_owned()),
            meters: vec!["iio".to_owned(), "iio:ina226".to_owned()],
        }
    }

    #[test]
    fn a_host_with_another_version_is_understood() {
        let mut says = serde_json::to_value(fine()).unwrap();
        says["news"] = "of a newer one".into();
        says["context"]["news"] = "of a newer one".into();
        let found: HostReport = serde_json::from_value(says).unwrap();
        assert_eq!(found, fine());
    }

    #[test]
    fn each_problem_of_a_host_is_reported() {
        let fine = fine();
        let host = |interface: &str, meter: &str| {
            Machine::at("10.0.0.1".parse().unwrap(), interface, meter)
        };
        assert_eq!(problems(&fine, &host("eth0", "iio:ina226")), []);
        let mut other = fine.clone();
        other.revision = Some("another".to_owned());
        let found = problems(&other, &host("eth0", "iio:ina226"));
        // A program built from an archive does not know its revision.
        let expected = this_software("mqbench").revision.is_some();
        assert_eq!(found.len(), usize::from(expected), "{found:?}");
        assert!(found.iter().all(|problem| !problem.blocks), "{found:?}");
        let mut bad = fine.clone();
        bad.version = "0.0.1".to_owned();
        bad.context.governor = Some("ondemand".to_owned());
        bad.free_bytes = Some(1000);
        bad.throttled = Some("50005".to_owned());
        bad.context.emulated = Some("its processor is QEMU's".to_owned());
        let found = problems(&bad, &host("wlan0", "hwmon:ina226"));
        let expected = [
            ("0.0.1, this one", true),
            ("hwmon:ina226", true),
            ("wlan0", true),
            ("100 MB", true),
            ("ondemand", false),
            ("50005", false),
            ("emulated", false),
        ];
        assert_eq!(found.len(), expected.len(), "{found:?}");
        for (problem, (part, blocks)) in found.iter().zip(expected) {
            assert!(
                problem.text.contains(part) && problem.blocks == blocks,
                "{problem:?}"
            );
        }
    }
}
