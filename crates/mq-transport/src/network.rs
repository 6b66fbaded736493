//! The network that an address counts for.

use std::net::{IpAddr, Ipv6Addr};

/// Returns the network that an address counts for: an IPv4 address itself, or the first 64 bits of
/// an IPv6 address, as one subscriber has all addresses below them (RFC 6177).
#[must_use]
pub fn network_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(ip) => {
            let prefix = u128::from(ip) & (u128::MAX << 64);
            IpAddr::V6(Ipv6Addr::from(prefix))
        }
        v4 @ IpAddr::V4(_) => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_are_counted_by_ipv4_address_and_by_ipv6_network() {
        for (address, counted) in [
            ("192.0.2.7", "192.0.2.7"),
            ("::ffff:192.0.2.7", "192.0.2.7"),
            ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
        ] {
            assert_eq!(network_of(address.parse().unwrap()).to_string(), counted);
        }
    }
}
