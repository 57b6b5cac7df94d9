//! Slices of the audit log: the rows about one object, and those of the signed-in user.
//!
//! A slice is read together with its page, so that it is there without scripts. It is collapsed, because the page has a
//! purpose of its own. No event reports audit rows, so a slice is read again when the user opens it.

use leptos::{html, prelude::*};
use milvaion_api::{
    audit::{AuditCursor, AuditObject, AuditRow},
    page::ListPage,
    permissions::Permission,
};
use serde::{Serialize, de::DeserializeOwned};

use super::AuditTable;
use crate::{
    api::{
        audit::{object_audit, own_audit},
        session::query_value,
    },
    browser,
    components::{
        action::use_action,
        action_error::{ActionError, LastError, error_text},
        filter_error::{FilterErrorNotice, use_filter},
        icon::Icon,
        query_reader::{PAGER_REMEDY, QueryReader},
        session_context::{SessionContext, may},
    },
    error::AppError,
};

/// The id of the security log, which its pager links lead to.
const OWN_AUDIT_ID: &str = "own-audit";

/// Reads the first page of a slice for the data of a page; `None` if the role of the user does not allow it, in which
/// case nothing is requested.
///
/// # Errors
///
/// Fails if the user or the rows cannot be read.
pub async fn read_slice(
    session: Option<SessionContext>,
    object: AuditObject,
) -> Result<Option<ListPage<AuditRow>>, AppError> {
    let me = session.map_or(Ok(None), |session| session.user())?;
    if !me.is_some_and(|me| me.role.allows(Permission::ReadObjectAudit)) {
        return Ok(None);
    }
    object_audit(object.key(), None).await.map(Some)
}

/// The audit rows about one object, in a collapsed section. Renders and requests nothing if the role of the user does
/// not allow it. At most one per page, because its id is fixed.
#[component]
pub fn AuditSlice(
    /// The object.
    object: AuditObject,
    /// The first page, which the page has read by [`read_slice`].
    page: Option<ListPage<AuditRow>>,
) -> impl IntoView {
    page.filter(|_| may(Permission::ReadObjectAudit)).map(|page| view! { <SliceContent object page/> })
}

#[component]
fn SliceContent(object: AuditObject, page: ListPage<AuditRow>) -> impl IntoView {
    let rows = RwSignal::new(page.rows);
    let next = RwSignal::new(page.next);
    let error = LastError::of("Audit log");
    let action = use_action(error);
    let reads_all = may(Permission::ReadAudit);
    let load = move |before: Option<AuditCursor>| {
        // After an error the rows that are shown stay.
        action.run(async move {
            let page = object_audit(object.key(), before).await?;
            let _ = rows.try_update(|rows| {
                if before.is_none() {
                    rows.clear();
                }
                rows.extend(page.rows);
            });
            // The button disappears with the last page.
            browser::keep_focus();
            let _ = next.try_set(page.next);
            Ok(None)
        });
    };
    let details = NodeRef::<html::Details>::new();
    let opened = move |_| {
        if details.get_untracked().is_some_and(|details| details.open()) {
            load(None);
        }
    };
    let older = move || {
        let before = next.get()?.parse::<AuditCursor>().ok()?;
        Some(view! {
            <button
                type="button"
                class="btn btn-small needs-js"
                aria-busy=move || action.disabled()
                on:click=move |_| load(Some(before))
            >
                "Show older entries"
            </button>
            <span class="hide-js">"Only the newest entries are shown."</span>
        })
    };
    let all = reads_all.then(|| {
        let href = format!("/audit?object={}", query_value(&object.key()));
        view! { <a class="btn btn-small" href=href>"Open in the audit log"</a> }
    });
    let is_empty = Memo::new(move |_| rows.with(Vec::is_empty));
    let is_user = matches!(object, AuditObject::User(_));
    view! {
        <section aria-labelledby="audit-slice-title">
            <details class="audit-slice" id="audit-slice" node_ref=details on:toggle=opened>
                <summary>
                    <h2 id="audit-slice-title">"Audit log"</h2>
                </summary>
                <div class="stack">
                    <p class="muted" hidden=move || !is_empty.get()>
                        "No action is recorded here. Changes and refused actions are listed as soon as there are any."
                    </p>
                    <div hidden=move || is_empty.get()>
                        <AuditTable
                            rows
                            caption="Audit log, newest first"
                            names_object=is_user
                            names_address=reads_all
                        />
                    </div>
                    <ActionError error/>
                    <div class="cluster">{older} {all}</div>
                </div>
            </details>
        </section>
    }
}

/// The audit rows by and about the signed-in user. The parameter `log_before` of the address selects the page. The
/// caller provides the heading.
#[component]
pub fn OwnAudit() -> impl IntoView {
    let before = use_filter(|query| {
        let mut reader = QueryReader::of_form(query);
        let before = reader.read("log_before", PAGER_REMEDY, |text| text.parse::<AuditCursor>().ok());
        reader.finish("/account", before)
    });
    let data = Resource::new_blocking(
        move || before.get(),
        |before| async move {
            match before {
                Ok(before) => own_audit(before).await.map(Some),
                Err(_) => Ok(None),
            }
        },
    );
    when_loaded(data, move |page| match (page, before.get_untracked()) {
        (Some(page), before) => {
            view! { <OwnAuditContent page is_later=before.is_ok_and(|before| before.is_some())/> }.into_any()
        }
        (None, Err(invalid)) => view! { <FilterErrorNotice invalid/> }.into_any(),
        (None, Ok(_)) => ().into_any(),
    })
}

#[component]
fn OwnAuditContent(
    page: ListPage<AuditRow>,
    /// True if this is not the first page.
    is_later: bool,
) -> impl IntoView {
    let is_empty = page.rows.is_empty();
    let rows = RwSignal::new(page.rows);
    let table = if is_empty {
        view! { <p class="muted">{if is_later { "There are no older entries." } else { "No entry is recorded yet." }}</p> }
            .into_any()
    } else {
        view! { <AuditTable rows caption="Security log, newest first"/> }.into_any()
    };
    let newest = is_later.then(|| {
        view! {
            <a class="btn btn-small" href=format!("/account#{OWN_AUDIT_ID}") rel="prev">
                <Icon name="chevron-left"/>
                "Newest"
            </a>
        }
    });
    let older = page.next.map(|next| {
        view! {
            <a class="btn btn-small" href=format!("/account?log_before={next}#{OWN_AUDIT_ID}") rel="next">
                "Older"
                <Icon name="chevron-right"/>
            </a>
        }
    });
    view! {
        <div class="stack" id=OWN_AUDIT_ID tabindex="-1" role="group" aria-label="Entries of the security log">
            {table}
            <nav class="pager" aria-label="Pages of the security log" data-heading=OWN_AUDIT_ID>{newest}{older}</nav>
        </div>
    }
}

/// Draws a view once its data is known, or the error in its place.
fn when_loaded<T>(
    data: Resource<Result<T, AppError>>,
    view: impl Fn(T) -> AnyView + Clone + Send + Sync + 'static,
) -> AnyView
where
    T: Clone + Serialize + DeserializeOwned + Send + Sync + 'static,
{
    let draw = move || {
        let view = view.clone();
        Suspend::new(async move {
            let read = data.await;
            untrack(|| match read {
                Ok(read) => view(read),
                Err(error) => view! {
                    <div class="notice" data-kind="error">
                        <Icon name="circle-alert"/>
                        <p>"The audit log could not be read. " {error_text(error.to_string())}</p>
                    </div>
                }
                .into_any(),
            })
        })
    };
    view! { <Transition>{draw}</Transition> }.into_any()
}
