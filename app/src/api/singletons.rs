//! The server functions of the page of singleton loops.

use leptos::prelude::*;
use milvaion_api::singletons::SingletonLoopList;
use serde::{Deserialize, Serialize};
use server_fn::codec::GetUrl;

use super::codec::JsonText;
use crate::error::AppError;

/// The address of the page.
pub const ADDRESS: &str = "/singleton-loops";

/// An action on a singleton loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LoopAction {
    /// Lets the loop run.
    Enable,
    /// Stops the loop on every instance.
    Disable,
    /// Hands the loop over to another instance.
    Yield,
    /// Removes the loop from the page.
    Forget,
}

impl LoopAction {
    /// Every action.
    pub const ALL: [Self; 4] = [Self::Enable, Self::Disable, Self::Yield, Self::Forget];

    /// Returns the word in forms and addresses.
    #[must_use]
    pub const fn slug(self) -> &'static str {
        match self {
            Self::Enable => "enable",
            Self::Disable => "disable",
            Self::Yield => "yield",
            Self::Forget => "forget",
        }
    }

    /// Returns the action of a [`slug`](Self::slug).
    #[must_use]
    pub fn from_slug(slug: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|action| action.slug() == slug)
    }

    /// Returns the notice after the action.
    #[must_use]
    pub fn notice(self, name: &str) -> String {
        match self {
            Self::Enable => format!("The singleton loop {name} is enabled."),
            Self::Disable => format!("The singleton loop {name} is disabled."),
            Self::Yield => format!("The leader of the singleton loop {name} is asked to hand it over."),
            Self::Forget => format!("The singleton loop {name} is forgotten."),
        }
    }
}

/// Lists every singleton loop, ordered by name.
#[server(input = GetUrl, output = JsonText, endpoint = "singleton_loops")]
pub async fn singleton_loops() -> Result<SingletonLoopList, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::Read).await?;
    backend.singleton_loops(&me).await.map_err(super::with_error_status)
}

/// Carries out an action on a singleton loop and returns its notice.
///
/// # Errors
///
/// `Denied` below Operator; `NotFound` for an unknown loop; `Conflict` if its state does not permit the action;
/// `Unavailable` if a service is down.
#[server(output = JsonText, endpoint = "control_loop")]
pub async fn control_loop(#[server(default)] name: String, action: LoopAction) -> Result<String, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::ControlLoops).await?;
    let result = match action {
        LoopAction::Enable => backend.set_loop_enabled(&me, &name, true).await,
        LoopAction::Disable => backend.set_loop_enabled(&me, &name, false).await,
        LoopAction::Yield => backend.yield_loop(&me, &name).await,
        LoopAction::Forget => backend.forget_loop(&me, &name).await,
    };
    let result = result.map(|()| action.notice(&name));
    let notice = result.clone().unwrap_or_default();
    super::respond(FORM, result, |_| ADDRESS.into(), &notice, ADDRESS, ()).await
}

/// The name of the forms of the page in flash messages.
pub const FORM: &str = "singleton-loops";
