//! The part of the backend that manages alerts: rules, channels, and what fires.

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use milvaion_api::{
    alerts::{Alert, AlertChannel, AlertChannelRow, AlertFilter, AlertRule, AlertRuleRow, AlertTestResult},
    page::ListPage,
};
use milvaion_protocol::id::{AlertChannelId, AlertId, AlertRuleId};

use super::RequestUser;
use crate::error::AppError;

/// The operations on alerts. All roles read alerts and rules, Operators define rules, and Admins define channels.
#[async_trait]
pub trait AlertBackend: Send + Sync + 'static {
    /// Returns a page of alerts, newest first.
    async fn alerts(&self, me: &RequestUser, filter: AlertFilter) -> Result<ListPage<Alert>, AppError>;
    /// Returns one alert; `NotFound` if it does not exist, or if its retention has ended.
    async fn alert(&self, me: &RequestUser, id: AlertId) -> Result<Alert, AppError>;
    /// Returns every rule, ordered by name; there are at most 200.
    async fn alert_rules(&self, me: &RequestUser) -> Result<Vec<AlertRuleRow>, AppError>;
    /// Returns one rule.
    async fn alert_rule(&self, me: &RequestUser, id: AlertRuleId) -> Result<AlertRuleRow, AppError>;
    /// Creates a rule, or replaces rule `id` if its version is still `version`; without a version, whatever it is.
    /// `Fields` for invalid fields, with the names in JSON; `Conflict` for a taken name or another version.
    async fn save_alert_rule(
        &self,
        me: &RequestUser,
        id: Option<AlertRuleId>,
        version: Option<i32>,
        rule: &AlertRule,
    ) -> Result<AlertRuleRow, AppError>;
    /// Mutes a rule until an instant, or ends its mute. Its alerts still show on the dashboard.
    async fn mute_alert_rule(
        &self,
        me: &RequestUser,
        id: AlertRuleId,
        until: Option<DateTime<Utc>>,
    ) -> Result<AlertRuleRow, AppError>;
    /// Deletes a rule with its alerts, if its version is still `version`, and returns its name.
    async fn delete_alert_rule(
        &self,
        me: &RequestUser,
        id: AlertRuleId,
        version: Option<i32>,
    ) -> Result<String, AppError>;
    /// Returns every channel, ordered by name; there are at most 50.
    async fn alert_channels(&self, me: &RequestUser) -> Result<Vec<AlertChannelRow>, AppError>;
    /// Returns one channel.
    async fn alert_channel(&self, me: &RequestUser, id: AlertChannelId) -> Result<AlertChannelRow, AppError>;
    /// Creates a channel, or replaces channel `id`, as [`save_alert_rule`](Self::save_alert_rule) does.
    async fn save_alert_channel(
        &self,
        me: &RequestUser,
        id: Option<AlertChannelId>,
        version: Option<i32>,
        channel: &AlertChannel,
    ) -> Result<AlertChannelRow, AppError>;
    /// Deletes a channel that no rule uses, if its version is still `version`, and returns its name. `Conflict` while a
    /// rule uses it.
    async fn delete_alert_channel(
        &self,
        me: &RequestUser,
        id: AlertChannelId,
        version: Option<i32>,
    ) -> Result<String, AppError>;
    /// Sends a test message over a channel and returns the result. Takes at most 15 s.
    async fn test_alert_channel(&self, me: &RequestUser, id: AlertChannelId) -> Result<AlertTestResult, AppError>;
}
