//! `mqbench clock serve`: answers any machine that asks for the time.

use std::{
    cell::Cell,
    convert::Infallible,
    io::ErrorKind::{ConnectionRefused, ConnectionReset},
    net::{IpAddr, Ipv4Addr, SocketAddr},
    time::Duration,
};

use anyhow::Context as _;
use mq_measure::clock::{DATAGRAM, Kind, Probe};
use tokio::net::UdpSocket;

use super::{PORT, socket::Stamped};
use crate::{
    clock::{WallClock, chrony, host_name},
    report,
};

/// Interval at which chrony is asked for this clock's error bound, which changes no faster.
const BOUND_EVERY: Duration = Duration::from_secs(30);

/// Options of `clock serve`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Args {
    /// Address to listen at
    #[arg(
        long,
        value_name = "ADDRESS",
        default_value_t = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), PORT)
    )]
    listen: SocketAddr,
}

pub(super) async fn run(args: &Args) -> anyhow::Result<()> {
    let clock = WallClock::from_env()?;
    let socket = UdpSocket::bind(args.listen)
        .await
        .with_context(|| format!("cannot listen at udp://{}", args.listen))?;
    let address = socket.local_addr().context("cannot listen")?;
    let socket = Stamped::new(socket, clock).context("cannot stamp datagrams")?;
    report::print(&format!("telling the time at {address}\n"))?;
    let bound = Cell::new(None);
    tokio::select! {
        ended = answer(&socket, &bound) => match ended? {},
        never = refresh_bound(&bound) => match never {},
        interrupted = tokio::signal::ctrl_c() => Ok(interrupted?),
    }
}

/// Answers each question.
async fn answer(socket: &Stamped, bound: &Cell<Option<u64>>) -> anyhow::Result<Infallible> {
    let host = host_name();
    // The buffer is one byte longer than a question, so that a longer datagram is recognised.
    let mut buffer = [0; DATAGRAM + 1];
    loop {
        let arrival = match socket.receive(&mut buffer).await {
            Ok(arrival) => arrival,
            // An ICMP error: a machine that has asked is no longer there.
            Err(error) if matches!(error.kind(), ConnectionRefused | ConnectionReset) => continue,
            Err(error) => return Err(error).context("cannot receive"),
        };
        let question = Probe::decode(&buffer[..arrival.length]);
        let Some(question) = question.filter(|probe| probe.kind == Kind::Question) else {
            continue;
        };
        let answer = question.answer(arrival.at_ns, socket.now_ns(), bound.get(), &host);
        // An answer that cannot be sent counts as lost, like one that the path loses.
        let _ = socket
            .socket()
            .send_to(&answer.encode(), arrival.from)
            .await;
    }
}

/// Keeps this clock's error bound up to date.
async fn refresh_bound(bound: &Cell<Option<u64>>) -> Infallible {
    loop {
        bound.set(chrony::error_bound_ns().await);
        tokio::time::sleep(BOUND_EVERY).await;
    }
}
