//! Direct calls to browser APIs.
//!
//! Each function has a counterpart on the server that returns an empty value, so that pages need no conditional
//! compilation: pages use these values only in effects, and effects do not run on the server. Only [`zone_offset`] works
//! on both sides, with the same result.

#[cfg(feature = "hydrate")]
pub use real::*;
#[cfg(not(feature = "hydrate"))]
pub use stub::*;

/// The name of the `<meta>` element that names the build of the browser side.
pub const BUILD_META: &str = "milvaion-build";
/// The lifetime of a cookie with a preference, in seconds: one year.
pub const PREFERENCE_SECONDS: u32 = 31_536_000;

/// A link to another address of this server, as followed by a plain click.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FollowedLink {
    /// The path and query.
    pub address: String,
    /// The fragment with its `#`; empty without one.
    pub fragment: String,
    /// True if the link needs a full page load.
    pub is_external: bool,
}

#[cfg(feature = "hydrate")]
mod real {
    use std::cell::{OnceCell, RefCell};

    use chrono::{DateTime, NaiveDate, Utc};
    use js_sys::{Array, Function, Object, Reflect};
    use leptos::prelude::{StoredValue, WithValue, document, on_cleanup, request_animation_frame, window};
    use wasm_bindgen::{JsCast, JsValue, closure::Closure};
    use web_sys::{
        Element, Event, EventInit, FocusOptions, FormData, HtmlAnchorElement, HtmlDialogElement, HtmlDocument,
        HtmlElement, HtmlFormElement, HtmlInputElement, HtmlOptionElement, HtmlSelectElement, HtmlTextAreaElement,
        MouseEvent, ScrollRestoration, Storage,
    };

    use super::{BUILD_META, FollowedLink, PREFERENCE_SECONDS};
    use crate::components::page_arrival::PAGE_TITLE_ID;

    /// Returns the browser's clock, in milliseconds since 1970.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "a browser's clock fits into 53 bits")]
    pub fn now_millis() -> i64 {
        js_sys::Date::now() as i64
    }

    /// Returns the browser's clock at which the first byte of this page arrived, in milliseconds since 1970.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "a browser's clock fits into 53 bits")]
    pub fn page_arrived_millis() -> i64 {
        window().performance().map_or_else(now_millis, |performance| performance.timing().response_start() as i64)
    }

    /// Returns the browser's clock at the request of this document, in milliseconds since 1970.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "a browser's clock fits into 53 bits")]
    pub fn requested_millis() -> i64 {
        window().performance().map_or_else(now_millis, |performance| performance.time_origin() as i64)
    }

    /// A zone and the function that formats an instant in it; none if the browser does not know the zone.
    type ZoneFormat = (String, Option<Function>);

    thread_local! {
        /// The IANA name of the user's zone.
        static OWN_ZONE: OnceCell<Option<String>> = const { OnceCell::new() };
        /// The last other zone, because its creation takes much longer than its use.
        static ZONE_FORMAT: RefCell<Option<ZoneFormat>> = const { RefCell::new(None) };
    }

    /// Returns the distance of a zone from UTC at an instant, in minutes; `None` if the browser does not know the zone.
    #[must_use]
    pub fn zone_offset(zone: &str, at: DateTime<Utc>) -> Option<i32> {
        #[expect(clippy::cast_precision_loss, reason = "milliseconds since 1970 fit into 53 bits")]
        let millis = JsValue::from_f64(at.timestamp_millis() as f64);
        if zone_name().as_deref() == Some(zone) {
            #[expect(clippy::cast_possible_truncation, reason = "a zone is at most a day away from UTC")]
            return Some(-js_sys::Date::new(&millis).get_timezone_offset() as i32);
        }
        let text = ZONE_FORMAT.with_borrow_mut(|last| {
            if last.as_ref().is_none_or(|(name, _)| name != zone) {
                *last = Some((zone.to_owned(), zone_format(zone)));
            }
            let (_, format) = last.as_ref()?;
            format.as_ref()?.call1(&JsValue::UNDEFINED, &millis).ok()?.as_string()
        })?;
        // `11/21/2026, 14:02:05`.
        let mut numbers = text.split(|c: char| !c.is_ascii_digit()).filter_map(|part| part.parse::<u32>().ok());
        let mut next = || numbers.next();
        let (month, day, year) = (next()?, next()?, next()?);
        let (hour, minute, second) = (next()?, next()?, next()?);
        let date = NaiveDate::from_ymd_opt(i32::try_from(year).ok()?, month, day)?;
        let local = date.and_hms_opt(hour, minute, second)?.and_utc();
        i32::try_from((local.timestamp() - at.timestamp()) / 60).ok()
    }

    /// Returns a function that formats an instant in a zone. The constructor is called by name, because it throws if the
    /// browser does not know the zone.
    fn zone_format(zone: &str) -> Option<Function> {
        let intl = Reflect::get(&js_sys::global(), &JsValue::from_str("Intl")).ok()?;
        let constructor: Function = Reflect::get(&intl, &JsValue::from_str("DateTimeFormat")).ok()?.dyn_into().ok()?;
        let options = Object::new();
        let parts = [
            ("timeZone", zone),
            ("hourCycle", "h23"),
            ("year", "numeric"),
            ("month", "2-digit"),
            ("day", "2-digit"),
            ("hour", "2-digit"),
            ("minute", "2-digit"),
            ("second", "2-digit"),
        ];
        for (name, value) in parts {
            Reflect::set(&options, &JsValue::from_str(name), &JsValue::from_str(value)).ok()?;
        }
        let arguments = Array::of2(&JsValue::from_str("en-US"), &options);
        let formatter = Reflect::construct(&constructor, &arguments).ok()?;
        Reflect::get(&formatter, &JsValue::from_str("format")).ok()?.dyn_into().ok()
    }

    /// Returns the IANA name of the user's zone.
    #[must_use]
    pub fn zone_name() -> Option<String> {
        let read = || {
            let options = js_sys::Intl::DateTimeFormat::new(&Array::new(), &Object::new()).resolved_options();
            Reflect::get(&options, &JsValue::from_str("timeZone")).ok()?.as_string()
        };
        OWN_ZONE.with(|zone| zone.get_or_init(read).clone())
    }

    /// Generates a unique idempotency key for a request that may be sent twice.
    #[must_use]
    pub fn random_key() -> String {
        format!(
            "{:x}-{:016x}-{:016x}",
            now_millis(),
            js_sys::Math::random().to_bits(),
            js_sys::Math::random().to_bits()
        )
    }

    fn html_document() -> Option<HtmlDocument> {
        document().dyn_into().ok()
    }

    /// Returns the value of a cookie.
    #[must_use]
    pub fn cookie(name: &str) -> Option<String> {
        let all = html_document()?.cookie().ok()?;
        all.split("; ").find_map(|pair| pair.strip_prefix(name)?.strip_prefix('=')).map(ToOwned::to_owned)
    }

    /// Stores a preference in a cookie for one year. The value must not contain `;` or secrets.
    pub fn set_cookie(name: &str, value: &str) {
        if let Some(document) = html_document() {
            // A browser that refuses cookies keeps the default, which needs no error.
            let _ = document.set_cookie(&format!("{name}={value}; Path=/; Max-Age={PREFERENCE_SECONDS}; SameSite=Lax"));
        }
    }

    /// Sets an attribute of the document's root element.
    pub fn set_root_attribute(name: &str, value: &str) {
        if let Some(root) = document().document_element() {
            let _ = root.set_attribute(name, value);
        }
    }

    /// Returns an attribute of the document's root element.
    #[must_use]
    pub fn root_attribute(name: &str) -> Option<String> {
        document().document_element()?.get_attribute(name)
    }

    /// Marks the document as scripted. The style sheet then shows the controls that need a script and hides their
    /// replacements.
    pub fn mark_scripted() {
        if let Some(root) = document().document_element() {
            let _ = root.class_list().add_1("js");
        }
    }

    /// Marks the page as hydrated, for tests and assistive scripts.
    pub fn mark_ready() {
        set_root_attribute("data-ready", "true");
    }

    /// Returns true if the page is in a hidden tab.
    #[must_use]
    pub fn is_hidden() -> bool {
        document().hidden()
    }

    /// Returns true if the browser reports a network connection.
    #[must_use]
    pub fn is_online() -> bool {
        window().navigator().on_line()
    }

    /// Returns the page's path and query, for use as `next` after signing in.
    #[must_use]
    pub fn current_path() -> String {
        let location = window().location();
        let path = location.pathname().unwrap_or_default();
        format!("{path}{}", location.search().unwrap_or_default())
    }

    /// Copies `text` and calls `done` with the result. The clipboard API exists only on secure pages, so a plain HTTP
    /// page falls back to a hidden text area.
    pub fn copy(text: String, done: impl Fn(bool) + 'static) {
        if window().is_secure_context() {
            let promise = window().navigator().clipboard().write_text(&text);
            leptos::task::spawn_local(async move {
                done(wasm_bindgen_futures::JsFuture::from(promise).await.is_ok());
            });
        } else {
            done(copy_by_selection(&text).unwrap_or(false));
        }
    }

    fn copy_by_selection(text: &str) -> Option<bool> {
        let document = html_document()?;
        let area: HtmlTextAreaElement = document.create_element("textarea").ok()?.dyn_into().ok()?;
        area.set_value(text);
        area.set_class_name("sr-only");
        let body = document.body()?;
        let before = document.active_element();
        body.append_child(&area).ok()?;
        area.select();
        let copied = document.exec_command("copy").unwrap_or(false);
        area.remove();
        if let Some(element) = before.and_then(|element| element.dyn_into::<HtmlElement>().ok()) {
            let _ = element.focus();
        }
        Some(copied)
    }

    /// Focuses the element with this id, if it exists.
    pub fn focus(id: &str) {
        if let Some(element) =
            document().get_element_by_id(id).and_then(|element| element.dyn_into::<HtmlElement>().ok())
        {
            let _ = element.focus();
        }
    }

    /// Focuses the element with this id, if it exists, without scrolling to it.
    pub fn focus_in_place(id: &str) {
        let element = document().get_element_by_id(id).and_then(|element| element.dyn_into::<HtmlElement>().ok());
        if let Some(element) = element {
            focus_element_in_place(&element);
        }
    }

    fn focus_element_in_place(element: &HtmlElement) {
        let options = FocusOptions::new();
        options.set_prevent_scroll(true);
        let _ = element.focus_with_options(&options);
    }

    /// The maximum number of elements that [`remember_focus`] remembers.
    const MAX_REMEMBERED_FOCUS: usize = 8;

    thread_local! {
        /// The elements that had the focus, the last one at the end.
        static REMEMBERED_FOCUS: RefCell<Vec<HtmlElement>> = const { RefCell::new(Vec::new()) };
    }

    /// Remembers the elements that receive the focus, for [`recover_focus`]. Ends with the current owner.
    pub fn remember_focus() {
        on_capture("focusin", |event| {
            let target = event.target().and_then(|target| target.dyn_into::<HtmlElement>().ok());
            let Some(element) = target else { return };
            REMEMBERED_FOCUS.with_borrow_mut(|remembered| {
                remembered.retain(|other| *other != element && other.is_connected());
                if remembered.len() >= MAX_REMEMBERED_FOCUS {
                    remembered.remove(0);
                }
                remembered.push(element);
            });
        });
    }

    /// Moves the focus if its element has left the page or is hidden: back to the last element that had it before and is
    /// still shown, or else to the heading of the page.
    pub fn recover_focus() {
        let focused = document().active_element().and_then(|element| element.dyn_into::<HtmlElement>().ok());
        if focused.is_some_and(|element| element.tag_name() != "BODY" && is_shown(&element)) {
            return;
        }
        let before = REMEMBERED_FOCUS
            .with_borrow(|remembered| remembered.iter().rev().find(|element| is_shown(element)).cloned());
        match before {
            Some(element) => focus_element_in_place(&element),
            None => focus_in_place(PAGE_TITLE_ID),
        }
    }

    /// Returns true if the element with this id, or one in it, has the focus, or had it last and no other has it now: a
    /// browser takes the focus from an element as soon as it is hidden.
    #[must_use]
    pub fn had_focus(id: &str) -> bool {
        let document = document();
        let Some(element) = document.get_element_by_id(id) else { return false };
        let is_in = |focused: &Element| element.contains(Some(focused));
        if document.active_element().is_some_and(|focused| focused.tag_name() != "BODY" && !is_in(&focused)) {
            return false;
        }
        REMEMBERED_FOCUS.with_borrow(|remembered| remembered.last().is_some_and(|last| is_in(last)))
    }

    /// Keeps the focus in the page while the control that has it disappears because of its use: recovers it after the
    /// page is drawn. Without a focus it does nothing, because a click gives a button no focus in every browser.
    pub fn keep_focus() {
        if has_focus() {
            request_animation_frame(recover_focus);
        }
    }

    /// Returns true if the element is in the page and not hidden.
    fn is_shown(element: &HtmlElement) -> bool {
        element.offset_width() > 0
    }

    /// Returns true if an element of the page has the focus.
    #[must_use]
    pub fn has_focus() -> bool {
        document().active_element().is_some_and(|element| element.tag_name() != "BODY")
    }

    /// Sets the value of the text field or area with this id, and reports it to the form like typed text.
    pub fn type_value(id: &str, value: &str) {
        let Some(control) = document().get_element_by_id(id) else { return };
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

    /// Returns true if the focus, a pressed pointer or a text selection is inside the element with this id.
    #[must_use]
    pub fn is_busy_in(id: &str) -> bool {
        let document = document();
        let Some(element) = document.get_element_by_id(id) else { return false };
        if element.matches(":active").unwrap_or(false) {
            return true;
        }
        if document.active_element().is_some_and(|focused| element.contains(Some(&focused))) {
            return true;
        }
        let Ok(Some(selection)) = window().get_selection() else { return false };
        !selection.is_collapsed() && selection.anchor_node().is_some_and(|node| element.contains(Some(&node)))
    }

    /// Returns true if the pointer is over the element with this id.
    #[must_use]
    pub fn is_pointer_in(id: &str) -> bool {
        document().query_selector(&format!("#{id}:hover")).ok().flatten().is_some()
    }

    /// Returns the page's vertical scroll position, in CSS pixels.
    #[must_use]
    pub fn scroll_offset() -> f64 {
        window().scroll_y().unwrap_or(0.0)
    }

    /// Scrolls the page to this vertical position, in CSS pixels, or as far as its height allows.
    pub fn scroll_to(offset: u32) {
        window().scroll_to_with_x_and_y(0.0, f64::from(offset));
    }

    /// Returns true if the document and everything that it refers to are loaded.
    #[must_use]
    pub fn is_loaded() -> bool {
        document().ready_state() == "complete"
    }

    /// Turns off the browser's own restoration of scroll positions, or on again.
    pub fn restore_scroll_by_script(is_by_script: bool) {
        if let Ok(history) = window().history() {
            let mode = if is_by_script { ScrollRestoration::Manual } else { ScrollRestoration::Auto };
            let _ = history.set_scroll_restoration(mode);
        }
    }

    /// Returns true if the browser's own restoration of scroll positions is off for this entry of the history.
    #[must_use]
    pub fn is_scroll_restored_by_script() -> bool {
        window().history().and_then(|history| history.scroll_restoration()) == Ok(ScrollRestoration::Manual)
    }

    /// Returns the id of the heading of the list that a click on a pager's link changes, which is `default` unless the
    /// pager names another; `None` for other clicks.
    #[must_use]
    pub fn list_heading(event: &Event, default: &str) -> Option<String> {
        let link = event.target()?.dyn_into::<Element>().ok()?.closest(".pager a[href]").ok()??;
        let pager = link.closest(".pager").ok()??;
        Some(pager.get_attribute("data-heading").unwrap_or_else(|| default.to_owned()))
    }

    /// Calls `listener` for every event of this name on the page, before any other listener receives it. Ends with the
    /// current owner.
    pub fn on_capture(name: &'static str, listener: impl Fn(Event) + 'static) {
        let listener = StoredValue::new_local(Closure::<dyn Fn(Event)>::new(listener));
        let of = |change: &dyn Fn(&js_sys::Function)| {
            let _ = listener.try_with_value(|listener| change(listener.as_ref().unchecked_ref()));
        };
        of(&|function| {
            let _ = window().add_event_listener_with_callback_and_bool(name, function, true);
        });
        on_cleanup(move || {
            let _ = listener.try_with_value(|listener| {
                window().remove_event_listener_with_callback_and_bool(name, listener.as_ref().unchecked_ref(), true)
            });
        });
    }

    /// Returns the link that a click is about to follow in this tab; `None` for other clicks and other sites.
    #[must_use]
    pub fn followed_link(event: &Event) -> Option<FollowedLink> {
        let click = event.dyn_ref::<MouseEvent>()?;
        if click.button() != 0 || click.meta_key() || click.alt_key() || click.ctrl_key() || click.shift_key() {
            return None;
        }
        let link = click.target()?.dyn_into::<Element>().ok()?.closest("a[href]").ok()??;
        let link = link.dyn_into::<HtmlAnchorElement>().ok()?;
        let is_here = matches!(link.target().as_str(), "" | "_self") && !link.has_attribute("download");
        if !is_here || window().location().origin().ok()? != link.origin() {
            return None;
        }
        Some(FollowedLink {
            address: format!("{}{}", link.pathname(), link.search()),
            fragment: link.hash(),
            is_external: link.rel().split(' ').any(|word| word == "external"),
        })
    }

    /// Loads an address of this server.
    pub fn load(address: &str) {
        // `assign` fails only for an invalid address, and this one comes from a link.
        let _ = window().location().assign(address);
    }

    /// Loads the page again.
    pub fn reload() {
        // Fails only in a sandboxed frame.
        let _ = window().location().reload();
    }

    /// Returns the name of the build that this page belongs to.
    #[must_use]
    pub fn page_build() -> Option<String> {
        document().query_selector(&format!("meta[name={BUILD_META}]")).ok()??.get_attribute("content")
    }

    /// Adds an entry for `address` to the browser's history without loading it.
    pub fn push_address(address: &str) {
        if let Ok(history) = window().history() {
            let _ = history.push_state_with_url(&JsValue::NULL, "", Some(address));
        }
    }

    /// Goes back by one entry of the browser's history.
    pub fn go_back() {
        if let Ok(history) = window().history() {
            let _ = history.back();
        }
    }

    /// Returns true if a dialog is open.
    #[must_use]
    pub fn is_dialog_open() -> bool {
        document().query_selector("dialog[open]").ok().flatten().is_some()
    }

    /// Closes every open dialog.
    pub fn close_dialogs() {
        for dialog in all::<HtmlDialogElement>("dialog[open]") {
            dialog.close();
        }
    }

    /// Returns the value of the checked radio button of this name.
    #[must_use]
    pub fn checked_value(name: &str) -> Option<String> {
        let found = document().query_selector(&format!("input[name=\"{name}\"]:checked")).ok()??;
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
        if let Some(input) =
            document().get_element_by_id(id).and_then(|input| input.dyn_into::<HtmlInputElement>().ok())
        {
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

    fn all<T: JsCast>(selector: &str) -> Vec<T> {
        let Ok(found) = document().query_selector_all(selector) else { return Vec::new() };
        (0..found.length()).filter_map(|at| found.item(at)?.dyn_into::<T>().ok()).collect()
    }

    fn session_storage() -> Option<Storage> {
        window().session_storage().ok().flatten()
    }

    /// Returns an item of this tab's storage.
    #[must_use]
    pub fn tab_item(key: &str) -> Option<String> {
        session_storage()?.get_item(key).ok().flatten()
    }

    /// Stores an item until the tab is closed. A browser without storage or space stores nothing.
    pub fn set_tab_item(key: &str, value: &str) {
        if let Some(storage) = session_storage() {
            let _ = storage.set_item(key, value);
        }
    }

    /// Removes an item of this tab's storage.
    pub fn remove_tab_item(key: &str) {
        if let Some(storage) = session_storage() {
            let _ = storage.remove_item(key);
        }
    }
}

#[cfg(not(feature = "hydrate"))]
mod stub {
    use chrono::{DateTime, Offset, Utc};
    use leptos::web_sys::{Event, HtmlFormElement};
    use milvaion_schedule::schedule::parse_zone;

    use super::FollowedLink;

    /// Returns 0; the server does not use the browser's clock.
    #[must_use]
    pub const fn now_millis() -> i64 {
        0
    }

    /// Returns 0; the server does not use the browser's clock.
    #[must_use]
    pub const fn page_arrived_millis() -> i64 {
        0
    }

    /// Returns 0; the server does not use the browser's clock.
    #[must_use]
    pub const fn requested_millis() -> i64 {
        0
    }

    /// Returns the distance of a zone from UTC at an instant, in minutes; `None` if there is no such zone. The result is
    /// the browser's, because hydration must find the same text.
    #[must_use]
    pub fn zone_offset(zone: &str, at: DateTime<Utc>) -> Option<i32> {
        let local = at.with_timezone(&parse_zone(zone).ok()?);
        Some(local.offset().fix().local_minus_utc() / 60)
    }

    /// Returns `None`; the server reads the cookie `zone` instead.
    #[must_use]
    pub const fn zone_name() -> Option<String> {
        None
    }

    /// Returns `None`; the server reads the request instead.
    #[must_use]
    pub const fn cookie(_name: &str) -> Option<String> {
        None
    }

    /// Returns an empty key; the browser sends a plain form once.
    #[must_use]
    pub const fn random_key() -> String {
        String::new()
    }

    /// Does nothing on the server.
    pub const fn set_cookie(_name: &str, _value: &str) {}

    /// Does nothing on the server.
    pub const fn set_root_attribute(_name: &str, _value: &str) {}

    /// Returns `None`; the server writes the document.
    #[must_use]
    pub const fn root_attribute(_name: &str) -> Option<String> {
        None
    }

    /// Does nothing on the server.
    pub const fn mark_scripted() {}

    /// Does nothing on the server.
    pub const fn mark_ready() {}

    /// Returns false; a page being rendered is not hidden.
    #[must_use]
    pub const fn is_hidden() -> bool {
        false
    }

    /// Returns true; the server is always connected.
    #[must_use]
    pub const fn is_online() -> bool {
        true
    }

    /// Returns an empty path; the server knows the address from the request.
    #[must_use]
    pub const fn current_path() -> String {
        String::new()
    }

    /// Does nothing on the server.
    pub fn copy(_text: String, _done: impl Fn(bool) + 'static) {}

    /// Does nothing on the server.
    pub const fn focus(_id: &str) {}

    /// Does nothing on the server.
    pub const fn focus_in_place(_id: &str) {}

    /// Does nothing on the server.
    pub const fn remember_focus() {}

    /// Does nothing on the server.
    pub const fn recover_focus() {}

    /// Returns false; a page being rendered has no focus.
    #[must_use]
    pub const fn had_focus(_id: &str) -> bool {
        false
    }

    /// Does nothing on the server.
    pub const fn keep_focus() {}

    /// Returns false; a page being rendered has no focus.
    #[must_use]
    pub const fn has_focus() -> bool {
        false
    }

    /// Does nothing on the server.
    pub const fn type_value(_id: &str, _value: &str) {}

    /// Returns false; a page being rendered has no focus.
    #[must_use]
    pub const fn is_busy_in(_id: &str) -> bool {
        false
    }

    /// Returns false; a page being rendered has no pointer.
    #[must_use]
    pub const fn is_pointer_in(_id: &str) -> bool {
        false
    }

    /// Returns 0; a page being rendered is not scrolled.
    #[must_use]
    pub const fn scroll_offset() -> f64 {
        0.0
    }

    /// Does nothing on the server.
    pub const fn scroll_to(_offset: u32) {}

    /// Returns false; a page being rendered is not loaded.
    #[must_use]
    pub const fn is_loaded() -> bool {
        false
    }

    /// Returns false; a page being rendered is not scrolled.
    #[must_use]
    pub const fn is_scroll_restored_by_script() -> bool {
        false
    }

    /// Does nothing on the server.
    pub const fn restore_scroll_by_script(_is_by_script: bool) {}

    /// Returns `None`; a page being rendered receives no clicks.
    #[must_use]
    pub const fn list_heading(_event: &Event, _default: &str) -> Option<String> {
        None
    }

    /// Does nothing on the server.
    pub fn on_capture(_name: &'static str, _listener: impl Fn(Event) + 'static) {}

    /// Returns `None`; a page being rendered receives no clicks.
    #[must_use]
    pub const fn followed_link(_event: &Event) -> Option<FollowedLink> {
        None
    }

    /// Does nothing on the server.
    pub const fn load(_address: &str) {}

    /// Does nothing on the server.
    pub const fn reload() {}

    /// Returns `None`; a page being rendered has no document.
    #[must_use]
    pub const fn page_build() -> Option<String> {
        None
    }

    /// Does nothing on the server.
    pub const fn push_address(_address: &str) {}

    /// Does nothing on the server.
    pub const fn go_back() {}

    /// Returns false; a page being rendered has no open dialog.
    #[must_use]
    pub const fn is_dialog_open() -> bool {
        false
    }

    /// Does nothing on the server.
    pub const fn close_dialogs() {}

    /// Returns `None`; a page being rendered has no choices yet.
    #[must_use]
    pub const fn checked_value(_name: &str) -> Option<String> {
        None
    }

    /// Does nothing on the server.
    pub const fn check_radio(_name: &str, _value: &str) {}

    /// Does nothing on the server.
    pub const fn set_checked(_id: &str, _is_checked: bool) {}

    /// Returns false; a page being rendered receives no input.
    #[must_use]
    pub const fn is_in_guarded_form(_event: &Event) -> bool {
        false
    }

    /// Returns false; a page being rendered receives no input.
    #[must_use]
    pub const fn has_changed_form() -> bool {
        false
    }

    /// Does nothing on the server.
    pub const fn reset_guarded_forms() {}

    /// Returns false; a page being rendered receives no input.
    #[must_use]
    pub const fn differs_from_defaults(_form: &HtmlFormElement) -> bool {
        false
    }

    /// Returns `None`; a page being rendered has no controls.
    #[must_use]
    pub const fn form_value(_form: &HtmlFormElement, _name: &str) -> Option<String> {
        None
    }

    /// Does nothing on the server.
    pub const fn set_form_values(_form: &HtmlFormElement, _values: &[(&'static str, String)]) {}

    /// Returns `None`; the server has no tab.
    #[must_use]
    pub const fn tab_item(_key: &str) -> Option<String> {
        None
    }

    /// Does nothing on the server.
    pub const fn set_tab_item(_key: &str, _value: &str) {}

    /// Does nothing on the server.
    pub const fn remove_tab_item(_key: &str) {}
}
