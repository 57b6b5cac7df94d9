//! Faults that an older scheduler of the same design had, each with a test that shows that it does not exist here.
//!
//! The list was made by reading that scheduler. A fault that the test of another module covers is not tested twice. Faults
//! for which a service must be killed are in scenarios of `make chaos`; `make test` kills RabbitMQ and PostgreSQL in the
//! scenario `everyday_faults`:
//!
//! | fault of the older scheduler | test or scenario |
//! |------|------|
//! | runs are lost, or fail in masses, while the broker is away | scenarios `everyday_faults` and `rabbitmq_killed`, `recovery::unconfirmed_message_is_sent_again_at_once` |
//! | row, message and schedule are written one after the other | `recovery::killed_server_loses_and_duplicates_nothing` |
//! | an unroutable message is lost | `lost_messages::unroutable_message_is_sent_again`, `lost_runs::heartbeats::deleted_queue_loses_no_occurrence` |
//! | a restart of the broker loses final reports | scenarios `everyday_faults` and `rabbitmq_killed`, `exhaustive::outages::broker::reports_survive_a_broker_crash` |
//! | reports are acknowledged before they are stored | scenarios `everyday_faults` and `postgres_killed` |
//! | dead letters are ignored, or redelivered for ever | `failures::dead_letters::dead_letters_fail_occurrences_or_are_stored` |
//! | consumers stop for good | scenarios `everyday_faults` and `rabbitmq_killed` |
//! | a queued occurrence cannot be cancelled | `manual_run::queued_occurrence_is_cancelled_at_once` |
//! | a lost run is marked and not run again | `lost_runs::detection::lost_run_is_requeued_within_twenty_seconds` |
//! | a restart creates occurrences a second time | `duplicates::stale_redis_index_creates_no_duplicates` |
//! | two servers dispatch from an outdated list | `dispatch::two_dispatchers_create_each_run_once` |
//! | a crash between message and schedule creates duplicates | `duplicates::crash_before_the_redis_update_creates_no_duplicates` |
//! | the overlap policy has gaps | `engine::overlap::skip_holds_at_every_moment` |
//! | a final status is overwritten or undone | `status::late_start_does_not_reopen_an_ended_run` |
//! | enabling a job starts it at once | `engine::misfires::resumed_job_catches_nothing_up` |
//! | one bad row fails its whole batch, or messages have no rows | `duplicates::deleted_job_does_not_affect_its_batch`, `duplicates::rejected_batch_is_due_again` |
//! | jobs of an absent worker delay all others | `starvation::absent_workers_jobs_delay_no_others` |
//! | more instances run no more | `starvation::exhaustive::two_instances_double_the_concurrency`, and of the worker `duplicates::delivery_returned_by_a_busy_instance_runs_later` |
//! | the cluster pause and live events reach one server only | `cluster_pause::cluster_pause_is_recorded_and_announced`, `journey::events_of_one_server_reach_and_resume_at_another` |
//! | counters drift | `tables::occurrence_is_in_one_table_at_every_snapshot`, `status::statistics_count_each_status_once` |

mod duplicates;
mod lost_messages;
mod starvation;
