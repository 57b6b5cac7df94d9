//! A time zone by its IANA name, with every name there is to choose from.

use leptos::prelude::*;

use super::{
    form::{FormField, described_by},
    input_form::{FormState, control_id, control_name},
};

/// The field `zone` of a form.
#[component]
pub fn ZoneField(
    /// The form it is in.
    state: FormState,
    /// What it is for.
    hint: &'static str,
    /// What stands in it at first.
    value: String,
    /// Every zone name.
    zones: Vec<String>,
) -> impl IntoView {
    let error = state.error("zone");
    view! {
        <FormField id=control_id("zone") label="Time zone" hint error>
            <input
                type="text"
                id=control_id("zone")
                name=control_name("zone")
                value=value
                list="zones"
                autocomplete="off"
                spellcheck="false"
                aria-describedby=described_by("f-zone")
                aria-invalid=move || error.get().is_some().then_some("true")
            />
        </FormField>
        // Six hundred options as one piece of HTML: as nodes of ours they would each be walked at the start.
        <datalist id="zones" inner_html=options(&zones)></datalist>
    }
}

/// The zones as options. A name that is more than letters, digits and the signs zones are written with is left out, so
/// that none can be HTML.
fn options(zones: &[String]) -> String {
    let is_plain = |zone: &&String| zone.bytes().all(|b| b.is_ascii_alphanumeric() || b"/_+-".contains(&b));
    zones.iter().filter(is_plain).map(|zone| format!("<option value=\"{zone}\"></option>")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_zone_cannot_be_html() {
        let zones = ["Europe/Warsaw".to_owned(), "Etc/GMT+3".to_owned(), "\"><script>".to_owned()];
        assert_eq!(options(&zones), "<option value=\"Europe/Warsaw\"></option><option value=\"Etc/GMT+3\"></option>");
    }
}
