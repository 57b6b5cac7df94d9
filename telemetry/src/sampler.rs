//! The decision which traces are recorded.
//!
//! The samplers are those of the standard variable `OTEL_TRACES_SAMPLER`. The one of the SDK for a share of all traces
//! is not used: it compares bits of the trace id that are constant in the id of an occurrence, and would record all
//! occurrences or none. This one compares the last 56 bits, which the standard demands to be random, as its successors
//! do: a trace is recorded if they are at least as large as a threshold. Every server decides alike, without a look-up.

use milvaion_protocol::trace::Traceparent;
use opentelemetry::{
    Context, KeyValue,
    trace::{Link, SpanKind, TraceContextExt, TraceId},
};
use opentelemetry_sdk::trace::{SamplingDecision, SamplingResult, ShouldSample};

/// The number of values of the random part of a trace id.
const RANDOM_VALUES: u64 = 1 << 56;

/// A sampler of traces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceSampler {
    /// The random part from which on a trace is recorded.
    threshold: u64,
    /// True if the decision about the trace that a span continues is kept.
    follows_parent: bool,
}

impl TraceSampler {
    /// Returns the sampler that records a share of all traces, from 0 to 1.
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "the product is from 0 to 2 to the 56th"
    )]
    pub fn share(share: f64, follows_parent: bool) -> Self {
        let kept = (share.clamp(0.0, 1.0) * RANDOM_VALUES as f64) as u64;
        Self { threshold: RANDOM_VALUES - kept, follows_parent }
    }

    /// Returns true if a trace that no process has decided about is recorded.
    #[must_use]
    pub fn records(&self, trace_id: [u8; 16]) -> bool {
        let random = trace_id[9..].iter().fold(0, |value, byte| value << 8 | u64::from(*byte));
        random >= self.threshold
    }

    /// Returns true if a span that continues a trace is recorded.
    #[must_use]
    pub fn continues(&self, parent: &Traceparent) -> bool {
        if self.follows_parent { parent.is_sampled() } else { self.records(parent.trace_id()) }
    }
}

impl ShouldSample for TraceSampler {
    fn should_sample(
        &self,
        parent_context: Option<&Context>,
        trace_id: TraceId,
        _name: &str,
        _span_kind: &SpanKind,
        _attributes: &[KeyValue],
        _links: &[Link],
    ) -> SamplingResult {
        let parent = parent_context.and_then(|context| crate::position(context.span().span_context()));
        let is_recorded = match parent {
            Some(parent) => self.continues(&parent),
            None => self.records(trace_id.to_bytes()),
        };
        SamplingResult {
            decision: if is_recorded { SamplingDecision::RecordAndSample } else { SamplingDecision::Drop },
            attributes: Vec::new(),
            trace_state: Default::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use milvaion_protocol::id::OccurrenceId;

    use super::*;

    fn own(random: [u8; 10]) -> Traceparent {
        let id = OccurrenceId::from_parts("2026-11-25T12:00:00Z".parse().expect("an instant"), random);
        Traceparent::of_occurrence(id, false).expect("an id")
    }

    #[test]
    fn share_of_the_occurrences_is_recorded() {
        for (share, expected) in [(0.0, 0), (0.25, 64), (0.5, 128), (1.0, 256)] {
            let sampler = TraceSampler::share(share, true);
            let recorded = (0..=u8::MAX).filter(|byte| {
                let random = [0, 0, 0, *byte, 0, 0, 0, 0, 0, 0];
                sampler.records(own(random).trace_id())
            });
            assert_eq!(recorded.count(), expected, "a share of {share}");
        }
    }

    #[test]
    fn decision_of_the_parent_is_kept_if_that_is_wanted() {
        let (unsampled, none, all) = (own([255; 10]), 0.0, 1.0);
        let sampled = Traceparent::new(unsampled.trace_id(), unsampled.span_id(), true).expect("not zero");
        assert!(TraceSampler::share(none, true).continues(&sampled));
        assert!(!TraceSampler::share(all, true).continues(&unsampled));
        assert!(!TraceSampler::share(none, false).continues(&sampled));
        assert!(TraceSampler::share(all, false).continues(&unsampled));
    }
}
