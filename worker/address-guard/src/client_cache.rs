//! HTTP clients that each reach one approved target and nothing else.
//!
//! reqwest takes one resolver for a whole client, and does not pass it the port. There is therefore one client for each
//! combination of name, port and addresses. Clients are cached, and the least recently used one is dropped first:
//! creating a client costs some milliseconds, and it holds the connections that can be reused.

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

use crate::{ApprovedTarget, GuardError, normalize_host};

/// Timeout of a connection attempt, including TLS.
const HTTP_CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of cached clients.
const MAX_CACHED_CLIENTS: usize = 64;
/// Time after which an unused connection is closed.
const IDLE_CONNECTION_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum size of a response's headers over HTTP/2. Over HTTP/1, hyper's limits of 400 kB and 100 headers apply.
const MAX_HTTP2_HEADER_BYTES: u32 = 64 * 1024;

/// The most recently used clients.
pub struct HttpClientCache {
    /// Each client and its target, the least recently used first.
    clients: Mutex<VecDeque<(ApprovedTarget, Client)>>,
    proxy: Option<Proxy>,
    user_agent: &'static str,
}

impl HttpClientCache {
    /// Creates an empty cache, whose clients use `proxy` and the header `User-Agent: user_agent`.
    #[must_use]
    pub fn new(proxy: Option<Proxy>, user_agent: &'static str) -> Self {
        Self { clients: Mutex::default(), proxy, user_agent }
    }

    /// Returns a client that connects to `target` only.
    ///
    /// # Errors
    /// Returns a retryable error if the client cannot be created.
    pub fn get(&self, target: &ApprovedTarget) -> Result<Client, GuardError> {
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(index) = clients.iter().position(|(other, _)| other == target)
            && let Some(found) = clients.remove(index)
        {
            let client = found.1.clone();
            clients.push_back(found);
            return Ok(client);
        }
        let client = self
            .build(target)
            .map_err(|error| GuardError::retry(format!("no HTTP client can be created: {}", error.without_url())))?;
        if clients.len() >= MAX_CACHED_CLIENTS {
            clients.pop_front();
        }
        clients.push_back((target.clone(), client.clone()));
        Ok(client)
    }

    fn build(&self, target: &ApprovedTarget) -> reqwest::Result<Client> {
        // The caller follows redirects itself, to check each one. Proxies of the environment are not trusted.
        let builder = Client::builder()
            .redirect(Policy::none())
            .no_proxy()
            .referer(false)
            .connect_timeout(HTTP_CONNECT_TIMEOUT)
            .pool_idle_timeout(IDLE_CONNECTION_TIMEOUT)
            .pool_max_idle_per_host(4)
            .http2_max_header_list_size(MAX_HTTP2_HEADER_BYTES)
            .user_agent(self.user_agent);
        match &self.proxy {
            Some(proxy) => builder.proxy(proxy.clone()).build(),
            None => builder.dns_resolver(PinnedResolver(target.clone())).build(),
        }
    }
}

/// A resolver that returns the approved addresses.
struct PinnedResolver(ApprovedTarget);

impl Resolve for PinnedResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let found = (normalize_host(name.as_str()) == self.0.host).then(|| self.0.addresses.clone());
        async move {
            let addresses: Vec<SocketAddr> = found.ok_or("this name was not approved")?;
            Ok::<Addrs, Box<dyn std::error::Error + Send + Sync>>(Box::new(addresses.into_iter()))
        }
        .boxed()
    }
}
