//! `mqbench agent`: what runs on each host of a testbed.

use std::{
    ffi::OsString,
    net::{IpAddr, Ipv6Addr, SocketAddr},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context as _;

use crate::{
    agent::{LEASE, Server, open_code},
    args::duration,
    report,
};

/// Where an agent listens unless it is told otherwise.
pub(crate) const PORT: u16 = 7883;

/// Options of `agent`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
    /// Where it keeps its key, who may ask it, and its work folder
    #[arg(
        long,
        value_name = "DIR",
        default_value = "/var/lib/mqbench",
        global = true
    )]
    state: PathBuf,
}

#[derive(clap::Subcommand, Clone, Debug)]
enum Action {
    /// Listen, and do what an enrolled controller asks
    Run {
        /// Where to listen, one UDP port
        #[arg(long, value_name = "ADDRESS", default_value_t = SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), PORT))]
        listen: SocketAddr,
        /// Clean up when nothing was heard of the controller for this long
        #[arg(long, value_name = "TIME", default_value = "30s", value_parser = lease)]
        lease: Duration,
        /// Take no other program from a controller, and go on as none that was taken before
        #[arg(long)]
        no_upgrade: bool,
    },
    /// Print the code by which one controller can enrol here, within ten minutes
    Code,
}

fn lease(text: &str) -> Result<Duration, String> {
    let time = duration(text)?;
    if (Duration::from_secs(1)..=LEASE).contains(&time) {
        Ok(time)
    } else {
        Err("it is between 1s and 30s, which controllers count on".to_owned())
    }
}

pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    match args.action {
        Action::Run {
            listen,
            lease,
            no_upgrade,
        } => serve(&args.state, listen, lease, !no_upgrade).await,
        Action::Code => {
            let code = open_code(&args.state)?;
            report::print(&format!("{code}\n"))
        }
    }
}

async fn serve(
    state: &Path,
    listen: SocketAddr,
    lease: Duration,
    is_upgradable: bool,
) -> anyhow::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};

    let program = std::env::current_exe().context("cannot find this program's own file")?;
    let server = Server::open(state, listen, program, lease, is_upgradable).await?;
    let address = server.address();
    let again = again(state, SocketAddr::new(listen.ip(), address.port), lease);
    if let Some(successor) = server.successor()? {
        let error = successor.execute(&again);
        eprintln!("mqbench agent: {error:#}; going on with what is installed");
    }
    report::print(&format!("{address}\n"))?;
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        successor = server.run() => Err(successor?.execute(&again)),
        _ = terminate.recv() => Ok(()),
    }
}

/// What a program is told that goes on in this one's place. Every later version has to know it.
fn again(state: &Path, listen: SocketAddr, lease: Duration) -> Vec<OsString> {
    vec![
        "agent".into(),
        "run".into(),
        format!("--listen={listen}").into(),
        format!("--lease={}ms", lease.as_millis()).into(),
        "--state".into(),
        state.into(),
    ]
}
