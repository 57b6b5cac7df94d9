//! The rows of a result within its bounds.

use std::time::Duration;

use serde::Serialize;
use serde_json::Value;

use crate::{context::MAX_RESULT_BYTES, redact::Redactor};

/// Bytes reserved for the other fields of a result.
const RESULT_FRAME_BYTES: usize = 1024;

/// The result of a statement.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SqlQueryOutput {
    columns: Vec<ResultColumn>,
    rows: Vec<Vec<Value>>,
    row_count: u64,
    rows_affected: u64,
    truncated: bool,
    duration_ms: u64,
}

/// The name of a column, and its type as the database calls it.
#[derive(Clone, Serialize)]
pub(super) struct ResultColumn {
    pub(super) name: String,
    #[serde(rename = "type")]
    pub(super) kind: String,
}

impl SqlQueryOutput {
    pub(super) fn summary(&self) -> String {
        let Self { row_count, rows_affected, duration_ms, .. } = self;
        let kept = if self.truncated { format!(", {} of them kept", self.rows.len()) } else { String::new() };
        format!("{row_count} rows{kept}, {rows_affected} affected, {duration_ms} ms")
    }
}

/// A result that is being read.
pub(super) struct ResultTable {
    columns: Vec<ResultColumn>,
    rows: Vec<Vec<Value>>,
    row_count: u64,
    affected: u64,
    bytes: usize,
    max_rows: usize,
    truncated: bool,
}

impl ResultTable {
    pub(super) fn new(max_rows: u32) -> Self {
        Self {
            columns: Vec::new(),
            rows: Vec::new(),
            row_count: 0,
            affected: 0,
            bytes: RESULT_FRAME_BYTES,
            max_rows: max_rows as usize,
            truncated: false,
        }
    }

    /// Sets the columns, unless they are set already: SQLite reports them with every row.
    pub(super) fn describe(&mut self, columns: impl IntoIterator<Item = ResultColumn>) {
        if self.columns.is_empty() && !self.truncated {
            self.columns = columns.into_iter().collect();
            self.bytes += json_size(&self.columns);
        }
    }

    /// Returns true if another row may be kept.
    pub(super) fn can_keep_row(&self) -> bool {
        !self.truncated && self.rows.len() < self.max_rows
    }

    /// Adds a row, redacted, if it fits. Otherwise counts it only.
    pub(super) fn push(&mut self, row: Vec<Value>, redactor: &Redactor) {
        self.row_count += 1;
        let row: Vec<Value> = row.into_iter().map(|cell| redactor.redact_value(cell)).collect();
        let size = json_size(&row) + 1;
        if self.bytes + size > MAX_RESULT_BYTES {
            self.truncated = true;
            return;
        }
        self.bytes += size;
        self.rows.push(row);
    }

    /// Counts a row that is not kept.
    pub(super) fn skip(&mut self) {
        self.row_count += 1;
        self.truncated = true;
    }

    pub(super) fn add_affected(&mut self, rows: u64) {
        self.affected += rows;
    }

    pub(super) fn finish(self, duration: Duration) -> SqlQueryOutput {
        let duration_ms = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        let Self { columns, rows, row_count, affected, truncated, .. } = self;
        SqlQueryOutput { columns, rows, row_count, rows_affected: affected, truncated, duration_ms }
    }
}

fn json_size(value: &impl Serialize) -> usize {
    serde_json::to_string(value).map_or(0, |text| text.len())
}
