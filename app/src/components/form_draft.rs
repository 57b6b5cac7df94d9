//! The draft of a form: its values, kept in the tab while they are unsaved.
//!
//! A reload, a crash or the end of the session must not cost the user what was typed. The values are therefore stored in
//! the browser's `sessionStorage` a moment after each change, under the page's address. When the page is opened again in
//! the same tab, it is rendered once with its own values, as the server sent it, and then with those of the draft. This
//! is the same way in which the values of a rejected plain post are shown, so every part of a form is restored: the job
//! type with its fields, the schedule and the rows of a calendar. A draft is bound to the user and to a format version.

use std::time::Duration;

use chrono::{DateTime, Utc};
use leptos::{ev, leptos_dom::helpers::TimeoutHandle, prelude::*};
use leptos_router::hooks::use_location;
use serde_json::{Value, json};

use super::{icon::Icon, session_context::use_signed_in_user, time::Time};
use crate::browser;

/// The version of the stored format. A draft of another version is ignored.
const DRAFT_VERSION: u64 = 1;
/// The maximum size of a stored draft, in bytes. The browser's storage holds a few MiB.
const MAX_DRAFT_BYTES: usize = 256 * 1024;
/// The time without input after which the draft is stored.
const DRAFT_DELAY: Duration = Duration::from_millis(300);

/// The values of an earlier visit.
#[derive(Clone, Debug, PartialEq)]
struct StoredDraft {
    at: DateTime<Utc>,
    form: Value,
}

/// Returns the text that stores a draft; `None` if it is too large.
fn encode_draft(user: &str, at_millis: i64, form: &Value) -> Option<String> {
    let text = json!({ "version": DRAFT_VERSION, "user": user, "at": at_millis, "form": form }).to_string();
    (text.len() <= MAX_DRAFT_BYTES).then_some(text)
}

/// Keeps the version for which restored values were typed, so that the next reload warns as this one did.
fn keep_version(form: &mut Value, typed_for: Option<Value>) {
    if let (Some(version), Some(typed_for)) = (form.get_mut("version"), typed_for) {
        *version = typed_for;
    }
}

/// Reads a stored draft; `None` if it belongs to another user or has another format.
fn decode_draft(user: &str, text: &str) -> Option<StoredDraft> {
    let mut stored: Value = serde_json::from_str(text).ok()?;
    if stored.get("version")?.as_u64()? != DRAFT_VERSION || stored.get("user")?.as_str()? != user {
        return None;
    }
    let at = DateTime::from_timestamp_millis(stored.get("at")?.as_i64()?)?;
    Some(StoredDraft { at, form: stored.get_mut("form")?.take() })
}

/// The draft of the form at the current address.
#[derive(Clone, Copy)]
pub struct FormDraft {
    key: StoredValue<String>,
    user: StoredValue<String>,
    restored: RwSignal<Option<StoredDraft>>,
    timer: StoredValue<Option<TimeoutHandle>>,
}

impl FormDraft {
    fn of_this_page() -> Self {
        let user = use_signed_in_user().with_untracked(|me| me.as_ref().map(|me| me.email.clone()));
        Self {
            key: StoredValue::new(format!("draft:{}", current_address())),
            user: StoredValue::new(user.unwrap_or_default()),
            restored: RwSignal::new(None),
            timer: StoredValue::new(None),
        }
    }

    /// Returns true if the form shows the values of an earlier visit.
    #[must_use]
    pub fn is_restored(self) -> bool {
        self.restored.with_untracked(Option::is_some)
    }

    /// Stores the values that `read` returns, `DRAFT_DELAY` after the last call.
    pub fn store_later(self, read: impl Fn() -> Option<Value> + 'static) {
        self.stop_timer();
        let timer = browser::run_after(DRAFT_DELAY, move || self.store(&read));
        let _ = self.timer.try_set_value(timer);
    }

    /// Stores the values that `read` returns.
    pub fn store(self, read: impl Fn() -> Option<Value>) {
        self.stop_timer();
        let (Some(key), Some(user), Some(mut form)) = (self.key.try_get_value(), self.user.try_get_value(), read())
        else {
            return;
        };
        let typed_for =
            self.restored.try_with_untracked(|found| found.as_ref()?.form.get("version").cloned()).flatten();
        keep_version(&mut form, typed_for);
        match encode_draft(&user, browser::now_millis(), &form) {
            Some(text) => browser::set_tab_item(&key, &text),
            // An older draft would restore other values than the last ones.
            None => browser::remove_tab_item(&key),
        }
    }

    /// Removes the draft, because its values are saved or discarded.
    pub fn clear(self) {
        self.stop_timer();
        if let Some(key) = self.key.try_get_value() {
            browser::remove_tab_item(&key);
        }
    }

    /// Cancels a waiting store.
    pub fn stop_timer(self) {
        if let Some(Some(timer)) = self.timer.try_update_value(Option::take) {
            timer.clear();
        }
    }

    fn find(self) -> Option<StoredDraft> {
        let text = browser::tab_item(&self.key.try_get_value()?)?;
        decode_draft(&self.user.try_get_value()?, &text)
    }
}

/// Returns the path and query of the page as the router shows it. During a navigation the browser's own address is still
/// the former one.
#[must_use]
pub fn current_address() -> String {
    let location = use_location();
    let (path, search) = (location.pathname.get_untracked(), location.search.get_untracked());
    let search = search.trim_start_matches('?');
    if search.is_empty() { path } else { format!("{path}?{search}") }
}

/// Renders a form with the page's own values, and again with those of a draft, if there is one. `restore` returns the
/// page with the values of a draft; `None` if they do not belong there.
pub fn render_with_draft<P>(
    page: P,
    restore: impl Fn(P, Value) -> Option<P> + Copy + Send + Sync + 'static,
    view: impl Fn(P, FormDraft) -> AnyView + Copy + Send + Sync + 'static,
) -> AnyView
where
    P: Clone + Send + Sync + 'static,
{
    let draft = FormDraft::of_this_page();
    let own = StoredValue::new(page);
    Effect::new(move |_| {
        let found = draft.find().filter(|found| restore(own.get_value(), found.form.clone()).is_some());
        if found.is_some() {
            draft.restored.set(found);
        }
    });
    // The key replaces the controls, which would otherwise keep the typed values.
    let key = move || draft.restored.with(|found| found.as_ref().map(|found| found.at));
    let draw = move |_| {
        let restored = draft.restored.get_untracked().and_then(|found| restore(own.get_value(), found.form));
        untrack(|| view(restored.unwrap_or_else(|| own.get_value()), draft))
    };
    view! { <For each=move || [key()] key=|at| *at children=draw/> }.into_any()
}

/// Returns true if the values of a draft were typed for another version of their object. The form saves them as a change
/// of the version on the page, which the user may not have seen.
fn is_of_other_version(form: &Value, version: &str) -> bool {
    form.get("version").and_then(Value::as_str).is_some_and(|of| of != version)
}

/// The notice above a form that shows the values of an earlier visit, with a button that discards them. It warns if the
/// object has changed since that visit.
#[component]
pub fn DraftNotice(
    /// The draft of the form.
    draft: FormDraft,
    /// The noun of the object that the form changes: `job`.
    noun: &'static str,
    /// The version of the object on the page; empty for a new one.
    version: String,
    /// Called before the form shows the page's own values again.
    #[prop(into)]
    on_discard: Callback<()>,
) -> impl IntoView {
    let found = draft.restored.get_untracked();
    let discard = move |_: ev::MouseEvent| {
        on_discard.run(());
        draft.clear();
        draft.restored.set(None);
        // The button disappears together with the notice.
        browser::focus_on_next_frame("page-title");
    };
    found.map(|StoredDraft { at, form }| {
        let warning = is_of_other_version(&form, &version).then(|| {
            format!(
                "The {noun} has been changed since then. Saving replaces that change by the values below. Discard them to \
                 see the {noun} as it is."
            )
        });
        let kind = if warning.is_some() { "warn" } else { "info" };
        view! {
            <div class="notice" data-kind=kind role="status" id="draft-notice">
                <Icon name="history"/>
                <div class="cluster">
                    <p>"Unsaved changes from " <Time at/> " were restored." {warning.map(|text| format!(" {text}"))}</p>
                    <button type="button" class="btn btn-small" on:click=discard>"Discard them"</button>
                </div>
            </div>
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draft_belongs_to_one_user_and_format() {
        let form = json!({ "name": "Days off", "windows": { "0": { "mon": "on" } } });
        let text = encode_draft("ada@example.org", 1_764_000_000_000, &form).expect("a small draft is stored");
        let found = decode_draft("ada@example.org", &text).expect("the draft is readable");
        assert_eq!((found.at.timestamp(), found.form), (1_764_000_000, form));
        assert_eq!(decode_draft("eve@example.org", &text), None);
        assert_eq!(decode_draft("ada@example.org", &text.replace("\"version\":1", "\"version\":2")), None);
        assert_eq!(decode_draft("ada@example.org", "{"), None);
    }

    #[test]
    fn draft_of_another_version_is_recognized() {
        assert!(is_of_other_version(&json!({ "version": "1" }), "2"));
        assert!(!is_of_other_version(&json!({ "version": "2" }), "2"));
        assert!(!is_of_other_version(&json!({ "version": "" }), ""), "a new object has no version");
        let mut again = json!({ "version": "2" });
        keep_version(&mut again, Some(json!("1")));
        assert!(is_of_other_version(&again, "2"), "also after another reload");
    }

    #[test]
    fn large_draft_is_not_stored() {
        assert!(encode_draft("a", 0, &json!("x".repeat(MAX_DRAFT_BYTES - 200))).is_some());
        assert_eq!(encode_draft("a", 0, &json!("x".repeat(MAX_DRAFT_BYTES))), None);
    }
}
