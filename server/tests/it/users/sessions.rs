//! The lifetime of sessions, and their permissions.

use axum::extract::Request;
use chrono::TimeDelta;
use http::{HeaderValue, Method, header::USER_AGENT};
use milvaion_api::{
    events::StreamEndReason,
    permissions::{ALL_PERMISSIONS, Permission, Role},
};
use milvaion_app::{backend::FlashMessage, error::AppError};
use milvaion_server::{
    command::team,
    http::{
        guard::{self, StreamUser, authorize},
        session::{self, SessionOrigin},
    },
    store::{
        retention::ExpiringTable,
        sessions::{MAX_SESSIONS_PER_USER, SessionEnd},
    },
};
use tower_sessions::session::Id;

use super::harness::{UserHarness, by};

#[tokio::test]
async fn sign_in_replaces_the_session_id() {
    let harness = UserHarness::new().await;
    let ana = harness.admin().await;
    let fixed = harness.session(None);
    session::put_flash(&fixed, FlashMessage { form: "login".into(), ..FlashMessage::default() })
        .await
        .expect("it is stored");
    fixed.save().await.expect("saved");
    let fixed = fixed.id().expect("a valid id");

    let session = harness.session(Some(fixed));
    session::sign_in_session(&session, &ana, harness.clock.now(), SessionOrigin::default())
        .await
        .expect("it is stored");
    assert_ne!(session.id(), Some(fixed));
    assert_eq!(harness.authorize(session.id(), Permission::Read).await, Ok(ana.clone()));
    assert_eq!(harness.authorize(Some(fixed), Permission::Read).await, Err(AppError::SignedOut));
    assert_eq!(
        session::take_flash(&harness.session(session.id()), "login").await,
        Ok(None),
        "the old session's data is dropped"
    );

    let invented = Id(42);
    let session = harness.session(Some(invented));
    session::sign_in_session(&session, &ana, harness.clock.now(), SessionOrigin::default())
        .await
        .expect("it is stored");
    assert_ne!(session.id(), Some(invented));
}

#[tokio::test]
async fn session_ends_after_12_idle_hours_or_7_days() {
    let harness = UserHarness::new().await;
    let ana = harness.admin().await;
    let id = harness.session_of(&ana).await;
    harness.clock.advance(TimeDelta::hours(12));
    assert_eq!(harness.authorize(Some(id), Permission::Read).await, Err(AppError::SignedOut));
    let deleted = harness.store.delete_expired(ExpiringTable::Sessions, harness.clock.now()).await;
    assert_eq!(deleted.expect("deleted"), 1);

    let id = harness.session_of(&ana).await;
    for hours in (0..7 * 24).step_by(8) {
        assert!(harness.authorize(Some(id), Permission::Read).await.is_ok(), "after {hours} h");
        harness.clock.advance(TimeDelta::hours(8));
    }
    assert_eq!(harness.authorize(Some(id), Permission::Read).await, Err(AppError::SignedOut));
}

#[tokio::test]
async fn sign_out_ends_the_session() {
    let harness = UserHarness::new().await;
    let ana = harness.admin().await;
    let id = harness.session_of(&ana).await;
    // Another tab has loaded the session and saves it after it was ended here.
    let other_tab = harness.session(Some(id));
    session::put_flash(&other_tab, FlashMessage { form: "job".into(), ..FlashMessage::default() })
        .await
        .expect("it is stored");

    let session = harness.session(Some(id));
    session::sign_out_session(&session).await.expect("signed out");
    session::put_flash(&session, FlashMessage { form: "login".into(), ..FlashMessage::default() })
        .await
        .expect("it is stored");
    session.save().await.expect("saved");
    other_tab.save().await.expect("saved");
    assert_ne!(session.id(), Some(id));
    assert_eq!(harness.authorize(Some(id), Permission::Read).await, Err(AppError::SignedOut));
    assert_eq!(harness.authorize(session.id(), Permission::Read).await, Err(AppError::SignedOut));
}

#[tokio::test]
async fn session_keeps_its_device_and_last_use() {
    let harness = UserHarness::new().await;
    let ana = harness.admin().await;
    let mut parts = harness.parts(None);
    let user_agent = format!("curl/8.14.1 {}", "é".repeat(400));
    let header = HeaderValue::from_bytes(user_agent.as_bytes()).expect("a header");
    parts.headers.insert(USER_AGENT, header);
    let origin = SessionOrigin::of(&parts, Some("2001:db8::7".parse().expect("an address")));
    assert_eq!(origin.user_agent.as_ref().map(|text| text.chars().count()), Some(300));
    let id = harness.session_from(&ana, origin).await;
    let created_at = harness.clock.now();

    let session = async || {
        let view = team::person(&harness.store, &harness.clock, ana.id).await.expect("it can be read");
        (view.sessions.into_iter().next().expect("a session"), view.last_seen_at)
    };
    let (first, seen) = session().await;
    assert_eq!((first.device.as_str(), first.address.as_deref()), ("curl", Some("2001:db8::7")));
    assert_eq!((first.created_at, first.last_seen_at, seen), (created_at, created_at, Some(created_at)));

    // A use is recorded once a minute, for the session and for the user.
    harness.clock.advance(TimeDelta::seconds(59));
    assert!(harness.authorize(Some(id), Permission::Read).await.is_ok());
    assert_eq!(session().await, (first.clone(), seen));
    harness.clock.advance(TimeDelta::seconds(1));
    assert!(harness.authorize(Some(id), Permission::Read).await.is_ok());
    let (later, seen) = session().await;
    assert_eq!((later.created_at, later.last_seen_at), (created_at, harness.clock.now()));
    assert_eq!(seen, Some(harness.clock.now()));
}

#[tokio::test]
async fn revoked_session_keeps_its_reason_until_expiry() {
    let harness = UserHarness::new().await;
    let ana = harness.admin().await;
    let (id, kept) = (harness.session_of(&ana).await, harness.session_of(&ana).await);
    let other_tab = harness.session(Some(id));
    session::put_flash(&other_tab, FlashMessage { form: "job".into(), ..FlashMessage::default() })
        .await
        .expect("it is stored");
    let hash = session::id_hash(&harness.session(Some(id))).expect("an id");
    let kept_hash = session::id_hash(&harness.session(Some(kept))).expect("an id");
    let listed = harness.store.sessions_of(ana.id, harness.clock.now(), Some(&kept_hash)).await.expect("read");
    let revoked = listed.iter().find(|session| !session.is_current).expect("the other one").id;

    let end = async |session| team::end_sessions(&harness.store, &harness.clock, &by(&ana), ana.id, session).await;
    assert_eq!(end(Some(revoked)).await, Ok(1));
    assert_eq!(end(Some(revoked)).await, Ok(0), "it has ended already");
    // No read finds it, and a tab that has loaded it before cannot store it again.
    other_tab.save().await.expect("saved");
    assert_eq!(harness.authorize(Some(id), Permission::Read).await, Err(AppError::SignedOut));
    assert_eq!(harness.store.session(&hash, harness.clock.now()).await.expect("read"), None);
    let stream = async |id| {
        guard::stream_user(&harness.store, &harness.clock, &harness.parts(Some(id)), ana.id).await.expect("read")
    };
    assert_eq!(stream(id).await, StreamUser::Ended(StreamEndReason::Revoked));
    assert_eq!(stream(kept).await, StreamUser::Active(ana.clone()));
    // A sign-out of the ended session does not remove the reason.
    session::sign_out_session(&harness.session(Some(id))).await.expect("signed out");
    assert_eq!(stream(id).await, StreamUser::Ended(StreamEndReason::Revoked));
    let (row, reason) = harness.store.session_with_end(&hash).await.expect("read").expect("the row is kept");
    assert_eq!((row.data, reason), (serde_json::json!({}), Some(SessionEnd::Revoked)));
    let deleted = harness.store.delete_expired(ExpiringTable::Sessions, row.expires_at).await;
    assert_eq!(deleted.expect("deleted"), 2);

    assert_eq!(harness.audited(&format!("user:{}", ana.id)).await, ["user.end-sessions", "setup"]);
}

#[tokio::test]
async fn sessions_of_a_user_are_bounded() {
    let harness = UserHarness::new().await;
    let ana = harness.admin().await;
    let bob = harness.join(&ana, "bob", Role::Viewer).await;
    let bobs = harness.session_of(&bob).await;
    let first = harness.session_of(&ana).await;
    harness.clock.advance(TimeDelta::seconds(1));
    let second = harness.session_of(&ana).await;
    let limit = usize::try_from(MAX_SESSIONS_PER_USER).expect("a small number");
    for _ in 2..limit {
        harness.clock.advance(TimeDelta::seconds(1));
        harness.session_of(&ana).await;
    }
    assert!(harness.authorize(Some(first), Permission::Read).await.is_ok(), "the limit is reached only now");
    harness.clock.advance(TimeDelta::seconds(1));
    let last = harness.session_of(&ana).await;
    // The first session was used a moment ago.
    assert_eq!(harness.authorize(Some(second), Permission::Read).await, Err(AppError::SignedOut));
    for id in [first, last, bobs] {
        assert!(harness.authorize(Some(id), Permission::Read).await.is_ok());
    }
    let sessions = harness.store.sessions_of(ana.id, harness.clock.now(), None).await.expect("read");
    assert_eq!(sessions.len(), limit);
}

#[tokio::test]
async fn role_change_and_deactivation_hold_from_the_next_request() {
    let harness = UserHarness::new().await;
    let admin = harness.admin().await;
    let bob = harness.join(&admin, "bob", Role::Operator).await;
    let id = harness.session_of(&bob).await;
    assert!(harness.authorize(Some(id), Permission::RunJob).await.is_ok());
    team::change_role(&harness.store, &harness.clock, &by(&admin), bob.id, Role::Viewer, false).await.expect("changed");
    let denied = harness.authorize(Some(id), Permission::RunJob).await;
    let text = "Only an Operator or Admin may run jobs. You are a Viewer; ask an Admin.";
    assert_eq!(denied, Err(AppError::Denied(text.into())));
    assert!(harness.authorize(Some(id), Permission::Read).await.is_ok());

    // An open session, and one that is restored, as from a backup.
    team::set_active(&harness.store, &harness.clock, &by(&admin), bob.id, false).await.expect("changed");
    assert_eq!(harness.authorize(Some(id), Permission::Read).await, Err(AppError::SignedOut));
    let restored = harness.session_of(&bob).await;
    assert_eq!(harness.authorize(Some(restored), Permission::Read).await, Err(AppError::SignedOut));
    assert_eq!(guard::me(&harness.store, &harness.clock, &harness.parts(Some(restored))).await, Ok(None));
    let actions = harness.audited(&format!("user:{}", bob.id)).await;
    assert_eq!(actions, ["user.deactivate", "refuse", "user.change-role", "invite.accept"]);
}

#[tokio::test]
async fn roles_have_their_permissions_only() {
    let harness = UserHarness::new().await;
    let admin = harness.admin().await;
    let viewer = harness.join(&admin, "vera", Role::Viewer).await;
    let operator = harness.join(&admin, "oleg", Role::Operator).await;
    for me in [viewer, operator, admin] {
        let id = harness.session_of(&me).await;
        for action in ALL_PERMISSIONS {
            let answer = harness.authorize(Some(id), action).await;
            if me.role.allows(action) {
                assert_eq!(answer, Ok(me.clone()), "{action:?}");
            } else {
                assert!(matches!(answer, Err(AppError::Denied(_))), "{} {action:?}: {answer:?}", me.name);
            }
        }
    }
    for action in ALL_PERMISSIONS {
        assert_eq!(harness.authorize(None, action).await, Err(AppError::SignedOut), "{action:?}");
        assert_eq!(harness.authorize(Some(Id(7)), action).await, Err(AppError::SignedOut), "{action:?}");
    }
}

#[tokio::test]
async fn cross_origin_requests_are_refused() {
    let harness = UserHarness::new().await;
    let ana = harness.admin().await;
    let id = harness.session_of(&ana).await;
    for (name, value) in [
        ("sec-fetch-site", "cross-site"),
        ("sec-fetch-site", "same-site"),
        ("origin", "https://evil.example"),
        ("origin", "null"),
        ("x-unrelated", "value"),
    ] {
        let mut parts = Request::post("/api/x")
            .header("host", "localhost:8600")
            .header(name, value)
            .body(())
            .expect("valid")
            .into_parts()
            .0;
        parts.extensions.insert(harness.session(Some(id)));
        for action in ALL_PERMISSIONS {
            parts.method = Method::POST;
            let answer = authorize(&harness.store, &harness.clock, &harness.config, &parts, action).await;
            assert_eq!(answer.is_ok(), !action.mutates(), "{name}: {value} {action:?}");
            // A link on another site may open the page of a change.
            parts.method = Method::GET;
            let answer = authorize(&harness.store, &harness.clock, &harness.config, &parts, action).await;
            assert!(answer.is_ok(), "{name}: {value} {action:?}");
        }
    }
}

#[tokio::test]
async fn flash_message_is_read_once_by_its_form() {
    let harness = UserHarness::new().await;
    let session = harness.session(None);
    for form in ["login", "notice"] {
        let flash = FlashMessage { form: form.into(), notice: Some(format!("for {form}")), ..FlashMessage::default() };
        session::put_flash(&session, flash).await.expect("it is stored");
    }
    session.save().await.expect("saved");
    let id = session.id();

    // Each read is a separate request, without the layer that saves sessions.
    let take = async |form: &str| session::take_flash(&harness.session(id), form).await.expect("it can be read");
    assert_eq!(take("job").await, None);
    assert_eq!(take("login").await.and_then(|flash| flash.notice).as_deref(), Some("for login"));
    assert_eq!(take("login").await, None);
    assert_eq!(take("notice").await.and_then(|flash| flash.notice).as_deref(), Some("for notice"));
    assert_eq!(take("notice").await, None);

    let long = FlashMessage {
        form: "login".into(),
        typed: serde_json::json!({ "email": "x".repeat(9_000) }),
        ..FlashMessage::default()
    };
    let session = harness.session(None);
    session::put_flash(&session, long).await.expect("it is stored");
    let flash = session::take_flash(&session, "login").await.expect("it can be read").expect("it exists");
    assert_eq!(flash.typed, serde_json::Value::Null, "long input is not stored");
}

#[tokio::test]
async fn database_holds_hashes_of_session_ids() {
    let harness = UserHarness::new().await;
    let session = harness.session(None);
    session::put_flash(&session, FlashMessage { form: "login".into(), ..FlashMessage::default() })
        .await
        .expect("it is stored");
    session.save().await.expect("saved");
    let id = session.id().expect("a valid id");
    // The table's key is a hash of the id, so the id itself finds nothing.
    let mut plain = [0; 32];
    plain[..16].copy_from_slice(&id.0.to_le_bytes());
    assert_eq!(harness.store.session(&plain, harness.clock.now()).await.expect("it is requested"), None);

    harness.clock.advance(TimeDelta::minutes(15));
    assert_eq!(session::take_flash(&harness.session(Some(id)), "login").await, Ok(None));
}
