//! Where `http-request` may go.
//!
//! Whoever defines a job chooses an address, and the worker, which stands inside, calls it. Without a guard every inside
//! service would be open to everybody who may define jobs. So an address is resolved once, here; every address a name
//! leads to is judged, and the connection is then made to exactly those that were judged ([`client_cache`]). There is no
//! second look at the name in which it could lead elsewhere.
//!
//! ```text
//!  text ─► parse_url() ─► url ─► EgressGuard::check() ─► ApprovedTarget { host, port, addresses } ─► HttpClientCache::get() ─► connection
//!            scheme,            own backends? denied? public or allowed?            to these addresses only
//!            no userinfo
//! ```

mod address;
mod client_cache;
mod rules;

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use futures::{FutureExt, future::BoxFuture};
use url::{Host, Url};

pub(crate) use self::{
    address::{canonical_ip, is_local_ip, is_public},
    client_cache::HttpClientCache,
    rules::EgressRule,
};
use crate::context::BuiltinError;

/// How long a name may take to be resolved.
const DNS_TIMEOUT: Duration = Duration::from_secs(5);
/// The most addresses of a name.
const MAX_RESOLVED_ADDRESSES: usize = 32;

/// Turns names into addresses.
pub(crate) trait HostLookup: Send + Sync {
    fn look_up<'a>(&'a self, host: &'a str, port: u16) -> BoxFuture<'a, io::Result<Vec<SocketAddr>>>;
}

/// The machine's own resolver.
pub(crate) struct SystemLookup;

impl HostLookup for SystemLookup {
    fn look_up<'a>(&'a self, host: &'a str, port: u16) -> BoxFuture<'a, io::Result<Vec<SocketAddr>>> {
        async move { Ok(tokio::net::lookup_host((host, port)).await?.collect()) }.boxed()
    }
}

/// A service this worker lives on, which no job may speak to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProtectedBackend {
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl ProtectedBackend {
    /// The host and port of `url`, if it has a host; `port` where it names none.
    pub(crate) fn from_url(url: &str, port: u16) -> Option<Self> {
        let url = Url::parse(url).ok()?;
        let host = url.host_str()?.trim_start_matches('[').trim_end_matches(']');
        Some(Self { host: normalize_host(host), port: url.port().unwrap_or(port) })
    }
}

/// An address that was judged, and how to get there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ApprovedTarget {
    /// The name, or the address in text.
    pub(crate) host: String,
    pub(crate) port: u16,
    /// Where to connect; empty when a proxy finds the way.
    pub(crate) addresses: Vec<SocketAddr>,
}

/// Judges addresses.
pub(crate) struct EgressGuard {
    allow: Vec<EgressRule>,
    deny: Vec<EgressRule>,
    backends: Vec<ProtectedBackend>,
    lookup: Arc<dyn HostLookup>,
    /// A proxy resolves names itself, so only what the address says can be judged.
    has_proxy: bool,
}

impl EgressGuard {
    pub(crate) fn new(
        allow: Vec<EgressRule>,
        deny: Vec<EgressRule>,
        backends: Vec<ProtectedBackend>,
        has_proxy: bool,
    ) -> Self {
        Self { allow, deny, backends, lookup: Arc::new(SystemLookup), has_proxy }
    }

    #[cfg(test)]
    pub(crate) fn with_lookup(mut self, lookup: Arc<dyn HostLookup>) -> Self {
        self.lookup = lookup;
        self
    }

    /// Judges `url` and says where it leads.
    ///
    /// # Errors
    /// A permanent failure when it may not be called; one worth another try when its name cannot be resolved.
    pub(crate) async fn check(&self, url: &Url) -> Result<ApprovedTarget, BuiltinError> {
        let host = url.host().ok_or_else(|| BuiltinError::permanent("the address names no host"))?;
        let port = url.port_or_known_default().unwrap_or(0);
        let (host, addresses) = match host {
            Host::Domain(name) if self.has_proxy => (normalize_host(name), Vec::new()),
            Host::Domain(name) => (normalize_host(name), self.resolve(name, port).await?),
            Host::Ipv4(ip) => (ip.to_string(), vec![SocketAddr::new(ip.into(), port)]),
            Host::Ipv6(ip) => (ip.to_string(), vec![SocketAddr::new(ip.into(), port)]),
        };
        let is_local_name = is_local(&host);
        self.keep_from_backends(&host, port, &addresses).await?;
        let judged: Vec<_> = match addresses.as_slice() {
            [] => vec![None],
            some => some.iter().map(|address| Some(address.ip())).collect(),
        };
        for ip in judged {
            let shown = ip.map_or_else(|| host.clone(), |ip| ip.to_string());
            if self.deny.iter().any(|rule| rule.matches(&host, ip, port)) {
                return Err(BuiltinError::permanent(format!(
                    "the address leads to {shown} port {port}, which this worker's MILVAION_HTTP_DENY forbids"
                )));
            }
            let is_public = ip.map_or(!is_local_name, is_public);
            if !is_public && !self.allow.iter().any(|rule| rule.matches(&host, ip, port)) {
                return Err(BuiltinError::permanent(format!(
                    "the address leads to {shown}, which is not public; where a worker is to call it, its MILVAION_HTTP_ALLOW names {host}:{port} or the network"
                )));
            }
        }
        // What a proxy is asked for is the name; otherwise a connection is made to what was judged.
        let addresses = if self.has_proxy { Vec::new() } else { addresses };
        Ok(ApprovedTarget { host, port, addresses })
    }

    async fn resolve(&self, name: &str, port: u16) -> Result<Vec<SocketAddr>, BuiltinError> {
        // RFC 6761: this machine, and no question for anybody's resolver.
        if is_local(&normalize_host(name)) {
            return Ok(vec![(Ipv4Addr::LOCALHOST, port).into(), (Ipv6Addr::LOCALHOST, port).into()]);
        }
        let found = tokio::time::timeout(DNS_TIMEOUT, self.lookup.look_up(name, port)).await;
        let mut addresses = match found {
            Ok(Ok(addresses)) if !addresses.is_empty() => addresses,
            Ok(Ok(_)) => return Err(BuiltinError::retry(format!("the name {name} has no address"))),
            Ok(Err(error)) => return Err(BuiltinError::retry(format!("the name {name} cannot be resolved: {error}"))),
            Err(_) => {
                let seconds = DNS_TIMEOUT.as_secs();
                return Err(BuiltinError::retry(format!("the name {name} was not resolved within {seconds} s")));
            }
        };
        addresses.sort_unstable();
        addresses.dedup();
        addresses.truncate(MAX_RESOLVED_ADDRESSES);
        Ok(addresses)
    }

    /// The broker, Redis and the databases stay out of reach whatever is allowed: by name, by address, and by any other
    /// address of this machine when they run on it.
    async fn keep_from_backends(&self, host: &str, port: u16, addresses: &[SocketAddr]) -> Result<(), BuiltinError> {
        for backend in self.backends.iter().filter(|backend| backend.port == port) {
            let is_it = if backend.host == host {
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
            if is_it {
                return Err(BuiltinError::permanent(format!(
                    "the address leads to port {port} of a service this worker itself lives on; no job may call that"
                )));
            }
        }
        Ok(())
    }
}

/// Reads an address. `field` is where it stands.
///
/// # Errors
/// A permanent failure that says what is wrong with it; the address is not repeated, for it may hold a secret.
pub(crate) fn parse_url(text: &str, field: &str) -> Result<Url, BuiltinError> {
    // Browsers drop them silently; here they would be half of a forged header.
    if text.chars().any(char::is_control) {
        return Err(BuiltinError::permanent(format!(
            "the address in `{field}` has a line break or another control character"
        )));
    }
    let url = Url::parse(text).map_err(|error| {
        BuiltinError::permanent(format!(
            "the address in `{field}` cannot be read ({error}); write it like https://example.org/path"
        ))
    })?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(BuiltinError::permanent(format!(
            "the address in `{field}` begins with {}:; only http:// and https:// can be called",
            url.scheme()
        )));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(BuiltinError::permanent(format!(
            "the address in `{field}` has a user name before its host; give it in `auth`, and the password as a reference to a secret"
        )));
    }
    Ok(url)
}

fn is_local(host: &str) -> bool {
    host == "localhost" || host.ends_with(".localhost")
}

/// A host name as it is compared: in lower case, without the dot of the root.
pub(crate) fn normalize_host(name: &str) -> String {
    name.trim_end_matches('.').to_ascii_lowercase()
}

#[cfg(test)]
pub(crate) mod tests;
