//! The dashboard: pages, components and the typed calls between a browser and its server.
//!
//! The same code runs twice. On the server it renders a page to HTML, so that everything can be read and every form can
//! be sent before a single byte of WebAssembly has arrived, or without any ever arriving. In the browser it takes that
//! HTML over and keeps it current from one stream of events.
//!
//! This crate sees `protocol` and nothing else of ours. Whatever a page wants it asks of one trait,
//! [`backend::Backend`], which the server implements; so the browser build cannot come to know PostgreSQL by accident,
//! and a page can be rendered in a test without any service.
//!
//! Rooms: [`routes`] is the sitemap, [`pages`] has one file for each page, [`components`] what several pages share,
//! [`api`] the server functions, [`live`] the stream, [`format`] numbers and times for people, [`browser`] the few things
//! asked of a browser directly.

// A view's type nests as deep as its markup; the default limit is meant for smaller types.
#![recursion_limit = "512"]

pub mod error;

#[cfg(feature = "ssr")]
pub mod backend;
#[cfg(feature = "ssr")]
pub mod owner_isolation;

pub mod api;
pub mod browser;
pub mod components;
pub mod format;
pub mod live;
pub mod pages;
pub mod routes;

#[cfg(feature = "ssr")]
pub mod shell;

/// Takes over the page the server rendered. Called by the script in the page's head.
#[cfg(feature = "hydrate")]
#[wasm_bindgen::prelude::wasm_bindgen]
pub fn hydrate() {
    console_error_panic_hook::set_once();
    browser::mark_scripted();
    leptos::mount::hydrate_body(routes::App);
}
