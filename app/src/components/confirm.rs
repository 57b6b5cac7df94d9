//! Actions that are confirmed before they run: in a dialog, or without scripts by a plain form with the same texts.

use std::sync::Arc;

use leptos::prelude::*;
use leptos_router::hooks::use_query_map;

use super::{
    action::UserAction,
    dialog::{Dialog, Impossible},
    icon::Icon,
};

/// The question before an action, and the plain form that runs the action without scripts.
#[derive(Clone, Default)]
pub struct Confirmation {
    /// The question with the object's name: "Delete job nightly-report?".
    pub title: String,
    /// The consequences of the action.
    pub text: String,
    /// The label of the confirming button: "Delete job".
    pub verb: String,
    /// The class of the confirming button.
    pub class: &'static str,
    /// The label of the button that changes nothing. Must differ from "Cancel" if the verb is to cancel.
    pub otherwise: &'static str,
    /// The address of the server function.
    pub path: &'static str,
    /// The names and values of the hidden fields of the plain form.
    pub fields: Vec<(&'static str, String)>,
    /// The address of the page without the question. Empty if the plain form unfolds below the button.
    pub page: String,
}

impl Confirmation {
    /// Returns the question before an irreversible action.
    #[must_use]
    pub fn new(title: String, text: impl Into<String>, verb: impl Into<String>) -> Self {
        let (text, verb) = (text.into(), verb.into());
        Self { title, text, verb, class: "btn btn-danger", otherwise: "Cancel", ..Self::default() }
    }

    /// Returns the question with the plain form that posts `fields` to `path`, and with the address of its page.
    #[must_use]
    pub fn with_form(self, path: &'static str, fields: Vec<(&'static str, String)>, page: impl Into<String>) -> Self {
        Self { path, fields, page: page.into(), ..self }
    }
}

/// A dialog that asks for confirmation. The initial focus is on the button that changes nothing; the other button is
/// labeled with the action's verb.
#[component]
pub fn ConfirmDialog(
    /// True while the dialog is open.
    open: RwSignal<bool>,
    /// The heading's id, unique on the page.
    #[prop(into)]
    id: String,
    /// The question.
    #[prop(into)]
    what: Signal<Confirmation>,
    /// Called after the dialog has closed with a confirmation.
    #[prop(into)]
    on_confirm: Callback<()>,
    /// The reason for which the action is no longer possible.
    #[prop(optional, into)]
    impossible: Signal<Option<String>>,
    /// Further contents.
    #[prop(optional)]
    children: Option<Children>,
) -> impl IntoView {
    let confirm = move |_| {
        if impossible.with_untracked(Option::is_none) {
            open.set(false);
            on_confirm.run(());
        }
    };
    view! {
        <Dialog open id title=Signal::derive(move || what.with(|what| what.title.clone()))>
            <p hidden=move || what.with(|what| what.text.is_empty())>{move || what.with(|what| what.text.clone())}</p>
            {children.map(|children| children())}
            <Impossible reason=impossible/>
            <div class="dialog-actions">
                <button type="button" class="btn" autofocus on:click=move |_| open.set(false)>
                    {move || what.with(|what| what.otherwise)}
                </button>
                <button
                    type="button"
                    class=move || what.with(|what| what.class)
                    aria-disabled=move || impossible.with(Option::is_some).then_some("true")
                    on:click=confirm
                >
                    {move || what.with(|what| what.verb.clone())}
                </button>
            </div>
        </Dialog>
    }
}

/// The question that the rows of a list share: one dialog asks about the row whose button was used.
#[derive(Clone, Copy, Default)]
pub struct RowQuestion {
    open: RwSignal<bool>,
    asked: RwSignal<Option<(Confirmation, RunAction)>>,
}

/// Runs the action that the user has confirmed.
type RunAction = Arc<dyn Fn() + Send + Sync>;

impl RowQuestion {
    /// Asks, and calls `run` after a confirmation.
    pub fn ask(self, what: Confirmation, run: impl Fn() + Send + Sync + 'static) {
        self.asked.set(Some((what, Arc::new(run))));
        self.open.set(true);
    }
}

/// The dialog of a [`RowQuestion`].
#[component]
pub fn RowQuestionDialog(
    /// The question.
    question: RowQuestion,
    /// The heading's id, unique on the page.
    id: &'static str,
) -> impl IntoView {
    let RowQuestion { open, asked } = question;
    let what =
        Signal::derive(move || asked.with(|asked| asked.as_ref().map(|(what, _)| what.clone())).unwrap_or_default());
    let confirm = move |()| {
        if let Some((_, run)) = asked.get_untracked() {
            run();
        }
    };
    view! { <ConfirmDialog open id what on_confirm=confirm/> }
}

/// The button that asks for the confirmation. Without scripts it is a link to the page with the question.
#[component]
pub fn AskButton(
    /// The action.
    action: UserAction,
    /// The label: "Delete…".
    label: &'static str,
    /// The name of the icon.
    #[prop(optional)]
    icon: &'static str,
    /// The classes.
    #[prop(default = "btn")]
    class: &'static str,
    /// The accessible name, if the label does not name the object.
    #[prop(optional, into)]
    name: Option<String>,
    /// The address of the page with the question. Without it there is no link.
    #[prop(into)]
    href: String,
    /// Asks for the confirmation. Not called while the action runs.
    #[prop(into)]
    on_ask: Callback<()>,
) -> impl IntoView {
    let icon = move || (!icon.is_empty()).then(|| view! { <Icon name=icon/> });
    let link = (!href.is_empty()).then(|| {
        view! {
            <a class=format!("{class} hide-js") href=href aria-label=name.clone()>
                {icon()}
                {label}
            </a>
        }
    });
    let ask = move |_| {
        if action.is_idle() {
            on_ask.run(());
        }
    };
    view! {
        <button
            type="button"
            class=format!("{class} needs-js")
            aria-label=name
            aria-disabled=move || action.disabled()
            on:click=ask
        >
            {icon()}
            {label}
        </button>
        {link}
    }
}

/// A button with the dialog that confirms its action. Without scripts the question is a [`ConfirmSection`] of the page,
/// or unfolds below the button.
#[component]
pub fn ConfirmAction(
    /// The action.
    action: UserAction,
    /// The id of the section. With the suffix `-title` the id of the dialog's heading.
    id: &'static str,
    /// The label of the button that asks: "Delete…".
    label: &'static str,
    /// The name of its icon.
    #[prop(optional)]
    icon: &'static str,
    /// The question.
    #[prop(into)]
    what: Signal<Confirmation>,
    /// Called after the dialog has closed with a confirmation.
    #[prop(into)]
    on_confirm: Callback<()>,
    /// Further consequences.
    #[prop(optional)]
    children: Option<ChildrenFn>,
) -> impl IntoView {
    let open = RwSignal::new(false);
    let plain = what.get_untracked();
    let href = if plain.page.is_empty() { String::new() } else { format!("{}?confirm={id}#{id}", plain.page) };
    let unfolded = href.is_empty().then(|| unfolded_form(label, plain, children.clone()));
    // Drawn for an open dialog only: without scripts they are in the plain form.
    let more = children.map(|children| move || open.get().then(|| view! { <div class="stack">{children()}</div> }));
    view! {
        <AskButton action label icon href on_ask=move |()| open.set(true)/>
        {unfolded}
        <ConfirmDialog open id=format!("{id}-title") what on_confirm>{more}</ConfirmDialog>
    }
}

/// Draws the plain form in a section that unfolds.
fn unfolded_form(label: &'static str, what: Confirmation, children: Option<ChildrenFn>) -> AnyView {
    let Confirmation { text, verb, class, path, fields, .. } = what;
    view! {
        <details class="hide-js">
            <summary>{label}</summary>
            <form method="post" action=path class="stack">
                {hidden_fields(fields)}
                <p>{text}</p>
                {children.map(|children| children())}
                <div class="form-actions">
                    <button type="submit" class=class>{verb}</button>
                </div>
            </form>
        </details>
    }
    .into_any()
}

/// The question as a section of the page, for users without scripts. Drawn if the address asks it.
#[component]
pub fn ConfirmSection(
    /// The id of the section, which is the value of `confirm` in the address.
    id: &'static str,
    /// The question.
    what: Confirmation,
) -> impl IntoView {
    let is_asked = use_query_map().with_untracked(|query| query.get("confirm").as_deref() == Some(id));
    is_asked.then(|| confirm_section(id, what))
}

/// Draws the question as a section of the page, for users without scripts.
pub fn confirm_section(id: &'static str, what: Confirmation) -> AnyView {
    let Confirmation { title, text, verb, class, otherwise, path, fields, page } = what;
    let heading = format!("{id}-heading");
    let label = heading.clone();
    view! {
        <section class="card stack hide-js" id=id aria-labelledby=label>
            <h2 id=heading>{title}</h2>
            <p>{text}</p>
            <form class="form-actions" method="post" action=path>
                {hidden_fields(fields)}
                <a class="btn" href=page>{otherwise}</a>
                <button type="submit" class=class>{verb}</button>
            </form>
        </section>
    }
    .into_any()
}

fn hidden_fields(fields: Vec<(&'static str, String)>) -> Vec<AnyView> {
    fields.into_iter().map(|(name, value)| view! { <input type="hidden" name=name value=value/> }.into_any()).collect()
}

/// A button of an action that is not possible now, with the reason.
#[component]
pub fn ImpossibleAction(
    /// The id of the reason, unique on the page.
    id: &'static str,
    /// The label of the button.
    label: &'static str,
    /// The reason and the remedy.
    reason: &'static str,
) -> impl IntoView {
    view! {
        <div class="cluster">
            <button type="button" class="btn" aria-disabled="true" aria-describedby=id>{label}</button>
            <p class="muted" id=id>{reason}</p>
        </div>
    }
}
