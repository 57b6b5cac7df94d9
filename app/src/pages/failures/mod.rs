//! Occurrences that used up their retries, grouped by cause, and dead letters.
//!
//! Two thousand failures typically have three causes, so the first page lists the causes. Each cause has a page with
//! its failures. Each failure has a page with its details and a form that retries it with the same or an edited input.

pub mod bulk_actions;
pub mod dead_letters;
pub mod display;
pub mod failure_detail;
pub mod failure_row;
pub mod group_detail;
pub mod group_list;
pub mod settle_form;

mod bulk_scope;

mod url;

use std::time::Duration;

use leptos::prelude::*;
use leptos_meta::Title;
use leptos_router::{
    hooks::{use_params_map, use_query_map},
    params::ParamsMap,
};
use milvaion_api::{
    events::{EventEnvelope, LiveEvent},
    failures::{DeadLetterFilter, DeadLetterRow, FailureFilter, FailureGroup, FailureRow},
    page::ListPage,
};
use milvaion_protocol::{id::OccurrenceId, status::OccurrenceStatus};
use serde::{Deserialize, Serialize};

use self::{
    dead_letters::DeadLetterList, failure_detail::FailureDetail, group_detail::FailureGroupDetail,
    group_list::FailureGroupList,
};
use crate::{
    api::{
        failures::{failure_groups, get_failure, list_dead_letters, list_failures},
        session::{FlashView, take_flash},
    },
    components::{
        filter_controls::DrawnFilter,
        filter_error::{render_filtered, use_filter},
        page_header::{Breadcrumbs, LiveTitle, PageHeader},
        query_reader::InvalidFilter,
    },
    error::AppError,
};

/// The minimum time between two refreshes while failures arrive.
const REFRESH_INTERVAL: Duration = Duration::from_millis(700);
/// The time between refreshes without events: a failure that another user resolves causes no event.
const IDLE_REFRESH_INTERVAL: Duration = Duration::from_secs(20);

/// The tab shown at `/failed`, with its filter and data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum FailuresTab {
    Groups(FailureFilter, ListPage<FailureGroup>),
    DeadLetters(DeadLetterFilter, ListPage<DeadLetterRow>, FlashView),
}

/// The filter that the address of `/failed` holds.
#[derive(Clone, PartialEq)]
enum FailuresRequest {
    Groups(FailureFilter),
    DeadLetters(DeadLetterFilter),
}

impl FailuresRequest {
    fn parse(query: &ParamsMap) -> Result<Self, InvalidFilter> {
        if url::is_dead_letters(query) {
            url::parse_dead_letters(query, dead_letters::DEAD_LETTERS_PER_PAGE).map(Self::DeadLetters)
        } else {
            url::parse_groups(query).map(Self::Groups)
        }
    }

    async fn read(self) -> Result<FailuresTab, AppError> {
        Ok(match self {
            Self::Groups(filter) => FailuresTab::Groups(filter.clone(), failure_groups(filter).await?),
            Self::DeadLetters(filter) => {
                let flash = take_flash("failures".into()).await?.unwrap_or_default();
                FailuresTab::DeadLetters(filter.clone(), list_dead_letters(filter).await?, flash)
            }
        })
    }
}

/// `/failed`. The tab and the filter are in the address: `tab`, `state`, `job`, `cause`, `q`, `after`, `before`.
#[component]
pub fn FailuresPage() -> impl IntoView {
    let query = use_query_map();
    let is_dead_letters = Memo::new(move |_| query.with(url::is_dead_letters));
    let drawn = DrawnFilter::new();
    let title = Signal::derive(move || {
        let title = if is_dead_letters.get() { "Dead letters · Failures" } else { "Failures" };
        title.to_owned()
    });
    let current = move |dead_letters: bool| (is_dead_letters.get() == dead_letters).then_some("page");
    view! {
        <LiveTitle text=title/>
        {render_filtered(use_filter(FailuresRequest::parse), FailuresRequest::read, move |shown| {
            let list = match shown {
                Ok(FailuresTab::Groups(filter, page)) => {
                    view! { <FailureGroupList filter page drawn/> }.into_any()
                }
                Ok(FailuresTab::DeadLetters(filter, page, flash)) => {
                    view! { <DeadLetterList filter page flash/> }.into_any()
                }
                Err(notice) => notice,
            };
            view! {
                <PageHeader title="Failures" sub="Occurrences that used up their retries, kept until they are retried or resolved."/>
                <nav class="tabs" aria-label="Failures and dead letters">
                    <a href="/failed" aria-current=move || current(false)>"Failures by cause"</a>
                    <a href="/failed?tab=dead-letters" aria-current=move || current(true)>"Dead letters"</a>
                </nav>
                {list}
            }
            .into_any()
        })}
    }
}

/// The data of `/failed/:key`: a group of failures or one failure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum FailurePageData {
    Group(Box<FailureGroup>, FailureFilter, ListPage<FailureRow>, FlashView),
    Failure(Box<FailureRow>, FlashView),
}

/// The object that the address of `/failed/:key` names.
#[derive(Clone, PartialEq)]
enum FailureRequest {
    Group(FailureFilter),
    Failure(OccurrenceId),
}

impl FailureRequest {
    async fn read(self) -> Result<FailurePageData, AppError> {
        match self {
            Self::Failure(id) => {
                let failure = get_failure(id).await?;
                // The page has two forms that call different server functions, and each leaves its own flash message.
                let flash = match take_flash("failure".into()).await? {
                    Some(flash) => flash,
                    None => take_flash("failures".into()).await?.unwrap_or_default(),
                };
                Ok(FailurePageData::Failure(Box::new(failure), flash))
            }
            Self::Group(filter) => {
                let (group, page) = load_group(filter.clone()).await?;
                let flash = take_flash("failures".into()).await?.unwrap_or_default();
                Ok(FailurePageData::Group(Box::new(group), filter, page, flash))
            }
        }
    }
}

/// `/failed/:key`. The key is a fingerprint, for all failures of one cause, or the id of an occurrence that failed.
#[component]
pub fn FailurePage() -> impl IntoView {
    let params = use_params_map();
    let query = use_query_map();
    let request = Memo::new(move |_| {
        let key = params.with(|params| params.get("key").unwrap_or_default());
        match key.parse::<OccurrenceId>() {
            Ok(id) => Ok(FailureRequest::Failure(id)),
            Err(_) => query.with(|query| url::parse_group(query, key)).map(FailureRequest::Group),
        }
    });
    render_filtered(request, FailureRequest::read, move |shown| match shown {
        Ok(FailurePageData::Group(group, filter, page, flash)) => {
            view! { <FailureGroupDetail group=*group filter page flash/> }.into_any()
        }
        Ok(FailurePageData::Failure(failure, flash)) => view! { <FailureDetail failure=*failure flash/> }.into_any(),
        Err(notice) => view! {
            <Title text="Failures"/>
            <Breadcrumbs steps=vec![("/failed".into(), "Failures".into())] here="One cause"/>
            <PageHeader title="Failures of one cause"/>
            {notice}
        }
        .into_any(),
    })
}

/// Reads the group of a cause and a page of its failures.
async fn load_group(filter: FailureFilter) -> Result<(FailureGroup, ListPage<FailureRow>), AppError> {
    let whole = FailureFilter { resolved: None, after: None, ..filter.clone() };
    let group = failure_groups(whole).await?.rows.into_iter().next();
    let group = group.ok_or_else(|| {
        let error = AppError::NotFound("No failures of this cause exist, or their retention has ended.".into());
        #[cfg(feature = "ssr")]
        let error = crate::api::with_error_status(error);
        error
    })?;
    Ok((group, list_failures(filter).await?))
}

/// Returns true if an occurrence has failed.
fn is_failure(envelope: &EventEnvelope) -> bool {
    let LiveEvent::Occurrences { rows } = &envelope.event else { return false };
    rows.iter().any(|row| matches!(row.status, OccurrenceStatus::Failed | OccurrenceStatus::TimedOut))
}

/// Draws the chips that narrow a list to a state.
fn state_chips(resolved: Option<bool>, address: impl Fn(Option<bool>) -> String) -> impl IntoView {
    let chips: Vec<_> = url::STATE_FILTERS
        .into_iter()
        .map(|(_, word, state)| {
            view! { <a class="chip" href=address(state) aria-current=(resolved == state).then_some("true")>{word}</a> }
        })
        .collect();
    view! { <div class="chips" role="group" aria-label="State">{chips}</div> }
}
