//! The command `milvaion admin` on the private PostgreSQL of a data folder.

use std::{
    path::Path,
    process::{Output, Stdio},
};

use milvaion_server::{
    clock::Clock,
    embedded::{self, EmbeddedServices, ServiceSelection},
};
use milvaion_test_support::{
    database::{self, TestConnection},
    services,
};
use tokio::process::Command;

use crate::users::harness::{join, setup_link};

/// Starts the PostgreSQL of a data folder and holds the lock on the folder, as a server does.
async fn start(data: &Path) -> EmbeddedServices {
    let wanted = ServiceSelection { postgres: true, redis: false, rabbitmq: false };
    embedded::start(data, wanted, |_| {}).await.expect("PostgreSQL starts")
}

fn url(running: &EmbeddedServices) -> String {
    running.database_url.clone().expect("PostgreSQL was selected")
}

async fn admin(data: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_milvaion"))
        .arg("admin")
        .args(arguments)
        .arg("--data")
        .arg(data)
        .env_remove("DATABASE_URL")
        .env_remove("PUBLIC_URL")
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .expect("the program starts")
}

fn text(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Returns the number of open links that the command has created.
async fn stored_links(url: &str) -> i64 {
    let by_command = "SELECT count(*) FROM one_time_links WHERE created_by = 'system'";
    TestConnection::open(url).await.count(by_command).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn private_database_is_used_whether_or_not_it_runs() {
    let data = std::env::temp_dir().join(services::unique("milvaion_admin"));
    let running = start(&data).await;
    let store = database::open(&url(&running)).await;
    let clock = Clock::system();
    let email = join(&store, &clock, &setup_link(&store, &clock).await, "ana").await.email;
    store.close().await;

    // While it runs, the command uses it and leaves it running.
    assert!(text(&admin(&data, &["list"]).await).contains("ana@example.org"));
    let first = text(&admin(&data, &["reset-passphrase", &email]).await);
    assert!(first.contains("/reset?token="), "{first}");
    assert_eq!(stored_links(&url(&running)).await, 1);
    running.stop().await;

    // While it does not, the command starts it, and stops it again.
    assert!(text(&admin(&data, &["list"]).await).contains("ana@example.org"));
    let second = text(&admin(&data, &["reset-passphrase", &email]).await);
    assert!(second.contains("/reset?token=") && second != first, "{second}");

    // The folder is free again, and the second link has replaced the first.
    let running = start(&data).await;
    assert_eq!(stored_links(&url(&running)).await, 1);
    let rows = "SELECT count(*) FROM audit_log WHERE who = 'system' AND action = 'user.create-reset-link'";
    assert_eq!(TestConnection::open(&url(&running)).await.count(rows).await, 2);
    running.stop().await;
    embedded::erase(&data).await.expect("the data can be deleted");
    std::fs::remove_dir_all(&data).expect("the folder can be deleted");
}
