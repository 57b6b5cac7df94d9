//! A private PostgreSQL, created once by `initdb`. It uses TCP on loopback only, a SCRAM password and synced writes.

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sqlx::{Connection, PgConnection};

use super::child::{ChildProcess, LaunchSpec};
use super::data_dir::{POSTGRES, ServiceDir};
use super::{EmbeddedError, ProbeResult, StartContext, programs, until_healthy};

/// The name of the role and of the database.
const NAME: &str = "milvaion";

/// The longest time until PostgreSQL is healthy. It usually takes half a second; the rest is for replaying the
/// write-ahead log after a crash.
const HEALTHY_WITHIN: Duration = Duration::from_secs(90);

/// The longest time for `initdb`, which writes and syncs about 40 MB.
const INITDB_WITHIN: Duration = Duration::from_secs(120);

/// Starts PostgreSQL on `port`, creates the database if necessary, and returns the URL once it responds.
pub(super) async fn start(start: &StartContext<'_>, port: u16) -> Result<String, EmbeddedError> {
    let home = start.data_dir.home(&POSTGRES)?;
    let data = home.folder.join("data");
    let programs = choose(installed(), &data)?;
    let password = start.data_dir.secret(POSTGRES.folder)?;
    let log = start.data_dir.log(POSTGRES.folder);

    if !data.exists() {
        start.report("Preparing an empty PostgreSQL database");
        run_initdb(&home, &programs, &password, &data, &log).await?;
    }
    // The pid file of a killed server. In a container, another process may have that pid by now, and PostgreSQL would
    // wait for it. Deleting the file is safe: we hold the lock on the folder and have just checked that no server is
    // left.
    let _ = fs::remove_file(data.join("postmaster.pid"));

    let launch = LaunchSpec::new(programs.join("postgres"))
        .arg("-D")
        .arg(&data)
        .args(settings(port).iter().flat_map(|setting| ["-c", setting]))
        .clean_env()
        .folder(&home.folder)
        .account(home.account)
        .stop_signal(POSTGRES.stop_signal);
    let child = start.register(ChildProcess::spawn("PostgreSQL", launch, &log).await?);
    let admin = url_of(&password, port, "postgres");
    let took = until_healthy(&child, port, HEALTHY_WITHIN, async || probe(start, &admin).await).await?;
    create_database(&admin).await.map_err(|source| EmbeddedError::Prepare { service: "PostgreSQL", log, source })?;
    start.report(&format!("PostgreSQL is ready on port {port} ({} ms)", took.as_millis()));
    Ok(url(&password, port))
}

/// Returns the URL of the database of Milvaion.
pub(super) fn url(password: &str, port: u16) -> String {
    url_of(password, port, NAME)
}

fn url_of(password: &str, port: u16, database: &str) -> String {
    format!("postgres://{NAME}:{password}@{}:{port}/{database}?sslmode=disable", Ipv4Addr::LOCALHOST)
}

/// Returns the settings that differ from the defaults of PostgreSQL.
fn settings(port: u16) -> [String; 8] {
    [
        format!("port={port}"),
        "listen_addresses=127.0.0.1".to_owned(),
        // No socket: its path may have at most 107 bytes, which the path of a clone can exceed. A URL needs TCP anyway.
        "unix_socket_directories=".to_owned(),
        "timezone=UTC".to_owned(),
        "log_timezone=UTC".to_owned(),
        // Two replicas and a parallel test run each open a pool.
        "max_connections=200".to_owned(),
        // The statements are short, so compiling one costs more than running it.
        "jit=off".to_owned(),
        "log_line_prefix=%m [%p] ".to_owned(),
    ]
}

/// Creates the data folder under a temporary name and renames it once it is complete, so that an incomplete one is
/// never used.
async fn run_initdb(
    home: &ServiceDir,
    programs: &Path,
    password: &str,
    data: &Path,
    log: &Path,
) -> Result<(), EmbeddedError> {
    let fresh = home.folder.join("data.new");
    if fresh.exists() {
        fs::remove_dir_all(&fresh).map_err(EmbeddedError::folder(&fresh, "deleted"))?;
    }
    let password_file = home.file("password", password)?;
    let launch = LaunchSpec::new(programs.join("initdb"))
        .arg("--pgdata")
        .arg(&fresh)
        .arg("--pwfile")
        .arg(&password_file)
        .arg(format!("--username={NAME}"))
        .args(["--auth=scram-sha-256", "--encoding=UTF8", "--locale=C", "--data-checksums", "--no-instructions"])
        .clean_env()
        .folder(&home.folder)
        .account(home.account);
    let child = ChildProcess::spawn("PostgreSQL's initdb", launch, log).await?;
    let exit = tokio::time::timeout(INITDB_WITHIN, child.wait()).await;
    let _ = fs::remove_file(&password_file);
    match exit {
        Err(_) => return Err(EmbeddedError::slow(&child, INITDB_WITHIN)),
        Ok(exit) if !exit.success() => return Err(EmbeddedError::ended(&child, exit)),
        Ok(_) => {}
    }
    fs::rename(&fresh, data).map_err(EmbeddedError::folder(data, "created"))
}

async fn probe(start: &StartContext<'_>, url: &str) -> ProbeResult {
    match PgConnection::connect(url).await {
        Ok(connection) => {
            let _ = connection.close().await;
            ProbeResult::Healthy
        }
        // SQLSTATE 28P01 means a wrong password.
        Err(sqlx::Error::Database(error)) if error.code().as_deref() == Some("28P01") => {
            ProbeResult::Hopeless(EmbeddedError::Password {
                service: "PostgreSQL",
                secret: start.data_dir.secret_file(POSTGRES.folder),
                folder: start.data_dir.services().join(POSTGRES.folder),
            })
        }
        // PostgreSQL does not listen yet, or reports "the database system is starting up".
        Err(_) => ProbeResult::NotYet,
    }
}

async fn create_database(admin: &str) -> Result<(), sqlx::Error> {
    let mut connection = PgConnection::connect(admin).await?;
    let names =
        sqlx::raw_sql("SELECT 1 FROM pg_database WHERE datname = 'milvaion'").fetch_all(&mut connection).await?;
    if names.is_empty() {
        // The name of a database cannot be a parameter. This one is a constant.
        sqlx::raw_sql("CREATE DATABASE milvaion").execute(&mut connection).await?;
    }
    connection.close().await
}

/// Returns the installed versions with their folders, newest last. Debian has one folder per version.
fn installed() -> Vec<(String, PathBuf)> {
    let mut found: Vec<_> = programs::versioned(Path::new("/usr/lib/postgresql"), "bin")
        .into_iter()
        .filter(|(_, folder)| {
            programs::find("initdb", std::slice::from_ref(folder)).is_some()
                && programs::find("postgres", std::slice::from_ref(folder)).is_some()
        })
        .collect();
    found.sort_by_key(|(version, _)| version.parse::<u32>().unwrap_or(0));
    found
}

/// Returns the folder of the programs that fit the data: the version that wrote it, or the newest one for new data.
fn choose(mut installed: Vec<(String, PathBuf)>, data: &Path) -> Result<PathBuf, EmbeddedError> {
    let Some((_, newest)) = installed.last() else {
        return Err(EmbeddedError::Missing { what: "PostgreSQL (initdb, postgres)".into(), package: POSTGRES.package });
    };
    if !data.exists() {
        return Ok(newest.clone());
    }
    let file = data.join("PG_VERSION");
    let written_by = fs::read_to_string(&file).map_err(EmbeddedError::folder(&file, "read"))?.trim().to_owned();
    match installed.iter().position(|(version, _)| *version == written_by) {
        Some(index) => Ok(installed.swap_remove(index).1),
        None => {
            let versions: Vec<_> = installed.into_iter().map(|(version, _)| version).collect();
            Err(EmbeddedError::Version { folder: data.to_owned(), written_by, installed: versions.join(", ") })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn versions(numbers: &[&str]) -> Vec<(String, PathBuf)> {
        numbers.iter().map(|&number| (number.to_owned(), PathBuf::from(format!("/pg/{number}")))).collect()
    }

    fn data_of(version: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("milvaion-pg-{}-{version}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        fs::write(path.join("PG_VERSION"), format!("{version}\n")).unwrap();
        path
    }

    #[test]
    fn existing_data_uses_the_version_that_wrote_it() {
        let chosen = choose(versions(&["13", "15"]), Path::new("/no/such/data")).unwrap();
        assert_eq!(chosen, Path::new("/pg/15"));
        let data = data_of("13");
        assert_eq!(choose(versions(&["13", "15"]), &data).unwrap(), Path::new("/pg/13"));
        fs::remove_dir_all(data).unwrap();
    }

    #[test]
    fn data_of_a_missing_version_is_refused() {
        let data = data_of("12");
        let refused = choose(versions(&["13", "15"]), &data).unwrap_err().to_string();
        assert!(refused.contains("written by PostgreSQL 12, which is not installed here (found: 13, 15)"), "{refused}");
        assert!(refused.contains("Install postgresql-12"), "{refused}");
        fs::remove_dir_all(data).unwrap();
    }

    #[test]
    fn a_missing_postgresql_names_the_package() {
        let refused = choose(Vec::new(), Path::new("/no/such/data")).unwrap_err().to_string();
        assert!(refused.contains("apt-get install postgresql"), "{refused}");
    }
}
