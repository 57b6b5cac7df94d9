//! The preferences of this browser: one plain form, which a script takes over.
//!
//! The server stores them in cookies, so that it renders the next page accordingly. A script then applies them to the
//! open page too. A change by a button of the top bar shows in the form.

use leptos::{ev, prelude::*, server_fn::ServerFn, task::spawn_local};

use crate::{
    api::{
        account::{PREFERENCES_NOTICE, PreferencesForm, SavePreferences, save_preferences},
        session::FlashView,
    },
    browser,
    components::{
        form::{ErrorSummary, FieldErrorText, described_by},
        input_form::{FormState, control_id, control_name, summary_entries},
        preferences::SharedPreferences,
        radio_field::RadioField,
        time::use_page_clock,
        toast::{ToastKind, toasts},
        zone_field::ZoneField,
    },
    error::AppError,
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
    let toasts = toasts();
    let clock = use_page_clock();
    let shared = SharedPreferences::current();
    let state = FormState::new(flash.problems());
    let is_busy = RwSignal::new(false);
    let save = move |event: ev::SubmitEvent| {
        event.prevent_default();
        let Some(SavePreferences { form }) = state.read::<SavePreferences>() else { return };
        if is_busy.get_untracked() {
            return;
        }
        is_busy.set(true);
        spawn_local(async move {
            let answer = save_preferences(form).await;
            let _ = is_busy.try_set(false);
            let errors = answer.as_ref().err().map(AppError::problems).unwrap_or_default();
            let is_refused = !errors.is_empty();
            let _ = state.shows_all.try_set(is_refused);
            let _ = state.errors.try_set(errors);
            if is_refused {
                request_animation_frame(|| browser::focus(SUMMARY_ID));
                return;
            }
            // The response has stored the cookies.
            shared.read();
            clock.read_preferences();
            toasts.show(ToastKind::Success, PREFERENCES_NOTICE);
        });
    };
    let theme = RwSignal::new(form.theme.clone());
    let zone_mode = RwSignal::new(form.zone_mode.clone());
    follow_top_bar(shared, theme, zone_mode);
    let errors = Signal::derive(move || {
        let shown = if state.shows_all.get() { state.errors.get() } else { Vec::new() };
        summary_entries(&shown)
    });
    let shortcuts_error = state.error("shortcuts");
    let shortcuts = control_id("shortcuts");
    view! {
        <section class="card" id="preferences" aria-labelledby="preferences-heading">
            <h2 class="card-title" id="preferences-heading">"Preferences"</h2>
            <p class="muted">
                "They belong to this browser: they are stored in its cookies for one year, and other devices keep their own."
            </p>
            <form method="post" action=SavePreferences::PATH class="form" node_ref=state.node on:submit=save>
                <ErrorSummary id=SUMMARY_ID errors/>
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
                <div class="field" class:has-error=move || shortcuts_error.get().is_some()>
                    <label class="check">
                        <input
                            type="checkbox"
                            id=shortcuts.clone()
                            name=control_name("shortcuts")
                            value="on"
                            checked=form.shortcuts == "on"
                            aria-describedby=described_by(&shortcuts)
                            aria-invalid=move || shortcuts_error.get().is_some().then_some("true")
                        />
                        <span>"Enable keyboard shortcuts"</span>
                    </label>
                    <p class="hint" id=format!("{shortcuts}-hint")>
                        "Shortcuts are single keys, such as ? for the list of all. Turn them off if you use voice control."
                    </p>
                    <FieldErrorText id=format!("{shortcuts}-error") error=shortcuts_error/>
                </div>
                <div class="form-actions">
                    <button type="submit" class="btn btn-primary" aria-disabled=move || is_busy.get().then_some("true")>
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
