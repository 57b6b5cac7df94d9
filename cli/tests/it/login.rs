//! Sign-in, and the choice of the server and the token.

use std::{fs, os::unix::fs::PermissionsExt};

use serde_json::json;

use crate::{
    fake::{FakeServer, document, problem, unused_address},
    samples::JOB,
    shell::Shell,
};

async fn server() -> FakeServer {
    FakeServer::start(|request, _| match request.header("authorization") {
        Some("Bearer milvaion_good") => {
            document(200, &json!({ "id": JOB, "name": "Ann", "email": "ann@example.com", "role": "operator" }))
        }
        _ => problem(401, "There is no such token."),
    })
    .await
}

#[tokio::test]
async fn login_checks_and_stores_the_token() {
    let (server, folder) = (server().await, tempfile::tempdir().expect("a folder"));
    let shell = || Shell::new().with_config(folder.path());
    let file = folder.path().join("milvaion/credentials.toml");

    let wrong = shell().with_input("milvaion_bad\n").run(&["login", "--url", &server.url]).await;
    assert_eq!((wrong.code, file.exists()), (3, false), "{}", wrong.messages);

    let outcome = shell().with_input("milvaion_good\n").run(&["login", "--url", &server.url]).await;
    assert_eq!(outcome.code, 0, "{}", outcome.messages);
    assert!(outcome.output.contains("Ann") && !outcome.messages.contains("milvaion_good"), "{outcome:?}");
    assert_eq!(fs::metadata(&file).expect("a file").permissions().mode() & 0o777, 0o600);

    let user = shell().run(&["whoami", "-o", "json"]).await;
    assert_eq!((user.code, user.output.contains("\"role\": \"operator\"")), (0, true), "{user:?}");

    let signed_out = shell().run(&["logout"]).await;
    assert_eq!((signed_out.code, file.exists()), (0, false));
    assert_eq!(shell().run(&["whoami"]).await.code, 3);
}

#[tokio::test]
async fn stored_token_is_sent_to_no_other_server() {
    let (server, other) = (server().await, server().await);
    let folder = tempfile::tempdir().expect("a folder");
    let shell = || Shell::new().with_config(folder.path());
    shell().with_input("milvaion_good\n").run(&["login", "--url", &server.url]).await;

    let refused = shell().run(&["whoami", "--url", &other.url]).await;
    assert_eq!(refused.code, 3);
    assert!(refused.messages.contains(&server.url) && refused.messages.contains("MILVAION_TOKEN"), "{refused:?}");
    assert!(other.received().is_empty());

    let same = shell().run(&["whoami", "--url", &format!("{}/", server.url)]).await;
    assert_eq!(same.code, 0, "{}", same.messages);
}

#[tokio::test]
async fn option_overrides_the_environment_and_it_the_stored_address() {
    let (server, folder) = (server().await, tempfile::tempdir().expect("a folder"));
    let unreachable = unused_address().await;
    let login = Shell::new().with_config(folder.path()).with_input("milvaion_good\n");
    assert_eq!(login.run(&["login", "--url", &server.url]).await.code, 0);
    let shell = || Shell::signed_in(&unreachable).with_config(folder.path());
    assert_eq!(shell().run(&["whoami"]).await.code, 6);
    let mut good = shell();
    good.console.environment.token = Some("milvaion_good".into());
    assert_eq!(good.run(&["whoami", "--url", &server.url]).await.code, 0);
    let refused = shell().run(&["whoami", "--url", &server.url]).await;
    assert_eq!(refused.code, 3, "the token of the environment overrides the stored one");
}

#[tokio::test]
async fn missing_server_or_token_is_named() {
    let mut shell = Shell::new();
    shell.console.environment.token = Some("milvaion_good".into());
    let no_server = shell.run(&["whoami"]).await;
    assert!(no_server.messages.contains("No server is given"), "{no_server:?}");
    let mut shell = Shell::new();
    shell.console.environment.url = Some("http://127.0.0.1:1".into());
    let no_token = shell.run(&["whoami"]).await;
    assert_eq!((no_server.code, no_token.code), (3, 3));
    assert!(no_token.messages.contains("You are not signed in"), "{no_token:?}");
    let wrong = Shell::signed_in("ftp://example.com").run(&["whoami"]).await;
    assert_eq!(wrong.code, 2);
}
