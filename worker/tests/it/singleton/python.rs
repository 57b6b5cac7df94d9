//! Two processes of `examples/python-worker/singleton.py` and a Rust worker with the same loop.
//!
//! All three append their steps to one file. The kernel puts the lines in the order in which they were written, so the file
//! shows an overlap if there is one.

use std::{
    fs::{self, File},
    io::Write,
    path::PathBuf,
    process::{Command, Stdio},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use milvaion_test_support::{
    paths,
    services::{redis_url, unique},
    wait::until,
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use redis::AsyncCommands;
use tokio::{process::Child, time::sleep};

use super::witness::{LEASE, LOOP, LoopEnv};

/// The time between two heartbeats, three tenths of the lease.
const HEARTBEAT: Duration = Duration::from_millis(300);
/// The delay that a machine may add that compiles beside the test.
const SLACK: Duration = Duration::from_millis(500);

/// The file to which all instances append their steps. It is deleted when this is dropped.
struct StepFile(PathBuf);

/// One line of the file.
#[derive(Clone, Debug, PartialEq)]
struct Step {
    /// The time since 1970.
    at: Duration,
    instance: String,
    epoch: u64,
}

impl StepFile {
    fn create() -> Self {
        let file = Self(std::env::temp_dir().join(unique("milvaion-steps")));
        file.open();
        file
    }

    fn open(&self) -> File {
        File::options().create(true).append(true).open(&self.0).expect("the folder for temporary files is writable")
    }

    /// Returns all complete lines, in the order in which they were written.
    fn steps(&self) -> Vec<Step> {
        let text = fs::read_to_string(&self.0).expect("readable");
        let complete = text.rfind('\n').map_or("", |end| &text[..end]);
        complete.lines().map(|line| Step::parse(line).unwrap_or_else(|| panic!("a step: {line:?}"))).collect()
    }

    /// Waits until the last step is one of an instance, and returns the time between it and the step of another instance
    /// before it.
    async fn until_led_by(&self, is_new_leader: impl Fn(&str) -> bool) -> Duration {
        let leads = async || self.steps().last().is_some_and(|step| is_new_leader(&step.instance));
        until("the next instance leads", leads).await;
        let steps = self.steps();
        let first = steps.iter().rposition(|step| !is_new_leader(&step.instance)).map_or(0, |last| last + 1);
        steps[first].at.saturating_sub(steps[first.saturating_sub(1)].at)
    }

    fn leader(&self) -> String {
        self.steps().last().expect("a step").instance.clone()
    }
}

impl Drop for StepFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

impl Step {
    /// Reads a line such as `1764061200.123 python-0a1b2c3d epoch 1764061200000 run 1 step 0`.
    fn parse(line: &str) -> Option<Self> {
        let words: Vec<&str> = line.split(' ').collect();
        let (&[at, instance, "epoch", epoch], _) = words.split_at_checked(4)? else { return None };
        let at = Duration::from_secs_f64(at.parse().ok()?);
        Some(Self { at, instance: instance.to_owned(), epoch: epoch.parse().ok()? })
    }
}

/// Returns a Python that has the package of Redis. Debian's Python is tried first, because its packages are installed for
/// it.
fn python() -> &'static str {
    let has_redis = |python: &&str| {
        Command::new(python).args(["-c", "import redis"]).stderr(Stdio::null()).status().is_ok_and(|end| end.success())
    };
    ["/usr/bin/python3", "python3"]
        .into_iter()
        .find(has_redis)
        .expect("no Python with the package redis: `sh xtask/install.sh test` installs it")
}

/// Starts a process of the example, which is killed when the test ends.
fn start_python(env: &LoopEnv, file: &StepFile, worker_id: &str) -> Child {
    tokio::process::Command::new(python())
        .arg(paths::repository_root().join("examples/python-worker/singleton.py"))
        .env("REDIS_URL", redis_url())
        .env("MILVAION_KEY_PREFIX", &env.prefix)
        .env("MILVAION_WORKER_ID", worker_id)
        .env("LOOP_NAME", LOOP)
        .env("LOOP_INTERVAL_SECONDS", "0.02")
        .env("LOOP_LEASE_SECONDS", LEASE.as_secs_f64().to_string())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .stdin(Stdio::null())
        .stdout(file.open())
        .kill_on_drop(true)
        .spawn()
        .expect("Python starts")
}

async fn signal(mut child: Child, signal: Signal) -> Option<i32> {
    let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).expect("it is running");
    kill(Pid::from_raw(pid), signal).expect("the signal is sent");
    child.wait().await.expect("an exit status").code()
}

async fn until_offered_by(env: &LoopEnv, instances: u32) {
    until("all instances offer the loop", async || {
        env.redis().zcard::<_, u32>(env.keys.singleton_instances(LOOP)).await.expect("read") == instances
    })
    .await;
}

/// Asks the leader to hand over until an instance of this worker leads.
async fn hand_over_to(env: &LoopEnv, file: &StepFile, worker: &str) {
    until("the instance leads after a hand-over", async || {
        let holder: Option<String> = env.redis().get(env.keys.singleton_lease(LOOP)).await.expect("read");
        let holder = holder.and_then(|lease| Some(lease.rsplit_once(':')?.0.to_owned()));
        match holder {
            Some(holder) if holder.starts_with(worker) => file.leader().starts_with(worker),
            Some(holder) => {
                let _: () = env.redis().set_ex(env.keys.singleton_yield(LOOP), holder, 30).await.expect("set");
                env.announce().await;
                false
            }
            None => false,
        }
    })
    .await;
    // The last request may have come after the hand-over.
    let _: () = env.redis().del(env.keys.singleton_yield(LOOP)).await.expect("deleted");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn python_and_rust_instances_share_a_loop() {
    let (env, file) = (LoopEnv::new().await, StepFile::create());
    let first = start_python(&env, &file, "first");
    file.until_led_by(|instance| instance.starts_with("first")).await;
    let second = start_python(&env, &file, "second");
    let steps = std::sync::Arc::new(file.open());
    let worker = env.worker().worker_id("rust").singleton(LOOP).every(Duration::from_millis(20)).lease(LEASE);
    let rust = env.run(worker.run(move |tick| {
        let steps = steps.clone();
        async move {
            for step in 0..3 {
                let at = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64();
                let line = format!("{at:.3} rust epoch {} run {} step {step}\n", tick.epoch(), tick.number());
                (&*steps).write_all(line.as_bytes())?;
                sleep(Duration::from_millis(2)).await;
            }
            Ok(())
        }
    }));
    until_offered_by(&env, 3).await;

    // SIGTERM: the leader releases its lease, and another one of the two leads before the lease could have expired.
    assert_eq!(signal(first, Signal::SIGTERM).await, Some(0), "it ends in an orderly way");
    let gap = file.until_led_by(|instance| !instance.starts_with("first")).await;
    assert!(gap < LEASE / 2, "the successor ran after {gap:?}");
    until_offered_by(&env, 2).await;

    // Hand-overs in both directions.
    for worker in ["second", "rust", "second"] {
        hand_over_to(&env, &file, worker).await;
    }

    // SIGKILL: the lease expires.
    let killed = signal(second, Signal::SIGKILL).await;
    assert_eq!(killed, None, "it was killed");
    let gap = file.until_led_by(|instance| instance == "rust").await;
    assert!(gap < LEASE + HEARTBEAT + SLACK, "the successor ran after {gap:?}");
    rust.stop().await;

    let steps = file.steps();
    let mut leaders: Vec<(u64, &str)> = steps.iter().map(|step| (step.epoch, step.instance.as_str())).collect();
    assert!(leaders.is_sorted_by_key(|(epoch, _)| *epoch), "a former leader ran beside its successor: {leaders:?}");
    leaders.dedup();
    assert!(leaders.is_sorted_by(|one, next| one.0 < next.0), "an epoch was granted twice: {leaders:?}");
    assert!(leaders.len() >= 5, "the loop was handed over too seldom: {leaders:?}");
}
