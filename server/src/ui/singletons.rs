//! The backend of the page of singleton loops.

use async_trait::async_trait;
use milvaion_api::singletons::{SingletonLoop, SingletonLoopList};
use milvaion_app::{
    backend::{RequestUser, SingletonBackend},
    error::AppError,
};

use super::backend::ServerBackend;

#[async_trait]
impl SingletonBackend for ServerBackend {
    async fn singleton_loops(&self, _me: &RequestUser) -> Result<SingletonLoopList, AppError> {
        self.singletons.list().await
    }

    async fn singleton_loop(&self, _me: &RequestUser, name: &str) -> Result<SingletonLoop, AppError> {
        self.singletons.get(name).await
    }

    async fn set_loop_enabled(&self, me: &RequestUser, name: &str, is_enabled: bool) -> Result<(), AppError> {
        self.singletons.set_enabled(me, name, is_enabled).await
    }

    async fn yield_loop(&self, me: &RequestUser, name: &str) -> Result<(), AppError> {
        self.singletons.yield_leadership(me, name).await
    }

    async fn forget_loop(&self, me: &RequestUser, name: &str) -> Result<(), AppError> {
        self.singletons.forget(me, name).await
    }
}
