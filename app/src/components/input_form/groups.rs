//! The groups of generated fields: objects, unions, lists and maps, each a fieldset. A field of a group may be a group,
//! so a field is rendered here, and [`controls`](super::controls) has only those with one value.
//!
//! The buttons of rows need a script. Without one, a list has empty rows after its items; an empty row is no item.

use leptos::prelude::*;
use milvaion_api::schema_form::{InputField, InputKind, InputObject, InputRows, path};

use super::{
    InputContext, control_id, control_name,
    controls::{check_box, hint, text_control, value_control},
};
use crate::components::{
    form::{FieldErrorText, FormField, described_by},
    icon::Icon,
};

/// The number of empty rows after a list of single values on a page without scripts.
const BLANK_ROWS: usize = 3;

/// Returns true for a kind with one control.
fn is_simple(kind: &InputKind) -> bool {
    !matches!(kind, InputKind::Object(_) | InputKind::Union(_) | InputKind::List(_) | InputKind::Map(_))
}

/// Renders the fields of an object at a path, in the order of the schema.
pub(super) fn object_fields(context: InputContext, object: InputObject, path: &str) -> AnyView {
    let has_others = object.is_open || !context.text(&path::others(path)).is_empty();
    let fields: Vec<_> = object
        .fields
        .into_iter()
        .map(|field| {
            let at = path::child(path, &field.name);
            field_control(context, field, &at)
        })
        .collect();
    let others = (has_others && (!fields.is_empty())).then(|| other_properties(context, path));
    view! {
        {fields}
        {others}
    }
    .into_any()
}

/// Renders a field at a path.
fn field_control(context: InputContext, field: InputField, path: &str) -> AnyView {
    match &field.kind {
        InputKind::Const(_) => ().into_any(),
        InputKind::Object(_) | InputKind::Union(_) | InputKind::List(_) | InputKind::Map(_) => {
            group(context, field, path)
        }
        InputKind::Boolean => check_box(context, field, path),
        _ => {
            let (id, hint) = (control_id(&format!("input.{path}")), hint(&field));
            let (label, optional) = (field.label.clone(), !field.required);
            let error = context.state.error(format!("input.{path}"));
            let control = value_control(context, &field, path, None);
            view! {
                <FormField id label hint optional error>
                    {control}
                </FormField>
            }
            .into_any()
        }
    }
}

/// Renders the JSON field of the properties that no other field shows.
fn other_properties(context: InputContext, path: &str) -> AnyView {
    let field = InputField {
        name: String::new(),
        label: "Other properties".into(),
        description: "Properties without a field of their own, as a JSON object.".into(),
        kind: InputKind::Json,
        required: false,
        default: String::new(),
        example: String::new(),
    };
    field_control(context, field, &path::others(path))
}

/// Renders an object, a union, a list or a map.
fn group(context: InputContext, field: InputField, path: &str) -> AnyView {
    let full = format!("input.{path}");
    let id = control_id(&full);
    let hint = hint(&field);
    let no_hint = hint.is_empty();
    let error = context.state.error(full);
    let optional = !field.required;
    let label = field.label.clone();
    let is_union = matches!(field.kind, InputKind::Union(_));
    let content = match field.kind {
        InputKind::Object(object) => object_fields(context, object, path),
        InputKind::Union(variants) => union(context, variants, &field.label, field.required, path),
        InputKind::List(rows) => list(context, rows, &field.label, path, false),
        InputKind::Map(rows) => list(context, rows, &field.label, path, true),
        _ => ().into_any(),
    };
    let described = described_by(&id);
    let (hint_id, error_id) = (format!("{id}-hint"), format!("{id}-error"));
    view! {
        // A union's variant select has the id, because it is the control that an error leads to.
        <fieldset
            class="input-group"
            id=(!is_union).then_some(id)
            tabindex="-1"
            aria-describedby=described
            class:has-error=move || error.get().is_some()
        >
            <legend>
                {label}
                {optional.then(|| view! { <span class="muted">" (optional)"</span> })}
            </legend>
            <p class="hint" id=hint_id hidden=no_hint>{hint}</p>
            {content}
            <FieldErrorText id=error_id error/>
        </fieldset>
    }
    .into_any()
}

fn union(context: InputContext, variants: Vec<InputField>, label: &str, is_required: bool, path: &str) -> AnyView {
    let key = path::variant(path);
    let chosen = context.text(&key);
    let id = control_id(&format!("input.{path}"));
    let focused = id.clone();
    let error = context.state.error(format!("input.{path}"));
    let options: Vec<_> = variants
        .iter()
        .map(|variant| {
            let selected = variant.name == chosen;
            view! { <option value=variant.name.clone() selected=selected>{variant.label.clone()}</option> }
        })
        .collect();
    let fields = variants.into_iter().find(|variant| variant.name == chosen).map(|variant| {
        let note =
            (!variant.description.is_empty()).then(|| view! { <p class="hint">{variant.description.clone()}</p> });
        let content = match variant.kind {
            InputKind::Object(object) => object_fields(context, object, path),
            _ => field_control(context, InputField { description: String::new(), ..variant }, &path::scalar(path)),
        };
        view! {
            {note}
            {content}
        }
    });
    view! {
        <select
            id=id.clone()
            name=control_name(&format!("input.{key}"))
            aria-label=format!("{label}: variant")
            aria-describedby=described_by(&id)
            aria-invalid=move || error.get().is_some().then_some("true")
            aria-required=is_required.then_some("true")
            on:change=move |_| {
                let focused = focused.clone();
                context.restructure(move |_| focused);
            }
        >
            <option value="">{if is_required { "Choose…" } else { "None" }}</option>
            {options}
        </select>
        <p class="hint hide-js">"Select Check below to show the fields of another choice."</p>
        {fields}
    }
    .into_any()
}

fn list(context: InputContext, rows: InputRows, label: &str, path: &str, is_map: bool) -> AnyView {
    let indexes = context.values.with_untracked(|values| path::rows(values, path));
    let count = indexes.len();
    let next = indexes.last().map_or(0, |last| last + 1);
    let is_full = count >= rows.max;
    let row = |position: usize, index: usize, is_real: bool| {
        let at = path::row(path, index);
        let number = position + 1;
        let name = format!("{label} {number}");
        let content = row_content(context, &rows.item, &at, &name, is_map);
        let neighbor =
            |offset: isize| position.checked_add_signed(offset).and_then(|position| indexes.get(position)).copied();
        let buttons = is_real.then(|| row_buttons(context, path, index, [neighbor(-1), neighbor(1)], &name, is_map));
        let mark = is_real.then(|| {
            let mark = control_name(&format!("input.{}", path::mark(&at)));
            view! { <input type="hidden" name=mark value="1"/> }
        });
        view! {
            <li class="input-row" class:hide-js=!is_real>
                {mark}
                {content}
                {buttons}
            </li>
        }
        .into_any()
    };
    let items: Vec<_> = indexes.iter().enumerate().map(|(position, index)| row(position, *index, true)).collect();
    // Single values are short, so that a page without scripts has room for some more of them.
    let more = if is_simple(&rows.item.kind) { BLANK_ROWS } else { 1 };
    let more = more.min(rows.max.saturating_sub(count));
    let blank: Vec<_> = (0..more).map(|offset| row(count + offset, next + offset, false)).collect();
    let list_path = path.to_owned();
    let add = move |_| {
        if is_full {
            return;
        }
        let list_path = list_path.clone();
        context.restructure(move |typed| {
            let at = path::row(&list_path, path::add_row(typed, &list_path));
            first_control(&at, is_map)
        });
    };
    let add_id = add_id(path);
    view! {
        <ol class="input-rows">
            {items}
            {blank}
        </ol>
        <div class="needs-js">
            <button
                type="button"
                class="btn btn-small"
                id=add_id
                aria-label=format!("Add to {label}")
                aria-disabled=is_full.then_some("true")
                on:click=add
            >
                <Icon name="plus"/>
                "Add"
            </button>
        </div>
    }
    .into_any()
}

/// Renders the fields of one row: a name for a map, and the value.
fn row_content(context: InputContext, item: &InputField, at: &str, name: &str, is_map: bool) -> AnyView {
    let key = is_map.then(|| {
        let key = path::key(at);
        let control = text_control(context, &key, "text", String::new(), Some(format!("{name}: name")), true);
        labeled_by_name(context, control, &key)
    });
    let value = match &item.kind {
        InputKind::Object(object) => {
            let fields = object_fields(context, object.clone(), at);
            let (id, legend) = (control_id(&format!("input.{at}")), name.to_owned());
            let error = context.state.error(format!("input.{at}"));
            let error_id = format!("{id}-error");
            view! {
                <fieldset class="input-group" id=id tabindex="-1">
                    <legend>{legend}</legend>
                    {fields}
                    <FieldErrorText id=error_id error/>
                </fieldset>
            }
            .into_any()
        }
        InputKind::Union(_) | InputKind::List(_) | InputKind::Map(_) => {
            let field = InputField { label: name.to_owned(), ..item.clone() };
            group(context, field, at)
        }
        InputKind::Const(_) => ().into_any(),
        _ => {
            let label = if is_map { format!("{name}: value") } else { name.to_owned() };
            let control = value_control(context, item, at, Some(label));
            labeled_by_name(context, control, at)
        }
    };
    view! {
        {key}
        {value}
    }
    .into_any()
}

/// Renders a control that has an accessible name instead of a visible label, with its error.
fn labeled_by_name(context: InputContext, control: AnyView, path: &str) -> AnyView {
    let full = format!("input.{path}");
    let id = control_id(&full);
    let error = context.state.error(full);
    view! {
        <div class="field" class:has-error=move || error.get().is_some()>
            <span id=format!("{id}-hint") hidden></span>
            {control}
            <FieldErrorText id=format!("{id}-error") error/>
        </div>
    }
    .into_any()
}

/// Renders the buttons of a row. `neighbors` are the indexes of the rows above and below.
fn row_buttons(
    context: InputContext,
    path: &str,
    index: usize,
    neighbors: [Option<usize>; 2],
    name: &str,
    is_map: bool,
) -> AnyView {
    let move_button = |neighbor: Option<usize>, verb: &'static str, icon: &'static str, side: &'static str| {
        let list = path.to_owned();
        let id = format!("{}-{side}", control_id(&format!("input.{}", path::row(path, index))));
        let swap = move |_| {
            let Some(other) = neighbor else { return };
            let list = list.clone();
            context.restructure(move |typed| {
                path::swap_rows(typed, &list, index, other);
                format!("{}-{side}", control_id(&format!("input.{}", path::row(&list, other))))
            });
        };
        let label = format!("{verb}: {name}");
        view! {
            <button
                type="button"
                class="icon-btn"
                id=id
                aria-label=label
                title=verb
                aria-disabled=neighbor.is_none().then_some("true")
                on:click=swap
            >
                <Icon name=icon/>
            </button>
        }
    };
    // The properties of an object have no order.
    let movers = (!is_map).then(|| {
        view! {
            {move_button(neighbors[0], "Move up", "chevron-up", "up")}
            {move_button(neighbors[1], "Move down", "chevron-down", "down")}
        }
    });
    let list = path.to_owned();
    let remove = move |_| {
        let list = list.clone();
        context.restructure(move |typed| {
            path::remove_row(typed, &list, index);
            // The row that has moved up takes the focus, or the button that adds one.
            if path::rows(typed, &list).contains(&index) {
                first_control(&path::row(&list, index), is_map)
            } else {
                add_id(&list)
            }
        });
    };
    view! {
        <div class="row-buttons needs-js">
            {movers}
            <button type="button" class="icon-btn" aria-label=format!("Remove: {name}") title="Remove" on:click=remove>
                <Icon name="x"/>
            </button>
        </div>
    }
    .into_any()
}

/// Returns the id of the button that adds a row.
fn add_id(path: &str) -> String {
    format!("{}-add", control_id(&format!("input.{path}")))
}

/// Returns the id of the element of a row that takes the focus.
fn first_control(row: &str, is_map: bool) -> String {
    if is_map { control_id(&format!("input.{}", path::key(row))) } else { control_id(&format!("input.{row}")) }
}
