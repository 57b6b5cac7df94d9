//! The alert rules of files: compared by name, and saved with the other objects of a file.

use std::collections::HashMap;

use milvaion_api::{
    alerts::{AlertChannelRow, AlertRule, AlertRuleRow, MAX_ALERT_RULES},
    requests::FieldError,
    rest::{ApplyFiles, DocumentKind, DocumentPlan, FileDocument, PlannedOutcome},
};
use milvaion_protocol::id::{AlertChannelId, AlertRuleId};

use super::documents;
use crate::{
    command::{alerts::checked_rule, jobs::JobCommands},
    domain::file_plan::{document_plan, to_json},
    store::StoreError,
};

/// An alert rule that is created or changed.
#[derive(Debug)]
pub(super) struct PlannedRule {
    pub(super) id: AlertRuleId,
    /// The version that is changed; none for a new rule.
    pub(super) version: Option<i32>,
    pub(super) rule: AlertRule,
    pub(super) channels: Vec<AlertChannelId>,
}

/// What is stored about the rules that a request names.
#[derive(Debug, Default)]
pub(super) struct StoredRules {
    rules: HashMap<String, AlertRuleRow>,
    channels: Vec<AlertChannelRow>,
}

impl StoredRules {
    /// Returns the number of rules that may be added.
    pub(super) fn room(&self) -> usize {
        usize::try_from(MAX_ALERT_RULES).unwrap_or_default().saturating_sub(self.rules.len())
    }
}

impl JobCommands {
    /// Reads the alert rules and channels, if a document of the request is about a rule.
    pub(super) async fn read_rules(&self, request: &ApplyFiles) -> Result<StoredRules, StoreError> {
        if !documents(request).any(|(_, document)| matches!(document, FileDocument::AlertRule(_))) {
            return Ok(StoredRules::default());
        }
        let rules = self.store.alert_rules().await?;
        Ok(StoredRules {
            rules: rules.into_iter().map(|row| (row.definition.name.clone(), row)).collect(),
            channels: self.store.alert_channels().await?,
        })
    }

    /// Checks a rule and compares it with the stored one. Returns the change, if there is one, and its report.
    pub(super) fn plan_rule(
        &self,
        rule: &AlertRule,
        stored: &StoredRules,
        budget: &mut usize,
    ) -> Result<(Option<PlannedRule>, DocumentPlan), Vec<FieldError>> {
        let (mut rule, channels) = checked_rule(rule, &stored.channels)?;
        // As they are read.
        rule.channels.sort_by_key(|name| name.to_lowercase());
        let before = stored.rules.get(&rule.name);
        let earlier = before.map(|before| &before.definition);
        let report = document_plan(DocumentKind::AlertRule, &rule.name, earlier, &rule, to_json, budget);
        if report.outcome == PlannedOutcome::Unchanged {
            return Ok((None, report));
        }
        let id = before.map_or_else(|| self.clock.alert_rule_id(), |before| before.id);
        Ok((Some(PlannedRule { id, version: before.map(|before| before.version), rule, channels }), report))
    }
}
