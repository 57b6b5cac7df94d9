//! Choosing rows and saying what becomes of them.
//!
//! The boxes stand in a plain form that works by itself. With a script the form is never sent: its buttons ask in a
//! dialog first, with the number of what is meant.

use std::{collections::BTreeSet, str::FromStr};

use leptos::{ev, html, prelude::*, task::spawn_local};
use milvaion_api::requests::FieldError;

use crate::{
    components::{
        dialog::Dialog,
        form::{ErrorSummary, FormField, described_by},
        icon::Icon,
        input_form::{capitalized, error_of, problems},
        toast::{ToastKind, toasts},
    },
    error::AppError,
};

/// Which rows of a list are chosen, by their ids.
#[derive(Clone, Copy, Default)]
pub struct RowSelection(RwSignal<BTreeSet<String>>);

impl RowSelection {
    /// None yet.
    pub fn new() -> Self {
        Self(RwSignal::new(BTreeSet::new()))
    }

    /// How many.
    pub fn count(self) -> usize {
        self.0.with(BTreeSet::len)
    }

    /// Chooses none.
    pub fn clear(self) {
        let _ = self.0.try_update(BTreeSet::clear);
    }

    /// Drops what is not among `there` any more: what is gone from the list must not be acted upon unseen.
    pub fn retain(self, there: &BTreeSet<String>) {
        if self.0.with_untracked(|chosen| !chosen.is_subset(there)) {
            self.0.update(|chosen| chosen.retain(|id| there.contains(id)));
        }
    }

    /// Them.
    pub fn ids<T: FromStr>(self) -> Vec<T> {
        self.0.with_untracked(|chosen| chosen.iter().filter_map(|id| id.parse().ok()).collect())
    }
}

/// The box before a row.
#[component]
pub fn RowCheckbox(
    chosen: RowSelection,
    /// The row's id.
    id: String,
    /// What the row is, for those who cannot see it.
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
                aria-label=format!("Choose {name}")
                prop:checked=move || chosen.0.with(|chosen| chosen.contains(&read))
                on:change=choose
            />
        </span>
    }
}

/// The box that chooses every row of the page.
#[component]
pub fn SelectAllCheckbox(
    chosen: RowSelection,
    /// The ids of all rows that can be chosen.
    #[prop(into)]
    ids: Signal<BTreeSet<String>>,
    /// Whether there is no room for its words.
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
            <span class=if is_bare { "sr-only" } else { "muted" }>"Choose all on this page"</span>
        </label>
    }
}

/// What was found wrong by a dialog's last try.
fn whole_of(wrong: RwSignal<Vec<FieldError>>) -> Signal<Vec<(String, String)>> {
    Signal::derive(move || {
        let whole = wrong.get().into_iter().filter(|error| error.field != "note");
        whole.map(|error| (String::new(), capitalized(&error.message))).collect::<Vec<_>>()
    })
}

/// A dialog that asks before it does something to several things, with room for a few words. It stays open while what was
/// asked is refused, with the reason.
#[component]
pub fn NoteDialog<F, Fut>(
    /// Whether it is open.
    open: RwSignal<bool>,
    /// The beginning of its ids, unique on the page.
    prefix: &'static str,
    /// What is asked, with the number: "Retry 3 failures?".
    #[prop(into)]
    title: Signal<String>,
    /// What will happen.
    consequence: &'static str,
    /// What the words are.
    label: &'static str,
    /// The most characters of them.
    most: &'static str,
    /// What the button does.
    verb: &'static str,
    /// Does it, and answers what to say about it.
    run: F,
) -> impl IntoView
where
    F: Fn(String) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output = Result<String, AppError>> + 'static,
{
    let toasts = toasts();
    let wrong = RwSignal::new(Vec::new());
    let whole = whole_of(wrong);
    let error = error_of(wrong.into(), "note");
    let is_busy = RwSignal::new(false);
    let note = NodeRef::<html::Input>::new();
    Effect::new(move |_| {
        if open.get() {
            wrong.set(Vec::new());
        }
    });
    let agree = move |event: ev::SubmitEvent| {
        event.prevent_default();
        let Some(note) = note.get_untracked().filter(|_| !is_busy.get_untracked()) else { return };
        is_busy.set(true);
        let run = run.clone();
        spawn_local(async move {
            let answer = run(note.value()).await;
            let _ = is_busy.try_set(false);
            match answer {
                Ok(words) => {
                    note.set_value("");
                    let _ = open.try_set(false);
                    toasts.show(ToastKind::Success, words);
                }
                Err(error) => {
                    let _ = wrong.try_set(problems(&error));
                }
            }
        });
    };
    let field = format!("{prefix}-note");
    view! {
        <Dialog open id=format!("{prefix}-title") title>
            <form class="stack" on:submit=agree>
                <ErrorSummary errors=whole/>
                <p>{consequence}</p>
                <FormField id=field.clone() label optional=true error>
                    <input
                        type="text"
                        id=field.clone()
                        maxlength=most
                        autocomplete="off"
                        aria-describedby=described_by(&field)
                        aria-invalid=move || error.get().is_some().then_some("true")
                        node_ref=note
                    />
                </FormField>
                <div class="dialog-actions">
                    <button type="button" class="btn" autofocus on:click=move |_| open.set(false)>"Cancel"</button>
                    <button type="submit" class="btn btn-primary" aria-disabled=move || is_busy.get().then_some("true")>
                        {verb}
                    </button>
                </div>
            </form>
        </Dialog>
    }
}

/// A button that opens one of these dialogs.
#[component]
pub fn OpenDialogButton(
    open: RwSignal<bool>,
    icon: &'static str,
    /// What it says.
    #[prop(into)]
    words: Signal<String>,
    /// Whether there is nothing to do it to.
    #[prop(into)]
    is_idle: Signal<bool>,
) -> impl IntoView {
    let ask = move |_| {
        if !is_idle.get_untracked() {
            open.set(true);
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
