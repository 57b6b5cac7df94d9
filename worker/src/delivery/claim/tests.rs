//! The meaning of claims, and the scripts that write them, against those of the protocol page.

use super::*;

#[test]
fn claim_is_held_and_then_abandoned() {
    let held = |lease| ClaimResult::Held { by: "w-1".to_owned(), lease: Duration::from_millis(lease) };
    let left = |ms: i64| held_by("w-1:2", &ms.to_string(), 2);
    assert_eq!(left(CLAIM_KEY_TTL_MS), held(15_000));
    assert_eq!(left(CLAIM_RETENTION_MS + 1), held(1));
    assert_eq!(left(CLAIM_RETENTION_MS), ClaimResult::Abandoned { by: "w-1".to_owned() });
    assert_eq!(left(CLAIM_LEASE_MS + 1), ClaimResult::Abandoned { by: "w-1".to_owned() });
    // The holder writes a lease without the retention.
    assert_eq!(left(CLAIM_LEASE_MS), held(15_000));
    assert_eq!(left(-1), held(0));
}

#[test]
fn ended_or_superseded_attempts_stay_ended() {
    for (mark, left) in
        [("done:2", CLAIM_RETENTION_MS), ("w-1:3", CLAIM_KEY_TTL_MS), ("w-1:3", CLAIM_RETENTION_MS - 1), ("done:7", 1)]
    {
        assert_eq!(held_by(mark, &left.to_string(), 2), ClaimResult::Ended, "{mark}");
    }
    // An end long ago, and only of this very attempt.
    assert_eq!(held_by("done:2", &(CLAIM_RETENTION_MS - MAX_REPORT_DELAY_MS).to_string(), 2), ClaimResult::Ended);
    assert_eq!(
        held_by("done:2", &(CLAIM_RETENTION_MS - MAX_REPORT_DELAY_MS - 1).to_string(), 2),
        ClaimResult::EndedUnreported
    );
    assert_eq!(held_by("done:3", "1", 2), ClaimResult::Ended);
    // Instance ids may contain colons.
    assert!(matches!(held_by("a:b:2", &CLAIM_KEY_TTL_MS.to_string(), 2), ClaimResult::Held { by, .. } if by == "a:b"));
}

/// The claims of instance `w-1` under a prefix of their own, and a connection for what the store does not do.
struct TestClaims {
    keys: RedisKeys,
    store: ClaimStore,
    redis: redis::aio::MultiplexedConnection,
}

impl TestClaims {
    async fn open() -> Self {
        let url = std::env::var("REDIS_URL").expect("REDIS_URL names a Redis for tests");
        let keys = RedisKeys::new(format!("t_{}:", crate::clock::random_id()));
        let store = ClaimStore::new(&url, keys.clone(), "w-1").expect("a valid URL");
        let client = redis::Client::open(url).expect("a valid URL");
        let redis = client.get_multiplexed_async_connection().await.expect("Redis responds");
        Self { keys, store, redis }
    }
}

/// The values of a claim's key before attempt 2 of instance `w-1`.
const HELD: [Option<&str>; 8] =
    [None, Some("w-1:2"), Some("w-2:1"), Some("w-2:2"), Some("w-2:3"), Some("done:1"), Some("done:2"), Some("done:3")];

#[tokio::test]
async fn batch_script_settles_like_the_scripts_of_the_page() {
    let TestClaims { keys, store, mut redis } = TestClaims::open().await;
    let occurrence = || {
        OccurrenceId::from_parts(
            crate::clock::now(),
            crate::clock::random_id().as_bytes()[..10].try_into().expect("ten bytes"),
        )
    };
    let (one, other) = (occurrence(), occurrence());
    let (one_key, other_key) = (keys.running(one), keys.running(other));
    for held in HELD {
        for is_end in [false, true] {
            for key in [&one_key, &other_key] {
                let command = match held {
                    Some(held) => redis::cmd("SET").arg(key).arg(held).to_owned(),
                    None => redis::cmd("DEL").arg(key).to_owned(),
                };
                command.query_async::<()>(&mut redis).await.expect("written");
            }
            let claim = claims::CLAIM_SINCE_SCRIPT.replace("    -- the script above", claims::CLAIM_SCRIPT);
            let script = Script::new(if is_end { claims::DONE_SCRIPT } else { &claim });
            let mut single = script.prepare_invoke();
            single.key(&one_key).key(keys.cancel_request(one)).key(keys.claims_since());
            single.arg("w-1").arg(2).arg(60_000).arg(CLAIM_LEASE_MS).arg(0);
            single.invoke_async::<redis::Value>(&mut redis).await.expect("the script runs");
            let claim = ClaimRequest { attempt: (other, 2), may_be_duplicate: false };
            let (claims, ends): (&[ClaimRequest], &[AttemptKey]) =
                if is_end { (&[], &[(other, 2)]) } else { (&[claim], &[]) };
            store.settle(claims, ends).await.expect("Redis responds");
            let mut get = redis::cmd("MGET");
            get.arg(&one_key).arg(&other_key);
            let values: Vec<Option<String>> = get.query_async(&mut redis).await.expect("read");
            assert_eq!(values[0], values[1], "held {held:?}, end {is_end}");
        }
    }
    redis::cmd("DEL")
        .arg(&one_key)
        .arg(&other_key)
        .arg(keys.claims_since())
        .query_async::<()>(&mut redis)
        .await
        .expect("deleted");
}

#[tokio::test]
async fn possible_duplicate_waits_a_lease_after_a_loss_of_data() {
    let TestClaims { keys, store, mut redis } = TestClaims::open().await;
    let occurrence = |number| OccurrenceId::from_parts(DateTime::UNIX_EPOCH, [number; 10]);
    let claim = |number, may_be_duplicate| ClaimRequest { attempt: (occurrence(number), 1), may_be_duplicate };
    let end = (occurrence(4), 1);
    let results = store.settle(&[claim(1, true), claim(2, false), claim(3, true)], &[end]).await.expect("settled");
    let is_early = |result: &ClaimResult| match result {
        ClaimResult::TooEarly { wait } => wait.as_millis() <= 15_000 && wait.as_millis() > 10_000,
        _ => false,
    };
    assert!(is_early(&results[0]) && is_early(&results[2]), "{results:?}");
    assert!(matches!(results[1], ClaimResult::Granted { .. }), "{results:?}");
    // The script of the page has the same answer.
    let page = Script::new(&claims::CLAIM_SINCE_SCRIPT.replace("    -- the script above", claims::CLAIM_SCRIPT));
    let mut page = page.prepare_invoke();
    page.key(keys.running(occurrence(1))).key(keys.cancel_request(occurrence(1))).key(keys.claims_since());
    page.arg("w-1").arg(1).arg(CLAIM_KEY_TTL_MS).arg(CLAIM_LEASE_MS).arg(1);
    let answer: (String, i64, String, String) = page.invoke_async(&mut redis).await.expect("the script runs");
    assert!(answer.0.is_empty() && (10_001..=CLAIM_LEASE_MS).contains(&answer.1), "{answer:?}");
    let mut get = redis::cmd("MGET");
    (1..=4).for_each(|number| drop(get.arg(keys.running(occurrence(number))).to_owned()));
    let values: Vec<Option<String>> = get.query_async(&mut redis).await.expect("read");
    assert_eq!(values, [None, Some("w-1:1".to_owned()), None, Some("done:1".to_owned())], "nothing else is written");
    // A lease ago, and an hour ahead, as after a step of the clock.
    for seconds in [-15, 3600] {
        let since = crate::clock::now() + chrono::Duration::seconds(seconds);
        let mut set = redis::cmd("SET");
        set.arg(keys.claims_since()).arg(since.timestamp_millis());
        set.query_async::<()>(&mut redis).await.expect("written");
        let results = store.settle(&[claim(1, true)], &[]).await.expect("settled");
        assert!(matches!(results[0], ClaimResult::Granted { .. }), "{seconds}: {results:?}");
    }
    let mut delete = redis::cmd("DEL");
    delete.arg(keys.claims_since());
    (1..=4).for_each(|number| drop(delete.arg(keys.running(occurrence(number))).to_owned()));
    delete.query_async::<()>(&mut redis).await.expect("deleted");
}

#[tokio::test]
async fn renewal_takes_over_from_lower_attempts_only() {
    let TestClaims { keys, mut redis, .. } = TestClaims::open().await;
    let key = keys.running(OccurrenceId::from_parts(DateTime::UNIX_EPOCH, [1; 10]));
    for held in HELD {
        let command = match held {
            Some(held) => redis::cmd("SET").arg(&key).arg(held).to_owned(),
            None => redis::cmd("DEL").arg(&key).to_owned(),
        };
        command.query_async::<()>(&mut redis).await.expect("written");
        let mut renew = RENEW_SCRIPT.prepare_invoke();
        renew.key(&key).arg(60_000).arg("w-1:2");
        let lost: Vec<(usize, String)> = renew.invoke_async(&mut redis).await.expect("the script runs");
        let is_lost = matches!(held, Some("w-2:2" | "w-2:3" | "done:2" | "done:3"));
        let expected = held.filter(|_| is_lost).map(|held| (1, held.to_owned()));
        assert_eq!(lost, expected.into_iter().collect::<Vec<_>>());
        let value: Option<String> = redis::cmd("GET").arg(&key).query_async(&mut redis).await.expect("read");
        assert_eq!(value.as_deref(), if is_lost { held } else { Some("w-1:2") });
    }
    redis::cmd("DEL").arg(&key).query_async::<()>(&mut redis).await.expect("deleted");
}
