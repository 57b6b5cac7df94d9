//! Messages of workers that could not be read, or not in part: counted at the instance, and noted at the occurrence.
//!
//! A redelivered batch counts them again, so the number is one of deliveries. A note is stored once for each text.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use chrono::{DateTime, Utc};
use milvaion_protocol::{id::OccurrenceId, message::truncate_text, storable::clean_text};
use uuid::Uuid;

use super::{Result, Store, occurrences::filed_since};

/// The maximum number of notes of an occurrence.
const MAX_NOTES_PER_RUN: i64 = 20;
/// The maximum size of the reason at an instance, in bytes.
const MAX_REASON_BYTES: usize = 500;
/// The maximum size of a note, in bytes.
const MAX_NOTE_BYTES: usize = 1_000;

/// A message or a part of a message that could not be read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnreadablePart {
    /// The occurrence that the message names.
    pub occurrence_id: Option<OccurrenceId>,
    /// The attempt that the message names; 0 if it names none.
    pub attempt: u32,
    /// The instance that sent it, as far as the message says so.
    pub instance_id: Option<String>,
    /// The field and the reason.
    pub reason: String,
    /// The sentence for the history of the occurrence.
    pub note: String,
}

/// A note about a report in the history of an occurrence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunNote {
    /// The attempt; 0 if it is unknown.
    pub attempt: i32,
    /// The instance, if it is known.
    pub instance_id: Option<String>,
    /// The time of arrival.
    pub at: DateTime<Utc>,
    /// The field and the reason.
    pub text: String,
}

impl Store {
    /// Counts what could not be read at the instances, and notes it at the occurrences that exist. A message that names no
    /// instance counts for the one that runs its occurrence. Returns true if an instance has counted.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`](super::StoreError) if PostgreSQL fails; then nothing is recorded.
    pub async fn record_unreadable(&self, parts: &[UnreadablePart], now: DateTime<Utc>) -> Result<bool> {
        let ids: BTreeSet<OccurrenceId> = parts.iter().filter_map(|part| part.occurrence_id).collect();
        let known = self.runners(&ids).await?;
        let mut counts: BTreeMap<String, (i64, &str)> = BTreeMap::new();
        let mut notes: BTreeMap<(Uuid, i32, String, String), ()> = BTreeMap::new();
        for part in parts {
            let run = part.occurrence_id.and_then(|id| known.get(&id).map(|runner| (id, runner)));
            let runner = run.and_then(|(_, runner)| runner.clone());
            let instance = part.instance_id.clone().map(clean_text).or(runner);
            if let Some(instance) = &instance {
                let count = counts.entry(instance.clone()).or_default();
                *count = (count.0 + 1, &part.reason);
            }
            if let Some((id, _)) = run {
                let attempt = i32::try_from(part.attempt).unwrap_or(i32::MAX);
                let text = truncate_text(clean_text(&part.note), MAX_NOTE_BYTES);
                // The key of a row holds a name of at most 200 characters.
                let instance = truncate_text(instance.unwrap_or_default(), 800);
                notes.insert((id.0, attempt, instance, text), ());
            }
        }
        let mut tx = self.pool().begin().await?;
        let counted = sqlx::query!(
            "WITH found AS (
                SELECT i.id, c.count, c.reason FROM unnest($1::text[], $2::bigint[], $3::text[]) AS c (id, count, reason)
                  JOIN worker_instances i ON i.id = c.id ORDER BY i.id FOR NO KEY UPDATE OF i
             )
             UPDATE worker_instances i
                SET unreadable = i.unreadable + f.count, unreadable_at = $4, unreadable_reason = f.reason
               FROM found f WHERE i.id = f.id",
            &counts.keys().cloned().collect::<Vec<_>>(),
            &counts.values().map(|(count, _)| *count).collect::<Vec<_>>(),
            &counts
                .values()
                .map(|(_, reason)| truncate_text(clean_text(*reason), MAX_REASON_BYTES))
                .collect::<Vec<_>>(),
            now
        )
        .execute(&mut tx)
        .await?
        .rows_affected();
        let notes: Vec<(Uuid, i32, String, String)> = notes.into_keys().collect();
        sqlx::query!(
            "INSERT INTO run_notes (run_id, attempt, instance_id, at, text)
             SELECT n.run_id, n.attempt, n.instance_id, $5, n.text
               FROM unnest($1::uuid[], $2::int[], $3::text[], $4::text[]) AS n (run_id, attempt, instance_id, text)
              WHERE (SELECT count(*) FROM run_notes r WHERE r.run_id = n.run_id) < $6
             ON CONFLICT DO NOTHING",
            &notes.iter().map(|note| note.0).collect::<Vec<_>>(),
            &notes.iter().map(|note| note.1).collect::<Vec<_>>(),
            &notes.iter().map(|note| note.2.clone()).collect::<Vec<_>>(),
            &notes.iter().map(|note| note.3.clone()).collect::<Vec<_>>(),
            now,
            MAX_NOTES_PER_RUN
        )
        .execute(&mut tx)
        .await?;
        tx.commit().await?;
        Ok(counted > 0)
    }

    /// Returns the occurrences among `ids` that exist, each with the instance that runs it or ran it last.
    async fn runners(&self, ids: &BTreeSet<OccurrenceId>) -> Result<HashMap<OccurrenceId, Option<String>>> {
        if ids.is_empty() {
            return Ok(HashMap::new());
        }
        let rows = sqlx::query!(
            r#"SELECT o.id AS "id!", o.instance_id
                 FROM unnest($1::uuid[], $2::timestamptz[]) AS a (id, filed_since)
                CROSS JOIN LATERAL (
                      SELECT * FROM occurrences o WHERE o.id = a.id AND o.filed_at >= a.filed_since) o"#,
            &ids.iter().map(|id| id.0).collect::<Vec<_>>(),
            &ids.iter().map(|id| filed_since(*id)).collect::<Vec<_>>()
        )
        .fetch_all(self.pool())
        .await?;
        Ok(rows.into_iter().map(|row| (OccurrenceId(row.id), row.instance_id)).collect())
    }

    /// Returns the notes about reports of an occurrence, oldest first.
    pub(super) async fn run_notes(&self, id: OccurrenceId) -> Result<Vec<RunNote>> {
        let rows = sqlx::query!(
            "SELECT attempt, instance_id, at, text FROM run_notes WHERE run_id = $1 ORDER BY at, text LIMIT 100",
            id.0
        )
        .fetch_all(self.pool())
        .await?;
        let note = |attempt: i32, instance: String, at, text| RunNote {
            attempt,
            instance_id: Some(instance).filter(|instance| !instance.is_empty()),
            at,
            text,
        };
        Ok(rows.into_iter().map(|row| note(row.attempt, row.instance_id, row.at, row.text)).collect())
    }
}
