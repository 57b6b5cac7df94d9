//! What several pages share.
//!
//! Every component renders the same on the server and at the first moment in the browser; what depends on the reader's
//! clock, zone or screen comes in an effect afterwards. None of them sets a style or an event handler as an attribute:
//! the content security policy forbids both, and it is the same for everybody.

pub mod bars;
pub mod choice;
pub mod copy;
pub mod dialog;
pub mod duplicates;
pub mod empty;
pub mod folded;
pub mod form;
pub mod icon;
pub mod input_form;
pub mod loading;
pub mod log_lines;
pub mod log_view;
pub mod me;
pub mod nav;
pub mod occurrence_list;
pub mod occurrence_table;
pub mod page_head;
pub mod preferences;
pub mod schedule_bounds;
pub mod schedule_field;
pub mod self_check;
pub mod shortcuts;
pub mod status_badge;
pub mod time;
pub mod toast;
pub mod why;
pub mod zone_field;
