//! The dashboard: the routes of its pages, server functions and files.

mod account;
mod alerts;
mod audit;
pub mod backend;
pub mod calendars;
pub mod failures;
pub mod job_counts;
mod job_view;
pub mod preview;
mod singletons;
pub(crate) mod site;
mod team;
mod tokens;

use std::sync::{Arc, OnceLock};

use axum::{
    Router,
    body::Body,
    extract::Request,
    middleware::{self, Next},
    response::IntoResponse,
    routing::any,
};
use http::{header::CONTENT_SECURITY_POLICY, request::Parts, uri::PathAndQuery};
use leptos::{config::LeptosOptions, nonce::use_nonce, prelude::*};
use leptos_axum::{
    AxumRouteListing, LeptosRoutes, ResponseOptions, file_and_error_handler_with_context, generate_route_list,
};
use leptos_router::location::RequestUrl;
use milvaion_app::{
    backend::Backend,
    owner_isolation::isolate_owner,
    routes::App,
    shell::{SiteAssets, attach_boot, shell},
};

use crate::{config::http::HttpConfig, http::headers::csp};
use backend::ServerBackend;

/// Builds the router of the pages, the server functions and the files. `site` is the build in the site root.
pub fn router(config: &HttpConfig, site: SiteAssets, backend: Arc<ServerBackend>) -> Router {
    let site = Arc::new(site);
    let options = LeptosOptions::builder()
        .output_name("app")
        .site_root(config.site_root.to_string_lossy().into_owned())
        .site_pkg_dir(site::pkg_dir(&site))
        .build();
    let backend: Arc<dyn Backend> = backend;
    let reader = backend.clone();
    let provide = move || provide_context(backend.clone());
    let provide_page = {
        let provide = provide.clone();
        move || {
            provide();
            // Leptos puts the protocol and the host that the headers name before the path. It would find no page if two
            // proxies name their protocols, and panic at an invalid host.
            if let Some(parts) = use_context::<Parts>() {
                provide_context(RequestUrl::new(parts.uri.path_and_query().map_or("/", PathAndQuery::as_str)));
            }
            // The nonce belongs to this response, and the header must carry the same one.
            if let (Some(nonce), Some(response)) = (use_nonce(), use_context::<ResponseOptions>()) {
                response.insert_header(CONTENT_SECURITY_POLICY, csp(Some(&nonce)));
            }
        }
    };
    // Listing the routes renders the app once, and pages that are rendered at that moment wait for it. Therefore the
    // list is computed once per process, for all servers in it.
    static ROUTES: OnceLock<Vec<AxumRouteListing>> = OnceLock::new();
    let routes = ROUTES.get_or_init(|| generate_route_list(App)).clone();
    let document = {
        let (options, site) = (options.clone(), site.clone());
        move || shell(options.clone(), &site)
    };
    Router::new()
        .route(
            "/api/{*function}",
            any(move |request: Request<Body>| {
                let provide = provide.clone();
                async move { leptos_axum::handle_server_fns_with_context(provide, request).await.into_response() }
            }),
        )
        .leptos_routes_with_context(&options, routes, provide_page.clone(), document)
        .fallback(file_and_error_handler_with_context::<LeptosOptions, _>(provide_page, move |options| {
            shell(options, &site)
        }))
        .with_state(options)
        .layer(middleware::from_fn(move |request: Request, next: Next| {
            let reader = reader.clone();
            async move {
                let (mut parts, body) = request.into_parts();
                attach_boot(&*reader, &mut parts).await;
                next.run(Request::from_parts(parts, body)).await
            }
        }))
        .layer(middleware::from_fn(|request: Request, next: Next| isolate_owner(next.run(request))))
}
