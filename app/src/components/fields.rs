//! The controls of a [`FormField`]: a line of text, several lines, and a choice.

use leptos::{html, prelude::*, web_sys::HtmlSelectElement};

use super::{
    form::{FormField, described_by},
    form_state::textarea_html,
};

/// A single-line text field with its label, hint and error.
#[component]
pub fn InputField(
    /// The control's id.
    #[prop(into)]
    id: String,
    /// The name of the field in the request.
    #[prop(into)]
    name: String,
    /// The visible label.
    label: &'static str,
    /// Help text below the label.
    #[prop(optional, into)]
    hint: String,
    /// True if the field may stay empty, which is stated beside the label.
    #[prop(optional)]
    optional: bool,
    /// The initial value.
    #[prop(optional, into)]
    value: String,
    /// The error, if the value is invalid.
    #[prop(into)]
    error: Signal<Option<String>>,
    /// The `type` attribute of the control.
    #[prop(default = "text")]
    kind: &'static str,
    /// The `inputmode` attribute, which selects a phone's keyboard.
    #[prop(default = "text")]
    inputmode: &'static str,
    /// The `autocomplete` attribute.
    #[prop(default = "off")]
    autocomplete: &'static str,
    /// The maximum length of the value, in characters.
    #[prop(optional)]
    maxlength: Option<&'static str>,
    /// An example value.
    #[prop(optional)]
    placeholder: &'static str,
    /// The id of the list of suggestions.
    #[prop(optional)]
    list: Option<&'static str>,
    /// True for an expression, which is no prose.
    #[prop(optional)]
    is_code: bool,
    /// True if the browser refuses an empty value.
    #[prop(optional)]
    required: bool,
    /// True if the server refuses an empty value.
    #[prop(optional)]
    aria_required: bool,
    /// The control.
    #[prop(optional)]
    node: NodeRef<html::Input>,
) -> impl IntoView {
    let described = described_by(&id);
    let is_email = kind == "email";
    let is_checked_as_prose = !(is_email || is_code || list.is_some());
    view! {
        <FormField id=id.clone() label hint optional error>
            <input
                type=kind
                id=id
                name=name
                class=if is_code { "input-mono" } else { "" }
                value=value
                // A step of one second, so that the browser accepts a time with seconds.
                step=(kind == "datetime-local").then_some("1")
                inputmode=(inputmode != "text").then_some(inputmode)
                placeholder=(!placeholder.is_empty()).then_some(placeholder)
                maxlength=maxlength
                list=list
                autocomplete=autocomplete
                autocapitalize=is_email.then_some("off")
                spellcheck=(!is_checked_as_prose).then_some("false")
                required=required
                aria-required=aria_required.then_some("true")
                aria-describedby=described
                aria-invalid=move || error.get().is_some().then_some("true")
                node_ref=node
            />
        </FormField>
    }
}

/// A text field of several lines with its label, hint and error.
#[component]
pub fn TextareaField(
    /// The control's id.
    #[prop(into)]
    id: String,
    /// The name of the field in the request.
    name: &'static str,
    /// The visible label.
    label: &'static str,
    /// Help text below the label.
    hint: &'static str,
    /// True if the field may stay empty, which is stated beside the label.
    #[prop(optional)]
    optional: bool,
    /// The initial text.
    text: String,
    /// The error, if the text is invalid.
    error: Signal<Option<String>>,
    /// The number of lines.
    rows: &'static str,
    /// The class of the control.
    #[prop(default = "input-mono")]
    class: &'static str,
    /// True for a text that is checked and corrected as prose.
    #[prop(optional)]
    is_prose: bool,
    /// True if the server refuses an empty text.
    #[prop(optional)]
    aria_required: bool,
    /// The control.
    #[prop(optional)]
    node: NodeRef<html::Textarea>,
) -> impl IntoView {
    let described = described_by(&id);
    view! {
        <FormField id=id.clone() label hint optional error>
            <textarea
                id=id
                name=name
                class=class
                rows=rows
                spellcheck=(!is_prose).then_some("false")
                autocapitalize=(!is_prose).then_some("off")
                aria-required=aria_required.then_some("true")
                aria-describedby=described
                aria-invalid=move || error.get().is_some().then_some("true")
                node_ref=node
                inner_html=textarea_html(&text)
            ></textarea>
        </FormField>
    }
}

/// A choice between options with its label, hint and error.
#[component]
pub fn SelectField(
    /// The control's id.
    #[prop(into)]
    id: String,
    /// The name of the field in the request.
    #[prop(into)]
    name: String,
    /// The visible label.
    label: &'static str,
    /// Help text below the label.
    #[prop(optional, into)]
    hint: String,
    /// The error, if the choice is invalid.
    error: Signal<Option<String>>,
    /// The chosen value, which follows the control.
    #[prop(optional)]
    chosen: Option<RwSignal<String>>,
    /// The options.
    children: Children,
) -> impl IntoView {
    let described = described_by(&id);
    let node = NodeRef::<html::Select>::new();
    let follow = move |select: Option<HtmlSelectElement>| {
        if let (Some(chosen), Some(select)) = (chosen, select) {
            chosen.set(select.value());
        }
    };
    // A value may have been chosen before the script ran.
    Effect::new(move |_| follow(node.get()));
    view! {
        <FormField id=id.clone() label hint error>
            <select
                id=id
                name=name
                node_ref=node
                aria-describedby=described
                aria-invalid=move || error.get().is_some().then_some("true")
                on:change=move |_| follow(node.get_untracked())
            >
                {children()}
            </select>
        </FormField>
    }
}

/// Returns a signal that becomes true when a script runs. Without one no field may be hidden, because nothing could show
/// it again.
#[must_use]
pub fn use_script() -> RwSignal<bool> {
    let has_script = RwSignal::new(false);
    Effect::new(move |_| has_script.set(true));
    has_script
}
