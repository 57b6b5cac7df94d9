//! A server with users and tokens, and a program that calls its API.

use std::sync::Arc;

use http::{Method, StatusCode, header};
use milvaion_api::{
    permissions::Role,
    tokens::{CreatedToken, NewToken},
};
use milvaion_app::backend::{RequestUser, TeamBackend, TokenBackend};
use milvaion_server::{
    config::ServerConfig,
    http::{
        rest::operation::Operation,
        session::{self, PostgresSessionStore, SessionOrigin},
    },
    lifecycle::Server,
};
use milvaion_test_support::server_env;
use serde_json::{Value, json};
use tower_sessions::Session;

use crate::users::harness::{join, setup_link};

/// An answer of the API.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: http::HeaderMap,
    /// The document; null for an answer without a body.
    pub(crate) body: Value,
}

impl Answer {
    /// Returns a header as text; empty if it is missing.
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    /// Returns the document of a success.
    pub(crate) fn ok(self) -> Value {
        assert!(self.status.is_success(), "{} {}", self.status, self.body);
        self.body
    }

    /// Returns the names of the invalid fields.
    pub(crate) fn invalid_fields(&self) -> Vec<&str> {
        let errors = self.body["errors"].as_array().map(Vec::as_slice).unwrap_or_default();
        errors.iter().map(|error| error["field"].as_str().expect("a name")).collect()
    }
}

/// A running server with an Admin.
pub(crate) struct ApiHarness {
    pub(crate) config: ServerConfig,
    pub(crate) server: Server,
    pub(crate) admin: RequestUser,
    client: reqwest::Client,
}

impl ApiHarness {
    pub(crate) async fn new() -> Self {
        Self::with(|_| {}).await
    }

    pub(crate) async fn with(change: impl FnOnce(&mut ServerConfig)) -> Self {
        let mut config = server_env::config().await;
        change(&mut config);
        let server = server_env::start(&config).await;
        let (store, clock) = (&server.store, &server.clock);
        let ana = join(store, clock, &setup_link(store, clock).await, "ana").await;
        let admin = RequestUser { user: ana, address: None };
        Self { config, server, admin, client: reqwest::Client::new() }
    }

    pub(crate) async fn user(&self, name: &str, role: Role) -> RequestUser {
        let path = self.server.backend.invite_user(&self.admin, name, role).await.expect("invited");
        let user = join(&self.server.store, &self.server.clock, &path, name).await;
        RequestUser { user, address: None }
    }

    /// Creates a token of a user with the user's role.
    pub(crate) async fn token(&self, owner: &RequestUser) -> String {
        self.create_token(owner, |_| {}).await.secret
    }

    pub(crate) async fn create_token(&self, owner: &RequestUser, change: impl FnOnce(&mut NewToken)) -> CreatedToken {
        let mut new = NewToken {
            name: "script".into(),
            role: owner.role,
            read_only: false,
            tag: None,
            expires_in_days: None,
            never_expires: false,
            service: false,
        };
        change(&mut new);
        self.server.backend.create_token(owner, &new).await.expect("created")
    }

    /// Returns a cookie of a new session.
    pub(crate) async fn cookie(&self, user: &RequestUser) -> String {
        let sessions = Arc::new(PostgresSessionStore::new(self.server.store.clone(), self.server.clock.clone()));
        let session = Session::new(None, sessions, None);
        let (now, origin) = (self.server.clock.now(), SessionOrigin::default());
        session::sign_in_session(&session, user, now, origin).await.expect("it is stored");
        format!("milvaion_session={}", session.id().expect("a valid id"))
    }

    /// Starts a request to a path below `/api/v1`.
    pub(crate) fn request(&self, method: &str, path: &str) -> reqwest::RequestBuilder {
        let method: Method = method.parse().expect("a method");
        let port = self.server.address.port();
        self.client.request(method, format!("http://127.0.0.1:{port}/api/v1{path}"))
    }

    /// Sends a request with a token.
    pub(crate) async fn call(&self, token: &str, method: &str, path: &str, body: Value) -> Answer {
        send(self.request(method, path).bearer_auth(token), body).await
    }

    /// Sends a request with a token and a header.
    pub(crate) async fn call_with(
        &self,
        token: &str,
        method: &str,
        path: &str,
        body: Value,
        header: (&str, &str),
    ) -> Answer {
        send(self.request(method, path).bearer_auth(token).header(header.0, header.1), body).await
    }

    /// Creates a job and returns it.
    pub(crate) async fn job(&self, token: &str, definition: Value) -> Value {
        self.call(token, "POST", "/jobs", definition).await.ok()
    }
}

/// Sends a request with a body, unless that is null.
pub(crate) async fn send(request: reqwest::RequestBuilder, body: Value) -> Answer {
    let request = if body.is_null() {
        request
    } else {
        request.header(header::CONTENT_TYPE, "application/json").body(body.to_string())
    };
    answer(request.send().await.expect("a response")).await
}

pub(crate) async fn answer(response: reqwest::Response) -> Answer {
    let (status, headers) = (response.status(), response.headers().clone());
    let text = response.text().await.expect("a body");
    let body = if text.is_empty() {
        Value::Null
    } else {
        serde_json::from_str(&text).unwrap_or_else(|_| panic!("{status}: {text} is not JSON"))
    };
    if status.is_client_error() || status.is_server_error() {
        let content_type = headers.get(header::CONTENT_TYPE).expect("a content type");
        assert_eq!(content_type, "application/problem+json", "{status} {body}");
        assert_eq!(body["status"], status.as_u16());
    }
    Answer { status, headers, body }
}

/// Returns the path of an operation, with the ids of objects that do not exist.
pub(crate) fn path_of_missing(operation: &Operation) -> String {
    let path = operation.path.replace("{key}", "none").replace("{version}", "1").replace("{name}", "none");
    ["{id}", "{session}"].iter().fold(path, |path, name| path.replace(name, "00000000-0000-7000-8000-000000000000"))
}

/// Returns the definition of a manual job of type `echo`.
pub(crate) fn echo(name: &str) -> Value {
    json!({
        "displayName": name, "workerId": "w", "jobType": "echo", "jobData": { "say": "hello" },
        "schedule": { "kind": "manual" }
    })
}
