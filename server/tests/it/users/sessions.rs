//! How long a session is good, and for what.

use axum::extract::Request;
use chrono::TimeDelta;
use milvaion_api::permissions::{ALL_PERMISSIONS, Permission, Role};
use milvaion_app::{backend::FlashMessage, error::AppError};
use milvaion_server::http::{
    guard::{self, authorize},
    session,
};
use tower_sessions::session::Id;

use super::harness::UserHarness;

#[tokio::test]
async fn signing_in_gives_a_new_id_and_kills_the_old_one() {
    let harness = UserHarness::new().await;
    let ana = harness.admin().await;
    let planted = harness.session(None);
    session::put_flash(&planted, FlashMessage { form: "login".into(), ..FlashMessage::default() }).await.expect("kept");
    planted.save().await.expect("saved");
    let planted = planted.id().expect("an id");

    let session = harness.session(Some(planted));
    session::sign_in_session(&session, &ana, harness.clock.now()).await.expect("kept");
    assert_ne!(session.id(), Some(planted));
    assert_eq!(harness.authorize(session.id(), Permission::Read).await, Ok(ana.clone()));
    assert_eq!(harness.authorize(Some(planted), Permission::Read).await, Err(AppError::SignedOut));
    assert_eq!(session::take_flash(&harness.session(session.id()), "login").await, Ok(None), "nothing comes along");

    let invented = Id(42);
    let session = harness.session(Some(invented));
    session::sign_in_session(&session, &ana, harness.clock.now()).await.expect("kept");
    assert_ne!(session.id(), Some(invented));
}

#[tokio::test]
async fn a_session_ends_after_twelve_hours_of_rest_and_after_seven_days_of_work() {
    let harness = UserHarness::new().await;
    let ana = harness.admin().await;
    let id = harness.session_of(&ana).await;
    harness.clock.advance(TimeDelta::hours(12));
    assert_eq!(harness.authorize(Some(id), Permission::Read).await, Err(AppError::SignedOut));
    assert_eq!(harness.store.delete_expired_sessions(harness.clock.now()).await.expect("deleted"), 1);

    let id = harness.session_of(&ana).await;
    for hours in (0..7 * 24).step_by(8) {
        assert!(harness.authorize(Some(id), Permission::Read).await.is_ok(), "after {hours} h");
        harness.clock.advance(TimeDelta::hours(8));
    }
    assert_eq!(harness.authorize(Some(id), Permission::Read).await, Err(AppError::SignedOut));
}

#[tokio::test]
async fn signing_out_ends_the_session_for_good() {
    let harness = UserHarness::new().await;
    let ana = harness.admin().await;
    let id = harness.session_of(&ana).await;
    // Another tab has the session loaded and saves it after it was ended here.
    let other_tab = harness.session(Some(id));
    session::put_flash(&other_tab, FlashMessage { form: "job".into(), ..FlashMessage::default() }).await.expect("kept");

    let session = harness.session(Some(id));
    session::sign_out_session(&session).await.expect("ended");
    session::put_flash(&session, FlashMessage { form: "login".into(), ..FlashMessage::default() }).await.expect("kept");
    session.save().await.expect("saved");
    other_tab.save().await.expect("saved");
    assert_ne!(session.id(), Some(id));
    assert_eq!(harness.authorize(Some(id), Permission::Read).await, Err(AppError::SignedOut));
    assert_eq!(harness.authorize(session.id(), Permission::Read).await, Err(AppError::SignedOut));
}

#[tokio::test]
async fn a_changed_role_and_a_deactivation_hold_from_the_next_request_on() {
    let harness = UserHarness::new().await;
    let admin = harness.admin().await;
    let bob = harness.join(&admin, "bob", Role::Operator).await;
    let id = harness.session_of(&bob).await;
    assert!(harness.authorize(Some(id), Permission::RunJob).await.is_ok());
    harness.store.set_user_role(bob.id, Role::Viewer, &admin, harness.clock.now()).await.expect("changed");
    let denied = harness.authorize(Some(id), Permission::RunJob).await;
    let text = "Only an Operator or Admin may run jobs. You are a Viewer; ask an Admin.";
    assert_eq!(denied, Err(AppError::Denied(text.into())));
    assert!(harness.authorize(Some(id), Permission::Read).await.is_ok());

    // One session that is open now, and one that comes back from before, as out of a backup.
    harness.store.set_user_active(bob.id, false, &admin, harness.clock.now()).await.expect("changed");
    assert_eq!(harness.authorize(Some(id), Permission::Read).await, Err(AppError::SignedOut));
    let restored = harness.session_of(&bob).await;
    assert_eq!(harness.authorize(Some(restored), Permission::Read).await, Err(AppError::SignedOut));
    assert_eq!(guard::me(&harness.store, &harness.clock, &harness.parts(Some(restored))).await, Ok(None));
    let deeds = harness.audited(&format!("user:{}", bob.id)).await;
    assert_eq!(deeds, ["user.set-active", "refuse", "user.set-role", "invite.accept"]);
}

#[tokio::test]
async fn each_role_may_do_what_the_table_says_and_nobody_may_do_anything() {
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
async fn a_forged_origin_is_refused_even_with_a_good_session() {
    let harness = UserHarness::new().await;
    let ana = harness.admin().await;
    let id = harness.session_of(&ana).await;
    for (name, value) in [
        ("sec-fetch-site", "cross-site"),
        ("sec-fetch-site", "same-site"),
        ("origin", "https://evil.example"),
        ("origin", "null"),
        ("x-nothing", "said"),
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
            let answer = authorize(&harness.store, &harness.clock, &harness.config, &parts, action).await;
            assert_eq!(answer.is_ok(), !action.mutates(), "{name}: {value} {action:?}");
        }
    }
}

#[tokio::test]
async fn a_message_is_read_once_and_by_its_own_form() {
    let harness = UserHarness::new().await;
    let session = harness.session(None);
    for form in ["login", "notice"] {
        let flash = FlashMessage { form: form.into(), notice: Some(format!("for {form}")), ..FlashMessage::default() };
        session::put_flash(&session, flash).await.expect("kept");
    }
    session.save().await.expect("saved");
    let id = session.id();

    // Each read is a request of its own, and none of them has a layer that saves.
    let take = async |form: &str| session::take_flash(&harness.session(id), form).await.expect("read");
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
    session::put_flash(&session, long).await.expect("kept");
    let kept = session::take_flash(&session, "login").await.expect("read").expect("there");
    assert_eq!(kept.typed, serde_json::Value::Null, "what nobody typed is not kept when it is long");
}

#[tokio::test]
async fn the_table_knows_no_session_id_and_no_message_that_has_ended() {
    let harness = UserHarness::new().await;
    let session = harness.session(None);
    session::put_flash(&session, FlashMessage { form: "login".into(), ..FlashMessage::default() }).await.expect("kept");
    session.save().await.expect("saved");
    let id = session.id().expect("an id");
    // The id itself finds nothing: the table is asked for its hash.
    let mut plain = [0; 32];
    plain[..16].copy_from_slice(&id.0.to_le_bytes());
    assert_eq!(harness.store.session(&plain, harness.clock.now()).await.expect("asked"), None);

    harness.clock.advance(TimeDelta::minutes(15));
    assert_eq!(session::take_flash(&harness.session(Some(id)), "login").await, Ok(None));
}
