//! Downloads of the team and of the audit log.
//!
//! `GET /export/team.csv`, `/export/audit.csv` and `/export/audit.ndjson` take the parameters of the page whose rows they
//! contain. The rows of the audit log are read and sent in batches, one statement each, so that a large file needs
//! neither memory nor a long transaction. A download ends after ten minutes, or if its client reads nothing for one. Each
//! batch is read only while the session is valid and its user may still download.
//!
//! A file is never short without notice. An error during the download aborts the body, and the browser reports a failed
//! download. A file that reaches the maximum number of rows ends with a line that says so.
//!
//! A spreadsheet runs a cell that begins like a formula. Such cells begin with an apostrophe here.

use std::{sync::Arc, time::Duration};

use axum::{
    body::{Body, Bytes},
    extract::{Path, State},
    response::{IntoResponse, Response},
};
use futures::stream;
use http::{HeaderValue, StatusCode, header, request::Parts};
use leptos_router::params::ParamsMap;
use milvaion_api::{
    audit::{AuditFilter, AuditRow},
    page::ListPage,
    permissions::Permission,
    team::TeamRow,
};
use milvaion_app::{
    backend::{Backend, RequestUser},
    components::query_reader::FilterError,
    error::AppError,
    pages::{audit::filter as audit_filter, team::filter as team_filter},
};
use milvaion_protocol::id::UserId;
use serde_json::{Value, json};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use crate::{
    clock::Clock,
    error::chain,
    http::guard::{self, StreamUser},
    store::{Store, audit::AuditEntry},
};

/// The number of rows that one statement reads.
const BATCH_ROWS: u32 = 1_000;
/// The largest number of rows in a file.
const MAX_ROWS: usize = 1_000_000;
/// The longest time for which a client may read nothing.
const STALL_TIMEOUT: Duration = Duration::from_secs(60);
/// The longest time for a download.
const DOWNLOAD_TIMEOUT: Duration = Duration::from_secs(600);
/// The most downloads at a time.
const MAX_DOWNLOADS: usize = 2;
/// The time after which a client may repeat a download that was refused.
const RETRY_AFTER_SECONDS: HeaderValue = HeaderValue::from_static("10");

/// The columns of the audit log.
const AUDIT_COLUMNS: [&str; 13] = [
    "at",
    "last_at",
    "repeats",
    "who",
    "action",
    "object",
    "object_name",
    "result",
    "reason",
    "address",
    "before",
    "after",
    "token",
];
/// The columns of the team.
const TEAM_COLUMNS: [&str; 9] =
    ["name", "email", "role", "state", "last_seen_at", "sessions", "created_at", "invited_by", "invite_expires_at"];

/// The state of the downloads.
#[derive(Clone)]
pub struct ExportState {
    store: Store,
    clock: Clock,
    backend: Arc<dyn Backend>,
    downloads: Arc<Semaphore>,
}

impl ExportState {
    /// Creates the state of a server without downloads.
    #[must_use]
    pub fn new(store: Store, clock: Clock, backend: Arc<dyn Backend>) -> Self {
        Self { store, clock, backend, downloads: Arc::new(Semaphore::new(MAX_DOWNLOADS)) }
    }
}

/// The format of a file with audit rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FileFormat {
    Csv,
    Ndjson,
}

/// The reason for which a download was aborted. It reaches only the log: the browser reports a failed download.
#[derive(Debug, thiserror::Error)]
enum DownloadError {
    #[error("the rows could not be read: {0}")]
    Read(String),
    #[error("a row could not be written: {0}")]
    Write(String),
    #[error("the download took longer than ten minutes")]
    TooSlow,
    #[error("the client read nothing for a minute")]
    Stalled,
    #[error("the session has ended, or its user may no longer download")]
    NotAllowed,
    #[error("its task ended early: {0}")]
    Task(#[from] tokio::task::JoinError),
}

/// Handles `GET /export/{file}`.
pub async fn export(State(state): State<ExportState>, Path(file): Path<String>, parts: Parts) -> Response {
    let me = match state.backend.authorize(&parts, Permission::Export).await {
        Ok(me) => me,
        Err(error) => return refusal(&error),
    };
    let Ok(permit) = Arc::clone(&state.downloads).try_acquire_owned() else {
        let message = "Two downloads are running on this server. Wait for one to end, then try again.";
        return (StatusCode::SERVICE_UNAVAILABLE, [(header::RETRY_AFTER, RETRY_AFTER_SECONDS)], message)
            .into_response();
    };
    let result = match file.as_str() {
        "team.csv" => team(&state, &me, parts.uri.query().unwrap_or_default()).await,
        "audit.csv" => audit(state, me, parts, FileFormat::Csv, permit).await,
        "audit.ndjson" => audit(state, me, parts, FileFormat::Ndjson, permit).await,
        _ => Err(AppError::NotFound("There is no such file. Use team.csv, audit.csv or audit.ndjson.".into())),
    };
    result.unwrap_or_else(|error| refusal(&error))
}

/// Returns the response to a refused download. It names each wrong parameter, because there is no form that marks it.
fn refusal(error: &AppError) -> Response {
    let status = StatusCode::from_u16(error.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let text = match error {
        AppError::Fields(errors) => {
            errors.iter().map(|error| format!("{}: {}\n", error.field, error.message)).collect()
        }
        error => error.to_string(),
    };
    (status, text).into_response()
}

/// Records a download in the audit log.
async fn record(
    state: &ExportState,
    me: &RequestUser,
    action: &'static str,
    object: &str,
    filter: Value,
) -> Result<(), AppError> {
    let entry = AuditEntry::new(state.clock.now(), &me.email, action, object)
        .change(None, Some(filter))
        .from(me.address.map(|address| address.to_string()));
    Ok(state.store.audit(&entry).await?)
}

async fn team(state: &ExportState, me: &RequestUser, query: &str) -> Result<Response, AppError> {
    let filter = team_filter::read_filter(&parameters(query)).map_err(|invalid| invalid_parameters(&invalid.errors))?;
    let view = state.backend.team(me, filter.clone()).await?;
    record(state, me, "team.export", "team:all", json!({ "rows": view.rows.len(), "filter": filter })).await?;
    let mut file = csv_writer();
    let written = file.write_record(TEAM_COLUMNS).and_then(|()| {
        view.rows.iter().try_for_each(|row| file.write_record(team_record(row).iter().map(|cell| safe_cell(cell))))
    });
    let body = written.map_err(|error| error.to_string()).and_then(|()| file.into_inner().map_err(|e| e.to_string()));
    match body {
        Ok(body) => Ok(download(state, "team", "csv", "text/csv; charset=utf-8", Body::from(body))),
        Err(error) => {
            tracing::error!(error, "the team could not be written as CSV");
            Err(AppError::Failed("The file could not be written. The server's log has the details.".into()))
        }
    }
}

fn team_record(row: &TeamRow) -> [String; 9] {
    let time = |at: Option<chrono::DateTime<chrono::Utc>>| at.map(|at| at.to_rfc3339()).unwrap_or_default();
    [
        row.name.clone(),
        row.email.clone().unwrap_or_default(),
        row.role.slug().to_owned(),
        row.state.slug().to_owned(),
        time(row.last_seen_at),
        row.sessions.to_string(),
        time(Some(row.created_at)),
        row.invite.as_ref().map(|invite| invite.invited_by.clone()).unwrap_or_default(),
        time(row.invite.as_ref().map(|invite| invite.expires_at)),
    ]
}

async fn audit(
    state: ExportState,
    me: RequestUser,
    parts: Parts,
    format: FileFormat,
    permit: OwnedSemaphorePermit,
) -> Result<Response, AppError> {
    let parameters = parameters(parts.uri.query().unwrap_or_default());
    let filter = audit_filter::parse(&parameters).map_err(|invalid| invalid_parameters(&invalid.errors))?;
    let filter = AuditFilter { before: None, ..filter };
    record(&state, &me, "audit.export", "audit:all", json!({ "filter": filter })).await?;
    let (sender, receiver) = mpsc::channel(2);
    let source = AuditSource { store: state.store.clone(), clock: state.clock.clone(), parts, user: me.id };
    let task = tokio::spawn(async move {
        let sent = tokio::time::timeout(DOWNLOAD_TIMEOUT, send_audit(&source, filter, format, sender)).await;
        drop(permit);
        sent.unwrap_or(Err(DownloadError::TooSlow))
    });
    let body = Body::from_stream(stream::unfold(Some((receiver, task)), |state| async move {
        let (mut receiver, task) = state?;
        if let Some(part) = receiver.recv().await {
            return Some((Ok(part), Some((receiver, task))));
        }
        // The last part was sent. The body ends as the task did, so that a short file is a failed download.
        let error = task.await.unwrap_or_else(|error| Err(error.into())).err()?;
        tracing::warn!(error = %chain(&error), "a download of the audit log was aborted");
        Some((Err(error), None))
    }));
    let (extension, media_type) = match format {
        FileFormat::Csv => ("csv", "text/csv; charset=utf-8"),
        FileFormat::Ndjson => ("ndjson", "application/x-ndjson"),
    };
    Ok(download(&state, "audit", extension, media_type, body))
}

/// The rows of a download, for the user who asked for it.
struct AuditSource {
    store: Store,
    clock: Clock,
    parts: Parts,
    user: UserId,
}

impl AuditSource {
    /// Reads a batch, if the user may still download.
    async fn batch(&self, filter: &AuditFilter) -> Result<ListPage<AuditRow>, DownloadError> {
        let user = guard::stream_user(&self.store, &self.clock, &self.parts, self.user).await;
        match user.map_err(|error| DownloadError::Read(error.to_string()))? {
            StreamUser::Active(me) if me.role.allows(Permission::Export) => {}
            _ => return Err(DownloadError::NotAllowed),
        }
        self.store.audit_page(filter, BATCH_ROWS).await.map_err(|error| DownloadError::Read(chain(&error)))
    }
}

/// Reads and sends all rows. It ends early, without an error, if the client has left.
async fn send_audit(
    source: &AuditSource,
    mut filter: AuditFilter,
    format: FileFormat,
    sender: mpsc::Sender<Bytes>,
) -> Result<(), DownloadError> {
    let mut sent = 0;
    if format == FileFormat::Csv {
        let head = csv_lines([AUDIT_COLUMNS.map(str::to_owned)])?;
        if !send(&sender, head).await? {
            return Ok(());
        }
    }
    loop {
        let page = source.batch(&filter).await?;
        sent += page.rows.len();
        let chunk = match format {
            FileFormat::Csv => csv_lines(page.rows.iter().map(audit_record))?,
            FileFormat::Ndjson => json_lines(&page.rows)?,
        };
        if !send(&sender, chunk).await? {
            return Ok(());
        }
        let Some(last) = page.rows.last().filter(|_| page.next.is_some()) else { return Ok(()) };
        if sent >= MAX_ROWS {
            let notice = format!("The file ends here, after {sent} rows. Narrow the period to get the older rows.");
            let line = match format {
                FileFormat::Csv => csv_lines([[notice]])?,
                FileFormat::Ndjson => Bytes::from(format!("{}\n", json!({ "truncated": notice }))),
            };
            return send(&sender, line).await.map(drop);
        }
        filter.before = Some(last.cursor);
    }
}

/// Sends a part of the body. Returns false if the client has left.
async fn send(sender: &mpsc::Sender<Bytes>, part: Bytes) -> Result<bool, DownloadError> {
    let sent = tokio::time::timeout(STALL_TIMEOUT, sender.send(part)).await;
    sent.map(|sent| sent.is_ok()).map_err(|_| DownloadError::Stalled)
}

fn audit_record(row: &AuditRow) -> [String; 13] {
    let text = |value: &Option<Value>| value.as_ref().map(Value::to_string).unwrap_or_default();
    [
        row.at().to_rfc3339(),
        row.last_at.map(|at| at.to_rfc3339()).unwrap_or_default(),
        row.repeats.to_string(),
        row.who.clone(),
        row.action.clone(),
        row.object.clone(),
        row.object_name.clone().unwrap_or_default(),
        row.result.slug().to_owned(),
        row.reason.clone().unwrap_or_default(),
        row.address.clone().unwrap_or_default(),
        text(&row.before),
        text(&row.after),
        row.token.clone().unwrap_or_default(),
    ]
}

fn csv_writer() -> csv::Writer<Vec<u8>> {
    csv::WriterBuilder::new().flexible(true).terminator(csv::Terminator::CRLF).from_writer(Vec::new())
}

fn csv_lines<const N: usize>(records: impl IntoIterator<Item = [String; N]>) -> Result<Bytes, DownloadError> {
    let mut file = csv_writer();
    for record in records {
        let cells = record.iter().map(|cell| safe_cell(cell));
        file.write_record(cells).map_err(|error| DownloadError::Write(error.to_string()))?;
    }
    file.into_inner().map(Bytes::from).map_err(|error| DownloadError::Write(error.to_string()))
}

fn json_lines(rows: &[AuditRow]) -> Result<Bytes, DownloadError> {
    let mut lines = Vec::new();
    for row in rows {
        serde_json::to_writer(&mut lines, row).map_err(|error| DownloadError::Write(error.to_string()))?;
        lines.push(b'\n');
    }
    Ok(Bytes::from(lines))
}

/// Returns a cell that no spreadsheet takes for a formula.
fn safe_cell(cell: &str) -> String {
    if cell.starts_with(['=', '+', '-', '@', '\t', '\r']) { format!("'{cell}") } else { cell.to_owned() }
}

fn parameters(query: &str) -> ParamsMap {
    let mut parameters = ParamsMap::new();
    for (name, value) in url::form_urlencoded::parse(query.as_bytes()) {
        parameters.insert_decoded(name.into_owned(), value.into_owned());
    }
    parameters
}

fn invalid_parameters(errors: &[FilterError]) -> AppError {
    AppError::Fields(
        errors
            .iter()
            .map(|error| milvaion_api::requests::FieldError::new(error.parameter, error.remedy.clone()))
            .collect(),
    )
}

fn download(state: &ExportState, name: &str, extension: &str, media_type: &'static str, body: Body) -> Response {
    let file = format!("milvaion-{name}-{}.{extension}", state.clock.now().date_naive());
    let disposition = HeaderValue::try_from(format!("attachment; filename=\"{file}\""));
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(media_type));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if let Ok(disposition) = disposition {
        headers.insert(header::CONTENT_DISPOSITION, disposition);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_cell_is_a_formula() {
        for formula in ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1"] {
            assert_eq!(safe_cell(formula), format!("'{formula}"));
        }
        assert_eq!(safe_cell("ana@example.org"), "ana@example.org");
    }
}
