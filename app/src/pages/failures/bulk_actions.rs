//! Selection of rows, and dialogs that act on the selection.
//!
//! The checkboxes are in a plain form that works without a script. With a script the form is never posted: its buttons
//! open a dialog first, which states the number of affected rows. The dialog acts on what it was opened with: the list
//! behind it goes on changing, and the question must not change under the reader.

use std::{collections::BTreeSet, pin::Pin, str::FromStr};

use leptos::{ev, html, prelude::*};

use crate::{
    components::{
        action::{ErrorPlace, UserAction},
        dialog::Dialog,
        fields::InputField,
        form::ErrorSummary,
        icon::Icon,
        input_form::{error_of, other_errors},
    },
    error::AppError,
};

/// The selected rows of a list, by their ids.
#[derive(Clone, Copy, Default)]
pub struct RowSelection(RwSignal<BTreeSet<String>>);

impl RowSelection {
    /// Creates an empty selection.
    pub fn new() -> Self {
        Self(RwSignal::new(BTreeSet::new()))
    }

    /// Returns the number of selected rows.
    pub fn count(self) -> usize {
        self.0.with(BTreeSet::len)
    }

    /// Clears the selection.
    pub fn clear(self) {
        let _ = self.0.try_update(BTreeSet::clear);
    }

    /// Removes all ids that are not in `there`, so that no action affects a row that has left the list.
    pub fn retain(self, there: &BTreeSet<String>) {
        if self.0.with_untracked(|chosen| !chosen.is_subset(there)) {
            self.0.update(|chosen| chosen.retain(|id| there.contains(id)));
        }
    }

    /// Returns the selected ids.
    pub fn ids<T: FromStr>(self) -> Vec<T> {
        self.0.with_untracked(|chosen| chosen.iter().filter_map(|id| id.parse().ok()).collect())
    }
}

/// The checkbox of a row.
#[component]
pub fn RowCheckbox(
    /// The selected rows.
    chosen: RowSelection,
    /// The row's id.
    id: String,
    /// The row's description, part of the accessible name.
    name: String,
) -> impl IntoView {
    let value = id.clone();
    let read = id.clone();
    let choose = move |event: ev::Event| {
        let on = event_target_checked(&event);
        chosen.0.update(|chosen| {
            if on {
                chosen.insert(id.clone());
            } else {
                chosen.remove(&id);
            }
        });
    };
    view! {
        <span class="check">
            <input
                type="checkbox"
                name="ids[]"
                value=value
                aria-label=format!("Select {name}")
                prop:checked=move || chosen.0.with(|chosen| chosen.contains(&read))
                on:change=choose
            />
        </span>
    }
}

/// The checkbox that selects every row of the page.
#[component]
pub fn SelectAllCheckbox(
    /// The selected rows.
    chosen: RowSelection,
    /// The ids of all rows that can be selected.
    #[prop(into)]
    ids: Signal<BTreeSet<String>>,
    /// True to hide the label from all but screen readers.
    #[prop(optional)]
    is_bare: bool,
) -> impl IntoView {
    let is_all = move || ids.with(|ids| !ids.is_empty() && chosen.0.with(|chosen| chosen.is_superset(ids)));
    let choose = move |event: ev::Event| {
        chosen.0.set(if event_target_checked(&event) { ids.get_untracked() } else { BTreeSet::new() });
    };
    view! {
        <label class="check needs-js">
            <input type="checkbox" prop:checked=is_all on:change=choose/>
            <span class=if is_bare { "sr-only" } else { "muted" }>"Select all on this page"</span>
        </label>
    }
}

/// A dialog and the scope of its action, which is set when it opens and does not follow the list afterwards.
pub struct DialogScope<S: 'static> {
    open: RwSignal<bool>,
    scope: RwSignal<Option<S>>,
}

impl<S> Clone for DialogScope<S> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<S> Copy for DialogScope<S> {}

impl<S: Clone + Send + Sync + 'static> Default for DialogScope<S> {
    fn default() -> Self {
        Self::new()
    }
}

impl<S: Clone + Send + Sync + 'static> DialogScope<S> {
    /// Creates the state of a closed dialog.
    #[must_use]
    pub fn new() -> Self {
        Self { open: RwSignal::new(false), scope: RwSignal::new(None) }
    }

    /// Opens the dialog for `scope`.
    pub fn open(self, scope: S) {
        self.scope.set(Some(scope));
        self.open.set(true);
    }

    /// Returns the scope of the dialog; none before it was opened first.
    #[must_use]
    pub fn get(self) -> Option<S> {
        self.scope.get()
    }
}

/// A dialog that asks for confirmation of an action on several rows, with an optional note. It stays open and shows the
/// reason when the action is refused.
#[component]
pub fn NoteDialog<S, F, Fut>(
    /// The dialog's state.
    dialog: DialogScope<S>,
    /// The prefix of its ids, unique on the page.
    prefix: &'static str,
    /// Returns the question with the number of rows: "Retry 3 failures?".
    title: fn(&S) -> String,
    /// The effect of the action.
    consequence: &'static str,
    /// The label of the note field.
    label: &'static str,
    /// The maximum length of the note, in characters.
    most: &'static str,
    /// The label of the confirming button.
    verb: &'static str,
    /// Runs the action on the scope with the note and returns the message for the toast.
    run: F,
    /// Further details of the scope.
    #[prop(optional, into)]
    details: Option<ViewFn>,
) -> impl IntoView
where
    S: Clone + Send + Sync + 'static,
    F: Fn(S, String) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<String, AppError>> + 'static,
{
    let DialogScope { open, scope } = dialog;
    let title = Signal::derive(move || scope.with(|scope| scope.as_ref().map(title)).unwrap_or_default());
    let call =
        Callback::new(move |note: String| -> Option<NoteCall> { Some(Box::pin(run(scope.get_untracked()?, note))) });
    view! { <NoteForm open prefix title consequence label most verb call details/> }
}

/// The call of a [`NoteDialog`], which returns the message for the toast.
type NoteCall = Pin<Box<dyn Future<Output = Result<String, AppError>>>>;

/// The dialog for every kind of scope.
#[component]
fn NoteForm(
    open: RwSignal<bool>,
    prefix: &'static str,
    title: Signal<String>,
    consequence: &'static str,
    label: &'static str,
    most: &'static str,
    verb: &'static str,
    /// Returns the call with a note; none before the dialog was opened first.
    call: Callback<String, Option<NoteCall>>,
    details: Option<ViewFn>,
) -> impl IntoView {
    let wrong = RwSignal::new(Vec::new());
    let action = UserAction::new(ErrorPlace::Fields(wrong));
    let note = NodeRef::<html::Input>::new();
    Effect::new(move |_| {
        if open.get() {
            wrong.set(Vec::new());
        }
    });
    let agree = move |event: ev::SubmitEvent| {
        event.prevent_default();
        let Some(note) = note.get_untracked() else { return };
        let Some(call) = call.run(note.value()) else { return };
        action.run(async move {
            let words = call.await?;
            note.set_value("");
            let _ = open.try_set(false);
            Ok(Some(words))
        });
    };
    view! {
        <Dialog open id=format!("{prefix}-title") title>
            <form class="stack" data-guarded="true" on:submit=agree>
                <ErrorSummary errors=other_errors(wrong, &["note"])/>
                {move || details.as_ref().map(ViewFn::run)}
                <p>{consequence}</p>
                <InputField
                    id=format!("{prefix}-note")
                    name="note"
                    label
                    optional=true
                    maxlength=most
                    error=error_of(wrong.into(), "note")
                    node=note
                />
                <div class="dialog-actions">
                    <button type="button" class="btn" autofocus on:click=move |_| open.set(false)>"Cancel"</button>
                    <button type="submit" class="btn btn-primary" aria-disabled=move || action.disabled()>
                        {verb}
                    </button>
                </div>
            </form>
        </Dialog>
    }
}

/// A button that opens a [`NoteDialog`].
#[component]
pub fn OpenDialogButton(
    /// Opens the dialog.
    #[prop(into)]
    on_open: Callback<()>,
    /// The name of the icon.
    icon: &'static str,
    /// The label.
    #[prop(into)]
    words: Signal<String>,
    /// True while there is nothing to act on.
    #[prop(into)]
    is_idle: Signal<bool>,
) -> impl IntoView {
    let ask = move |_| {
        if !is_idle.get_untracked() {
            on_open.run(());
        }
    };
    view! {
        <button
            type="button"
            class="btn needs-js"
            aria-disabled=move || is_idle.get().then_some("true")
            on:click=ask
        >
            <Icon name=icon/>
            <span>{move || words.get()}</span>
        </button>
    }
}
