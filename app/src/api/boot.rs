//! What the layout shows of the user and of the cluster.
//!
//! The server reads it before it renders a page and writes it into the document, from which the browser takes it. Both
//! sides therefore know it when they render the layout, which waits for nothing.

use milvaion_api::views::{ClusterStatus, CurrentUser};
use serde::{Deserialize, Serialize};

use super::session::FlashView;
use crate::error::AppError;

/// The name of the `<meta>` element that has the data as JSON.
pub const BOOT_META: &str = "milvaion-boot";

/// The data of the layout.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Boot {
    /// The signed-in user, if any.
    pub me: Option<CurrentUser>,
    /// The error if the user could not be determined.
    pub error: Option<AppError>,
    /// The state of the cluster; `None` if it could not be read.
    pub cluster: Option<ClusterStatus>,
    /// The message that a plain form stored for the page.
    pub flash: Option<FlashView>,
    /// The newest event of the stream before the data was read. It has an element of its own in the document.
    #[serde(skip)]
    pub position: Option<String>,
}

impl Boot {
    /// Takes the data. A request has it if it is for a page inside the layout. A document has it once, because later it
    /// would be outdated.
    #[must_use]
    pub fn take() -> Option<Self> {
        #[cfg(feature = "ssr")]
        {
            super::request().ok()?.extensions.get().cloned()
        }
        #[cfg(not(feature = "ssr"))]
        {
            let json = crate::browser::take_meta(BOOT_META)?;
            Some(serde_json::from_str(&json).unwrap_or_default())
        }
    }

    /// Reads the data for a request. The flash message is taken from the session.
    #[cfg(feature = "ssr")]
    pub async fn read(backend: &dyn crate::backend::Backend, parts: &http::request::Parts) -> Self {
        // Before the data: the browser then asks the stream for what is newer than its page.
        let position = backend.event_position();
        let (me, cluster, flash) =
            futures::join!(backend.me(parts), backend.cluster_status(parts), backend.take_flash(parts, "notice"));
        let (me, error) = me.map_or_else(|error| (None, Some(error)), |me| (me, None));
        let flash = flash.ok().flatten().map(FlashView::from);
        Self { me, error, cluster: cluster.ok(), flash, position }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn document_has_the_data_without_the_position() {
        let boot = Boot {
            error: Some(AppError::Unavailable("down".into())),
            flash: Some(FlashView { notice: Some("Saved.".into()), ..FlashView::default() }),
            position: Some("5e1-0c".into()),
            ..Boot::default()
        };
        let json = serde_json::to_string(&boot).expect("JSON");
        let read: Boot = serde_json::from_str(&json).expect("the data");
        assert_eq!((read.me, read.error, read.flash), (None, boot.error, boot.flash));
        assert_eq!((read.cluster, read.position), (None, None));
    }
}
