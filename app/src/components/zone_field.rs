//! A text field for an IANA time zone, with all zone names as suggestions.

use leptos::prelude::*;

use super::{
    fields::InputField,
    input_form::{FormState, control_id, control_name},
};

/// The field `zone` of a form.
#[component]
pub fn ZoneField(
    /// The state of the enclosing form.
    state: FormState,
    /// Help text below the label.
    hint: &'static str,
    /// The initial value.
    value: String,
    /// Every zone name.
    zones: Vec<String>,
) -> impl IntoView {
    view! {
        <InputField
            id=control_id("zone")
            name=control_name("zone")
            label="Time zone"
            hint
            value
            error=state.error("zone")
            list="zones"
        />
        // Six hundred options as one piece of HTML, because hydration would otherwise visit each as a node.
        <datalist id="zones" inner_html=options(&zones)></datalist>
    }
}

/// Renders the zones as options. Names with other characters than letters, digits and `/_+-` are omitted, so that no
/// name can inject HTML.
fn options(zones: &[String]) -> String {
    let is_plain = |zone: &&String| zone.bytes().all(|b| b.is_ascii_alphanumeric() || b"/_+-".contains(&b));
    zones.iter().filter(is_plain).map(|zone| format!("<option value=\"{zone}\"></option>")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zone_names_cannot_inject_html() {
        let zones = ["Europe/Warsaw".to_owned(), "Etc/GMT+3".to_owned(), "\"><script>".to_owned()];
        assert_eq!(options(&zones), "<option value=\"Europe/Warsaw\"></option><option value=\"Etc/GMT+3\"></option>");
    }
}
