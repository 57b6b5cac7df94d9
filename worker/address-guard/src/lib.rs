//! The destinations that a program can reach whose users choose the URLs.
//!
//! The user who defines a job chooses the URL of `http-request`, and the worker, which runs inside a network, sends the
//! request. The server does the same with the webhooks of alerts. Without a check, every internal service would be open
//! to all users who may define jobs or channels. A host name is therefore resolved once, here. Every address of the name
//! is checked, and the connection is then made to exactly these addresses ([`HttpClientCache`]). The name is not resolved
//! a second time, so it cannot lead elsewhere in between.
//!
//! The guard knows neither settings nor jobs: [`GuardWords`] has the words of its messages.
//!
//! ```text
//!  text ─► parse_url() ─► url ─► EgressGuard::check() ─► ApprovedTarget ─► HttpClientCache::get() ─► connection
//!           scheme,           own backend? denied?       host, port,         to these addresses
//!           no user name      public or allowed?         addresses           only
//! ```

mod address;
mod client_cache;
mod error;
mod rules;
pub mod testing;

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use futures::{FutureExt, future::BoxFuture};
use url::{Host, Url};

use self::address::{canonical_ip, is_local_ip, is_public};
pub use self::{client_cache::HttpClientCache, error::GuardError, rules::EgressRule};

/// Timeout of resolving a name.
const DNS_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of addresses of a name. Further ones are ignored.
const MAX_RESOLVED_ADDRESSES: usize = 32;

/// Resolves host names.
pub trait HostLookup: Send + Sync {
    /// Returns the addresses of `host`, each with `port`.
    fn look_up<'a>(&'a self, host: &'a str, port: u16) -> BoxFuture<'a, io::Result<Vec<SocketAddr>>>;
}

/// The resolver of the operating system.
struct SystemLookup;

impl HostLookup for SystemLookup {
    fn look_up<'a>(&'a self, host: &'a str, port: u16) -> BoxFuture<'a, io::Result<Vec<SocketAddr>>> {
        async move { Ok(tokio::net::lookup_host((host, port)).await?.collect()) }.boxed()
    }
}

/// A service that the program depends on, and that no request may reach.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProtectedBackend {
    /// The host name in its [normalized](normalize_host) form, or the address as text.
    pub host: String,
    /// The port.
    pub port: u16,
}

impl ProtectedBackend {
    /// Returns the host and the port of `url`, or nothing if it has no host. `port` is used if the URL names none.
    #[must_use]
    pub fn from_url(url: &str, port: u16) -> Option<Self> {
        let url = Url::parse(url).ok()?;
        let host = url.host_str()?.trim_start_matches('[').trim_end_matches(']');
        Some(Self { host: normalize_host(host), port: url.port().unwrap_or(port) })
    }
}

/// A destination that was checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApprovedTarget {
    /// The host name, or the address as text.
    pub host: String,
    /// The port.
    pub port: u16,
    /// The addresses to connect to. Empty if a proxy resolves the name.
    pub addresses: Vec<SocketAddr>,
}

/// The words with which messages name the program, its settings and what sends the requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuardWords {
    /// The program, as in "this worker".
    pub owner: &'static str,
    /// What sends the requests, as in "job".
    pub sender: &'static str,
    /// The name of the setting with the allowed destinations.
    pub allow: &'static str,
    /// The name of the setting with the forbidden destinations.
    pub deny: &'static str,
}

/// Checks the destinations of requests.
pub struct EgressGuard {
    words: GuardWords,
    allow: Vec<EgressRule>,
    deny: Vec<EgressRule>,
    backends: Vec<ProtectedBackend>,
    lookup: Arc<dyn HostLookup>,
    /// True if requests go through a proxy. A proxy resolves names itself, so only the URL can be checked.
    has_proxy: bool,
}

impl EgressGuard {
    /// Creates a guard. `allow` adds to the public addresses, and `deny` takes precedence over it. `backends` can never
    /// be reached.
    #[must_use]
    pub fn new(
        words: GuardWords,
        allow: Vec<EgressRule>,
        deny: Vec<EgressRule>,
        backends: Vec<ProtectedBackend>,
        has_proxy: bool,
    ) -> Self {
        Self { words, allow, deny, backends, lookup: Arc::new(SystemLookup), has_proxy }
    }

    /// Replaces the resolver of host names.
    #[must_use]
    pub fn with_lookup(mut self, lookup: Arc<dyn HostLookup>) -> Self {
        self.lookup = lookup;
        self
    }

    /// Checks `url` and returns its destination.
    ///
    /// # Errors
    /// Returns a permanent error if the destination is not allowed, and a retryable one if its name cannot be resolved.
    pub async fn check(&self, url: &Url) -> Result<ApprovedTarget, GuardError> {
        let GuardWords { owner, allow: setting, deny, .. } = self.words;
        let host = url.host().ok_or_else(|| GuardError::permanent("the URL has no host"))?;
        let port = url.port_or_known_default().unwrap_or(0);
        let (host, addresses) = match host {
            Host::Domain(name) if self.has_proxy => (normalize_host(name), Vec::new()),
            Host::Domain(name) => (normalize_host(name), self.resolve(name, port).await?),
            Host::Ipv4(ip) => (ip.to_string(), vec![SocketAddr::new(ip.into(), port)]),
            Host::Ipv6(ip) => (ip.to_string(), vec![SocketAddr::new(ip.into(), port)]),
        };
        let is_local_name = is_local(&host);
        self.refuse_backends(&host, port, &addresses).await?;
        let ips: Vec<_> = match addresses.as_slice() {
            [] => vec![None],
            some => some.iter().map(|address| Some(address.ip())).collect(),
        };
        for ip in ips {
            let shown = ip.map_or_else(|| host.clone(), |ip| ip.to_string());
            if self.deny.iter().any(|rule| rule.matches(&host, ip, port)) {
                return Err(GuardError::permanent(format!(
                    "the URL leads to {shown} port {port}, which {owner}'s {deny} forbids"
                )));
            }
            let is_public = ip.map_or(!is_local_name, is_public);
            if !is_public && !self.allow.iter().any(|rule| rule.matches(&host, ip, port)) {
                return Err(GuardError::permanent(format!(
                    "the URL leads to {shown}, which is not public; to allow it, add {host}:{port} or its network to {owner}'s {setting}"
                )));
            }
        }
        // A proxy gets the name. Otherwise the connection is made to the addresses that were checked.
        let addresses = if self.has_proxy { Vec::new() } else { addresses };
        Ok(ApprovedTarget { host, port, addresses })
    }

    async fn resolve(&self, name: &str, port: u16) -> Result<Vec<SocketAddr>, GuardError> {
        // RFC 6761: these names mean this machine, and no resolver is asked.
        if is_local(&normalize_host(name)) {
            return Ok(vec![(Ipv4Addr::LOCALHOST, port).into(), (Ipv6Addr::LOCALHOST, port).into()]);
        }
        let found = tokio::time::timeout(DNS_TIMEOUT, self.lookup.look_up(name, port)).await;
        let mut addresses = match found {
            Ok(Ok(addresses)) if !addresses.is_empty() => addresses,
            Ok(Ok(_)) => return Err(GuardError::retry(format!("the name {name} has no address"))),
            Ok(Err(error)) => return Err(GuardError::retry(format!("the name {name} cannot be resolved: {error}"))),
            Err(_) => {
                let seconds = DNS_TIMEOUT.as_secs();
                return Err(GuardError::retry(format!("the name {name} was not resolved within {seconds} s")));
            }
        };
        addresses.sort_unstable();
        addresses.dedup();
        addresses.truncate(MAX_RESOLVED_ADDRESSES);
        Ok(addresses)
    }

    /// Refuses the broker, Redis and the databases, even if they are allowed: by name, by address, and by any other
    /// address of this machine if they run on it.
    ///
    /// # Errors
    /// Returns a permanent error for such a destination, and a retryable one if a backend's name cannot be resolved.
    async fn refuse_backends(&self, host: &str, port: u16, addresses: &[SocketAddr]) -> Result<(), GuardError> {
        for backend in self.backends.iter().filter(|backend| backend.port == port) {
            let is_backend = if backend.host == host {
                true
            } else if addresses.is_empty() {
                false
            } else {
                let theirs = self.resolve(&backend.host, port).await?;
                let same = |a: &SocketAddr, b: &SocketAddr| {
                    canonical_ip(a.ip()) == canonical_ip(b.ip()) || (is_local_ip(a.ip()) && is_local_ip(b.ip()))
                };
                addresses.iter().any(|address| theirs.iter().any(|other| same(address, other)))
            };
            if is_backend {
                let GuardWords { owner, sender, .. } = self.words;
                return Err(GuardError::permanent(format!(
                    "the URL leads to port {port} of a service that {owner} depends on; no {sender} may reach it"
                )));
            }
        }
        Ok(())
    }
}

/// Parses a URL. `field` is the input field that contains it, and `credentials` says where a user name belongs.
///
/// # Errors
/// Returns a permanent error that names the field. The URL is not repeated, because it may contain a secret.
pub fn parse_url(text: &str, field: &str, credentials: &str) -> Result<Url, GuardError> {
    // Browsers drop control characters silently. Here they would be half of a forged header.
    if text.chars().any(char::is_control) {
        return Err(GuardError::permanent(format!(
            "the URL in `{field}` has a line break or another control character"
        )));
    }
    let url = Url::parse(text).map_err(|error| {
        GuardError::permanent(format!(
            "the URL in `{field}` is invalid ({error}); write it like https://example.org/path"
        ))
    })?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(GuardError::permanent(format!(
            "the URL in `{field}` starts with {}:; only http:// and https:// are supported",
            url.scheme()
        )));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(GuardError::permanent(format!(
            "the URL in `{field}` has a user name before its host; {credentials}"
        )));
    }
    Ok(url)
}

fn is_local(host: &str) -> bool {
    host == "localhost" || host.ends_with(".localhost")
}

/// Returns the form in which host names are compared: in lower case, without the dot of the root.
#[must_use]
pub fn normalize_host(name: &str) -> String {
    name.trim_end_matches('.').to_ascii_lowercase()
}

#[cfg(test)]
mod tests;
