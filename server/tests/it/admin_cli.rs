//! The command `milvaion admin`, with which an installation is recovered from the shell.

use std::process::{Command, Output};

use milvaion_api::{
    permissions::{Permission, Role},
    views::CurrentUser,
};
use milvaion_app::error::AppError;
use milvaion_server::{clock::Clock, command::team};
use milvaion_test_support::services;

use crate::users::harness::{UserHarness, VALID_PASSPHRASE, by, token};

const NEW_PASSPHRASE: &str = "quiet harbor lamp seven";

/// Users in the time of the machine, which the command uses too.
async fn harness() -> (UserHarness, CurrentUser) {
    let mut harness = UserHarness::new().await;
    harness.clock = Clock::system();
    harness.store.ensure_partitions(harness.clock.now()).await.expect("partitions can be created");
    let ana = harness.admin().await;
    (harness, ana)
}

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_milvaion"));
    command.arg("admin").args(arguments);
    for name in ["DATABASE_URL", "MILVAION_DATA", "PUBLIC_URL"] {
        command.env_remove(name);
    }
    command
}

fn admin(harness: &UserHarness, arguments: &[&str]) -> Output {
    command(arguments).env("DATABASE_URL", &harness.url).output().expect("the program starts")
}

fn lines(output: &Output) -> Vec<String> {
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
}

fn refusal(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stdout.is_empty(), "{}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Locks the account of a user for sign-ins from unknown devices.
async fn lock(harness: &UserHarness, name: &str) {
    assert!(harness.sign_in(None, name, "wrong passphrase").await.is_err());
    let lock =
        "UPDATE sign_in_throttle SET locked_until = now() + interval '1 hour' WHERE kind = 'account' AND failures > 0";
    assert_eq!(harness.connection().await.execute(lock).await, 1);
    let refused = harness.sign_in(None, name, VALID_PASSPHRASE).await;
    assert!(matches!(refused, Err(AppError::TooMany(_))), "{refused:?}");
}

#[tokio::test]
async fn list_prints_all_users_admins_first() {
    let (harness, ana) = harness().await;
    for (name, role) in [("bob", Role::Viewer), ("cleo", Role::Operator), ("abel", Role::Viewer)] {
        harness.join(&ana, name, role).await;
    }
    lock(&harness, "cleo").await;
    let abel = harness.store.user_by_email("abel@example.org").await.expect("read").expect("abel");
    team::set_active(&harness.store, &harness.clock, &by(&ana), abel.id, false).await.expect("deactivated");

    let output = lines(&admin(&harness, &["list"]));
    let columns: Vec<Vec<&str>> = output.iter().map(|line| line.split_whitespace().take(4).collect()).collect();
    assert_eq!(
        columns,
        [
            ["E-MAIL", "NAME", "ROLE", "STATE"],
            ["ana@example.org", "ana", "admin", "active"],
            ["cleo@example.org", "cleo", "operator", "locked"],
            ["abel@example.org", "abel", "viewer", "deactivated"],
            ["bob@example.org", "bob", "viewer", "active"],
        ]
    );
}

#[tokio::test]
async fn only_admin_who_forgot_the_passphrase_gets_a_link() {
    let (harness, ana) = harness().await;
    let session = harness.session_of(&ana).await;
    let output = lines(&admin(&harness, &["reset-passphrase", " Ana@Example.org "]));
    assert!(output[0].starts_with("/reset?token="), "{output:?}");
    assert!(output[1].contains("address of the dashboard"), "{output:?}");
    assert!(output[2].starts_with("ana (Admin) chooses a new passphrase there."), "{output:?}");
    assert!(harness.authorize(Some(session), Permission::Read).await.is_ok(), "the link alone changes nothing");

    let link = token(&output[0]);
    assert_eq!(harness.reset(&link, NEW_PASSPHRASE).await, Ok(ana.clone()));
    assert_eq!(harness.sign_in(None, "ana", NEW_PASSPHRASE).await, Ok(ana.clone()));
    assert!(harness.sign_in(None, "ana", VALID_PASSPHRASE).await.is_err());
    assert_eq!(harness.authorize(Some(session), Permission::Read).await, Err(AppError::SignedOut));

    let rows = harness.store.audit_entries(Some(&format!("user:{}", ana.id)), 20).await.expect("read");
    let created = rows.iter().find(|row| row.action == "user.create-reset-link").expect("an audit row");
    assert_eq!((created.who.as_str(), created.address.as_deref()), ("system", None));
}

#[tokio::test]
async fn printed_link_contains_the_public_address() {
    let (harness, _) = harness().await;
    let output = command(&["reset-passphrase", "ana@example.org"])
        .env("DATABASE_URL", &harness.url)
        .env("PUBLIC_URL", "https://jobs.example.org/")
        .output()
        .expect("the program starts");
    let output = lines(&output);
    assert!(output[0].starts_with("https://jobs.example.org/reset?token="), "{output:?}");
    assert_eq!(output.len(), 2, "{output:?}");
}

#[tokio::test]
async fn unknown_address_is_refused_with_the_admins() {
    let (harness, ana) = harness().await;
    harness.join(&ana, "bob", Role::Operator).await;
    let text = refusal(&admin(&harness, &["reset-passphrase", "eve@example.org"]));
    assert!(text.contains(r#"There is no user with the e-mail address "eve@example.org"."#), "{text}");
    assert!(text.contains("The Admins are: ana@example.org."), "{text}");
}

#[tokio::test]
async fn deactivated_user_gets_no_link() {
    let (harness, ana) = harness().await;
    let bob = harness.join(&ana, "bob", Role::Operator).await;
    team::set_active(&harness.store, &harness.clock, &by(&ana), bob.id, false).await.expect("deactivated");
    let text = refusal(&admin(&harness, &["reset-passphrase", "bob@example.org"]));
    assert!(text.contains("bob is deactivated") && text.contains("Reactivate the user"), "{text}");
    let actions = harness.audited(&format!("user:{}", bob.id)).await;
    assert!(!actions.contains(&"user.create-reset-link".to_owned()), "{actions:?}");
}

#[tokio::test]
async fn link_unlocks_the_account() {
    let (harness, ana) = harness().await;
    lock(&harness, "ana").await;
    lines(&admin(&harness, &["reset-passphrase", "ana@example.org"]));
    let locked = harness.store.account_locked_until("ana@example.org", harness.clock.now()).await;
    assert_eq!(locked.expect("read"), None);
    assert_eq!(harness.sign_in(None, "ana", VALID_PASSPHRASE).await, Ok(ana));
}

#[test]
fn missing_installation_is_named_and_not_created() {
    let folder = std::env::temp_dir().join(services::unique("milvaion_admin"));
    let path = folder.to_str().expect("a path in UTF-8");
    for arguments in [&["list"][..], &["reset-passphrase", "ana@example.org"]] {
        for output in
            [command(arguments).args(["--data", path]).output(), command(arguments).env("MILVAION_DATA", path).output()]
        {
            let text = refusal(&output.expect("the program starts"));
            for part in ["--data", "DATABASE_URL", path] {
                assert!(text.contains(part), "{part}: {text}");
            }
            assert!(!folder.exists(), "{text}");
        }
    }
}
