//! One-time links and signing in.

use std::sync::Arc;

use chrono::TimeDelta;
use milvaion_api::access::Role;
use milvaion_app::error::AppError;
use milvaion_server::command::{invite, sign_in::MEMORY};

use super::house::{GOOD, House, seconds, token};

#[tokio::test]
async fn the_setup_link_makes_one_admin_and_is_then_dead() {
    let house = House::new().await;
    let token = house.setup_token().await;
    let info = invite::info(&house.store, &house.clock, &token).await.expect("good");
    assert!(info.is_setup && info.role == Role::Admin);

    let ana = house.accept(&token, "ana").await.expect("accepted");
    assert_eq!(ana.role, Role::Admin);
    assert!(matches!(house.accept(&token, "bob").await, Err(AppError::NotFound(_))));
    assert!(matches!(invite::info(&house.store, &house.clock, &token).await, Err(AppError::NotFound(_))));
    assert_eq!(invite::setup_link(&house.store, &house.clock).await.expect("asked"), None);
    assert_eq!(house.audited(&format!("user:{}", ana.id)).await, ["setup"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_setup_link_opened_twice_at_once_makes_one_admin() {
    let house = Arc::new(House::new().await);
    let token = house.setup_token().await;
    let tasks: Vec<_> = (0..6)
        .map(|n| {
            let (house, token) = (Arc::clone(&house), token.clone());
            tokio::spawn(async move { house.accept(&token, &format!("person{n}")).await })
        })
        .collect();
    let mut made = 0;
    for task in tasks {
        match task.await.expect("ended") {
            Ok(_) => made += 1,
            Err(error) => assert!(matches!(error, AppError::NotFound(_)), "{error}"),
        }
    }
    assert_eq!(made, 1);
    assert_eq!(house.store.count_users().await.expect("counted"), 1);
}

#[tokio::test]
async fn only_the_newest_setup_link_works_and_only_for_a_quarter_of_an_hour() {
    let house = House::new().await;
    let (old, new) = (house.setup_token().await, house.setup_token().await);
    assert!(matches!(house.accept(&old, "ana").await, Err(AppError::NotFound(_))));
    house.clock.advance(seconds(15 * 60));
    assert!(matches!(house.accept(&new, "ana").await, Err(AppError::NotFound(_))));
    house.accept(&house.setup_token().await, "ana").await.expect("a new link is good");
}

#[tokio::test]
async fn a_wrong_field_leaves_the_link_as_it_was() {
    let house = House::new().await;
    let admin = house.admin().await;
    let link = token(&invite::create(&house.store, &house.clock, &admin, "Bob", Role::Viewer).await.expect("invited"));
    let accept = async |email: &str, passphrase: &str| {
        invite::accept(&house.store, &house.clock, &house.hasher, None, &link, "Bob", email, passphrase).await
    };
    for (email, passphrase, field) in [
        ("bob", GOOD, "email"),
        ("bob@example.org", "too short", "passphrase"),
        ("bob@example.org", "Password2024!!", "passphrase"),
        ("bob@example.org", "bob@example.org", "passphrase"),
        ("ANA@example.org", GOOD, "email"),
    ] {
        let error = accept(email, passphrase).await.expect_err("wrong");
        assert!(error.of(field).is_some(), "{email} {passphrase}: {error:?}");
    }
    assert_eq!(accept("Bob@Example.org ", GOOD).await.expect("accepted").email, "bob@example.org");
}

#[tokio::test]
async fn an_invitation_ends_when_it_is_taken_back_or_after_three_days() {
    let house = House::new().await;
    let admin = house.admin().await;
    let invite = async |name: &str| {
        token(&invite::create(&house.store, &house.clock, &admin, name, Role::Operator).await.expect("invited"))
    };
    let (bob, eve) = (invite("bob").await, invite("eve").await);
    let open = house.store.list_invites(house.clock.now()).await.expect("read");
    let eves = open.iter().find(|invite| invite.name == "eve").expect("listed").id;
    invite::revoke(&house.store, &house.clock, &admin, eves).await.expect("taken back");
    assert!(matches!(invite::revoke(&house.store, &house.clock, &admin, eves).await, Err(AppError::NotFound(_))));
    assert!(matches!(house.accept(&eve, "eve").await, Err(AppError::NotFound(_))));
    house.clock.advance(TimeDelta::hours(72));
    assert!(matches!(house.accept(&bob, "bob").await, Err(AppError::NotFound(_))));
    assert_eq!(house.store.list_invites(house.clock.now()).await.expect("read"), []);
    assert_eq!(house.audited(&format!("invite:{eves}")).await, ["invite.revoke", "invite.create"]);
}

#[tokio::test]
async fn no_more_than_a_hundred_invitations_are_open() {
    let house = House::new().await;
    let admin = house.admin().await;
    for n in 0..100 {
        invite::create(&house.store, &house.clock, &admin, &format!("n{n}"), Role::Viewer).await.expect("invited");
    }
    let more = invite::create(&house.store, &house.clock, &admin, "one more", Role::Viewer).await;
    assert!(matches!(more, Err(AppError::TooMany(_))));
}

#[tokio::test]
async fn an_unknown_address_and_a_wrong_passphrase_are_answered_in_the_same_words() {
    let house = House::new().await;
    let admin = house.admin().await;
    house.join(&admin, "bob", Role::Viewer).await;
    let bob = house.store.user_by_email("bob@example.org").await.expect("read").expect("bob");
    house.store.set_user_active(bob.id, false, &admin, house.clock.now()).await.expect("changed");
    let unknown = house.sign_in(None, "nobody", GOOD).await;
    assert!(unknown.is_err());
    assert_eq!(unknown, house.sign_in(None, "ana", "some other passphrase").await);
    assert_eq!(unknown, house.sign_in(None, "bob", GOOD).await);
    assert_eq!(unknown, house.sign_in(None, "ana", &"x".repeat(2_000)).await);
    house.sign_in(None, "ana", GOOD).await.expect("right");
    assert_eq!(house.audited(&format!("user:{}", admin.id)).await, ["sign-in", "sign-in.refuse", "setup"]);
}

#[tokio::test]
async fn guessing_at_an_account_takes_longer_and_longer_and_a_right_passphrase_ends_it() {
    let house = House::new().await;
    house.admin().await;
    for _ in 0..5 {
        assert!(matches!(house.sign_in(None, "ana", "wrong passphrase").await, Err(AppError::Fields(_))));
    }
    for wait in [1, 2, 4] {
        let refused = house.sign_in(None, "ana", GOOD).await;
        let unit = if wait == 1 { "second" } else { "seconds" };
        let text = format!("Too many tries. Wait {wait} {unit}, then try again.");
        assert_eq!(refused, Err(AppError::TooMany(text)), "even the right one has to wait");
        house.clock.advance(seconds(wait));
        assert!(matches!(house.sign_in(None, "ana", "wrong passphrase").await, Err(AppError::Fields(_))));
    }
    house.clock.advance(seconds(8));
    house.sign_in(None, "ana", GOOD).await.expect("right, and in time");
    for _ in 0..4 {
        assert!(matches!(house.sign_in(None, "ana", "wrong passphrase").await, Err(AppError::Fields(_))));
    }
    house.sign_in(None, "ana", GOOD).await.expect("the count began anew");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn guesses_sent_all_at_once_are_no_way_around_the_wait() {
    let house = Arc::new(House::new().await);
    house.admin().await;
    let tasks: Vec<_> = (0..30)
        .map(|_| {
            let house = Arc::clone(&house);
            tokio::spawn(async move { house.sign_in(None, "ana", "wrong passphrase").await })
        })
        .collect();
    let mut judged = 0;
    for task in tasks {
        judged += i32::from(matches!(task.await.expect("ended"), Err(AppError::Fields(_))));
    }
    assert_eq!(judged, 5);
}

#[tokio::test]
async fn one_address_cannot_try_many_accounts_nor_clear_its_count_with_one_of_its_own() {
    let house = House::new().await;
    house.admin().await;
    let evil = Some("203.0.113.9");
    for n in 0..19 {
        assert!(matches!(
            house.sign_in(evil, &format!("guess{n}"), "wrong passphrase").await,
            Err(AppError::Fields(_))
        ));
    }
    house.sign_in(evil, "ana", GOOD).await.expect("right");
    assert!(matches!(house.sign_in(evil, "guess19", "wrong passphrase").await, Err(AppError::Fields(_))));
    assert!(matches!(house.sign_in(evil, "guess20", "wrong passphrase").await, Err(AppError::TooMany(_))));
    house.sign_in(Some("203.0.113.10"), "ana", GOOD).await.expect("others are not slowed down");

    // Twenty accounts and two addresses were counted; all of it is forgotten.
    house.clock.advance(MEMORY + seconds(1));
    assert_eq!(house.store.delete_old_tries(house.clock.now() - MEMORY).await.expect("deleted"), 22);
}
