//! Lists, which the server returns page by page.
//!
//! A page names the cursor of the next one. Its field in a query is called `after` or `before` and has the type of the
//! list's order, so each query says here how it continues. [`collect`] never reads more items than its caller asked for.

use milvaion_api::rest::{
    AuditQuery, DeadLetterQuery, FailureQuery, JobAuditQuery, JobQuery, OccurrenceQuery, Page, TeamQuery, TokenQuery,
    VersionQuery, WorkerQuery,
};

use crate::ClientError;

/// The maximum number of items in a page.
const MAX_PAGE_ITEMS: usize = milvaion_api::page::MAX_PAGE_ROWS as usize;

/// A query of a list.
pub trait PagedQuery: Clone {
    /// Continues after the page that named this cursor. Returns false if the cursor is none of this list.
    #[must_use]
    fn continue_at(&mut self, cursor: &str) -> bool;

    /// Sets the number of items in a page, if the list lets a caller choose it.
    fn set_limit(&mut self, limit: u32) {
        let _ = limit;
    }
}

macro_rules! paged {
    ($query:ty, $cursor:ident) => {
        impl PagedQuery for $query {
            fn continue_at(&mut self, cursor: &str) -> bool {
                self.$cursor = cursor.parse().ok();
                self.$cursor.is_some()
            }
        }
    };
    ($query:ty, $cursor:ident, $limit:ident) => {
        impl PagedQuery for $query {
            fn continue_at(&mut self, cursor: &str) -> bool {
                self.$cursor = cursor.parse().ok();
                self.$cursor.is_some()
            }

            fn set_limit(&mut self, limit: u32) {
                self.$limit = Some(limit);
            }
        }
    };
    // The list is always complete.
    ($query:ty) => {
        impl PagedQuery for $query {
            fn continue_at(&mut self, _: &str) -> bool {
                false
            }
        }
    };
}

paged!(JobQuery, after, limit);
paged!(OccurrenceQuery, before, limit);
paged!(FailureQuery, after, limit);
paged!(DeadLetterQuery, before, limit);
paged!(AuditQuery, before);
paged!(JobAuditQuery, before);
paged!(VersionQuery, before);
paged!(WorkerQuery);
paged!(TeamQuery);
paged!(TokenQuery, after, limit);
paged!(());

/// The items of a list, up to a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing<T> {
    /// The items.
    pub items: Vec<T>,
    /// True if the list has further items.
    pub has_more: bool,
}

/// Reads a list until its end or until `max` items, with a request for each page.
///
/// # Errors
///
/// Returns the error of the first page that cannot be read.
pub async fn collect<Q, T>(
    query: &Q,
    max: usize,
    page: impl AsyncFn(&Q) -> Result<Page<T>, ClientError>,
) -> Result<Listing<T>, ClientError>
where
    Q: PagedQuery,
{
    let mut query = query.clone();
    let mut items = Vec::new();
    loop {
        let wanted = max.saturating_sub(items.len()).clamp(1, MAX_PAGE_ITEMS);
        query.set_limit(u32::try_from(wanted).unwrap_or(1));
        let found = page(&query).await?;
        items.extend(found.items);
        let next = found.next;
        if items.len() >= max || next.is_none() {
            let has_more = next.is_some() || items.len() > max;
            items.truncate(max);
            return Ok(Listing { items, has_more });
        }
        if let Some(cursor) = next
            && !query.continue_at(&cursor)
        {
            return Err(ClientError::InvalidCursor { cursor });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[tokio::test]
    async fn collect_reads_no_more_than_its_limit() {
        let requests = Mutex::new(Vec::new());
        let page = async |query: &JobQuery| {
            requests.lock().expect("no panic").push((query.after.clone(), query.limit));
            let start: usize = query.after.as_deref().map_or(0, |text| text.parse().expect("a number"));
            let end = start + query.limit.unwrap_or(50) as usize;
            Ok(Page { items: (start..end.min(450)).collect(), next: (end < 450).then(|| end.to_string()) })
        };
        let all = collect(&JobQuery::default(), 10_000, page).await.expect("pages");
        assert_eq!((all.items.len(), all.has_more), (450, false));
        let some = collect(&JobQuery::default(), 250, page).await.expect("pages");
        assert_eq!((some.items, some.has_more), ((0..250).collect(), true));
        let requests = requests.into_inner().expect("no panic");
        assert_eq!(requests[3..], [(None, Some(200)), (Some("200".into()), Some(50))]);
    }

    #[tokio::test]
    async fn cursor_of_another_list_ends_the_list() {
        let page = async |_: &VersionQuery| Ok(Page { items: vec![1], next: Some("x".into()) });
        assert!(collect(&VersionQuery::default(), 10, page).await.is_err());
    }
}
