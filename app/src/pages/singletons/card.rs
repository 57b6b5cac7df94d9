//! The card of a loop.

use chrono::{DateTime, Utc};
use leptos::prelude::*;
use milvaion_api::singletons::SingletonLoop;

use super::{
    actions::{LoopActions, LoopButtons, card_ids},
    display::{badge_of, lease, millis, number, rhythm, standby},
    runs::LoopRunStrip,
};
use crate::components::{
    icon::{Icon, LiveIcon},
    time::Time,
};

/// The card of a loop with its values and buttons.
#[component]
pub fn LoopCard(
    /// The loop with its current values.
    row: RwSignal<SingletonLoop>,
    /// The actions of the page.
    actions: LoopActions,
    /// True if the user may control loops.
    may_control: bool,
) -> impl IntoView {
    let name = row.with_untracked(|row| row.name.clone());
    let (card, heading) = card_ids(&name);
    let (labelled_by, key) = (heading.clone(), name.clone());
    let status = Memo::new(move |_| row.with(|row| row.status));
    let buttons = may_control.then(|| view! { <LoopButtons row actions/> });
    let disabled = Memo::new(move |_| row.with(|row| row.disabled.clone()));
    let disabled_note = move || {
        disabled.get().map(|disabled| {
            view! { <p class="muted">{format!("Disabled by {} ", disabled.by)} <Time at=disabled.at relative=true/> "."</p> }
        })
    };
    view! {
        <section class="card" id=card aria-labelledby=labelled_by data-loop=key>
            <div class="card-head">
                <div class="cluster">
                    <h2 class="card-title mono breaks" id=heading tabindex="-1">{name}</h2>
                    <span class="badge" data-status=move || badge_of(status.get()).0>
                        <LiveIcon name=Signal::derive(move || badge_of(status.get()).1)/>
                        <span>{move || status.get().label()}</span>
                    </span>
                    <span class="muted">{move || row.with(rhythm)}</span>
                </div>
                {buttons}
            </div>
            {disabled_note}
            <p class="muted" hidden=move || row.with(|row| !row.is_yield_requested)>
                "The leader is asked to hand the loop over."
            </p>
            <LoopLeaderView row/>
            <LoopNumbers row/>
            <LoopErrorView row/>
        </section>
    }
}

/// Draws a label with a value that follows the loop.
fn entry(label: &'static str, value: impl Fn() -> String + Send + Sync + 'static) -> AnyView {
    let value = Memo::new(move |_| value());
    view! {
        <div>
            <dt>{label}</dt>
            <dd class="breaks">{move || value.get()}</dd>
        </div>
    }
    .into_any()
}

/// Draws a label with a time that follows the loop.
fn moment(
    label: &'static str,
    row: RwSignal<SingletonLoop>,
    at: fn(&SingletonLoop) -> Option<DateTime<Utc>>,
) -> AnyView {
    let at = Memo::new(move |_| row.with(at));
    let time = move || match at.get() {
        Some(at) => view! { <Time at relative=true/> }.into_any(),
        None => "–".into_any(),
    };
    view! {
        <div>
            <dt>{label}</dt>
            <dd>{time}</dd>
        </div>
    }
    .into_any()
}

/// The leader with its lease, and the instances on standby.
#[component]
fn LoopLeaderView(row: RwSignal<SingletonLoop>) -> impl IntoView {
    let of_leader = move |text: fn(&milvaion_api::singletons::LoopLeader) -> String| {
        row.with(|row| row.leader.as_ref().map_or_else(|| "–".to_owned(), text))
    };
    let bar = Memo::new(move |_| row.with(lease));
    let has_no_leader = move || bar.with(Option::is_none);
    view! {
        <dl class="kv">
            {entry("Leader", move || of_leader(|leader| leader.instance_id.clone()))}
            {entry("Host", move || of_leader(|leader| leader.host.clone()))}
            {entry("Epoch", move || row.with(|row| row.epoch.to_string()))}
            {moment("Leads since", row, |row| row.leader.as_ref()?.since)}
            <div>
                <dt>"Lease"</dt>
                <dd>
                    <span hidden=move || !has_no_leader()>"–"</span>
                    <span class="cluster" hidden=has_no_leader>
                        <progress
                            class="progress"
                            max="100"
                            value=move || bar.with(|bar| bar.as_ref().map_or(0, |(percent, _)| *percent)).to_string()
                            aria-label="Remaining lease"
                        ></progress>
                        <span>{move || bar.with(|bar| bar.as_ref().map(|(_, text)| text.clone()).unwrap_or_default())}</span>
                    </span>
                </dd>
            </div>
            {entry("On standby", move || row.with(standby))}
            {moment("Last heartbeat", row, |row| row.last_seen_at)}
            <div>
                <dt>"Last runs"</dt>
                <dd><LoopRunStrip row/></dd>
            </div>
        </dl>
    }
}

/// The counters and the times of the runs.
#[component]
fn LoopNumbers(row: RwSignal<SingletonLoop>) -> impl IntoView {
    let pair = move |of: fn(&SingletonLoop) -> (f64, f64)| {
        let (median, high) = row.with(of);
        format!("{} / {}", millis(median), millis(high))
    };
    let count = move |of: fn(&SingletonLoop) -> u64| number(row.with(of));
    view! {
        <dl class="loop-numbers">
            {entry("Ticks", move || count(|row| row.ticks))}
            {entry("Runs", move || count(|row| row.runs))}
            {entry("Dropped ticks", move || count(|row| row.dropped))}
            {entry("Errors", move || count(|row| row.errors))}
            {entry("Duration p50 / p99", move || pair(|row| (row.p50_ms, row.p99_ms)))}
            {entry("Lateness p50 / p99", move || pair(|row| (row.late_p50_ms, row.late_p99_ms)))}
            {moment("Running since", row, |row| row.running_since)}
            {moment("Last end", row, |row| row.last_ended_at)}
        </dl>
    }
}

/// The last error of a loop.
#[component]
fn LoopErrorView(row: RwSignal<SingletonLoop>) -> impl IntoView {
    let error = Memo::new(move |_| row.with(|row| row.last_error.clone().map(|text| (text, row.last_error_at))));
    move || {
        error.get().map(|(text, at)| {
            view! {
                <div class="notice" data-kind="error">
                    <Icon name="circle-alert"/>
                    <p class="breaks">
                        "Last error" {at.map(|at| view! { ", " <Time at relative=true/> })} ": " {text}
                    </p>
                </div>
            }
        })
    }
}
