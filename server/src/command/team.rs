//! Changes of the team by Admins.
//!
//! Every change is idempotent: a second request finds the user in the requested state, succeeds and leaves no audit row.
//! The store decides about the last Admin, under a lock. The rules about the own account are here: they depend on the
//! author only.
//!
//! After a change, the caller has the user's open event streams checked; see [`TeamOutcome`].

use milvaion_api::{
    permissions::{RightsChange, Role},
    team::{LinkKind, PersonView, SessionView, TeamFilter, TeamRow, TeamView, UserState},
};
use milvaion_app::{backend::RequestUser, error::AppError};
use milvaion_protocol::id::{SessionId, UserId};

use super::one_time_links;
use crate::{
    clock::Clock,
    domain::device,
    store::{
        Store,
        audit::AuditEntry,
        sessions::{EndedSessions, ListedSession},
        users::{TeamChange, ThrottleSlot, UserRow},
    },
};

/// The longest search text, in characters.
const MAX_QUERY_CHARS: usize = 100;

/// The effect of a command. After a change, the caller must have the open event streams of the user checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TeamOutcome {
    /// The user was changed.
    Changed,
    /// The user was in this state already.
    Unchanged,
}

/// Returns the users and invitations that match a filter, by name.
///
/// # Errors
///
/// Returns `Fields` for a search text that is too long.
pub async fn list(store: &Store, clock: &Clock, filter: &TeamFilter) -> Result<TeamView, AppError> {
    if filter.q.chars().count() > MAX_QUERY_CHARS {
        let message = format!("a search text has at most {MAX_QUERY_CHARS} characters: enter a part of the name");
        return Err(AppError::field("q", message));
    }
    let now = clock.now();
    let (users, invites) = tokio::try_join!(store.list_users(), store.list_invites(now))?;
    let emails: Vec<&str> = users.iter().map(|user| user.email.as_str()).collect();
    let (locked, sessions) = tokio::try_join!(store.accounts_locked_until(&emails, now), store.count_sessions(now))?;
    let sessions: std::collections::HashMap<UserId, u32> = sessions.into_iter().collect();
    let mut rows: Vec<TeamRow> = users
        .iter()
        .zip(&locked)
        .map(|(user, locked_until)| TeamRow {
            id: user.id,
            name: user.name.clone(),
            email: Some(user.email.clone()),
            role: user.role,
            state: state_of(user, locked_until.is_some()),
            last_seen_at: user.last_seen_at,
            sessions: sessions.get(&user.id).copied().unwrap_or_default(),
            created_at: user.created_at,
            invite: None,
        })
        .collect();
    rows.extend(invites);
    let total = u32::try_from(rows.len()).unwrap_or(u32::MAX);
    let matches = matcher(filter);
    rows.retain(matches);
    rows.sort_by_cached_key(|row| (row.name.to_lowercase(), row.id));
    Ok(TeamView { rows, total })
}

/// Returns the test of a filter.
fn matcher(filter: &TeamFilter) -> impl Fn(&TeamRow) -> bool + use<> {
    let (q, role, state) = (filter.q.trim().to_lowercase(), filter.role, filter.state);
    move |row| {
        let has = |text: &str| text.to_lowercase().contains(&q);
        (q.is_empty() || has(&row.name) || row.email.as_deref().is_some_and(has))
            && role.is_none_or(|role| row.role == role)
            && state.is_none_or(|state| row.state == state)
    }
}

/// Returns one user with sessions, jobs and the open link for a new passphrase.
///
/// # Errors
///
/// Returns `NotFound` if there is no such user.
pub async fn person(store: &Store, clock: &Clock, id: UserId) -> Result<PersonView, AppError> {
    let now = clock.now();
    let user = find(store, id).await?;
    let (locked_until, sessions, tokens, reset, (jobs, jobs_total), is_last_admin) = tokio::try_join!(
        store.account_locked_until(&user.email, now),
        store.sessions_of(id, now, None),
        store.count_api_tokens(id),
        store.open_reset(id, now),
        store.jobs_created_by(&user.email),
        store.is_last_admin(&user)
    )?;
    Ok(PersonView {
        user: user.me(),
        state: state_of(&user, locked_until.is_some()),
        created_at: user.created_at,
        last_sign_in_at: user.last_sign_in_at,
        last_seen_at: user.last_seen_at,
        passphrase_changed_at: user.passphrase_changed_at,
        deactivated_at: user.deactivated_at,
        locked_until,
        sessions: sessions.into_iter().map(session_view).collect(),
        tokens,
        reset,
        jobs,
        jobs_total,
        is_last_admin,
    })
}

/// Returns a session with its device in words.
pub(super) fn session_view(session: ListedSession) -> SessionView {
    SessionView {
        id: session.id,
        device: device::describe(session.user_agent.as_deref()),
        address: session.address,
        created_at: session.created_at,
        last_seen_at: session.last_seen_at,
        is_current: session.is_current,
    }
}

/// Changes the role of a user.
///
/// # Errors
///
/// Returns `NotFound` if there is no such user, and `Conflict` for the last Admin or, without `confirm_self`, if the
/// own role loses rights.
pub async fn change_role(
    store: &Store,
    clock: &Clock,
    me: &RequestUser,
    id: UserId,
    role: Role,
    confirm_self: bool,
) -> Result<TeamOutcome, AppError> {
    if id == me.id && !confirm_self {
        let user = find(store, id).await?;
        let lost = RightsChange::between(user.role, role).lost;
        // The last Admin cannot confirm the change, so the question would be pointless.
        if !lost.is_empty() && !store.is_last_admin(&user).await? {
            let lost = lost.into_iter().map(|right| right.describe()).collect::<Vec<_>>().join(", ");
            return Err(AppError::Conflict(format!(
                "This is your own role. As {} you could no longer: {lost}. Another Admin would have to give these \
                 rights back. Confirm the change of your own role to continue.",
                role.label()
            )));
        }
    }
    let change = store.set_user_role(id, role, entry(clock, me, "user.change-role", id)).await?;
    outcome(change, "be demoted")
}

/// Activates or deactivates a user. A deactivation ends all sessions and revokes all API tokens.
///
/// # Errors
///
/// Returns `NotFound` if there is no such user, and `Conflict` for a deactivation of the last Admin or of the own
/// account.
pub async fn set_active(
    store: &Store,
    clock: &Clock,
    me: &RequestUser,
    id: UserId,
    active: bool,
) -> Result<TeamOutcome, AppError> {
    if active {
        let change = store.reactivate_user(id, entry(clock, me, "user.reactivate", id)).await?;
        return outcome(change, "be reactivated");
    }
    if id == me.id {
        return Err(AppError::Conflict("You cannot deactivate yourself. Ask another Admin to do it.".into()));
    }
    outcome(store.deactivate_user(id, entry(clock, me, "user.deactivate", id)).await?, "be deactivated")
}

/// Deletes a deactivated user. The e-mail address can then be used again.
///
/// # Errors
///
/// Returns `NotFound` if there is no such user, and `Conflict` for an active user or the own account.
pub async fn remove(store: &Store, clock: &Clock, me: &RequestUser, id: UserId) -> Result<TeamOutcome, AppError> {
    if id == me.id {
        return Err(AppError::Conflict(
            "You cannot remove yourself. Ask another Admin to deactivate and remove you.".into(),
        ));
    }
    outcome(store.remove_user(id, entry(clock, me, "user.remove", id)).await?, "be removed")
}

/// Creates the link with which a user chooses a new passphrase, in place of an earlier one. Returns its path.
///
/// # Errors
///
/// Returns `NotFound` if there is no such user, and `Conflict` if the user is deactivated.
pub async fn create_reset_link(store: &Store, clock: &Clock, me: &RequestUser, id: UserId) -> Result<String, AppError> {
    let user = find(store, id).await?;
    one_time_links::reset_link(store, clock, &me.email, address(me), &user).await
}

/// Revokes the open link for a new passphrase. Succeeds if there is none.
///
/// # Errors
///
/// Returns `NotFound` if there is no such user.
pub async fn revoke_reset_link(store: &Store, clock: &Clock, me: &RequestUser, id: UserId) -> Result<(), AppError> {
    find(store, id).await?;
    store.delete_link(LinkKind::Reset, id, entry(clock, me, "user.revoke-reset-link", id)).await?;
    Ok(())
}

/// Lifts the refusal of sign-ins from unknown devices. Succeeds if there is none.
///
/// # Errors
///
/// Returns `NotFound` if there is no such user.
pub async fn unlock(store: &Store, clock: &Clock, me: &RequestUser, id: UserId) -> Result<(), AppError> {
    let user = find(store, id).await?;
    if store.account_locked_until(&user.email, clock.now()).await?.is_some() {
        store.reset_sign_in_attempts(ThrottleSlot::account(&user.email)).await?;
        store.audit(&entry(clock, me, "user.unlock", id)).await?;
    }
    Ok(())
}

/// Ends one session of a user, or all of them without `session`. Returns the number of sessions that were valid until
/// now.
///
/// # Errors
///
/// Returns `NotFound` if there is no such user or session.
pub async fn end_sessions(
    store: &Store,
    clock: &Clock,
    me: &RequestUser,
    id: UserId,
    session: Option<SessionId>,
) -> Result<u32, AppError> {
    find(store, id).await?;
    let which = session.map_or(EndedSessions::All, EndedSessions::ById);
    store.end_sessions(id, which, entry(clock, me, "user.end-sessions", id)).await?.ok_or_else(session_not_found)
}

pub(super) fn session_not_found() -> AppError {
    AppError::NotFound("This session does not exist or has expired. Reload the page to see the current ones.".into())
}

/// Returns the state of a user. A deactivated user is not locked, because no sign-in is possible anyway.
fn state_of(user: &UserRow, is_locked: bool) -> UserState {
    match (user.is_active, is_locked) {
        (false, _) => UserState::Deactivated,
        (true, true) => UserState::Locked,
        (true, false) => UserState::Active,
    }
}

async fn find(store: &Store, id: UserId) -> Result<UserRow, AppError> {
    store.user(id).await?.ok_or_else(user_not_found)
}

fn user_not_found() -> AppError {
    AppError::NotFound("This user does not exist or was removed.".into())
}

fn address(me: &RequestUser) -> Option<String> {
    me.address.map(|address| address.to_string())
}

/// Returns the audit row of an action of `me` on a user, without the states.
pub(super) fn entry(clock: &Clock, me: &RequestUser, action: &'static str, id: UserId) -> AuditEntry {
    AuditEntry::new(clock.now(), &me.email, action, format!("user:{id}")).from(address(me))
}

/// Maps a change to the answer for the Admin. `refused` completes the sentence "The last Admin cannot …".
fn outcome(change: TeamChange, refused: &str) -> Result<TeamOutcome, AppError> {
    match change {
        TeamChange::Changed => Ok(TeamOutcome::Changed),
        TeamChange::Unchanged => Ok(TeamOutcome::Unchanged),
        TeamChange::Missing => Err(user_not_found()),
        TeamChange::LastAdmin => Err(AppError::Conflict(format!(
            "The last Admin cannot {refused}, because the team could no longer be managed. Make another user an Admin \
             first."
        ))),
        TeamChange::StillActive => Err(AppError::Conflict(
            "This user is active. Deactivate the user first; jobs and the audit log keep the e-mail address.".into(),
        )),
    }
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;

    use super::*;

    fn row(name: &str, email: Option<&str>, role: Role, state: UserState) -> TeamRow {
        TeamRow {
            id: UserId::default(),
            name: name.into(),
            email: email.map(str::to_owned),
            role,
            state,
            last_seen_at: None,
            sessions: 0,
            created_at: DateTime::UNIX_EPOCH,
            invite: None,
        }
    }

    #[test]
    fn a_filter_finds_names_and_addresses_in_any_case() {
        let ana = row("Ana Ünal", Some("ana@example.org"), Role::Admin, UserState::Active);
        let eve = row("Eve", None, Role::Viewer, UserState::Invited);
        let found = |filter: TeamFilter| {
            let matches = matcher(&filter);
            (matches(&ana), matches(&eve))
        };
        let q = |q: &str| found(TeamFilter { q: q.into(), ..TeamFilter::default() });
        assert_eq!(q(" "), (true, true));
        assert_eq!(q("ÜNAL"), (true, false));
        assert_eq!(q("ANA@EXAMPLE"), (true, false));
        assert_eq!(q("eve "), (false, true));
        assert_eq!(q("oleg"), (false, false));
        assert_eq!(found(TeamFilter { role: Some(Role::Viewer), ..TeamFilter::default() }), (false, true));
        assert_eq!(found(TeamFilter { state: Some(UserState::Active), ..TeamFilter::default() }), (true, false));
        let both = TeamFilter { q: "ana".into(), role: Some(Role::Viewer), state: None };
        assert_eq!(found(both), (false, false));
    }
}
