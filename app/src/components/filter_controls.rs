//! The controls of a filter form, which follow the filter in the address.
//!
//! A list page keeps its filter in the address, and its form is a plain GET form. A new filter, or the browser's Back,
//! draws the list into the same elements. Their attributes only decide the first value of a control, so the values are
//! then set by script. The first list leaves the controls alone, because the browser keeps what was typed while the page
//! loaded, and so does a list with the same filter, such as its next page.

use leptos::{html, prelude::*};

use crate::browser;

/// The values of a filter form by the name of their control.
pub type FilterValues = Vec<(&'static str, String)>;

/// The values that the form of a page was last drawn with. Belongs to the page, so that it outlives its lists.
#[derive(Clone, Copy)]
pub struct DrawnFilter(StoredValue<Option<FilterValues>>);

impl DrawnFilter {
    /// Returns the memory of a page whose form has not been drawn.
    #[must_use]
    pub fn new() -> Self {
        Self(StoredValue::new(None))
    }

    /// Sets the controls of the form, once it exists, if it was drawn with other values before.
    pub fn show(self, form: NodeRef<html::Form>, values: FilterValues) {
        let is_other = self.0.with_value(|drawn| drawn.as_ref().is_some_and(|drawn| *drawn != values));
        self.0.set_value(Some(values.clone()));
        Effect::new(move |_| {
            if is_other && let Some(form) = form.get() {
                browser::set_form_values(&form, &values);
            }
        });
    }
}

impl Default for DrawnFilter {
    fn default() -> Self {
        Self::new()
    }
}

/// Returns the value of a control of the form; an empty text if there is none.
#[must_use]
pub fn control_value(form: NodeRef<html::Form>, name: &str) -> String {
    form.get_untracked().and_then(|form| browser::form_value(&form, name)).unwrap_or_default()
}
