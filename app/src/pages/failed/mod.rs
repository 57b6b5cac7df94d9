//! What failed for good and waits for somebody to settle it, by cause; and messages nobody could read.
//!
//! Two thousand failures have three causes, so the first page shows the causes. One cause has a page with its failures,
//! and one failure a page with all that is known of it and the input to run it again with.

pub mod dead_letters;
pub mod groups;
pub mod kind;
pub mod one;
pub mod row;
pub mod settle;
pub mod words;

mod address;

use std::time::Duration;

use leptos::prelude::*;
use leptos_meta::Title;
use leptos_router::hooks::{use_params_map, use_query_map};
use milvaion_api::{
    event::Event,
    failure::{DeadLetterFilter, DeadLetterRow, FailureFilter, FailureGroup, FailureRow},
    page::Page,
};
use milvaion_protocol::{id::OccurrenceId, status::OccurrenceStatus};
use serde::{Deserialize, Serialize};

use self::{dead_letters::Letters, groups::Groups, kind::Kind, one::One};
use crate::{
    api::{
        failures::{failure_groups, get_failure, list_dead_letters, list_failures},
        session::{Left, take_flash},
    },
    components::{loading::page, page_head::PageHead},
    error::AppError,
    live::{Live, Refresher, is_resync, use_live},
};

/// How often these pages read again at most while failures come in.
const PAUSE: Duration = Duration::from_millis(700);
/// How often they read again when nothing is heard: what somebody else settles makes no event.
const QUIET: Duration = Duration::from_secs(20);

/// What the page at `/failed` is asked for, and what it shows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum Shown {
    Groups(FailureFilter, Page<FailureGroup>),
    Letters(DeadLetterFilter, Page<DeadLetterRow>, Left),
}

/// `/failed`. What it shows is in its address: `tab`, `state`, `job`, `cause`, `q`, `after`, `before`.
#[component]
pub fn FailedPage() -> impl IntoView {
    let query = use_query_map();
    let is_letters = Memo::new(move |_| query.with(|query| query.get_str("tab") == Some("dead-letters")));
    let asked = Memo::new(move |_| {
        query.with(|query| {
            if query.get_str("tab") == Some("dead-letters") {
                let before = query.get_str("before").and_then(|id| id.parse().ok());
                Err(DeadLetterFilter { resolved: address::resolved(query), before, limit: dead_letters::ROWS })
            } else {
                Ok(address::filter(query))
            }
        })
    });
    let data = Resource::new_blocking(
        move || asked.get(),
        |asked| async move {
            Ok::<_, AppError>(match asked {
                Ok(filter) => Shown::Groups(filter.clone(), failure_groups(filter).await?),
                Err(filter) => {
                    let left = take_flash("failures".into()).await?.unwrap_or_default();
                    Shown::Letters(filter.clone(), list_dead_letters(filter).await?, left)
                }
            })
        },
    );
    let current = move |letters: bool| (is_letters.get() == letters).then_some("page");
    view! {
        <Title text=move || if is_letters.get() { "Dead letters · Failures" } else { "Failures" }/>
        <PageHead title="Failures" sub="What failed for good and waits for somebody to settle it."/>
        <nav class="tabs" aria-label="Failures and dead letters">
            <a href="/failed" aria-current=move || current(false)>"Failures by cause"</a>
            <a href="/failed?tab=dead-letters" aria-current=move || current(true)>"Dead letters"</a>
        </nav>
        {page(data, |shown| match shown {
            Shown::Groups(filter, page) => view! { <Groups filter page/> }.into_any(),
            Shown::Letters(filter, page, left) => view! { <Letters filter page left/> }.into_any(),
        })}
    }
}

/// What the page below it shows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum Below {
    Kind(Box<FailureGroup>, FailureFilter, Page<FailureRow>, Left),
    One(Box<FailureRow>, Left),
}

/// `/failed/:key`: the key is a fingerprint, for all failures of one cause, or the id of the occurrence that failed.
#[component]
pub fn FailurePage() -> impl IntoView {
    let params = use_params_map();
    let query = use_query_map();
    let asked = Memo::new(move |_| {
        let key = params.with(|params| params.get("key").unwrap_or_default());
        (key, query.with(address::filter))
    });
    let data = Resource::new_blocking(
        move || asked.get(),
        |(key, filter)| async move {
            if let Ok(id) = key.parse::<OccurrenceId>() {
                let failure = get_failure(id).await?;
                // The two forms of this page are of two calls, and each leaves its own.
                let left = match take_flash("failure".into()).await? {
                    Some(left) => left,
                    None => take_flash("failures".into()).await?.unwrap_or_default(),
                };
                return Ok(Below::One(Box::new(failure), left));
            }
            let filter = FailureFilter { fingerprint: Some(key), cause: None, text: None, ..filter };
            let (group, page) = read_kind(filter.clone()).await?;
            let left = take_flash("failures".into()).await?.unwrap_or_default();
            Ok(Below::Kind(Box::new(group), filter, page, left))
        },
    );
    page(data, |shown| match shown {
        Below::Kind(group, filter, page, left) => view! { <Kind group=*group filter page left/> }.into_any(),
        Below::One(failure, left) => view! { <One failure=*failure left/> }.into_any(),
    })
}

/// A cause and a page of its failures.
async fn read_kind(filter: FailureFilter) -> Result<(FailureGroup, Page<FailureRow>), AppError> {
    let whole = FailureFilter { resolved: None, after: None, ..filter.clone() };
    let group = failure_groups(whole).await?.rows.into_iter().next();
    let group = group.ok_or_else(|| {
        let error = AppError::NotFound("There are no failures of this cause, or none that are still kept.".into());
        #[cfg(feature = "ssr")]
        let error = crate::api::failed(error);
        error
    })?;
    Ok((group, list_failures(filter).await?))
}

/// Reads again when something has failed, when something may have been missed, and now and then.
fn keep_current(refresh: &Refresher) {
    if use_context::<Live>().is_some_and(Live::heard_lately) {
        refresh.ask();
    }
    use_live({
        let refresh = refresh.clone();
        move |envelope| {
            let is_news = match &envelope.event {
                Event::Occurrences { rows } => {
                    rows.iter().any(|row| matches!(row.status, OccurrenceStatus::Failed | OccurrenceStatus::TimedOut))
                }
                _ => is_resync(envelope),
            };
            if is_news {
                refresh.ask();
            }
        }
    });
    let refresh = refresh.clone();
    Effect::new(move |_| {
        let refresh = refresh.clone();
        let timer = set_interval_with_handle(move || refresh.ask(), QUIET);
        on_cleanup(move || {
            if let Ok(timer) = timer {
                timer.clear();
            }
        });
    });
}

/// The chips that narrow a list to a state.
fn state_chips(resolved: Option<bool>, address: impl Fn(Option<bool>) -> String) -> impl IntoView {
    let chips: Vec<_> = address::STATES
        .into_iter()
        .map(|(_, word, state)| {
            view! { <a class="chip" href=address(state) aria-current=(resolved == state).then_some("true")>{word}</a> }
        })
        .collect();
    view! { <div class="chips" role="group" aria-label="State">{chips}</div> }
}
