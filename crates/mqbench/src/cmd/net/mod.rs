//! `mqbench net`: links on real interfaces, by the kernel's netem.

mod apply;
mod check;

use std::{ffi::OsString, net::IpAddr, path::PathBuf, process::ExitCode, time::Duration};

use anyhow::bail;
use mq_netem::{Controller, Direction, Link, Shape, Standing};

use super::args::{parse_duration, way};
use crate::{lab::placement::TrafficDirection, report};

/// Options of `net`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
    /// Directory for the state of interfaces before a change
    #[arg(long, value_name = "DIR", default_value = Controller::DIRECTORY, global = true)]
    state: PathBuf,
}

#[derive(clap::Subcommand, Clone, Debug)]
enum Command {
    /// Shape the packets that leave by an interface, until Ctrl-C or while COMMAND runs; then restore the interface
    Apply(ApplyArgs),
    /// Print the queueing disciplines of an interface, or of all
    Show {
        /// An interface such as eth0
        #[arg(value_name = "IFACE")]
        interface: Option<String>,
    },
    /// Restore an interface, or all: after --keep, or after a program was killed
    Clear {
        /// An interface such as eth0
        #[arg(value_name = "IFACE")]
        interface: Option<String>,
    },
    /// Compare an interface with a link: the kernel's settings, and the delay and loss of pings
    Check(CheckArgs),
}

/// An interface, and the link for it.
#[derive(clap::Args, Clone, Debug)]
struct Target {
    /// The interface whose outgoing packets are shaped, such as eth0
    #[arg(value_name = "IFACE")]
    interface: String,
    /// A shipped link such as s22/wifi@loss=5%, or a file that ends in .toml
    #[arg(value_name = "LINK")]
    link: String,
    /// Direction of the link: up on the clients' machine, down on the broker's
    #[arg(long, default_value = "up", value_parser = way())]
    direction: TrafficDirection,
}

#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a switch of the command line"
)]
#[derive(clap::Args, Clone, Debug)]
struct ApplyArgs {
    #[command(flatten)]
    target: Target,
    /// Print the equivalent lines for tc, and change nothing
    #[arg(long, conflicts_with_all = ["keep", "command"])]
    print: bool,
    /// Return at once and leave the link set until `mqbench net clear`
    #[arg(long, conflicts_with = "command")]
    keep: bool,
    /// Print `ready` as a line of its own when the link is set
    #[arg(long, conflicts_with_all = ["print", "keep", "command"])]
    announce: bool,
    /// Continue even if the SSH session of this command passes the interface
    #[arg(long)]
    even_ssh: bool,
    /// Run this with the link set, and end with its exit code
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

#[derive(clap::Args, Clone, Debug)]
struct CheckArgs {
    #[command(flatten)]
    target: Target,
    /// Ping this host through the interface as well; its answers must not be shaped
    #[arg(long, value_name = "ADDRESS")]
    peer: Option<IpAddr>,
    /// Number of pings
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..=60000))]
    count: u16,
    /// Round-trip time of the network itself: tolerance above the configured one
    #[arg(long, value_name = "TIME", default_value = "5ms", value_parser = parse_duration)]
    tolerance: Duration,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    match &args.command {
        Command::Apply(apply) => apply::run(apply, &args.state),
        Command::Show { interface } => {
            let standing = Controller::open(&args.state)?.show(interface.as_deref())?;
            report::print(&standing.iter().map(describe).collect::<String>())?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Clear { interface } => {
            let cleared = Controller::open(&args.state)?.clear(interface.as_deref())?;
            let lines = cleared.iter().map(|cleared| format!("{cleared}\n"));
            report::print(&lines.collect::<String>())?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Check(check) => check::run(check, &args.state),
    }
}

impl Target {
    /// Loads and checks the direction of the link.
    fn load(&self) -> anyhow::Result<Direction> {
        let direction = self.direction.in_link(Link::load(&self.link)?);
        if direction == Direction::default() {
            bail!(
                "{} does nothing {}: choose the other --direction, or add something such as \
                 @{}.loss=5%",
                self.link,
                self.direction.name(),
                self.direction.name()
            );
        }
        Ok(direction)
    }

    /// Returns the names of the link and its direction.
    fn name(&self) -> String {
        format!("{} {}", self.link, self.direction.name())
    }

    /// Returns the kernel's form of the direction. An interface that does not exist here counts as one with Ethernet's
    /// MTU.
    fn shape(&self, direction: &Direction) -> anyhow::Result<Shape> {
        let mtu = std::fs::read_to_string(format!("/sys/class/net/{}/mtu", self.interface));
        let mtu = mtu.ok().and_then(|mtu| mtu.trim().parse().ok());
        Ok(Shape::new(direction, mtu.unwrap_or(1500))?)
    }
}

/// Formats a line for the interface, followed by further disciplines and by the link and its owner.
fn describe(standing: &Standing) -> String {
    let mut text = format!("{}: {}\n", standing.interface, standing.root);
    for other in &standing.others {
        text.push_str(&format!("  {other}\n"));
    }
    if let (Some(link), Some(before)) = (&standing.link, &standing.before) {
        let until = match &standing.process {
            Some(process) => format!("until process {process} ends"),
            None => format!("until `mqbench net clear {}`", standing.interface),
        };
        text.push_str(&format!("  {link}, {until}; then {before}\n"));
    }
    text
}
