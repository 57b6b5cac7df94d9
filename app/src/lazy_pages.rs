//! The routes of the pages, whose code is split into WebAssembly modules.
//!
//! A browser loads the main module (the layout, the event stream and everything that several groups share) and the
//! module of the group of the page that is opened. The server sends preload links for them with the document. The module
//! of another group is loaded when the user opens one of its pages, while the present page stays visible.
//!
//! Pages are grouped because each combination of modules that shares code gets a module for that code: one module for
//! each page would give several hundred files, which together are half again as large.
//!
//! The first page is hydrated only when its module has arrived. Hydration then runs at once, as it would in one module:
//! if the layout were hydrated first, its effects (the clock, the zone) would change the page before the page knows its
//! own HTML.
//!
//! A module that cannot be loaded (the connection is lost, or an update has removed its file) is not a panic, which
//! would stop the whole page. The page that was to be opened then says so, and the next visit tries again.
//!
//! `data` of a route stays in the main module, so it must refer to nothing: each page creates its resources in its view.

use leptos::prelude::*;
use leptos_router::LazyRoute;

#[cfg(feature = "hydrate")]
use leptos::wasm_split::{SplitLoaderError, wasm_split};
#[cfg(feature = "hydrate")]
use leptos_meta::Title;

use crate::pages::{
    account::AccountPage,
    alerts::{
        AlertsPage,
        channel::{AlertChannelPage, NewAlertChannelPage},
        channels::AlertChannelsPage,
        rule::{AlertRulePage, NewAlertRulePage},
        rules::AlertRulesPage,
    },
    audit::AuditPage,
    calendars::{
        CalendarsPage,
        form::{EditCalendarPage, NewCalendarPage},
    },
    failures::{FailurePage, FailuresPage},
    help::HelpPage,
    job::JobPage,
    job_form::{EditJobPage, NewJobPage},
    jobs::JobsPage,
    login::LoginPage,
    menu::MenuPage,
    occurrence::OccurrencePage,
    occurrences::OccurrencesPage,
    one_time_link::OneTimeLinkPage,
    overview::OverviewPage,
    person::PersonPage,
    singletons::SingletonLoopsPage,
    team::TeamPage,
    tokens::TokensPage,
    workers::WorkersPage,
};
#[cfg(feature = "hydrate")]
use crate::{
    browser,
    components::{icon::Icon, page_header::PageHeader},
};

/// Declares the route of a page, whose code belongs to the module `$group`.
///
/// This is what `lazy_route` of Leptos generates, except that a page names its module, and that a failed load is
/// a value.
macro_rules! lazy_page {
    ($group:ident, $route:ident, $view:ident, $preload:ident, $page:ident) => {
        #[doc = concat!("The route of [`", stringify!($page), "`].")]
        #[derive(Debug)]
        pub struct $route;

        #[cfg(feature = "hydrate")]
        #[wasm_split($group, wasm_split_path = ::leptos::wasm_split, preload(#[doc(hidden)] $preload), fallible)]
        fn $view() -> Result<AnyView, SplitLoaderError> {
            Ok($page().into_any())
        }

        #[cfg(not(feature = "hydrate"))]
        fn $view() -> AnyView {
            leptos::prefetch_lazy_fn_on_server(stringify!($group));
            $page().into_any()
        }

        impl LazyRoute for $route {
            fn data() -> Self {
                Self
            }

            async fn view(_route: Self) -> AnyView {
                #[cfg(feature = "hydrate")]
                {
                    $view().await.unwrap_or_else(|_| failed_load_view())
                }
                #[cfg(not(feature = "hydrate"))]
                {
                    $view()
                }
            }

            async fn preload() {
                // The view tries again after a failure and reports it. Only the browser build is split.
                #[cfg(feature = "hydrate")]
                let _ = $preload().await;
            }
        }
    };
}

lazy_page!(doors, OneTimeLinkRoute, one_time_link_view, __preload_one_time_link_view, OneTimeLinkPage);
lazy_page!(doors, LoginRoute, login_view, __preload_login_view, LoginPage);
lazy_page!(overview, OverviewRoute, overview_view, __preload_overview_view, OverviewPage);
lazy_page!(jobs, JobsRoute, jobs_view, __preload_jobs_view, JobsPage);
lazy_page!(define, NewJobRoute, new_job_view, __preload_new_job_view, NewJobPage);
lazy_page!(jobs, JobRoute, job_view, __preload_job_view, JobPage);
lazy_page!(define, EditJobRoute, edit_job_view, __preload_edit_job_view, EditJobPage);
lazy_page!(define, CalendarsRoute, calendars_view, __preload_calendars_view, CalendarsPage);
lazy_page!(define, NewCalendarRoute, new_calendar_view, __preload_new_calendar_view, NewCalendarPage);
lazy_page!(define, EditCalendarRoute, edit_calendar_view, __preload_edit_calendar_view, EditCalendarPage);
lazy_page!(lists, OccurrencesRoute, occurrences_view, __preload_occurrences_view, OccurrencesPage);
lazy_page!(occurrence, OccurrenceRoute, occurrence_view, __preload_occurrence_view, OccurrencePage);
lazy_page!(failures, FailuresRoute, failures_view, __preload_failures_view, FailuresPage);
lazy_page!(failures, FailureRoute, failure_view, __preload_failure_view, FailurePage);
lazy_page!(alerts, AlertsRoute, alerts_view, __preload_alerts_view, AlertsPage);
lazy_page!(alerts, AlertRulesRoute, alert_rules_view, __preload_alert_rules_view, AlertRulesPage);
lazy_page!(alerts, NewAlertRuleRoute, new_alert_rule_view, __preload_new_alert_rule_view, NewAlertRulePage);
lazy_page!(alerts, AlertRuleRoute, alert_rule_view, __preload_alert_rule_view, AlertRulePage);
lazy_page!(alerts, AlertChannelsRoute, alert_channels_view, __preload_alert_channels_view, AlertChannelsPage);
lazy_page!(alerts, NewAlertChannelRoute, new_alert_channel_view, __preload_new_alert_channel_view, NewAlertChannelPage);
lazy_page!(alerts, AlertChannelRoute, alert_channel_view, __preload_alert_channel_view, AlertChannelPage);
lazy_page!(lists, WorkersRoute, workers_view, __preload_workers_view, WorkersPage);
lazy_page!(govern, SingletonLoopsRoute, singleton_loops_view, __preload_singleton_loops_view, SingletonLoopsPage);
lazy_page!(govern, TeamRoute, team_view, __preload_team_view, TeamPage);
lazy_page!(govern, PersonRoute, person_view, __preload_person_view, PersonPage);
lazy_page!(govern, AuditRoute, audit_view, __preload_audit_view, AuditPage);
lazy_page!(govern, AccountRoute, account_view, __preload_account_view, AccountPage);
lazy_page!(govern, TokensRoute, tokens_view, __preload_tokens_view, TokensPage);
lazy_page!(lists, MenuRoute, menu_view, __preload_menu_view, MenuPage);
lazy_page!(lists, HelpRoute, help_view, __preload_help_view, HelpPage);

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

/// The page at an address. Each page has a loader of its own, also within one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LazyPage {
    /// The page `OneTimeLinkPage`.
    OneTimeLink,
    /// The page `LoginPage`.
    Login,
    /// The page `OverviewPage`.
    Overview,
    /// The page `JobsPage`.
    Jobs,
    /// The page `NewJobPage`.
    NewJob,
    /// The page `JobPage`.
    Job,
    /// The page `EditJobPage`.
    EditJob,
    /// The page `CalendarsPage`.
    Calendars,
    /// The page `NewCalendarPage`.
    NewCalendar,
    /// The page `EditCalendarPage`.
    EditCalendar,
    /// The page `OccurrencesPage`.
    Occurrences,
    /// The page `OccurrencePage`.
    Occurrence,
    /// The page `FailuresPage`.
    Failures,
    /// The page `FailurePage`.
    Failure,
    /// The page `AlertsPage`.
    Alerts,
    /// The page `AlertRulesPage`.
    AlertRules,
    /// The page `NewAlertRulePage`.
    NewAlertRule,
    /// The page `AlertRulePage`.
    AlertRule,
    /// The page `AlertChannelsPage`.
    AlertChannels,
    /// The page `NewAlertChannelPage`.
    NewAlertChannel,
    /// The page `AlertChannelPage`.
    AlertChannel,
    /// The page `WorkersPage`.
    Workers,
    /// The page `SingletonLoopsPage`.
    SingletonLoops,
    /// The page `TeamPage`.
    Team,
    /// The page `PersonPage`.
    Person,
    /// The page `AuditPage`.
    Audit,
    /// The page `AccountPage`.
    Account,
    /// The page `TokensPage`.
    Tokens,
    /// The page `MenuPage`.
    Menu,
    /// The page `HelpPage`.
    Help,
}

impl LazyPage {
    /// Returns the page at `path`, which may have a query; `None` if there is none. It must agree with the site map.
    #[must_use]
    pub fn of(path: &str) -> Option<Self> {
        let path = path.split(['?', '#']).next().unwrap_or_default();
        let segments: Vec<&str> = path.split('/').filter(|segment| !segment.is_empty()).collect();
        Some(match segments.as_slice() {
            [] => Self::Overview,
            ["setup" | "invite" | "reset"] => Self::OneTimeLink,
            ["login"] => Self::Login,
            ["jobs"] => Self::Jobs,
            ["jobs", "new"] => Self::NewJob,
            ["jobs", _] => Self::Job,
            ["jobs", _, "edit"] => Self::EditJob,
            ["calendars"] => Self::Calendars,
            ["calendars", "new"] => Self::NewCalendar,
            ["calendars", _, "edit"] => Self::EditCalendar,
            ["occurrences"] => Self::Occurrences,
            ["occurrences", _] => Self::Occurrence,
            ["failed"] => Self::Failures,
            ["failed", _] => Self::Failure,
            ["alerts"] => Self::Alerts,
            ["alerts", "rules"] => Self::AlertRules,
            ["alerts", "rules", "new"] => Self::NewAlertRule,
            ["alerts", "rules", _] => Self::AlertRule,
            ["alerts", "channels"] => Self::AlertChannels,
            ["alerts", "channels", "new"] => Self::NewAlertChannel,
            ["alerts", "channels", _] => Self::AlertChannel,
            ["workers"] => Self::Workers,
            ["singleton-loops"] => Self::SingletonLoops,
            ["team"] => Self::Team,
            ["team", _] => Self::Person,
            ["audit"] => Self::Audit,
            ["account"] => Self::Account,
            ["tokens"] => Self::Tokens,
            ["menu"] => Self::Menu,
            ["help"] => Self::Help,
            _ => return None,
        })
    }

    /// Loads the module of the page.
    ///
    /// # Errors
    ///
    /// Fails if the module cannot be loaded; the browser's console has the reason.
    #[cfg(feature = "hydrate")]
    pub async fn preload(self) -> Result<(), SplitLoaderError> {
        match self {
            Self::OneTimeLink => __preload_one_time_link_view().await,
            Self::Login => __preload_login_view().await,
            Self::Overview => __preload_overview_view().await,
            Self::Jobs => __preload_jobs_view().await,
            Self::NewJob => __preload_new_job_view().await,
            Self::Job => __preload_job_view().await,
            Self::EditJob => __preload_edit_job_view().await,
            Self::Calendars => __preload_calendars_view().await,
            Self::NewCalendar => __preload_new_calendar_view().await,
            Self::EditCalendar => __preload_edit_calendar_view().await,
            Self::Occurrences => __preload_occurrences_view().await,
            Self::Occurrence => __preload_occurrence_view().await,
            Self::Failures => __preload_failures_view().await,
            Self::Failure => __preload_failure_view().await,
            Self::Alerts => __preload_alerts_view().await,
            Self::AlertRules => __preload_alert_rules_view().await,
            Self::NewAlertRule => __preload_new_alert_rule_view().await,
            Self::AlertRule => __preload_alert_rule_view().await,
            Self::AlertChannels => __preload_alert_channels_view().await,
            Self::NewAlertChannel => __preload_new_alert_channel_view().await,
            Self::AlertChannel => __preload_alert_channel_view().await,
            Self::Workers => __preload_workers_view().await,
            Self::SingletonLoops => __preload_singleton_loops_view().await,
            Self::Team => __preload_team_view().await,
            Self::Person => __preload_person_view().await,
            Self::Audit => __preload_audit_view().await,
            Self::Account => __preload_account_view().await,
            Self::Tokens => __preload_tokens_view().await,
            Self::Menu => __preload_menu_view().await,
            Self::Help => __preload_help_view().await,
        }
    }
}
