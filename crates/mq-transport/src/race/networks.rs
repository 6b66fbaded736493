//! The memory of which address has won on which network.

use std::{
    collections::VecDeque,
    net::IpAddr,
    time::{Duration, Instant},
};

use super::LONGEST;
use crate::{Address, Connector};

/// Networks that are remembered; for one more, the oldest is forgotten. A device moves among few.
const MAX_NETWORKS: usize = 16;

/// The networks on which a race does not begin with the first address.
///
/// A network is known by this side's local address, which costs no packet to find out. Two networks that
/// give the same private address count as one: the client then begins with the second best transport
/// on the wrong network, until the memory ends.
#[derive(Debug)]
pub struct Networks {
    entries: VecDeque<Entry>,
    keep: Duration,
}

#[derive(Debug)]
struct Entry {
    /// Local address on the network; `None` where a transport has no addresses (mem).
    local: Option<IpAddr>,
    index: usize,
    until: Instant,
}

impl Networks {
    /// Makes an empty memory that keeps each winner for `keep`, 30 years at most.
    #[must_use]
    pub fn new(keep: Duration) -> Self {
        Self {
            entries: VecDeque::new(),
            keep: keep.min(LONGEST),
        }
    }

    fn forget_old(&mut self, now: Instant) {
        self.entries.retain(|entry| entry.until > now);
    }

    /// Returns the input of [`order`]; empty if nothing is remembered.
    pub fn remembered(&mut self, now: Instant) -> Remembered {
        self.forget_old(now);
        let entries = self.entries.iter();
        entries.map(|entry| (entry.index, entry.local)).collect()
    }

    /// Records that the address at `index` has won, from the local address `local`.
    ///
    /// The time runs from the defeat of the first address. Later wins do not prolong it, as the first
    /// address was not tried.
    pub fn won(&mut self, index: usize, local: Option<IpAddr>, now: Instant) {
        self.forget_old(now);
        let known = self.entries.iter().position(|entry| entry.local == local);
        if let Some(known) = known {
            if self.entries[known].index == index {
                return;
            }
            self.entries.remove(known);
        }
        let Some(until) = now.checked_add(self.keep) else {
            return;
        };
        if index == 0 || self.keep.is_zero() {
            return;
        }
        if self.entries.len() >= MAX_NETWORKS {
            self.entries.pop_front();
        }
        self.entries.push_back(Entry {
            local,
            index,
            until,
        });
    }
}

/// Winners that are remembered: the index of the address, and the local address that it was reached from.
pub type Remembered = Vec<(usize, Option<IpAddr>)>;

/// Returns the order in which to try `addresses` now: as they are given, with an address that has won on this network
/// in front.
///
/// Finding the network takes a name look-up, which is left out if nothing is remembered, and given up after `patience`: a slow
/// name server must not cost more than a wrong guess.
pub async fn order(
    remembered: Remembered,
    connector: Connector,
    addresses: Vec<Address>,
    patience: Duration,
) -> VecDeque<usize> {
    let as_given = (0..addresses.len()).collect();
    let order = order_here(remembered, connector, addresses);
    let order = tokio::time::timeout(patience, order).await;
    order.unwrap_or(as_given)
}

async fn order_here(
    remembered: Remembered,
    connector: Connector,
    addresses: Vec<Address>,
) -> VecDeque<usize> {
    let mut order: VecDeque<usize> = (0..addresses.len()).collect();
    for (index, address) in addresses.iter().enumerate() {
        // Several families and interfaces: the winner may have come from any of them.
        if remembered.iter().any(|(won, _)| *won == index) {
            let here = connector.local_addresses(address).await;
            let won_here = |(won, local): &(usize, Option<IpAddr>)| {
                *won == index && local.map_or(here.is_empty(), |local| here.contains(&local))
            };
            if remembered.iter().any(won_here) {
                order.retain(|other| *other != index);
                order.push_front(index);
                break;
            }
        }
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_mins(1);

    #[test]
    fn the_time_runs_from_the_defeat_and_the_first_address_ends_it() {
        let start = Instant::now();
        let here: Option<IpAddr> = Some([10, 0, 0, 1].into());
        let mut networks = Networks::new(10 * MINUTE);
        networks.won(1, here, start);
        networks.won(1, here, start + 9 * MINUTE);
        assert_eq!(networks.entries[0].until, start + 10 * MINUTE);
        networks.won(0, here, start + 9 * MINUTE);
        assert!(networks.entries.is_empty());
    }

    #[test]
    fn a_memory_without_limit_lasts() {
        let start = Instant::now();
        let here: Option<IpAddr> = Some([10, 0, 0, 1].into());
        let mut networks = Networks::new(Duration::MAX);
        networks.won(1, here, start);
        let later = start + Duration::from_hours(24 * 365);
        assert_eq!(networks.remembered(later), [(1, here)]);
    }

    #[test]
    fn few_networks_are_remembered() {
        let start = Instant::now();
        let mut networks = Networks::new(10 * MINUTE);
        for last in 0..100 {
            networks.won(1, Some([10, 0, 0, last].into()), start);
        }
        assert_eq!(networks.entries.len(), MAX_NETWORKS);
        assert_eq!(networks.entries[0].local, Some([10, 0, 0, 84].into()));
    }

    #[tokio::test]
    async fn another_network_begins_with_the_first_address() {
        let start = Instant::now();
        let connector = Connector::new(crate::ConnectOptions::default()).unwrap();
        let addresses =
            ["quic://127.0.0.1:1", "mqtts://127.0.0.1:1"].map(|url| url.parse().unwrap());
        let mut networks = Networks::new(10 * MINUTE);
        networks.won(1, Some([10, 0, 0, 1].into()), start);
        let at = async |networks: &mut Networks, minutes: u32| {
            let remembered = networks.remembered(start + minutes * MINUTE);
            order(remembered, connector.clone(), addresses.to_vec(), MINUTE).await
        };
        assert_eq!(at(&mut networks, 0).await, [0, 1]);
        networks.won(1, Some([127, 0, 0, 1].into()), start);
        assert_eq!(at(&mut networks, 9).await, [1, 0]);
        assert_eq!(at(&mut networks, 10).await, [0, 1]);
    }
}
