//! The operations on alerts, alert rules and alert channels.

use milvaion_api::{
    alerts::{Alert, AlertChannel, AlertChannelRow, AlertRule, AlertRuleRow, AlertTestResult, MuteAlertRule},
    permissions::Permission::{DefineAlert, ManageAlertChannels, Read},
    rest::{AlertQuery, Page},
};
use milvaion_protocol::id::{AlertChannelId, AlertId, AlertRuleId};
use schemars::JsonSchema;
use serde::Deserialize;

use super::{
    ApiState,
    endpoint::{ApiResult, Call, Endpoint, Nothing, Reply},
    operation::{Operation, TagScope},
    problem::ApiError,
};

/// The path of an alert.
#[derive(Debug, Deserialize, JsonSchema)]
struct AlertPath {
    /// The id of the alert.
    id: AlertId,
}

/// The path of an alert rule.
#[derive(Debug, Deserialize, JsonSchema)]
struct RulePath {
    /// The id of the alert rule.
    id: AlertRuleId,
}

/// The path of an alert channel.
#[derive(Debug, Deserialize, JsonSchema)]
struct ChannelPath {
    /// The id of the alert channel.
    id: AlertChannelId,
}

/// Returns the operations.
pub(super) fn endpoints() -> Vec<Endpoint> {
    let read = Operation {
        method: "GET",
        path: "/alerts",
        id: "listAlerts",
        group: "Alerts",
        summary: "List alerts, newest first",
        permission: Read,
        scope: TagScope::Refused,
        success: 200,
        has_secret: false,
        is_versioned: false,
    };
    let mut endpoints = vec![
        Endpoint::json(read, list),
        Endpoint::json(Operation { path: "/alerts/{id}", id: "getAlert", summary: "Read an alert", ..read }, get),
    ];
    endpoints.extend(rules(Operation { path: "/alert-rules", ..read }));
    endpoints.extend(channels(Operation { path: "/alert-channels", permission: DefineAlert, ..read }));
    endpoints
}

fn rules(all: Operation) -> Vec<Endpoint> {
    let read_one = Operation { path: "/alert-rules/{id}", ..all };
    let change_one = Operation { permission: DefineAlert, is_versioned: true, ..read_one };
    vec![
        Endpoint::json(Operation { id: "listAlertRules", summary: "List all alert rules by name", ..all }, list_rules),
        Endpoint::json(
            Operation {
                method: "POST",
                id: "createAlertRule",
                summary: "Create an alert rule",
                permission: DefineAlert,
                success: 201,
                ..all
            },
            create_rule,
        ),
        Endpoint::json(Operation { id: "getAlertRule", summary: "Read an alert rule", ..read_one }, get_rule),
        Endpoint::json(
            Operation {
                method: "PUT",
                id: "replaceAlertRule",
                summary: "Replace the definition of an alert rule",
                ..change_one
            },
            replace_rule,
        ),
        Endpoint::json(
            Operation {
                method: "DELETE",
                id: "deleteAlertRule",
                summary: "Delete an alert rule with its alerts",
                success: 204,
                ..change_one
            },
            delete_rule,
        ),
        Endpoint::json(
            Operation {
                method: "POST",
                path: "/alert-rules/{id}/mute",
                id: "muteAlertRule",
                summary: "Mute an alert rule until a time, or end its mute",
                permission: DefineAlert,
                ..all
            },
            mute_rule,
        ),
    ]
}

fn channels(all: Operation) -> Vec<Endpoint> {
    let read_one = Operation { path: "/alert-channels/{id}", ..all };
    let change_one = Operation { permission: ManageAlertChannels, is_versioned: true, ..read_one };
    vec![
        Endpoint::json(
            Operation { id: "listAlertChannels", summary: "List all alert channels by name", ..all },
            list_channels,
        ),
        Endpoint::json(
            Operation {
                method: "POST",
                id: "createAlertChannel",
                summary: "Create an alert channel",
                permission: ManageAlertChannels,
                success: 201,
                ..all
            },
            create_channel,
        ),
        Endpoint::json(Operation { id: "getAlertChannel", summary: "Read an alert channel", ..read_one }, get_channel),
        Endpoint::json(
            Operation {
                method: "PUT",
                id: "replaceAlertChannel",
                summary: "Replace the definition of an alert channel",
                ..change_one
            },
            replace_channel,
        ),
        Endpoint::json(
            Operation {
                method: "DELETE",
                id: "deleteAlertChannel",
                summary: "Delete an alert channel that no rule uses",
                success: 204,
                ..change_one
            },
            delete_channel,
        ),
        Endpoint::json(
            Operation {
                method: "POST",
                path: "/alert-channels/{id}/test",
                id: "testAlertChannel",
                summary: "Send a test message over an alert channel",
                permission: ManageAlertChannels,
                ..all
            },
            test_channel,
        ),
    ]
}

async fn list(state: ApiState, call: Call<Nothing, AlertQuery, Nothing>) -> ApiResult<Page<Alert>> {
    Ok(Reply::of(Page::of(state.backend.alerts(&call.me, call.query.clone().into()).await?)))
}

async fn get(state: ApiState, call: Call<AlertPath, Nothing, Nothing>) -> ApiResult<Alert> {
    Ok(Reply::of(state.backend.alert(&call.me, call.path.id).await?))
}

fn rule_reply(rule: AlertRuleRow) -> Reply<AlertRuleRow> {
    let version = rule.version;
    Reply::of(rule).version(version)
}

async fn list_rules(state: ApiState, call: Call<Nothing, Nothing, Nothing>) -> ApiResult<Page<AlertRuleRow>> {
    Ok(Reply::of(Page::all(state.backend.alert_rules(&call.me).await?)))
}

async fn get_rule(state: ApiState, call: Call<RulePath, Nothing, Nothing>) -> ApiResult<AlertRuleRow> {
    Ok(rule_reply(state.backend.alert_rule(&call.me, call.path.id).await?))
}

async fn create_rule(state: ApiState, call: Call<Nothing, Nothing, AlertRule>) -> ApiResult<AlertRuleRow> {
    let rule = state.backend.save_alert_rule(&call.me, None, None, &call.body).await?;
    let location = format!("/alert-rules/{}", rule.id);
    Ok(rule_reply(rule).location(location))
}

async fn replace_rule(state: ApiState, call: Call<RulePath, Nothing, AlertRule>) -> ApiResult<AlertRuleRow> {
    let expected = call.expected_version()?;
    let saved = state.backend.save_alert_rule(&call.me, Some(call.path.id), expected, &call.body).await;
    Ok(rule_reply(saved.map_err(|error| ApiError::from(error).of_expected(expected.is_some()))?))
}

async fn delete_rule(state: ApiState, call: Call<RulePath, Nothing, Nothing>) -> ApiResult<()> {
    let expected = call.expected_version()?;
    let deleted = state.backend.delete_alert_rule(&call.me, call.path.id, expected).await;
    deleted.map_err(|error| ApiError::from(error).of_expected(expected.is_some()))?;
    Ok(Reply::of(()))
}

async fn mute_rule(state: ApiState, call: Call<RulePath, Nothing, MuteAlertRule>) -> ApiResult<AlertRuleRow> {
    Ok(rule_reply(state.backend.mute_alert_rule(&call.me, call.path.id, call.body.until).await?))
}

fn channel_reply(channel: AlertChannelRow) -> Reply<AlertChannelRow> {
    let version = channel.version;
    Reply::of(channel).version(version)
}

async fn list_channels(state: ApiState, call: Call<Nothing, Nothing, Nothing>) -> ApiResult<Page<AlertChannelRow>> {
    Ok(Reply::of(Page::all(state.backend.alert_channels(&call.me).await?)))
}

async fn get_channel(state: ApiState, call: Call<ChannelPath, Nothing, Nothing>) -> ApiResult<AlertChannelRow> {
    Ok(channel_reply(state.backend.alert_channel(&call.me, call.path.id).await?))
}

async fn create_channel(state: ApiState, call: Call<Nothing, Nothing, AlertChannel>) -> ApiResult<AlertChannelRow> {
    let channel = state.backend.save_alert_channel(&call.me, None, None, &call.body).await?;
    let location = format!("/alert-channels/{}", channel.id);
    Ok(channel_reply(channel).location(location))
}

async fn replace_channel(
    state: ApiState,
    call: Call<ChannelPath, Nothing, AlertChannel>,
) -> ApiResult<AlertChannelRow> {
    let expected = call.expected_version()?;
    let saved = state.backend.save_alert_channel(&call.me, Some(call.path.id), expected, &call.body).await;
    Ok(channel_reply(saved.map_err(|error| ApiError::from(error).of_expected(expected.is_some()))?))
}

async fn delete_channel(state: ApiState, call: Call<ChannelPath, Nothing, Nothing>) -> ApiResult<()> {
    let expected = call.expected_version()?;
    let channel = state.backend.alert_channel(&call.me, call.path.id).await?;
    if let Some(expected) = expected.filter(|expected| *expected != channel.version) {
        let version = channel.version;
        return Err(ApiError::version(format!("This alert channel is at version {version}, not {expected}.")));
    }
    state.backend.delete_alert_channel(&call.me, call.path.id, expected).await?;
    Ok(Reply::of(()))
}

async fn test_channel(state: ApiState, call: Call<ChannelPath, Nothing, Nothing>) -> ApiResult<AlertTestResult> {
    Ok(Reply::of(state.backend.test_alert_channel(&call.me, call.path.id).await?))
}
