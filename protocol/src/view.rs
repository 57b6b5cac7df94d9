//! What pages show. Read models: each is what one page or one row needs, and nothing a Viewer may not see.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    access::Role,
    id::{JobId, OccurrenceId, UserId},
    message::{JobTypeInfo, LogLine, Progress},
    request::JobInput,
    status::OccurrenceStatus,
};

/// Why an occurrence exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Trigger {
    /// The schedule was due.
    Schedule,
    /// A person asked for it.
    Manual,
    /// A script asked for it.
    Api,
    /// It repeats an earlier one.
    Retry,
}

impl Trigger {
    /// The word in the database and for people.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Schedule => "schedule",
            Self::Manual => "manual",
            Self::Api => "api",
            Self::Retry => "retry",
        }
    }

    /// The trigger behind a [`word`](Self::word).
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        [Self::Schedule, Self::Manual, Self::Api, Self::Retry].into_iter().find(|trigger| trigger.word() == word)
    }
}

/// An occurrence in a list.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OccurrenceRow {
    /// Its id.
    pub id: OccurrenceId,
    /// Its job.
    pub job_id: JobId,
    /// The job's name when it was created.
    pub job_name: String,
    /// What it is.
    pub status: OccurrenceStatus,
    /// Counts its changes; a row with a lower one is older.
    pub version: i32,
    /// Why it exists.
    pub trigger: Trigger,
    /// Which attempt, from 1.
    pub attempt: i32,
    /// When it was due.
    pub scheduled_for: DateTime<Utc>,
    /// When the latest attempt began.
    pub started_at: Option<DateTime<Utc>>,
    /// When it ended.
    pub ended_at: Option<DateTime<Utc>>,
    /// How long the latest attempt ran.
    pub duration_ms: Option<i64>,
    /// Which worker instance has or had it.
    pub instance_id: Option<String>,
    /// How far it is.
    pub progress: Option<Progress>,
    /// The first line of the exception, or why it was skipped.
    pub note: Option<String>,
}

/// One step in an occurrence's life.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StatusChange {
    /// What it became.
    pub status: OccurrenceStatus,
    /// When.
    pub at: DateTime<Utc>,
    /// In which attempt.
    pub attempt: i32,
    /// By whom: an instance or a person.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// Why, if there is more to say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// An occurrence on its own page.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OccurrenceView {
    /// What the list shows.
    pub row: OccurrenceRow,
    /// The worker it is addressed to.
    pub worker_id: String,
    /// What it runs.
    pub job_type: String,
    /// Which version of the job's definition it follows.
    pub job_version: i32,
    /// The input it was given.
    pub job_data: Value,
    /// Who asked for it, when a person did.
    pub triggered_by: Option<String>,
    /// Why that person asked.
    pub trigger_reason: Option<String>,
    /// When its message was confirmed by the broker.
    pub published_at: Option<DateTime<Utc>>,
    /// Queued, but waiting for its turn: a limit or an earlier occurrence holds it back.
    #[serde(default)]
    pub is_held: bool,
    /// What the job returned.
    pub result: Option<String>,
    /// What went wrong.
    pub exception: Option<String>,
    /// Its life so far, oldest first.
    pub changes: Vec<StatusChange>,
    /// The newest lines of its log, oldest first.
    pub log: Vec<LogLine>,
    /// Whether there are lines before those.
    pub log_has_earlier: bool,
    /// Whether the job still exists.
    pub job_exists: bool,
    /// Whether a live worker can run it.
    pub worker_alive: bool,
}

/// A job in a list.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JobRow {
    /// Its id.
    pub id: JobId,
    /// Its name.
    pub display_name: String,
    /// The worker it is addressed to.
    pub worker_id: String,
    /// What it runs.
    pub job_type: String,
    /// When, in words.
    pub schedule_words: String,
    /// When next; none while paused or when nothing is left.
    pub next_fire_at: Option<DateTime<Utc>>,
    /// False while paused.
    pub is_active: bool,
    /// For finding it.
    pub tags: Vec<String>,
    /// The latest occurrences, newest first, at most ten: their ids and states.
    pub recent: Vec<(OccurrenceId, OccurrenceStatus)>,
    /// Whether a live worker announced its type.
    pub worker_alive: bool,
}

/// A job on its own page.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JobView {
    /// What the list shows.
    pub row: JobRow,
    /// Its definition.
    pub definition: JobInput,
    /// Counts its edits; sent back with an edit so that two people cannot overwrite each other unseen.
    pub version: i32,
    /// Why it is paused, when it is and somebody said so.
    pub paused_reason: Option<String>,
    /// The next fires, at most five.
    pub preview: SchedulePreview,
    /// When it was created and by whom.
    pub created_at: DateTime<Utc>,
    /// See `created_at`.
    pub created_by: String,
    /// When it was last changed and by whom.
    pub modified_at: DateTime<Utc>,
    /// See `modified_at`.
    pub modified_by: String,
    /// The input's JSON Schema, if the type was ever announced.
    pub schema: Option<Value>,
}

/// A schedule in words and dates.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SchedulePreview {
    /// The sentence.
    pub words: String,
    /// The schedule's own zone.
    pub zone: String,
    /// The reader's zone, when it is another.
    pub viewer_zone: Option<String>,
    /// The next fires.
    pub runs: Vec<PreviewRun>,
    /// What one should know.
    pub warnings: Vec<String>,
}

/// One coming fire.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PreviewRun {
    /// The instant.
    pub at: DateTime<Utc>,
    /// In the schedule's zone, with its abbreviation.
    pub in_zone: String,
    /// In the reader's zone, with its abbreviation.
    pub in_viewer_zone: Option<String>,
}

/// A job type and who announced it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JobTypeView {
    /// The worker.
    pub worker_id: String,
    /// The type.
    pub info: JobTypeInfo,
    /// How many live instances offer it.
    pub alive: i64,
}

/// A worker and its instances.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkerView {
    /// Its id.
    pub id: String,
    /// Its processes, live ones first.
    pub instances: Vec<InstanceView>,
    /// What it can run.
    pub job_types: Vec<JobTypeView>,
}

/// One worker process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InstanceView {
    /// Its id.
    pub id: String,
    /// Where it runs.
    pub host: String,
    /// Its program's version.
    pub version: String,
    /// How many occurrences it takes at once.
    pub capacity: i32,
    /// How many it had at its last heartbeat.
    pub running: i32,
    /// When it first said hello.
    pub started_at: DateTime<Utc>,
    /// Its last sign of life.
    pub last_heartbeat_at: DateTime<Utc>,
    /// Whether that is recent enough.
    pub alive: bool,
    /// Whether it said goodbye.
    pub stopped: bool,
}

/// The state of one part of the installation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Health {
    /// As it should be.
    Ok,
    /// Works, but not as it should.
    Warn,
    /// Does not work.
    Down,
}

/// One line of the health strip.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HealthItem {
    /// Of what.
    pub name: String,
    /// How it is.
    pub state: Health,
    /// In a few words.
    pub detail: String,
}

/// One minute of the roll-up.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MinuteCount {
    /// The minute's start.
    pub minute: DateTime<Utc>,
    /// How many occurrences became what.
    pub counts: Vec<(OccurrenceStatus, i64)>,
}

/// A job that is due soon.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NextDue {
    /// The job.
    pub job_id: JobId,
    /// Its name.
    pub job_name: String,
    /// When.
    pub at: DateTime<Utc>,
}

/// The overview page.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Overview {
    /// The server's clock when this was made; countdowns run on it.
    pub now: DateTime<Utc>,
    /// The state of every part.
    pub health: Vec<HealthItem>,
    /// How many occurrences became what in the last hour, from the roll-up.
    pub last_hour: Vec<(OccurrenceStatus, i64)>,
    /// The same by minute, oldest first, only minutes with something in them.
    pub minutes: Vec<MinuteCount>,
    /// Live worker instances.
    pub workers_alive: i64,
    /// Instances seen in the last day.
    pub workers_known: i64,
    /// Active jobs and all jobs.
    pub jobs_active: i64,
    /// See `jobs_active`.
    pub jobs_total: i64,
    /// The next ten.
    pub next_due: Vec<NextDue>,
    /// The last five failures.
    pub failures: Vec<OccurrenceRow>,
    /// How many failures nobody has settled, counted up to [`MOST_COUNTED`](crate::failure::MOST_COUNTED).
    pub open_failures: i64,
}

/// Who is signed in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Me {
    /// Their id.
    pub id: UserId,
    /// Their name.
    pub name: String,
    /// Their e-mail address.
    pub email: String,
    /// What they are.
    pub role: Role,
}

/// Somebody on the team page.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UserView {
    /// Who.
    pub me: Me,
    /// Since when.
    pub created_at: DateTime<Utc>,
    /// When they last signed in.
    pub last_sign_in_at: Option<DateTime<Utc>>,
}

/// An invitation that nobody has used yet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InviteView {
    /// For taking it back.
    pub id: UserId,
    /// For whom.
    pub name: String,
    /// As what.
    pub role: Role,
    /// Until when.
    pub expires_at: DateTime<Utc>,
    /// By whom.
    pub invited_by: String,
}

/// The team page.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TeamView {
    /// Everybody.
    pub users: Vec<UserView>,
    /// Everybody to be.
    pub invites: Vec<InviteView>,
}

/// What a one-time link is good for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InviteInfo {
    /// True for the link that makes the first Admin.
    pub is_setup: bool,
    /// The name the inviter wrote; empty for the setup link.
    pub name: String,
    /// The role it gives.
    pub role: Role,
}

/// Everything stands still: nothing is fired or released until somebody resumes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterPause {
    /// Since when.
    pub since: DateTime<Utc>,
    /// Who threw the switch.
    pub by: String,
    /// Why, in their words.
    pub reason: String,
}

/// What the job form needs beside the job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FormContext {
    /// What live and known workers can run, live ones first.
    pub job_types: Vec<JobTypeView>,
    /// Every zone name.
    pub zones: Vec<String>,
    /// The job to edit, if it is an edit.
    pub job: Option<JobView>,
}
