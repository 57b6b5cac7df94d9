//! The values that layers pass to the job, one of each type.

use std::{
    any::{Any, TypeId},
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use super::JobContext;

/// Values by their types.
#[derive(Default)]
pub(crate) struct Extensions(Mutex<BTreeMap<TypeId, Arc<dyn Any + Send + Sync>>>);

impl fmt::Debug for Extensions {
    /// Leaves out the values, which may be confidential.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.0.lock().unwrap_or_else(PoisonError::into_inner).len();
        f.debug_struct("Extensions").field("values", &count).finish_non_exhaustive()
    }
}

impl JobContext {
    /// Sets a value that the inner layers and the job receive from [`extension`](Self::extension), such as the tenant of the
    /// run. The context has one value of each type; another one of the same type replaces it. The values end with the attempt.
    ///
    /// ```
    /// use milvaion_worker::{JobContext, JobError, Next, Worker};
    ///
    /// struct Tenant(String);
    ///
    /// async fn import(ctx: JobContext, file: String) -> Result<(), JobError> {
    ///     let tenant = ctx.extension::<Tenant>().ok_or_else(|| JobError::permanent("the input names no tenant"))?;
    ///     ctx.info(format!("importing {file} of {}", tenant.0));
    ///     Ok(())
    /// }
    ///
    /// let builder = Worker::builder().job_fn("import", import).layer(async |ctx: JobContext, next: Next| {
    ///     if let Some((tenant, _)) = next.input().as_str().and_then(|path| path.split_once('/')) {
    ///         ctx.set_extension(Tenant(tenant.to_owned()));
    ///     }
    ///     next.run(ctx).await
    /// });
    /// ```
    pub fn set_extension<T: Send + Sync + 'static>(&self, value: T) {
        let values = &self.inner.extensions.0;
        values.lock().unwrap_or_else(PoisonError::into_inner).insert(TypeId::of::<T>(), Arc::new(value));
    }

    /// Returns the value of a type that a layer has set with [`set_extension`](Self::set_extension); `None` if none has.
    #[must_use]
    pub fn extension<T: Send + Sync + 'static>(&self) -> Option<Arc<T>> {
        let values = self.inner.extensions.0.lock().unwrap_or_else(PoisonError::into_inner);
        values.get(&TypeId::of::<T>()).cloned()?.downcast().ok()
    }
}
