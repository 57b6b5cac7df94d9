//! The badges of alerts and rules: an icon, a word and a color.

use chrono::{DateTime, Utc};
use leptos::prelude::*;
use milvaion_api::alerts::{AlertRuleRow, AlertSeverity};

use crate::components::{icon::Icon, time::Time};

/// Returns the status whose color family a severity has, and the icon.
const fn look(severity: AlertSeverity) -> (&'static str, &'static str) {
    match severity {
        AlertSeverity::Critical => ("failed", "octagon-x"),
        AlertSeverity::Warning => ("retrying", "triangle-alert"),
    }
}

/// Draws a badge.
pub(super) fn badge(status: &'static str, icon: &'static str, word: impl Into<String>) -> AnyView {
    view! {
        <span class="badge" data-status=status>
            <Icon name=icon/>
            <span>{word.into()}</span>
        </span>
    }
    .into_any()
}

/// Draws the badge of a severity.
pub(super) fn severity_badge(severity: AlertSeverity) -> AnyView {
    let (status, icon) = look(severity);
    badge(status, icon, severity.label())
}

/// Draws the badge of a switch that is off.
pub(super) fn off_badge() -> AnyView {
    badge("paused", "circle-pause", "Off")
}

/// Draws the state of a rule: off, firing or not, and muted.
pub(super) fn rule_state(rule: &AlertRuleRow, muted_until: Option<DateTime<Utc>>) -> AnyView {
    let state = match (rule.firing, rule.definition.is_enabled) {
        (1.., _) => badge(look(rule.definition.severity).0, "bell", format!("Firing: {}", rule.firing)),
        (_, true) => badge("active", "circle-check", "Not firing"),
        (_, false) => off_badge(),
    };
    let muted = muted_until.map(|until| {
        view! {
            {badge("paused", "bell-off", "Muted")}
            <div class="row-note">"Until " <Time at=until/></div>
        }
    });
    view! { <div>{state} " " {muted}</div> }.into_any()
}
