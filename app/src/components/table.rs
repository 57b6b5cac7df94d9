//! The table of a page.
//!
//! On a narrow screen the style sheet shows the rows of most tables as cards, which takes the meaning of a table from the
//! elements. The roles are therefore explicit, here and on the cells of each row.

use leptos::prelude::*;

pub use self::Column::{Actions, Extra, Named, Number, Text};

/// The heading of a column.
#[derive(Clone, Debug)]
pub enum Column {
    /// A text.
    Text(&'static str),
    /// A text with values of the page.
    Named(String),
    /// A column of numbers.
    Number(&'static str),
    /// A column that only wide screens show.
    Extra(&'static str),
    /// The buttons of a row. The heading is for screen readers only.
    Actions,
}

impl Column {
    fn heading(self) -> AnyView {
        let (class, label) = match self {
            Self::Text(label) => (None, label.into_any()),
            Self::Named(label) => (None, label.into_any()),
            Self::Number(label) => (Some("num"), label.into_any()),
            Self::Extra(label) => (Some("col-extra"), label.into_any()),
            Self::Actions => (None, view! { <span class="sr-only">"Actions"</span> }.into_any()),
        };
        view! { <th role="columnheader" scope="col" class=class>{label}</th> }.into_any()
    }
}

/// A table in a box that scrolls. The children are the rows.
#[component]
pub fn Table(
    /// The accessible name.
    #[prop(into)]
    caption: String,
    /// The columns.
    #[prop(into)]
    columns: Vec<Column>,
    /// The heading of a column before the others.
    #[prop(optional_no_strip)]
    first: Option<AnyView>,
    /// The id of the table.
    #[prop(optional)]
    id: Option<&'static str>,
    /// The id of the box.
    #[prop(optional)]
    box_id: Option<&'static str>,
    /// The classes of the table.
    #[prop(default = "table table-cards")]
    class: &'static str,
    /// True while the table is not shown.
    #[prop(optional, into)]
    hidden: Signal<bool>,
    /// The rows.
    children: Children,
) -> impl IntoView {
    let headings: Vec<_> = columns.into_iter().map(Column::heading).collect();
    view! {
        <div class="table-wrap" id=box_id hidden=move || hidden.get()>
            <table role="table" class=class id=id>
                <caption class="sr-only">{caption}</caption>
                <thead>
                    <tr role="row">{first} {headings}</tr>
                </thead>
                <tbody>{children()}</tbody>
            </table>
        </div>
    }
    .into_any()
}
