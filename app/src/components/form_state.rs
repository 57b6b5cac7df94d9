//! The state of a form that is validated while the user fills it in.
//!
//! The fields keep their own values: they are plain HTML, rendered once, and read all together through the browser's
//! `FormData` whenever they are needed. A script therefore reads exactly what a plain post would send, and no key press
//! passes through a copy of the form in signals. This state contains only the messages about the fields.

use std::collections::BTreeSet;

use leptos::{
    form::FromFormData,
    html,
    prelude::*,
    wasm_bindgen::JsCast,
    web_sys::{Event, FormData, HtmlElement},
};
use milvaion_api::requests::{FieldError, JobForm};

use crate::{api::jobs::SaveJob, browser, error::AppError, format::capitalized};

/// The messages about the fields of a form.
#[derive(Clone, Copy)]
pub struct FormState {
    /// The form element, once it is rendered.
    pub node: NodeRef<html::Form>,
    /// Errors of the server's last check or of a refused save. An error that belongs to no field has an empty field name.
    pub errors: RwSignal<Vec<FieldError>>,
    /// True after an attempt to save, which shows the errors of all fields and not only those of visited ones.
    pub shows_all: RwSignal<bool>,
    /// True while there are unsaved changes.
    pub is_dirty: RwSignal<bool>,
    touched: RwSignal<BTreeSet<String>>,
}

impl FormState {
    /// Creates the state of a form. `errors` are those of a rejected post, and empty for a new form.
    #[must_use]
    pub fn new(errors: Vec<FieldError>) -> Self {
        Self {
            node: NodeRef::new(),
            shows_all: RwSignal::new(!errors.is_empty()),
            errors: RwSignal::new(errors),
            is_dirty: RwSignal::new(false),
            touched: RwSignal::new(BTreeSet::new()),
        }
    }

    /// Returns the error shown beside `field`. A field that was not visited yet shows none, so that the user is not
    /// warned about fields they have not reached.
    #[must_use]
    pub fn error(self, field: impl Into<String>) -> Signal<Option<String>> {
        let field = field.into();
        Signal::derive(move || {
            let is_shown = self.shows_all.get() || self.touched.with(|touched| touched.contains(&field));
            if !is_shown {
                return None;
            }
            self.errors.with(|errors| {
                errors.iter().find(|error| error.field == field).map(|error| capitalized(&error.message))
            })
        })
    }

    /// Returns the entries of the error summary. It appears only after an attempt to save; before that, errors appear
    /// only beside the fields that were visited.
    #[must_use]
    pub fn listed_errors(self) -> Signal<Vec<(String, String)>> {
        Signal::derive(move || {
            if self.shows_all.get() { self.errors.with(|errors| summary_entries(errors)) } else { Vec::new() }
        })
    }

    /// Shows the errors of a refused call above the form and beside its fields, and moves the focus there. The page may
    /// have been left.
    pub fn refuse(self, error: &AppError) {
        let _ = self.errors.try_set(error.problems());
        let _ = self.shows_all.try_set(true);
        browser::focus_on_next_frame("error-summary");
    }

    /// Returns true if the server's last check found an error in one of `fields`.
    #[must_use]
    pub fn is_wrong(self, fields: &[&str]) -> bool {
        self.errors.with(|errors| errors.iter().any(|error| fields.contains(&error.field.as_str())))
    }

    /// Marks the field that an event came from as visited. Returns true if it is a field of this form.
    pub fn touch(self, event: &Event) -> bool {
        let name = event
            .target()
            .and_then(|target| target.dyn_into::<HtmlElement>().ok())
            .and_then(|control| control.get_attribute("name"));
        let Some(field) = name.as_deref().and_then(field_of) else { return false };
        if !self.touched.with_untracked(|touched| touched.contains(&field)) {
            self.touched.update(|touched| {
                touched.insert(field);
            });
        }
        true
    }

    /// Reads the current values of the job form; `None` without a form element, as on the server.
    #[must_use]
    pub fn read_job_form(self) -> Option<JobForm> {
        self.read::<SaveJob>().map(|save| save.form)
    }

    /// Reads the values that the form would send to a server function; `None` without a form element, as on the server.
    #[must_use]
    pub fn read<T: FromFormData>(self) -> Option<T> {
        let node = self.node.get_untracked()?;
        let data = FormData::new_with_form(&node).ok()?;
        T::from_form_data(&data).ok()
    }
}

/// Returns the error of `field` among `problems`.
#[must_use]
pub fn error_of(problems: Signal<Vec<FieldError>>, field: &'static str) -> Signal<Option<String>> {
    Signal::derive(move || {
        problems.with(|problems| {
            problems.iter().find(|error| error.field == field).map(|error| capitalized(&error.message))
        })
    })
}

/// Converts `problems` to entries of the error summary: the control's id and the message.
#[must_use]
pub fn summary_entries(problems: &[FieldError]) -> Vec<(String, String)> {
    let id = |field: &str| if field.is_empty() { String::new() } else { control_id(field) };
    problems.iter().map(|error| (id(&error.field), capitalized(&error.message))).collect()
}

/// Returns the entries of the error summary for those of `problems` that are shown beside none of `fields`.
#[must_use]
pub fn other_errors(
    problems: RwSignal<Vec<FieldError>>,
    fields: &'static [&'static str],
) -> Signal<Vec<(String, String)>> {
    Signal::derive(move || {
        let problems = problems.get().into_iter().filter(|error| !fields.contains(&error.field.as_str()));
        problems.map(|error| (String::new(), capitalized(&error.message))).collect()
    })
}

/// Returns the id of the control of `field`: `input.auth/user` → `f-input-auth-user`.
#[must_use]
pub fn control_id(field: &str) -> String {
    format!("f-{}", field.replace(['.', '/'], "-"))
}

/// Returns the form name of the control of `field`: `input.url` → `form[input][url]`.
#[must_use]
pub fn control_name(field: &str) -> String {
    match field.split_once('.') {
        Some((group, name)) => format!("form[{group}][{name}]"),
        None => format!("form[{field}]"),
    }
}

/// Returns the field of a [`control_name`]. All controls of one row, as `form[windows][0][mon]`, belong to one field:
/// `windows.0`.
fn field_of(name: &str) -> Option<String> {
    let inner = name.strip_prefix("form[")?.strip_suffix(']')?;
    let mut parts = inner.split("][");
    let (group, name) = (parts.next()?, parts.next());
    Some(name.map_or_else(|| group.to_owned(), |name| format!("{group}.{name}")))
}

/// Escapes text for use inside a `<textarea>`. It is set as inner HTML, because Leptos does not hydrate the text of a
/// `<textarea>`: it would still show the text of the former page after a navigation.
#[must_use]
pub fn textarea_html(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn field_is_recovered_from_its_control_name() {
        for field in
            ["display_name", "input_json", "input.url", "input.max.size", "input.auth/user", "input.headers/0~k"]
        {
            assert_eq!(field_of(&control_name(field)).as_deref(), Some(field));
        }
        assert_eq!(field_of("then"), None);
        assert_eq!(field_of("form[windows][0][mon]").as_deref(), Some("windows.0"));
    }

    #[test]
    fn errors_of_other_fields_are_listed_above_the_form() {
        Owner::new().with(|| {
            let errors = vec![FieldError::new("note", "is too long."), FieldError::new("ids", "are missing.")];
            let listed = other_errors(RwSignal::new(errors), &["note"]).get_untracked();
            assert_eq!(listed, [(String::new(), "Are missing.".to_owned())]);
        });
    }

    #[test]
    fn control_names_match_the_form_encoding() {
        assert_eq!(control_name("input.url"), "form[input][url]");
        assert_eq!(control_id("input.url"), "f-input-url");
    }
}
