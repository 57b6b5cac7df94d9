//! The team: roles, the last Admin, deactivation and removal.

use std::sync::Arc;

use chrono::TimeDelta;
use milvaion_api::{
    permissions::{Permission, Role},
    team::{TeamFilter, TeamRow, UserState},
};
use milvaion_app::error::AppError;
use milvaion_protocol::id::UserId;
use milvaion_schedule::schedule::Schedule;
use milvaion_server::{
    command::team::{self, TeamOutcome},
    store::jobs::AuditStamp,
};
use milvaion_test_support::jobs::echo_job;
use serde_json::json;

use super::harness::{REQUEST_ADDRESS, UserHarness, VALID_PASSPHRASE, by, token};

/// Returns the text of a conflict.
#[track_caller]
fn conflict<T: std::fmt::Debug>(result: Result<T, AppError>) -> String {
    match result {
        Err(AppError::Conflict(text)) => text,
        other => panic!("not a conflict: {other:?}"),
    }
}

#[tokio::test]
async fn role_change_is_idempotent_and_audited_once() {
    let harness = UserHarness::new().await;
    let ana = by(&harness.admin().await);
    let bob = harness.join(&ana, "bob", Role::Operator).await;
    let change = async |role| team::change_role(&harness.store, &harness.clock, &ana, bob.id, role, false).await;
    assert_eq!(change(Role::Operator).await, Ok(TeamOutcome::Unchanged));
    assert_eq!(change(Role::Viewer).await, Ok(TeamOutcome::Changed));
    assert_eq!(change(Role::Viewer).await, Ok(TeamOutcome::Unchanged));
    let object = format!("user:{}", bob.id);
    assert_eq!(harness.audited(&object).await, ["user.change-role", "invite.accept"]);
    let entry = harness.store.audit_entries(Some(&object), 1).await.expect("read").remove(0);
    assert_eq!((entry.who.as_str(), entry.address.as_deref()), ("ana@example.org", Some(REQUEST_ADDRESS)));
    assert_eq!((entry.before, entry.after), (Some(json!({ "role": "operator" })), Some(json!({ "role": "viewer" }))));

    let missing = UserId::default();
    let missing = team::change_role(&harness.store, &harness.clock, &ana, missing, Role::Viewer, false).await;
    assert!(matches!(missing, Err(AppError::NotFound(_))));
}

#[tokio::test]
async fn last_admin_can_be_neither_demoted_nor_deactivated() {
    let harness = UserHarness::new().await;
    let ana = by(&harness.admin().await);
    let bob = harness.join(&ana, "bob", Role::Admin).await;
    let (store, clock) = (&harness.store, &harness.clock);
    // A deactivated Admin is none.
    team::set_active(store, clock, &ana, bob.id, false).await.expect("deactivated");
    for confirm_self in [false, true] {
        let text = conflict(team::change_role(store, clock, &ana, ana.id, Role::Operator, confirm_self).await);
        assert!(text.contains("last Admin") && text.contains("Make another user an Admin first"), "{text}");
    }
    // The request of bob began before the deactivation.
    let text = conflict(team::set_active(store, clock, &by(&bob), ana.id, false).await);
    assert!(text.contains("last Admin"), "{text}");
    assert!(team::person(store, clock, ana.id).await.expect("read").is_last_admin);

    team::set_active(store, clock, &ana, bob.id, true).await.expect("reactivated");
    assert!(!team::person(store, clock, ana.id).await.expect("read").is_last_admin);
    team::change_role(store, clock, &by(&bob), ana.id, Role::Viewer, false).await.expect("bob remains");
}

#[tokio::test]
async fn own_demotion_needs_a_confirmation() {
    let harness = UserHarness::new().await;
    let ana = by(&harness.admin().await);
    let (store, clock) = (&harness.store, &harness.clock);
    harness.join(&ana, "bob", Role::Admin).await;
    let text = conflict(team::change_role(store, clock, &ana, ana.id, Role::Operator, false).await);
    assert!(text.contains("change the team") && !text.contains("run jobs"), "it names the lost rights: {text}");
    assert_eq!(store.user(ana.id).await.expect("read").expect("ana").role, Role::Admin);
    let same = team::change_role(store, clock, &ana, ana.id, Role::Admin, false).await;
    assert_eq!(same, Ok(TeamOutcome::Unchanged));
    let confirmed = team::change_role(store, clock, &ana, ana.id, Role::Operator, true).await;
    assert_eq!(confirmed, Ok(TeamOutcome::Changed));
}

#[tokio::test]
async fn users_cannot_deactivate_or_remove_themselves() {
    let harness = UserHarness::new().await;
    let ana = by(&harness.admin().await);
    harness.join(&ana, "bob", Role::Admin).await;
    let (store, clock) = (&harness.store, &harness.clock);
    let text = conflict(team::set_active(store, clock, &ana, ana.id, false).await);
    assert!(text.contains("another Admin"), "{text}");
    let text = conflict(team::remove(store, clock, &ana, ana.id).await);
    assert!(text.contains("another Admin"), "{text}");
    assert_eq!(harness.audited(&format!("user:{}", ana.id)).await, ["setup"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_admins_who_demote_each_other_leave_one() {
    let harness = Arc::new(UserHarness::new().await);
    let ana = by(&harness.admin().await);
    let bob = by(&harness.join(&ana, "bob", Role::Admin).await);
    for round in 0..10 {
        let demote = |me: &milvaion_app::backend::RequestUser, other: UserId| {
            let (harness, me) = (Arc::clone(&harness), me.clone());
            tokio::spawn(async move {
                if round % 2 == 0 {
                    team::change_role(&harness.store, &harness.clock, &me, other, Role::Viewer, false).await
                } else {
                    team::set_active(&harness.store, &harness.clock, &me, other, false).await
                }
            })
        };
        let (one, two) = (demote(&ana, bob.id), demote(&bob, ana.id));
        let results = [one.await.expect("no panic"), two.await.expect("no panic")];
        assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1, "round {round}: {results:?}");
        assert!(results.iter().any(|result| matches!(result, Err(AppError::Conflict(_)))), "{results:?}");

        let is_anas = results[0].is_ok();
        let (left, gone) = if is_anas { (&ana, &bob) } else { (&bob, &ana) };
        let (store, clock) = (&harness.store, &harness.clock);
        team::set_active(store, clock, left, gone.id, true).await.expect("reactivated");
        team::change_role(store, clock, left, gone.id, Role::Admin, false).await.expect("promoted");
    }
}

#[tokio::test]
async fn deactivation_ends_everything_and_keeps_the_history() {
    let harness = UserHarness::new().await;
    let ana = by(&harness.admin().await);
    let bob = harness.join(&ana, "bob", Role::Operator).await;
    let (store, clock) = (&harness.store, &harness.clock);
    let sessions = [harness.session_of(&bob).await, harness.session_of(&bob).await];
    let job = clock.job_id();
    let stamp = AuditStamp { by: &bob.email, at: clock.now(), address: None };
    store.insert_job(job, &echo_job(Schedule::Manual), None, stamp).await.expect("stored");
    let mut connection = harness.connection().await;
    connection
        .execute(format!(
            "INSERT INTO api_tokens (id, user_id, name, token_hash, role, created_at)
             VALUES (gen_random_uuid(), '{}', 'ci', sha256('t'), 'viewer', now())",
            bob.id
        ))
        .await;
    let person = async || team::person(store, clock, bob.id).await.expect("it can be read");
    let before = person().await;
    assert_eq!((before.sessions.len(), before.tokens, before.jobs_total), (2, 1, 1));
    let link = token(&team::create_reset_link(store, clock, &ana, bob.id).await.expect("created"));
    assert_eq!(person().await.reset.expect("a link is open").created_by, "ana@example.org");

    let set_active = async |active| team::set_active(store, clock, &ana, bob.id, active).await;
    assert_eq!(set_active(false).await, Ok(TeamOutcome::Changed));
    assert_eq!(set_active(false).await, Ok(TeamOutcome::Unchanged));
    for id in sessions {
        assert_eq!(harness.authorize(Some(id), Permission::Read).await, Err(AppError::SignedOut));
    }
    assert!(!harness.is_open(&link).await);
    assert!(harness.sign_in(None, "bob", VALID_PASSPHRASE).await.is_err());
    let text = conflict(team::create_reset_link(store, clock, &ana, bob.id).await);
    assert!(text.contains("Reactivate the user"), "{text}");
    let after = person().await;
    assert_eq!((after.state, after.deactivated_at), (UserState::Deactivated, Some(clock.now())));
    assert_eq!((after.sessions.len(), after.tokens, after.reset), (0, 0, None));
    assert_eq!(after.jobs.iter().map(|job| job.id).collect::<Vec<_>>(), [job], "the jobs stay and keep the name");

    assert_eq!(set_active(true).await, Ok(TeamOutcome::Changed));
    assert_eq!(set_active(true).await, Ok(TeamOutcome::Unchanged));
    assert_eq!(person().await.deactivated_at, None);
    assert_eq!(person().await.tokens, 0, "a revoked token stays revoked");
    assert_eq!(harness.authorize(Some(sessions[0]), Permission::Read).await, Err(AppError::SignedOut));
    harness.sign_in(None, "bob", VALID_PASSPHRASE).await.expect("the user is active again");
    let actions = harness.audited(&format!("user:{}", bob.id)).await;
    assert_eq!(actions.iter().filter(|action| *action == "user.deactivate").count(), 1, "{actions:?}");
    assert_eq!(actions.iter().filter(|action| *action == "user.reactivate").count(), 1, "{actions:?}");
}

#[tokio::test]
async fn session_stored_during_a_deactivation_stays_invalid() {
    let harness = UserHarness::new().await;
    let ana = by(&harness.admin().await);
    let bob = harness.join(&ana, "bob", Role::Viewer).await;
    team::set_active(&harness.store, &harness.clock, &ana, bob.id, false).await.expect("deactivated");
    // The passphrase was verified before the deactivation.
    let late = harness.session_of(&bob).await;
    assert_eq!(harness.authorize(Some(late), Permission::Read).await, Err(AppError::SignedOut));
    team::set_active(&harness.store, &harness.clock, &ana, bob.id, true).await.expect("reactivated");
    assert_eq!(harness.authorize(Some(late), Permission::Read).await, Err(AppError::SignedOut));
}

#[tokio::test]
async fn removal_frees_the_address_and_keeps_the_history() {
    let harness = UserHarness::new().await;
    let ana = by(&harness.admin().await);
    let bob = harness.join(&ana, "bob", Role::Operator).await;
    let (store, clock) = (&harness.store, &harness.clock);
    let job = clock.job_id();
    let stamp = AuditStamp { by: &bob.email, at: clock.now(), address: None };
    store.insert_job(job, &echo_job(Schedule::Manual), None, stamp).await.expect("stored");
    let remove = async || team::remove(store, clock, &ana, bob.id).await;
    let text = conflict(remove().await);
    assert!(text.contains("Deactivate the user first"), "{text}");
    team::set_active(store, clock, &ana, bob.id, false).await.expect("deactivated");
    assert_eq!(remove().await, Ok(TeamOutcome::Changed));
    assert!(matches!(remove().await, Err(AppError::NotFound(_))));
    assert!(matches!(team::person(store, clock, bob.id).await, Err(AppError::NotFound(_))));
    let object = format!("user:{}", bob.id);
    assert_eq!(harness.audited(&object).await, ["user.remove", "user.deactivate", "invite.accept"]);
    let entry = store.audit_entries(Some(&object), 1).await.expect("read").remove(0);
    let before = json!({ "name": "bob", "email": "bob@example.org", "role": "operator" });
    assert_eq!((entry.before, entry.after), (Some(before), None));

    let again = harness.join(&ana, "bob", Role::Viewer).await;
    assert_ne!(again.id, bob.id);
    let jobs = team::person(store, clock, again.id).await.expect("read").jobs;
    assert_eq!(jobs.iter().map(|job| job.id).collect::<Vec<_>>(), [job]);
}

#[tokio::test]
async fn team_lists_every_state_and_filters() {
    let harness = UserHarness::new().await;
    let ana = by(&harness.admin().await);
    let (store, clock) = (&harness.store, &harness.clock);
    harness.invite(&ana, "Late", Role::Viewer).await;
    clock.advance(TimeDelta::hours(72));
    harness.invite(&ana, "Zoe", Role::Operator).await;
    let bob = harness.join(&ana, "bob", Role::Viewer).await;
    harness.session_of(&bob).await;
    let eve = harness.join(&ana, "eve", Role::Operator).await;
    team::set_active(store, clock, &ana, eve.id, false).await.expect("deactivated");
    for _ in 0..20 {
        if matches!(harness.sign_in(None, "bob", "wrong passphrase").await, Err(AppError::TooMany(_))) {
            break;
        }
    }

    let list = async |filter: TeamFilter| team::list(store, clock, &filter).await.expect("it can be read");
    let all = list(TeamFilter::default()).await;
    let states: Vec<_> = all.rows.iter().map(|row| (row.name.as_str(), row.state)).collect();
    let expected = [
        ("ana", UserState::Active),
        ("bob", UserState::Locked),
        ("eve", UserState::Deactivated),
        ("Late", UserState::Invited),
        ("Zoe", UserState::Invited),
    ];
    assert_eq!(states, expected);
    assert_eq!(all.total, 5);
    let row = |name: &str| -> &TeamRow { all.rows.iter().find(|row| row.name == name).expect("listed") };
    assert_eq!((row("bob").sessions, row("bob").email.as_deref()), (1, Some("bob@example.org")));
    let is_expired = |name: &str| row(name).invite.as_ref().map(|invite| invite.is_expired);
    assert_eq!((is_expired("Late"), is_expired("Zoe"), is_expired("bob")), (Some(true), Some(false), None));
    assert_eq!(row("Zoe").invite.as_ref().map(|invite| invite.invited_by.as_str()), Some("ana"));

    let found = list(TeamFilter { q: "BOB@".into(), ..TeamFilter::default() }).await;
    assert_eq!((found.rows.len(), found.total), (1, 5));
    let invited =
        list(TeamFilter { state: Some(UserState::Invited), role: Some(Role::Viewer), ..TeamFilter::default() }).await;
    assert_eq!(invited.rows.iter().map(|row| row.name.as_str()).collect::<Vec<_>>(), ["Late"]);
    let long = TeamFilter { q: "x".repeat(101), ..TeamFilter::default() };
    assert!(team::list(store, clock, &long).await.expect_err("refused").field_message("q").is_some());

    // Without a lock, an unlock changes nothing.
    for _ in 0..2 {
        team::unlock(store, clock, &ana, bob.id).await.expect("unlocked");
    }
    assert_eq!(team::person(store, clock, bob.id).await.expect("read").state, UserState::Active);
    let actions = harness.audited(&format!("user:{}", bob.id)).await;
    assert_eq!(actions.iter().filter(|action| *action == "user.unlock").count(), 1, "{actions:?}");
    harness.sign_in(None, "bob", VALID_PASSPHRASE).await.expect("unlocked");
}
