//! HTTP clients, each of which can reach the addresses of one way and nothing else.
//!
//! reqwest takes a resolver for a whole client, and a resolver is not told the port. So there is a client for each name,
//! port and set of addresses, kept for as long as others do not push it out: making one costs some milliseconds, and it
//! holds the connections that may be used again.

use std::{
    collections::VecDeque,
    net::SocketAddr,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use futures::FutureExt;
use reqwest::{
    Client, Proxy,
    dns::{Addrs, Name, Resolve, Resolving},
    redirect::Policy,
};

use super::{ApprovedTarget, normalize_host};
use crate::context::BuiltinError;

/// How long reaching the other side may take, TLS included.
const HTTP_CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The most clients kept.
const MAX_CACHED_CLIENTS: usize = 64;
/// How long a connection is kept that nobody uses.
const IDLE_CONNECTION_TIMEOUT: Duration = Duration::from_secs(30);
/// The most bytes of an answer's headers over HTTP/2; over HTTP/1 it is hyper's 400 kB and 100 headers.
const MAX_HTTP2_HEADER_BYTES: u32 = 64 * 1024;

/// The clients in use of late.
pub(crate) struct HttpClientCache {
    kept: Mutex<VecDeque<(ApprovedTarget, Client)>>,
    proxy: Option<Proxy>,
}

impl HttpClientCache {
    pub(crate) fn new(proxy: Option<Proxy>) -> Self {
        Self { kept: Mutex::default(), proxy }
    }

    /// A client that goes `way`.
    pub(crate) fn get(&self, way: &ApprovedTarget) -> Result<Client, BuiltinError> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(place) = kept.iter().position(|(other, _)| other == way)
            && let Some(found) = kept.remove(place)
        {
            let client = found.1.clone();
            kept.push_back(found);
            return Ok(client);
        }
        let client = self
            .make(way)
            .map_err(|error| BuiltinError::retry(format!("no HTTP client can be made: {}", error.without_url())))?;
        if kept.len() >= MAX_CACHED_CLIENTS {
            kept.pop_front();
        }
        kept.push_back((way.clone(), client.clone()));
        Ok(client)
    }

    fn make(&self, way: &ApprovedTarget) -> reqwest::Result<Client> {
        // Redirects are followed by hand, so that each is judged; proxies of the environment are not ours to trust.
        let builder = Client::builder()
            .redirect(Policy::none())
            .no_proxy()
            .referer(false)
            .connect_timeout(HTTP_CONNECT_TIMEOUT)
            .pool_idle_timeout(IDLE_CONNECTION_TIMEOUT)
            .pool_max_idle_per_host(4)
            .http2_max_header_list_size(MAX_HTTP2_HEADER_BYTES)
            .user_agent(concat!("milvaion-worker/", env!("CARGO_PKG_VERSION")));
        match &self.proxy {
            Some(proxy) => builder.proxy(proxy.clone()).build(),
            None => builder.dns_resolver(PinnedResolver(way.clone())).build(),
        }
    }
}

/// Answers with what was judged.
struct PinnedResolver(ApprovedTarget);

impl Resolve for PinnedResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let found = (normalize_host(name.as_str()) == self.0.host).then(|| self.0.addresses.clone());
        async move {
            let addresses: Vec<SocketAddr> = found.ok_or("this name was not judged")?;
            Ok::<Addrs, Box<dyn std::error::Error + Send + Sync>>(Box::new(addresses.into_iter()))
        }
        .boxed()
    }
}
