//! The declaration of an operation.

use milvaion_api::permissions::Permission;

/// The objects that a token with a tag may use an operation for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TagScope {
    /// None: the operation is refused.
    Refused,
    /// All: the answer holds nothing about jobs.
    Free,
    /// The job of the path parameter `id`.
    Job,
    /// The job of the path parameter `key`; one that does not exist yet is checked by its handler.
    JobKey,
    /// The job of the occurrence in the path parameter `id`.
    Occurrence,
    /// The handler limits its answer to the tag.
    Handler,
}

/// The declaration of an operation.
#[derive(Clone, Copy, Debug)]
pub struct Operation {
    /// The method.
    pub method: &'static str,
    /// The path below `/api/v1`, with parameters in braces.
    pub path: &'static str,
    /// The name, unique in the document.
    pub id: &'static str,
    /// The group in the document.
    pub group: &'static str,
    /// The summary, one short sentence.
    pub summary: &'static str,
    /// The permission that a caller needs.
    pub permission: Permission,
    /// The objects that a token with a tag may use it for.
    pub scope: TagScope,
    /// The status of a success.
    pub success: u16,
    /// True if the answer contains a secret, which is stored nowhere.
    pub has_secret: bool,
    /// True if the header `If-Match` may name the version of the object.
    pub is_versioned: bool,
}

impl Operation {
    /// Returns the method and the whole path.
    #[must_use]
    pub fn route(&self) -> String {
        // The metrics are at the path that Prometheus expects.
        let base = if self.path == super::METRICS.path { "" } else { "/api/v1" };
        format!("{} {base}{}", self.method, self.path)
    }
}
