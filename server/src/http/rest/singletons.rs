//! The operations on singleton loops.

use milvaion_api::{
    permissions::Permission::{ControlLoops, Read},
    rest::Page,
    singletons::SingletonLoop,
};
use schemars::JsonSchema;
use serde::Deserialize;

use super::{
    ApiState,
    endpoint::{ApiResult, Call, Endpoint, Nothing, Reply},
    operation::{Operation, TagScope},
};

/// The path of a singleton loop.
#[derive(Debug, Deserialize, JsonSchema)]
struct LoopPath {
    /// The name of the loop.
    #[schemars(length(min = 1, max = 100))]
    name: String,
}

/// Returns the operations.
pub(super) fn endpoints() -> Vec<Endpoint> {
    let list_all = Operation {
        method: "GET",
        path: "/singleton-loops",
        id: "listSingletonLoops",
        group: "Singleton loops",
        summary: "List the singleton loops by name, at most 1,000",
        permission: Read,
        scope: TagScope::Free,
        success: 200,
        has_secret: false,
        is_versioned: false,
    };
    let one = Operation { path: "/singleton-loops/{name}", ..list_all };
    let control = Operation { method: "POST", permission: ControlLoops, scope: TagScope::Refused, ..one };
    vec![
        Endpoint::json(list_all, list),
        Endpoint::json(Operation { id: "getSingletonLoop", summary: "Read a singleton loop", ..one }, get),
        Endpoint::json(
            Operation {
                path: "/singleton-loops/{name}/enable",
                id: "enableSingletonLoop",
                summary: "Enable a singleton loop",
                ..control
            },
            enable,
        ),
        Endpoint::json(
            Operation {
                path: "/singleton-loops/{name}/disable",
                id: "disableSingletonLoop",
                summary: "Disable a singleton loop on every instance",
                ..control
            },
            disable,
        ),
        Endpoint::json(
            Operation {
                path: "/singleton-loops/{name}/yield",
                id: "yieldSingletonLoop",
                summary: "Ask the leader of a singleton loop to hand it over to another instance",
                ..control
            },
            yield_leadership,
        ),
        Endpoint::json(
            Operation {
                method: "DELETE",
                id: "forgetSingletonLoop",
                summary: "Forget a singleton loop that no instance has offered for a minute",
                success: 204,
                ..control
            },
            forget,
        ),
    ]
}

async fn list(state: ApiState, call: Call<Nothing, Nothing, Nothing>) -> ApiResult<Page<SingletonLoop>> {
    Ok(Reply::of(Page::all(state.backend.singleton_loops(&call.me).await?.loops)))
}

async fn get(state: ApiState, call: Call<LoopPath, Nothing, Nothing>) -> ApiResult<SingletonLoop> {
    show(&state, &call).await
}

async fn show(state: &ApiState, call: &Call<LoopPath, Nothing, Nothing>) -> ApiResult<SingletonLoop> {
    Ok(Reply::of(state.backend.singleton_loop(&call.me, &call.path.name).await?))
}

async fn enable(state: ApiState, call: Call<LoopPath, Nothing, Nothing>) -> ApiResult<SingletonLoop> {
    state.backend.set_loop_enabled(&call.me, &call.path.name, true).await?;
    show(&state, &call).await
}

async fn disable(state: ApiState, call: Call<LoopPath, Nothing, Nothing>) -> ApiResult<SingletonLoop> {
    state.backend.set_loop_enabled(&call.me, &call.path.name, false).await?;
    show(&state, &call).await
}

async fn yield_leadership(state: ApiState, call: Call<LoopPath, Nothing, Nothing>) -> ApiResult<SingletonLoop> {
    state.backend.yield_loop(&call.me, &call.path.name).await?;
    show(&state, &call).await
}

async fn forget(state: ApiState, call: Call<LoopPath, Nothing, Nothing>) -> ApiResult<()> {
    state.backend.forget_loop(&call.me, &call.path.name).await?;
    Ok(Reply::of(()))
}
