//! Singleton loops.

use milvaion_api::{rest::Page, singletons::SingletonLoop};

use super::segment;
use crate::{Client, ClientError};

/// The argument that names a loop.
const LOOP_NAME: &str = "the name of a singleton loop";

impl Client {
    /// Returns the singleton loops, ordered by name.
    pub async fn singleton_loops(&self) -> Result<Page<SingletonLoop>, ClientError> {
        self.get(&["singleton-loops"], &()).await
    }

    /// Returns a singleton loop.
    ///
    /// # Errors
    ///
    /// Returns an error if no instance has offered the loop, or if the server cannot be reached.
    pub async fn singleton_loop(&self, name: &str) -> Result<SingletonLoop, ClientError> {
        self.get(&["singleton-loops", segment(LOOP_NAME, name)?], &()).await
    }

    /// Enables a singleton loop.
    pub async fn enable_singleton_loop(&self, name: &str) -> Result<SingletonLoop, ClientError> {
        self.post_empty(&["singleton-loops", segment(LOOP_NAME, name)?, "enable"]).await
    }

    /// Disables a singleton loop on every instance.
    pub async fn disable_singleton_loop(&self, name: &str) -> Result<SingletonLoop, ClientError> {
        self.post_empty(&["singleton-loops", segment(LOOP_NAME, name)?, "disable"]).await
    }

    /// Asks the leader of a singleton loop to hand it over to another instance.
    ///
    /// # Errors
    ///
    /// Returns an error if the loop has no leader or no other instance, or if the server cannot be reached.
    pub async fn yield_singleton_loop(&self, name: &str) -> Result<SingletonLoop, ClientError> {
        self.post_empty(&["singleton-loops", segment(LOOP_NAME, name)?, "yield"]).await
    }

    /// Forgets a singleton loop that no instance has offered for a minute.
    ///
    /// # Errors
    ///
    /// Returns an error if an instance offers or leads the loop, or if the server cannot be reached.
    pub async fn forget_singleton_loop(&self, name: &str) -> Result<(), ClientError> {
        self.delete(&["singleton-loops", segment(LOOP_NAME, name)?], None).await
    }
}
