//! `http-request`: calls an address and looks at the answer.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use futures::{StreamExt, TryStreamExt};
use milvaion_worker::{Job, JobContext, JobError};
use reqwest::{
    Client, Method, Response, Url,
    header::{HeaderMap, HeaderName, HeaderValue, SET_COOKIE},
    redirect::Policy,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How much of an answer's body is kept.
const KEPT_BODY: usize = 10_000;
/// How much of it is quoted when the answer is a failure.
const QUOTED_BODY: usize = 500;
/// How many of its headers are kept.
const KEPT_HEADERS: usize = 50;
/// How long reaching the other side may take.
const CONNECTING: Duration = Duration::from_secs(5);

/// The job type; holds the connections that may be used again.
pub(crate) struct HttpRequest {
    client: Client,
}

impl HttpRequest {
    pub(crate) fn new() -> reqwest::Result<Self> {
        // Redirects are off: the answer is the one of the address that was asked, and no header travels elsewhere.
        let client = Client::builder()
            .redirect(Policy::none())
            .connect_timeout(CONNECTING)
            .user_agent(concat!("milvaion-worker/", env!("CARGO_PKG_VERSION")))
            .build()?;
        Ok(Self { client })
    }
}

/// What to call.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(title = "HTTP request")]
pub(crate) struct Input {
    /// The address, beginning with http:// or https://.
    #[schemars(title = "Address", url, length(min = 8, max = 2048), example = "https://example.org/health")]
    url: String,
    /// What is asked of the address.
    #[serde(default)]
    #[schemars(title = "Method")]
    method: Verb,
    /// Headers sent along, by name.
    #[serde(default)]
    #[schemars(title = "Headers", extend("maxProperties" = 50))]
    headers: BTreeMap<String, String>,
    /// The text sent along; say in the header content-type what it is.
    #[serde(default)]
    #[schemars(title = "Body", length(max = 65536), extend("format" = "multiline"))]
    body: Option<String>,
    /// The answers that count as success. None given: 200 to 299.
    #[serde(default)]
    #[schemars(title = "Expected status", length(max = 50), inner(range(min = 100, max = 599)), example = [200, 204])]
    expected_status: Option<Vec<u16>>,
    /// After how many seconds the call is given up, from 1 to 3600.
    #[serde(default = "half_a_minute")]
    #[schemars(title = "Timeout in seconds", range(min = 1, max = 3600))]
    timeout_seconds: u32,
}

fn half_a_minute() -> u32 {
    30
}

/// A method of HTTP.
#[derive(Clone, Copy, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
pub(crate) enum Verb {
    #[default]
    Get,
    Post,
    Put,
    Patch,
    Delete,
    Head,
    Options,
}

impl From<Verb> for Method {
    fn from(verb: Verb) -> Self {
        match verb {
            Verb::Get => Self::GET,
            Verb::Post => Self::POST,
            Verb::Put => Self::PUT,
            Verb::Patch => Self::PATCH,
            Verb::Delete => Self::DELETE,
            Verb::Head => Self::HEAD,
            Verb::Options => Self::OPTIONS,
        }
    }
}

/// What came back.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Output {
    status: u16,
    duration_ms: u64,
    headers: BTreeMap<String, String>,
    body: String,
    truncated: bool,
}

impl Job for HttpRequest {
    const TYPE: &'static str = "http-request";
    const DESCRIPTION: &'static str = "Calls an address over HTTP and checks the status of the answer.";
    const CONCURRENCY: u16 = 20;
    type Input = Input;
    type Output = Output;

    async fn run(&self, ctx: &JobContext, input: Input) -> Result<Output, JobError> {
        let url = check(&input)?;
        let headers = headers(&input.headers)?;
        let method = Method::from(input.method);
        // Without the query and without a password: both are where people put secrets.
        let shown = format!("{method} {}://{}{}", url.scheme(), url.host_str().unwrap_or_default(), url.path());
        let mut request = self.client.request(method, url).headers(headers);
        if let Some(body) = input.body {
            request = request.body(body);
        }

        ctx.info(shown.clone());
        let started = Instant::now();
        let patience = Duration::from_secs(input.timeout_seconds.into());
        let calling = async {
            let response = request.send().await.map_err(|error| JobError::from(error.without_url()))?;
            let (status, headers) = (response.status().as_u16(), kept_headers(response.headers()));
            let (body, truncated) = kept_body(response).await?;
            Ok::<_, JobError>(Output { status, headers, duration_ms: elapsed_ms(started), body, truncated })
        };
        let output = tokio::select! {
            output = tokio::time::timeout(patience, calling) => output.map_err(|_| {
                JobError::new(format!("{shown} did not answer within {} s; give timeoutSeconds a larger value if it needs longer", input.timeout_seconds))
            })??,
            () = ctx.cancelled().cancelled() => return Err(JobError::new(format!("{shown} was given up because the run was cancelled"))),
        };
        ctx.info(format!(
            "{} after {} ms, {} bytes{}",
            output.status,
            output.duration_ms,
            output.body.len(),
            if output.truncated { " kept" } else { "" }
        ));

        let expected = match input.expected_status.as_deref() {
            None | Some([]) => (200..300).contains(&output.status),
            Some(list) => list.contains(&output.status),
        };
        if expected {
            return Ok(output);
        }
        let quoted = output.body.floor_char_boundary(QUOTED_BODY);
        Err(JobError::new(format!(
            "{shown} answered {}; if that is all right, add {} to expectedStatus. The answer begins: {}",
            output.status,
            output.status,
            &output.body[..quoted]
        )))
    }
}

fn check(input: &Input) -> Result<Url, JobError> {
    let url = Url::parse(&input.url).map_err(|error| {
        JobError::permanent(format!(
            "the address in `url` cannot be read ({error}); write it like https://example.org/path"
        ))
    })?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(JobError::permanent(format!(
            "the address in `url` begins with {}:; only http:// and https:// can be called",
            url.scheme()
        )));
    }
    if !(1..=3600).contains(&input.timeout_seconds) {
        return Err(JobError::permanent(format!("`timeoutSeconds` is {}; give 1 to 3600", input.timeout_seconds)));
    }
    if let Some(status) = input.expected_status.iter().flatten().find(|status| !(100..=599).contains(*status)) {
        return Err(JobError::permanent(format!(
            "`expectedStatus` holds {status}; a status is a number from 100 to 599"
        )));
    }
    Ok(url)
}

fn headers(wanted: &BTreeMap<String, String>) -> Result<HeaderMap, JobError> {
    let mut headers = HeaderMap::new();
    for (name, value) in wanted {
        let wrong = || {
            JobError::permanent(format!(
                "the header {name:?} in `headers` cannot be sent; names are letters, digits and '-', values have no line breaks"
            ))
        };
        headers.insert(
            HeaderName::try_from(name).map_err(|_| wrong())?,
            HeaderValue::try_from(value).map_err(|_| wrong())?,
        );
    }
    Ok(headers)
}

/// The answer's headers, without the cookies, which are as good as a password.
fn kept_headers(headers: &HeaderMap) -> BTreeMap<String, String> {
    let readable = headers.iter().filter(|(name, _)| *name != SET_COOKIE);
    readable
        .take(KEPT_HEADERS)
        .map(|(name, value)| (name.to_string(), String::from_utf8_lossy(value.as_bytes()).into_owned()))
        .collect()
}

/// Reads as much of the body as is kept, and not a byte more than the piece in which it is full.
async fn kept_body(response: Response) -> Result<(String, bool), JobError> {
    let mut stream = response.bytes_stream().map_err(|error| JobError::from(error.without_url()));
    let mut body = Vec::new();
    while body.len() <= KEPT_BODY
        && let Some(piece) = stream.next().await
    {
        body.extend_from_slice(&piece?);
    }
    let truncated = body.len() > KEPT_BODY;
    body.truncate(KEPT_BODY);
    Ok((String::from_utf8_lossy(&body).into_owned(), truncated))
}

fn elapsed_ms(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use milvaion_worker::testing::Trial;
    use protocol::{message::StatusReport, status::OccurrenceStatus};
    use serde_json::{Value, json};
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    use super::*;

    /// Answers one request with `answer` and gives back what was asked.
    async fn server(answer: String) -> (String, tokio::task::JoinHandle<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = format!("http://{}/path?key=secret", listener.local_addr().expect("bound"));
        let asked = tokio::spawn(async move {
            let (mut socket, _) = listener.accept().await.expect("a request");
            let mut buffer = vec![0; 4096];
            let read = socket.read(&mut buffer).await.expect("readable");
            // The other side may have read enough and gone.
            let _ = socket.write_all(answer.as_bytes()).await;
            String::from_utf8_lossy(&buffer[..read]).into_owned()
        });
        (address, asked)
    }

    async fn call(input: Value) -> StatusReport {
        let job = HttpRequest::new().expect("a client");
        Trial::new(job, input).run().await.end().clone()
    }

    #[tokio::test]
    async fn an_answer_becomes_the_result() {
        let (url, asked) = server("HTTP/1.1 200 OK\r\nset-cookie: a=b\r\ncontent-length: 2\r\n\r\nhi".to_owned()).await;
        let end = call(json!({"url": url, "method": "POST", "headers": {"x-a": "1"}, "body": "text"})).await;
        assert_eq!(end.status, OccurrenceStatus::Completed, "{end:?}");
        let result: Value = serde_json::from_str(&end.result.expect("a result")).expect("JSON");
        assert_eq!(result["status"], 200);
        assert_eq!(result["body"], "hi");
        assert_eq!(result["truncated"], false);
        assert_eq!(result["headers"], json!({"content-length": "2"}));
        let asked = asked.await.expect("asked");
        assert!(
            asked.starts_with("POST /path?key=secret HTTP/1.1") && asked.contains("x-a: 1") && asked.ends_with("text"),
            "{asked}"
        );
    }

    #[tokio::test]
    async fn a_long_answer_is_cut() {
        let (url, _) = server(format!("HTTP/1.1 200 OK\r\ncontent-length: 20000\r\n\r\n{}", "y".repeat(20_000))).await;
        let end = call(json!({"url": url})).await;
        let result: Value = serde_json::from_str(&end.result.expect("a result")).expect("JSON");
        assert_eq!(result["body"].as_str().map(str::len), Some(KEPT_BODY));
        assert_eq!(result["truncated"], true);
    }

    #[tokio::test]
    async fn an_unexpected_status_is_a_failure_that_quotes_the_answer_but_not_the_query() {
        let answer = "HTTP/1.1 503 Unavailable\r\ncontent-length: 4\r\n\r\nbusy";
        let (url, _) = server(answer.to_owned()).await;
        let end = call(json!({"url": url})).await;
        assert_eq!(end.status, OccurrenceStatus::Failed);
        let exception = end.exception.expect("an exception");
        assert!(
            exception.contains("503") && exception.ends_with("busy") && !exception.contains("secret"),
            "{exception}"
        );
        let (url, _) = server(answer.to_owned()).await;
        assert_eq!(call(json!({"url": url, "expectedStatus": [503]})).await.status, OccurrenceStatus::Completed);
    }

    #[tokio::test]
    async fn silence_is_a_failure_in_time() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}/", listener.local_addr().expect("bound"));
        let end = call(json!({"url": url, "timeoutSeconds": 1})).await;
        assert!(end.exception.is_some_and(|text| text.contains("within 1 s")));
    }

    #[tokio::test]
    async fn wrong_input_names_the_field() {
        for (input, field) in [
            (json!({"url": "file:///etc/passwd"}), "`url`"),
            (json!({"url": "example.org"}), "`url`"),
            (json!({"url": "http://localhost", "timeoutSeconds": 0}), "`timeoutSeconds`"),
            (json!({"url": "http://localhost", "expectedStatus": [20]}), "`expectedStatus`"),
            (json!({"url": "http://localhost", "headers": {"a": "b\r\nc"}}), "`headers`"),
            (json!({"url": "http://localhost", "method": "get"}), "`method`"),
        ] {
            let end = call(input.clone()).await;
            assert!(end.exception.as_deref().is_some_and(|text| text.contains(field)), "{input}: {end:?}");
        }
    }
}
