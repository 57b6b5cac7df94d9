//! The entries of the lists of allowed and forbidden destinations.

use std::{net::IpAddr, str::FromStr};

use ipnet::IpNet;

use crate::address::is_in_network;

/// An entry of a list: a set of destinations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EgressRule {
    /// A network on every port: `10.0.0.0/8`, or a single address.
    Network(IpNet),
    /// An address on one port: `10.0.0.7:8080`, `[fd00::7]:8080`.
    Address(IpAddr, u16),
    /// A host name on one port: `metrics.internal:9090`. It applies to every address that the name resolves to.
    Name(String, u16),
}

impl EgressRule {
    /// Returns true if the entry covers `host`, the requested name or an address as text, at `ip` and `port`.
    #[must_use]
    pub fn matches(&self, host: &str, ip: Option<IpAddr>, port: u16) -> bool {
        match self {
            Self::Network(net) => ip.is_some_and(|ip| is_in_network(ip, net)),
            Self::Address(address, only) => {
                *only == port && ip.is_some_and(|ip| is_in_network(ip, &IpNet::from(*address)))
            }
            Self::Name(name, only) => *only == port && name == host,
        }
    }
}

impl FromStr for EgressRule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(net) = text.parse() {
            return Ok(Self::Network(net));
        }
        if let Ok(ip) = text.parse::<IpAddr>() {
            return Ok(Self::Network(ip.into()));
        }
        let wrong = || {
            format!(
                "{text:?}: give a host name or an address with its port, such as metrics.internal:9090, or a network, such as 10.0.0.0/8"
            )
        };
        let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
        let port = port.parse().ok().filter(|port| *port > 0).ok_or_else(wrong)?;
        if let Ok(ip) = host.trim_start_matches('[').trim_end_matches(']').parse() {
            return Ok(Self::Address(ip, port));
        }
        let is_name = (1..=253).contains(&host.len())
            && host.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_'));
        if !is_name {
            return Err(wrong());
        }
        Ok(Self::Name(crate::normalize_host(host), port))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rule_matches_its_destinations_only() {
        for (rule, host, ip, port, means) in [
            ("10.0.0.0/8", "a.test", "10.1.2.3", 80, true),
            ("10.0.0.0/8", "a.test", "::ffff:10.1.2.3", 80, true),
            ("10.0.0.0/8", "a.test", "64:ff9b::a01:203", 80, true),
            ("10.0.0.0/8", "a.test", "11.1.2.3", 80, false),
            ("127.0.0.1", "a.test", "127.0.0.1", 9, true),
            ("127.0.0.1:80", "a.test", "127.0.0.1", 80, true),
            ("127.0.0.1:80", "a.test", "127.0.0.1", 81, false),
            ("[::1]:80", "a.test", "::1", 80, true),
            ("fd00::/8", "a.test", "fd00::1", 80, true),
            ("Metrics.Internal.:90", "metrics.internal", "10.0.0.1", 90, true),
            ("metrics.internal:90", "metrics.internal", "10.0.0.1", 91, false),
            ("metrics.internal:90", "evil.metrics.internal", "10.0.0.1", 90, false),
        ] {
            let parsed: EgressRule = rule.parse().expect("a rule");
            assert_eq!(parsed.matches(host, Some(ip.parse().expect("an address")), port), means, "{rule} {host} {ip}");
        }
    }

    #[test]
    fn incomplete_rule_is_refused() {
        for text in ["", "name", "name:", "name:0", "name:70000", "na me:80", "http://name:80", "10.0.0.0/33", "*:80"] {
            assert!(text.parse::<EgressRule>().is_err(), "{text}");
        }
    }
}
