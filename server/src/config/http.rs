//! Settings for the HTTP server.

use std::{net::IpAddr, num::NonZeroU32, path::PathBuf};

use ipnet::IpNet;
use url::Url;

use super::EnvReader;

/// The most entries of `TRUSTED_PROXIES`. Every request is compared with all of them.
const MAX_TRUSTED_PROXIES: usize = 64;
/// The part of `TRACE_URL_TEMPLATE` that the id of a trace replaces.
const TRACE_ID_PLACEHOLDER: &str = "{trace_id}";
/// The default of `API_RATE_LIMIT`.
const DEFAULT_API_RATE_LIMIT: NonZeroU32 = NonZeroU32::new(1_200).expect("a positive number");

/// The listening address, the public address and the limits of the HTTP server.
#[derive(Clone, Debug)]
pub struct HttpConfig {
    /// `HOST`: IP address to listen on; `0.0.0.0` accepts connections from other machines. Default `127.0.0.1`.
    pub host: IpAddr,
    /// `PORT`: port to listen on. From 1 to 65,535. Default none: the first free port from 8600 to 8699.
    pub port: Option<u16>,
    /// `PUBLIC_URL`: address at which browsers reach the server, such as that of a proxy. Links in messages of alerts need
    /// it also without a proxy. Starts with `http://` or `https://`; with `https://` cookies are marked Secure. Default
    /// none.
    pub public_url: Option<String>,
    /// `TRUSTED_PROXIES`: addresses and networks of the proxies in front of the server, separated by commas, as in
    /// `127.0.0.1, 10.0.0.0/8`; at most 64. The address of a client is read from the header `X-Forwarded-For` if such a
    /// proxy sent it; failed sign-ins are then limited per client. Default none.
    pub trusted_proxies: Vec<IpNet>,
    /// `MAX_CONNECTIONS`: maximum number of open connections; one client network may use a quarter of them. From 64 to
    /// 65,536. Default 4,096.
    pub max_connections: usize,
    /// `API_RATE_LIMIT`: maximum number of API requests of one token, or of one user of the dashboard, within a minute, for
    /// each server. From 10 to 1,000,000. Default 1,200.
    pub api_rate_limit: NonZeroU32,
    /// `TRACE_URL_TEMPLATE`: address of a trace in your viewer of traces, with `{trace_id}` in place of its id, as in
    /// `https://traces.example.org/trace/{trace_id}`; the page of an occurrence links to it. Starts with `http://` or
    /// `https://`. Default none: the page shows the id only.
    pub trace_url_template: Option<String>,
    /// `SITE_ROOT`: folder with the compiled dashboard that browsers load. Default `target/site`.
    pub site_root: PathBuf,
}

impl Default for HttpConfig {
    fn default() -> Self {
        Self {
            host: IpAddr::from([127, 0, 0, 1]),
            port: None,
            public_url: None,
            trusted_proxies: Vec::new(),
            max_connections: 4_096,
            api_rate_limit: DEFAULT_API_RATE_LIMIT,
            trace_url_template: None,
            site_root: PathBuf::from("target/site"),
        }
    }
}

impl HttpConfig {
    /// Reads the settings from the environment.
    pub(super) fn read(read: &mut EnvReader) -> Self {
        let default = Self::default();
        let host = match read.text("HOST").map(|text| text.parse::<IpAddr>().map_err(|_| text)) {
            None => default.host,
            Some(Ok(host)) => host,
            Some(Err(text)) => {
                read.add_error("HOST", &format!("give an IP address such as 127.0.0.1 or 0.0.0.0, not {text:?}"));
                default.host
            }
        };
        let port = match read.number("PORT", 0_u16, 1, u16::MAX) {
            0 => None,
            port => Some(port),
        };
        let public_url = read.text("PUBLIC_URL").map(|url| url.trim_end_matches('/').to_owned());
        if let Some(url) = &public_url
            && !url.starts_with("http://")
            && !url.starts_with("https://")
        {
            read.add_error("PUBLIC_URL", "it must start with http:// or https://");
        }
        let trusted_proxies = match read.text("TRUSTED_PROXIES").map(|text| networks(&text)) {
            None => Vec::new(),
            Some(Ok(networks)) => networks,
            Some(Err(reason)) => {
                read.add_error("TRUSTED_PROXIES", &reason);
                Vec::new()
            }
        };
        let trace_url_template = read.text("TRACE_URL_TEMPLATE");
        if let Some(Err(reason)) = trace_url_template.as_deref().map(check_trace_url) {
            read.add_error("TRACE_URL_TEMPLATE", reason);
        }
        Self {
            host,
            port,
            public_url,
            trusted_proxies,
            max_connections: read.number("MAX_CONNECTIONS", 4_096, 64, 65_536),
            api_rate_limit: NonZeroU32::new(read.number("API_RATE_LIMIT", 1_200, 10, 1_000_000))
                .unwrap_or(DEFAULT_API_RATE_LIMIT),
            trace_url_template,
            site_root: read.text("SITE_ROOT").map_or(default.site_root, PathBuf::from),
        }
    }

    /// Returns the address of a trace in the viewer of traces, if there is one.
    #[must_use]
    pub fn trace_url(&self, trace_id: &str) -> Option<String> {
        self.trace_url_template.as_ref().map(|template| template.replace(TRACE_ID_PLACEHOLDER, trace_id))
    }

    /// Returns true if browsers connect over TLS.
    #[must_use]
    pub fn is_secure(&self) -> bool {
        self.public_url.as_deref().is_some_and(|url| url.starts_with("https://"))
    }

    /// Returns true if `address` belongs to a proxy of `TRUSTED_PROXIES`.
    #[must_use]
    pub fn is_trusted_proxy(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.trusted_proxies.iter().any(|network| network.contains(&address))
    }
}

/// Checks the address of a trace with a placeholder. Returns a clause with the remedy otherwise.
fn check_trace_url(template: &str) -> Result<(), &'static str> {
    if !template.contains(TRACE_ID_PLACEHOLDER) {
        return Err("it must contain {trace_id}, which the id of a trace replaces");
    }
    let example = template.replace(TRACE_ID_PLACEHOLDER, "0");
    match Url::parse(&example) {
        Ok(url) if matches!(url.scheme(), "http" | "https") && url.has_host() => Ok(()),
        _ => Err("give a URL such as https://traces.example.org/trace/{trace_id}"),
    }
}

/// Parses addresses and networks that are separated by commas. Empty entries are ignored.
///
/// # Errors
///
/// Returns the reason and the remedy, with the entry that is wrong.
fn networks(text: &str) -> Result<Vec<IpNet>, String> {
    let entries = || text.split(',').map(str::trim).filter(|entry| !entry.is_empty());
    if entries().count() > MAX_TRUSTED_PROXIES {
        return Err(format!("give at most {MAX_TRUSTED_PROXIES} entries; join neighbouring addresses into networks"));
    }
    entries().map(network).collect()
}

/// Parses one address or network.
fn network(entry: &str) -> Result<IpNet, String> {
    let parsed = entry.parse::<IpNet>().or_else(|error| entry.parse::<IpAddr>().map(IpNet::from).map_err(|_| error));
    let network = parsed.map_err(|_| {
        format!("{entry:?} is no IP address or network; write entries as 10.0.0.5, 10.0.0.0/8 or fd00::/8")
    })?;
    // An IPv4 network that is written as IPv6 would never match, because addresses are compared as IPv4.
    let network = match network {
        IpNet::V6(v6) if v6.prefix_len() >= 96 => match v6.addr().to_ipv4_mapped() {
            Some(v4) => IpNet::new(v4.into(), v6.prefix_len() - 96).unwrap_or(network),
            None => network,
        },
        network => network,
    };
    // A client of a trusted network may name any address in the header.
    if network.prefix_len() == 0 {
        return Err(format!(
            "{entry:?} contains every address, so each client could claim any address; name the networks of the proxies"
        ));
    }
    Ok(network.trunc())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Vec<String> {
        networks(text).expect("valid").iter().map(ToString::to_string).collect()
    }

    #[test]
    fn addresses_and_networks_are_read() {
        assert_eq!(
            parsed("127.0.0.1, 10.1.2.3/8,,fd00::/8 ,::1"),
            ["127.0.0.1/32", "10.0.0.0/8", "fd00::/8", "::1/128"]
        );
        assert_eq!(parsed("::ffff:10.0.0.0/104"), ["10.0.0.0/8"]);
        assert_eq!(parsed("::ffff:10.0.0.5"), ["10.0.0.5/32"]);
    }

    #[test]
    fn a_wrong_entry_is_named_with_its_remedy() {
        for wrong in ["proxy.local", "10.0.0.0/33", "10.0.0", "fd00::/129", "10.0.0.1:80", "*"] {
            let message = networks(&format!("127.0.0.1, {wrong}")).expect_err("the entry is wrong");
            assert!(message.starts_with(&format!("{wrong:?} is no IP address or network")), "{message}");
            assert!(message.contains("write entries as"), "{message}");
        }
        for all in ["0.0.0.0/0", "::/0", "::ffff:0.0.0.0/96"] {
            assert!(networks(all).expect_err("it contains every address").contains("name the networks"), "{all}");
        }
    }

    #[test]
    fn address_of_a_trace_has_a_placeholder() {
        let template = "https://traces.example.org/#/{trace_id}?tab=spans";
        assert_eq!(check_trace_url(template), Ok(()));
        let config = HttpConfig { trace_url_template: Some(template.into()), ..HttpConfig::default() };
        assert_eq!(config.trace_url("ab").as_deref(), Some("https://traces.example.org/#/ab?tab=spans"));
        assert!(check_trace_url("https://traces.example.org/").is_err_and(|remedy| remedy.contains("{trace_id}")));
        for wrong in ["{trace_id}", "javascript:alert({trace_id})", "ftp://x/{trace_id}"] {
            assert!(check_trace_url(wrong).is_err_and(|remedy| remedy.contains("give a URL")), "{wrong}");
        }
    }

    #[test]
    fn at_most_64_proxies_are_trusted() {
        let entries = |count: u8| (0..count).map(|n| format!("10.0.0.{n}")).collect::<Vec<_>>().join(",");
        assert_eq!(networks(&entries(64)).expect("valid").len(), 64);
        assert!(networks(&entries(65)).expect_err("too many").contains("at most 64"));
    }

    #[test]
    fn mapped_addresses_match_ipv4_networks() {
        let config = HttpConfig { trusted_proxies: networks("10.0.0.0/8").expect("valid"), ..HttpConfig::default() };
        assert!(config.is_trusted_proxy("::ffff:10.1.2.3".parse().expect("an address")));
        assert!(!config.is_trusted_proxy("11.0.0.1".parse().expect("an address")));
    }
}
