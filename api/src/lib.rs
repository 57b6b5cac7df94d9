//! The types behind the dashboard's server functions, and later behind a REST API: requests, views, events, permissions
//! and forms.
//!
//! One set of types serves the server, the pages rendered on it and the pages running in the browser. A request is
//! checked by the same code in the browser and on the server, and a page gets exactly the fields of its view. The crate
//! performs no I/O and reads no clock; it compiles to wasm32.
//!
//! Events and the definitions that PostgreSQL stores as JSON follow the rule of change of `milvaion-protocol`: a field
//! may be added with a default, never repurposed. `tests/wire` pins their JSON.
//!
//! Reading order: [`permissions`] lists the actions and the roles that may take them. [`views`] has one type per page
//! or row, and [`page`] the filters and cursors of lists. [`requests`] has the job form and its checks, with the parts
//! [`schema_form`] (input fields from a JSON Schema), [`rules_form`] and [`calendar_form`]. [`versions`] compares
//! definitions. [`team`] covers users, sessions and the own account, and [`audit`] the audit log. [`events`] is the live stream to browsers. [`failures`] covers failures and dead letters, [`alerts`] alert rules, channels and what fires, and
//! [`duplicates`] finds attempts that were started twice. [`sources`] says through which door a job was defined.
//! [`log_fields`] formats the fields of log lines, and [`styled_text`] removes the escape sequences of their text.
//! [`singletons`] shows the singleton loops of workers.

pub mod alerts;
pub mod audit;
pub mod calendar_form;
pub mod declared_rules;
pub mod duplicates;
pub mod events;
pub mod failures;
pub mod log_fields;
pub mod page;
pub mod permissions;
pub mod report_notes;
pub mod requests;
pub mod rest;
pub mod rules_form;
pub mod schema_form;
pub mod singletons;
pub mod sources;
pub mod styled_text;
pub mod team;
pub mod tokens;
pub mod versions;
pub mod views;
