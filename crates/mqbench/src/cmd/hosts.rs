//! `mqbench hosts`: the machines of a testbed.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail};

use crate::{
    agent::{Code, Controller},
    hosts::{
        Hosts,
        check::{Problem, ask, line, problems, unanswered},
        deploy::{Programs, upgrade},
    },
    report,
};

/// Options of `hosts`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
    #[command(flatten)]
    identity: Identity,
}

/// This controller, as agents know it.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Identity {
    /// Where this controller keeps its key and the agents that it knows [default: mqbench in the
    /// folder for configuration]
    #[arg(long, value_name = "DIR", global = true)]
    identity: Option<PathBuf>,
}

impl Identity {
    pub(crate) fn controller(self) -> anyhow::Result<Controller> {
        let folder = self.identity.or_else(configuration);
        Controller::open(&folder.context("there is no home folder: say --identity")?)
    }
}

#[derive(clap::Subcommand, Clone, Debug)]
enum Action {
    /// Enrol with an agent
    Add {
        /// Where it listens, such as 192.168.1.11:7883
        #[arg(value_name = "ADDRESS")]
        agent: SocketAddr,
        /// What `mqbench agent code` prints there
        code: Code,
    },
    /// Ask each host what it is, and say what is in the way of measuring there
    Check {
        /// The hosts, see docs/hosts.md
        #[arg(value_name = "FILE")]
        hosts: PathBuf,
    },
    /// Put another mqbench on each host that does not have it
    Upgrade {
        /// The hosts, see docs/hosts.md
        #[arg(value_name = "FILE")]
        hosts: PathBuf,
        /// The program for all of them
        #[arg(long, value_name = "FILE", conflicts_with = "programs")]
        program: Option<PathBuf>,
        #[command(flatten)]
        programs: Programs,
    },
}

pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    let controller = args.identity.controller()?;
    match args.action {
        Action::Add { agent, code } => {
            let found = controller.enrol(agent, &code).await?;
            report::print(&format!("{agent}: {}", line(&found)))
        }
        Action::Check { hosts } => check_all(&controller, &Hosts::load(&hosts)?).await,
        Action::Upgrade {
            hosts,
            program,
            programs,
        } => {
            let hosts = Hosts::load(&hosts)?;
            upgrade_all(&controller, &hosts, program.as_deref(), &programs).await
        }
    }
}

/// As the XDG Base Directory Specification has it.
fn configuration() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let folder = set("XDG_CONFIG_HOME").map(PathBuf::from);
    let folder = folder.or_else(|| Some(PathBuf::from(set("HOME")?).join(".config")))?;
    Some(folder.join("mqbench"))
}

async fn check_all(controller: &Controller, hosts: &Hosts) -> anyhow::Result<()> {
    let mut in_the_way = 0;
    for host in hosts.machines() {
        let problems = match ask(controller, host).await {
            Ok(found) => {
                report::print(&format!("{}: {}", host.name, line(&found)))?;
                let mut problems = problems(&found, host);
                problems.extend(unanswered(host).await);
                problems
            }
            Err(error) => vec![Problem::bars(format!("{error:#}"))],
        };
        in_the_way += problems.iter().filter(|problem| problem.bars).count();
        for problem in problems {
            report::print(&format!("{}: ! {}\n", host.name, problem.text))?;
        }
    }
    if in_the_way > 0 {
        bail!("no campaign runs on these hosts: {in_the_way} things are in the way");
    }
    Ok(())
}

/// Puts a program on all hosts that do not have it: this one, or theirs of those that are given.
async fn upgrade_all(
    controller: &Controller,
    hosts: &Hosts,
    program: Option<&Path>,
    programs: &Programs,
) -> anyhow::Result<()> {
    let mut failed = 0;
    for host in hosts.machines() {
        let upgraded = async {
            let found = ask(controller, host).await?;
            let program = match program {
                Some(program) => program.to_owned(),
                None => programs.of(&found.machine)?,
            };
            upgrade(controller, host, &found, &program).await
        };
        let line = match upgraded.await {
            Ok(Some(line)) => line,
            Ok(None) => "has it already".to_owned(),
            Err(error) => {
                failed += 1;
                format!("! {error:#}")
            }
        };
        report::print(&format!("{}: {line}\n", host.name))?;
    }
    if failed > 0 {
        let all = hosts.machines().count();
        bail!("{failed} of {all} hosts could not be upgraded");
    }
    Ok(())
}
