//! The pages: the paths of each and its code, which is split into WebAssembly modules. The router and the loader of the
//! first page are derived from one table.
//!
//! A browser loads the main module (the layout, the event stream and all that they use) and the module of the page that
//! is opened. The server sends preload links for them with the document. The module of another page is loaded when the
//! user opens it, while the present page stays visible.
//!
//! Each page has a module of its own, except that the pages for a new and an edited object have the same form and share
//! one. The code that several pages share costs no further request: the build packs it into the file of each of them.
//!
//! The first page is hydrated only when its module has arrived. Hydration then runs at once, as it would in one module:
//! if the layout were hydrated first, its effects (the clock, the zone) would change the page before the page knows its
//! own HTML.
//!
//! A module that cannot be loaded (the connection is lost, or an update has removed its file) is not a panic, which
//! would stop the whole page. The page that was to be opened then says so, and the next visit tries again.
//!
//! The table stays in the main module, so it refers to the loaders of the pages and never to the pages.

use std::borrow::Cow;
#[cfg(feature = "hydrate")]
use std::pin::Pin;

use leptos::prelude::*;
#[cfg(feature = "hydrate")]
use leptos::wasm_split::SplitLoaderError;
#[cfg(feature = "hydrate")]
use leptos_meta::Title;
use leptos_router::{ChooseView, PartialPathMatch, PathSegment, PossibleRouteMatch};

#[cfg(feature = "hydrate")]
use crate::{
    browser,
    components::{icon::Icon, page_header::PageHeader},
};

/// The modules of the pages outside the layout, which a browser without a session can open.
const DOORS: [&str; 2] = ["one_time_link", "login"];

/// The result of loading a module.
#[cfg(feature = "hydrate")]
type Load<T> = Pin<Box<dyn Future<Output = Result<T, SplitLoaderError>>>>;
#[cfg(feature = "hydrate")]
type PageView = Load<AnyView>;
#[cfg(not(feature = "hydrate"))]
type PageView = AnyView;

/// A page at one path. It is both the pattern and the view of its route.
#[derive(Clone, Copy, Debug)]
pub struct Page {
    /// The path, in which `:name` stands for any segment.
    pub path: &'static str,
    /// The name of the module that has its code.
    module: &'static str,
    view: fn() -> PageView,
    #[cfg(feature = "hydrate")]
    load: fn() -> Load<()>,
}

/// Declares the pages, each with its module, the name of its loader, its component in [`pages`](crate::pages) and its
/// paths.
///
/// A loader is what `lazy_route` of Leptos generates, except that a page names its module, and that a failed load is
/// a value.
macro_rules! pages {
    ($($module:ident: $name:ident $($page:ident)::+ $($path:literal)+;)+) => {
        /// Every page. If several match a path, the first one is opened.
        pub static PAGES: &[Page] = &[$($(Page {
            path: $path,
            module: stringify!($module),
            #[cfg(feature = "hydrate")]
            view: || Box::pin($name::$name()),
            #[cfg(not(feature = "hydrate"))]
            view: $name::$name,
            #[cfg(feature = "hydrate")]
            load: || Box::pin($name::load()),
        }),+),+];

        $(mod $name {
            use leptos::prelude::{AnyView, IntoAny};
            #[cfg(feature = "hydrate")]
            use leptos::wasm_split::{SplitLoaderError, wasm_split};

            #[cfg(feature = "hydrate")]
            #[wasm_split($module, wasm_split_path = ::leptos::wasm_split, preload(load), fallible)]
            pub(super) fn $name() -> Result<AnyView, SplitLoaderError> {
                Ok(crate::pages::$($page)::+().into_any())
            }

            #[cfg(not(feature = "hydrate"))]
            pub(super) fn $name() -> AnyView {
                leptos::prefetch_lazy_fn_on_server(stringify!($module));
                crate::pages::$($page)::+().into_any()
            }
        })+
    };
}

pages! {
    one_time_link: one_time_link one_time_link::OneTimeLinkPage "/setup" "/invite" "/reset";
    login: login login::LoginPage "/login";
    overview: overview overview::OverviewPage "/";
    jobs: jobs jobs::JobsPage "/jobs";
    job_form: new_job job_form::NewJobPage "/jobs/new";
    job: job job::JobPage "/jobs/:id";
    job_form: edit_job job_form::EditJobPage "/jobs/:id/edit";
    calendars: calendars calendars::CalendarsPage "/calendars";
    calendar_form: new_calendar calendars::form::NewCalendarPage "/calendars/new";
    calendar_form: edit_calendar calendars::form::EditCalendarPage "/calendars/:id/edit";
    occurrences: occurrences occurrences::OccurrencesPage "/occurrences";
    occurrence: occurrence occurrence::OccurrencePage "/occurrences/:id";
    failures: failures failures::FailuresPage "/failed";
    failure: failure failures::FailurePage "/failed/:key";
    alerts: alerts alerts::AlertsPage "/alerts";
    alert_rules: alert_rules alerts::rules::AlertRulesPage "/alerts/rules";
    alert_rule: new_alert_rule alerts::rule::NewAlertRulePage "/alerts/rules/new";
    alert_rule: alert_rule alerts::rule::AlertRulePage "/alerts/rules/:id";
    alert_channels: alert_channels alerts::channels::AlertChannelsPage "/alerts/channels";
    alert_channel: new_alert_channel alerts::channel::NewAlertChannelPage "/alerts/channels/new";
    alert_channel: alert_channel alerts::channel::AlertChannelPage "/alerts/channels/:id";
    workers: workers workers::WorkersPage "/workers";
    singleton_loops: singleton_loops singletons::SingletonLoopsPage "/singleton-loops";
    team: team team::TeamPage "/team";
    person: person person::PersonPage "/team/:id";
    audit: audit audit::AuditPage "/audit";
    account: account account::AccountPage "/account";
    tokens: tokens tokens::TokensPage "/tokens";
    menu: menu menu::MenuPage "/menu";
    help: help help::HelpPage "/help";
}

impl Page {
    /// Returns the page at `path`, which may have a query; `None` if there is none.
    #[must_use]
    pub fn of(path: &str) -> Option<&'static Self> {
        let path = path.split(['?', '#']).next().unwrap_or_default();
        PAGES.iter().find(|page| page.params(path).is_some())
    }

    /// Returns true if the page is shown without the layout, because its user has no session.
    #[must_use]
    pub fn is_door(&self) -> bool {
        DOORS.contains(&self.module)
    }

    /// Loads the module of the page.
    ///
    /// # Errors
    ///
    /// Fails if the module cannot be loaded; the browser's console has the reason.
    #[cfg(feature = "hydrate")]
    pub async fn load(&self) -> Result<(), SplitLoaderError> {
        (self.load)().await
    }

    /// Returns the parameters in `path`; `None` if it is the path of another page.
    fn params(&self, path: &str) -> Option<Vec<(Cow<'static, str>, String)>> {
        let path = path.strip_prefix('/')?;
        let path = path.strip_suffix('/').filter(|path| !path.is_empty()).unwrap_or(path);
        let mut segments = path.split('/');
        let mut params = Vec::new();
        for expected in self.path.split('/').skip(1) {
            let segment = segments.next()?;
            match expected.strip_prefix(':') {
                Some(name) if !segment.is_empty() => params.push((name.into(), segment.to_owned())),
                None if segment == expected => {}
                _ => return None,
            }
        }
        segments.next().is_none().then_some(params)
    }
}

impl PossibleRouteMatch for Page {
    fn optional(&self) -> bool {
        false
    }

    fn test<'a>(&self, path: &'a str) -> Option<PartialPathMatch<'a>> {
        Some(PartialPathMatch::new("", self.params(path)?, path))
    }

    fn generate_path(&self, path: &mut Vec<PathSegment>) {
        path.extend(self.path.split('/').filter(|segment| !segment.is_empty()).map(|segment| {
            match segment.strip_prefix(':') {
                Some(name) => PathSegment::Param(name.into()),
                None => PathSegment::Static(segment.into()),
            }
        }));
    }
}

impl ChooseView for Page {
    async fn choose(self) -> AnyView {
        #[cfg(feature = "hydrate")]
        {
            (self.view)().await.unwrap_or_else(|_| failed_load_view())
        }
        #[cfg(not(feature = "hydrate"))]
        {
            (self.view)()
        }
    }

    async fn preload(&self) {
        // The view tries again after a failure and reports it. Only the browser build is split.
        #[cfg(feature = "hydrate")]
        let _ = (self.load)().await;
    }
}

/// Renders the page whose module cannot be loaded. Its address is in the address bar already, so a reload opens it.
#[cfg(feature = "hydrate")]
fn failed_load_view() -> AnyView {
    view! {
        <Title text="Page not loaded"/>
        <PageHeader title="Page not loaded"/>
        <div class="notice" data-kind="warn" role="alert" id="page-not-loaded">
            <Icon name="triangle-alert"/>
            <p>
                "This page could not be loaded. A new version of Milvaion is running, or the connection is lost. Reload to open the page."
            </p>
            <button type="button" class="btn" on:click=|_| browser::reload()>
                "Reload"
            </button>
        </div>
    }
    .into_any()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::components::menu::MENU;

    fn path_of(path: &str) -> Option<&'static str> {
        Page::of(path).map(|page| page.path)
    }

    #[test]
    fn page_of_a_path_is_the_first_that_matches() {
        for page in PAGES {
            assert_eq!(path_of(&page.path.replace(':', "some-")), Some(page.path));
        }
        assert_eq!(path_of("/jobs/new?type=a/b"), Some("/jobs/new"));
        assert_eq!(path_of("/jobs/7/"), Some("/jobs/:id"));
        assert_eq!(path_of("/#top"), Some("/"));
        for unknown in ["", "//", "jobs", "/nothing/here", "/jobs//", "/jobs//edit", "/jobs/7/edit/8", "/calendars/7"] {
            assert_eq!(path_of(unknown), None, "{unknown:?}");
        }
    }

    #[test]
    fn parameters_are_named_by_the_page() {
        let page = Page::of("/jobs/a%20b/edit").expect("a page");
        assert_eq!(page.params("/jobs/a%20b/edit"), Some(vec![("id".into(), "a%20b".to_owned())]));
        let mut segments = Vec::new();
        page.generate_path(&mut segments);
        let fixed = |name: &'static str| PathSegment::Static(name.into());
        assert_eq!(segments, [fixed("jobs"), PathSegment::Param("id".into()), fixed("edit")]);
    }

    #[test]
    fn menus_lead_to_every_section() {
        let section = |path: &'static str| path.split('/').nth(1);
        for entry in &MENU {
            assert_eq!(path_of(entry.path), Some(entry.path), "{} has no page", entry.name);
        }
        for page in PAGES.iter().filter(|page| !page.is_door() && page.path != "/menu") {
            let is_listed = MENU.iter().any(|entry| section(entry.path) == section(page.path));
            assert!(is_listed, "no menu leads to {}", page.path);
        }
    }
}
