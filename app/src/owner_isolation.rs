//! Isolates the reactive owner of each request.
//!
//! Before 0.9, Leptos left the owner of the last page rendered on a thread as that thread's current owner. Other
//! requests polled on the same thread then ran inside that page: a static file took over the page's status and headers,
//! and a page resumed on another thread saw another user's context. [`isolate_owner`] binds the owner to the request
//! instead of the thread, whatever Leptos does.

use std::{future::poll_fn, pin::pin};

use leptos::prelude::Owner;

/// Runs a request's future with its own owner, independent of the thread that polls it.
pub async fn isolate_owner<F: Future>(request: F) -> F::Output {
    let mut request = pin!(request);
    let mut own = None;
    poll_fn(move |context| {
        let outer = Owner::current();
        make_current(own.take());
        let polled = request.as_mut().poll(context);
        own = Owner::current();
        make_current(outer);
        polled
    })
    .await
}

fn make_current(owner: Option<Owner>) {
    match (owner, Owner::current()) {
        (Some(owner), _) => owner.set(),
        (None, Some(current)) => current.unset(),
        (None, None) => {}
    }
}
