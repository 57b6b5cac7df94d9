//! Faults of workers with singleton loops, and of the Redis that holds their leases.
//!
//! Three workers offer twenty loops that run every 100 ms. The checker of these scenarios reads what the witness received:
//! no step of a former leader may follow one of its successor, and no loop may stand still for longer than the fault
//! allows. Only a fault that makes Redis forget a lease may cause an overlap, until the next heartbeat of the former
//! leader.

use serde_json::{Value, json};

use super::{Scenario, ScenarioConfig, ScenarioMeasurements, ScenarioResult, SmokeRun};
use crate::{harness::ServiceHarness, loop_fleet::LoopFleet, loop_fleet::WORKERS, proxy::LinkMode};

/// The time in milliseconds until a successor of a leader that ended without a release: its lease, then the heartbeat of
/// another instance.
const TAKE_OVER_MS: u32 = 13_000;
/// The time in milliseconds between two heartbeats.
const HEARTBEAT_MS: u32 = 3_000;
/// The time in milliseconds that a busy machine adds to a measured gap.
const SLACK_MS: u32 = 700;
/// The pause before the first and after the last fault in the smoke and the short set, in seconds.
const SHORT_PAUSE_SECONDS: f64 = 2.0;
/// The longest time between a kill and the start of the worker, in seconds.
const KILLED_PAUSE_SECONDS: f64 = 2.0;
/// The time in seconds that the workers take to start and to lead, and at the end to stop and to be judged.
const FLEET_SECONDS: f64 = 6.0;
/// The nominal duration of one run of `loop_leader_killed`, in seconds.
const KILLED_NOMINAL_SECONDS: f64 =
    FLEET_SECONDS + 2.0 * SHORT_PAUSE_SECONDS + KILLED_PAUSE_SECONDS + TAKE_OVER_MS as f64 / 1000.0;

macro_rules! scenario {
    ($name:ident, $id:literal, $title:literal, $smoke:expr, $short:literal, $long:literal, $run:ident) => {
        pub(super) const $name: Scenario = Scenario {
            id: $id,
            title: $title,
            smoke: $smoke,
            short: $short,
            long: $long,
            run: |harness, config| Box::pin($run(harness, config)),
        };
    };
}

scenario!(
    LOOP_LEADER_KILLED,
    "loop_leader_killed",
    "the leader of loops is killed",
    Some(SmokeRun { count: 1, nominal_seconds: KILLED_NOMINAL_SECONDS }),
    1,
    5,
    killed
);
scenario!(LOOP_LEADER_FROZEN, "loop_leader_frozen", "the leader of loops is frozen past its lease", None, 0, 5, frozen);
scenario!(
    LOOP_LEADER_PARTITIONED,
    "loop_leader_partitioned",
    "the leader of loops cannot reach Redis",
    None,
    1,
    5,
    partitioned
);
scenario!(LOOP_REDIS_FLUSHED, "loop_redis_flushed", "Redis is flushed while loops run", None, 0, 20, flushed);
scenario!(
    LOOP_REDIS_RESTARTED,
    "loop_redis_restarted",
    "Redis is killed and restarted while loops run",
    None,
    0,
    5,
    restarted
);
scenario!(
    LOOP_REDIS_STALE,
    "loop_redis_stale",
    "Redis is replaced by an older copy while loops run",
    None,
    0,
    3,
    stale
);
scenario!(
    LOOP_ROLLING_RESTART,
    "loop_rolling_restart",
    "workers with loops are restarted one by one",
    None,
    1,
    10,
    rolling
);

/// Runs a scenario: starts the fleet, injects `faults`, and lets everything run for a while.
async fn run(
    scenario: &'static str,
    limits: Value,
    harness: &mut ServiceHarness,
    config: ScenarioConfig,
    faults: impl AsyncFnOnce(&mut LoopFleet<'_>, &ScenarioConfig, &mut ScenarioMeasurements) -> anyhow::Result<()>,
) -> anyhow::Result<ScenarioResult> {
    let mut fleet = LoopFleet::open(harness, scenario, &config, limits).await?;
    let mut measurements = ScenarioMeasurements::default();
    let result = async {
        fleet.run_for(config.either(SHORT_PAUSE_SECONDS, 5.0)).await;
        faults(&mut fleet, &config, &mut measurements).await?;
        fleet.run_for(config.either(SHORT_PAUSE_SECONDS, 5.0)).await;
        anyhow::Ok(())
    }
    .await;
    let folder = fleet.close().await?;
    result?;
    Ok(ScenarioResult { folder, rest: std::time::Duration::ZERO, measurements, checker: "check_loops.py" })
}

async fn killed(harness: &mut ServiceHarness, config: ScenarioConfig) -> anyhow::Result<ScenarioResult> {
    let limits = json!({"max_gap_ms": {"kill": TAKE_OVER_MS + SLACK_MS}});
    run("loop_leader_killed", limits, harness, config, async |fleet: &mut LoopFleet<'_>, config, _| {
        for _ in 0..config.count {
            let leader = fleet.leader().await?;
            let fault = fleet.evidence.begin_fault("kill", fleet.workers[leader].name(), "SIGKILL");
            fleet.workers[leader].kill().await?;
            fleet.evidence.end_fault(fault);
            let pause = fleet.random_seconds(0.0, KILLED_PAUSE_SECONDS);
            fleet.run_for(pause).await;
            fleet.workers[leader].start().await?;
            // The leases of the killed process are still there at first.
            fleet.run_for(f64::from(TAKE_OVER_MS) / 1000.0).await;
            fleet.wait_for_leaders().await?;
        }
        Ok(())
    })
    .await
}

async fn frozen(harness: &mut ServiceHarness, config: ScenarioConfig) -> anyhow::Result<ScenarioResult> {
    let limits = json!({"max_gap_ms": {"freeze": TAKE_OVER_MS + SLACK_MS}});
    run("loop_leader_frozen", limits, harness, config, async |fleet: &mut LoopFleet<'_>, config, _| {
        for _ in 0..config.count {
            let leader = fleet.leader().await?;
            // Past the lease, or only past the deadline of a run.
            let seconds = fleet.random_seconds(7.0, 20.0);
            let fault =
                fleet.evidence.begin_fault("freeze", fleet.workers[leader].name(), format!("for {seconds:.1} s"));
            fleet.workers[leader].freeze()?;
            fleet.run_for(seconds).await;
            fleet.workers[leader].thaw()?;
            fleet.evidence.end_fault(fault);
            fleet.run_for(5.0).await;
            fleet.wait_for_leaders().await?;
        }
        Ok(())
    })
    .await
}

async fn partitioned(harness: &mut ServiceHarness, config: ScenarioConfig) -> anyhow::Result<ScenarioResult> {
    let limits = json!({"max_gap_ms": {"partition": TAKE_OVER_MS + SLACK_MS}});
    run("loop_leader_partitioned", limits, harness, config, async |fleet: &mut LoopFleet<'_>, config, _| {
        let modes = [LinkMode::Blackhole, LinkMode::Refuse, LinkMode::HalfOpen];
        for round in 0..config.count {
            let leader = fleet.leader().await?;
            let mode = modes[round as usize % modes.len()];
            let seconds = fleet.random_seconds(13.0, 17.0);
            let detail = format!("{mode:?} for {seconds:.1} s");
            let fault = fleet.evidence.begin_fault("partition", fleet.workers[leader].name(), detail);
            fleet.links[leader].set(mode);
            fleet.run_for(seconds).await;
            fleet.links[leader].set(LinkMode::Pass);
            fleet.evidence.end_fault(fault);
            fleet.run_for(5.0).await;
            fleet.wait_for_leaders().await?;
        }
        Ok(())
    })
    .await
}

async fn flushed(harness: &mut ServiceHarness, config: ScenarioConfig) -> anyhow::Result<ScenarioResult> {
    let limits =
        json!({"max_gap_ms": {"flush": HEARTBEAT_MS + SLACK_MS}, "overlap_allowance_ms": HEARTBEAT_MS + SLACK_MS});
    run("loop_redis_flushed", limits, harness, config, async |fleet: &mut LoopFleet<'_>, config, _| {
        for _ in 0..config.count {
            fleet.evidence.record_fault("flush", "redis", "FLUSHALL");
            fleet.harness.redis_command(&["FLUSHALL"]).await?;
            let pause = fleet.random_seconds(4.0, 8.0);
            fleet.run_for(pause).await;
        }
        fleet.wait_for_leaders().await
    })
    .await
}

async fn restarted(harness: &mut ServiceHarness, config: ScenarioConfig) -> anyhow::Result<ScenarioResult> {
    // Redis writes its log to disk once a second, so it may forget the newest lease.
    let limits =
        json!({"max_gap_ms": {"restart": TAKE_OVER_MS + SLACK_MS}, "overlap_allowance_ms": HEARTBEAT_MS + SLACK_MS});
    run("loop_redis_restarted", limits, harness, config, async |fleet: &mut LoopFleet<'_>, config, _| {
        for _ in 0..config.count {
            let seconds = fleet.random_seconds(1.0, 12.0);
            let fault = fleet.evidence.begin_fault("restart", "redis", format!("SIGKILL, away for {seconds:.1} s"));
            fleet.harness.redis.kill().await?;
            fleet.run_for(seconds).await;
            fleet.harness.redis.start().await?;
            fleet.evidence.end_fault(fault);
            fleet.run_for(12.0).await;
            fleet.wait_for_leaders().await?;
        }
        Ok(())
    })
    .await
}

async fn stale(harness: &mut ServiceHarness, config: ScenarioConfig) -> anyhow::Result<ScenarioResult> {
    let limits = json!({"max_gap_ms": {"stale": TAKE_OVER_MS + SLACK_MS, "terminate": HEARTBEAT_MS + SLACK_MS}, "overlap_allowance_ms": HEARTBEAT_MS + SLACK_MS});
    run("loop_redis_stale", limits, harness, config, async |fleet: &mut LoopFleet<'_>, config, _| {
        for _ in 0..config.count {
            // The copy has the leases of a leader that has handed over since.
            let copy = fleet.harness.redis.copy()?;
            let leader = fleet.leader().await?;
            let fault = fleet.evidence.begin_fault("terminate", fleet.workers[leader].name(), "SIGTERM");
            fleet.workers[leader].terminate().await?;
            fleet.workers[leader].start().await?;
            fleet.evidence.end_fault(fault);
            fleet.wait_for_leaders().await?;
            fleet.run_for(2.0).await;
            let fault = fleet.evidence.begin_fault("stale", "redis", "replaced by an older copy");
            fleet.harness.redis.kill().await?;
            fleet.harness.redis.restore(&copy)?;
            std::fs::remove_dir_all(&copy)?;
            fleet.harness.redis.start().await?;
            fleet.evidence.end_fault(fault);
            fleet.run_for(15.0).await;
            fleet.wait_for_leaders().await?;
        }
        Ok(())
    })
    .await
}

/// The count is the number of minutes; in the short set the number of rounds.
async fn rolling(harness: &mut ServiceHarness, config: ScenarioConfig) -> anyhow::Result<ScenarioResult> {
    let limits = json!({"max_gap_ms": {"terminate": HEARTBEAT_MS + SLACK_MS}});
    run("loop_rolling_restart", limits, harness, config, async |fleet: &mut LoopFleet<'_>, config, measurements| {
        let seconds = f64::from(config.count) * config.either(12.0, 60.0);
        let until = tokio::time::Instant::now() + std::time::Duration::from_secs_f64(seconds);
        let mut restarts = 0.0;
        'rounds: loop {
            for worker in 0..WORKERS {
                if tokio::time::Instant::now() >= until {
                    break 'rounds;
                }
                let fault = fleet.evidence.begin_fault("terminate", fleet.workers[worker].name(), "SIGTERM");
                let (status, took) = fleet.workers[worker].terminate().await?;
                measurements.at_most("exit_s", took.as_secs_f64(), 3.0);
                anyhow::ensure!(status.success(), "a worker ended with {status}");
                fleet.workers[worker].start().await?;
                fleet.evidence.end_fault(fault);
                restarts += 1.0;
                fleet.wait_for_instances(WORKERS).await?;
                let pause = fleet.random_seconds(1.0, 4.0);
                fleet.run_for(pause).await;
            }
        }
        measurements.at_least("restarts", restarts, 3.0);
        Ok(())
    })
    .await
}
