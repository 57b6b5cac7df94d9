//! The definitions a job has had: who changed what and when, what differs between two of them, and the way back to one.

use leptos::{ev, prelude::*, server_fn::ServerFn, task::spawn_local};
use leptos_router::{NavigateOptions, hooks::use_navigate};
use milvaion_api::{
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
        dialog::ConfirmDialog,
        empty_state::EmptyState,
        icon::Icon,
        session_context::may,
        time::Time,
        toast::{ToastKind, toasts},
    },
    error::AppError,
};

/// Which part of the history an address asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HistoryQuery {
    /// Only versions before this one.
    pub before: Option<i32>,
    /// Two versions to compare.
    pub pair: Option<(i32, i32)>,
}

/// A page of the history, and what differs between the two versions that were asked for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HistoryPage {
    steps: ListPage<VersionStep>,
    before: Option<i32>,
    compared: Option<(i32, i32, VersionDiff)>,
}

impl HistoryPage {
    /// Reads it.
    ///
    /// # Errors
    ///
    /// `NotFound` when a version that was asked for does not exist.
    pub async fn read(id: JobId, asked: HistoryQuery) -> Result<Self, AppError> {
        let steps = job_history(id, asked.before).await?;
        let compared = match asked.pair {
            Some((from, to)) => Some((from, to, compare_versions(id, from, to).await?)),
            None => None,
        };
        Ok(Self { steps, before: asked.before, compared })
    }
}

/// The part of a job's page that shows it.
#[component]
pub fn JobHistorySection(view: RwSignal<JobView>, history: HistoryPage) -> impl IntoView {
    let id = view.with_untracked(|job| job.row.id);
    let present = version_of(view);
    let HistoryPage { steps, before, compared } = history;
    // A version made since is not in this page; the reader decides when to look.
    let newest = match (before, steps.rows.first()) {
        (None, Some(first)) => first.row.version,
        _ => i32::MAX,
    };
    let older = move || {
        (present.get() > newest).then(|| {
            view! {
                <div class="notice" data-kind="info" role="status">
                    <Icon name="info"/>
                    <p>
                        {format!("The job has been changed meanwhile: it is version {} now. ", present.get())}
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
    let rows: Vec<_> = steps.rows.into_iter().map(|step| step_row(id, step, present, may_define)).collect();
    let table = if is_empty {
        view! { <EmptyState icon="history" title="No version here" text="There is none before this one."/> }.into_any()
    } else {
        view! {
            <div class="table-wrap">
                <table class="table table-cards" id="versions">
                    <caption class="sr-only">"Versions of this job, newest first"</caption>
                    <thead>
                        <tr>
                            <th scope="col">"Version"</th>
                            <th scope="col">"Changed"</th>
                            <th scope="col">"By"</th>
                            <th scope="col">"What"</th>
                            <th scope="col">"Compare"</th>
                        </tr>
                    </thead>
                    <tbody>{rows}</tbody>
                </table>
            </div>
        }
        .into_any()
    };
    view! {
        <section class="stack" aria-labelledby="history">
            <h2 id="history">"History"</h2>
            {older}
            {compared}
            {table}
            <nav class="pager" aria-label="Pages">
                {first.map(|href| view! { <a class="btn btn-small" href=href>"Newest versions"</a> })}
                {next.map(|href| view! { <a class="btn btn-small" rel="next" href=href>"Older versions"</a> })}
            </nav>
        </section>
    }
}

/// The job's present version. A memo: the job is read again whenever something of it changes, and what hangs on its
/// version, such as an open dialog, is not to be drawn anew for that.
fn version_of(view: RwSignal<JobView>) -> Signal<i32> {
    Memo::new(move |_| view.with(|job| job.version)).into()
}

fn step_row(id: JobId, step: VersionStep, present: Signal<i32>, may_define: bool) -> impl IntoView {
    let VersionStep { row, fields, more } = step;
    let version = row.version;
    let what = if version == 1 { "Created".to_owned() } else { field_names(&fields, more) };
    let whole = fields.iter().map(|field| field_label(field)).collect::<Vec<_>>().join(", ");
    let changes = (version > 1).then(|| {
        view! {
            <a href=address(id, version - 1, version)>
                "What it changed"
                <span class="sr-only">{format!(" in version {version}")}</span>
            </a>
        }
    });
    let to_present = move || {
        let present = present.get();
        (present != version).then(|| {
            let words = if may_define { "With the present, or restore" } else { "With the present" };
            view! {
                <a href=address(id, present, version)>
                    {words}
                    <span class="sr-only">{format!(" version {version}")}</span>
                </a>
            }
        })
    };
    view! {
        <tr data-version=version>
            <th scope="row" data-label="Version">
                {version}
                {move || {
                    (present.get() == version)
                        .then(|| view! { " " <span class="badge" data-status="active"><Icon name="check"/><span>"Present"</span></span> })
                }}
            </th>
            <td data-label="Changed"><Time at=row.changed_at/></td>
            <td data-label="By">{row.changed_by}</td>
            <td data-label="What" title=whole>{what}</td>
            <td data-label="Compare">
                <span class="links">{changes} {to_present}</span>
            </td>
        </tr>
    }
}

fn address(id: JobId, from: i32, to: i32) -> String {
    format!("/jobs/{id}?tab=history&from={from}&to={to}#compared")
}

/// What differs between two versions, and the way back when one of them is the present one.
#[component]
fn VersionComparison(view: RwSignal<JobView>, from: i32, to: i32, difference: VersionDiff) -> impl IntoView {
    let present = version_of(view);
    let name = move |version: i32| {
        if present.get() == version {
            format!("version {version}, the present one")
        } else {
            format!("version {version}")
        }
    };
    let heading = move || format!("From {} to {}", name(from), name(to));
    let is_alike = difference.changes.is_empty();
    // Whether a job is paused is not restored, so that alone is nothing to restore.
    let is_worth = difference.changes.iter().any(|change| change.field != "isActive");
    let more = difference.more.then(|| {
        view! { <p class="muted">"More differs than is shown here: these are the first 200 fields."</p> }
    });
    let rows: Vec<_> = difference.changes.into_iter().map(change_row).collect();
    let table = if is_alike {
        view! { <p>"They are alike: the same definition."</p> }.into_any()
    } else {
        view! {
            <div class="table-wrap">
                <table class="table table-cards diff">
                    <caption class="sr-only">"What differs, field by field"</caption>
                    <thead>
                        <tr>
                            <th scope="col">"Field"</th>
                            <th scope="col">{format!("Version {from}")}</th>
                            <th scope="col">{format!("Version {to}")}</th>
                        </tr>
                    </thead>
                    <tbody>{rows}</tbody>
                </table>
            </div>
        }
        .into_any()
    };
    let may_define = may(Permission::DefineJob);
    let restore = move || {
        (may_define && is_worth && from == present.get())
            .then(|| view! { <RestoreForm view version=to expected=from/> })
    };
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
        None => view! { <span class="muted">"Not there"</span> }.into_any(),
    };
    view! {
        <tr data-field=change.field.clone()>
            <th scope="row" data-label="Field">{field_label(&change.field)}</th>
            <td data-label="Before">{cell(change.before)}</td>
            <td data-label="After">{cell(change.after)}</td>
        </tr>
    }
}

/// Makes an earlier version the present definition, after a question. The comparison above it shows what that changes.
#[component]
fn RestoreForm(
    view: RwSignal<JobView>,
    version: i32,
    /// The version the reader saw as the present one.
    expected: i32,
) -> impl IntoView {
    let id = view.with_untracked(|job| job.row.id);
    let toasts = toasts();
    let navigate = use_navigate();
    let open = RwSignal::new(false);
    let wrong = RwSignal::new(None::<String>);
    let restore = Callback::new(move |()| {
        let navigate = navigate.clone();
        spawn_local(async move {
            match restore_version(id, version, expected).await {
                Ok(restored) => {
                    toasts.show(ToastKind::Success, restore_notice(version, &restored));
                    navigate(&format!("/jobs/{id}?tab=history"), NavigateOptions::default());
                }
                Err(error) => {
                    let _ = wrong.try_set(Some(error.to_string()));
                }
            }
        });
    });
    let ask = move |event: ev::SubmitEvent| {
        event.prevent_default();
        wrong.set(None);
        open.set(true);
    };
    let problem = move || {
        wrong.get().map(|text| {
            view! {
                <div class="notice" data-kind="error">
                    <Icon name="circle-alert"/>
                    <p>
                        {text}
                        " "
                        <a href=format!("/jobs/{id}?tab=history") rel="external">"Show all versions"</a>
                    </p>
                </div>
            }
        })
    };
    view! {
        <div role="alert">{problem}</div>
        <form method="post" action=RestoreVersion::PATH class="form-actions" on:submit=ask>
            <input type="hidden" name="id" value=id.to_string()/>
            <input type="hidden" name="version" value=version/>
            <input type="hidden" name="expected" value=expected/>
            <button type="submit" class="btn">
                <Icon name="history"/>
                <span class="needs-js">{format!("Restore version {version}…")}</span>
                <span class="hide-js">{format!("Restore version {version}")}</span>
            </button>
            <p class="hint">"As a new version: nothing of the history is lost. A paused job stays paused."</p>
        </form>
        <ConfirmDialog
            open
            id="restore-title"
            title=Signal::derive(move || {
                format!("Restore version {version} of {}?", view.with(|job| job.row.display_name.clone()))
            })
            verb=format!("Restore version {version}")
            on_confirm=restore
        >
            <p>
                {format!(
                    "The job gets the definition of version {version}, as a new version. It is due by that schedule from now on. Whether it is paused stays as it is.",
                )}
            </p>
        </ConfirmDialog>
    }
}
