//! The preferences of this browser: one plain form, which a script takes over.
//!
//! The server stores them in cookies, so that it renders the next page accordingly. A script then applies them to the
//! open page too. A change by a button of the top bar shows in the form.

use leptos::{ev, prelude::*, server_fn::ServerFn};

use crate::{
    api::{
        account::{PREFERENCES_NOTICE, PreferencesForm, SavePreferences, save_preferences},
        session::FlashView,
    },
    browser,
    components::{
        action::{ErrorPlace, UserAction},
        check_field::CheckField,
        form::ErrorSummary,
        input_form::{FormState, control_id, control_name},
        preferences::SharedPreferences,
        radio_field::RadioField,
        time::use_page_clock,
        zone_field::ZoneField,
    },
};

/// The id of the list of errors above the form.
const SUMMARY_ID: &str = "preferences-errors";

/// The section *Preferences*.
#[component]
pub fn PreferencesSection(
    /// The values of the fields.
    form: PreferencesForm,
    /// Every zone name.
    zones: Vec<String>,
    /// The result of a plain post of this form.
    flash: FlashView,
) -> impl IntoView {
    let clock = use_page_clock();
    let shared = SharedPreferences::current();
    let state = FormState::new(flash.problems());
    // Only a save finds errors.
    state.shows_all.set(true);
    let action = UserAction::new(ErrorPlace::Fields(state.errors));
    let save = move |event: ev::SubmitEvent| {
        event.prevent_default();
        let Some(SavePreferences { form }) = state.read::<SavePreferences>() else { return };
        action.run(async move {
            let answer = save_preferences(form).await;
            answer.inspect_err(|_| browser::focus_on_next_frame(SUMMARY_ID))?;
            // The response has stored the cookies.
            shared.read();
            clock.read_preferences();
            Ok(Some(PREFERENCES_NOTICE.to_owned()))
        });
    };
    let theme = RwSignal::new(form.theme.clone());
    let zone_mode = RwSignal::new(form.zone_mode.clone());
    follow_top_bar(shared, theme, zone_mode);
    view! {
        <section class="card" id="preferences" aria-labelledby="preferences-heading">
            <h2 class="card-title" id="preferences-heading">"Preferences"</h2>
            <p class="muted">
                "They belong to this browser: they are stored in its cookies for one year, and other devices keep their own."
            </p>
            <form method="post" action=SavePreferences::PATH class="form" node_ref=state.node on:submit=save>
                <ErrorSummary id=SUMMARY_ID errors=state.listed_errors()/>
                <RadioField
                    state
                    field="theme"
                    label="Theme"
                    options=vec![("system", "As the operating system"), ("light", "Light"), ("dark", "Dark")]
                    chosen=theme
                />
                <RadioField
                    state
                    field="zone_mode"
                    label="Zone of times"
                    options=vec![
                        ("local", "The zone of this browser"),
                        ("utc", "UTC"),
                        ("chosen", "The time zone below"),
                    ]
                    chosen=zone_mode
                />
                <ZoneField
                    state
                    hint="An IANA name such as Europe/Warsaw, for times in another zone than that of this browser."
                    value=form.zone
                    zones
                />
                <RadioField
                    state
                    field="time_style"
                    label="Style of times"
                    hint="Without scripts, all times are exact."
                    options=vec![
                        ("relative", "Relative, such as 5 min ago, with the exact time as a tooltip"),
                        ("exact", "Always exact"),
                    ]
                    chosen=RwSignal::new(form.time_style)
                />
                <RadioField
                    state
                    field="clock"
                    label="Clock"
                    hint="Schedules are always written with 24 hours."
                    options=vec![("24", "24 hours, such as 14:02:05"), ("12", "12 hours, such as 02:02:05 PM")]
                    chosen=RwSignal::new(form.clock)
                />
                <CheckField
                    field="shortcuts"
                    label="Enable keyboard shortcuts"
                    hint="Shortcuts are single keys, such as ? for the list of all. Turn them off if you use voice control."
                    checked=form.shortcuts == "on"
                    error=state.error("shortcuts")
                />
                <div class="form-actions">
                    <button type="submit" class="btn btn-primary" aria-disabled=move || action.disabled()>
                        "Save preferences"
                    </button>
                </div>
            </form>
        </section>
    }
}

/// Selects the theme, the zone and the switch of the shortcuts in the form after a change outside of it.
fn follow_top_bar(shared: SharedPreferences, theme: RwSignal<String>, zone_mode: RwSignal<String>) {
    let clock = use_page_clock();
    let select = move |field: &str, value: &str, chosen: RwSignal<String>| {
        chosen.set(value.to_owned());
        browser::check_radio(&control_name(field), value);
    };
    Effect::new(move |before: Option<&'static str>| {
        let now = shared.theme().slug();
        if before.is_some_and(|before| before != now) {
            untrack(|| select("theme", now, theme));
        }
        now
    });
    Effect::new(move |before: Option<&'static str>| {
        let now = match (clock.is_utc(), clock.is_chosen_zone()) {
            (true, _) => "utc",
            (false, true) => "chosen",
            (false, false) => "local",
        };
        // The first zone of a new browser replaces UTC after hydration. It is not a choice of the user.
        if before.is_some_and(|before| before != now) {
            untrack(|| select("zone_mode", now, zone_mode));
        }
        now
    });
    Effect::new(move |before: Option<bool>| {
        let now = shared.has_shortcuts();
        if before.is_some_and(|before| before != now) {
            browser::set_checked(&control_id("shortcuts"), now);
        }
        now
    });
}
