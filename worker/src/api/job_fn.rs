//! Jobs that are plain functions.
//!
//! A job without state and without options of its own needs no type: the function is the job. It is registered as the same
//! [`RegisteredJob`](crate::run::registry::RegisteredJob) as a type that implements the trait, so nothing else differs.

use std::{future::Future, marker::PhantomData};

use futures::future::BoxFuture;
use schemars::JsonSchema;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use crate::{
    api::{context::JobContext, outcome::JobError},
    run::{
        input,
        registry::{JobHandler, text},
    },
};

/// A function with its types.
pub(crate) struct FnJob<F, Input> {
    code: F,
    input: PhantomData<fn(Input)>,
}

impl<F, Input> FnJob<F, Input> {
    /// Wraps a function.
    pub(crate) const fn new(code: F) -> Self {
        Self { code, input: PhantomData }
    }
}

impl<F, Input, Output, Running> JobHandler for FnJob<F, Input>
where
    F: Fn(JobContext, Input) -> Running + Send + Sync + 'static,
    Running: Future<Output = Result<Output, JobError>> + Send + 'static,
    Input: DeserializeOwned + JsonSchema + Send + 'static,
    Output: Serialize + Send + 'static,
{
    fn run(
        self: std::sync::Arc<Self>,
        ctx: JobContext,
        data: Value,
    ) -> BoxFuture<'static, Result<Option<String>, JobError>> {
        Box::pin(async move {
            let input = input::read::<Input>(&data)?;
            drop(data);
            text(&(self.code)(ctx, input).await?)
        })
    }
}
