//! Credentials and tokens.

use super::*;

#[tokio::test]
async fn credentials_arrive_and_are_redacted() {
    for (auth, arrived) in [
        (
            json!({"type": "basic", "username": "u", "password": "{{secret:pass}}"}),
            "GET /echo [authorization=Basic dTpjNG40cnk6cCZzcw==] ",
        ),
        (json!({"type": "bearer", "token": "{{secret:key}}"}), "GET /echo [authorization=Bearer c4n4ry-key] "),
        (
            json!({"type": "apiKey", "name": "X-Api-Key", "value": "{{secret:key}}"}),
            "GET /echo [x-api-key=c4n4ry-key] ",
        ),
        (
            json!({"type": "apiKey", "name": "k", "value": "{{secret:pass}}", "in": "query"}),
            "GET /echo?k=c4n4ry%3Ap%26ss [] ",
        ),
    ] {
        let (url, site) = start_test_site().await;
        let record = call(json!({"url": format!("{url}/echo"), "auth": auth})).await;
        assert_eq!(*site.seen.lock().expect("the mutex is not poisoned"), [arrived]);
        // The response repeats the whole request.
        assert!(result(&record)["body"].as_str().is_some_and(|body| body.contains("{{")), "{record:?}");
        let all = all_of(&record);
        assert!(!all.contains("c4n4ry") && !all.contains("NG40cnk"), "{all}");
    }
}

#[tokio::test]
async fn token_is_reused_until_refused() {
    let (url, site) = start_test_site().await;
    let input = json!({"url": format!("{url}/guarded"), "auth": {
        "type": "oauth2", "tokenUrl": format!("{url}/token"), "clientId": "me", "clientSecret": "{{secret:pass}}", "scope": "a b"
    }});
    let job = Arc::new(job());
    for _ in 0..3 {
        let record = test_run(SharedHttpRequest(job.clone()), SECRETS, input.clone()).run().await;
        assert_eq!(result(&record)["body"], "welcome");
        assert!(!all_of(&record).contains("t0ken-"), "{record:?}");
    }
    // The first token was refused once, and the second served three runs.
    assert_eq!(site.tokens.load(Ordering::SeqCst), 2);
    let seen = site.seen.lock().expect("the mutex is not poisoned").clone();
    // me:c4n4ry%3Ap%26ss
    assert_eq!(seen[0], "token Basic bWU6YzRuNHJ5JTNBcCUyNnNz grant_type=client_credentials&scope=a+b");
}

#[tokio::test]
async fn expired_token_is_renewed_and_refusal_retried_once() {
    let (url, site) = start_test_site().await;
    let auth = |scope: &str| {
        json!({
            "type": "oauth2", "tokenUrl": format!("{url}/token"), "clientId": "me", "clientSecret": "{{secret:key}}",
            "scope": scope, "sendAs": "body"
        })
    };
    let job = Arc::new(job());
    for _ in 0..2 {
        let input = json!({"url": format!("{url}/echo"), "auth": auth("brief")});
        result(&test_run(SharedHttpRequest(job.clone()), SECRETS, input).run().await);
    }
    assert_eq!(site.tokens.load(Ordering::SeqCst), 2, "each token expired at once");
    assert!(
        site.seen.lock().expect("the mutex is not poisoned")[0]
            .ends_with("scope=brief&client_id=me&client_secret=c4n4ry-key")
    );
    let input = json!({"url": format!("{url}/status/401"), "auth": auth("refused")});
    let record = test_run(SharedHttpRequest(job), SECRETS, input).run().await;
    assert!(exception(&record).contains("returned status 401"), "{record:?}");
    assert_eq!(site.tokens.load(Ordering::SeqCst), 4, "one retry with a new token");
}

/// A job that several runs share, as in a worker.
struct SharedHttpRequest(Arc<HttpRequest>);

impl BuiltinJob for SharedHttpRequest {
    const TYPE: &'static str = HttpRequest::TYPE;
    const DESCRIPTION: &'static str = HttpRequest::DESCRIPTION;
    type Input = HttpRequestInput;
    type Output = HttpRequestOutput;

    async fn run(&self, context: &BuiltinContext, input: HttpRequestInput) -> Result<HttpRequestOutput, BuiltinError> {
        self.0.run(context, input).await
    }
}
