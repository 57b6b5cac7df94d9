//! The backend of the pages of alerts.

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use milvaion_api::{
    alerts::{Alert, AlertChannel, AlertChannelRow, AlertFilter, AlertRule, AlertRuleRow, AlertTestResult},
    page::ListPage,
};
use milvaion_app::{
    backend::{AlertBackend, RequestUser},
    error::AppError,
};
use milvaion_protocol::id::{AlertChannelId, AlertId, AlertRuleId};

use super::backend::ServerBackend;

#[async_trait]
impl AlertBackend for ServerBackend {
    async fn alerts(&self, _me: &RequestUser, filter: AlertFilter) -> Result<ListPage<Alert>, AppError> {
        Ok(self.store.alerts(&filter).await?)
    }

    async fn alert(&self, _me: &RequestUser, id: AlertId) -> Result<Alert, AppError> {
        let found = self.store.alert(id).await?;
        found.ok_or_else(|| AppError::NotFound("This alert does not exist, or its retention has ended.".into()))
    }

    async fn alert_rules(&self, _me: &RequestUser) -> Result<Vec<AlertRuleRow>, AppError> {
        Ok(self.store.alert_rules().await?)
    }

    async fn alert_rule(&self, _me: &RequestUser, id: AlertRuleId) -> Result<AlertRuleRow, AppError> {
        self.alerts.rule(id).await
    }

    async fn save_alert_rule(
        &self,
        me: &RequestUser,
        id: Option<AlertRuleId>,
        version: Option<i32>,
        rule: &AlertRule,
    ) -> Result<AlertRuleRow, AppError> {
        self.alerts.save_rule(me, id, version, rule).await
    }

    async fn mute_alert_rule(
        &self,
        me: &RequestUser,
        id: AlertRuleId,
        until: Option<DateTime<Utc>>,
    ) -> Result<AlertRuleRow, AppError> {
        self.alerts.mute(me, id, until).await
    }

    async fn delete_alert_rule(
        &self,
        me: &RequestUser,
        id: AlertRuleId,
        version: Option<i32>,
    ) -> Result<String, AppError> {
        self.alerts.delete_rule(me, id, version).await
    }

    async fn alert_channels(&self, _me: &RequestUser) -> Result<Vec<AlertChannelRow>, AppError> {
        Ok(self.store.alert_channels().await?)
    }

    async fn alert_channel(&self, _me: &RequestUser, id: AlertChannelId) -> Result<AlertChannelRow, AppError> {
        self.alerts.channel(id).await
    }

    async fn save_alert_channel(
        &self,
        me: &RequestUser,
        id: Option<AlertChannelId>,
        version: Option<i32>,
        channel: &AlertChannel,
    ) -> Result<AlertChannelRow, AppError> {
        self.alerts.save_channel(me, id, version, channel).await
    }

    async fn delete_alert_channel(
        &self,
        me: &RequestUser,
        id: AlertChannelId,
        version: Option<i32>,
    ) -> Result<String, AppError> {
        self.alerts.delete_channel(me, id, version).await
    }

    async fn test_alert_channel(&self, me: &RequestUser, id: AlertChannelId) -> Result<AlertTestResult, AppError> {
        self.alerts.test_channel(me, id).await
    }
}
