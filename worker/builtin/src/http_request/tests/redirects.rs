//! Redirects.

use super::*;

#[tokio::test]
async fn redirects_are_optional_and_bounded() {
    let (url, site) = start_test_site().await;
    let record = call(json!({"url": format!("{url}/to?302,/echo")})).await;
    assert!(exception(&record).contains("set followRedirects"), "{record:?}");
    let record =
        call(json!({"url": format!("{url}/to?302,/echo"), "followRedirects": true, "method": "POST", "body": "b"}))
            .await;
    result(&record);
    let record =
        call(json!({"url": format!("{url}/to?307,/echo"), "followRedirects": true, "method": "POST", "body": "b"}))
            .await;
    result(&record);
    assert_eq!(*site.seen.lock().expect("the mutex is not poisoned"), ["GET /echo [] ", "POST /echo [] b"]);
    // Each hop is a `/to` that redirects to the rest.
    let hops = |count: usize| format!("{url}{}", "/to?302,".repeat(count) + "/echo");
    result(&call(json!({"url": hops(3), "followRedirects": true})).await);
    let record = call(json!({"url": hops(4), "followRedirects": true})).await;
    assert!(exception(&record).contains("more than 3 times"), "{record:?}");
}

#[tokio::test]
async fn other_host_gets_no_credentials_headers_or_body() {
    let ((first, seen_first), (second, seen)) = (start_test_site().await, start_test_site().await);
    let auth = json!({"type": "bearer", "token": "{{secret:key}}"});
    let headers = json!({"x-a": "1", "cookie": "c=1", "accept": "text/plain"});
    let input = |url: String| json!({"url": url, "auth": auth, "headers": headers, "followRedirects": true});
    result(&call(input(format!("{first}/to?302,{second}/echo"))).await);
    assert_eq!(*seen.seen.lock().expect("the mutex is not poisoned"), ["GET /echo [accept=text/plain] "]);
    // A redirect that leads back from another host does not get it again.
    result(&call(input(format!("{first}/to?302,{second}/to?302,{first}/echo"))).await);
    assert_eq!(
        std::mem::take(&mut *seen_first.seen.lock().expect("the mutex is not poisoned")),
        ["GET /echo [accept=text/plain] "]
    );
    // A redirect to the same host keeps the credential.
    result(&call(input(format!("{first}/to?302,/echo"))).await);
    assert!(seen_first.seen.lock().expect("the mutex is not poisoned")[0].contains("authorization=Bearer c4n4ry-key"));
    let mut input = input(format!("{first}/to?307,{second}/echo"));
    input["method"] = json!("POST");
    input["body"] = json!("{{secret:pass}}");
    let record = call(input).await;
    assert!(exception(&record).contains("would receive the request body"), "{record:?}");
    assert_eq!(seen.seen.lock().expect("the mutex is not poisoned").len(), 1);
}

#[tokio::test]
async fn every_redirect_target_is_checked() {
    let (url, _) = start_test_site().await;
    for target in
        ["http://127.0.0.2/", "http://[::1]/", "http://169.254.169.254/", "file:///etc/passwd", "http://a:b@127.0.0.1/"]
    {
        let record = call(json!({"url": format!("{url}/to?302,{target}"), "followRedirects": true})).await;
        let text = exception(&record);
        assert!(
            text.contains("not public") || text.contains("only http://") || text.contains("user name"),
            "{target}: {text}"
        );
    }
}
