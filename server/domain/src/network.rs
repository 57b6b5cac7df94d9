//! Networks whose requests are counted together.

use std::net::{IpAddr, Ipv6Addr};

/// Returns the network of an address: an IPv4 address alone, and for IPv6 the /64, because one household can use all of
/// it. An IPv4 address that is written as IPv6 counts as IPv4.
#[must_use]
pub fn network_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
    }
}

/// Returns true if an address belongs to this machine or to a private network, as that of a proxy usually does.
#[must_use]
pub fn is_private(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(address) => {
            let [a, b, ..] = address.octets();
            // 100.64.0.0/10 is shared by providers and by the load balancers of some clouds.
            let is_shared = a == 100 && b & 0xc0 == 64;
            address.is_loopback() || address.is_private() || address.is_link_local() || is_shared
        }
        IpAddr::V6(address) => address.is_loopback() || address.is_unique_local() || address.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn an_ipv6_network_counts_as_one_address() {
        let network = |text: &str| network_of(address(text)).to_string();
        assert_eq!(network("2001:db8:1:2:3:4:5:6"), network("2001:db8:1:2:ffff::1"));
        assert_ne!(network("2001:db8:1:2::1"), network("2001:db8:1:3::1"));
        assert_eq!(network("::ffff:192.0.2.7"), "192.0.2.7");
        assert_ne!(network("192.0.2.7"), network("192.0.2.8"));
    }

    #[test]
    fn private_addresses_are_recognized() {
        for private in [
            "127.0.0.1",
            "10.1.2.3",
            "172.18.0.1",
            "192.168.1.1",
            "169.254.1.1",
            "100.64.0.1",
            "::1",
            "fd00::1",
            "fe80::1",
        ] {
            assert!(is_private(address(private)), "{private}");
        }
        assert!(is_private(address("::ffff:10.0.0.1")));
        for public in ["203.0.113.9", "172.32.0.1", "100.128.0.1", "2001:db8::1", "::ffff:203.0.113.9"] {
            assert!(!is_private(address(public)), "{public}");
        }
    }
}
