//! The own account: name, passphrase and sessions.

use milvaion_api::permissions::{Permission, Role};
use milvaion_app::error::AppError;
use milvaion_server::{
    command::{
        account::{self, CurrentDevice},
        team,
    },
    http::session::{self, SessionOrigin},
};
use sha2::{Digest, Sha256};
use tower_sessions::session::Id;

use super::harness::{UserHarness, VALID_PASSPHRASE, by, seconds, token};

const NEW_PASSPHRASE: &str = "quiet harbor lamp seven";

fn hash_of(harness: &UserHarness, id: Id) -> [u8; 32] {
    session::id_hash(&harness.session(Some(id))).expect("an id")
}

#[tokio::test]
async fn rename_changes_the_name_once() {
    let harness = UserHarness::new().await;
    let ana = by(&harness.admin().await);
    let rename = async |name: &str| account::rename(&harness.store, &harness.clock, &ana, name).await;
    for bad in [" ", "a\u{7}b", &"x".repeat(101)] {
        assert!(rename(bad).await.expect_err("invalid").field_message("name").is_some(), "{bad}");
    }
    assert_eq!(rename(" Ana Kowalska ").await, Ok(true));
    assert_eq!(rename("Ana Kowalska").await, Ok(false));
    assert_eq!(harness.store.user(ana.id).await.expect("read").expect("ana").name, "Ana Kowalska");
    assert_eq!(harness.audited(&format!("user:{}", ana.id)).await, ["account.rename", "setup"]);
}

#[tokio::test]
async fn passphrase_change_keeps_only_this_device() {
    let harness = UserHarness::new().await;
    let ana = by(&harness.admin().await);
    let (store, clock) = (&harness.store, &harness.clock);
    let (own, other) = (harness.session_of(&ana).await, harness.session_of(&ana).await);
    let link = token(&team::create_reset_link(store, clock, &ana, ana.id).await.expect("created"));
    let mut connection = harness.connection().await;
    for token in ["one", "two"] {
        connection
            .execute(format!(
                "INSERT INTO known_devices (token_hash, user_id, created_at, last_used_at)
                 VALUES (sha256('{token}'), '{}', now(), now())",
                ana.id
            ))
            .await;
    }
    let device = Sha256::digest("two").into();
    let started = clock.now();
    clock.advance(seconds(1));

    let at = CurrentDevice { session: Some(hash_of(&harness, own)), device: Some(device) };
    let changed =
        account::change_passphrase(store, clock, &harness.hasher, &ana, &at, VALID_PASSPHRASE, NEW_PASSPHRASE).await;
    assert_eq!(changed, Ok(()));
    let browser = harness.session(Some(own));
    session::sign_in_session(&browser, &ana, clock.now(), SessionOrigin::default()).await.expect("stored");
    let new = browser.id().expect("an id");
    assert_ne!(new, own);
    assert_eq!(harness.authorize(Some(new), Permission::Read).await, Ok(ana.user.clone()));
    for ended in [own, other] {
        assert_eq!(harness.authorize(Some(ended), Permission::Read).await, Err(AppError::SignedOut));
    }
    assert_eq!(connection.count("SELECT count(*) FROM known_devices").await, 1);
    assert_eq!(connection.count("SELECT count(*) FROM known_devices WHERE token_hash = sha256('two')").await, 1);
    assert!(!harness.is_open(&link).await);

    // A sign-in that verified the old passphrase, and stored its session after the change.
    let late = harness.session(None);
    session::sign_in_session(&late, &ana, started, SessionOrigin::default()).await.expect("stored");
    assert_eq!(harness.authorize(late.id(), Permission::Read).await, Err(AppError::SignedOut));
    let view = account::view(store, clock, &ana, Some(&hash_of(&harness, new))).await.expect("read");
    assert_eq!(view.sessions.iter().map(|session| session.is_current).collect::<Vec<_>>(), [true]);
    assert_eq!(view.passphrase_changed_at, Some(clock.now()));

    assert!(harness.sign_in(None, "ana", VALID_PASSPHRASE).await.is_err());
    harness.sign_in(None, "ana", NEW_PASSPHRASE).await.expect("the new passphrase is right");
    let actions = harness.audited(&format!("user:{}", ana.id)).await;
    assert!(actions.contains(&"account.change-passphrase".to_owned()), "{actions:?}");
}

#[tokio::test]
async fn unfit_new_passphrase_changes_nothing() {
    let harness = UserHarness::new().await;
    let ana = by(&harness.admin().await);
    let change = async |current: &str, new: &str| {
        let (store, clock, at) = (&harness.store, &harness.clock, CurrentDevice::default());
        account::change_passphrase(store, clock, &harness.hasher, &ana, &at, current, new).await
    };
    for new in ["too short", "Password2024!!", "ana@example.org 12", VALID_PASSPHRASE] {
        // These mistakes do not count as guesses.
        for _ in 0..3 {
            let error = change(VALID_PASSPHRASE, new).await.expect_err("refused");
            assert!(error.field_message("passphrase").is_some(), "{new}: {error:?}");
        }
    }
    let both = change("", "too short").await.expect_err("refused");
    assert!(both.field_message("current").is_some() && both.field_message("passphrase").is_some());
    harness.sign_in(None, "ana", VALID_PASSPHRASE).await.expect("nothing was changed");
    assert_eq!(change(VALID_PASSPHRASE, NEW_PASSPHRASE).await, Ok(()));
}

#[tokio::test]
async fn guesses_of_the_old_passphrase_are_limited() {
    let harness = UserHarness::new().await;
    let ana = by(&harness.admin().await);
    let change = async |current: &str| {
        let (store, clock, at) = (&harness.store, &harness.clock, CurrentDevice::default());
        account::change_passphrase(store, clock, &harness.hasher, &ana, &at, current, NEW_PASSPHRASE).await
    };
    for guess in ["wrong passphrase", "short", "wrong passphrase", "wrong passphrase", "wrong passphrase"] {
        let error = change(guess).await.expect_err("wrong");
        assert!(error.field_message("current").is_some(), "{error:?}");
    }
    assert!(matches!(change(VALID_PASSPHRASE).await, Err(AppError::TooMany(_))), "the right one has to wait too");
    harness.sign_in(None, "ana", VALID_PASSPHRASE).await.expect("a stolen session does not lock the account");
    harness.clock.advance(seconds(1));
    assert_eq!(change(VALID_PASSPHRASE).await, Ok(()));
}

#[tokio::test]
async fn own_sessions_end_one_by_one_or_together() {
    let harness = UserHarness::new().await;
    let ana = by(&harness.admin().await);
    let bob = by(&harness.join(&ana, "bob", Role::Viewer).await);
    let (store, clock) = (&harness.store, &harness.clock);
    let mut ids = Vec::new();
    for _ in 0..4 {
        ids.push(harness.session_of(&ana).await);
        clock.advance(seconds(1));
    }
    let bobs = harness.session_of(&bob).await;
    let current = hash_of(&harness, ids[0]);
    let listed = account::view(store, clock, &ana, Some(&current)).await.expect("read").sessions;
    let order: Vec<_> = listed.iter().map(|session| session.is_current).collect();
    assert_eq!(order, [true, false, false, false]);
    assert!(listed[1].last_seen_at > listed[2].last_seen_at, "the last used one comes first");

    let end = async |me, session| account::end_sessions(store, clock, me, Some(&current), session).await;
    let foreign = store.sessions_of(bob.id, clock.now(), None).await.expect("read")[0].id;
    assert!(matches!(end(&ana, Some(foreign)).await, Err(AppError::NotFound(_))));
    assert_eq!(end(&ana, Some(listed[1].id)).await, Ok(1));
    assert_eq!(harness.authorize(Some(ids[3]), Permission::Read).await, Err(AppError::SignedOut));
    assert_eq!(end(&ana, None).await, Ok(2));
    assert_eq!(end(&ana, None).await, Ok(0));
    for (id, is_valid) in [(ids[0], true), (ids[1], false), (ids[2], false), (bobs, true)] {
        assert_eq!(harness.authorize(Some(id), Permission::Read).await.is_ok(), is_valid);
    }
    let actions = harness.audited(&format!("user:{}", ana.id)).await;
    assert_eq!(actions, ["account.end-sessions", "account.end-sessions", "setup"]);
}
