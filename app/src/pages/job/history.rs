//! The history of a job's definition: the author, time and fields of each change, a comparison, and a way to restore.
//! The audit log of the job, which also holds its runs and refusals, is a collapsed section at the end.

use leptos::{ev, prelude::*, server_fn::ServerFn};
use leptos_router::{NavigateOptions, hooks::use_navigate};
use milvaion_api::{
    audit::{AuditObject, AuditRow},
    page::ListPage,
    permissions::Permission,
    versions::{FieldChange, VersionDiff, VersionStep},
    views::JobView,
};
use milvaion_protocol::id::JobId;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::field_labels::{field_label, field_names, field_value};
use crate::{
    api::versions::{RestoreVersion, compare_versions, job_history, restore_notice, restore_version},
    components::{
        action::{ErrorPlace, UserAction},
        action_error::error_text,
        audit_list::{AuditSlice, read_slice},
        confirm::{ConfirmDialog, Confirmation},
        dialog::once_true,
        empty_state::EmptyState,
        icon::Icon,
        session_context::{SessionContext, may},
        table::{Named, Table, Text},
        time::Time,
    },
    error::AppError,
};

/// The part of the history that an address requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HistoryQuery {
    /// Only versions before this one.
    pub before: Option<i32>,
    /// Two versions to compare.
    pub pair: Option<(i32, i32)>,
}

/// A page of the history, the comparison of two versions if the address requests one, and the start of the audit log if
/// the user may read it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HistoryPage {
    steps: ListPage<VersionStep>,
    before: Option<i32>,
    compared: Option<(i32, i32, VersionDiff)>,
    audit: Option<ListPage<AuditRow>>,
}

impl HistoryPage {
    /// Reads the page, the comparison and, for the user of `session`, the audit log.
    ///
    /// # Errors
    ///
    /// Returns [`AppError::NotFound`] if the job or a requested version does not exist.
    pub async fn read(id: JobId, request: HistoryQuery, session: Option<SessionContext>) -> Result<Self, AppError> {
        let (steps, audit) =
            futures::try_join!(job_history(id, request.before), read_slice(session, AuditObject::Job(id)))?;
        let compared = match request.pair {
            Some((from, to)) => Some((from, to, compare_versions(id, from, to).await?)),
            None => None,
        };
        Ok(Self { steps, before: request.before, compared, audit })
    }
}

/// The history tab of a job's page.
#[component]
pub fn JobHistorySection(
    /// The job.
    view: RwSignal<JobView>,
    /// The versions of the job.
    history: HistoryPage,
) -> impl IntoView {
    let id = view.with_untracked(|job| job.row.id);
    let current = version_of(view);
    let HistoryPage { steps, before, compared, audit } = history;
    // A version that was made since is not in this page. The reader decides when to load it.
    let newest = match (before, steps.rows.first()) {
        (None, Some(first)) => first.row.version,
        _ => i32::MAX,
    };
    let older = move || {
        (current.get() > newest).then(|| {
            view! {
                <div class="notice" data-kind="info" role="status">
                    <Icon name="info"/>
                    <p>
                        {format!("The job was changed: version {} is current now. ", current.get())}
                        <a href=format!("/jobs/{id}?tab=history") rel="external">"Show all versions"</a>
                    </p>
                </div>
            }
        })
    };
    let compared = compared.map(|(from, to, difference)| view! { <VersionComparison view from to difference/> });
    let may_define = may(Permission::DefineJob);
    let first = before.is_some().then(|| format!("/jobs/{id}?tab=history"));
    let next = steps.next.map(|next| format!("/jobs/{id}?tab=history&before={next}"));
    let is_empty = steps.rows.is_empty();
    let rows: Vec<_> = steps.rows.into_iter().map(|step| step_row(id, step, current, may_define)).collect();
    let table = if is_empty {
        view! { <EmptyState icon="history" title="No older versions" text="The job has no version before this one."/> }
            .into_any()
    } else {
        view! {
            <Table
                caption="Versions of this job, newest first"
                columns=[Text("Version"), Text("Changed"), Text("By"), Text("Changes"), Text("Compare")]
                id="versions"
            >
                {rows}
            </Table>
        }
        .into_any()
    };
    view! {
        <section class="stack" aria-labelledby="history">
            <h2 id="history" tabindex="-1">"History"</h2>
            {older}
            {compared}
            {table}
            <nav class="pager" aria-label="Pages" data-heading="history">
                {first.map(|href| view! { <a class="btn btn-small" href=href>"Newest versions"</a> })}
                {next.map(|href| view! { <a class="btn btn-small" rel="next" href=href>"Older versions"</a> })}
            </nav>
        </section>
        <AuditSlice object=AuditObject::Job(id) page=audit/>
    }
}

/// Returns the job's current version as a memo. The job is read again after every change to it, and views that depend
/// only on the version, such as an open dialog, must not be redrawn for that.
fn version_of(view: RwSignal<JobView>) -> Signal<i32> {
    Memo::new(move |_| view.with(|job| job.version)).into()
}

fn step_row(id: JobId, step: VersionStep, current: Signal<i32>, may_define: bool) -> impl IntoView {
    let VersionStep { row, fields, more } = step;
    let version = row.version;
    let names = if version == 1 { "Created".to_owned() } else { field_names(&fields, more) };
    let whole = fields.iter().map(|field| field_label(field)).collect::<Vec<_>>().join(", ");
    let changes = (version > 1).then(|| {
        view! {
            <a href=address(id, version - 1, version)>
                "View changes"
                <span class="sr-only">{format!(" in version {version}")}</span>
            </a>
        }
    });
    let to_current = move || {
        let current = current.get();
        (current != version).then(|| {
            let words = if may_define { "Compare with current / restore" } else { "Compare with current" };
            view! {
                <a href=address(id, current, version)>
                    {words}
                    <span class="sr-only">{format!(" (version {version})")}</span>
                </a>
            }
        })
    };
    view! {
        <tr role="row" data-version=version>
            <th role="rowheader" scope="row" data-label="Version">
                {version}
                {move || {
                    (current.get() == version)
                        .then(|| view! { " " <span class="badge" data-status="active"><Icon name="check"/><span>"Current"</span></span> })
                }}
            </th>
            <td role="cell" data-label="Changed"><Time at=row.changed_at/></td>
            <td role="cell" data-label="By" class="breaks">{row.changed_by}</td>
            <td role="cell" data-label="Changes" title=whole>{names}</td>
            <td role="cell" data-label="Compare">
                <span class="links">{changes} {to_current}</span>
            </td>
        </tr>
    }
}

fn address(id: JobId, from: i32, to: i32) -> String {
    format!("/jobs/{id}?tab=history&from={from}&to={to}#compared")
}

/// Shows the difference between two versions, with a form that restores the second if the first is the current one.
#[component]
fn VersionComparison(view: RwSignal<JobView>, from: i32, to: i32, difference: VersionDiff) -> impl IntoView {
    let current = version_of(view);
    let name = move |version: i32| {
        if current.get() == version { format!("version {version} (current)") } else { format!("version {version}") }
    };
    let heading = move || format!("From {} to {}", name(from), name(to));
    let is_identical = difference.changes.is_empty();
    // A restore does not change the active state, so a difference in that field alone is nothing to restore.
    let is_restorable = difference.changes.iter().any(|change| change.field != "isActive");
    let more = difference.more.then(|| {
        view! { <p class="muted">"Only the first 200 changed fields are shown."</p> }
    });
    let rows: Vec<_> = difference.changes.into_iter().map(change_row).collect();
    let table = if is_identical {
        view! { <p>"The two versions are identical."</p> }.into_any()
    } else {
        view! {
            <Table
                caption="Changed fields"
                columns=[Text("Field"), Named(format!("Version {from}")), Named(format!("Version {to}"))]
                class="table table-cards diff"
            >
                {rows}
            </Table>
        }
        .into_any()
    };
    let may_define = may(Permission::DefineJob);
    let was_current = once_true(move || may_define && is_restorable && from == current.get());
    let restore = move || was_current.get().then(|| view! { <RestoreForm view current version=to expected=from/> });
    let id = view.with_untracked(|job| job.row.id);
    view! {
        <section class="card" id="compared" aria-labelledby="compared-title">
            <div class="card-head">
                <h3 class="card-title" id="compared-title">{heading}</h3>
                <a href=format!("/jobs/{id}?tab=history")>"Close"</a>
            </div>
            {table}
            {more}
            {restore}
        </section>
    }
}

fn change_row(change: FieldChange) -> impl IntoView {
    let cell = |value: Option<Value>| match value {
        Some(value) => view! { <pre class="value">{field_value(&value)}</pre> }.into_any(),
        None => view! { <span class="muted">"Not set"</span> }.into_any(),
    };
    view! {
        <tr role="row" data-field=change.field.clone()>
            <th role="rowheader" scope="row" data-label="Field">{field_label(&change.field)}</th>
            <td role="cell" data-label="Before">{cell(change.before)}</td>
            <td role="cell" data-label="After">{cell(change.after)}</td>
        </tr>
    }
}

/// Makes an earlier version the current definition, after a confirmation. The comparison above it shows the effect.
#[component]
fn RestoreForm(
    view: RwSignal<JobView>,
    current: Signal<i32>,
    version: i32,
    /// The version that was current when the page was read. With another one the form is hidden, and an open dialog stays.
    expected: i32,
) -> impl IntoView {
    let id = view.with_untracked(|job| job.row.id);
    let navigate = use_navigate();
    let open = RwSignal::new(false);
    let wrong = RwSignal::new(None::<String>);
    let action = UserAction::new(ErrorPlace::Text(wrong));
    let restore = Callback::new(move |()| {
        let navigate = navigate.clone();
        action.run(async move {
            let restored = restore_version(id, version, expected).await?;
            navigate(&format!("/jobs/{id}?tab=history"), NavigateOptions::default());
            Ok(Some(restore_notice(version, &restored)))
        });
    });
    let ask = move |event: ev::SubmitEvent| {
        event.prevent_default();
        wrong.set(None);
        open.set(action.is_idle());
    };
    let is_outdated = Memo::new(move |_| current.get() != expected);
    let impossible = Signal::derive(move || {
        is_outdated.get().then(|| format!("Version {} became current meanwhile. Compare with it first.", current.get()))
    });
    let what = Signal::derive(move || {
        let title = format!("Restore version {version} of {}?", view.with(|job| job.row.display_name.clone()));
        let text = format!(
            "The definition of version {version} becomes a new version of the job, and its schedule applies from now on. A paused job stays paused.",
        );
        Confirmation::new(title, text, format!("Restore version {version}"))
    });
    let problem = move || {
        wrong.get().map(|text| {
            view! {
                <div class="notice" data-kind="error">
                    <Icon name="circle-alert"/>
                    <p>
                        {error_text(text)}
                        " "
                        <a href=format!("/jobs/{id}?tab=history") rel="external">"Show all versions"</a>
                    </p>
                </div>
            }
        })
    };
    view! {
        <div role="alert">{problem}</div>
        <form
            method="post"
            action=RestoreVersion::PATH
            class="form-actions"
            hidden=move || is_outdated.get()
            on:submit=ask
        >
            <input type="hidden" name="id" value=id.to_string()/>
            <input type="hidden" name="version" value=version/>
            <input type="hidden" name="expected" value=expected/>
            <button type="submit" class="btn" aria-disabled=move || action.disabled()>
                <Icon name="history"/>
                <span class="needs-js">{format!("Restore version {version}…")}</span>
                <span class="hide-js">{format!("Restore version {version}")}</span>
            </button>
            <p class="hint">"A restore creates a new version and keeps the history. A paused job stays paused."</p>
        </form>
        <ConfirmDialog open id="restore-title" what on_confirm=restore impossible/>
    }
}
