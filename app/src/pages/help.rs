//! The help page: glossary, statuses, the parts of the installation and keyboard shortcuts.

use leptos::prelude::*;
use leptos_meta::Title;
use milvaion_protocol::status::ALL_STATUSES;

use crate::components::{
    health_parts::HEALTH_PARTS,
    page_header::PageHeader,
    shortcuts::KeyTable,
    status_badge::{StatusBadge, meaning_of},
};

/// The terms of the dashboard with their definitions.
const GLOSSARY: [(&str, &str); 23] = [
    ("Job", "A definition of what runs, with which input, and on which schedule."),
    (
        "Schedule",
        "When a job is due: by a cron expression in a time zone, at a fixed interval, once, or only manually.",
    ),
    ("Occurrence", "One run of a job, with its result and its log. It has one or more attempts."),
    ("Attempt", "One try at an occurrence. After a failed attempt a retry may follow, delayed by a backoff."),
    ("Worker", "A group of processes that run jobs. Jobs address it by name."),
    ("Instance", "One process of a worker. It sends a heartbeat every few seconds."),
    (
        "State of an instance",
        "Active: it takes new work. Completing: it has received SIGTERM, and ends or hands back what it runs. Unreachable: it is alive, and nothing that it sends over RabbitMQ arrives. Draining: it no longer runs, and its open runs are being requeued. Lost: its heartbeats stay out. Gone: it has stopped.",
    ),
    ("Permit", "Permission of an instance to run one more occurrence at once. Received runs wait for a free one."),
    ("Job type", "A kind of work that a worker offers, with a JSON Schema from which the input form is built."),
    (
        "Singleton loop",
        "A function of a worker that exactly one instance runs at a time, many times a second if needed. It has no occurrences; the page Singleton loops shows its leader and its last runs.",
    ),
    (
        "Epoch",
        "The number of a leadership of a singleton loop. Each new leader has a higher one, and systems can refuse lower ones.",
    ),
    ("Misfire", "A due time that passed while the scheduler could not act. The job's misfire policy applies to it."),
    ("Overlap", "A job is due while its previous occurrence is still open. The job's overlap policy applies."),
    ("Calendar", "A set of blackouts in one time zone. Each job selects the calendars that it uses."),
    ("Blackout", "A day, or hours that repeat every week, in which the jobs that use the calendar do not start."),
    ("Failure", "An occurrence that used up its retries. It is kept until it is retried or resolved."),
    (
        "Dead letter",
        "A message that cannot be read, or that belongs to no known occurrence. An operator should inspect it.",
    ),
    (
        "Alert",
        "A condition that holds now for a job, worker, queue or background task. It fires until the condition is over.",
    ),
    (
        "Alert rule",
        "A condition, the jobs that it applies to, and the channels that get its messages. It can be muted.",
    ),
    ("Alert channel", "A destination of messages about alerts: e-mail, a webhook or Slack."),
    ("Version", "One state of a job's definition. Each change creates a new version; an earlier one can be restored."),
    (
        "API token",
        "The credential with which a script calls the API. It has a role, and it works until it expires or is revoked.",
    ),
    (
        "Words of JobMaster",
        "Bucket: what one instance holds of one priority. Slot: permit. SavePending: on the queue milvaion.ingest, not stored yet. ReadyToDelete: Gone. Active, Completing, Lost and Draining are states of an instance.",
    ),
];

/// `/help`.
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
    let parts = HEALTH_PARTS
        .into_iter()
        .map(|part| {
            view! {
                <dt id=part.anchor>{part.name}</dt>
                <dd>{part.explanation}</dd>
            }
        })
        .collect::<Vec<_>>();
    view! {
        <Title text="Help"/>
        <PageHeader title="Help" sub="Glossary, statuses, the parts of the installation and keyboard shortcuts."/>
        <div class="stack">
            <section class="card" aria-labelledby="help-words">
                <h2 class="card-title" id="help-words">"Glossary"</h2>
                <dl class="kv">{words}</dl>
            </section>
            <section class="card" aria-labelledby="help-statuses">
                <h2 class="card-title" id="help-statuses">"Statuses"</h2>
                <dl class="kv">{statuses}</dl>
            </section>
            <section class="card" aria-labelledby="help-parts">
                <h2 class="card-title" id="help-parts">"Parts of the installation"</h2>
                <p class="muted">"The overview shows the health of each part."</p>
                <dl class="kv">{parts}</dl>
            </section>
            <section class="card" aria-labelledby="help-keys">
                <h2 class="card-title" id="help-keys">"Keyboard shortcuts"</h2>
                <p class="muted">
                    "Press the keys of a shortcut one after the other. Shortcuts are inactive while you type in a field. Press ? to list them or to turn them off; the "
                    <a href="/account#preferences">"preferences"</a> " turn them off too."
                </p>
                <KeyTable/>
            </section>
            <section class="card" aria-labelledby="help-time">
                <h2 class="card-title" id="help-time">"Times"</h2>
                <p>
                    "Times are shown in your local time zone or in UTC; the button in the top bar switches between them. Every time names its zone. Countdowns use the server's clock. In the "
                    <a href="/account#preferences">"preferences"</a>
                    " you choose another zone, a 12-hour clock, or exact times instead of relative ones."
                </p>
            </section>
        </div>
    }
}
