//! The words, the statuses and the keys of the dashboard, on one page.

use leptos::prelude::*;
use leptos_meta::Title;
use milvaion_protocol::status::ALL_STATUSES;

use crate::components::{
    page_header::PageHeader,
    shortcuts::KeyTable,
    status_badge::{StatusBadge, meaning_of},
};

/// The product's words and what they mean.
const GLOSSARY: [(&str, &str); 14] = [
    ("Job", "A definition: what runs, with which input, and when."),
    ("Schedule", "When a job is due: by a cron expression in a time zone, every so often, once, or only by hand."),
    ("Occurrence", "One execution of a job, with everything that came of it. It has one or more attempts."),
    ("Attempt", "One try at an occurrence. A failed one may be followed by another, after a backoff."),
    ("Worker", "A group of programs that run jobs. Jobs are addressed to it by name."),
    ("Instance", "One process of a worker. It shows that it lives by a heartbeat every few seconds."),
    ("Job type", "What a worker can run. It announces each with a schema, from which the input form is drawn."),
    ("Misfire", "A due time that passed while the scheduler could not act. The job's policy says what becomes of it."),
    ("Overlap", "A job is due while its previous occurrence still runs. The job's policy says what becomes of it."),
    ("Calendar", "A set of blackouts with a time zone of its own. Each job chooses the calendars it keeps to."),
    ("Blackout", "A day, or hours that come back every week, in which a job that keeps to the calendar does not run."),
    ("Failure", "An occurrence that failed for good. It is kept until somebody runs it again or resolves it."),
    ("Dead letter", "A message that nobody could read, or that belongs to no occurrence. Somebody should look at it."),
    ("Version", "A job's definition at one time. Each change makes a new one; an earlier one can be restored."),
];

/// The page.
#[component]
pub fn HelpPage() -> impl IntoView {
    let words = GLOSSARY
        .into_iter()
        .map(|(word, meaning)| {
            view! {
                <dt>{word}</dt>
                <dd>{meaning}</dd>
            }
        })
        .collect::<Vec<_>>();
    let statuses = ALL_STATUSES
        .into_iter()
        .map(|status| {
            view! {
                <dt><StatusBadge status/></dt>
                <dd>{meaning_of(status)}</dd>
            }
        })
        .collect::<Vec<_>>();
    view! {
        <Title text="Help"/>
        <PageHeader title="Help" sub="The words used here, what the statuses mean, and the keys."/>
        <div class="stack">
            <section class="card" aria-labelledby="help-words">
                <h2 class="card-title" id="help-words">"Words"</h2>
                <dl class="kv">{words}</dl>
            </section>
            <section class="card" aria-labelledby="help-statuses">
                <h2 class="card-title" id="help-statuses">"Statuses"</h2>
                <dl class="kv">{statuses}</dl>
            </section>
            <section class="card" aria-labelledby="help-keys">
                <h2 class="card-title" id="help-keys">"Keys"</h2>
                <p class="muted">
                    "Press two keys one after the other. They do nothing while you type. Press ? to switch them off."
                </p>
                <KeyTable/>
            </section>
            <section class="card" aria-labelledby="help-time">
                <h2 class="card-title" id="help-time">"Times"</h2>
                <p>
                    "Times are shown in your own zone or in UTC; the button in the top bar changes it. Every time says which one it is. Countdowns run on the server's clock."
                </p>
            </section>
        </div>
    }
}
