//! The HTML document around the app.

use http::{Method, request::Parts};
use leptos::{nonce::use_nonce, prelude::*};
use leptos_meta::MetaTags;

use crate::{
    api::{
        boot::{BOOT_META, Boot},
        request_cookie,
    },
    backend::Backend,
    browser::{BUILD_META, THEME_COOKIE},
    components::{
        preferences::Theme,
        time::{document_clock, document_zone},
    },
    format::ClockStyle,
    lazy_pages::Page,
    live::POSITION_META,
    routes::App,
};

/// The compiled browser side that a document refers to.
#[derive(Clone, Debug, Default)]
pub struct SiteAssets {
    /// The name of the build, which is also the folder of its files below `/pkg`. Empty if there is no build.
    pub build: String,
    /// The sprite of all icons, as SVG.
    pub icons: String,
}

/// Reads what the layout shows and attaches it to the request, if that is for a page inside the layout. Called before
/// the request is rendered.
pub async fn attach_boot(backend: &dyn Backend, parts: &mut Parts) {
    let is_read = parts.method == Method::GET || parts.method == Method::HEAD;
    if is_read && Page::of(parts.uri.path()).is_some_and(|page| !page.is_door()) {
        let boot = Boot::read(backend, parts).await;
        parts.extensions.insert(boot);
    }
}

/// Renders the whole document.
///
/// The theme, the zone and the clock come from the user's cookies, so that no page flashes in the other theme and no time
/// changes when the page is hydrated. Everything is loaded from this server, and every script carries the response's
/// nonce.
pub fn shell(options: LeptosOptions, site: &SiteAssets) -> impl IntoView + use<> {
    let SiteAssets { build, icons } = site.clone();
    let file = |name: &str| format!("/{}/{name}", options.site_pkg_dir);
    let (font, sheet) = (file("fonts/inter-latin.woff2"), file("app.css"));
    let boot = Boot::take();
    let position = boot.as_ref().and_then(|boot| boot.position.clone());
    let boot = boot.and_then(|boot| serde_json::to_string(&boot).ok());
    let nonce = use_nonce();
    let csp_nonce = nonce.as_ref().map(ToString::to_string);
    let clock = (document_clock() == ClockStyle::Hours12).then_some("12");
    view! {
        <!DOCTYPE html>
        <html lang="en" data-theme=theme().slug() data-zone=document_zone() data-clock=clock>
            <head>
                <meta charset="utf-8"/>
                <meta name="viewport" content="width=device-width, initial-scale=1"/>
                <meta name="color-scheme" content="light dark"/>
                <meta name="robots" content="noindex"/>
                <meta name=BUILD_META content=build/>
                <meta name=POSITION_META content=position.unwrap_or_default()/>
                <meta name=BOOT_META content=boot/>
                <link rel="icon" href="/favicon.svg" type="image/svg+xml"/>
                <link
                    rel="preload"
                    href=font
                    r#as="font"
                    type="font/woff2"
                    crossorigin="anonymous"
                />
                <link rel="stylesheet" href=sheet nonce=csp_nonce/>
                // Idle time is enough, because what a user types or chooses before hydration is kept.
                <HydrationScripts options defer=true/>
                <MetaTags/>
            </head>
            <body>
                <App/>
                // After the app, because hydration expects the app's first element at the start of the body.
                <div hidden inner_html=icons></div>
            </body>
        </html>
    }
}

/// Returns the theme from the user's cookie, or [`Theme::System`] without one.
fn theme() -> Theme {
    request_cookie(THEME_COOKIE).map_or(Theme::System, |slug| Theme::from_slug(&slug))
}
