//! The controls of forms, and dialogs.

use wasm_bindgen::JsCast;
use web_sys::{
    Element, Event, EventInit, FormData, HtmlDialogElement, HtmlFormElement, HtmlInputElement, HtmlOptionElement,
    HtmlSelectElement, HtmlTextAreaElement,
};

use super::document;

/// Sets the value of the text field or area with this id, and reports it to the form like typed text.
pub fn type_value(id: &str, value: &str) {
    let Some(control) = document().and_then(|document| document.get_element_by_id(id)) else { return };
    if let Some(input) = control.dyn_ref::<HtmlInputElement>() {
        input.set_value(value);
    } else if let Some(area) = control.dyn_ref::<HtmlTextAreaElement>() {
        area.set_value(value);
    }
    let init = EventInit::new();
    init.set_bubbles(true);
    if let Ok(event) = Event::new_with_event_init_dict("input", &init) {
        let _ = control.dispatch_event(&event);
    }
}

/// Returns the value of the checked radio button of this name.
#[must_use]
pub fn checked_value(name: &str) -> Option<String> {
    let found = document()?.query_selector(&format!("input[name=\"{name}\"]:checked")).ok()??;
    Some(found.dyn_into::<HtmlInputElement>().ok()?.value())
}

/// Checks the radio button of this name and value.
pub fn check_radio(name: &str, value: &str) {
    let selector = format!("input[type=\"radio\"][name=\"{name}\"][value=\"{value}\"]");
    for button in all::<HtmlInputElement>(&selector) {
        button.set_checked(true);
    }
}

/// Checks the box with this id, or unchecks it.
pub fn set_checked(id: &str, is_checked: bool) {
    let control = document().and_then(|document| document.get_element_by_id(id));
    if let Some(input) = control.and_then(|control| control.dyn_into::<HtmlInputElement>().ok()) {
        input.set_checked(is_checked);
    }
}

/// The forms whose changes are guarded without a state of their own.
const GUARDED_FORMS: &str = "form[data-guarded]";

/// Returns true if the event comes from a control of a guarded form.
#[must_use]
pub fn is_in_guarded_form(event: &Event) -> bool {
    let target = event.target().and_then(|target| target.dyn_into::<Element>().ok());
    target.is_some_and(|target| matches!(target.closest(GUARDED_FORMS), Ok(Some(_))))
}

/// Returns true if a visible guarded form has changed values.
#[must_use]
pub fn has_changed_form() -> bool {
    all::<HtmlFormElement>(GUARDED_FORMS)
        .iter()
        .any(|form| form.offset_parent().is_some() && differs_from_defaults(form))
}

/// Resets every guarded form to its initial values.
pub fn reset_guarded_forms() {
    for form in all::<HtmlFormElement>(GUARDED_FORMS) {
        form.reset();
    }
}

/// Returns true if a named control of the form differs from the value in the page's HTML, because the user or the
/// browser has changed it.
#[must_use]
pub fn differs_from_defaults(form: &HtmlFormElement) -> bool {
    let controls = form.elements();
    (0..controls.length()).filter_map(|at| controls.item(at)).any(|control| is_changed(&control))
}

/// Returns the value of a named control of the form, as a submission would send it.
#[must_use]
pub fn form_value(form: &HtmlFormElement, name: &str) -> Option<String> {
    FormData::new_with_form(form).ok()?.get(name).as_string()
}

/// Sets the values of the form's named text fields and lists. Other controls keep theirs.
pub fn set_form_values(form: &HtmlFormElement, values: &[(&'static str, String)]) {
    let controls = form.elements();
    for control in (0..controls.length()).filter_map(|at| controls.item(at)) {
        let name = control.get_attribute("name");
        let Some((_, value)) = values.iter().find(|(known, _)| name.as_deref() == Some(*known)) else { continue };
        if let Some(input) = control.dyn_ref::<HtmlInputElement>() {
            input.set_value(value);
        } else if let Some(select) = control.dyn_ref::<HtmlSelectElement>() {
            select.set_value(value);
        }
    }
}

fn is_changed(control: &Element) -> bool {
    if control.get_attribute("name").is_none_or(|name| name.is_empty()) {
        return false;
    }
    if let Some(input) = control.dyn_ref::<HtmlInputElement>() {
        let (value, default) = (input.value(), input.default_value());
        return match input.type_().as_str() {
            "checkbox" | "radio" => input.checked() != input.default_checked(),
            "hidden" | "submit" | "button" | "reset" | "image" => false,
            // The browser may omit the seconds of a time.
            "time" | "datetime-local" if !value.is_empty() && !default.is_empty() => !default.starts_with(&value),
            "time" | "datetime-local" => default.is_empty() && !value.is_empty(),
            // The browser removes line breaks from a single-line text.
            _ => value != default.replace(['\r', '\n'], ""),
        };
    }
    if let Some(area) = control.dyn_ref::<HtmlTextAreaElement>() {
        return area.value() != area.default_value().unwrap_or_default().replace("\r\n", "\n");
    }
    if let Some(select) = control.dyn_ref::<HtmlSelectElement>() {
        let options = select.options();
        let option = |at| options.item(at).and_then(|option| option.dyn_into::<HtmlOptionElement>().ok());
        let default = (0..options.length()).rev().find(|at| option(*at).is_some_and(|o| o.default_selected()));
        return i64::from(select.selected_index()) != i64::from(default.unwrap_or(0)) && options.length() > 0;
    }
    false
}

/// Returns true if a dialog is open.
#[must_use]
pub fn is_dialog_open() -> bool {
    !all::<HtmlDialogElement>("dialog[open]").is_empty()
}

/// Closes every open dialog.
pub fn close_dialogs() {
    for dialog in all::<HtmlDialogElement>("dialog[open]") {
        dialog.close();
    }
}

fn all<T: JsCast>(selector: &str) -> Vec<T> {
    let found = document().and_then(|document| document.query_selector_all(selector).ok());
    let Some(found) = found else { return Vec::new() };
    (0..found.length()).filter_map(|at| found.item(at)?.dyn_into::<T>().ok()).collect()
}
