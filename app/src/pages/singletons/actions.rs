//! The actions on a loop: forms that work without scripts, and a confirmation of those that stop or remove something.

use leptos::{ev::SubmitEvent, prelude::*, server_fn::ServerFn};
use leptos_router::hooks::use_query_map;
use milvaion_api::singletons::{LoopStatus, SingletonLoop};

use crate::{
    api::{
        session::query_value,
        singletons::{ADDRESS, ControlLoop, LoopAction, control_loop},
    },
    browser::PAGE_TITLE_ID,
    components::{
        action::{SubmitButton, UserAction, use_action},
        action_error::LastError,
        confirm::{AskButton, Confirmation, RowQuestion, confirm_section},
        focus::hand_focus,
        icon::Icon,
        live_rows::LiveRows,
    },
};

/// Returns the ids of the card of a loop and of its heading.
pub(super) fn card_ids(name: &str) -> (String, String) {
    (format!("loop-card:{name}"), format!("loop-{name}"))
}

/// The actions of the page, with their last error.
#[derive(Clone, Copy)]
pub struct LoopActions {
    /// The error of the last action.
    pub error: LastError,
    /// The number of actions that have ended; each one reads the loops again.
    pub changes: RwSignal<u32>,
    /// The question before an action.
    pub question: RowQuestion,
    action: UserAction,
}

impl LoopActions {
    /// Creates the state of a page without actions.
    pub(super) fn new() -> Self {
        let error = LastError::of("Change singleton loop");
        let (changes, question) = (RwSignal::new(0), RowQuestion::default());
        Self { error, changes, question, action: use_action(error) }
    }

    fn run(self, action: LoopAction, name: String) {
        self.action.run(async move {
            let (card, heading) = card_ids(&name);
            let answer = control_loop(name, action).await;
            if answer.is_ok() {
                // The button disappears, or the whole card.
                hand_focus(&card, if action == LoopAction::Forget { PAGE_TITLE_ID } else { &heading });
            }
            let _ = self.changes.try_update(|changes| *changes += 1);
            answer.map(Some)
        });
    }
}

const fn label(action: LoopAction) -> &'static str {
    match action {
        LoopAction::Enable => "Enable",
        LoopAction::Disable => "Disable…",
        LoopAction::Yield => "Yield leadership…",
        LoopAction::Forget => "Forget…",
    }
}

const fn icon(action: LoopAction) -> &'static str {
    match action {
        LoopAction::Enable => "play",
        LoopAction::Disable => "pause",
        LoopAction::Yield => "arrow-right",
        LoopAction::Forget => "trash-2",
    }
}

/// Returns the label of the confirming button.
const fn verb(action: LoopAction) -> &'static str {
    match action {
        LoopAction::Enable => "Enable loop",
        LoopAction::Disable => "Disable loop",
        LoopAction::Yield => "Yield leadership",
        LoopAction::Forget => "Forget loop",
    }
}

const fn consequence(action: LoopAction) -> &'static str {
    match action {
        LoopAction::Enable => "An instance that offers the loop takes the lease and runs it.",
        LoopAction::Disable => {
            "The run in progress is cancelled, and no instance runs the loop until it is enabled again. It stays disabled if Redis loses its data."
        }
        LoopAction::Yield => {
            "The leader cancels its run in progress and releases the lease. Another instance that offers the loop takes over with a higher epoch."
        }
        LoopAction::Forget => {
            "The loop is removed from this page with its counters. An instance that offers it again makes it appear again, enabled and with a higher epoch."
        }
    }
}

/// Returns the question before an action on a loop.
fn question(action: LoopAction, name: &str) -> Confirmation {
    let title = match action {
        LoopAction::Yield => format!("Yield the leadership of {name}?"),
        other => format!("{} {name}?", verb(other)),
    };
    let fields = vec![("name", name.to_owned()), ("action", action.slug().to_owned())];
    Confirmation::new(title, consequence(action), verb(action)).with_form(ControlLoop::PATH, fields, ADDRESS)
}

/// Returns true if the action is offered for a loop.
fn is_offered(action: LoopAction, row: &SingletonLoop) -> bool {
    match action {
        LoopAction::Enable => !row.is_enabled,
        LoopAction::Disable => row.is_enabled,
        LoopAction::Yield => row.status == LoopStatus::Leading && row.instance_count > 1 && !row.is_yield_requested,
        LoopAction::Forget => row.instance_count == 0 && row.leader.is_none(),
    }
}

/// The buttons of a loop.
#[component]
pub fn LoopButtons(
    /// The loop.
    row: RwSignal<SingletonLoop>,
    /// The actions of the page.
    actions: LoopActions,
) -> impl IntoView {
    let name = row.with_untracked(|row| row.name.clone());
    let hides = move |action| row.with(|row| !is_offered(action, row));
    let of = format!(" {name}");
    let enable = {
        let name = name.clone();
        move |event: SubmitEvent| {
            event.prevent_default();
            actions.run(LoopAction::Enable, name.clone());
        }
    };
    let confirmed: Vec<_> = [LoopAction::Yield, LoopAction::Disable, LoopAction::Forget]
        .into_iter()
        .map(|action| {
            let asked = name.clone();
            let ask = move |()| {
                let name = asked.clone();
                actions.question.ask(question(action, &asked), move || actions.run(action, name.clone()));
            };
            view! {
                <span hidden=move || hides(action)>
                    <AskButton
                        action=actions.action
                        label=label(action)
                        icon=icon(action)
                        class=if action == LoopAction::Forget { "btn btn-small btn-danger" } else { "btn btn-small" }
                        name=format!("{} {name}", label(action))
                        href=format!("{ADDRESS}?confirm={}&loop={}#confirm", action.slug(), query_value(&name))
                        on_ask=ask
                    />
                </span>
            }
        })
        .collect();
    view! {
        <div class="cluster">
            <form method="post" action=ControlLoop::PATH on:submit=enable hidden=move || hides(LoopAction::Enable)>
                <input type="hidden" name="name" value=name/>
                <input type="hidden" name="action" value=LoopAction::Enable.slug()/>
                <SubmitButton is_busy=actions.action.pending() class="btn btn-small">
                    <Icon name=icon(LoopAction::Enable)/>
                    {label(LoopAction::Enable)}
                    <span class="sr-only">{of}</span>
                </SubmitButton>
            </form>
            {confirmed}
        </div>
    }
}

/// The confirmation as a section of the page, for users without scripts. Drawn if the address asks for it.
#[component]
pub fn LoopConfirmationSection(
    /// The loops of the page.
    rows: LiveRows<SingletonLoop>,
) -> impl IntoView {
    let query = use_query_map();
    let asked = query.with_untracked(|query| {
        let action = LoopAction::from_slug(&query.get("confirm")?)?;
        let name = query.get("loop").filter(|name| rows.find(name).is_some())?;
        Some(question(action, &name))
    });
    asked.map(|what| confirm_section("confirm", what))
}

#[cfg(test)]
mod tests {
    use milvaion_api::singletons::LoopLeader;

    use super::*;

    fn offered(row: &SingletonLoop) -> Vec<LoopAction> {
        LoopAction::ALL.into_iter().filter(|action| is_offered(*action, row)).collect()
    }

    #[test]
    fn actions_follow_the_state_of_the_loop() {
        let leader = Some(LoopLeader::default());
        let led = SingletonLoop {
            is_enabled: true,
            status: LoopStatus::Leading,
            leader: leader.clone(),
            instance_count: 1,
            ..SingletonLoop::default()
        };
        assert_eq!(offered(&led), [LoopAction::Disable]);
        let two = SingletonLoop { instance_count: 2, ..led.clone() };
        assert_eq!(offered(&two), [LoopAction::Disable, LoopAction::Yield]);
        assert_eq!(offered(&SingletonLoop { is_yield_requested: true, ..two }), [LoopAction::Disable]);
        let disabled = SingletonLoop { is_enabled: false, status: LoopStatus::Disabled, ..led.clone() };
        assert_eq!(offered(&disabled), [LoopAction::Enable]);
        let gone = SingletonLoop { leader: None, instance_count: 0, status: LoopStatus::NotOffered, ..led };
        assert_eq!(offered(&gone), [LoopAction::Disable, LoopAction::Forget]);
    }
}
