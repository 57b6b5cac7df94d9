//! The page of the singleton loops: a card for each, with its leader, its counters and its last runs.
//!
//! A loop may run many times a second and causes no events, so an open page reads again every two seconds. Cards are
//! keyed and patched in place, so that a focused button keeps the focus.

pub mod actions;
pub mod card;
pub mod display;
pub mod runs;

use std::time::Duration;

use leptos::prelude::*;
use leptos_meta::Title;
use leptos_router::hooks::use_query_map;
use milvaion_api::{
    permissions::Permission,
    singletons::{MAX_LOOPS, SingletonLoop, SingletonLoopList},
};

use self::{
    actions::{LoopActions, LoopConfirmationSection},
    card::LoopCard,
};
use crate::{
    api::{
        session::{FlashView, take_flash},
        singletons::{ADDRESS, FORM, singleton_loops},
    },
    components::{
        action_error::ActionError, confirm::RowQuestionDialog, empty_state::EmptyState, form::ErrorSummary, icon::Icon,
        live_rows::LiveRows, loading::render_page, page_header::PageHeader, session_context::may,
    },
    error::AppError,
    live::live_page,
};

/// The shortest time between two reads of the loops.
const REFRESH_PAUSE: Duration = Duration::from_millis(200);
/// The time between two reads of an open page.
const POLL_INTERVAL: Duration = Duration::from_secs(2);
/// The number of loops from which on the page has a search.
const SEARCH_FROM: usize = 6;

/// `/singleton-loops?q=…`.
#[component]
pub fn SingletonLoopsPage() -> impl IntoView {
    let data = Resource::new_blocking(
        || (),
        |()| async move {
            let list = singleton_loops().await?;
            Ok::<_, AppError>((list, take_flash(FORM.into()).await?.unwrap_or_default()))
        },
    );
    let actions = LoopActions::new();
    view! {
        <Title text="Singleton loops"/>
        {render_page(data, move |(list, flash): (SingletonLoopList, FlashView)| {
            view! {
                <PageHeader
                    title="Singleton loops"
                    sub="Loops that one instance of a worker runs at a time. Another instance takes over when it stops."
                />
                <LoopsContent list flash actions/>
            }
        })}
    }
}

#[component]
fn LoopsContent(list: SingletonLoopList, flash: FlashView, actions: LoopActions) -> impl IntoView {
    let query = use_query_map();
    let search = Memo::new(move |_| query.with(|query| query.get("q").unwrap_or_default().trim().to_lowercase()));
    let is_truncated = list.is_truncated;
    let rows = LiveRows::of_all(list.loops, |row: &SingletonLoop| row.name.clone());
    live_page(REFRESH_PAUSE, singleton_loops, |_| false, move |read: SingletonLoopList| rows.apply_all(read.loops))
        .every(POLL_INTERVAL)
        .after_changes(actions.changes);
    let may_control = may(Permission::ControlLoops);
    let whole: Vec<_> = flash.error.iter().map(|text| (String::new(), text.clone())).collect();
    let is_empty = Memo::new(move |_| rows.is_empty());
    let found = Memo::new(move |_| {
        let wanted = search.get();
        let mut names = rows.keys();
        names.retain(|name| name.to_lowercase().contains(&wanted));
        names
    });
    let hides_search = move || rows.count() < SEARCH_FROM && search.with(String::is_empty);
    let hides_none = move || is_empty.get() || !found.with(Vec::is_empty);
    let truncated = is_truncated.then(|| {
        view! {
            <div class="notice" data-kind="warn">
                <Icon name="triangle-alert"/>
                <p>{format!("There are more than {MAX_LOOPS} singleton loops. The ones that were offered last are shown.")}</p>
            </div>
        }
    });
    view! {
        <div class="stack">
            <ErrorSummary errors=whole/>
            <ActionError error=actions.error/>
            {truncated}
            <LoopConfirmationSection rows/>
            <div class="filterbar" hidden=hides_search>
                <form method="get" action=ADDRESS class="cluster grow" role="search">
                    <div class="field grow">
                        <label class="sr-only" for="q">"Search singleton loops"</label>
                        <input
                            type="search"
                            id="q"
                            name="q"
                            value=search.get_untracked()
                            placeholder="Name"
                            autocomplete="off"
                            maxlength="100"
                        />
                    </div>
                    <button type="submit" class="btn">
                        <Icon name="search"/>
                        "Search"
                    </button>
                </form>
            </div>
            <div hidden=move || !is_empty.get()>
                <EmptyState
                    icon="refresh-cw"
                    title="No singleton loops"
                    text="A singleton loop is a function that exactly one instance of a worker runs, many times a second if needed. It appears here when the first instance offers it. Add one to a worker with .singleton(\"price-feed\"); the page docs/singleton-loops.md describes it."
                >
                    <a class="btn" href="/help">"Open help"</a>
                </EmptyState>
            </div>
            <div hidden=hides_none>
                <EmptyState icon="search" title="No singleton loop matches" text="Search for another part of the name.">
                    <a class="btn" href=ADDRESS>"Show all"</a>
                </EmptyState>
            </div>
            {rows.view_of(found.into(), move |row| view! { <LoopCard row actions may_control/> }.into_any())}
        </div>
        <RowQuestionDialog question=actions.question id="confirm-loop-action"/>
    }
}
