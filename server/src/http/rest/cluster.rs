//! The operations on workers, the cluster, its statistics and its health.

use milvaion_api::{
    permissions::Permission::{PauseCluster, Read},
    rest::{Cluster, Page, PauseRequest, Statistics, StatisticsQuery, WorkerQuery},
    views::{HealthItem, JobTypeView, WorkerView},
};

use super::{
    ApiState,
    endpoint::{ApiResult, Call, Endpoint, Nothing, Reply},
    operation::{Operation, TagScope},
};

/// The group of these operations in the document.
const GROUP: &str = "Cluster";

/// Returns the operations.
pub(super) fn endpoints() -> Vec<Endpoint> {
    let read = Operation {
        method: "GET",
        path: "/workers",
        id: "listWorkers",
        group: GROUP,
        summary: "List the workers of the last day, with their instances and job types",
        permission: Read,
        scope: TagScope::Free,
        success: 200,
        has_secret: false,
        is_versioned: false,
    };
    let pause_or_resume = Operation { method: "POST", permission: PauseCluster, scope: TagScope::Refused, ..read };
    vec![
        Endpoint::json(read, workers),
        Endpoint::json(
            Operation {
                path: "/job-types",
                id: "listJobTypes",
                summary: "List the job types with the schemas of their inputs",
                ..read
            },
            job_types,
        ),
        Endpoint::json(
            Operation { path: "/cluster", id: "getCluster", summary: "Read the cluster pause and the health", ..read },
            cluster,
        ),
        Endpoint::json(
            Operation { path: "/cluster/pause", id: "pauseCluster", summary: "Pause all schedules", ..pause_or_resume },
            pause,
        ),
        Endpoint::json(
            Operation {
                path: "/cluster/resume",
                id: "resumeCluster",
                summary: "Resume all schedules",
                ..pause_or_resume
            },
            resume,
        ),
        Endpoint::json(
            Operation {
                path: "/statistics",
                id: "getStatistics",
                summary: "Read the numbers of the overview",
                scope: TagScope::Refused,
                ..read
            },
            statistics,
        ),
        Endpoint::json(
            Operation { path: "/health", id: "getHealth", summary: "Read the health of every part", ..read },
            health,
        ),
    ]
}

async fn workers(state: ApiState, call: Call<Nothing, WorkerQuery, Nothing>) -> ApiResult<Page<WorkerView>> {
    let mut workers = state.backend.workers(&call.me).await?;
    if call.query.alive {
        workers.retain(|worker| worker.instances.iter().any(|instance| instance.state.is_alive()));
    }
    Ok(Reply::of(Page::all(workers)))
}

async fn job_types(state: ApiState, call: Call<Nothing, Nothing, Nothing>) -> ApiResult<Page<JobTypeView>> {
    Ok(Reply::of(Page::all(state.backend.form_context(&call.me, None).await?.job_types)))
}

async fn cluster(state: ApiState, _: Call<Nothing, Nothing, Nothing>) -> ApiResult<Cluster> {
    show(&state).await
}

async fn show(state: &ApiState) -> ApiResult<Cluster> {
    let now = state.clock.now();
    Ok(Reply::of(Cluster { now, pause: state.cluster.state().await?, health: state.health.items(now).await }))
}

async fn pause(state: ApiState, call: Call<Nothing, Nothing, PauseRequest>) -> ApiResult<Cluster> {
    state.backend.pause_cluster(&call.me, &call.body.reason).await?;
    show(&state).await
}

async fn resume(state: ApiState, call: Call<Nothing, Nothing, Nothing>) -> ApiResult<Cluster> {
    state.backend.resume_cluster(&call.me).await?;
    show(&state).await
}

async fn statistics(state: ApiState, call: Call<Nothing, StatisticsQuery, Nothing>) -> ApiResult<Statistics> {
    let window = call.query.window.unwrap_or_default();
    Ok(Reply::of(state.backend.overview(&call.me, window).await?.into()))
}

async fn health(state: ApiState, _: Call<Nothing, Nothing, Nothing>) -> ApiResult<Page<HealthItem>> {
    Ok(Reply::of(Page::all(state.health.items(state.clock.now()).await)))
}
