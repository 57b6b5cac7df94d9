//! The views: read models of pages and rows. Each has what one page or row shows, and nothing that a Viewer must not
//! see.

mod calendars;
mod installation;
mod jobs;
mod occurrences;
mod users;

pub use calendars::{BlackoutView, CalendarName, CalendarRow, CalendarView};
pub use installation::{
    BarCount, ClusterOverview, ClusterPause, ClusterStatus, DATABASE_PART, DEMO_JOB_TYPE, DISPATCHER_PART, HealthItem,
    HealthState, InstanceState, InstanceView, JobTypeView, MAX_COUNTED_OPEN, TASKS_PART, UpcomingJob, WorkerView,
};
pub use jobs::{JobFormContext, JobRow, JobView, PreviewRun, SchedulePreview};
pub use occurrences::{OccurrenceRow, OccurrenceView, StatusChange, TriggerSource};
pub use users::CurrentUser;
