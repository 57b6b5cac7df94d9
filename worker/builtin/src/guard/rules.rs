//! What the configuration says about addresses: `MILVAION_HTTP_ALLOW` and `MILVAION_HTTP_DENY`.

use std::{net::IpAddr, str::FromStr};

use ipnet::IpNet;

use super::address::is_in_network;

/// One entry of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum EgressRule {
    /// A network on every port: `10.0.0.0/8`, or a single address.
    Network(IpNet),
    /// An address on one port: `10.0.0.7:8080`, `[fd00::7]:8080`.
    Address(IpAddr, u16),
    /// A name on one port: `metrics.internal:9090`. It counts wherever the name leads.
    Name(String, u16),
}

impl EgressRule {
    /// Whether it means `host`, which is the name asked for or an address in text, at `ip` and `port`.
    pub(crate) fn matches(&self, host: &str, ip: Option<IpAddr>, port: u16) -> bool {
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
                "{text:?}: give a name or an address with its port, as in metrics.internal:9090, or a network, as in 10.0.0.0/8"
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
        Ok(Self::Name(super::normalize_host(host), port))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_means_what_it_says_and_nothing_beside() {
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
    fn half_a_rule_is_refused() {
        for text in ["", "name", "name:", "name:0", "name:70000", "na me:80", "http://name:80", "10.0.0.0/33", "*:80"] {
            assert!(text.parse::<EgressRule>().is_err(), "{text}");
        }
    }
}
