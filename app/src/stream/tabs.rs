//! The browser's means by which tabs share one stream: a lock, a channel, and the storage of one tab.
//!
//! The lock is a [Web Lock](https://developer.mozilla.org/docs/Web/API/Web_Locks_API). The browser releases it when its
//! tab closes or crashes, and grants it to the next tab that waits. Its bindings in `web-sys` are unstable, so it is
//! called by name.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
};

use js_sys::{Function, Object, Promise, Reflect};
use leptos::{
    prelude::{document, window},
    task::spawn_local,
};
use wasm_bindgen::{JsCast, JsValue, closure::Closure};
use wasm_bindgen_futures::JsFuture;
use web_sys::{AbortController, BroadcastChannel, MessageEvent};

use crate::live::POSITION_META;

/// The entry of the tab's storage that remembers a pause.
const PAUSED_KEY: &str = "live-paused";

/// Returns the browser's locks, which exist only on a secure page: over TLS or on this machine.
fn lock_manager() -> Option<JsValue> {
    let locks = Reflect::get(&window().navigator(), &JsValue::from_str("locks")).ok()?;
    (!locks.is_undefined() && !locks.is_null()).then_some(locks)
}

/// A lock that is held or waited for. Dropping it releases it.
pub(super) struct TabLock {
    abort: AbortController,
    release: Rc<RefCell<Option<Function>>>,
    is_dropped: Rc<Cell<bool>>,
}

impl TabLock {
    /// Waits for the lock `name`, and calls `granted` once it is held. Returns `None` if the browser has no locks here.
    pub(super) fn request(name: &str, granted: impl FnOnce() + 'static) -> Option<Self> {
        let locks = lock_manager()?;
        let request: Function = Reflect::get(&locks, &JsValue::from_str("request")).ok()?.dyn_into().ok()?;
        let abort = AbortController::new().ok()?;
        let options = Object::new();
        Reflect::set(&options, &JsValue::from_str("signal"), &abort.signal()).ok()?;
        let lock = Self { abort, release: Rc::default(), is_dropped: Rc::default() };
        let (release, is_dropped) = (lock.release.clone(), lock.is_dropped.clone());
        let callback = Closure::once_into_js(move |_lock: JsValue| -> JsValue {
            if is_dropped.get() {
                return JsValue::UNDEFINED;
            }
            // The lock is held until this promise is resolved.
            let held = Promise::new(&mut |resolve, _| *release.borrow_mut() = Some(resolve));
            granted();
            held.into()
        });
        let result = request.call3(&locks, &JsValue::from_str(name), &options, &callback).ok()?;
        let result: Promise = result.dyn_into().ok()?;
        // An aborted request fails, which must not appear as an unhandled error.
        spawn_local(async move {
            let _ = JsFuture::from(result).await;
        });
        Some(lock)
    }
}

impl Drop for TabLock {
    fn drop(&mut self) {
        self.is_dropped.set(true);
        match self.release.borrow_mut().take() {
            // Fails only if the value is not a function.
            Some(release) => drop(release.call0(&JsValue::UNDEFINED)),
            None => self.abort.abort(),
        }
    }
}

/// The channel to the other tabs. Dropping it closes it.
pub(super) struct TabChannel {
    channel: BroadcastChannel,
    _message: Closure<dyn FnMut(MessageEvent)>,
}

impl TabChannel {
    /// Opens the channel `name`, and calls `received` with each message of another tab. Returns `None` if the browser
    /// cannot share a stream here.
    pub(super) fn open(name: &str, received: impl Fn(String) + 'static) -> Option<Self> {
        lock_manager()?;
        let channel = BroadcastChannel::new(name).ok()?;
        let message = Closure::<dyn FnMut(MessageEvent)>::new(move |event: MessageEvent| {
            if let Some(text) = event.data().as_string() {
                received(text);
            }
        });
        channel.set_onmessage(Some(message.as_ref().unchecked_ref()));
        Some(Self { channel, _message: message })
    }

    /// Sends a message to all other tabs.
    pub(super) fn send(&self, text: &str) {
        // Fails only if the channel is closed.
        let _ = self.channel.post_message(&JsValue::from_str(text));
    }
}

impl Drop for TabChannel {
    fn drop(&mut self) {
        self.channel.set_onmessage(None);
        self.channel.close();
    }
}

/// Returns true if the user has paused live updates in this tab.
pub(super) fn remembered_pause() -> bool {
    let storage = window().session_storage().ok().flatten();
    storage.is_some_and(|storage| matches!(storage.get_item(PAUSED_KEY), Ok(Some(_))))
}

/// Remembers for this tab whether live updates are paused.
pub(super) fn remember_pause(is_paused: bool) {
    let Ok(Some(storage)) = window().session_storage() else { return };
    // A browser that refuses storage forgets the pause with the page.
    let _ = if is_paused { storage.set_item(PAUSED_KEY, "true") } else { storage.remove_item(PAUSED_KEY) };
}

/// Returns the position of the stream at which the document was read; `None` if the server knew none.
pub(super) fn document_position() -> Option<String> {
    let selector = format!("meta[name={POSITION_META}]");
    let meta = document().query_selector(&selector).ok().flatten()?;
    meta.get_attribute("content").filter(|position| !position.is_empty())
}

/// Returns true while a dialog is open or a row of a list is selected.
pub(super) fn has_open_dialog_or_selection() -> bool {
    let selector = "dialog[open], input[name='ids[]']:checked";
    matches!(document().query_selector(selector), Ok(Some(_)))
}
