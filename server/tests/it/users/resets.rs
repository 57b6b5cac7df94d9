//! One-time links for a new passphrase.

use std::sync::Arc;

use chrono::TimeDelta;
use milvaion_api::permissions::{Permission, Role};
use milvaion_app::error::AppError;
use milvaion_server::{
    command::{one_time_links, team},
    store::retention::ExpiringTable,
};

use super::harness::{UserHarness, VALID_PASSPHRASE, by, token};

const NEW_PASSPHRASE: &str = "quiet harbor lamp seven";

#[tokio::test]
async fn reset_link_works_once_and_ends_all_sessions() {
    let harness = UserHarness::new().await;
    let ana = by(&harness.admin().await);
    let bob = harness.join(&ana, "bob", Role::Operator).await;
    let stolen = harness.session_of(&bob).await;
    for _ in 0..20 {
        if matches!(harness.sign_in(None, "bob", "wrong passphrase").await, Err(AppError::TooMany(_))) {
            break;
        }
    }
    let mut connection = harness.connection().await;
    connection
        .execute(format!(
            "INSERT INTO known_devices (token_hash, user_id, created_at, last_used_at)
             VALUES (sha256('one'), '{}', now(), now())",
            bob.id
        ))
        .await;
    let (store, clock) = (&harness.store, &harness.clock);
    let path = team::create_reset_link(store, clock, &ana, bob.id).await.expect("created");
    assert!(path.starts_with("/reset?token="), "{path}");
    let link = token(&path);
    let info = one_time_links::info(store, clock, &link).await.expect("read").expect("valid");
    assert_eq!((info.name.as_str(), info.email.as_str()), ("bob", "bob@example.org"));
    assert!(harness.authorize(Some(stolen), Permission::Read).await.is_ok(), "the link alone changes nothing");

    for weak in ["too short", "Password2024!!", "bob@example.org 12"] {
        let error = harness.reset(&link, weak).await.expect_err("refused");
        assert!(error.field_message("passphrase").is_some(), "{weak}: {error:?}");
    }
    assert_eq!(harness.reset(&link, NEW_PASSPHRASE).await, Ok(bob.clone()));
    let spent = harness.reset(&link, NEW_PASSPHRASE).await;
    assert!(matches!(&spent, Err(AppError::NotFound(text)) if text.contains("used, replaced or revoked")), "{spent:?}");
    assert!(!harness.is_open(&link).await);
    assert_eq!(harness.authorize(Some(stolen), Permission::Read).await, Err(AppError::SignedOut));
    assert_eq!(connection.count("SELECT count(*) FROM known_devices").await, 0);
    harness.sign_in(None, "bob", NEW_PASSPHRASE).await.expect("the account is not locked any more");
    assert!(harness.sign_in(None, "bob", VALID_PASSPHRASE).await.is_err());
    let actions = harness.audited(&format!("user:{}", bob.id)).await;
    assert!(actions.contains(&"user.create-reset-link".to_owned()), "{actions:?}");
    assert!(actions.contains(&"user.reset-passphrase".to_owned()), "{actions:?}");
}

#[tokio::test]
async fn reset_link_ends_by_a_new_one_revocation_or_expiry() {
    let harness = UserHarness::new().await;
    let ana = by(&harness.admin().await);
    let (store, clock) = (&harness.store, &harness.clock);
    let create = async || token(&team::create_reset_link(store, clock, &ana, ana.id).await.expect("created"));
    let (old, new) = (create().await, create().await);
    assert!(!harness.is_open(&old).await && harness.is_open(&new).await);
    let other_kind = one_time_links::revoke_invite(store, clock, &ana, ana.id).await;
    assert!(matches!(other_kind, Err(AppError::NotFound(_))) && harness.is_open(&new).await);
    for _ in 0..2 {
        team::revoke_reset_link(store, clock, &ana, ana.id).await.expect("revoked");
    }
    assert!(!harness.is_open(&new).await);
    let late = create().await;
    clock.advance(TimeDelta::hours(24) - TimeDelta::seconds(1));
    assert!(harness.is_open(&late).await);
    let delete = async || store.delete_expired(ExpiringTable::OneTimeLinks, clock.now()).await.expect("deleted");
    assert_eq!(delete().await, 0);
    clock.advance(TimeDelta::seconds(1));
    assert!(!harness.is_open(&late).await);
    assert!(matches!(harness.reset(&late, NEW_PASSPHRASE).await, Err(AppError::NotFound(_))));
    assert_eq!(delete().await, 1);
    for invalid in ["", "x", &"x".repeat(100)] {
        assert!(!harness.is_open(invalid).await);
    }
    let actions = harness.audited(&format!("user:{}", ana.id)).await;
    assert_eq!(actions.iter().filter(|action| *action == "user.revoke-reset-link").count(), 1, "{actions:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn reset_link_used_twice_at_once_works_once() {
    let harness = Arc::new(UserHarness::new().await);
    let ana = by(&harness.admin().await);
    let link = token(&team::create_reset_link(&harness.store, &harness.clock, &ana, ana.id).await.expect("created"));
    let tasks: Vec<_> = (0..4)
        .map(|n| {
            let (harness, link) = (Arc::clone(&harness), link.clone());
            tokio::spawn(async move { harness.reset(&link, &format!("{NEW_PASSPHRASE} {n}")).await })
        })
        .collect();
    let mut used = 0;
    for task in tasks {
        match task.await.expect("the task does not panic") {
            Ok(_) => used += 1,
            Err(error) => assert!(matches!(error, AppError::NotFound(_)), "{error}"),
        }
    }
    assert_eq!(used, 1);
}

#[tokio::test]
async fn command_line_creates_a_link_for_the_only_admin() {
    let harness = UserHarness::new().await;
    let ana = harness.admin().await;
    let (store, clock) = (&harness.store, &harness.clock);
    let user = store.user_by_email("ana@example.org").await.expect("read").expect("ana");
    let link = token(&one_time_links::reset_link(store, clock, "system", None, &user).await.expect("created"));
    assert_eq!(harness.reset(&link, NEW_PASSPHRASE).await, Ok(ana.clone()));
    let entries = store.audit_entries(Some(&format!("user:{}", ana.id)), 10).await.expect("read");
    let authors: Vec<_> = entries.iter().map(|entry| (entry.action.as_str(), entry.who.as_str())).collect();
    assert_eq!(
        authors,
        [
            ("user.reset-passphrase", "ana@example.org"),
            ("user.create-reset-link", "system"),
            ("setup", "ana@example.org")
        ]
    );
    let text = serde_json::to_string(&entries.iter().map(|entry| (&entry.before, &entry.after)).collect::<Vec<_>>());
    assert!(!text.expect("JSON").contains(&link), "the audit log holds no token");
}
