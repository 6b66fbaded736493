//! The interface that the user's SSH session goes through: slowing it down would lock the user out.

use std::{collections::BTreeSet, fs, net::IpAddr};

use super::netlink::{Interface, Netlink, Refused};

/// An SSH session: the client's address and this machine's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Session {
    client: IpAddr,
    server: IpAddr,
}

/// Returns `true` if packets of an SSH session that this process or an ancestor runs in arrive or leave by `interface`,
/// or by an interface on top of it (bridge, bond, VLAN).
pub(super) fn goes_through(
    interface: &Interface,
    all: &[Interface],
    netlink: &Netlink,
) -> Result<bool, Refused> {
    let addresses = netlink.addresses()?;
    let mut ways = BTreeSet::new();
    for session in sessions() {
        let own = |(index, address): &(u32, IpAddr)| (*address == session.server).then_some(*index);
        let arrives = addresses.iter().find_map(own);
        // An address of another namespace, or of an old session.
        if arrives.is_some() {
            ways.extend(arrives);
            ways.extend(netlink.way_to(session.client));
        }
    }
    Ok(underneath(ways, all).contains(&interface.index))
}

/// Returns these interfaces and those below them: the ports of a bridge, the interface of a VLAN.
fn underneath(mut found: BTreeSet<u32>, all: &[Interface]) -> BTreeSet<u32> {
    loop {
        let lower = all.iter().flat_map(|interface| {
            let port = interface
                .master
                .filter(|master| found.contains(master))
                .map(|_| interface.index);
            let below = interface.lower.filter(|_| found.contains(&interface.index));
            port.into_iter().chain(below)
        });
        let more: Vec<u32> = lower.filter(|index| !found.contains(index)).collect();
        if more.is_empty() {
            return found;
        }
        found.extend(more);
    }
}

/// Returns the SSH sessions of this process and of its ancestors: `sudo` removes the variable, but the shell that ran
/// it still has it.
fn sessions() -> Vec<Session> {
    let own = std::env::var("SSH_CONNECTION");
    let mut sessions: Vec<_> = own
        .ok()
        .and_then(|text| session(&text))
        .into_iter()
        .collect();
    let mut process = Some(std::process::id());
    while let Some(id) = process.filter(|id| *id > 1) {
        let environment = fs::read(format!("/proc/{id}/environ")).unwrap_or_default();
        sessions.extend(in_environment(&environment));
        process = fs::read_to_string(format!("/proc/{id}/stat"))
            .ok()
            .and_then(|stat| parent(&stat));
    }
    sessions
}

fn in_environment(environment: &[u8]) -> Option<Session> {
    let mut variables = environment.split(|byte| *byte == 0);
    let value = variables.find_map(|variable| variable.strip_prefix(b"SSH_CONNECTION="))?;
    session(&String::from_utf8_lossy(value))
}

/// Parses `client port server port`, as in `SSH_CONNECTION`.
fn session(text: &str) -> Option<Session> {
    let mut words = text.split_whitespace();
    let mut address = || {
        let word = words.next()?;
        words.next()?;
        // A `%` is followed by the interface of a link-local address.
        let address: IpAddr = word.split('%').next()?.parse().ok()?;
        Some(address.to_canonical())
    };
    Some(Session {
        client: address()?,
        server: address()?,
    })
}

/// Reads the parent's identifier from /proc/ID/stat: state and parent follow the name, which may contain anything.
fn parent(stat: &str) -> Option<u32> {
    let (_, behind) = stat.rsplit_once(')')?;
    behind.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_found_in_an_environment() {
        let environment = b"A=1\0SSH_CONNECTION=10.0.0.9 50000 10.0.0.1 22\0B=2\0";
        let session = in_environment(environment).unwrap();
        assert_eq!(session.client, IpAddr::from([10, 0, 0, 9]));
        assert_eq!(session.server, IpAddr::from([10, 0, 0, 1]));
        assert_eq!(in_environment(b"MY_SSH_CONNECTION=1 2 3 4\0"), None);
        let v6 = super::session("fe80::9%eth0 50000 ::ffff:10.0.0.1 22").unwrap();
        assert_eq!(v6.server, IpAddr::from([10, 0, 0, 1]));
        assert_eq!(super::session("10.0.0.9 50000"), None);
    }

    #[test]
    fn a_parent_is_found_behind_any_name() {
        assert_eq!(parent("7 (a) b) 1 (c) S 42 7 7 0"), Some(42));
        assert_eq!(parent("7"), None);
    }

    #[test]
    fn interfaces_below_a_bridge_and_a_vlan_carry_the_session_too() {
        let interface = |index, master, lower| Interface {
            index,
            master,
            lower,
            ..Interface::default()
        };
        // 5 is a VLAN on the bridge 4, whose ports are 2 and 3; 6 has nothing to do with it.
        let all = [
            interface(2, Some(4), None),
            interface(3, Some(4), None),
            interface(4, None, None),
            interface(5, None, Some(4)),
            interface(6, Some(7), None),
            interface(7, None, None),
        ];
        let found = underneath(BTreeSet::from([5]), &all);
        assert_eq!(found, BTreeSet::from([2, 3, 4, 5]));
    }
}
