//! `mqbench hosts`: the machines of a testbed. `mqbench host`: the role of one of them.

use std::{path::PathBuf, time::Duration};

use anyhow::{Context as _, bail};

use super::args::parse_duration;
use crate::{
    hosts::{
        Hosts, Ssh,
        check::{problems_of, report_of, summary},
        deploy::upgrade,
        report::serve,
        ssh::LEASE,
    },
    report,
    stdin_lines::StdinLines,
};

/// Options of `hosts`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
    #[command(flatten)]
    ssh: SshArgs,
}

/// Access to hosts by OpenSSH.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct SshArgs {
    /// Configuration file of OpenSSH, in place of the user's own
    #[arg(long, value_name = "FILE", global = true)]
    ssh_config: Option<PathBuf>,
    /// Time after which hosts end their roles if they receive no line from this controller
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = lease, hide = true, global = true)]
    hosts_lease: Duration,
}

fn lease(text: &str) -> Result<Duration, String> {
    let time = parse_duration(text)?;
    let second = Duration::from_secs(1);
    if (second..=LEASE).contains(&time) {
        Ok(time)
    } else {
        Err("it is between 1s and 30s".to_owned())
    }
}

impl SshArgs {
    pub(crate) fn ssh(self) -> Ssh {
        Ssh::new(self.ssh_config, self.hosts_lease)
    }
}

#[derive(clap::Subcommand, Clone, Debug)]
enum Action {
    /// Ask each host for its description, and list the obstacles to a measurement there
    Check {
        /// The hosts, see docs/guide/hosts.md
        #[arg(value_name = "FILE")]
        hosts: PathBuf,
    },
    /// Put this mqbench on each host, or the one for its architecture
    Upgrade {
        /// The hosts, see docs/guide/hosts.md
        #[arg(value_name = "FILE")]
        hosts: PathBuf,
        /// The folder that has them: mqbench-aarch64, mqbench-armv7 and mqbench-x86_64
        #[arg(long, value_name = "DIR")]
        programs: Option<PathBuf>,
    },
}

pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    let ssh = args.ssh.ssh();
    match args.action {
        Action::Check { hosts } => check(&ssh, &Hosts::load(&hosts)?).await,
        Action::Upgrade { hosts, programs } => {
            for host in Hosts::load(&hosts)?.machines() {
                let says = upgrade(&ssh, host, programs.as_deref()).await?;
                report::print(&format!("{}: {says}\n", host.name))?;
            }
            Ok(())
        }
    }
}

/// Serves the controller as the role of this program on a host, until the standard input ends.
pub(crate) async fn present(input: Option<StdinLines>) -> anyhow::Result<()> {
    let input = input.context("it has no standard input")?;
    serve(input, report::print).await
}

async fn check(ssh: &Ssh, hosts: &Hosts) -> anyhow::Result<()> {
    let mut in_its_way = 0;
    for host in hosts.machines() {
        let problems = match report_of(ssh, host).await {
            Ok(found) => {
                report::print(&format!("{}: {}", host.name, summary(&found)))?;
                problems_of(ssh, &found, host).await
            }
            Err(error) => {
                in_its_way += 1;
                report::print(&format!("! {error:#}\n"))?;
                continue;
            }
        };
        in_its_way += problems.iter().filter(|problem| problem.blocks).count();
        for problem in problems {
            report::print(&format!("{}: ! {}\n", host.name, problem.text))?;
        }
    }
    if in_its_way > 0 {
        bail!("no campaign runs on these hosts: {in_its_way} things are in the way");
    }
    Ok(())
}
