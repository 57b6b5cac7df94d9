//! The [`SingletonBackend`] implementation of [`FakeBackend`]: one loop in each state.

use std::sync::MutexGuard;

use async_trait::async_trait;
use milvaion_api::singletons::{
    EndedLoopRun, LoopDisabled, LoopInstance, LoopLeader, LoopStatus, SingletonLoop, SingletonLoopList,
};
use milvaion_app::{
    backend::{RequestUser, SingletonBackend},
    error::AppError,
};
use milvaion_protocol::singleton::{LoopKind, LoopOutcome};

use super::FakeBackend;
use crate::common::samples;

/// Returns a loop in each state, by name.
pub(crate) fn loops() -> Vec<SingletonLoop> {
    let instance = |id: &str| LoopInstance { id: id.into(), last_heartbeat_at: samples::at(-1) };
    let run = |outcome| EndedLoopRun { started_at: samples::at(-1), duration_ms: 12.5, late_ms: 0.25, outcome };
    let led = SingletonLoop {
        name: "price-feed".into(),
        status: LoopStatus::Leading,
        is_enabled: true,
        leader: Some(LoopLeader {
            instance_id: "prices-1".into(),
            worker_id: "prices".into(),
            host: "host-a".into(),
            epoch: 1_795_269_000,
            since: Some(samples::at(-600)),
            lease_remaining_ms: 7_500,
        }),
        epoch: 1_795_269_000,
        lease_ms: 10_000,
        heartbeat_ms: 3_000,
        kind: LoopKind::FixedRate,
        schedule: "fixed rate 100ms".into(),
        ticks: 6_000,
        runs: 5_990,
        dropped: 10,
        errors: 2,
        p50_ms: 12.5,
        p99_ms: 80.0,
        late_p50_ms: 0.25,
        late_p99_ms: 1.5,
        last_started_at: Some(samples::at(-1)),
        last_ended_at: Some(samples::at(-1)),
        recent: vec![run(LoopOutcome::Ok), run(LoopOutcome::Error), run(LoopOutcome::Cancelled)],
        last_error: Some("no price for <b>EUR</b>".into()),
        last_error_at: Some(samples::at(-30)),
        updated_at: Some(samples::at(-1)),
        instance_count: 2,
        instances: vec![instance("prices-1"), instance("prices-2")],
        last_seen_at: Some(samples::at(-1)),
        ..SingletonLoop::default()
    };
    let without = |name: &str, status| SingletonLoop {
        name: name.into(),
        status,
        leader: None,
        recent: Vec::new(),
        last_error: None,
        last_error_at: None,
        ..led.clone()
    };
    vec![
        SingletonLoop {
            is_enabled: false,
            disabled: Some(LoopDisabled { at: samples::at(-60), by: "grace@example.org".into() }),
            ..without("balances", LoopStatus::Disabled)
        },
        without("orders", LoopStatus::NoLeader),
        led.clone(),
        SingletonLoop { instance_count: 0, instances: Vec::new(), ..without("retired", LoopStatus::NotOffered) },
    ]
}

impl FakeBackend {
    fn lock_loops(&self) -> MutexGuard<'_, Vec<SingletonLoop>> {
        self.loops.lock().expect("the mutex is not poisoned")
    }

    fn found_loop(&self, name: &str) -> Result<SingletonLoop, AppError> {
        let missing = || AppError::NotFound(format!("The singleton loop {name} does not exist or was forgotten."));
        self.lock_loops().iter().find(|row| row.name == name).cloned().ok_or_else(missing)
    }
}

#[async_trait]
impl SingletonBackend for FakeBackend {
    async fn singleton_loops(&self, _me: &RequestUser) -> Result<SingletonLoopList, AppError> {
        Ok(SingletonLoopList { loops: self.lock_loops().clone(), is_truncated: false })
    }

    async fn singleton_loop(&self, _me: &RequestUser, name: &str) -> Result<SingletonLoop, AppError> {
        self.found_loop(name)
    }

    async fn set_loop_enabled(&self, _me: &RequestUser, name: &str, is_enabled: bool) -> Result<(), AppError> {
        self.found_loop(name)?;
        self.record(format!("{} loop {name}", if is_enabled { "enable" } else { "disable" }));
        Ok(())
    }

    async fn yield_loop(&self, _me: &RequestUser, name: &str) -> Result<(), AppError> {
        if !self.found_loop(name)?.has_standby() {
            return Err(AppError::Conflict(format!("No other instance offers the singleton loop {name}.")));
        }
        self.record(format!("yield loop {name}"));
        Ok(())
    }

    async fn forget_loop(&self, _me: &RequestUser, name: &str) -> Result<(), AppError> {
        if self.found_loop(name)?.status != LoopStatus::NotOffered {
            return Err(AppError::Conflict(format!("An instance offers the singleton loop {name}.")));
        }
        self.record(format!("forget loop {name}"));
        Ok(())
    }
}
