//! The two text formats of a scrape.
//!
//! The metrics are formatted as OpenMetrics, which has exemplars. A client that does not ask for it gets the older format of
//! Prometheus, made from the same text: there, a counter is declared with its `_total`, and exemplars, units and the end of
//! the text do not exist.

use std::collections::HashMap;

use http::{HeaderMap, HeaderValue, header};

/// The content type of OpenMetrics.
pub const OPEN_METRICS: HeaderValue =
    HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");
/// The content type of the older format of Prometheus.
pub const PLAIN: HeaderValue = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");

/// Returns true if a client accepts OpenMetrics.
#[must_use]
pub fn accepts_open_metrics(headers: &HeaderMap) -> bool {
    let mut accepted = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    accepted.any(|value| value.contains("application/openmetrics-text"))
}

/// Converts OpenMetrics text to the older format of Prometheus.
#[must_use]
pub fn plain(open_metrics: &str) -> String {
    let kinds: HashMap<&str, &str> =
        open_metrics.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' ')).collect();
    let declared = |name: &str| match kinds.get(name) {
        Some(&"counter") => format!("{name}_total"),
        Some(&"info") => format!("{name}_info"),
        _ => name.to_owned(),
    };
    let mut plain = String::with_capacity(open_metrics.len());
    for line in open_metrics.lines() {
        if line == "# EOF" || line.starts_with("# UNIT ") {
            continue;
        }
        if let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')) {
            plain.push_str(&format!("# HELP {} {help}", declared(name)));
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            let kind = if kind == "info" { "gauge" } else { kind };
            plain.push_str(&format!("# TYPE {} {kind}", declared(name)));
        } else {
            plain.push_str(without_exemplar(line));
        }
        plain.push('\n');
    }
    plain
}

/// Returns a sample without its exemplar. The values of its labels may contain anything, in quotation marks.
fn without_exemplar(sample: &str) -> &str {
    let (mut is_quoted, mut is_escaped) = (false, false);
    for (at, byte) in sample.bytes().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_quoted => is_escaped = true,
            b'"' => is_quoted = !is_quoted,
            b'#' if !is_quoted => return sample[..at].trim_end(),
            _ => {}
        }
    }
    sample
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_text_has_no_exemplars_and_full_names() {
        let open = "# HELP x_requests Requests.\n# TYPE x_requests counter\nx_requests_total{a=\"\\\" # {b\"} 1 # {trace_id=\"0\"} 1.0\n\
                    # HELP x_run_seconds Runs.\n# TYPE x_run_seconds histogram\n# UNIT x_run_seconds seconds\nx_run_seconds_sum 1.5\n\
                    # HELP x_build Version.\n# TYPE x_build info\nx_build_info{version=\"1\"} 1\n# EOF\n";
        let expected = "# HELP x_requests_total Requests.\n# TYPE x_requests_total counter\nx_requests_total{a=\"\\\" # {b\"} 1\n\
                        # HELP x_run_seconds Runs.\n# TYPE x_run_seconds histogram\nx_run_seconds_sum 1.5\n\
                        # HELP x_build_info Version.\n# TYPE x_build_info gauge\nx_build_info{version=\"1\"} 1\n";
        assert_eq!(plain(open), expected);
    }
}
