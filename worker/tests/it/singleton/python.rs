//! Two processes of `examples/python-worker/singleton.py` and a Rust worker with the same loop.
//!
//! All three append their steps to one file. The kernel puts the lines in the order in which they were written, so the file
//! shows an overlap if there is one.

use std::{
    fs::{self, File},
    io::Write,
    path::PathBuf,
    process::Stdio,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use milvaion_test_support::{
    lossy_network::LossyNetwork,
    paths, python,
    services::{redis_url, unique},
    wait::until,
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use redis::AsyncCommands;
use tokio::{process::Child, time::sleep};

use super::witness::{Instance, LEASE, LOOP, LoopEnv};

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

    /// Waits until the loop has run for a while, so that an overlap would show.
    async fn until_it_ran(&self) {
        let steps = self.steps().len();
        until("the loop has run for a while", async || self.steps().len() > steps + 60).await;
    }

    /// Fails if a step with a lower epoch follows one with a higher epoch, or if two instances have one epoch. Returns the
    /// number of leaders.
    fn check(&self) -> usize {
        let steps = self.steps();
        let mut leaders: Vec<(u64, &str)> = steps.iter().map(|step| (step.epoch, step.instance.as_str())).collect();
        leaders.dedup();
        assert!(
            leaders.is_sorted_by(|one, next| one.0 < next.0),
            "a former leader ran beside its successor: {leaders:?}"
        );
        leaders.len()
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

/// Starts a process of the example, which is killed when the test ends.
fn start_python(env: &LoopEnv, file: &StepFile, worker_id: &str, interval: &str, redis_url: &str) -> Child {
    tokio::process::Command::new(python::with_packages("redis"))
        .arg(paths::repository_root().join("examples/python-worker/singleton.py"))
        .env("REDIS_URL", redis_url)
        .env("MILVAION_KEY_PREFIX", &env.prefix)
        .env("MILVAION_WORKER_ID", worker_id)
        .env("LOOP_NAME", LOOP)
        .env("LOOP_INTERVAL_SECONDS", interval)
        .env("LOOP_LEASE_SECONDS", LEASE.as_secs_f64().to_string())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .stdin(Stdio::null())
        .stdout(file.open())
        .kill_on_drop(true)
        .spawn()
        .expect("Python starts")
}

/// Starts a Rust worker with the loop.
fn start_rust(env: &LoopEnv, file: &StepFile) -> Instance {
    let steps = Arc::new(file.open());
    let worker = env.worker().worker_id("rust").singleton(LOOP).every(Duration::from_millis(20)).lease(LEASE);
    env.run(worker.run(move |tick| {
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
    }))
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

mod exhaustive {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn python_and_rust_instances_share_a_loop() {
        let (env, file) = (LoopEnv::new().await, StepFile::create());
        let first = start_python(&env, &file, "first", "0.02", &redis_url());
        file.until_led_by(|instance| instance.starts_with("first")).await;
        let second = start_python(&env, &file, "second", "0.02", &redis_url());
        let rust = start_rust(&env, &file);
        until_offered_by(&env, 3).await;
        file.until_it_ran().await;

        // SIGTERM: the leader releases its lease, and another one of the two leads before the lease could have expired.
        assert_eq!(signal(first, Signal::SIGTERM).await, Some(0), "it ends in an orderly way");
        let gap = file.until_led_by(|instance| !instance.starts_with("first")).await;
        assert!(gap < LEASE / 2, "the successor ran after {gap:?}");
        until_offered_by(&env, 2).await;

        // Hand-overs in both directions.
        for worker in ["second", "rust", "second"] {
            hand_over_to(&env, &file, worker).await;
            file.until_it_ran().await;
        }

        // SIGKILL: the lease expires.
        let killed = signal(second, Signal::SIGKILL).await;
        assert_eq!(killed, None, "it was killed");
        let gap = file.until_led_by(|instance| instance == "rust").await;
        assert!(gap < LEASE + HEARTBEAT + SLACK, "the successor ran after {gap:?}");
        rust.stop().await;

        assert!(file.check() >= 5, "the loop was handed over too seldom");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn python_leader_behind_a_partition_ends_its_run() {
        let (env, file) = (LoopEnv::new().await, StepFile::create());
        let (network, url) = LossyNetwork::connect(&redis_url()).await;
        // A run of three seconds, with a step each second.
        let _cut_off = start_python(&env, &file, "first", "10", &url);
        file.until_led_by(|instance| instance.starts_with("first")).await;
        let rust = start_rust(&env, &file);
        until_offered_by(&env, 2).await;
        network.cut();
        file.until_led_by(|instance| instance == "rust").await;
        let last = file.steps().iter().rfind(|step| step.instance != "rust").expect("a step").at;
        until("the time of the last step of the run has passed", async || {
            file.steps().last().expect("a step").at > last + Duration::from_secs(4)
        })
        .await;
        assert_eq!(file.check(), 2);
        rust.stop().await;
    }
}
