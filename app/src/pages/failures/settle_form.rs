//! The form around the failures of one cause, with the actions on selected or all of them.
//!
//! Selected and all are separate buttons. One button for both would change its meaning when the list moves on and the
//! selection becomes empty, possibly just before the click.

use leptos::{ev, prelude::*, server_fn::ServerFn};
use milvaion_api::failures::{FailureFilter, FailureGroup};

use super::{
    bulk_actions::{DialogScope, NoteDialog, OpenDialogButton, RowSelection},
    bulk_scope::{BulkScope, max_selection, resolve_title, retry_title, scope_details},
};
use crate::{
    api::{
        failures::{
            ResolveFailures, RetryFailures, preview_failures, resolve_failures, resolve_notice, retry_failures,
            retry_notice,
        },
        session::FlashView,
    },
    components::{
        action::{ErrorPlace, UserAction},
        action_error::error_text,
        fields::InputField,
        icon::Icon,
        input_form::error_of,
    },
    error::AppError,
    format::{clip, count, plural},
};

/// The maximum length of the exception's first line in a dialog, in characters.
const NOTE_MAX_CHARS: usize = 120;

/// The form around the table, with the buttons that retry or resolve failures.
#[component]
pub fn BulkSettleForm(
    /// The selected rows.
    chosen: RowSelection,
    /// The group.
    group: RwSignal<FailureGroup>,
    /// The filter of the list.
    filter: FailureFilter,
    /// The address of this page, to which a plain form returns.
    here: String,
    /// The message of the previous form post.
    flash: FlashView,
    /// Called after a change.
    #[prop(into)]
    on_change: Callback<()>,
    /// The table.
    children: Children,
) -> impl IntoView {
    let all = FailureFilter { fingerprint: filter.fingerprint, job_id: filter.job_id, ..FailureFilter::default() };
    let open = Memo::new(move |_| group.with(|group| group.open));
    let (retries, resolves) = (DialogScope::<BulkScope>::new(), DialogScope::<BulkScope>::new());
    let done = move || {
        chosen.clear();
        on_change.run(());
    };
    let retry = move |scope: BulkScope, note: String| async move {
        let request = scope.request();
        let call = retry_failures(request.ids, request.all, request.filter, request.seen, note, String::new());
        let retried = call.await?;
        done();
        Ok(retry_notice(&retried))
    };
    let resolve = move |scope: BulkScope, note: String| async move {
        let request = scope.request();
        let call = resolve_failures(request.ids, request.all, request.filter, request.seen, note, String::new());
        let resolved = call.await?;
        done();
        Ok(resolve_notice(&resolved))
    };
    let problem = RwSignal::new(None::<String>);
    let scope = StoredValue::new(all.clone());
    let buttons = move |verb: &'static str, icon: &'static str, dialog: DialogScope<BulkScope>| {
        settle_buttons(SettleButtons { verb, icon, dialog, chosen, open, group, scope, problem })
    };
    let stay = |event: ev::SubmitEvent| event.prevent_default();
    view! {
        <form method="post" action=RetryFailures::PATH class="stack" on:submit=stay>
            <div class="cluster needs-js">
                {buttons("Retry", "rotate-cw", retries)}
                {buttons("Resolve", "check", resolves)}
            </div>
            <p class="field-error" role="alert" hidden=move || problem.with(Option::is_none)>
                <Icon name="circle-alert"/>
                <span>{move || problem.get().map(error_text)}</span>
            </p>
            {children()}
            <PlainSettleFields all open here flash/>
        </form>
        <NoteDialog
            dialog=retries
            prefix="retry"
            title=retry_title
            details=move || scope_details(retries.get())
            consequence="Each failure is run again as a new occurrence, with its original input and the job's current definition. A failure that was already retried is skipped."
            label="Reason"
            most="500"
            verb="Retry"
            run=retry
        />
        <NoteDialog
            dialog=resolves
            prefix="resolve"
            title=resolve_title
            details=move || scope_details(resolves.get())
            consequence="The failures are marked as resolved and leave the list of open failures. Nothing is run again."
            label="Note"
            most="2000"
            verb="Resolve"
            run=resolve
        />
    }
}

/// The state that the two buttons of an action share.
struct SettleButtons {
    /// The verb of the action.
    verb: &'static str,
    /// The name of the icon.
    icon: &'static str,
    /// The dialog of the action.
    dialog: DialogScope<BulkScope>,
    /// The selected rows.
    chosen: RowSelection,
    /// The number of open failures of this cause.
    open: Memo<i64>,
    /// The group.
    group: RwSignal<FailureGroup>,
    /// The filter of all failures of this cause.
    scope: StoredValue<FailureFilter>,
    /// The error of the last attempt to open a dialog.
    problem: RwSignal<Option<String>>,
}

/// Draws the buttons of an action: one for the selected failures and one for all.
fn settle_buttons(state: SettleButtons) -> AnyView {
    let SettleButtons { verb, icon, dialog, chosen, open, group, scope, problem } = state;
    let selected_words = Signal::derive(move || match chosen.count() {
        0 => format!("{verb} selected…"),
        n => format!("{verb} {} selected…", count(i64::try_from(n).unwrap_or(i64::MAX))),
    });
    let all_words = Signal::derive(move || match open.get() {
        0 => format!("{verb} all…"),
        n if n > max_selection() => format!("{verb} the newest {}…", count(max_selection())),
        n => format!("{verb} all {}…", count(n)),
    });
    let ask_selected = move |()| {
        problem.set(None);
        let ids = chosen.ids();
        if !ids.is_empty() {
            dialog.open(BulkScope::Chosen(ids));
        }
    };
    let action = UserAction::new(ErrorPlace::Text(problem));
    let ask_all = move |()| {
        problem.set(None);
        let filter = scope.get_value();
        let words = group.with_untracked(|group| scope_words(&filter, group));
        action.run(async move {
            let preview = preview_failures(filter.clone()).await?;
            if preview.count == 0 {
                return Err(AppError::Conflict("No failure of this cause is open any more.".to_owned()));
            }
            dialog.open(BulkScope::All { filter, words, preview });
            Ok(None)
        });
    };
    view! {
        <OpenDialogButton
            on_open=ask_selected
            icon
            words=selected_words
            is_idle=Signal::derive(move || chosen.count() == 0)
        />
        <OpenDialogButton
            on_open=ask_all
            icon
            words=all_words
            is_idle=Signal::derive(move || open.get() == 0 || action.is_running())
        />
    }
    .into_any()
}

/// Returns the filter of an action on all failures in words.
fn scope_words(filter: &FailureFilter, group: &FailureGroup) -> String {
    let note = if group.note.is_empty() {
        "no message".to_owned()
    } else {
        format!("“{}”", clip(&group.note, NOTE_MAX_CHARS))
    };
    let jobs = match (filter.job_id, group.jobs) {
        (Some(_), _) | (None, 1) => format!("of the job {}", group.job_name),
        (None, n) => format!("of all {}", plural(n, "job")),
    };
    format!("Filter: open failures of this cause, {note}, {jobs}.")
}

/// The last part of the form, for readers without scripts: the scope, a note and the buttons.
#[component]
fn PlainSettleFields(all: FailureFilter, open: Memo<i64>, here: String, flash: FlashView) -> impl IntoView {
    let typed = flash.typed("note");
    let error = error_of(Signal::stored(flash.fields), "note");
    let seen = open.get_untracked();
    let hidden = [
        ("back", Some(here)),
        ("seen", Some(seen.to_string())),
        ("filter[fingerprint]", all.fingerprint),
        ("filter[jobId]", all.job_id.map(|id| id.to_string())),
    ];
    let hidden: Vec<_> = hidden
        .into_iter()
        .filter_map(|(name, value)| Some(view! { <input type="hidden" name=name value=value?/> }))
        .collect();
    (seen > 0).then(|| {
        view! {
            <fieldset class="form-section hide-js">
                <legend>"Retry or resolve failures"</legend>
                {hidden}
                <div class="radio-cards">
                    <label class="radio-card">
                        <input type="radio" name="all" value="false" checked/>
                        <span>"Selected failures"</span>
                    </label>
                    <label class="radio-card">
                        <input type="radio" name="all" value="true"/>
                        <span>{format!("All {} of this cause", plural(seen, "open failure"))}</span>
                    </label>
                </div>
                <InputField
                    id="plain-note"
                    name="note"
                    label="Note"
                    hint="Stored with the failure; at most 2,000 characters, for a retry at most 500."
                    optional=true
                    maxlength="2000"
                    value=typed
                    error
                />
                <div class="form-actions">
                    <button type="submit" class="btn">
                        <Icon name="rotate-cw"/>
                        "Retry"
                    </button>
                    <button type="submit" class="btn" formaction=ResolveFailures::PATH>
                        <Icon name="check"/>
                        "Resolve"
                    </button>
                </div>
            </fieldset>
        }
    })
}
