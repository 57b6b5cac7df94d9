//! The settings of traces: the standard variables of OpenTelemetry.
//!
//! The libraries read most of them too, but take a default where a value is invalid, and report that in a log that is off.
//! All of them are therefore checked at the start; each error is a sentence that names the
//! variable and the remedy.

use std::{env, fs, str::FromStr, time::Duration};

use http::{HeaderName, HeaderValue};
use reqwest::Certificate;
use url::Url;

use crate::{Endpoint, TraceSampler};

/// The path of traces below the address of a receiver.
const TRACES_PATH: &str = "v1/traces";
/// The default of `OTEL_EXPORTER_OTLP_TIMEOUT`, in milliseconds.
const DEFAULT_TIMEOUT_MS: u64 = 10_000;
/// The variables with whole numbers that the SDK reads, with their bounds.
const NUMBERS: [(&str, u64, u64); 8] = [
    ("OTEL_BSP_SCHEDULE_DELAY", 1, 3_600_000),
    ("OTEL_BSP_EXPORT_TIMEOUT", 1, 3_600_000),
    ("OTEL_BSP_MAX_QUEUE_SIZE", 1, 1_000_000),
    ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", 1, 1_000_000),
    ("OTEL_BSP_MAX_CONCURRENT_EXPORTS", 1, 64),
    ("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", 1, 10_000),
    ("OTEL_SPAN_EVENT_COUNT_LIMIT", 0, 10_000),
    ("OTEL_SPAN_LINK_COUNT_LIMIT", 0, 10_000),
];
/// The default of `OTEL_BSP_MAX_QUEUE_SIZE`.
const DEFAULT_QUEUE_SIZE: u64 = 2_048;

/// The settings of the traces that a program sends.
#[derive(Clone, Debug)]
pub struct TraceSettings {
    /// The address to which spans are sent, for log lines.
    pub(crate) endpoint: Endpoint,
    /// The decision which traces are recorded.
    pub(crate) sampler: TraceSampler,
    /// The longest time for one request.
    pub(crate) timeout: Duration,
    /// The certificates of authorities that the receiver's certificate may come from.
    pub(crate) certificates: Vec<Certificate>,
    /// The name of the service, unless a variable sets it.
    pub(crate) default_service_name: Option<&'static str>,
}

impl TraceSettings {
    /// Reads the settings from the environment. Returns `None` if no traces are sent.
    ///
    /// # Errors
    ///
    /// Returns one sentence for each variable with an invalid value.
    pub fn from_env(service_name: &'static str) -> Result<Option<Self>, Vec<String>> {
        Self::read(service_name, &|name| env::var_os(name).map(|value| value.to_string_lossy().into_owned()))
    }

    /// Reads the settings from variables.
    ///
    /// # Errors
    ///
    /// Returns one sentence for each variable with an invalid value.
    pub fn read(
        service_name: &'static str,
        variable: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Option<Self>, Vec<String>> {
        let mut read = VariableReader { variable, errors: Vec::new() };
        let settings = read.settings(service_name);
        if read.errors.is_empty() { Ok(settings) } else { Err(read.errors) }
    }
}

struct VariableReader<'a> {
    variable: &'a dyn Fn(&str) -> Option<String>,
    errors: Vec<String>,
}

impl VariableReader<'_> {
    /// Returns the trimmed value of a variable; `None` if it is unset or empty.
    fn text(&self, name: &str) -> Option<String> {
        (self.variable)(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty())
    }

    /// Returns the first of the variables that is set: the one about traces comes before the one about all signals.
    fn first<'n>(&self, names: [&'n str; 2]) -> Option<(&'n str, String)> {
        names.into_iter().find_map(|name| Some((name, self.text(name)?)))
    }

    fn refuse(&mut self, name: &str, remedy: &str) {
        self.errors.push(format!("{name} is invalid: {remedy}."));
    }

    fn settings(&mut self, service_name: &'static str) -> Option<TraceSettings> {
        let (endpoint_name, endpoint) =
            self.first(["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"])?;
        match self.text("OTEL_SDK_DISABLED").map(|value| value.to_lowercase()).as_deref() {
            Some("true") => return None,
            None | Some("false") => {}
            Some(_) => self.refuse("OTEL_SDK_DISABLED", "set it to true or false"),
        }
        match self.text("OTEL_TRACES_EXPORTER").as_deref() {
            Some("none") => return None,
            None | Some("otlp") => {}
            Some(other) => {
                let remedy = format!("set it to otlp or none; {other:?} is not supported");
                self.refuse("OTEL_TRACES_EXPORTER", &remedy);
            }
        }
        let endpoint = match receiver(&endpoint, endpoint_name == "OTEL_EXPORTER_OTLP_ENDPOINT") {
            Ok(endpoint) => endpoint,
            Err(remedy) => {
                self.refuse(endpoint_name, &remedy);
                String::new()
            }
        };
        self.check_protocol();
        self.check_lists();
        self.check_numbers();
        let timeout = self.timeout();
        let sampler = self.sampler();
        let certificates = self.certificates();
        let has_name = self.text("OTEL_SERVICE_NAME").is_some()
            || self.text("OTEL_RESOURCE_ATTRIBUTES").is_some_and(|pairs| {
                pairs.split(',').any(|pair| pair.split('=').next().is_some_and(|key| key.trim() == "service.name"))
            });
        Some(TraceSettings {
            endpoint: endpoint.into(),
            sampler,
            timeout,
            certificates,
            default_service_name: (!has_name).then_some(service_name),
        })
    }

    fn check_protocol(&mut self) {
        let protocol = self.first(["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"]);
        if let Some((name, value)) = protocol.filter(|(_, value)| value != "http/protobuf") {
            self.refuse(name, &format!("set it to http/protobuf or leave it unset; {value:?} is not supported"));
        }
        let compression = self.first(["OTEL_EXPORTER_OTLP_TRACES_COMPRESSION", "OTEL_EXPORTER_OTLP_COMPRESSION"]);
        if let Some((name, value)) = compression.filter(|(_, value)| value != "gzip") {
            self.refuse(name, &format!("set it to gzip or leave it unset; {value:?} is not supported"));
        }
    }

    fn check_lists(&mut self) {
        let is_header = |key: &str, value: &str| {
            HeaderName::from_str(key).is_ok() && HeaderValue::from_str(value).is_ok() && !value.is_empty()
        };
        if let Some((name, pairs)) = self.first(["OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS"])
            && !is_list(&pairs, is_header)
        {
            // The value is not shown: it often contains a password.
            self.refuse(name, "give headers as name=value, separated by commas");
        }
        if let Some(pairs) = self.text("OTEL_RESOURCE_ATTRIBUTES")
            && !is_list(&pairs, |key, _| !key.is_empty())
        {
            self.refuse("OTEL_RESOURCE_ATTRIBUTES", "give attributes as key=value, separated by commas");
        }
    }

    fn check_numbers(&mut self) {
        for (name, low, high) in NUMBERS {
            self.number(name, low, high);
        }
        let queue = self.text("OTEL_BSP_MAX_QUEUE_SIZE").and_then(|text| text.parse().ok());
        let batch = self.text("OTEL_BSP_MAX_EXPORT_BATCH_SIZE").and_then(|text| text.parse::<u64>().ok());
        let queue = queue.unwrap_or(DEFAULT_QUEUE_SIZE);
        if batch.is_some_and(|batch| batch > queue) {
            self.refuse(
                "OTEL_BSP_MAX_EXPORT_BATCH_SIZE",
                &format!("it must not be greater than OTEL_BSP_MAX_QUEUE_SIZE, which is {queue}"),
            );
        }
    }

    fn number(&mut self, name: &str, low: u64, high: u64) -> Option<u64> {
        let text = self.text(name)?;
        let number = text.parse().ok().filter(|number| (low..=high).contains(number));
        if number.is_none() {
            self.refuse(name, &format!("give a whole number from {low} to {high}, not {text:?}"));
        }
        number
    }

    fn timeout(&mut self) -> Duration {
        let name = self.first(["OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT"]);
        let millis = name.and_then(|(name, _)| self.number(name, 1, 3_600_000));
        Duration::from_millis(millis.unwrap_or(DEFAULT_TIMEOUT_MS))
    }

    fn sampler(&mut self) -> TraceSampler {
        let name = self.text("OTEL_TRACES_SAMPLER").unwrap_or_else(|| "parentbased_always_on".to_owned());
        let root = name.strip_prefix("parentbased_");
        let share = match root.unwrap_or(&name) {
            "always_on" => 1.0,
            "always_off" => 0.0,
            "traceidratio" => self.share(),
            _ => {
                let remedy = "set it to always_on, always_off or traceidratio, or to one of them after parentbased_";
                self.refuse("OTEL_TRACES_SAMPLER", &format!("{remedy}, not {name:?}"));
                1.0
            }
        };
        TraceSampler::share(share, root.is_some())
    }

    /// Returns the argument of a sampler that records a share of all traces; all without one.
    fn share(&mut self) -> f64 {
        let Some(text) = self.text("OTEL_TRACES_SAMPLER_ARG") else { return 1.0 };
        match text.parse::<f64>() {
            Ok(share) if (0.0..=1.0).contains(&share) => share,
            _ => {
                self.refuse("OTEL_TRACES_SAMPLER_ARG", &format!("give a number from 0 to 1, not {text:?}"));
                1.0
            }
        }
    }

    fn certificates(&mut self) -> Vec<Certificate> {
        let file = self.first(["OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE", "OTEL_EXPORTER_OTLP_CERTIFICATE"]);
        let Some((name, path)) = file else { return Vec::new() };
        let read = fs::read(&path).map_err(|error| error.to_string());
        match read.and_then(|pem| Certificate::from_pem_bundle(&pem).map_err(|error| error.to_string())) {
            Ok(certificates) => certificates,
            Err(error) => {
                self.refuse(name, &format!("give the path of a file with certificates as PEM; {path:?}: {error}"));
                Vec::new()
            }
        }
    }
}

/// Returns the address to which spans are sent. `is_base` if the path of traces is below the given address.
fn receiver(text: &str, is_base: bool) -> Result<String, String> {
    let example = "give a URL such as http://localhost:4318";
    let url = Url::parse(text).map_err(|error| format!("{example}; {error}"))?;
    if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
        return Err(format!("it must start with http:// or https://; {example}"));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err("put credentials into OTEL_EXPORTER_OTLP_HEADERS and not into the URL".to_owned());
    }
    Ok(if is_base { format!("{}/{TRACES_PATH}", text.trim_end_matches('/')) } else { text.to_owned() })
}

/// Returns true if a text is a list of pairs that `is_pair` accepts.
fn is_list(text: &str, is_pair: impl Fn(&str, &str) -> bool) -> bool {
    let pairs = text.split(',').map(str::trim).filter(|pair| !pair.is_empty());
    pairs
        .map(|pair| pair.split_once('='))
        .all(|pair| pair.is_some_and(|(key, value)| is_pair(key.trim(), value.trim())))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENDPOINT: (&str, &str) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://localhost:4318/");

    fn read(variables: &[(&str, &str)]) -> Result<Option<TraceSettings>, Vec<String>> {
        TraceSettings::read("milvaion", &|name| {
            variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        })
    }

    fn settings(variables: &[(&str, &str)]) -> TraceSettings {
        let variables = [&[ENDPOINT], variables].concat();
        read(&variables).expect("valid").expect("a receiver")
    }

    #[test]
    fn nothing_is_sent_without_an_endpoint_or_against_a_wish() {
        assert!(read(&[]).expect("valid").is_none());
        assert!(read(&[("OTEL_TRACES_SAMPLER", "wrong")]).expect("not read").is_none());
        for wish in [("OTEL_SDK_DISABLED", "TRUE"), ("OTEL_TRACES_EXPORTER", "none")] {
            assert!(read(&[ENDPOINT, wish]).expect("valid").is_none(), "{wish:?}");
        }
    }

    #[test]
    fn variables_about_traces_come_first() {
        assert_eq!(&*settings(&[]).endpoint, "http://localhost:4318/v1/traces");
        let own = settings(&[
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "https://traces.example.org/in"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "1"),
            ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "2500"),
        ]);
        assert_eq!((&*own.endpoint, own.timeout.as_millis()), ("https://traces.example.org/in", 2_500));
    }

    #[test]
    fn sampler_and_service_name_follow_the_variables() {
        assert_eq!(settings(&[]).sampler, TraceSampler::share(1.0, true));
        for (name, sampler) in [
            ("always_off", TraceSampler::share(0.0, false)),
            ("traceidratio", TraceSampler::share(0.25, false)),
            ("parentbased_traceidratio", TraceSampler::share(0.25, true)),
        ] {
            let argument = ("OTEL_TRACES_SAMPLER_ARG", "0.25");
            assert_eq!(settings(&[("OTEL_TRACES_SAMPLER", name), argument]).sampler, sampler, "{name}");
        }
        assert_eq!(settings(&[]).default_service_name, Some("milvaion"));
        for named in [("OTEL_SERVICE_NAME", "jobs"), ("OTEL_RESOURCE_ATTRIBUTES", "a=b, service.name=jobs")] {
            assert_eq!(settings(&[named]).default_service_name, None, "{named:?}");
        }
    }

    #[test]
    fn error_names_the_variable_and_no_secret() {
        for wrong in [
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "localhost:4318"),
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://ana:hunter2@localhost"),
            ("OTEL_SDK_DISABLED", "maybe"),
            ("OTEL_TRACES_EXPORTER", "zipkin"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
            ("OTEL_EXPORTER_OTLP_COMPRESSION", "zstd"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "hunter2"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "ten"),
            ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/nowhere/ca.pem"),
            ("OTEL_RESOURCE_ATTRIBUTES", "=x"),
            ("OTEL_TRACES_SAMPLER", "jaeger_remote"),
            ("OTEL_BSP_SCHEDULE_DELAY", "0"),
            ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "2049"),
        ] {
            let errors = read(&[ENDPOINT, wrong]).expect_err(wrong.0);
            assert_eq!(errors.len(), 1, "{errors:?}");
            assert!(errors[0].starts_with(&format!("{} is invalid: ", wrong.0)), "{errors:?}");
            assert!(!errors[0].contains("hunter2"), "{errors:?}");
        }
        let share = [ENDPOINT, ("OTEL_TRACES_SAMPLER", "traceidratio"), ("OTEL_TRACES_SAMPLER_ARG", "2")];
        assert!(read(&share).expect_err("too large")[0].starts_with("OTEL_TRACES_SAMPLER_ARG is invalid"));
    }
}
