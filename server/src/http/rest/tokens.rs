//! The operations on API tokens.

use milvaion_api::{
    permissions::Permission::ManageTokens,
    rest::{Page, TokenQuery},
    tokens::{CreatedToken, NewToken, TokenRow},
};
use milvaion_protocol::id::TokenId;
use schemars::JsonSchema;
use serde::Deserialize;

use super::{
    ApiState,
    endpoint::{ApiResult, Call, Endpoint, Nothing, Reply},
    operation::{Operation, TagScope},
};
use crate::command::tokens;

/// The path of a token.
#[derive(Debug, Deserialize, JsonSchema)]
struct TokenPath {
    /// The id of the token.
    id: TokenId,
}

/// Returns the operations.
pub(super) fn endpoints() -> Vec<Endpoint> {
    let read = Operation {
        method: "GET",
        path: "/tokens",
        id: "listTokens",
        group: "Tokens",
        summary: "List the own API tokens, or all of them, newest first",
        permission: ManageTokens,
        scope: TagScope::Refused,
        success: 200,
        has_secret: false,
        is_versioned: false,
    };
    let create_secret = Operation { method: "POST", success: 201, has_secret: true, ..read };
    vec![
        Endpoint::json(read, list),
        Endpoint::json(
            Operation {
                id: "createToken",
                summary: "Create an API token, whose secret is shown once",
                ..create_secret
            },
            create,
        ),
        Endpoint::json(Operation { path: "/tokens/{id}", id: "getToken", summary: "Read an API token", ..read }, get),
        Endpoint::json(
            Operation {
                path: "/tokens/{id}/rotate",
                id: "rotateToken",
                summary: "Replace an API token; the old one works for another 24 hours",
                ..create_secret
            },
            rotate,
        ),
        Endpoint::json(
            Operation {
                method: "DELETE",
                path: "/tokens/{id}",
                id: "revokeToken",
                summary: "Revoke an API token at once",
                success: 204,
                ..read
            },
            revoke,
        ),
    ]
}

async fn list(state: ApiState, call: Call<Nothing, TokenQuery, Nothing>) -> ApiResult<Page<TokenRow>> {
    Ok(Reply::of(Page::of(tokens::page(&state.store, &state.clock, &call.me, &call.query).await?)))
}

async fn get(state: ApiState, call: Call<TokenPath, Nothing, Nothing>) -> ApiResult<TokenRow> {
    Ok(Reply::of(state.backend.token(&call.me, call.path.id).await?))
}

async fn create(state: ApiState, call: Call<Nothing, Nothing, NewToken>) -> ApiResult<CreatedToken> {
    let created = state.backend.create_token(&call.me, &call.body).await?;
    let location = format!("/tokens/{}", created.token.id);
    Ok(Reply::of(created).location(location))
}

async fn rotate(state: ApiState, call: Call<TokenPath, Nothing, Nothing>) -> ApiResult<CreatedToken> {
    let created = state.backend.rotate_token(&call.me, call.path.id).await?;
    let location = format!("/tokens/{}", created.token.id);
    Ok(Reply::of(created).location(location))
}

async fn revoke(state: ApiState, call: Call<TokenPath, Nothing, Nothing>) -> ApiResult<()> {
    state.backend.revoke_token(&call.me, call.path.id).await?;
    Ok(Reply::of(()))
}
