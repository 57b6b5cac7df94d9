//! Sends spans to the receiver, in batches, by OTLP over HTTP.
//!
//! The SDK collects the spans on a thread of its own, which waits for each request. The request itself is made by the
//! program's HTTP client on its runtime, so that there is no second client with a second TLS library. Spans that cannot be
//! sent are dropped: traces are about the recent past, and a queue of them would grow while the receiver is away.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use async_trait::async_trait;
use http::{Request, Response};
use opentelemetry_http::{Bytes, HttpClient, HttpError};
use opentelemetry_otlp::{Protocol, SpanExporter as OtlpExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::{
    Resource,
    error::OTelSdkResult,
    trace::{BatchSpanProcessor, SdkTracerProvider, SpanData, SpanExporter},
};
use tokio::runtime::Handle;

use crate::{Endpoint, occurrences::SpanIds, settings::TraceSettings};

/// The largest answer of a receiver that is read.
const MAX_ANSWER_BYTES: usize = 64 * 1024;
/// The shortest time between two log lines about spans that could not be sent.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Builds the provider that sends spans to the receiver.
///
/// # Errors
///
/// Returns a sentence if a certificate cannot be read, or if the exporter refuses a setting.
pub(crate) fn provider(settings: &TraceSettings) -> Result<SdkTracerProvider, String> {
    let mut client = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).timeout(settings.timeout);
    for certificate in &settings.certificates {
        client = client.add_root_certificate(certificate.clone());
    }
    let client = client.build().map_err(|error| format!("The HTTP client of the traces cannot be built: {error}."))?;
    let exporter = OtlpExporter::builder()
        .with_http()
        .with_protocol(Protocol::HttpBinary)
        // It is complete, so that the library adds no path.
        .with_endpoint(settings.endpoint.as_ref())
        .with_timeout(settings.timeout)
        .with_http_client(RuntimeClient { client, runtime: Handle::current() })
        .build()
        .map_err(|error| format!("OTEL_EXPORTER_OTLP_ENDPOINT or a variable beside it is invalid: {error}."))?;
    let exporter = LoggingExporter { exporter, endpoint: settings.endpoint.clone(), failing: Arc::default() };
    let mut resource = Resource::builder();
    if let Some(name) = settings.default_service_name {
        resource = resource.with_service_name(name);
    }
    let version = opentelemetry::KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
    Ok(SdkTracerProvider::builder()
        .with_span_processor(BatchSpanProcessor::builder(exporter).build())
        .with_sampler(settings.sampler.clone())
        .with_id_generator(SpanIds::default())
        .with_resource(resource.with_attribute(version).build())
        .build())
}

/// An HTTP client for a thread that is not one of the runtime's.
#[derive(Debug)]
struct RuntimeClient {
    client: reqwest::Client,
    runtime: Handle,
}

#[async_trait]
impl HttpClient for RuntimeClient {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let client = self.client.clone();
        let answer = self.runtime.spawn(async move {
            let mut answer = client.execute(request.try_into()?).await?;
            let mut body = Vec::new();
            while let Some(chunk) = answer.chunk().await? {
                if body.len() + chunk.len() > MAX_ANSWER_BYTES {
                    return Err(format!("the answer has more than {MAX_ANSWER_BYTES} bytes").into());
                }
                body.extend_from_slice(&chunk);
            }
            let mut response = Response::new(Bytes::from(body));
            *response.status_mut() = answer.status();
            *response.headers_mut() = std::mem::take(answer.headers_mut());
            Ok::<_, HttpError>(response)
        });
        answer.await?
    }
}

/// An exporter that logs when spans cannot be sent, and when they can be sent again.
struct LoggingExporter {
    exporter: OtlpExporter,
    endpoint: Endpoint,
    /// The failures since the last success.
    failing: Arc<Mutex<Option<ExportFailures>>>,
}

/// Failures in a row.
#[derive(Debug)]
struct ExportFailures {
    spans: usize,
    logged_at: Instant,
}

impl fmt::Debug for LoggingExporter {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("LoggingExporter").field("endpoint", &self.endpoint).finish_non_exhaustive()
    }
}

impl LoggingExporter {
    fn note(&self, spans: usize, result: &OTelSdkResult) {
        let mut failing = self.failing.lock().unwrap_or_else(PoisonError::into_inner);
        let error = match result {
            Ok(()) => {
                if let Some(failures) = failing.take() {
                    tracing::info!(
                        spans.lost = failures.spans,
                        "traces are sent to {} again; {} spans were lost",
                        self.endpoint,
                        failures.spans
                    );
                }
                return;
            }
            Err(error) => error,
        };
        let lost = failing.as_ref().map_or(0, |failures| failures.spans) + spans;
        let is_logged = failing.as_ref().is_none_or(|failures| failures.logged_at.elapsed() >= LOG_INTERVAL);
        if is_logged {
            tracing::warn!(
                spans.lost = lost,
                error = %error,
                "traces cannot be sent to {}; check OTEL_EXPORTER_OTLP_ENDPOINT and the receiver",
                self.endpoint
            );
        }
        let logged_at = match (&*failing, is_logged) {
            (Some(failures), false) => failures.logged_at,
            _ => Instant::now(),
        };
        *failing = Some(ExportFailures { spans: lost, logged_at });
    }
}

impl SpanExporter for LoggingExporter {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let spans = batch.len();
        let result = self.exporter.export(batch).await;
        self.note(spans, &result);
        result
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.exporter.force_flush()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}
