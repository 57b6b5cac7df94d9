//! The distinction between public and special IP addresses.
//!
//! The tables are IANA's registries of special-purpose addresses. For IPv4 they list the exceptions. Of IPv6 only
//! `2000::/3` was ever allocated, so every other address is special, and the table lists the special ones within it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

const fn v4(a: u8, b: u8, c: u8, d: u8, bits: u8) -> Ipv4Net {
    Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), bits)
}

const fn v6(a: u16, b: u16, bits: u8) -> Ipv6Net {
    Ipv6Net::new_assert(Ipv6Addr::new(a, b, 0, 0, 0, 0, 0, 0), bits)
}

const SPECIAL_IPV4_NETWORKS: [Ipv4Net; 16] = [
    v4(0, 0, 0, 0, 8),        // this network; a connection to it reaches this machine
    v4(10, 0, 0, 0, 8),       // private
    v4(100, 64, 0, 0, 10),    // shared between a provider and its customers
    v4(127, 0, 0, 0, 8),      // this machine
    v4(169, 254, 0, 0, 16),   // link-local; clouds serve credentials there
    v4(172, 16, 0, 0, 12),    // private
    v4(192, 0, 0, 0, 24),     // protocol assignments
    v4(192, 0, 2, 0, 24),     // documentation
    v4(192, 88, 99, 0, 24),   // 6to4 relays
    v4(192, 168, 0, 0, 16),   // private
    v4(198, 18, 0, 0, 15),    // benchmarks
    v4(198, 51, 100, 0, 24),  // documentation
    v4(203, 0, 113, 0, 24),   // documentation
    v4(224, 0, 0, 0, 4),      // multicast
    v4(240, 0, 0, 0, 4),      // reserved, and broadcast
    v4(168, 63, 129, 16, 32), // public by its form, but internal to every machine of one large cloud
];

const GLOBAL_IPV6_NETWORK: Ipv6Net = v6(0x2000, 0, 3);
const SPECIAL_IPV6_NETWORKS: [Ipv6Net; 4] = [
    v6(0x2001, 0, 23),     // protocol assignments, among them Teredo, which carries any IPv4 address
    v6(0x2001, 0xdb8, 32), // documentation
    v6(0x2002, 0, 16),     // 6to4, which carries any IPv4 address
    v6(0x3fff, 0, 20),     // documentation
];
/// The prefix of addresses whose last four bytes a translator turns into an IPv4 address.
const NAT64_PREFIX: Ipv6Net = v6(0x64, 0xff9b, 96);

/// Returns the address that a connection finally reaches: the IPv4 address if `ip` only wraps one.
pub(crate) fn canonical_ip(ip: IpAddr) -> IpAddr {
    let IpAddr::V6(v6) = ip else { return ip };
    if let Some(v4) = v6.to_ipv4_mapped() {
        return v4.into();
    }
    if NAT64_PREFIX.contains(&v6) {
        let [.., a, b, c, d] = v6.octets();
        return Ipv4Addr::new(a, b, c, d).into();
    }
    ip
}

/// Returns true if `ip` is on the public internet.
pub(crate) fn is_public(ip: IpAddr) -> bool {
    match canonical_ip(ip) {
        IpAddr::V4(v4) => !SPECIAL_IPV4_NETWORKS.iter().any(|net| net.contains(&v4)),
        IpAddr::V6(v6) => {
            GLOBAL_IPV6_NETWORK.contains(&v6) && !SPECIAL_IPV6_NETWORKS.iter().any(|net| net.contains(&v6))
        }
    }
}

/// Returns true if `ip`, or the IPv4 address that it wraps, is in `net`.
pub(crate) fn is_in_network(ip: IpAddr, net: &IpNet) -> bool {
    net.contains(&ip) || net.contains(&canonical_ip(ip))
}

/// Returns true if `ip` belongs to this machine.
pub(crate) fn is_local_ip(ip: IpAddr) -> bool {
    let ip = canonical_ip(ip);
    // Only an address of this machine can be bound.
    ip.is_loopback() || ip.is_unspecified() || std::net::UdpSocket::bind((ip, 0)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn special_addresses_are_not_public() {
        for (text, public) in [
            ("0.0.0.0", false),
            ("0.1.2.3", false),
            ("9.255.255.255", true),
            ("10.0.0.1", false),
            ("11.0.0.0", true),
            ("100.63.255.255", true),
            ("100.64.0.1", false),
            ("100.127.255.255", false),
            ("100.128.0.0", true),
            ("127.0.0.1", false),
            ("127.255.255.254", false),
            ("128.0.0.1", true),
            ("168.63.129.16", false),
            ("169.254.169.254", false),
            ("172.15.255.255", true),
            ("172.16.0.1", false),
            ("172.31.255.255", false),
            ("172.32.0.0", true),
            ("192.0.0.8", false),
            ("192.0.2.1", false),
            ("192.88.99.1", false),
            ("192.168.1.1", false),
            ("198.18.0.1", false),
            ("198.19.255.255", false),
            ("198.51.100.7", false),
            ("203.0.113.9", false),
            ("223.255.255.255", true),
            ("224.0.0.1", false),
            ("240.0.0.1", false),
            ("255.255.255.255", false),
            ("8.8.8.8", true),
            ("::", false),
            ("::1", false),
            ("::ffff:127.0.0.1", false),
            ("::ffff:8.8.8.8", true),
            ("::7f00:1", false),
            ("64:ff9b::7f00:1", false),
            ("64:ff9b::a9fe:a9fe", false),
            ("64:ff9b::808:808", true),
            ("64:ff9b:1::7f00:1", false),
            ("100::1", false),
            ("2001::1", false),
            ("2001:db8::1", false),
            ("2002:7f00:1::", false),
            ("2606:4700::1111", true),
            ("3fff::1", false),
            ("5f00::1", false),
            ("fc00::1", false),
            ("fd12:3456::1", false),
            ("fe80::1", false),
            ("fec0::1", false),
            ("ff02::1", false),
        ] {
            assert_eq!(is_public(text.parse().expect("an address")), public, "{text}");
        }
    }

    #[test]
    fn local_addresses_are_recognized_when_wrapped() {
        for text in ["127.0.0.1", "127.8.8.8", "0.0.0.0", "::", "::1", "::ffff:127.0.0.1", "64:ff9b::7f00:1"] {
            assert!(is_local_ip(text.parse().expect("an address")), "{text}");
        }
        assert!(!is_local_ip("192.0.2.1".parse().expect("an address")));
    }
}
