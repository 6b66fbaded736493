//! The controller's side.

use std::{net::SocketAddr, path::Path, time::Duration};

use anyhow::{Context as _, bail};
use mq_measure::clock::Exchange;
use mq_transport::{
    Address, ClientIdentity, ConnectOptions, Connector, Error, Link, Scheme, Trust,
};
use sha2::{Digest as _, Sha256};
use tokio::time::timeout;

use super::{
    LEASE, PROTOCOL, SERVER_NAME,
    channel::Channel,
    code::{Code, hex},
    folder::Name,
    identity::ControllerState,
    message::{Reply, Report, Request, State},
    roles::Role,
};
use crate::clock::WallClock;

/// How often a connection shows that this side is there while it waits for an answer: below the shortest
/// lease. Who is there and says nothing is not waited for longer than the lease all the same.
const ALIVE: Duration = Duration::from_millis(300);

/// How long an agent may take to answer: it is on a network that is there to ask it.
const CONNECT: Duration = Duration::from_secs(10);

/// Pieces of files.
const PIECE: usize = 64 << 10;

/// This controller, as agents know it.
#[derive(Debug)]
pub(crate) struct Controller(ControllerState);

impl Controller {
    /// With what `folder` keeps; a key is made where there is none.
    pub(crate) fn open(folder: &Path) -> anyhow::Result<Self> {
        Ok(Self(ControllerState::open(folder)?))
    }

    /// Makes itself known to an agent, with a code that it has made.
    ///
    /// # Errors
    /// If the agent is not the one that made the code, and then nothing is said to it; or what it says.
    pub(crate) async fn enrol(&self, agent: SocketAddr, code: &Code) -> anyhow::Result<Report> {
        let (reply, fingerprint) = self.introduce(agent, code).await?;
        let Reply::Report { report } = granted(serde_json::from_value(reply)?)? else {
            bail!("the agent at {agent} answers something else");
        };
        self.0.remember(agent, &fingerprint)?;
        Ok(*report)
    }

    /// Asks an agent to be known to it; returns what it says, whichever version it has, and the
    /// fingerprint of its certificate.
    pub(super) async fn introduce(
        &self,
        agent: SocketAddr,
        code: &Code,
    ) -> anyhow::Result<(serde_json::Value, String)> {
        // Who it is, its certificate says, which the code knows.
        let link = link(agent, options(Trust::Insecure, None)).await?;
        let info = link.info();
        let certificate = info.peer_certificates.first();
        let certificate = certificate.context("the agent showed no certificate")?;
        if !code.is_of(certificate) {
            bail!("the agent at {agent} is not the one that made this code");
        }
        let fingerprint = sha256(certificate);
        let own = self.0.certificate();
        let own = std::fs::read_to_string(&own)
            .with_context(|| format!("cannot read {}", own.display()))?;
        let mut channel = Channel::new(link);
        let request = Request::Enrol {
            secret: code.secret(),
            certificate: own,
        };
        channel.send_text(&request).await?;
        let reply = channel.receive_text().await?;
        channel.close().await;
        Ok((reply, fingerprint))
    }

    /// Takes an agent for itself.
    pub(crate) async fn connect(&self, agent: SocketAddr) -> anyhow::Result<Agent> {
        let identity = ClientIdentity {
            certificates: self.0.certificate(),
            key: self.0.key(),
        };
        let trust = Trust::Fingerprint(self.0.fingerprint(agent)?);
        let link = link(agent, options(trust, Some(identity))).await?;
        Ok(Agent {
            channel: Channel::new(link),
        })
    }
}

/// An agent that does what it is asked. It has to hear something within [`LEASE`], or it cleans up:
/// [`stay`](Self::stay) is enough.
#[derive(Debug)]
pub(crate) struct Agent {
    channel: Channel,
}

impl Agent {
    /// What its host is.
    pub(crate) async fn report(&mut self) -> anyhow::Result<Report> {
        match self.ask(&Request::Report {}).await? {
            Reply::Report { report } => Ok(*report),
            other => unexpected(&other),
        }
    }

    /// What its clock says, between two looks at this side's.
    pub(crate) async fn clock(&mut self, own: &WallClock) -> anyhow::Result<Exchange> {
        let t1_ns = own.now_ns();
        let reply = self.ask(&Request::Clock {}).await?;
        let t4_ns = own.now_ns();
        match reply {
            Reply::Clock {
                received_ns,
                sent_ns,
            } => Ok(Exchange {
                t1_ns,
                t2_ns: received_ns,
                t3_ns: sent_ns,
                t4_ns,
            }),
            other => unexpected(&other),
        }
    }

    /// Says that somebody is there.
    pub(crate) async fn stay(&mut self) -> anyhow::Result<()> {
        self.ask(&Request::Stay {}).await.map(drop)
    }

    /// Puts a file into its work folder.
    pub(crate) async fn put(&mut self, name: &Name, bytes: &[u8]) -> anyhow::Result<()> {
        let request = Request::Put {
            name: name.clone(),
            size: bytes.len() as u64,
        };
        self.ask(&request).await?;
        for piece in bytes.chunks(PIECE) {
            self.channel.send_piece(piece).await?;
        }
        granted(self.channel.receive_text().await?).map(drop)
    }

    /// A file from its work folder.
    pub(crate) async fn get(&mut self, name: &Name) -> anyhow::Result<Vec<u8>> {
        let size = match self.ask(&Request::Get { name: name.clone() }).await? {
            Reply::File { size } => usize::try_from(size).context("the file is too long")?,
            other => return unexpected(&other),
        };
        let mut bytes = Vec::new();
        while bytes.len() < size {
            bytes.extend_from_slice(&self.channel.receive_piece().await?);
        }
        granted(self.channel.receive_text().await?)?;
        Ok(bytes)
    }

    /// Has it begin with a role; returns its number, and the addresses that a broker listens at.
    pub(crate) async fn start(&mut self, role: Role) -> anyhow::Result<(u32, Vec<String>)> {
        match self.ask(&Request::Start { role }).await? {
            Reply::Started { id, addresses } => Ok((id, addresses)),
            other => unexpected(&other),
        }
    }

    /// What became of a role.
    pub(crate) async fn look(&mut self, id: u32) -> anyhow::Result<State> {
        match self.ask(&Request::Look { id }).await? {
            Reply::State { state } => Ok(state),
            other => unexpected(&other),
        }
    }

    /// Ends a role.
    pub(crate) async fn stop(&mut self, id: u32) -> anyhow::Result<State> {
        match self.ask(&Request::Stop { id }).await? {
            Reply::State { state } => Ok(state),
            other => unexpected(&other),
        }
    }

    /// Has it go on as another program, and lets it go.
    ///
    /// # Errors
    /// Why it does not; then it is as it was.
    pub(crate) async fn upgrade(mut self, program: &[u8]) -> anyhow::Result<()> {
        if let Err(why) = self.hand(program).await {
            // Nothing of it is left there when this is over; why it was not taken matters more.
            let _ = self.close().await;
            return Err(why);
        }
        // It closes the connection when it is about to.
        let _ = timeout(CONNECT, self.channel.receive()).await;
        self.channel.close().await;
        Ok(())
    }

    async fn hand(&mut self, program: &[u8]) -> anyhow::Result<()> {
        let name = Name::try_from("mqbench".to_owned()).map_err(anyhow::Error::msg)?;
        self.put(&name, program).await?;
        let request = Request::Upgrade {
            program: name,
            sha256: sha256(program),
        };
        self.ask(&request).await.map(drop)
    }

    /// Lets it go, once it has cleaned up.
    ///
    /// # Errors
    /// What it could not clean up.
    pub(crate) async fn close(mut self) -> anyhow::Result<()> {
        let left = self.ask(&Request::Leave {}).await;
        self.channel.close().await;
        left.map(drop)
    }

    /// The answer to anything, for tests.
    #[cfg(test)]
    pub(super) async fn raw(&mut self, ask: &serde_json::Value) -> anyhow::Result<Reply> {
        self.channel.send_text(ask).await?;
        self.channel.receive_text().await
    }

    /// Its answer, unless it refuses.
    async fn ask(&mut self, request: &Request) -> anyhow::Result<Reply> {
        self.channel.send_text(request).await?;
        granted(self.channel.receive_text().await?)
    }
}

/// As reports have that of a program.
pub(crate) fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// A link to an agent that speaks as this program does.
async fn link(agent: SocketAddr, options: ConnectOptions) -> anyhow::Result<Link> {
    let link = Connector::new(options)?.connect(&url(agent)).await;
    if let Err(Error::Handshake { reason }) = &link
        // The alert `no_application_protocol`, by its number.
        && reason.contains("120")
    {
        bail!(
            "the agent at {agent} does not speak {}, and cannot be upgraded from here: copy the program there",
            String::from_utf8_lossy(PROTOCOL)
        );
    }
    link.with_context(|| format!("no agent at {agent}"))
}

fn granted(reply: Reply) -> anyhow::Result<Reply> {
    match reply {
        Reply::Refused { why } => bail!("the agent refuses: {why}"),
        reply => Ok(reply),
    }
}

fn unexpected<T>(reply: &Reply) -> anyhow::Result<T> {
    bail!("the agent answers something else: {reply:?}")
}

pub(super) fn url(agent: SocketAddr) -> Address {
    Address::new(Scheme::Quic, agent.ip().to_string(), agent.port())
}

pub(super) fn options(trust: Trust, identity: Option<ClientIdentity>) -> ConnectOptions {
    let mut options = ConnectOptions {
        trust,
        identity,
        server_name: Some(SERVER_NAME.to_owned()),
        alpn: vec![PROTOCOL.to_vec()],
        connect_timeout: CONNECT,
        // Who asks is looked at each time.
        resumption: false,
        ..ConnectOptions::default()
    };
    options.quic.idle_timeout = Some(LEASE);
    options.quic.keep_alive_interval = Some(ALIVE);
    options
}
