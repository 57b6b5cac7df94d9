//! Sign-in limits: strangers, known devices, and the addresses of clients behind a proxy.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use axum::{Router, extract::Request, routing::post};
use chrono::TimeDelta;
use futures::{StreamExt, stream};
use http::{StatusCode, header};
use milvaion_api::permissions::Role;
use milvaion_app::error::AppError;
use milvaion_server::{
    command::sign_in::{DEVICE_RETENTION, FAILED_SIGN_IN_RETENTION, PassphraseHasher},
    config::http::HttpConfig,
    http::{
        device_cookie::{device_token, set_device_token},
        session,
    },
    lifecycle::Server,
    store::{retention::ExpiringTable, users::ThrottleSlot},
};
use milvaion_test_support::{
    database::{self, TestConnection},
    server_env,
};
use tower::ServiceExt;

use super::harness::{UserHarness, VALID_PASSPHRASE, seconds, setup_link, token};

const WRONG: &str = "wrong passphrase";

/// Returns the number of rows of all tables but the limits of strangers.
async fn rows(connection: &mut TestConnection) -> i64 {
    let count =
        "(xpath('//n/text()', query_to_xml(format('SELECT count(*) AS n FROM %I', t.relname), false, false, '')))[1]";
    connection
        .count(format!(
            "SELECT sum({count}::text::bigint)::bigint FROM pg_class t
             WHERE t.relnamespace = 'public'::regnamespace AND t.relkind = 'r' AND t.relname <> 'sign_in_throttle'"
        ))
        .await
}

/// Signs in wrongly `attempts` times from other devices. Checks that a known device can sign in, and that the attempts are
/// counted in a number of slots in `expected`, and nowhere else.
async fn attack(attempts: u32, expected: std::ops::Range<i64>) {
    let harness = UserHarness::new().await;
    let ana = harness.admin().await;
    let device = harness.remember(&ana, None).await;
    let mut connection = TestConnection::open(&harness.url).await;
    let before = rows(&mut connection).await;

    let (harness, signed_in) = (&harness, AtomicUsize::new(0));
    stream::iter(0..attempts)
        .for_each_concurrent(8, |n| {
            let signed_in = &signed_in;
            async move {
                let own_address = format!("10.{}.{}.9", n / 250, n % 250);
                let (name, address) = match n % 4 {
                    0 => ("ana".to_owned(), own_address),
                    1 => (format!("guess{n}"), own_address),
                    2 => (format!("guess{n}"), "203.0.113.9".to_owned()),
                    _ => (format!("guess{n}"), format!("2001:db8:1:2::{n:x}")),
                };
                match harness.sign_in(Some(&address), &name, WRONG).await {
                    Err(AppError::Fields(_) | AppError::TooMany(_)) => {}
                    Err(error) => panic!("attempt {n}: {error:?}"),
                    Ok(_) => drop(signed_in.fetch_add(1, Ordering::Relaxed)),
                }
            }
        })
        .await;
    assert_eq!(signed_in.load(Ordering::Relaxed), 0);

    let locked = harness.sign_in(None, "ana", VALID_PASSPHRASE).await;
    assert!(matches!(locked, Err(AppError::TooMany(_))), "strangers have locked the account: {locked:?}");
    let wrong = harness.sign_in_from(&device, "ana", WRONG).await;
    assert!(matches!(wrong, Err(AppError::Fields(_))), "the device has attempts of its own: {wrong:?}");
    assert_eq!(harness.sign_in_from(&device, "ana", VALID_PASSPHRASE).await.as_ref(), Ok(&device));

    // One row for the refusals of ana, one for those of unknown accounts, and one for the sign-in; a run that passes a
    // full hour starts new rows of refusals.
    let grown = rows(&mut connection).await - before;
    assert!(grown <= 5, "{grown} rows");
    // A quarter of the attempts has an account of its own, half of them an address of its own, and the others two networks.
    // Some share a slot.
    let slots = connection.count("SELECT count(*) FROM sign_in_throttle").await;
    assert!(expected.contains(&slots), "{slots} slots");
    let outside = "SELECT count(*) FROM sign_in_throttle WHERE slot NOT BETWEEN 0 AND 65535";
    assert_eq!(connection.count(outside).await, 0);

    harness.clock.advance(FAILED_SIGN_IN_RETENTION + seconds(1));
    let expired = harness.clock.now() - FAILED_SIGN_IN_RETENTION;
    while harness.store.delete_expired(ExpiringTable::SignInThrottle, expired).await.expect("deleted") > 0 {}
    assert_eq!(connection.count("SELECT count(*) FROM sign_in_throttle").await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_neither_lock_a_device_out_nor_grow_a_table() {
    attack(250, 180..260).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_in_the_queue_do_not_delay_a_known_device() {
    // Hashes that cost what they cost in production: cheap ones would end before anyone waits.
    let harness = Arc::new(UserHarness { hasher: PassphraseHasher::new(), ..UserHarness::new().await });
    let ana = harness.admin().await;
    let device = harness.remember(&ana, None).await;
    let ended = Arc::new(AtomicUsize::new(0));
    let strangers: Vec<_> = (0..30)
        .map(|n| {
            let (harness, ended) = (Arc::clone(&harness), Arc::clone(&ended));
            tokio::spawn(async move {
                let refused = harness.sign_in(None, &format!("guess{n}"), WRONG).await;
                ended.fetch_add(1, Ordering::Relaxed);
                refused
            })
        })
        .collect();
    harness.sign_in_from(&device, "ana", VALID_PASSPHRASE).await.expect("signed in");
    assert!(ended.load(Ordering::Relaxed) < 15, "most strangers still wait for their hash");
    for stranger in strangers {
        assert!(stranger.await.expect("the task does not panic").is_err());
    }
}

#[tokio::test]
async fn known_device_has_a_limit_of_its_own() {
    let harness = UserHarness::new().await;
    let ana = harness.admin().await;
    let (stolen, other) = (harness.remember(&ana, None).await, harness.remember(&ana, None).await);
    for _ in 0..5 {
        assert!(matches!(harness.sign_in_from(&stolen, "ana", WRONG).await, Err(AppError::Fields(_))));
    }
    let locked = harness.sign_in_from(&stolen, "ana", VALID_PASSPHRASE).await;
    assert_eq!(locked, Err(AppError::TooMany("Too many attempts. Wait 1 second, then try again.".into())));
    harness.sign_in_from(&other, "ana", VALID_PASSPHRASE).await.expect("another device is not affected");
    harness.sign_in(None, "ana", VALID_PASSPHRASE).await.expect("unknown devices are not affected");

    harness.clock.advance(seconds(1));
    assert!(matches!(harness.sign_in_from(&stolen, "ana", WRONG).await, Err(AppError::Fields(_))));
    assert!(matches!(harness.sign_in_from(&stolen, "ana", WRONG).await, Err(AppError::TooMany(_))), "the wait doubles");
    harness.clock.advance(seconds(2));
    harness.sign_in_from(&stolen, "ana", VALID_PASSPHRASE).await.expect("the wait has passed");
    for _ in 0..4 {
        assert!(matches!(harness.sign_in_from(&stolen, "ana", WRONG).await, Err(AppError::Fields(_))));
    }
    harness.sign_in_from(&stolen, "ana", VALID_PASSPHRASE).await.expect("the count started again");
}

#[tokio::test]
async fn sign_in_from_a_known_device_gives_strangers_no_new_attempts() {
    let harness = UserHarness::new().await;
    let ana = harness.admin().await;
    let device = harness.remember(&ana, None).await;
    for _ in 0..5 {
        assert!(harness.sign_in(None, "ana", WRONG).await.is_err());
    }
    harness.sign_in_from(&device, "ana", VALID_PASSPHRASE).await.expect("signed in");
    assert!(matches!(harness.sign_in(None, "ana", WRONG).await, Err(AppError::TooMany(_))));
}

#[tokio::test]
async fn foreign_and_forged_devices_count_as_strangers() {
    let harness = UserHarness::new().await;
    let admin = harness.admin().await;
    let bob = harness.join(&admin, "bob", Role::Viewer).await;
    let bobs = harness.remember(&bob, None).await;
    let forged = "A".repeat(bobs.len());
    let long = "A".repeat(10_000);
    for device in [bobs.as_str(), &forged, "", "short", &bobs, &long] {
        harness.clock.advance(seconds(1));
        assert!(matches!(harness.sign_in_from(device, "ana", WRONG).await, Err(AppError::Fields(_))), "{device:.50}");
    }
    let locked = harness.store.account_locked_until("ana@example.org", harness.clock.now()).await;
    assert!(locked.expect("it can be read").is_some(), "each attempt counted for the account");
    assert!(matches!(harness.sign_in_from(&bobs, "ana", VALID_PASSPHRASE).await, Err(AppError::TooMany(_))));
    harness.sign_in_from(&bobs, "bob", VALID_PASSPHRASE).await.expect("bob's own device has its attempts");

    // A browser of bob that ana signs in with becomes a device of hers, under another token.
    harness.clock.advance(seconds(900));
    let anas = harness.sign_in_from(&bobs, "ana", VALID_PASSPHRASE).await.expect("signed in");
    assert_ne!(anas, bobs);
    assert_eq!(harness.remember(&bob, Some(&bobs)).await, bobs, "bob's device is still known");
}

#[tokio::test]
async fn twenty_devices_are_known_for_180_days() {
    let harness = UserHarness::new().await;
    let ana = harness.admin().await;
    let mut devices = Vec::new();
    for _ in 0..20 {
        devices.push(harness.remember(&ana, None).await);
        harness.clock.advance(seconds(1));
    }
    // The oldest is used again, so the second one was unused for the longest time.
    assert_eq!(harness.remember(&ana, Some(&devices[0])).await, devices[0]);
    harness.clock.advance(seconds(1));
    devices.push(harness.remember(&ana, None).await);
    let mut connection = TestConnection::open(&harness.url).await;
    assert_eq!(connection.count("SELECT count(*) FROM known_devices").await, 20);
    for _ in 0..5 {
        assert!(harness.sign_in(None, "ana", WRONG).await.is_err());
    }
    assert!(matches!(harness.sign_in_from(&devices[1], "ana", VALID_PASSPHRASE).await, Err(AppError::TooMany(_))));
    for known in [0, 2, 20] {
        harness.sign_in_from(&devices[known], "ana", VALID_PASSPHRASE).await.expect("the device is known");
    }

    harness.clock.advance(DEVICE_RETENTION - seconds(10));
    assert_eq!(harness.remember(&ana, Some(&devices[0])).await, devices[0]);
    harness.clock.advance(seconds(10));
    assert_ne!(harness.remember(&ana, Some(&devices[2])).await, devices[2], "unused for 180 days");
    let expired = harness.clock.now() - DEVICE_RETENTION + seconds(1);
    harness.store.delete_expired(ExpiringTable::KnownDevices, expired).await.expect("deleted");
    assert_eq!(connection.count("SELECT count(*) FROM known_devices").await, 2);
}

#[tokio::test]
async fn forgotten_devices_are_strangers_and_one_may_be_kept() {
    let harness = UserHarness::new().await;
    let ana = harness.admin().await;
    let (one, two) = (harness.remember(&ana, None).await, harness.remember(&ana, None).await);
    let kept: [u8; 32] = <sha2::Sha256 as sha2::Digest>::digest(&one).into();
    assert_eq!(harness.store.forget_devices(ana.id, Some(&kept)).await.expect("deleted"), 1);
    assert_eq!(harness.remember(&ana, Some(&one)).await, one);
    assert_ne!(harness.remember(&ana, Some(&two)).await, two);
    assert_eq!(harness.store.forget_devices(ana.id, None).await.expect("deleted"), 2);
}

#[tokio::test]
async fn an_ipv6_network_shares_one_limit() {
    let harness = UserHarness::new().await;
    harness.admin().await;
    for n in 0..20 {
        let from = format!("2001:db8:1:2:{n:x}::1");
        let refused = harness.sign_in(Some(&from), &format!("guess{n}"), WRONG).await;
        assert!(matches!(refused, Err(AppError::Fields(_))), "{refused:?}");
    }
    let refused = harness.sign_in(Some("2001:db8:1:2:ffff::1"), "ana", VALID_PASSPHRASE).await;
    assert!(matches!(refused, Err(AppError::TooMany(_))), "{refused:?}");
    harness.sign_in(Some("2001:db8:1:3::1"), "ana", VALID_PASSPHRASE).await.expect("another network is not limited");
}

#[tokio::test]
async fn restart_keeps_the_counts() {
    let mut harness = UserHarness::new().await;
    let ana = harness.admin().await;
    let device = harness.remember(&ana, None).await;
    for _ in 0..5 {
        assert!(matches!(harness.sign_in(None, "ana", WRONG).await, Err(AppError::Fields(_))));
        assert!(matches!(harness.sign_in_from(&device, "ana", WRONG).await, Err(AppError::Fields(_))));
    }
    harness.store = database::open(&harness.url).await;
    harness.hasher = PassphraseHasher::new();
    assert!(matches!(harness.sign_in(None, "ana", VALID_PASSPHRASE).await, Err(AppError::TooMany(_))));
    assert!(matches!(harness.sign_in_from(&device, "ana", VALID_PASSPHRASE).await, Err(AppError::TooMany(_))));
}

#[tokio::test]
async fn device_cookie_has_its_security_attributes() {
    let harness = UserHarness::new().await;
    for (public_url, start, secure) in [
        (None, "milvaion_device=secret", false),
        (Some("https://jobs.example.org"), "__Host-milvaion_device=secret", true),
    ] {
        let config = HttpConfig { public_url: public_url.map(str::to_owned), ..harness.config.clone() };
        let layer = session::layer(harness.store.clone(), harness.clock.clone(), &config);
        let remember = async move |request: Request| {
            let (parts, _) = request.into_parts();
            let presented = device_token(&config, &parts);
            set_device_token(&config, &parts, "secret".into());
            presented.unwrap_or_default()
        };
        let web = Router::new().route("/", post(remember)).layer(layer);
        let request = Request::post("/").header(header::COOKIE, format!("{start}-before"));
        let response = web.oneshot(request.body(axum::body::Body::empty()).expect("valid")).await.expect("a response");
        let cookie = response.headers()[header::SET_COOKIE].to_str().expect("ASCII").to_owned();
        assert!(cookie.starts_with(&format!("{start};")), "{cookie}");
        for part in ["HttpOnly", "SameSite=Lax", "Path=/", "Max-Age=15552000"] {
            assert!(cookie.split("; ").any(|own| own == part), "{part} in {cookie}");
        }
        assert_eq!(cookie.contains("; Secure"), secure, "{cookie}");
        assert!(!cookie.contains("Domain"), "{cookie}");
        let body = axum::body::to_bytes(response.into_body(), 100).await.expect("it can be read");
        assert_eq!(body, "secret-before", "the cookie of the request is read");
    }
}

/// A browser, or a script of an attacker, behind a proxy on this machine.
struct ProxiedClient {
    http: reqwest::Client,
    url: String,
}

impl ProxiedClient {
    fn new(server: &Server) -> Self {
        let url = format!("http://127.0.0.1:{}/api", server.address.port());
        Self { http: reqwest::Client::new(), url }
    }

    async fn post(
        &self,
        function: &str,
        forwarded: &str,
        cookie: &str,
        fields: &[(&str, &str)],
    ) -> (StatusCode, Option<String>) {
        let body = fields.iter().map(|(name, value)| format!("{name}={}", value.replace('@', "%40").replace(' ', "+")));
        let request = self
            .http
            .post(format!("{}/{function}", self.url))
            .header("sec-fetch-site", "same-origin")
            .header("x-forwarded-for", forwarded)
            .header(header::COOKIE, cookie)
            .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded")
            .body(body.collect::<Vec<_>>().join("&"));
        let response = request.send().await.expect("a response");
        let cookies = response.headers().get_all(header::SET_COOKIE).iter().filter_map(|cookie| cookie.to_str().ok());
        let device = cookies.filter_map(|cookie| cookie.split(';').next()).find(|cookie| cookie.contains("_device="));
        (response.status(), device.map(str::to_owned))
    }

    async fn sign_in(
        &self,
        forwarded: &str,
        cookie: &str,
        email: &str,
        passphrase: &str,
    ) -> (StatusCode, Option<String>) {
        self.post("sign_in", forwarded, cookie, &[("email", email), ("passphrase", passphrase)]).await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forwarded_addresses_cannot_be_forged_and_a_known_device_signs_in() {
    forge_addresses(100).await;
}

/// Signs in wrongly `attempts` times with forged addresses, and then correctly from a known device.
async fn forge_addresses(attempts: u32) {
    let mut config = server_env::config().await;
    config.http.trusted_proxies = vec!["127.0.0.1/32".parse().expect("a network")];
    let server = server_env::start(&config).await;
    let client = &ProxiedClient::new(&server);
    let link = token(&setup_link(&server.store, &server.clock).await);
    let fields = [
        ("token", link.as_str()),
        ("page", "setup"),
        ("name", "Ana"),
        ("email", "ana@example.org"),
        ("passphrase", VALID_PASSPHRASE),
    ];
    let (status, device) = client.post("accept_link", "198.51.100.7", "", &fields).await;
    assert_eq!(status, StatusCode::OK);
    let device = device.expect("the browser of a new user is a known device");
    assert!(device.starts_with("milvaion_device="), "{device}");

    // The proxy appends the attacker's address to the ones that the attacker made up.
    let checked = AtomicUsize::new(0);
    stream::iter(0..attempts)
        .for_each_concurrent(8, |n| {
            let checked = &checked;
            async move {
                let forwarded = format!("198.51.100.{}, 203.0.113.9", n % 250);
                let (status, device) = client.sign_in(&forwarded, "", &format!("guess{n}@example.org"), WRONG).await;
                assert_eq!(device, None);
                match status {
                    StatusCode::UNPROCESSABLE_ENTITY => drop(checked.fetch_add(1, Ordering::Relaxed)),
                    status => assert_eq!(status, StatusCode::TOO_MANY_REQUESTS),
                }
            }
        })
        .await;
    // After twenty attempts, the address waits for 1, 2, 4 … seconds.
    let checked = checked.load(Ordering::Relaxed);
    assert!((20..30).contains(&checked), "{checked} passphrases were checked");
    let mut connection = TestConnection::open(&config.database.url).await;
    let refused = "SELECT count(*) FROM audit_log WHERE action = 'sign-in.refuse' AND address";
    assert!(connection.count(format!("{refused} = '203.0.113.9'")).await >= 1);
    assert_eq!(connection.count(format!("{refused} IS DISTINCT FROM '203.0.113.9'")).await, 0);

    // Strangers lock the account and the address of the user.
    let hour = TimeDelta::hours(1);
    for slot in [ThrottleSlot::account("ana@example.org"), ThrottleSlot::address("203.0.113.8")] {
        let counted = server.store.count_sign_in_attempt(slot, server.clock.now(), hour, |_| Some(hour)).await;
        counted.expect("it is counted");
    }
    let (status, _) = client.sign_in("203.0.113.7", "", "ana@example.org", VALID_PASSPHRASE).await;
    assert_eq!(status, StatusCode::TOO_MANY_REQUESTS, "the account is locked for unknown devices");
    let (status, again) = client.sign_in("203.0.113.8", &device, "ana@example.org", VALID_PASSPHRASE).await;
    assert_eq!((status, again), (StatusCode::OK, Some(device)), "the known device signs in and stays known");
    server.stop().await;
}

mod exhaustive {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn many_forged_addresses_share_the_limit_of_their_sender() {
        forge_addresses(300).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn ten_thousand_strangers_neither_lock_a_device_out_nor_grow_a_table() {
        attack(10_000, 6_000..7_500).await;
    }
}
