//! The part of the backend that shows and controls singleton loops.

use async_trait::async_trait;
use milvaion_api::singletons::{SingletonLoop, SingletonLoopList};

use super::RequestUser;
use crate::error::AppError;

/// The operations on singleton loops. All roles read them, and Operators control them. Every one returns `NotFound` for a
/// loop that no instance has offered, and `Unavailable` if Redis does not answer.
#[async_trait]
pub trait SingletonBackend: Send + Sync + 'static {
    /// Returns every loop, ordered by name.
    async fn singleton_loops(&self, me: &RequestUser) -> Result<SingletonLoopList, AppError>;
    /// Returns one loop.
    async fn singleton_loop(&self, me: &RequestUser, name: &str) -> Result<SingletonLoop, AppError>;
    /// Enables or disables a loop. It stays disabled if Redis loses its data. A second call changes nothing.
    async fn set_loop_enabled(&self, me: &RequestUser, name: &str, is_enabled: bool) -> Result<(), AppError>;
    /// Asks the leader to hand the loop over to another instance. `Conflict` without a leader or another instance.
    async fn yield_loop(&self, me: &RequestUser, name: &str) -> Result<(), AppError>;
    /// Forgets a loop that no instance has offered for a minute. `Conflict` for any other.
    async fn forget_loop(&self, me: &RequestUser, name: &str) -> Result<(), AppError>;
}
