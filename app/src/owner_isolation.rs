//! Keeps what one request provides out of every other.
//!
//! Leptos leaves the page it began last on a thread as that thread's current owner. Whatever else runs there meanwhile
//! would become a part of that page: a file took its status and its headers away, and a page that goes on later, on
//! another thread, saw another person's. With this, an owner is left to the request instead of the thread.

use std::{future::poll_fn, pin::pin};

use leptos::prelude::Owner;

/// Runs a request's future with an owner of its own, whatever thread it is on and whoever was there before.
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
