//! Clients that get as far as a phase of their connection, and hold it there.

use std::{fmt::Debug, time::Duration};

use anyhow::Context as _;
use mq_transport::{Address, ConnectOptions, Connector, Link, Scheme};
use serde::{Deserialize, Serialize};
use tokio::{task::JoinSet, time::timeout};

use super::storm::{AT_ONCE, Devices, ON_ONE_SOCKET};
use crate::mqtt::MqttOptions;

/// Time within which a client has to get as far as its phase.
const REACHED_WITHIN: Duration = Duration::from_secs(30);

/// Round trip that a QUIC client assumes whose first packet is all that comes: it sends it again after three of them, when nobody
/// watches any more.
const NO_SECOND_PACKET: Duration = Duration::from_mins(2);

/// The last phase of a connection that a client reaches before it vanishes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Phase {
    /// The client's first packet has reached the broker's host, and no answer reaches the client.
    Dialled,
    /// The TCP connection is open, and the client has sent nothing.
    Opened,
    /// The handshakes of the transport and of TLS are complete, and the client has sent no CONNECT.
    Secured,
    /// The client has its CONNACK.
    #[default]
    Session,
}

/// Clients in one phase, as long as this value lives.
#[derive(Debug)]
pub(crate) enum HalfOpen {
    /// Dials without an answer.
    Dialling(#[expect(dead_code, reason = "dropping it ends them")] JoinSet<()>),
    Linked(#[expect(dead_code, reason = "dropping it ends them")] Vec<Link>),
    Devices(#[expect(dead_code, reason = "dropping it ends them")] Devices),
}

impl HalfOpen {
    /// Lets `count` clients get as far as `phase`.
    ///
    /// # Errors
    /// If one does not.
    pub(crate) async fn reach(
        phase: Phase,
        count: u64,
        mqtt: &MqttOptions,
        (address, options): (&Address, &ConnectOptions),
    ) -> anyhow::Result<Self> {
        match phase {
            Phase::Dialled => dial(count, address, options).map(Self::Dialling),
            Phase::Opened => {
                let address = Address {
                    scheme: Scheme::Tcp,
                    ..address.clone()
                };
                link(count, &address, options).await.map(Self::Linked)
            }
            Phase::Secured => link(count, address, options).await.map(Self::Linked),
            Phase::Session => {
                let devices = Devices::connect(count, mqtt, (address, options)).await?;
                Ok(Self::Devices(devices))
            }
        }
    }
}

fn dial(count: u64, address: &Address, options: &ConnectOptions) -> anyhow::Result<JoinSet<()>> {
    let mut dials = JoinSet::new();
    let mut options = options.clone();
    options.quic.initial_rtt = NO_SECOND_PACKET;
    let mut connectors = Connectors::new(&options)?;
    for number in 0..count {
        let (connector, address) = (connectors.of(number)?, address.clone());
        dials.spawn(async move {
            let _ = connector.connect(&address).await;
        });
    }
    Ok(dials)
}

async fn link(
    count: u64,
    address: &Address,
    options: &ConnectOptions,
) -> anyhow::Result<Vec<Link>> {
    let mut links = Vec::new();
    let mut dials = JoinSet::new();
    let mut connectors = Connectors::new(options)?;
    for number in 0..count {
        if dials.len() == AT_ONCE {
            links.extend(next(&mut dials).await?);
        }
        let (connector, address) = (connectors.of(number)?, address.clone());
        dials.spawn(async move { timeout(REACHED_WITHIN, connector.connect(&address)).await });
    }
    while let Some(link) = next(&mut dials).await? {
        links.push(link);
    }
    Ok(links)
}

type Dialled = Result<Result<Link, mq_transport::Error>, tokio::time::error::Elapsed>;

async fn next(dials: &mut JoinSet<Dialled>) -> anyhow::Result<Option<Link>> {
    let Some(dialled) = dials.join_next().await else {
        return Ok(None);
    };
    let link = dialled.context("a dial's task failed")?;
    let link = link.context("a client cannot get as far as its phase")?;
    Ok(Some(link.context("a client cannot connect")?))
}

/// Connectors of a crowd, each of a few clients.
struct Connectors<'a> {
    options: &'a ConnectOptions,
    last: Connector,
}

impl<'a> Connectors<'a> {
    fn new(options: &'a ConnectOptions) -> anyhow::Result<Self> {
        let last = Connector::new(options.clone())?;
        Ok(Self { options, last })
    }

    /// Returns the connector of a client; the clients' numbers ascend.
    fn of(&mut self, number: u64) -> anyhow::Result<Connector> {
        if number > 0 && number.is_multiple_of(ON_ONE_SOCKET) {
            self.last = Connector::new(self.options.clone())?;
        }
        // No client resumes another one's session.
        Ok(self
            .last
            .with_ticket_cache(mq_transport::TicketCache::default()))
    }
}
