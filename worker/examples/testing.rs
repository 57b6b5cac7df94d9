//! Tests of jobs without services: `cargo test -p milvaion-worker --example testing`.
use milvaion_worker::{JobContext, JobError, Worker, WorkerError};

#[derive(serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
struct Order {
    /// The number of the order.
    number: u32,
}

async fn ship(ctx: JobContext, order: Order) -> Result<String, JobError> {
    if order.number == 0 {
        return Err(JobError::permanent("Order 0 does not exist."));
    }
    let invoice = ctx.occurrence_of_type("invoice", order.number);
    ctx.enqueue(invoice).await?;
    Ok(format!("order {} in attempt {}", order.number, ctx.attempt()))
}

async fn invoice(_: JobContext, order: u32) -> Result<String, JobError> {
    Ok(format!("invoice for order {order}"))
}

#[tokio::main]
async fn main() -> Result<(), WorkerError> {
    Worker::from_env()?.job_fn("ship", ship).job_fn("invoice", invoice).run().await
}

#[cfg(test)]
mod tests {
    use milvaion_worker::{
        OccurrenceStatus,
        client::RecordingClient,
        testing::{TestContext, TestRun},
    };

    use super::*;

    #[tokio::test]
    async fn shipped_order_is_invoiced() {
        let recording = RecordingClient::new();
        let context = TestContext::new().attempt(2).retries(1, 3).client(&recording);
        let report = TestRun::of("ship", ship, Order { number: 7 }).context(context).run().await;
        assert_eq!(report.output::<String>(), "order 7 in attempt 2");
        assert_eq!(recording.assert_enqueued_type("test", "invoice").input, Some(7.into()));
    }

    #[tokio::test]
    async fn unknown_order_is_not_retried() {
        let report = TestRun::of("ship", ship, Order { number: 0 }).run().await;
        assert_eq!((report.status(), report.end().permanent), (OccurrenceStatus::Failed, true));
    }
}
