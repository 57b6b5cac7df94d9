//! Tests with a corpus of URLs and a scripted resolver.

use super::{testing::ScriptedLookup, *};

const WORDS: GuardWords = GuardWords { owner: "this worker", sender: "job", allow: "HTTP_ALLOW", deny: "HTTP_DENY" };

fn rules(texts: &[&str]) -> Vec<EgressRule> {
    texts.iter().map(|text| text.parse().expect("a rule")).collect()
}

fn guard(allow: &[&str]) -> EgressGuard {
    EgressGuard::new(WORDS, rules(allow), rules(&["192.0.2.66:80"]), Vec::new(), false)
}

async fn check_url(guard: &EgressGuard, text: &str) -> Result<ApprovedTarget, GuardError> {
    guard.check(&parse_url(text, "url", "leave it out")?).await
}

#[tokio::test]
async fn internal_addresses_are_refused_in_any_spelling() {
    let guard = guard(&[]);
    for text in [
        "http://127.0.0.1/",
        "http://127.1/",
        "http://127.0.1:8080/",
        "http://0/",
        "http://0.0.0.0/",
        "http://0x7f000001/",
        "http://0x7f.1/",
        "http://0177.0.0.1/",
        "http://2130706433/",
        "http://017700000001/",
        "http://127.0.0.1./",
        "http://%31%32%37.0.0.1/",
        "http://①②⑦.⓪.⓪.①/",
        "http://127。0。0。1/",
        "http://[::1]/",
        "http://[0:0:0:0:0:0:0:1]/",
        "http://[::]/",
        "http://[::ffff:127.0.0.1]/",
        "http://[::ffff:7f00:1]/",
        "http://[::127.0.0.1]/",
        "http://[64:ff9b::7f00:1]/",
        "http://[64:ff9b:1::a00:1]/",
        "http://[2002:7f00:1::]/",
        "http://localhost/",
        "http://localhost./",
        "http://LOCALHOST:9/",
        "http://169.254.169.254/latest/meta-data/",
        "http://[fe80::1]/",
        "http://[fd00:ec2::254]/",
        "http://100.100.100.200/",
        "http://10.0.0.1/",
        "http://172.16.0.1/",
        "http://192.168.0.1/",
        "http://168.63.129.16/",
        "http:127.0.0.1",
        "http:\\\\127.0.0.1\\",
        "http:/127.0.0.1",
        "http://example.org@127.0.0.1/",
        "http://127.0.0.1#@example.org/",
        "http://127.0.0.1\\@example.org/",
        "file:///etc/passwd",
        "gopher://127.0.0.1:6379/_FLUSHALL",
        "unix:/run/docker.sock",
        "ftp://127.0.0.1/",
        "data:text/plain,x",
        "http://user:pass@example.org/",
        "http://user@example.org/",
        "http://exa\r\nmple.org/",
        "http://example.org/\r\nx: y",
        "http://example.org/a\tb",
        "http://",
        "//127.0.0.1/",
        "",
    ] {
        let failure = check_url(&guard, text).await.expect_err(text);
        assert!(failure.is_permanent(), "{text}: {failure}");
    }
}

#[tokio::test]
async fn public_addresses_are_allowed() {
    let guard = guard(&[]).with_lookup(ScriptedLookup::new(&[&["93.184.215.14", "2606:2800:21f:cb07::1"]]));
    let target = check_url(&guard, "https://Example.ORG./path").await.expect("public");
    assert_eq!((target.host.as_str(), target.port, target.addresses.len()), ("example.org", 443, 2));
    assert!(check_url(&guard, "http://8.8.8.8:53/").await.is_ok());
    assert!(check_url(&guard, "http://[64:ff9b::808:808]/").await.is_ok());
}

#[tokio::test]
async fn name_with_one_internal_address_is_refused() {
    let guard = guard(&[]).with_lookup(ScriptedLookup::new(&[&["93.184.215.14", "192.168.0.7"]]));
    let failure = check_url(&guard, "http://mixed.test/").await.expect_err("must be refused");
    assert!(failure.is_permanent() && failure.to_string().contains("192.168.0.7"), "{failure}");
    assert!(failure.to_string().contains("add mixed.test:80 or its network to this worker's HTTP_ALLOW"), "{failure}");
}

#[tokio::test]
async fn name_is_resolved_once_per_check() {
    let script = ScriptedLookup::new(&[&["93.184.215.14"], &["127.0.0.1"]]);
    let guard = guard(&[]).with_lookup(script.clone());
    let target = check_url(&guard, "http://rebinding.test/").await.expect("public at first");
    assert_eq!(target.addresses, ["93.184.215.14:80".parse().expect("an address")]);
    assert_eq!(script.left(), 1, "one call");
    assert!(check_url(&guard, "http://rebinding.test/").await.expect_err("internal now").is_permanent());
}

#[tokio::test]
async fn only_allowed_destinations_are_reachable() {
    let guard = guard(&["127.0.0.1:8080", "10.0.0.0/8", "metrics.test:90", "192.0.2.0/24"])
        .with_lookup(ScriptedLookup::new(&[&["192.168.1.1"], &["192.168.1.1"]]));
    for (text, is_allowed) in [
        ("http://127.1:8080/", true),
        ("http://127.0.0.1:8081/", false),
        ("http://127.0.0.2:8080/", false),
        ("http://[::ffff:10.2.3.4]/", true),
        ("http://metrics.test:90/", true),
        ("http://metrics.test:91/", false),
        ("http://192.0.2.65/", true),
        // Denied, although its network is allowed.
        ("http://192.0.2.66/", false),
    ] {
        assert_eq!(check_url(&guard, text).await.is_ok(), is_allowed, "{text}");
    }
}

#[tokio::test]
async fn own_backends_are_refused_even_if_allowed() {
    let backends = ["amqp://u:p@127.0.0.1/%2f", "redis://[fd00::9]:6380/0", "amqp://broker.test:5673"];
    let backends = backends.iter().filter_map(|url| ProtectedBackend::from_url(url, 5672)).collect::<Vec<_>>();
    assert_eq!(backends.len(), 3);
    let everything = ["0.0.0.0/0", "::/0", "localhost:5672", "broker.test:5673"];
    let guard = |answers| {
        EgressGuard::new(WORDS, rules(&everything), Vec::new(), backends.clone(), false)
            .with_lookup(ScriptedLookup::new(answers))
    };
    let own: &[&[&str]] = &[&["127.0.0.1"], &["127.0.0.1"]];
    for text in [
        "http://127.0.0.1:5672/",
        "http://127.9.9.9:5672/",
        "http://0:5672/",
        "http://[::1]:5672/",
        "http://[::ffff:127.0.0.1]:5672/",
        "http://[64:ff9b::7f00:1]:5672/",
        "http://broker.test:5673/",
        "http://BROKER.test.:5673/",
    ] {
        let failure = check_url(&guard(own), text).await.expect_err(text);
        assert!(failure.is_permanent() && failure.to_string().contains("depends on"), "{text}: {failure}");
    }
    // By another name, and by its address.
    let internal: &[&[&str]] = &[&["fd00::9"], &["fd00::9"]];
    assert!(check_url(&guard(internal), "http://alias.test:6380/").await.is_err());
    let internal: &[&[&str]] = &[&["10.0.0.5"], &["10.0.0.5"]];
    assert!(check_url(&guard(internal), "http://alias.test:5673/").await.is_err());
    // Other ports of the same machine are no backends.
    assert!(check_url(&guard(own), "http://127.0.0.1:5674/").await.is_ok());
}

#[tokio::test]
async fn unresolvable_backend_blocks_its_port() {
    let backends = vec![ProtectedBackend { host: "broker.test".to_owned(), port: 5673 }];
    let guard = EgressGuard::new(WORDS, Vec::new(), Vec::new(), backends, false).with_lookup(ScriptedLookup::new(&[]));
    assert!(!check_url(&guard, "http://8.8.8.8:5673/").await.expect_err("unknown").is_permanent());
}

#[tokio::test]
async fn with_a_proxy_only_the_url_is_checked() {
    let guard = EgressGuard::new(WORDS, Vec::new(), Vec::new(), Vec::new(), true).with_lookup(ScriptedLookup::new(&[]));
    assert!(check_url(&guard, "http://example.org/").await.expect("not resolved").addresses.is_empty());
    for text in ["http://127.1/", "http://localhost./", "http://a.localhost/", "http://[::1]/"] {
        assert!(check_url(&guard, text).await.is_err(), "{text}");
    }
}
