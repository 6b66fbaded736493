//! Devices that hold a connection, and reconnect when their broker is restarted.
//!
//! Each device is a client with tickets of its own. Over QUIC a few of them share a UDP socket. A device reconnects by
//! the client library's default, [`Reconnect::default`]. No device publishes or subscribes.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use mq_client::{Client, Event, EventStream, Reconnect};
use mq_measure::result::ConnectKind;
use mq_transport::{Address, ConnectOptions};
use tokio::{
    task::JoinSet,
    time::{timeout, timeout_at},
};

use super::connect::kind_of;
use crate::{
    clock::nanoseconds,
    mqtt::{MqttOptions, Route},
};

/// Number of devices that dial at a time before the restart, and disconnect at a time after it. The broker bounds its
/// handshakes, and the measured crowd comes later.
pub(super) const AT_ONCE: usize = 64;

/// Number of devices that share a UDP socket over QUIC. With a socket each, a device took 2.3 MB, and 10,000 of them 23
/// GB. The broker lets 64 clients of one address and port wait at a time.
pub(super) const ON_ONE_SOCKET: u64 = 16;

/// Time for the disconnects of all devices, after the measurement.
const GOODBYE: Duration = Duration::from_secs(20);

/// Connected devices, which reconnect on their own.
#[derive(Debug)]
pub(crate) struct Devices(Vec<Client>);

impl Devices {
    /// Connects `count` devices.
    ///
    /// # Errors
    /// If a device cannot connect. The others are dropped then.
    pub(crate) async fn connect(
        count: u64,
        mqtt: &MqttOptions,
        (address, options): (&Address, &ConnectOptions),
    ) -> anyhow::Result<Self> {
        let mut clients = Vec::new();
        let mut dials = JoinSet::new();
        let new_route = || Route::new((address.clone(), options.clone()));
        let mut route = new_route()?;
        for number in 0..count {
            if number > 0 && number % ON_ONE_SOCKET == 0 {
                route = new_route()?;
            }
            if dials.len() == AT_ONCE {
                clients.extend(next(&mut dials).await?);
            }
            dials.spawn(connect(number, mqtt.clone(), route.for_another_device()));
        }
        while let Some(client) = next(&mut dials).await? {
            clients.push(client);
        }
        Ok(Self(clients))
    }

    /// Watches for each device's first connection from now on.
    pub(crate) fn watch(&self) -> ReturnWatch {
        let since = Instant::now();
        let mut returns = JoinSet::new();
        for client in &self.0 {
            returns.spawn(back(client.events(), since));
        }
        ReturnWatch { returns }
    }

    /// Disconnects all devices, within [`GOODBYE`].
    pub(crate) async fn disconnect(self) {
        let goodbyes = async {
            let mut ending = JoinSet::new();
            for client in self.0 {
                if ending.len() == AT_ONCE {
                    ending.join_next().await;
                }
                ending.spawn(async move { client.disconnect().await });
            }
            while ending.join_next().await.is_some() {}
        };
        // A device without a connection has no broker to disconnect from.
        let _ = timeout(GOODBYE, goodbyes).await;
    }
}

/// A device's first connection after the restart.
#[derive(Clone, Copy, Debug)]
struct DeviceReturn {
    connack_at: Instant,
    kind: ConnectKind,
}

/// A task for each device, which ends once the device is connected again.
#[derive(Debug)]
pub(crate) struct ReturnWatch {
    returns: JoinSet<Option<DeviceReturn>>,
}

impl ReturnWatch {
    /// Waits until all devices are back, for `patience` from `ready` on at most. `nearly_all` is called as soon as 99 %
    /// of them are back.
    pub(crate) async fn wait(
        mut self,
        ready: Instant,
        patience: Duration,
        nearly_all: impl FnOnce() -> anyhow::Result<()>,
    ) -> anyhow::Result<DeviceReturns> {
        let devices = self.returns.len();
        let deadline = tokio::time::Instant::from_std(ready) + patience;
        let mut nearly_all = Some(nearly_all);
        let mut returned = DeviceReturns {
            devices,
            after_ns: Vec::new(),
            kinds: BTreeMap::new(),
        };
        while let Ok(Some(ended)) = timeout_at(deadline, self.returns.join_next()).await {
            let Some(back) = ended.context("a device's task failed")? else {
                continue;
            };
            let after = back.connack_at.saturating_duration_since(ready);
            returned.after_ns.push(nanoseconds(after));
            *returned.kinds.entry(back.kind).or_default() += 1;
            if returned.after_ns.len() == rank(devices, 99)
                && let Some(nearly_all) = nearly_all.take()
            {
                nearly_all()?;
            }
        }
        returned.after_ns.sort_unstable();
        Ok(returned)
    }
}

/// The devices that are connected again.
#[derive(Debug)]
pub(crate) struct DeviceReturns {
    /// Number of all devices, connected again or not.
    devices: usize,
    /// Time from the broker's readiness until CONNACK of each device that is connected again, ascending.
    pub(crate) after_ns: Vec<u64>,
    /// Number of devices by the kind of their new connection.
    pub(crate) kinds: BTreeMap<ConnectKind, u64>,
}

impl DeviceReturns {
    /// Returns the time until this percentage of all devices was connected again; `None` if that was never.
    pub(crate) fn until_ns(&self, percent: usize) -> Option<u64> {
        let rank = rank(self.devices, percent);
        self.after_ns.get(rank.checked_sub(1)?).copied()
    }

    /// Returns the number of devices that are not connected again.
    pub(crate) fn missing(&self) -> u64 {
        (self.devices - self.after_ns.len()) as u64
    }
}

/// Returns the number of devices that is this percentage of all, rounded up.
fn rank(devices: usize, percent: usize) -> usize {
    (devices * percent).div_ceil(100)
}

/// Waits for the next client that has connected; returns `None` once no dial is under way.
async fn next(dials: &mut JoinSet<anyhow::Result<Client>>) -> anyhow::Result<Option<Client>> {
    let dial = dials.join_next().await.transpose();
    dial.context("a dial's task failed")?.transpose()
}

/// Connects a device that reconnects whenever it loses its connection.
async fn connect(number: u64, mqtt: MqttOptions, route: Route) -> anyhow::Result<Client> {
    let builder = mqtt.builder(&route, &format!("mqbench-device-{number}"))?;
    let client = builder.reconnect(Reconnect::default()).build().await;
    client.with_context(|| format!("device {number} cannot connect"))
}

/// Waits for a connection later than `since`; `None` if the client ends without one.
async fn back(mut events: EventStream, since: Instant) -> Option<DeviceReturn> {
    while let Some(event) = events.recv().await {
        if let Event::Connected(connected) = event
            && connected.times.connack_at >= since
        {
            let times = connected.times;
            return Some(DeviceReturn {
                connack_at: times.connack_at,
                kind: kind_of(times.handshake, times.early_data),
            });
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn returned(devices: usize, after_ns: Vec<u64>) -> DeviceReturns {
        DeviceReturns {
            devices,
            after_ns,
            kinds: BTreeMap::new(),
        }
    }

    #[test]
    fn shares_are_of_all_devices_and_not_of_those_that_came_back() {
        let all = returned(200, (1..=200).collect());
        assert_eq!(all.until_ns(50), Some(100));
        assert_eq!(all.until_ns(99), Some(198));
        assert_eq!((all.until_ns(100), all.missing()), (Some(200), 0));
        let some = returned(200, (1..=197).collect());
        assert_eq!(some.until_ns(50), Some(100));
        assert_eq!((some.until_ns(99), some.missing()), (None, 3));
        // A single device is already 1 % of all.
        assert_eq!(returned(1, vec![7]).until_ns(50), Some(7));
        assert_eq!(returned(0, Vec::new()).until_ns(50), None);
    }

    #[tokio::test]
    async fn a_device_that_never_comes_back_is_waited_for_no_longer_than_the_patience() {
        let (mut returns, ready) = (JoinSet::new(), Instant::now());
        for number in 0..100_u64 {
            returns.spawn(async move {
                match number {
                    // This device never returns, as a dial that hangs.
                    0 => std::future::pending().await,
                    // This device's client gives up.
                    1 => None,
                    _ => Some(DeviceReturn {
                        connack_at: ready + Duration::from_millis(number),
                        kind: ConnectKind::Full,
                    }),
                }
            });
        }
        let mut seen = false;
        let nearly_all = || {
            seen = true;
            Ok(())
        };
        let watch = ReturnWatch { returns };
        let patience = Duration::from_millis(100);
        let returned = watch.wait(ready, patience, nearly_all).await.unwrap();
        assert_eq!(
            (returned.missing(), returned.kinds[&ConnectKind::Full]),
            (2, 98)
        );
        assert_eq!(returned.until_ns(50), Some(51_000_000));
        assert_eq!(returned.until_ns(99), None);
        assert!(!seen, "99 % were never back");
        let waited = ready.elapsed();
        assert!(waited >= patience, "{waited:?}");
    }
}
