//! The users of a server, without the rest of the server.

use std::{path::PathBuf, sync::Arc};

use axum::extract::Request;
use chrono::{DateTime, TimeDelta, Utc};
use http::request::Parts;
use milvaion_api::{
    permissions::{Permission, Role},
    team::{LinkForm, LinkKind},
    views::CurrentUser,
};
use milvaion_app::{backend::RequestUser, error::AppError};
use milvaion_server::{
    clock::Clock,
    command::{
        one_time_links,
        sign_in::{PassphraseHasher, SignInOrigin, device, sign_in},
    },
    config::http::HttpConfig,
    http::{
        guard::authorize,
        session::{self, PostgresSessionStore, SessionOrigin},
    },
    store::Store,
};
use milvaion_test_support::database::{self, TestConnection};
use tower_sessions::{Session, session::Id};

/// The passphrase of all users.
pub(crate) const VALID_PASSPHRASE: &str = "violet tram under snow";

/// A store with users, and the functions that requests call.
pub(crate) struct UserHarness {
    /// The address of the database.
    pub(crate) url: String,
    pub(crate) store: Store,
    pub(crate) clock: Clock,
    /// Uses little memory, so that a test does not spend its time on creating its users.
    pub(crate) hasher: PassphraseHasher,
    pub(crate) config: HttpConfig,
}

impl UserHarness {
    pub(crate) async fn new() -> Self {
        let url = database::create().await;
        let store = database::open(&url).await;
        let config = HttpConfig { port: Some(8600), site_root: PathBuf::new(), ..HttpConfig::default() };
        let start: DateTime<Utc> = "2026-11-23T09:00:00Z".parse().expect("a valid time");
        // The audit log has partitions for the machine's time only.
        store.ensure_partitions(start).await.expect("partitions can be created");
        Self { store, clock: Clock::manual(start), hasher: PassphraseHasher::for_tests(), config, url }
    }

    /// Opens a connection for statements that the store has no function for.
    pub(crate) async fn connection(&self) -> TestConnection {
        TestConnection::open(&self.url).await
    }

    pub(crate) async fn setup_token(&self) -> String {
        token(&setup_link(&self.store, &self.clock).await)
    }

    /// Creates an invitation by `admin`. Returns the token of its link.
    pub(crate) async fn invite(&self, admin: &CurrentUser, name: &str, role: Role) -> String {
        let path = one_time_links::invite(&self.store, &self.clock, &by(admin), name, role).await;
        token(&path.expect("invited"))
    }

    pub(crate) async fn accept(&self, token: &str, name: &str) -> Result<CurrentUser, AppError> {
        self.accept_form(&link_form(token, name)).await
    }

    pub(crate) async fn accept_form(&self, form: &LinkForm) -> Result<CurrentUser, AppError> {
        one_time_links::accept(&self.store, &self.clock, &self.hasher, None, form).await
    }

    /// Sets a new passphrase with a link.
    pub(crate) async fn reset(&self, token: &str, passphrase: &str) -> Result<CurrentUser, AppError> {
        let form = LinkForm {
            page: LinkKind::Reset,
            token: token.into(),
            passphrase: passphrase.into(),
            ..LinkForm::default()
        };
        self.accept_form(&form).await
    }

    /// Returns true if the link can still be used.
    pub(crate) async fn is_open(&self, token: &str) -> bool {
        one_time_links::info(&self.store, &self.clock, token).await.expect("it can be read").is_some()
    }

    /// Creates the first admin.
    pub(crate) async fn admin(&self) -> CurrentUser {
        self.accept(&self.setup_token().await, "ana").await.expect("accepted")
    }

    /// Creates a user with an invitation by `admin`.
    pub(crate) async fn join(&self, admin: &CurrentUser, name: &str, role: Role) -> CurrentUser {
        self.accept(&self.invite(admin, name, role).await, name).await.expect("accepted")
    }

    pub(crate) async fn sign_in(
        &self,
        from: Option<&str>,
        name: &str,
        passphrase: &str,
    ) -> Result<CurrentUser, AppError> {
        let from = from.map(|from| from.parse().expect("an address"));
        let email = format!("{name}@example.org");
        let origin = SignInOrigin { address: from, device: None };
        sign_in(&self.store, &self.clock, &self.hasher, origin, &email, passphrase).await
    }

    /// Signs a user in with the token of a device, as a browser does. Returns the token that the browser keeps.
    pub(crate) async fn sign_in_from(&self, device: &str, name: &str, passphrase: &str) -> Result<String, AppError> {
        let email = format!("{name}@example.org");
        let origin = SignInOrigin { address: None, device: Some(device) };
        let me = sign_in(&self.store, &self.clock, &self.hasher, origin, &email, passphrase).await?;
        Ok(self.remember(&me, Some(device)).await)
    }

    /// Makes a browser a known device of a user. Returns the token that the browser keeps.
    pub(crate) async fn remember(&self, me: &CurrentUser, presented: Option<&str>) -> String {
        device::remember(&self.store, &self.clock, me.id, presented).await.expect("it is stored")
    }

    /// Returns the session of a cookie.
    pub(crate) fn session(&self, id: Option<Id>) -> Session {
        Session::new(id, Arc::new(PostgresSessionStore::new(self.store.clone(), self.clock.clone())), None)
    }

    /// Signs a user in. Returns the session's id.
    pub(crate) async fn session_of(&self, me: &CurrentUser) -> Id {
        self.session_from(me, SessionOrigin::default()).await
    }

    /// Signs a user in from a device. Returns the session's id.
    pub(crate) async fn session_from(&self, me: &CurrentUser, origin: SessionOrigin) -> Id {
        let session = self.session(None);
        session::sign_in_session(&session, me, self.clock.now(), origin).await.expect("it is stored");
        session.id().expect("a valid id")
    }

    /// Returns a same-origin request with a session.
    pub(crate) fn parts(&self, id: Option<Id>) -> Parts {
        let mut parts =
            Request::post("/api/x").header("sec-fetch-site", "same-origin").body(()).expect("valid").into_parts().0;
        parts.extensions.insert(self.session(id));
        parts
    }

    pub(crate) async fn authorize(&self, id: Option<Id>, action: Permission) -> Result<CurrentUser, AppError> {
        authorize(&self.store, &self.clock, &self.config, &self.parts(id), action).await
    }

    pub(crate) async fn audited(&self, object: &str) -> Vec<String> {
        let rows = self.store.audit_entries(Some(object), 100).await.expect("it can be read");
        rows.into_iter().map(|row| row.action).collect()
    }
}

/// The network address of the requests of [`by`].
pub(crate) const REQUEST_ADDRESS: &str = "192.0.2.7";

/// Returns the user of a request.
pub(crate) fn by(me: &CurrentUser) -> RequestUser {
    RequestUser { user: me.clone(), address: Some(REQUEST_ADDRESS.parse().expect("an address")) }
}

/// Creates the setup link of an installation without users. Returns its path.
pub(crate) async fn setup_link(store: &Store, clock: &Clock) -> String {
    one_time_links::setup_link(store, clock).await.expect("stored").expect("there is no user yet")
}

/// Returns the form with which the new user `name` accepts a link.
fn link_form(token: &str, name: &str) -> LinkForm {
    LinkForm {
        token: token.into(),
        name: name.into(),
        email: format!("{name}@example.org"),
        passphrase: VALID_PASSPHRASE.into(),
        ..LinkForm::default()
    }
}

/// Creates the user `name` with the link at `path`.
pub(crate) async fn join(store: &Store, clock: &Clock, path: &str, name: &str) -> CurrentUser {
    let form = link_form(&token(path), name);
    one_time_links::accept(store, clock, &PassphraseHasher::for_tests(), None, &form).await.expect("accepted")
}

pub(crate) fn token(path: &str) -> String {
    path.split_once("?token=").expect("a path with a token").1.to_owned()
}

pub(crate) fn seconds(seconds: i64) -> TimeDelta {
    TimeDelta::seconds(seconds)
}
