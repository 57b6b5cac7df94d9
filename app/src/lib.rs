//! The dashboard: pages, components and the typed calls between a browser and its server.
//!
//! The same code runs twice. On the server it renders each page to HTML, so every page can be read and every form can
//! be submitted before any WebAssembly has arrived, or without any. In the browser it hydrates that HTML and keeps it
//! current from one stream of events.
//!
//! Of the workspace, this crate depends only on the protocol, schedule and API crates. A page gets its data through one
//! trait, [`backend::Backend`], which the server implements. The browser build therefore cannot depend on PostgreSQL by
//! accident, and a test can render a page without any service.
//!
//! The modules are layers. From the bottom: [`error`], [`format`](mod@format) with numbers, times and messages as text,
//! and [`browser`] with the direct calls to browser APIs; [`api`], the server functions, with [`backend`]; [`live`],
//! which follows the events; [`components`], the parts that several pages share; [`pages`], one module per page, and
//! `stream`, which opens the event stream; [`routes`], the site map, which starts them. A file uses only its own layer
//! and those below it. Two files never depend on each other, not even through others, except a module and its parts.

// A view's type nests as deep as its markup, which exceeds the default limit.
#![recursion_limit = "512"]

pub mod error;

#[cfg(feature = "ssr")]
pub mod backend;
#[cfg(feature = "ssr")]
pub mod owner_isolation;

pub mod api;
pub mod browser;
pub mod components;
#[cfg(feature = "hydrate")]
mod crash_notice;
pub mod format;
pub mod lazy_pages;
pub mod live;
pub mod pages;
pub mod routes;
#[cfg(any(feature = "hydrate", test))]
mod stream;

#[cfg(feature = "ssr")]
pub mod shell;

/// Hydrates the page that the server rendered. Called by the script in the page's head.
#[cfg(feature = "hydrate")]
#[wasm_bindgen::prelude::wasm_bindgen]
pub fn hydrate() {
    crash_notice::install();
    browser::mark_scripted();
    wasm_bindgen_futures::spawn_local(async {
        if let Some(page) = lazy_pages::Page::of(&browser::current_path())
            && page.load().await.is_err()
        {
            // Hydration would find HTML that its view does not have.
            return crash_notice::show(crash_notice::FAILED_LOAD_TEXT);
        }
        leptos::mount::hydrate_body(routes::App);
    });
}
