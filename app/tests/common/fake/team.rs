//! The [`TeamBackend`] implementation of [`FakeBackend`]: a small team that the actions change.

use std::sync::MutexGuard;

use async_trait::async_trait;
use chrono::TimeDelta;
use milvaion_api::{
    permissions::Role,
    team::{OwnedJob, PendingInvite, PendingReset, PersonView, SessionView, TeamFilter, TeamRow, TeamView, UserState},
    views::CurrentUser,
};
use milvaion_app::{
    backend::{RequestUser, TeamBackend},
    error::AppError,
};
use milvaion_protocol::id::{SessionId, UserId};

use super::FakeBackend;
use crate::common::samples;

/// Returns the id of the Operator Grace, who is active.
pub(crate) fn grace() -> UserId {
    UserId::from_parts(samples::at(0), [5; 10])
}

/// Returns the id of the Viewer Linus, who is locked.
pub(crate) fn linus() -> UserId {
    UserId::from_parts(samples::at(0), [6; 10])
}

/// Returns the id of the Operator Edsger, who is deactivated.
pub(crate) fn edsger() -> UserId {
    UserId::from_parts(samples::at(0), [7; 10])
}

/// Returns the id of the open invitation of Barbara.
pub(crate) fn barbara() -> UserId {
    UserId::from_parts(samples::at(0), [4; 10])
}

/// Returns the id of the expired invitation of Tim.
pub(crate) fn tim() -> UserId {
    UserId::from_parts(samples::at(0), [8; 10])
}

/// Returns the id of the session of Grace with this number, 1 or 2.
pub(crate) fn session_of_grace(number: u8) -> SessionId {
    SessionId::from_parts(samples::at(0), [50 + number; 10])
}

/// The users and invitations of a fake.
pub(crate) struct FakeTeam {
    users: Vec<PersonView>,
    invites: Vec<TeamRow>,
}

impl FakeTeam {
    /// Returns a team in which every state occurs and `me` is the only Admin, if at all.
    pub(crate) fn around(me: CurrentUser) -> Self {
        let mut own = user(me, UserState::Active);
        own.sessions = vec![session(SessionId::from_parts(samples::at(0), [30; 10]), "Firefox on Linux", true)];
        let mut grace = user(named(grace(), "Grace", Role::Operator), UserState::Active);
        grace.sessions = vec![
            session(session_of_grace(1), "Chrome on Windows", false),
            session(session_of_grace(2), "Safari on iPhone", false),
        ];
        grace.jobs = vec![OwnedJob { id: samples::job_id(), name: "nightly report".into(), is_active: false }];
        grace.jobs_total = 3;
        let mut linus = user(named(linus(), "Linus", Role::Viewer), UserState::Locked);
        linus.locked_until = Some(samples::at(900));
        linus.reset = Some(PendingReset {
            created_by: "ada@example.org".into(),
            created_at: samples::at(-60),
            expires_at: samples::at(86_340),
        });
        let mut edsger = user(named(edsger(), "Edsger", Role::Operator), UserState::Deactivated);
        edsger.deactivated_at = Some(samples::at(-3_600));
        Self {
            users: vec![own, edsger, grace, linus],
            invites: vec![
                invite(barbara(), "Barbara", Role::Viewer, false),
                invite(tim(), "Tim", Role::Operator, true),
            ],
        }
    }

    /// Returns a team of `me` alone.
    pub(crate) fn only(me: CurrentUser) -> Self {
        Self { users: vec![user(me, UserState::Active)], invites: Vec::new() }
    }

    /// Gives Grace the role Admin.
    pub(crate) fn make_grace_admin(&mut self) {
        if let Some(user) = self.users.iter_mut().find(|view| view.user.id == grace()) {
            user.user.role = Role::Admin;
        }
    }

    fn user(&mut self, id: UserId) -> Result<&mut PersonView, AppError> {
        let missing = || AppError::NotFound("This user does not exist or has been removed.".into());
        self.users.iter_mut().find(|view| view.user.id == id).ok_or_else(missing)
    }

    fn invite(&mut self, id: UserId) -> Result<&mut TeamRow, AppError> {
        let missing = || AppError::NotFound("This invitation was used or revoked.".into());
        self.invites.iter_mut().find(|row| row.id == id).ok_or_else(missing)
    }

    fn is_last_admin(&self, id: UserId) -> bool {
        let is_admin = |view: &&PersonView| view.user.role == Role::Admin && view.state != UserState::Deactivated;
        self.users.iter().filter(is_admin).map(|view| view.user.id).eq([id])
    }

    fn rows(&self) -> Vec<TeamRow> {
        let users = self.users.iter().map(|view| TeamRow {
            id: view.user.id,
            name: view.user.name.clone(),
            email: Some(view.user.email.clone()),
            role: view.user.role,
            state: view.state,
            last_seen_at: view.last_seen_at,
            sessions: u32::try_from(view.sessions.len()).unwrap_or(u32::MAX),
            created_at: view.created_at,
            invite: None,
        });
        let mut rows: Vec<_> = users.chain(self.invites.iter().cloned()).collect();
        rows.sort_by(|one, other| one.name.cmp(&other.name));
        rows
    }
}

fn named(id: UserId, name: &str, role: Role) -> CurrentUser {
    CurrentUser { id, name: name.into(), email: format!("{}@example.org", name.to_lowercase()), role }
}

fn user(user: CurrentUser, state: UserState) -> PersonView {
    PersonView {
        user,
        state,
        created_at: samples::at(-86_400),
        last_sign_in_at: Some(samples::at(-7_200)),
        last_seen_at: Some(samples::at(-60)),
        passphrase_changed_at: None,
        deactivated_at: None,
        locked_until: None,
        sessions: Vec::new(),
        tokens: 0,
        reset: None,
        jobs: Vec::new(),
        jobs_total: 0,
        is_last_admin: false,
    }
}

fn session(id: SessionId, device: &str, is_current: bool) -> SessionView {
    SessionView {
        id,
        device: device.into(),
        address: Some("203.0.113.7".into()),
        created_at: samples::at(-7_200),
        last_seen_at: samples::at(-60),
        is_current,
    }
}

fn invite(id: UserId, name: &str, role: Role, is_expired: bool) -> TeamRow {
    let expires_at = samples::at(0) + TimeDelta::hours(if is_expired { -1 } else { 48 });
    TeamRow {
        id,
        name: name.into(),
        email: None,
        role,
        state: UserState::Invited,
        last_seen_at: None,
        sessions: 0,
        created_at: expires_at - TimeDelta::hours(72),
        invite: Some(PendingInvite { expires_at, invited_by: "Ada".into(), is_expired }),
    }
}

impl FakeBackend {
    fn lock_team(&self) -> MutexGuard<'_, FakeTeam> {
        self.team.lock().expect("the mutex is not poisoned")
    }
}

#[async_trait]
impl TeamBackend for FakeBackend {
    async fn team(&self, _me: &RequestUser, filter: TeamFilter) -> Result<TeamView, AppError> {
        let rows = self.lock_team().rows();
        let total = u32::try_from(rows.len()).unwrap_or(u32::MAX);
        let q = filter.q.to_lowercase();
        let matches = |row: &TeamRow| {
            let text = format!("{} {}", row.name, row.email.as_deref().unwrap_or_default()).to_lowercase();
            text.contains(&q)
                && filter.role.is_none_or(|role| role == row.role)
                && filter.state.is_none_or(|state| state == row.state)
        };
        Ok(TeamView { rows: rows.into_iter().filter(matches).collect(), total })
    }

    async fn person(&self, _me: &RequestUser, id: UserId) -> Result<PersonView, AppError> {
        let mut team = self.lock_team();
        let is_last_admin = team.is_last_admin(id);
        Ok(PersonView { is_last_admin, ..team.user(id)?.clone() })
    }

    async fn invite_user(&self, _me: &RequestUser, name: &str, role: Role) -> Result<String, AppError> {
        if name.trim().is_empty() {
            return Err(AppError::field("name", "enter a name"));
        }
        self.record(format!("invite {name} as {}", role.slug()));
        Ok("/invite?token=good".into())
    }

    async fn renew_invite(&self, _me: &RequestUser, id: UserId) -> Result<String, AppError> {
        let name = self.lock_team().invite(id)?.name.clone();
        self.record(format!("renew {name}"));
        Ok("/invite?token=renewed".into())
    }

    async fn revoke_invite(&self, _me: &RequestUser, id: UserId) -> Result<(), AppError> {
        let mut team = self.lock_team();
        let name = team.invite(id)?.name.clone();
        team.invites.retain(|row| row.id != id);
        self.record(format!("revoke {name}"));
        Ok(())
    }

    async fn change_role(&self, me: &RequestUser, id: UserId, role: Role, confirm_self: bool) -> Result<(), AppError> {
        let mut team = self.lock_team();
        if team.is_last_admin(id) {
            return Err(AppError::Conflict("The last Admin keeps the role.".into()));
        }
        if me.id == id && !confirm_self {
            return Err(AppError::Conflict("Confirm that you lose rights.".into()));
        }
        let user = team.user(id)?;
        user.user.role = role;
        let name = user.user.name.clone();
        self.record(format!("{name} becomes {}", role.slug()));
        Ok(())
    }

    async fn set_user_active(&self, me: &RequestUser, id: UserId, active: bool) -> Result<(), AppError> {
        let mut team = self.lock_team();
        if !active && me.id == id {
            return Err(AppError::Conflict("You cannot deactivate your own account.".into()));
        }
        let user = team.user(id)?;
        user.state = if active { UserState::Active } else { UserState::Deactivated };
        user.sessions.clear();
        let name = user.user.name.clone();
        self.record(format!("{} {name}", if active { "reactivate" } else { "deactivate" }));
        Ok(())
    }

    async fn remove_user(&self, _me: &RequestUser, id: UserId) -> Result<(), AppError> {
        let mut team = self.lock_team();
        let user = team.user(id)?;
        if user.state != UserState::Deactivated {
            return Err(AppError::Conflict("Deactivate the user first.".into()));
        }
        let name = user.user.name.clone();
        team.users.retain(|view| view.user.id != id);
        self.record(format!("remove {name}"));
        Ok(())
    }

    async fn create_reset_link(&self, _me: &RequestUser, id: UserId) -> Result<String, AppError> {
        let mut team = self.lock_team();
        let user = team.user(id)?;
        if user.state == UserState::Deactivated {
            return Err(AppError::Conflict("Reactivate the user first.".into()));
        }
        let name = user.user.name.clone();
        self.record(format!("reset link for {name}"));
        Ok("/reset?token=reset".into())
    }

    async fn revoke_reset_link(&self, _me: &RequestUser, id: UserId) -> Result<(), AppError> {
        let mut team = self.lock_team();
        let user = team.user(id)?;
        if user.reset.take().is_none() {
            return Err(AppError::NotFound("No reset link is open.".into()));
        }
        let name = user.user.name.clone();
        self.record(format!("revoke the reset link of {name}"));
        Ok(())
    }

    async fn unlock_user(&self, _me: &RequestUser, id: UserId) -> Result<(), AppError> {
        let mut team = self.lock_team();
        let user = team.user(id)?;
        user.state = UserState::Active;
        user.locked_until = None;
        let name = user.user.name.clone();
        self.record(format!("unlock {name}"));
        Ok(())
    }

    async fn end_user_sessions(
        &self,
        _me: &RequestUser,
        id: UserId,
        session: Option<SessionId>,
    ) -> Result<u32, AppError> {
        let mut team = self.lock_team();
        let user = team.user(id)?;
        let before = user.sessions.len();
        user.sessions.retain(|own| session.is_some_and(|session| own.id != session));
        let ended = before - user.sessions.len();
        if session.is_some() && ended == 0 {
            return Err(AppError::NotFound("This session has already ended.".into()));
        }
        let name = user.user.name.clone();
        self.record(format!("end {ended} of {name}"));
        Ok(u32::try_from(ended).unwrap_or(u32::MAX))
    }
}
