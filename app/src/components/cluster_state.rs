//! The state of the cluster, for the pages that promise a start.

use leptos::prelude::*;
use milvaion_api::views::ClusterPause;

/// Returns the cluster pause; `None` while the cluster is not paused.
#[must_use]
pub fn use_cluster_pause() -> Signal<Option<ClusterPause>> {
    Signal::stored(None)
}
