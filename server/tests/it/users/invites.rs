//! Setup links, invitations and sign-in.

use std::sync::Arc;

use chrono::TimeDelta;
use milvaion_api::{
    permissions::Role,
    team::{LinkForm, LinkKind},
};
use milvaion_app::error::AppError;
use milvaion_server::{
    command::{one_time_links, sign_in::FAILED_SIGN_IN_RETENTION, team},
    store::retention::ExpiringTable,
};

use super::harness::{UserHarness, VALID_PASSPHRASE, by, seconds, token};
use crate::alert_channels::CapturedLog;

#[tokio::test]
async fn setup_link_creates_one_admin_and_expires() {
    let harness = UserHarness::new().await;
    let token = harness.setup_token().await;
    let info = one_time_links::info(&harness.store, &harness.clock, &token).await.expect("read").expect("valid");
    assert_eq!((info.kind, info.role), (LinkKind::Setup, Role::Admin));

    let ana = harness.accept(&token, "ana").await.expect("accepted");
    assert_eq!(ana.role, Role::Admin);
    assert!(matches!(harness.accept(&token, "bob").await, Err(AppError::NotFound(_))));
    assert!(!harness.is_open(&token).await);
    assert_eq!(one_time_links::setup_link(&harness.store, &harness.clock).await.expect("it is requested"), None);
    assert_eq!(harness.audited(&format!("user:{}", ana.id)).await, ["setup"]);
}

#[tokio::test]
async fn first_admin_is_logged_as_created_with_the_setup_link() {
    let log = CapturedLog::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt().with_writer(move || writer.clone());
    let _guard = tracing::subscriber::set_default(subscriber.finish());
    let harness = UserHarness::new().await;
    let ana = harness.accept(&harness.setup_token().await, "ana").await.expect("accepted");
    assert!(log.text().contains(&format!("user {} was created with the setup link", ana.id)), "{log:?}");
    assert!(!log.text().contains("invitation"), "{log:?}");
    let ben = harness.join(&ana, "ben", Role::Viewer).await;
    assert!(log.text().contains(&format!("user {} accepted an invitation", ben.id)), "{log:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_setups_create_one_admin() {
    let harness = Arc::new(UserHarness::new().await);
    let token = harness.setup_token().await;
    let tasks: Vec<_> = (0..6)
        .map(|n| {
            let (harness, token) = (Arc::clone(&harness), token.clone());
            tokio::spawn(async move { harness.accept(&token, &format!("person{n}")).await })
        })
        .collect();
    let mut created = 0;
    for task in tasks {
        match task.await.expect("the task does not panic") {
            Ok(_) => created += 1,
            Err(error) => assert!(matches!(error, AppError::NotFound(_)), "{error}"),
        }
    }
    assert_eq!(created, 1);
    assert_eq!(harness.store.count_users().await.expect("the query succeeds"), 1);
}

#[tokio::test]
async fn newest_setup_link_is_valid_for_15_minutes() {
    let harness = UserHarness::new().await;
    let (old, new) = (harness.setup_token().await, harness.setup_token().await);
    let replaced = harness.accept(&old, "ana").await;
    assert!(matches!(&replaced, Err(AppError::NotFound(text)) if text.contains("Restart the server")), "{replaced:?}");
    harness.clock.advance(seconds(15 * 60));
    assert!(matches!(harness.accept(&new, "ana").await, Err(AppError::NotFound(_))));
    harness.accept(&harness.setup_token().await, "ana").await.expect("a new link is valid");
}

#[tokio::test]
async fn invalid_field_keeps_the_invitation_usable() {
    let harness = UserHarness::new().await;
    let admin = harness.admin().await;
    let link = harness.invite(&admin, "Bob", Role::Viewer).await;
    let accept = async |email: &str, passphrase: &str| {
        let (token, name) = (link.clone(), "Bob".into());
        let form = LinkForm { token, name, email: email.into(), passphrase: passphrase.into(), ..LinkForm::default() };
        harness.accept_form(&form).await
    };
    for (email, passphrase, field) in [
        ("bob", VALID_PASSPHRASE, "email"),
        ("bob@example.org", "too short", "passphrase"),
        ("bob@example.org", "Password2024!!", "passphrase"),
        ("bob@example.org", "bob@example.org", "passphrase"),
        ("ANA@example.org", VALID_PASSPHRASE, "email"),
    ] {
        let error = accept(email, passphrase).await.expect_err("the field is invalid");
        assert!(error.field_message(field).is_some(), "{email} {passphrase}: {error:?}");
    }
    assert_eq!(accept("Bob@Example.org ", VALID_PASSPHRASE).await.expect("accepted").email, "bob@example.org");
}

#[tokio::test]
async fn invitation_ends_when_revoked_or_after_three_days() {
    let harness = UserHarness::new().await;
    let admin = harness.admin().await;
    let invite = async |name: &str| harness.invite(&admin, name, Role::Operator).await;
    let (bob, eve) = (invite("bob").await, invite("eve").await);
    let open = harness.store.list_invites(harness.clock.now()).await.expect("it can be read");
    let eves = open.iter().find(|invite| invite.name == "eve").expect("listed").id;
    one_time_links::revoke_invite(&harness.store, &harness.clock, &by(&admin), eves).await.expect("revoked");
    assert!(matches!(
        one_time_links::revoke_invite(&harness.store, &harness.clock, &by(&admin), eves).await,
        Err(AppError::NotFound(_))
    ));
    assert!(matches!(harness.accept(&eve, "eve").await, Err(AppError::NotFound(_))));
    harness.clock.advance(TimeDelta::hours(72));
    assert!(matches!(harness.accept(&bob, "bob").await, Err(AppError::NotFound(_))));
    let left = harness.store.list_invites(harness.clock.now()).await.expect("it can be read");
    assert_eq!(left.iter().map(|invite| invite.name.as_str()).collect::<Vec<_>>(), ["bob"], "it can be renewed");
    assert_eq!(harness.audited(&format!("invite:{eves}")).await, ["invite.revoke", "invite.create"]);
}

#[tokio::test]
async fn at_most_100_invitations_are_open() {
    let harness = UserHarness::new().await;
    let admin = harness.admin().await;
    for n in 0..100 {
        harness.invite(&admin, &format!("n{n}"), Role::Viewer).await;
    }
    let more = one_time_links::invite(&harness.store, &harness.clock, &by(&admin), "one more", Role::Viewer).await;
    assert!(matches!(more, Err(AppError::TooMany(_))));
}

#[tokio::test]
async fn renewed_invitation_has_a_new_link_for_three_days() {
    let harness = UserHarness::new().await;
    let admin = by(&harness.admin().await);
    let (store, clock) = (&harness.store, &harness.clock);
    let old = harness.invite(&admin, "bob", Role::Operator).await;
    let id = store.list_invites(clock.now()).await.expect("it can be read")[0].id;

    clock.advance(TimeDelta::hours(73));
    let renew = async || one_time_links::renew_invite(store, clock, &admin, id).await;
    let first = token(&renew().await.expect("an expired invitation can be renewed"));
    let second = token(&renew().await.expect("renewed again"));
    for dead in [&old, &first] {
        assert!(!harness.is_open(dead).await);
    }
    clock.advance(TimeDelta::hours(71));
    let bob = harness.accept(&second, "bob").await.expect("the new link is valid");
    assert_eq!(bob.role, Role::Operator);
    assert!(matches!(renew().await, Err(AppError::NotFound(_))), "it is used");
    assert_eq!(harness.audited(&format!("invite:{id}")).await, ["invite.renew", "invite.renew", "invite.create"]);
}

#[tokio::test]
async fn renewal_counts_as_an_open_invitation() {
    let harness = UserHarness::new().await;
    let admin = by(&harness.admin().await);
    let (store, clock) = (&harness.store, &harness.clock);
    harness.invite(&admin, "late", Role::Viewer).await;
    let late = store.list_invites(clock.now()).await.expect("it can be read")[0].id;
    clock.advance(TimeDelta::hours(72));
    for n in 0..100 {
        harness.invite(&admin, &format!("n{n}"), Role::Viewer).await;
    }
    assert!(matches!(one_time_links::renew_invite(store, clock, &admin, late).await, Err(AppError::TooMany(_))));
    let open = store.list_invites(clock.now()).await.expect("it can be read")[0].id;
    assert_ne!(open, late);
    one_time_links::renew_invite(store, clock, &admin, open).await.expect("an open one is counted once");
}

#[tokio::test]
async fn unknown_address_and_wrong_passphrase_look_the_same() {
    let harness = UserHarness::new().await;
    let admin = harness.admin().await;
    harness.join(&admin, "bob", Role::Viewer).await;
    let bob = harness.store.user_by_email("bob@example.org").await.expect("it can be read").expect("bob");
    team::set_active(&harness.store, &harness.clock, &by(&admin), bob.id, false).await.expect("changed");
    let unknown = harness.sign_in(None, "unknown", VALID_PASSPHRASE).await;
    assert!(unknown.is_err());
    assert_eq!(unknown, harness.sign_in(None, "ana", "some other passphrase").await);
    assert_eq!(unknown, harness.sign_in(None, "bob", VALID_PASSPHRASE).await);
    assert_eq!(unknown, harness.sign_in(None, "ana", &"x".repeat(2_000)).await);
    harness.sign_in(None, "ana", VALID_PASSPHRASE).await.expect("the passphrase is right");
    assert_eq!(harness.audited(&format!("user:{}", admin.id)).await, ["sign-in", "sign-in.refuse", "setup"]);
}

#[tokio::test]
async fn failed_sign_ins_delay_the_next_attempt() {
    let harness = UserHarness::new().await;
    harness.admin().await;
    for _ in 0..5 {
        assert!(matches!(harness.sign_in(None, "ana", "wrong passphrase").await, Err(AppError::Fields(_))));
    }
    for wait in [1, 2, 4] {
        let refused = harness.sign_in(None, "ana", VALID_PASSPHRASE).await;
        let unit = if wait == 1 { "second" } else { "seconds" };
        let text = format!("Too many attempts. Wait {wait} {unit}, then try again.");
        assert_eq!(refused, Err(AppError::TooMany(text)), "the right passphrase has to wait too");
        harness.clock.advance(seconds(wait));
        assert!(matches!(harness.sign_in(None, "ana", "wrong passphrase").await, Err(AppError::Fields(_))));
    }
    harness.clock.advance(seconds(8));
    harness.sign_in(None, "ana", VALID_PASSPHRASE).await.expect("the delay has passed");
    for _ in 0..4 {
        assert!(matches!(harness.sign_in(None, "ana", "wrong passphrase").await, Err(AppError::Fields(_))));
    }
    harness.sign_in(None, "ana", VALID_PASSPHRASE).await.expect("the count was reset");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_guesses_do_not_bypass_the_delay() {
    let harness = Arc::new(UserHarness::new().await);
    harness.admin().await;
    let tasks: Vec<_> = (0..30)
        .map(|_| {
            let harness = Arc::clone(&harness);
            tokio::spawn(async move { harness.sign_in(None, "ana", "wrong passphrase").await })
        })
        .collect();
    let mut checked = 0;
    for task in tasks {
        checked += i32::from(matches!(task.await.expect("the task does not panic"), Err(AppError::Fields(_))));
    }
    assert_eq!(checked, 5);
}

#[tokio::test]
async fn sign_in_limit_holds_per_client_address() {
    let harness = UserHarness::new().await;
    harness.admin().await;
    let attacker = Some("203.0.113.9");
    for n in 0..19 {
        assert!(matches!(
            harness.sign_in(attacker, &format!("guess{n}"), "wrong passphrase").await,
            Err(AppError::Fields(_))
        ));
    }
    harness.sign_in(attacker, "ana", VALID_PASSPHRASE).await.expect("the limit is not reached");
    assert!(matches!(harness.sign_in(attacker, "guess19", "wrong passphrase").await, Err(AppError::Fields(_))));
    assert!(matches!(harness.sign_in(attacker, "guess20", "wrong passphrase").await, Err(AppError::TooMany(_))));
    harness.sign_in(Some("203.0.113.10"), "ana", VALID_PASSPHRASE).await.expect("other addresses are not limited");

    // The attempts of twenty accounts and two addresses were counted, and all counts are deleted.
    harness.clock.advance(FAILED_SIGN_IN_RETENTION + seconds(1));
    let expired = harness.clock.now() - FAILED_SIGN_IN_RETENTION;
    assert_eq!(harness.store.delete_expired(ExpiringTable::SignInThrottle, expired).await.expect("deleted"), 22);
}
