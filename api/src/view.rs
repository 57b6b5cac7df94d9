//! What pages show. Read models: each is what one page or one row needs, and nothing a Viewer may not see.

mod calendars;
mod installation;
mod jobs;
mod occurrences;
mod people;

pub use calendars::{BlackoutView, CalendarName, CalendarRow, CalendarView};
pub use installation::{
    ClusterPause, Health, HealthItem, InstanceView, JobTypeView, MinuteCount, NextDue, Overview, WorkerView,
};
pub use jobs::{FormContext, JobRow, JobView, PreviewRun, SchedulePreview};
pub use occurrences::{OccurrenceRow, OccurrenceView, StatusChange, Trigger};
pub use people::{InviteInfo, InviteView, Me, TeamView, UserView};
