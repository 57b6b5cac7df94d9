//! Dead letters: messages that cannot be read or that belong to no known occurrence.

use std::collections::BTreeSet;

use leptos::{ev, prelude::*, server_fn::ServerFn};
use milvaion_api::{
    failures::{DeadLetterFilter, DeadLetterRow},
    page::ListPage,
    permissions::Permission,
};
use milvaion_protocol::{
    id::{DeadLetterId, OccurrenceId},
    status::OccurrenceStatus,
};

use super::{
    IDLE_REFRESH_INTERVAL, REFRESH_INTERVAL,
    bulk_actions::{DialogScope, NoteDialog, OpenDialogButton, RowCheckbox, RowSelection, SelectAllCheckbox},
    display::{byte_size, escape_unprintable},
    is_failure, state_chips, url,
};
use crate::{
    api::{
        failures::{ResolveDeadLetters, dead_letters_notice, list_dead_letters, resolve_dead_letters},
        session::FlashView,
    },
    components::{
        empty_state::EmptyState,
        fields::InputField,
        focus::recover_focus_when,
        form::ErrorSummary,
        icon::Icon,
        input_form::error_of,
        live_rows::{LiveRows, is_in_use},
        session_context::may,
        time::Time,
    },
    format::{capitalized, count, plural},
    live::live_page,
};

/// The number of dead letters on one page; each comes with the beginning of its body.
pub(super) const DEAD_LETTERS_PER_PAGE: u32 = 25;

/// The id of the list, used to detect whether the user works in it.
const DEAD_LETTERS_ID: &str = "dead-letters";

/// The id of the button that resolves dead letters.
const RESOLVE_ID: &str = "resolve-selected";

/// The list of dead letters with its filter and actions.
#[component]
pub fn DeadLetterList(
    /// The filter of the list.
    filter: DeadLetterFilter,
    /// The rows of this page.
    page: ListPage<DeadLetterRow>,
    /// The message of the previous form post.
    flash: FlashView,
) -> impl IntoView {
    let rows = LiveRows::new(page, |row: &DeadLetterRow| row.id.to_string());
    let chosen = RowSelection::new();
    let request = filter.clone();
    let refresh = live_page(
        REFRESH_INTERVAL,
        move || list_dead_letters(request.clone()),
        is_failure,
        move |read| rows.apply(read, chosen.count() > 0 || is_in_use(DEAD_LETTERS_ID)),
    )
    .every(IDLE_REFRESH_INTERVAL);
    let on_change = move |()| {
        rows.show_next_read();
        refresh.request_own();
    };
    let open_ids = Memo::new(move |_| rows.keys_with::<BTreeSet<_>>(|row| row.resolved_at.is_none()));
    Effect::new(move |_| open_ids.with(|ids| chosen.retain(ids)));
    let may_settle = may(Permission::SettleFailures);
    let is_empty = Memo::new(move |_| rows.is_empty());
    let cards = rows.view(move |row| dead_letter_card(row, may_settle.then_some(chosen)));
    let here = address_of(filter.resolved, filter.before.map(|id| id.to_string()));
    let first = filter.before.is_some().then(|| address_of(filter.resolved, None));
    let next = move || rows.next().map(|next| address_of(filter.resolved, Some(next)));
    let whole: Vec<_> = flash
        .error
        .iter()
        .cloned()
        .chain(flash.fields.iter().filter(|error| error.field != "note").map(|error| capitalized(&error.message)))
        .map(|text| (String::new(), text))
        .collect();
    let choose_all = may_settle.then(|| {
        view! {
            <div hidden=move || open_ids.with(BTreeSet::is_empty)>
                <SelectAllCheckbox chosen ids=open_ids/>
            </div>
        }
    });
    let list = view! {
        <div hidden=move || !is_empty.get()>{empty_state(filter.resolved)}</div>
        {choose_all}
        {rows.held_button("new dead letter")}
        <ul class="stack" id=DEAD_LETTERS_ID hidden=move || is_empty.get()>{cards}</ul>
    };
    let list = if may_settle {
        view! { <ResolveDeadLettersForm chosen open_ids here flash on_change>{list}</ResolveDeadLettersForm> }
            .into_any()
    } else {
        list.into_any()
    };
    view! {
        <div class="stack">
            <p class="muted">
                "Messages from the dead letter queue that no worker or server could read, or that belong to no known occurrence."
            </p>
            <ErrorSummary errors=whole/>
            <div class="filterbar">
                {state_chips(filter.resolved, |resolved| address_of(resolved, None))}
            </div>
            {list}
            <nav class="pager" aria-label="Pages">
                {first.map(|href| view! { <a class="btn btn-small" href=href>"First page"</a> })}
                {move || next().map(|href| view! { <a class="btn btn-small" rel="next" href=href>"Next page"</a> })}
            </nav>
        </div>
    }
}

fn address_of(resolved: Option<bool>, before: Option<String>) -> String {
    let state =
        url::STATE_FILTERS.into_iter().find(|(_, _, state)| *state == resolved).map_or("open", |(word, _, _)| word);
    let state = if state == "open" { String::new() } else { format!("&state={state}") };
    let before = before.map(|id| format!("&before={id}")).unwrap_or_default();
    format!("/failed?tab=dead-letters{state}{before}")
}

fn empty_state(resolved: Option<bool>) -> impl IntoView {
    let (title, text) = match resolved {
        Some(true) => ("No resolved dead letters", "Resolved dead letters are listed here until their retention ends."),
        _ => (
            "No dead letters",
            "Messages that cannot be read or assigned to an occurrence are kept here for inspection.",
        ),
    };
    view! { <EmptyState icon="archive-x" title text/> }
}

fn dead_letter_card(current: RwSignal<DeadLetterRow>, chosen: Option<RowSelection>) -> AnyView {
    let row = current.get_untracked();
    let id = row.id.to_string();
    let is_open = Memo::new(move |_| current.with(|row| row.resolved_at.is_none()));
    let name = format!("the dead letter of {}", crate::format::utc(row.received_at));
    let choose = chosen.map(|chosen| {
        let id = id.clone();
        move || is_open.get().then(|| view! { <RowCheckbox chosen id=id.clone() name=name.clone()/> })
    });
    let duplicates = move || {
        let copies = current.with(|row| row.copies);
        (copies > 1).then(|| {
            let others = plural(i64::from(copies - 1), "more time");
            view! {
                <dt>"Duplicates"</dt>
                <dd>{format!("Received {others}.")}</dd>
            }
        })
    };
    let resolved = move || {
        current.with(|row| {
            let at = row.resolved_at?;
            let by = row.resolved_by.clone().map(|who| format!(" by {who}"));
            let note = row.resolution_note.clone().map(|note| format!(": {note}"));
            Some(view! {
                <dt>"Resolved"</dt>
                <dd><Time at=at/>{by}{note}</dd>
            })
        })
    };
    let occurrence = move || current.with(|row| Some(occurrence_facts(row.occurrence_id?, row.occurrence_status)));
    let headers = match &row.headers {
        serde_json::Value::Null => None,
        serde_json::Value::Object(map) if map.is_empty() => None,
        serde_json::Value::String(text) => Some(text.clone()),
        other => serde_json::to_string_pretty(other).ok(),
    };
    let headers = headers.map(|text| {
        view! {
            <details>
                <summary>"Headers"</summary>
                <pre class="code wrap" tabindex="0" role="region" aria-label="Headers">{escape_unprintable(&text)}</pre>
            </details>
        }
    });
    let is_cut = i64::try_from(row.body.len()).unwrap_or(i64::MAX) < row.body_bytes;
    let summary = if is_cut { "Message body (beginning)" } else { "Message body" };
    let body = if row.body.is_empty() {
        view! { <p class="muted">"The message body is empty."</p> }.into_any()
    } else {
        view! {
            <details>
                <summary>{summary}</summary>
                <pre class="code wrap" tabindex="0" role="region" aria-label=summary>{escape_unprintable(&row.body)}</pre>
            </details>
        }
        .into_any()
    };
    view! {
        <li class="card" data-id=id data-state=move || if is_open.get() { "open" } else { "resolved" }>
            <div class="card-head">
                {choose}
                <h2 class="card-title grow">{capitalized(&escape_unprintable(&row.reason))}</h2>
            </div>
            <dl class="kv">
                <dt>"Received"</dt>
                <dd><Time at=row.received_at/></dd>
                <dt>"Source"</dt>
                <dd><code class="mono">{escape_unprintable(&row.source)}</code></dd>
                <dt>"Size"</dt>
                <dd>{byte_size(row.body_bytes)}</dd>
                {occurrence}
                {duplicates}
                {resolved}
            </dl>
            {body}
            {headers}
        </li>
    }
    .into_any()
}

/// Draws the occurrence that a dead letter names, with its present status.
fn occurrence_facts(id: OccurrenceId, status: Option<OccurrenceStatus>) -> AnyView {
    let text = match status {
        None => "It does not exist, or its retention has ended.".to_owned(),
        Some(OccurrenceStatus::Queued) => {
            "Queued. The server detects that its message is missing and publishes it again, so this dead letter does \
             not fail it."
                .to_owned()
        }
        Some(status) => format!("{}.", status.label()),
    };
    let id = id.to_string();
    let name = match status {
        None => view! { <span class="mono">{id}</span> }.into_any(),
        Some(_) => view! { <a class="mono" href=format!("/occurrences/{id}")>{id.clone()}</a> }.into_any(),
    };
    view! {
        <dt>"Occurrence"</dt>
        <dd class="cluster">
            {name}
            <span class="muted">{text}</span>
        </dd>
    }
    .into_any()
}

/// The form around the list, with the button that resolves the selected dead letters.
#[component]
fn ResolveDeadLettersForm(
    chosen: RowSelection,
    open_ids: Memo<BTreeSet<String>>,
    here: String,
    flash: FlashView,
    #[prop(into)] on_change: Callback<()>,
    children: Children,
) -> impl IntoView {
    let dialog = DialogScope::<Vec<DeadLetterId>>::new();
    let number = move || i64::try_from(chosen.count()).unwrap_or(i64::MAX);
    let words = Signal::derive(move || match number() {
        0 => "Resolve selected…".to_owned(),
        n => format!("Resolve {} selected…", count(n)),
    });
    let ask = move |()| dialog.open(chosen.ids());
    let run = move |ids: Vec<DeadLetterId>, note: String| async move {
        let requested = ids.len();
        let resolved = resolve_dead_letters(ids, note, String::new()).await?;
        chosen.clear();
        on_change.run(());
        Ok(dead_letters_notice(resolved, requested))
    };
    let typed = flash.typed("note");
    let error = error_of(Signal::stored(flash.fields), "note");
    let has_none = Memo::new(move |_| open_ids.with(BTreeSet::is_empty));
    recover_focus_when(has_none, RESOLVE_ID);
    let has_open = !has_none.get_untracked();
    let stay = |event: ev::SubmitEvent| event.prevent_default();
    let plain = has_open.then(|| {
        view! {
            <fieldset class="form-section hide-js">
                <legend>"Resolve the selected dead letters"</legend>
                <input type="hidden" name="back" value=here/>
                <InputField
                    id="plain-note"
                    name="note"
                    label="Note"
                    hint="What was done about the message; at most 2,000 characters."
                    optional=true
                    maxlength="2000"
                    value=typed
                    error
                />
                <div class="form-actions">
                    <button type="submit" class="btn">
                        <Icon name="check"/>
                        "Resolve"
                    </button>
                </div>
            </fieldset>
        }
    });
    let title = |ids: &Vec<DeadLetterId>| resolve_title(ids);
    view! {
        <form method="post" action=ResolveDeadLetters::PATH class="stack" on:submit=stay>
            <div class="cluster needs-js" id=RESOLVE_ID hidden=move || has_none.get()>
                <OpenDialogButton on_open=ask icon="check" words is_idle=Signal::derive(move || chosen.count() == 0)/>
            </div>
            {children()}
            {plain}
        </form>
        <NoteDialog
            dialog
            prefix="resolve"
            title
            consequence="The dead letters are marked as resolved and leave the list of open ones. The messages are not sent again."
            label="Note"
            most="2000"
            verb="Resolve"
            run
        />
    }
}

/// Returns the question of the dialog.
fn resolve_title(ids: &[DeadLetterId]) -> String {
    format!("Resolve {}?", plural(i64::try_from(ids.len()).unwrap_or(i64::MAX), "dead letter"))
}
