//! Dead letters: messages that cannot be read or that belong to no known occurrence.

use std::collections::BTreeSet;

use leptos::{ev, prelude::*, server_fn::ServerFn};
use milvaion_api::{
    failures::{DeadLetterFilter, DeadLetterRow},
    page::ListPage,
    permissions::Permission,
};

use super::{
    REFRESH_INTERVAL,
    bulk_actions::{NoteDialog, OpenDialogButton, RowCheckbox, RowSelection, SelectAllCheckbox},
    display::{byte_size, escape_unprintable},
    keep_current, state_chips, url,
};
use crate::{
    api::{
        failures::{ResolveDeadLetters, dead_letters_notice, list_dead_letters, resolve_dead_letters},
        session::FlashView,
    },
    components::{
        empty_state::EmptyState,
        form::{ErrorSummary, FormField, described_by},
        icon::Icon,
        input_form::{capitalized, error_of},
        session_context::may,
        time::Time,
    },
    format::{count, plural},
    live::{ThrottledRefresh, throttled_refresh},
};

/// The number of dead letters on one page; each comes with the beginning of its body.
pub(super) const DEAD_LETTERS_PER_PAGE: u32 = 25;

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
    let shown = RwSignal::new(page);
    let request = filter.clone();
    let refresh =
        throttled_refresh(REFRESH_INTERVAL, move || list_dead_letters(request.clone()), move |read| shown.set(read));
    keep_current(&refresh);
    let chosen = RowSelection::new();
    let open_ids = Memo::new(move |_| {
        let open = |page: &ListPage<DeadLetterRow>| {
            let rows = page.rows.iter().filter(|row| row.resolved_at.is_none());
            rows.map(|row| row.id.to_string()).collect::<BTreeSet<_>>()
        };
        shown.with(open)
    });
    Effect::new(move |_| open_ids.with(|ids| chosen.retain(ids)));
    let may_settle = may(Permission::SettleFailures);
    let is_empty = Memo::new(move |_| shown.with(|page| page.rows.is_empty()));
    let rows = move || shown.with(|page| page.rows.clone());
    let row = move |row: DeadLetterRow| dead_letter_card(row, may_settle.then_some(chosen));
    let here = address_of(filter.resolved, filter.before.map(|id| id.to_string()));
    let first = filter.before.is_some().then(|| address_of(filter.resolved, None));
    let next = move || shown.with(|page| page.next.clone()).map(|next| address_of(filter.resolved, Some(next)));
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
        <ul class="stack" id="dead-letters" hidden=move || is_empty.get()>
            <For each=rows key=|row| (row.id, row.resolved_at, row.copies) children=row/>
        </ul>
    };
    let list = if may_settle {
        view! { <ResolveDeadLettersForm chosen open_ids here flash refresh>{list}</ResolveDeadLettersForm> }.into_any()
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

fn dead_letter_card(row: DeadLetterRow, chosen: Option<RowSelection>) -> impl IntoView {
    let id = row.id.to_string();
    let is_open = row.resolved_at.is_none();
    let name = format!("the dead letter of {}", crate::format::utc(row.received_at));
    let choose = chosen.filter(|_| is_open).map(|chosen| view! { <RowCheckbox chosen id=id.clone() name/> });
    let duplicates = (row.copies > 1).then(|| {
        let others = plural(i64::from(row.copies - 1), "more time");
        view! {
            <dt>"Duplicates"</dt>
            <dd>{format!("Received {others}.")}</dd>
        }
    });
    let resolved = row.resolved_at.map(|at| {
        let by = row.resolved_by.clone().map(|who| format!(" by {who}"));
        let note = row.resolution_note.clone().map(|note| format!(": {note}"));
        view! {
            <dt>"Resolved"</dt>
            <dd><Time at=at/>{by}{note}</dd>
        }
    });
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
        <li class="card" data-id=id data-state=if is_open { "open" } else { "resolved" }>
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
                {duplicates}
                {resolved}
            </dl>
            {body}
            {headers}
        </li>
    }
}

/// The form around the list, with the button that resolves the selected dead letters.
#[component]
fn ResolveDeadLettersForm(
    chosen: RowSelection,
    open_ids: Memo<BTreeSet<String>>,
    here: String,
    flash: FlashView,
    refresh: ThrottledRefresh,
    children: Children,
) -> impl IntoView {
    let open = RwSignal::new(false);
    let number = move || i64::try_from(chosen.count()).unwrap_or(i64::MAX);
    let words = Signal::derive(move || match number() {
        0 => "Resolve…".to_owned(),
        n => format!("Resolve {} selected…", count(n)),
    });
    let title = Signal::derive(move || format!("Resolve {}?", plural(number(), "dead letter")));
    let run = move |note: String| {
        let refresh = refresh.clone();
        async move {
            let answer = resolve_dead_letters(chosen.ids(), note, String::new()).await;
            chosen.clear();
            refresh.request_own();
            answer.map(dead_letters_notice)
        }
    };
    let typed = flash.typed("note");
    let error = error_of(Signal::stored(flash.fields), "note");
    let has_open = open_ids.with_untracked(|ids| !ids.is_empty());
    let stay = |event: ev::SubmitEvent| event.prevent_default();
    let plain = has_open.then(|| {
        view! {
            <fieldset class="form-section hide-js">
                <legend>"Resolve the selected dead letters"</legend>
                <input type="hidden" name="back" value=here/>
                <FormField id="plain-note" label="Note" hint=RESOLUTION_NOTE_HINT optional=true error>
                    <input
                        type="text"
                        id="plain-note"
                        name="note"
                        maxlength="2000"
                        value=typed
                        autocomplete="off"
                        aria-describedby=described_by("plain-note")
                        aria-invalid=move || error.get().is_some().then_some("true")
                    />
                </FormField>
                <div class="form-actions">
                    <button type="submit" class="btn">
                        <Icon name="check"/>
                        "Resolve"
                    </button>
                </div>
            </fieldset>
        }
    });
    view! {
        <form method="post" action=ResolveDeadLetters::PATH class="stack" on:submit=stay>
            <div class="cluster needs-js" hidden=move || open_ids.with(BTreeSet::is_empty)>
                <OpenDialogButton open icon="check" words is_idle=Signal::derive(move || chosen.count() == 0)/>
            </div>
            {children()}
            {plain}
        </form>
        <NoteDialog
            open
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

/// The hint of the note field.
const RESOLUTION_NOTE_HINT: &str = "What was done about the message; at most 2,000 characters.";
