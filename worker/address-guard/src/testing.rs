//! A resolver for tests.

use std::{
    io,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
};

use futures::{FutureExt, future::BoxFuture};

use crate::HostLookup;

/// A resolver that returns one answer per call, in order, and then an error.
pub struct ScriptedLookup(Mutex<Vec<Vec<&'static str>>>);

impl ScriptedLookup {
    /// Creates a resolver with these answers, each of which is a list of addresses.
    #[must_use]
    pub fn new(answers: &[&[&'static str]]) -> Arc<Self> {
        Arc::new(Self(Mutex::new(answers.iter().rev().map(|answer| answer.to_vec()).collect())))
    }

    /// Returns the number of answers that are left.
    #[must_use]
    pub fn left(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

impl HostLookup for ScriptedLookup {
    fn look_up<'a>(&'a self, _: &'a str, port: u16) -> BoxFuture<'a, io::Result<Vec<SocketAddr>>> {
        let answer = self.0.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let answer = answer.ok_or_else(|| io::Error::other("no answer is left"));
        let read = move |text: &str| text.parse().map(|ip| SocketAddr::new(ip, port)).map_err(io::Error::other);
        async move { answer?.into_iter().map(read).collect() }.boxed()
    }
}
