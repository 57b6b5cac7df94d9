//! Components that several pages share.
//!
//! Every component renders the same HTML on the server and in the browser's first render. Anything that depends on the
//! user's clock, zone or screen is applied in an effect afterwards. No component sets a style or an event handler as an
//! attribute, because the content security policy forbids both.

pub mod action;
pub mod action_error;
pub mod action_menu;
pub mod alert_bell;
pub mod audit_list;
pub mod check_field;
pub mod cluster_state;
pub mod collapsible_section;
pub mod confirm;
pub mod copy_button;
pub mod dialog;
pub mod due_refresh;
pub mod duplicate_start_warning;
pub mod empty_state;
pub mod fields;
pub mod filter_controls;
pub mod filter_error;
pub mod focus;
pub mod form;
pub mod form_check;
pub mod form_draft;
pub mod form_state;
pub mod health_parts;
pub mod icon;
pub mod input_form;
pub mod leave_guard;
pub mod live_rows;
pub mod loading;
pub mod log_lines;
pub mod log_view;
pub mod menu;
pub mod minute_bars;
pub mod nav;
pub mod occurrence_list;
pub mod occurrence_table;
pub mod page_arrival;
pub mod page_header;
pub mod preferences;
pub mod query_reader;
pub mod radio_field;
pub mod schedule_field;
pub mod session_context;
pub mod session_end;
pub mod shortcuts;
pub mod status_badge;
pub mod status_banner;
pub mod status_explanation;
pub mod summary_box;
pub mod table;
pub mod tag_list;
pub mod time;
pub mod toast;
pub mod waiting_changes;
pub mod zone_field;
