//! The page of a rule: its state, the mute, the form, and its latest alerts. A Viewer reads the definition in words.

use leptos::{prelude::*, server_fn::ServerFn};
use leptos_meta::Title;
use leptos_router::{
    NavigateOptions,
    hooks::{use_navigate, use_params_map},
};
use milvaion_api::{
    alerts::{Alert, AlertFilter, AlertRuleRow},
    permissions::Permission,
};
use milvaion_protocol::id::AlertRuleId;
use serde_json::Value;

use super::{
    badges::{rule_state, severity_badge},
    delete::{DeleteButton, DeletedObject},
    edited_form::{EditedForm, EditedFormButtons},
    filter::address,
    mute::{MuteForms, STATE_HEADING_ID},
    rows::{REFRESH_DELAY, is_about_alerts, use_server_now},
    rule_form::RuleFields,
    rules::{channel_names, selection},
    table::AlertTable,
};
use crate::{
    api::alerts::{
        AlertRuleForm, AlertRulePage as PageData, AlertRuleState, RULES_ADDRESS, SaveAlertRule, alert_rule,
        load_alert_rule, save_alert_rule,
    },
    components::{
        action_error::{ActionError, LastError},
        confirm::ConfirmSection,
        form::ErrorSummary,
        form_draft::{DraftNotice, FormDraft, render_with_draft},
        input_form::FormState,
        live_rows::LiveRows,
        loading::render_page,
        page_header::{Breadcrumbs, PageHeader},
        session_context::may,
        time::{MaybeTime, Time},
    },
    error::AppError,
    live::{ThrottledRefresh, live_page, set_if_changed},
};

/// `/alerts/rules/new`.
#[component]
pub fn NewAlertRulePage() -> impl IntoView {
    let data = Resource::new_blocking(|| (), |()| load_alert_rule(None));
    render_page(data, restorable)
}

/// `/alerts/rules/:id`.
#[component]
pub fn AlertRulePage() -> impl IntoView {
    let params = use_params_map();
    let id = Memo::new(move |_| params.with(|params| params.get("id").and_then(|id| id.parse::<AlertRuleId>().ok())));
    let data = Resource::new_blocking(
        move || id.get(),
        |id| async move { load_alert_rule(Some(id.ok_or_else(|| missing("alert rule"))?)).await },
    );
    render_page(data, restorable)
}

/// Returns the error for an address that does not hold an id.
pub(super) fn missing(noun: &str) -> AppError {
    let error = AppError::NotFound(format!("This {noun} does not exist or was deleted."));
    #[cfg(feature = "ssr")]
    let error = crate::api::with_error_status(error);
    error
}

fn restorable(data: PageData) -> AnyView {
    render_with_draft(data, restore_draft, |data, draft| match data.state {
        Some(state) if !may(Permission::DefineAlert) => view! { <ReadOnlyRule state/> }.into_any(),
        _ => view! { <RuleContent data draft/> }.into_any(),
    })
}

/// Returns the page with the values of a draft, at the version of the page. The values of a plain post that was just
/// rejected are newer.
fn restore_draft(mut data: PageData, values: Value) -> Option<PageData> {
    let form = serde_json::from_value::<AlertRuleForm>(values).ok()?;
    if form.id != data.form.id || !data.flash.typed.is_null() {
        return None;
    }
    data.form = AlertRuleForm { version: data.form.version, ..form };
    Some(data)
}

/// A rule that the page keeps current.
#[derive(Clone)]
struct LiveRule {
    rule: RwSignal<AlertRuleRow>,
    history: LiveRows<Alert>,
    refresh: ThrottledRefresh,
}

impl LiveRule {
    fn new(state: AlertRuleState) -> Self {
        let id = state.rule.id;
        let rule = RwSignal::new(state.rule);
        let history = LiveRows::new(state.history, |alert: &Alert| alert.id.to_string());
        let refresh = live_page(
            REFRESH_DELAY,
            move || alert_rule(id),
            is_about_alerts,
            move |read: AlertRuleState| {
                set_if_changed(rule, read.rule);
                history.apply(read.history, false);
            },
        );
        Self { rule, history, refresh }
    }
}

#[component]
fn RuleContent(data: PageData, draft: FormDraft) -> impl IntoView {
    let PageData { state, channels, form, flash } = data;
    let navigate = use_navigate();
    let edited = EditedForm::new(
        &flash,
        draft,
        |state: FormState| state.read::<SaveAlertRule>().map(|save| save.form),
        save_alert_rule,
        move |notice: String| {
            navigate(RULES_ADDRESS, NavigateOptions::default());
            notice
        },
    );
    let known = state.as_ref().map(|state| {
        let AlertRuleRow { id, version, definition, .. } = &state.rule;
        (DeletedObject::Rule(*id), *version, definition.name.clone())
    });
    let live = state.map(LiveRule::new);
    let (title, here, verb) = match &known {
        Some((_, _, name)) => (name.clone(), name.clone(), "Save"),
        None => ("New alert rule".to_owned(), "New".to_owned(), "Create"),
    };
    let delete_error = LastError::of("Delete rule");
    let delete = known.clone().map(|(object, version, name)| {
        view! { <DeleteButton object version name form=edited error=delete_error/> }
    });
    let section = known.map(|(object, version, name)| {
        view! { <ConfirmSection id="delete" what=object.question(version, &name)/> }
    });
    view! {
        <RuleHead title here>{delete}</RuleHead>
        <ActionError error=delete_error/>
        <DraftNotice draft noun="rule" version=form.version.clone() on_discard=move |()| edited.guarded.forget()/>
        <ErrorSummary id="error-summary" errors=edited.state.listed_errors()/>
        {section}
        {live.clone().map(|live| view! { <StateCard live edited/> })}
        <form
            id="alert-rule-form"
            class="form"
            method="post"
            action=SaveAlertRule::PATH
            node_ref=edited.state.node
            novalidate
            on:submit=move |event| edited.submit.run(event)
            on:input=move |_| edited.guarded.changed()
        >
            <input type="hidden" name="form[id]" value=form.id.clone()/>
            <input type="hidden" name="form[version]" value=form.version.clone()/>
            <RuleFields state=edited.state form channels/>
            <EditedFormButtons form=edited verb list=RULES_ADDRESS/>
        </form>
        {live.map(|live| view! { <History live/> })}
    }
}

#[component]
fn RuleHead(title: String, here: String, #[prop(optional)] children: Option<Children>) -> impl IntoView {
    view! {
        <Title text=format!("{title} · Alert rules")/>
        <Breadcrumbs
            steps=vec![("/alerts".into(), "Alerts".into()), (RULES_ADDRESS.into(), "Rules".into())]
            here
        />
        <PageHeader title>{children.map(|children| children())}</PageHeader>
    }
}

/// The state of the rule, and the forms that mute it.
#[component]
fn StateCard(live: LiveRule, edited: EditedForm) -> impl IntoView {
    let id = live.rule.with_untracked(|rule| rule.id);
    let now = use_server_now();
    let rule = live.rule;
    let muted_until = Memo::new(move |_| rule.with(|rule| rule.muted_until).filter(|until| *until > now.get()));
    let refresh = live.refresh.clone();
    let on_change = Callback::new(move |()| refresh.request_own());
    view! {
        <section class="card stack" aria-labelledby=STATE_HEADING_ID>
            <h2 class="card-title" id=STATE_HEADING_ID tabindex="-1">"State"</h2>
            <dl class="kv">
                <StateEntries live muted_until/>
            </dl>
            <MuteForms id muted_until state=edited.state on_change/>
        </section>
    }
}

#[component]
fn StateEntries(live: LiveRule, muted_until: Memo<Option<chrono::DateTime<chrono::Utc>>>) -> impl IntoView {
    let rule = live.rule;
    let changed = move || {
        let (at, by, version) = rule.with(|rule| (rule.modified_at, rule.modified_by.clone(), rule.version));
        view! { <Time at/> {format!(" by {by}, version {version}")} }
    };
    view! {
        <dt>"State"</dt>
        <dd>{move || rule.with(|rule| rule_state(rule, muted_until.get()))}</dd>
        <dt>"Last fired"</dt>
        <dd><MaybeTime at=Signal::derive(move || rule.with(|rule| rule.last_fired_at)) relative=true/></dd>
        <dt>"Changed"</dt>
        <dd>{changed}</dd>
    }
}

/// The latest alerts of the rule.
#[component]
fn History(live: LiveRule) -> impl IntoView {
    let LiveRule { rule, history, .. } = live;
    let id = rule.with_untracked(|rule| rule.id);
    let is_empty = Memo::new(move |_| history.is_empty());
    let all = address(&AlertFilter { rule: Some(id), ..AlertFilter::default() });
    view! {
        <section class="stack" aria-labelledby="history-heading">
            <h2 id="history-heading">"Alerts of this rule"</h2>
            <p class="muted" hidden=move || !is_empty.get()>"No alert yet. Each one is listed here from the moment it fires."</p>
            <div hidden=move || is_empty.get()>
                <AlertTable rows=history caption="Alerts of this rule, newest first"/>
            </div>
            <p hidden=move || history.next().is_none()><a href=all>"All alerts of this rule"</a></p>
        </section>
    }
}

/// The page of a rule for a Viewer.
#[component]
fn ReadOnlyRule(state: AlertRuleState) -> impl IntoView {
    let title = state.rule.definition.name.clone();
    let live = LiveRule::new(state);
    let now = use_server_now();
    let rule = live.rule;
    let muted_until = Memo::new(move |_| rule.with(|rule| rule.muted_until).filter(|until| *until > now.get()));
    let definition = Memo::new(move |_| rule.with(|rule| rule.definition.clone()));
    view! {
        <RuleHead title=title.clone() here=title/>
        <section class="card" aria-labelledby="definition-heading">
            <h2 class="card-title" id="definition-heading">"Definition"</h2>
            <dl class="kv">
                <dt>"Condition"</dt>
                <dd>{move || definition.with(|rule| rule.condition.describe())}</dd>
                <dt>"Severity"</dt>
                <dd>{move || severity_badge(definition.with(|rule| rule.severity))}</dd>
                <dt>"Applies to"</dt>
                <dd>{move || definition.with(selection)}</dd>
                <dt>"Channels"</dt>
                <dd>{move || definition.with(channel_names)}</dd>
                <StateEntries live=live.clone() muted_until/>
            </dl>
        </section>
        <History live/>
    }
}
