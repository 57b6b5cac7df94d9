//! Server functions of the alerts: what fires, the rules, and the channels.
//!
//! A form is a set of texts, as a browser posts it. The server converts them, and the errors of its fields have the names
//! that the REST API has for them, so one check serves both. A function that changes something returns its notice as a
//! sentence, so that a script and a plain form post show the same one.

#[cfg(feature = "ssr")]
mod conversions;

use std::collections::BTreeMap;

use leptos::prelude::*;
use milvaion_api::{
    alerts::{Alert, AlertChannelRow, AlertFilter, AlertRuleRow},
    page::ListPage,
};
use milvaion_protocol::id::{AlertChannelId, AlertRuleId};
use serde::{Deserialize, Serialize};
use server_fn::codec::GetUrl;

use super::{codec::JsonText, session::FlashView};
use crate::error::AppError;

/// The value of a checked box.
pub const CHECKED: &str = "on";
/// The lengths of a mute: the value, the label, and the number of hours.
pub const MUTE_CHOICES: [(&str, &str, i64); 4] =
    [("1h", "1 hour", 1), ("8h", "8 hours", 8), ("24h", "24 hours", 24), ("7d", "7 days", 168)];
/// The value of a mute that ends on a chosen day.
pub const MUTE_UNTIL: &str = "until";
/// The number of alerts on the page of a rule.
pub const RULE_HISTORY_ROWS: u32 = 20;

/// The form of a rule as entered. Every field is text; absent fields are empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct AlertRuleForm {
    /// The id of the rule to change; empty for a new one.
    pub id: String,
    /// The version that the form shows; empty for a new rule.
    pub version: String,
    /// The name.
    pub name: String,
    /// The kind of the condition.
    pub kind: String,
    /// The numbers of the conditions by their names in JSON. Those of another kind are ignored.
    pub condition: BTreeMap<String, String>,
    /// The checked causes of failures.
    pub causes: BTreeMap<String, String>,
    /// The keys or ids of jobs, separated by commas.
    pub jobs: String,
    /// Tags, separated by commas.
    pub tags: String,
    /// The slug of the severity.
    pub severity: String,
    /// The names of the checked channels by their [`channel_field`].
    pub channels: BTreeMap<String, String>,
    /// [`CHECKED`]; empty for off.
    pub is_enabled: String,
}

/// The form of a channel as entered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct AlertChannelForm {
    /// The id of the channel to change; empty for a new one.
    pub id: String,
    /// The version that the form shows; empty for a new channel.
    pub version: String,
    /// The name.
    pub name: String,
    /// The kind of the destination.
    pub kind: String,
    /// The fields of the destinations by their names in JSON. Those of another kind are ignored.
    pub target: BTreeMap<String, String>,
    /// [`CHECKED`]; empty for off.
    pub is_enabled: String,
}

/// A page of alerts, with the rules that its filter offers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AlertList {
    /// The alerts.
    pub page: ListPage<Alert>,
    /// The id and the name of every rule.
    pub rules: Vec<(AlertRuleId, String)>,
}

/// A rule with its latest alerts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AlertRuleState {
    /// The rule.
    pub rule: AlertRuleRow,
    /// Its alerts, newest first.
    pub history: ListPage<Alert>,
}

/// Everything that the page of a rule renders from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AlertRulePage {
    /// The rule; `None` for a new one.
    pub state: Option<AlertRuleState>,
    /// The id and the name of every channel; empty below Operator.
    pub channels: Vec<(AlertChannelId, String)>,
    /// Initial values: those of a new rule, of the rule, or of a rejected post.
    pub form: AlertRuleForm,
    /// Result of a plain form post, if there was one.
    pub flash: FlashView,
}

/// Everything that the page of a channel renders from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AlertChannelPage {
    /// The channel; `None` for a new one.
    pub channel: Option<AlertChannelRow>,
    /// Initial values: those of a new channel, of the channel, or of a rejected post.
    pub form: AlertChannelForm,
    /// Result of a plain form post, if there was one.
    pub flash: FlashView,
}

/// The result of a test message as a sentence.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AlertTestReport {
    /// True if the receiver accepted the message.
    pub was_accepted: bool,
    /// The result.
    pub text: String,
}

/// Returns a page of alerts, newest first, and the rules.
#[server(input = GetUrl, output = JsonText, endpoint = "alerts")]
pub async fn alerts(#[server(default)] filter: AlertFilter) -> Result<AlertList, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::Read).await?;
    let page = backend.alerts(&me, filter).await.map_err(super::with_error_status)?;
    let rules = backend.alert_rules(&me).await.map_err(super::with_error_status)?;
    Ok(AlertList { page, rules: rules.into_iter().map(|row| (row.id, row.definition.name)).collect() })
}

/// Returns every rule, ordered by name.
#[server(input = GetUrl, output = JsonText, endpoint = "alert_rules")]
pub async fn alert_rules() -> Result<Vec<AlertRuleRow>, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::Read).await?;
    backend.alert_rules(&me).await.map_err(super::with_error_status)
}

/// Returns a rule with its latest alerts.
///
/// # Errors
///
/// `NotFound` if it is deleted.
#[server(input = GetUrl, output = JsonText, endpoint = "alert_rule")]
pub async fn alert_rule(id: AlertRuleId) -> Result<AlertRuleState, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::Read).await?;
    let rule = backend.alert_rule(&me, id).await.map_err(super::with_error_status)?;
    let filter = AlertFilter { rule: Some(id), limit: RULE_HISTORY_ROWS, ..AlertFilter::default() };
    let history = backend.alerts(&me, filter).await.map_err(super::with_error_status)?;
    Ok(AlertRuleState { rule, history })
}

/// Loads the page of the rule `id`, or that of a new one.
///
/// # Errors
///
/// `NotFound` if the rule is deleted; `Denied` below Operator for a new one.
#[server(input = GetUrl, output = JsonText, endpoint = "alert_rule_page")]
pub async fn load_alert_rule(id: Option<AlertRuleId>) -> Result<AlertRulePage, AppError> {
    use milvaion_api::permissions::Permission;

    let state = match id {
        Some(id) => Some(alert_rule(id).await?),
        None => None,
    };
    let needed = if id.is_some() { Permission::Read } else { Permission::DefineAlert };
    let (backend, me) = super::authorize(needed).await?;
    let channels = if me.role.allows(Permission::DefineAlert) {
        let rows = backend.alert_channels(&me).await.map_err(super::with_error_status)?;
        rows.into_iter().map(|row| (row.id, row.definition.name)).collect()
    } else {
        Vec::new()
    };
    let mut flash = backend.take_flash(&super::request()?, RULE_FORM).await?.map(FlashView::from).unwrap_or_default();
    // A flash may hold the values of another rule that was posted in another tab.
    let typed = serde_json::from_value::<AlertRuleForm>(flash.typed.clone()).ok();
    let own = id.map(|id| id.to_string()).unwrap_or_default();
    let typed = typed.filter(|form| form.id == own);
    if typed.is_none() {
        flash.typed = serde_json::Value::Null;
    }
    let form = typed.unwrap_or_else(|| match &state {
        Some(state) => AlertRuleForm::of(&state.rule, &channels),
        None => AlertRuleForm::new_rule(),
    });
    Ok(AlertRulePage { state, channels, form, flash })
}

/// Creates or changes a rule and returns the notice.
///
/// # Errors
///
/// `Fields` for invalid fields; `Conflict` if another user changed the rule meanwhile; `Denied` below Operator.
#[server(output = JsonText, endpoint = "save_alert_rule")]
pub async fn save_alert_rule(form: AlertRuleForm) -> Result<String, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::DefineAlert).await?;
    let id = form.id.parse::<AlertRuleId>().ok();
    let result = match form.rule() {
        Ok(rule) => backend.save_alert_rule(&me, id, form.version.parse().ok(), &rule).await,
        Err(error) => Err(error),
    };
    let verb = if id.is_some() { "saved" } else { "created" };
    let result = result.map(|row| format!("The alert rule {} is {verb}.", row.definition.name));
    let notice = result.clone().unwrap_or_default();
    let back = id.map_or_else(|| "/alerts/rules/new".into(), rule_address);
    super::respond(RULE_FORM, result, |_| RULES_ADDRESS.into(), &notice, &back, form).await
}

/// Mutes a rule for one of [`MUTE_CHOICES`] or until the start of a day in UTC, and returns the notice.
///
/// # Errors
///
/// `Fields` for an invalid end; `NotFound` if the rule is deleted; `Denied` below Operator.
#[server(output = JsonText, endpoint = "mute_alert_rule")]
pub async fn mute_alert_rule(
    id: AlertRuleId,
    #[server(default)] length: String,
    #[server(default)] until: String,
) -> Result<String, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::DefineAlert).await?;
    let now = backend.cluster_status(&super::request()?).await.map_err(super::with_error_status)?.now;
    let result = match conversions::mute_end(now, &length, &until) {
        Ok(until) => backend.mute_alert_rule(&me, id, Some(until)).await,
        Err(error) => Err(error),
    };
    let result = result.map(|row| {
        let until = row.muted_until.map(crate::format::utc).unwrap_or_default();
        format!("The alert rule {} is muted until {until}.", row.definition.name)
    });
    let notice = result.clone().unwrap_or_default();
    let here = rule_address(id);
    super::respond(RULE_FORM, result, |_| here.clone(), &notice, &here, ()).await
}

/// Ends the mute of a rule and returns the notice.
///
/// # Errors
///
/// `NotFound` if the rule is deleted; `Denied` below Operator.
#[server(output = JsonText, endpoint = "unmute_alert_rule")]
pub async fn unmute_alert_rule(id: AlertRuleId) -> Result<String, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::DefineAlert).await?;
    let result = backend.mute_alert_rule(&me, id, None).await;
    let result = result.map(|row| format!("The alert rule {} sends messages again.", row.definition.name));
    let notice = result.clone().unwrap_or_default();
    let here = rule_address(id);
    super::respond(RULE_FORM, result, |_| here.clone(), &notice, &here, ()).await
}

/// Deletes a rule with its alerts and returns the notice.
///
/// # Errors
///
/// `Conflict` if the rule has another version; `NotFound` if it is deleted; `Denied` below Operator.
#[server(output = JsonText, endpoint = "delete_alert_rule")]
pub async fn delete_alert_rule(id: AlertRuleId, version: Option<i32>) -> Result<String, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::DefineAlert).await?;
    let result = backend.delete_alert_rule(&me, id, version).await;
    let result = result.map(|name| format!("The alert rule {name} is deleted."));
    let notice = result.clone().unwrap_or_default();
    // A refusal belongs to no field of the form on that page.
    super::respond("notice", result, |_| RULES_ADDRESS.into(), &notice, &rule_address(id), ()).await
}

/// Returns every channel, ordered by name.
///
/// # Errors
///
/// `Denied` below Operator.
#[server(input = GetUrl, output = JsonText, endpoint = "alert_channels")]
pub async fn alert_channels() -> Result<Vec<AlertChannelRow>, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::DefineAlert).await?;
    backend.alert_channels(&me).await.map_err(super::with_error_status)
}

/// Loads the page of the channel `id`, or that of a new one.
///
/// # Errors
///
/// `NotFound` if the channel is deleted; `Denied` below Admin.
#[server(input = GetUrl, output = JsonText, endpoint = "alert_channel_page")]
pub async fn load_alert_channel(id: Option<AlertChannelId>) -> Result<AlertChannelPage, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::ManageAlertChannels).await?;
    let channel = match id {
        Some(id) => Some(backend.alert_channel(&me, id).await.map_err(super::with_error_status)?),
        None => None,
    };
    let mut flash =
        backend.take_flash(&super::request()?, CHANNEL_FORM).await?.map(FlashView::from).unwrap_or_default();
    let typed = serde_json::from_value::<AlertChannelForm>(flash.typed.clone()).ok();
    let own = id.map(|id| id.to_string()).unwrap_or_default();
    let typed = typed.filter(|form| form.id == own);
    if typed.is_none() {
        flash.typed = serde_json::Value::Null;
    }
    let form = typed.unwrap_or_else(|| match &channel {
        Some(channel) => AlertChannelForm::of(channel),
        None => AlertChannelForm { kind: "email".into(), is_enabled: CHECKED.into(), ..AlertChannelForm::default() },
    });
    Ok(AlertChannelPage { channel, form, flash })
}

/// Creates or changes a channel and returns its id.
///
/// # Errors
///
/// `Fields` for invalid fields; `Conflict` if another user changed the channel meanwhile; `Denied` below Admin.
#[server(output = JsonText, endpoint = "save_alert_channel")]
pub async fn save_alert_channel(form: AlertChannelForm) -> Result<AlertChannelId, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::ManageAlertChannels).await?;
    let id = form.id.parse::<AlertChannelId>().ok();
    let result = match form.channel() {
        Ok(channel) => backend.save_alert_channel(&me, id, form.version.parse().ok(), &channel).await,
        Err(error) => Err(error),
    };
    let notice = channel_saved_notice(id.is_some());
    let back = id.map_or_else(|| "/alerts/channels/new".into(), channel_address);
    let then = |saved: &AlertChannelId| if id.is_some() { CHANNELS_ADDRESS.into() } else { channel_address(*saved) };
    super::respond(CHANNEL_FORM, result.map(|row| row.id), then, notice, &back, form).await
}

/// Deletes a channel that no rule uses and returns the notice.
///
/// # Errors
///
/// `Conflict` while a rule uses it, or if it has another version; `NotFound` if it is deleted; `Denied` below Admin.
#[server(output = JsonText, endpoint = "delete_alert_channel")]
pub async fn delete_alert_channel(id: AlertChannelId, version: Option<i32>) -> Result<String, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::ManageAlertChannels).await?;
    let result = backend.delete_alert_channel(&me, id, version).await;
    let result = result.map(|name| format!("The alert channel {name} is deleted."));
    let notice = result.clone().unwrap_or_default();
    // A refusal belongs to no field of the form on that page.
    super::respond("notice", result, |_| CHANNELS_ADDRESS.into(), &notice, &channel_address(id), ()).await
}

/// Sends a test message over a channel.
///
/// # Errors
///
/// `NotFound` if the channel is deleted; `Denied` below Admin.
#[server(output = JsonText, endpoint = "test_alert_channel")]
pub async fn test_alert_channel(id: AlertChannelId) -> Result<AlertTestReport, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::ManageAlertChannels).await?;
    let report = backend.test_alert_channel(&me, id).await.map(|result| {
        let text = match (result.was_accepted, result.error) {
            (true, _) => "The receiver accepted the test message.".to_owned(),
            (false, error) => format!("The test message was not accepted. {}", error.unwrap_or_default()),
        };
        AlertTestReport { was_accepted: result.was_accepted, text: text.trim_end().to_owned() }
    });
    let report = match report {
        // After a plain form post the page shows it as an error.
        Ok(report) if !report.was_accepted && super::is_plain_form() => Err(AppError::Failed(report.text)),
        report => report,
    };
    let notice = report.as_ref().map(|report| report.text.clone()).unwrap_or_default();
    let here = channel_address(id);
    super::respond(CHANNEL_FORM, report, |_| here.clone(), &notice, &here, ()).await
}

/// Returns the notice of a saved channel.
#[must_use]
pub const fn channel_saved_notice(is_edit: bool) -> &'static str {
    if is_edit { "The alert channel is saved." } else { "The alert channel is created. Send a test to check it." }
}

/// The address of the list of rules.
pub const RULES_ADDRESS: &str = "/alerts/rules";
/// Returns the name of the checkbox of a channel.
#[must_use]
pub fn channel_field(id: AlertChannelId) -> String {
    format!("id-{id}")
}

/// The address of the list of channels.
pub const CHANNELS_ADDRESS: &str = "/alerts/channels";

/// Returns the address of a rule's page.
#[must_use]
pub fn rule_address(id: AlertRuleId) -> String {
    format!("{RULES_ADDRESS}/{id}")
}

/// Returns the address of a channel's page.
#[must_use]
pub fn channel_address(id: AlertChannelId) -> String {
    format!("{CHANNELS_ADDRESS}/{id}")
}

/// The names of the forms in flash messages.
#[cfg(feature = "ssr")]
const RULE_FORM: &str = "alert-rule";
#[cfg(feature = "ssr")]
const CHANNEL_FORM: &str = "alert-channel";
