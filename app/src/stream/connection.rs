//! The connection to the server's event stream.

use wasm_bindgen::{JsCast, closure::Closure};
use web_sys::{EventSource, MessageEvent};

use crate::live::tab_message::{FrameKind, StreamFrame};

/// The path of the server's event stream.
const EVENTS_PATH: &str = "/events";

/// An open connection. Dropping it closes it.
pub(super) struct EventConnection {
    source: EventSource,
    _open: Closure<dyn FnMut()>,
    _error: Closure<dyn FnMut()>,
    frames: Vec<(FrameKind, Closure<dyn FnMut(MessageEvent)>)>,
}

impl EventConnection {
    /// Opens a connection. `query` is empty or starts with `?`.
    pub(super) fn open(
        query: &str,
        opened: impl Fn() + 'static,
        failed: impl Fn() + 'static,
        received: impl Fn(StreamFrame) + Clone + 'static,
    ) -> Option<Self> {
        let source = EventSource::new(&format!("{EVENTS_PATH}{query}")).ok()?;
        let open = Closure::<dyn FnMut()>::new(opened);
        let error = Closure::<dyn FnMut()>::new(failed);
        source.set_onopen(Some(open.as_ref().unchecked_ref()));
        source.set_onerror(Some(error.as_ref().unchecked_ref()));
        let mut frames = Vec::new();
        for kind in FrameKind::ALL {
            let received = received.clone();
            let handler = Closure::<dyn FnMut(MessageEvent)>::new(move |event: MessageEvent| {
                let data = event.data().as_string().unwrap_or_default();
                received(StreamFrame { kind, id: event.last_event_id(), data });
            });
            // Fails only if the handler is not a function.
            let _ = source.add_event_listener_with_callback(kind.event_name(), handler.as_ref().unchecked_ref());
            frames.push((kind, handler));
        }
        Some(Self { source, _open: open, _error: error, frames })
    }

    /// Returns true if the browser no longer reconnects by itself.
    pub(super) fn is_closed(&self) -> bool {
        self.source.ready_state() == EventSource::CLOSED
    }
}

impl Drop for EventConnection {
    fn drop(&mut self) {
        self.source.set_onopen(None);
        self.source.set_onerror(None);
        for (kind, handler) in &self.frames {
            let _ =
                self.source.remove_event_listener_with_callback(kind.event_name(), handler.as_ref().unchecked_ref());
        }
        self.source.close();
    }
}
