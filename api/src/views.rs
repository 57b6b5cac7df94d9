//! What pages show. Read models: each is what one page or one row needs, and nothing a Viewer may not see.

mod calendars;
mod installation;
mod jobs;
mod occurrences;
mod users;

pub use calendars::{BlackoutView, CalendarName, CalendarRow, CalendarView};
pub use installation::{
    ClusterOverview, ClusterPause, HealthItem, HealthState, InstanceView, JobTypeView, MinuteCount, UpcomingJob,
    WorkerView,
};
pub use jobs::{JobFormContext, JobRow, JobView, PreviewRun, SchedulePreview};
pub use occurrences::{OccurrenceRow, OccurrenceView, StatusChange, TriggerSource};
pub use users::{CurrentUser, InviteInfo, InviteView, TeamView, UserView};
