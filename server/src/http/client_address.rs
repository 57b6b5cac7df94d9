//! The network address of a client, also behind proxies.
//!
//! The address decides whose failed sign-ins are counted together and is written to the audit log, so a client must not
//! be able to choose it. Any client can send `X-Forwarded-For`. Each proxy appends the address that it received the
//! request from, so the header is read from its end: the first address that is not a trusted proxy is the client's.
//! Everything before it was sent by the client and is ignored.
//!
//! If `PUBLIC_URL` is another address than the one at which the server listens, and no proxy is trusted, a connection
//! from this machine or from a private network may come from a proxy and stand for many clients. The address of the
//! client is then unknown, because a limit for the proxy would let one client keep all others from signing in.
//! `PUBLIC_URL` with the server's own address is the same as none: it is set for the links in messages.

use std::net::{IpAddr, SocketAddr};

use axum::extract::ConnectInfo;
use http::{HeaderMap, request::Parts};
use url::{Host, Url};

use crate::{config::http::HttpConfig, domain::network::is_private};

/// The most entries of `X-Forwarded-For` that are read, from its end. Few installations have more than three proxies.
const MAX_HOPS: usize = 32;

/// Returns the address of the client that sent a request, or `None` if it is unknown.
#[must_use]
pub fn client_address(config: &HttpConfig, parts: &Parts) -> Option<IpAddr> {
    let ConnectInfo(peer) = parts.extensions.get::<ConnectInfo<SocketAddr>>()?;
    client_of(config, peer.ip(), &parts.headers)
}

/// Returns true if a peer may stand for many clients: a trusted proxy, this machine or, while a proxy may be in front of
/// the server and none is trusted, a private network.
#[must_use]
pub fn may_be_proxy(config: &HttpConfig, peer: IpAddr) -> bool {
    peer.to_canonical().is_loopback() || config.is_trusted_proxy(peer) || is_unknown_proxy(config, peer)
}

/// Logs a warning if the addresses of clients are unknown because no proxy is trusted.
pub fn warn_of_unknown_clients(config: &HttpConfig) {
    if has_unknown_proxy(config) {
        tracing::warn!(
            "sign-in attempts from private networks cannot be limited by network address, because PUBLIC_URL is not the \
             address at which this server listens and no proxy is trusted; set TRUSTED_PROXIES to the address of the \
             proxy, or to 127.0.0.1 if there is none"
        );
    }
}

fn is_unknown_proxy(config: &HttpConfig, peer: IpAddr) -> bool {
    is_private(peer) && has_unknown_proxy(config)
}

/// Returns true if a proxy that is not trusted may be in front of the server.
fn has_unknown_proxy(config: &HttpConfig) -> bool {
    config.trusted_proxies.is_empty() && config.public_url.as_deref().is_some_and(|url| !is_own_address(config, url))
}

/// Returns true if a public URL certainly is the address at which the server itself listens: the same IP address, or
/// `localhost`, and the same port. A name or an address of a server that listens on all addresses may be those of a proxy.
fn is_own_address(config: &HttpConfig, public_url: &str) -> bool {
    let Ok(url) = Url::parse(public_url) else { return false };
    let is_own_host = match url.host() {
        Some(Host::Ipv4(address)) => config.host == address,
        Some(Host::Ipv6(address)) => config.host == address,
        Some(Host::Domain(name)) => name == "localhost" && config.host.is_loopback(),
        None => false,
    };
    // The server does not terminate TLS, so something else serves an address with https.
    is_own_host && !config.host.is_unspecified() && url.scheme() == "http" && url.port_or_known_default() == config.port
}

fn client_of(config: &HttpConfig, peer: IpAddr, headers: &HeaderMap) -> Option<IpAddr> {
    let peer = peer.to_canonical();
    if is_unknown_proxy(config, peer) {
        return None;
    }
    let mut client = peer;
    // A line with other than ASCII characters yields one entry that cannot be read, so that nothing before it counts.
    let lines = headers.get_all("x-forwarded-for").iter().map(|line| line.to_str().unwrap_or("?"));
    let hops = lines.rev().flat_map(|line| line.rsplit(','));
    for hop in hops.take(MAX_HOPS) {
        if !config.is_trusted_proxy(client) {
            break;
        }
        // A proxy that is trusted reported something else than an address. It is the last known hop.
        let Some(address) = hop_address(hop) else { break };
        client = address;
    }
    Some(client)
}

/// Parses one entry: an address, possibly in quotes, with brackets around IPv6, and with a port.
fn hop_address(hop: &str) -> Option<IpAddr> {
    let hop = hop.trim().trim_matches('"');
    let address = hop.parse::<IpAddr>().ok().or_else(|| hop.parse::<SocketAddr>().ok().map(|address| address.ip()));
    let bracketed = || hop.strip_prefix('[')?.strip_suffix(']')?.parse::<IpAddr>().ok();
    address.or_else(bracketed).map(|address| address.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(public_url: Option<&str>, trusted: &[&str]) -> HttpConfig {
        HttpConfig {
            public_url: public_url.map(str::to_owned),
            trusted_proxies: trusted.iter().map(|network| network.parse().expect("a network")).collect(),
            ..HttpConfig::default()
        }
    }

    fn client(config: &HttpConfig, peer: &str, forwarded: &[&str]) -> Option<String> {
        let mut headers = HeaderMap::new();
        for line in forwarded {
            headers.append("x-forwarded-for", http::HeaderValue::from_bytes(line.as_bytes()).expect("valid"));
        }
        let peer = peer.parse().expect("an address");
        client_of(config, peer, &headers).map(|address| address.to_string())
    }

    #[test]
    fn the_client_is_the_last_hop_that_is_not_trusted() {
        let config = config(Some("https://jobs.example.org"), &["10.0.0.0/8", "fd00::/8"]);
        let proxy = "10.0.0.1";
        for (peer, forwarded, expected) in [
            // A peer that is no proxy cannot name another address.
            ("203.0.113.9", &["198.51.100.1"][..], "203.0.113.9"),
            ("192.168.1.1", &["198.51.100.1"], "192.168.1.1"),
            // One proxy, and addresses that the client made up before.
            (proxy, &["203.0.113.9"], "203.0.113.9"),
            (proxy, &["198.51.100.1, 203.0.113.9"], "203.0.113.9"),
            (proxy, &["10.0.0.7, 203.0.113.9"], "203.0.113.9"),
            (proxy, &["198.51.100.1", "203.0.113.9"], "203.0.113.9"),
            // Several proxies.
            (proxy, &["203.0.113.9, 10.0.0.2"], "203.0.113.9"),
            (proxy, &["198.51.100.1, 203.0.113.9", "10.0.0.3, fd00::2"], "203.0.113.9"),
            ("fd00::1", &["2001:db8::9"], "2001:db8::9"),
            ("::ffff:10.0.0.1", &["::ffff:203.0.113.9"], "203.0.113.9"),
            // Ports, brackets and quotes.
            (proxy, &["203.0.113.9:4711"], "203.0.113.9"),
            (proxy, &["\"203.0.113.9\""], "203.0.113.9"),
            (proxy, &["[2001:db8::9]"], "2001:db8::9"),
            (proxy, &["\"[2001:db8::9]:4711\""], "2001:db8::9"),
            // Without a readable entry the last known hop remains.
            (proxy, &[], proxy),
            (proxy, &[""], proxy),
            (proxy, &["203.0.113.9,"], proxy),
            (proxy, &["unknown"], proxy),
            (proxy, &["203.0.113.9, unknown"], proxy),
            (proxy, &["203.0.113.9, unknown, 10.0.0.2"], "10.0.0.2"),
            (proxy, &["203.0.113.9, ü"], proxy),
            (proxy, &["203.0.113.9", "ü"], proxy),
            (proxy, &["203.0.113.9.1"], proxy),
            // Only proxies.
            (proxy, &["10.0.0.3, 10.0.0.2"], "10.0.0.3"),
        ] {
            assert_eq!(client(&config, peer, forwarded).as_deref(), Some(expected), "{peer} {forwarded:?}");
        }
    }

    #[test]
    fn at_most_32_hops_are_read() {
        let config = config(None, &["10.0.0.0/8"]);
        let chain = |proxies: usize| format!("203.0.113.9{}", ", 10.0.0.2".repeat(proxies));
        assert_eq!(client(&config, "10.0.0.1", &[&chain(31)]).as_deref(), Some("203.0.113.9"));
        assert_eq!(client(&config, "10.0.0.1", &[&chain(32)]).as_deref(), Some("10.0.0.2"));
    }

    #[test]
    fn the_client_behind_an_unknown_proxy_is_unknown() {
        let public = config(Some("https://jobs.example.org"), &[]);
        for peer in ["127.0.0.1", "172.18.0.1", "::1", "fd00::1"] {
            assert_eq!(client(&public, peer, &["203.0.113.9"]), None, "{peer}");
        }
        assert_eq!(client(&public, "203.0.113.9", &["198.51.100.1"]).as_deref(), Some("203.0.113.9"));
        let local = config(None, &[]);
        assert_eq!(client(&local, "127.0.0.1", &["203.0.113.9"]).as_deref(), Some("127.0.0.1"));
    }

    #[test]
    fn public_url_of_the_server_itself_is_no_proxy() {
        let client_with = |host: &str, public_url: &str| {
            let host = host.parse().expect("an address");
            let config = HttpConfig { host, port: Some(8600), ..config(Some(public_url), &[]) };
            let has_client = client(&config, "127.0.0.1", &["203.0.113.9"]).as_deref() == Some("127.0.0.1");
            assert_eq!(has_unknown_proxy(&config), !has_client);
            has_client
        };
        for (host, public_url) in [
            ("127.0.0.1", "http://127.0.0.1:8600"),
            ("127.0.0.1", "http://localhost:8600"),
            ("127.0.0.1", "http://LOCALHOST:8600/"),
            ("::1", "http://[::1]:8600"),
            ("10.0.0.5", "http://10.0.0.5:8600"),
        ] {
            assert!(client_with(host, public_url), "{host} {public_url}");
        }
        for (host, public_url) in [
            ("127.0.0.1", "http://127.0.0.1:8080"),
            ("127.0.0.1", "http://127.0.0.1"),
            ("127.0.0.1", "https://127.0.0.1:8600"),
            ("127.0.0.1", "http://127.0.0.2:8600"),
            ("127.0.0.1", "http://jobs.example.org:8600"),
            ("127.0.0.1", "http://10.0.0.5:8600"),
            ("10.0.0.5", "http://localhost:8600"),
            ("10.0.0.5", "http://10.0.0.6:8600"),
            ("0.0.0.0", "http://0.0.0.0:8600"),
            ("0.0.0.0", "http://127.0.0.1:8600"),
            ("0.0.0.0", "http://10.0.0.5:8600"),
        ] {
            assert!(!client_with(host, public_url), "{host} {public_url}");
        }
    }

    #[test]
    fn only_possible_proxies_are_exempt_from_limits_per_network() {
        let is_exempt = |config: &HttpConfig, peer: &str| may_be_proxy(config, peer.parse().expect("an address"));
        let trusting = config(Some("https://jobs.example.org"), &["10.0.0.0/8"]);
        for (peer, expected) in
            [("127.0.0.1", true), ("10.0.0.1", true), ("192.168.1.1", false), ("203.0.113.9", false)]
        {
            assert_eq!(is_exempt(&trusting, peer), expected, "{peer}");
        }
        assert!(is_exempt(&config(Some("https://jobs.example.org"), &[]), "192.168.1.1"));
        assert!(!is_exempt(&config(None, &[]), "192.168.1.1"));
    }
}
