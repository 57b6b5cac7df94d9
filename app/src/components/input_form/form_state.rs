//! What a form that checks itself knows while somebody fills it in.
//!
//! The fields keep their own text: they are plain HTML, drawn once, and read back all together through the browser's
//! `FormData` whenever their text is wanted. So what a script reads is exactly what a plain post would send, and no key
//! press runs through a copy of the form in signals. What is kept here is only what the page says about the fields.

use std::collections::BTreeSet;

use leptos::{
    form::FromFormData,
    html,
    prelude::*,
    wasm_bindgen::JsCast,
    web_sys::{Event, FormData, HtmlElement},
};
use milvaion_api::requests::{FieldError, JobForm};

use crate::{api::jobs::SaveJob, error::AppError};

/// What the page says about the fields of a form.
#[derive(Clone, Copy)]
pub struct FormState {
    /// The form itself, once it stands in a page.
    pub node: NodeRef<html::Form>,
    /// Everything that is wrong as far as the server has looked; what belongs to no field has an empty one.
    pub errors: RwSignal<Vec<FieldError>>,
    /// True once somebody tried to save: then every error is shown, not only those of fields that were visited.
    pub shows_all: RwSignal<bool>,
    /// True while something was typed and not saved.
    pub is_dirty: RwSignal<bool>,
    touched: RwSignal<BTreeSet<String>>,
}

impl FormState {
    /// The state of a form that comes back with these errors, or of a fresh one when there are none.
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

    /// What to say beside `field`: nothing before it was visited, so that nobody is told off for what they have not
    /// come to yet.
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

    /// Whether one of `fields` is wrong as far as the server has looked.
    #[must_use]
    pub fn is_wrong(self, fields: &[&str]) -> bool {
        self.errors.with(|errors| errors.iter().any(|error| fields.contains(&error.field.as_str())))
    }

    /// Notes that the field an event came from was visited. Answers whether it was one of ours.
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

    /// What stands in the job form now; none where there is no form, as on the server.
    #[must_use]
    pub fn read_job_form(self) -> Option<JobForm> {
        self.read::<SaveJob>().map(|save| save.form)
    }

    /// What the form would send to a server function; none where there is no form, as on the server.
    #[must_use]
    pub fn read<T: FromFormData>(self) -> Option<T> {
        let node = self.node.get_untracked()?;
        let data = FormData::new_with_form(&node).ok()?;
        T::from_form_data(&data).ok()
    }
}

/// All that is wrong according to a refusal; what belongs to no field has an empty one.
#[must_use]
pub fn problems(error: &AppError) -> Vec<FieldError> {
    match error {
        AppError::Fields(errors) => errors.clone(),
        other => vec![FieldError::new("", other.to_string())],
    }
}

/// What is wrong with `field` among `problems`.
#[must_use]
pub fn error_of(problems: Signal<Vec<FieldError>>, field: &'static str) -> Signal<Option<String>> {
    Signal::derive(move || {
        problems.with(|problems| {
            problems.iter().find(|error| error.field == field).map(|error| capitalized(&error.message))
        })
    })
}

/// `problems` as the list above a form has them: the id of the control, and the words.
#[must_use]
pub fn summary_entries(problems: &[FieldError]) -> Vec<(String, String)> {
    let id = |field: &str| if field.is_empty() { String::new() } else { control_id(field) };
    problems.iter().map(|error| (id(&error.field), capitalized(&error.message))).collect()
}

/// A message as it stands by itself: with a capital at its beginning.
#[must_use]
pub fn capitalized(message: &str) -> String {
    let mut letters = message.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}

/// The id of the control of `field`: `input.url` → `f-input-url`.
#[must_use]
pub fn control_id(field: &str) -> String {
    format!("f-{}", field.replace('.', "-"))
}

/// The name under which the control of `field` is sent: `input.url` → `form[input][url]`.
#[must_use]
pub fn control_name(field: &str) -> String {
    match field.split_once('.') {
        Some((group, name)) => format!("form[{group}][{name}]"),
        None => format!("form[{field}]"),
    }
}

/// The field behind a [`control_name`]. The controls of one row, `form[windows][0][mon]`, are one field: `windows.0`.
fn field_of(name: &str) -> Option<String> {
    let inner = name.strip_prefix("form[")?.strip_suffix(']')?;
    let mut parts = inner.split("][");
    let (group, name) = (parts.next()?, parts.next());
    Some(name.map_or_else(|| group.to_owned(), |name| format!("{group}.{name}")))
}

/// Text as it may stand between the tags of a `<textarea>`. Set as inner HTML, because an empty text node of ours would
/// arrive as a space there.
#[must_use]
pub fn textarea_html(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_survives_its_name() {
        for field in ["display_name", "input_json", "input.url", "input.max.size"] {
            assert_eq!(field_of(&control_name(field)).as_deref(), Some(field));
        }
        assert_eq!(field_of("then"), None);
        assert_eq!(field_of("form[windows][0][mon]").as_deref(), Some("windows.0"));
    }

    #[test]
    fn a_names_controls_are_what_serde_reads() {
        assert_eq!(control_name("input.url"), "form[input][url]");
        assert_eq!(control_id("input.url"), "f-input-url");
    }
}
