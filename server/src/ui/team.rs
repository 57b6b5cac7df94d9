//! The [`TeamBackend`] implementation of [`ServerBackend`]: the team.
//!
//! After a change of a user, every server checks the user's open event streams, so that open pages follow within a
//! second.

use async_trait::async_trait;
use milvaion_api::{
    permissions::Role,
    team::{PersonView, TeamFilter, TeamView},
};
use milvaion_app::{
    backend::{RequestUser, TeamBackend},
    error::AppError,
};
use milvaion_protocol::id::{SessionId, UserId};

use super::backend::ServerBackend;
use crate::command::{
    one_time_links,
    team::{self, TeamOutcome},
};

impl ServerBackend {
    /// Reports a change of a user to the user's open pages.
    fn report_change(&self, id: UserId, outcome: TeamOutcome) {
        if outcome == TeamOutcome::Changed {
            self.check_streams_of(id);
        }
    }
}

#[async_trait]
impl TeamBackend for ServerBackend {
    async fn team(&self, _me: &RequestUser, filter: TeamFilter) -> Result<TeamView, AppError> {
        team::list(&self.store, &self.clock, &filter).await
    }

    async fn person(&self, _me: &RequestUser, id: UserId) -> Result<PersonView, AppError> {
        team::person(&self.store, &self.clock, id).await
    }

    async fn invite_user(&self, me: &RequestUser, name: &str, role: Role) -> Result<String, AppError> {
        one_time_links::invite(&self.store, &self.clock, me, name, role).await
    }

    async fn renew_invite(&self, me: &RequestUser, id: UserId) -> Result<String, AppError> {
        one_time_links::renew_invite(&self.store, &self.clock, me, id).await
    }

    async fn revoke_invite(&self, me: &RequestUser, id: UserId) -> Result<(), AppError> {
        one_time_links::revoke_invite(&self.store, &self.clock, me, id).await
    }

    async fn change_role(&self, me: &RequestUser, id: UserId, role: Role, confirm_self: bool) -> Result<(), AppError> {
        let outcome = team::change_role(&self.store, &self.clock, me, id, role, confirm_self).await?;
        self.report_change(id, outcome);
        Ok(())
    }

    async fn set_user_active(&self, me: &RequestUser, id: UserId, active: bool) -> Result<(), AppError> {
        let outcome = team::set_active(&self.store, &self.clock, me, id, active).await?;
        self.report_change(id, outcome);
        Ok(())
    }

    async fn remove_user(&self, me: &RequestUser, id: UserId) -> Result<(), AppError> {
        let outcome = team::remove(&self.store, &self.clock, me, id).await?;
        self.report_change(id, outcome);
        Ok(())
    }

    async fn create_reset_link(&self, me: &RequestUser, id: UserId) -> Result<String, AppError> {
        team::create_reset_link(&self.store, &self.clock, me, id).await
    }

    async fn revoke_reset_link(&self, me: &RequestUser, id: UserId) -> Result<(), AppError> {
        team::revoke_reset_link(&self.store, &self.clock, me, id).await
    }

    async fn unlock_user(&self, me: &RequestUser, id: UserId) -> Result<(), AppError> {
        team::unlock(&self.store, &self.clock, me, id).await
    }

    async fn end_user_sessions(
        &self,
        me: &RequestUser,
        id: UserId,
        session: Option<SessionId>,
    ) -> Result<u32, AppError> {
        let ended = team::end_sessions(&self.store, &self.clock, me, id, session).await?;
        if ended > 0 {
            self.check_streams_of(id);
        }
        Ok(ended)
    }
}
