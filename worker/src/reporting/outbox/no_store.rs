//! The outbox of a worker that was built without the feature `outbox`: there is none.
//!
//! SQLite takes most of the time that the SDK takes to compile. A worker that does without it has the same journal,
//! which then records nothing. The type of the file has no value, so that no code can run on one.

use std::{convert::Infallible, path::Path};

use super::{
    corruption::CorruptFiles,
    entry::{OutboxWrite, StoredEntries},
    system::OutboxSystem,
};
use crate::api::error::OutboxError;

/// The error of a write. There is none.
pub(super) type WriteError = Infallible;

/// The file that does not exist.
pub(super) struct OutboxStore {
    never: Infallible,
    pub(super) corrupt_files: CorruptFiles,
}

impl OutboxStore {
    pub(super) async fn open(_: &Path, _: &OutboxSystem) -> Result<Self, OutboxError> {
        Err(OutboxError::NotBuilt)
    }

    pub(super) async fn peek(_: &Path) -> Option<(OutboxSystem, u64)> {
        None
    }

    pub(super) async fn adopt(&mut self, _: &Path) -> Result<(), OutboxError> {
        match self.never {}
    }

    pub(super) async fn stored_entries(&mut self) -> Result<StoredEntries, OutboxError> {
        match self.never {}
    }

    pub(super) async fn retry_write(&mut self, _: &OutboxWrite) -> Result<(), WriteError> {
        match self.never {}
    }

    pub(super) async fn write(&mut self, _: &OutboxWrite) -> Result<(), WriteError> {
        match self.never {}
    }

    pub(super) async fn close(self) {
        match self.never {}
    }
}
