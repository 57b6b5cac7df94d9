//! Faults that an older scheduler of the same design had, each with a test that shows that it does not exist here.
//!
//! The list was made by reading that scheduler. A fault that the test of another module covers is not tested twice:
//!
//! | fault of the older scheduler | test |
//! |------|------|
//! | runs are lost, or fail in masses, while the broker is away | `lost_messages::due_jobs_survive_a_broker_outage`, `outages::broker` |
//! | row, message and schedule are written one after the other | `recovery::killed_server_loses_and_duplicates_nothing` |
//! | an unroutable message is lost | `lost_messages::unroutable_message_is_sent_again`, `lost_runs::heartbeats::deleted_queue_loses_no_occurrence` |
//! | a restart of the broker loses final reports | `outages::broker::broker_outages_lose_no_occurrence` |
//! | reports are acknowledged before they are stored | `outages::database::postgresql_crash_duplicates_nothing` |
//! | dead letters are ignored, or redelivered for ever | `failures::dead_letters::dead_letters_fail_occurrences_or_are_stored` |
//! | consumers stop for good | `outages::broker::broker_outages_lose_no_occurrence` |
//! | a queued occurrence cannot be cancelled | `manual_run::queued_occurrence_is_cancelled_at_once` |
//! | a lost run is marked and not run again | `lost_runs::detection::lost_run_is_requeued_within_twenty_seconds` |
//! | a restart creates occurrences a second time | `duplicates::stale_redis_index_creates_no_duplicates` |
//! | two servers dispatch from an outdated list | `dispatch::two_dispatchers_create_each_run_once` |
//! | a crash between message and schedule creates duplicates | `duplicates::crash_before_the_redis_update_creates_no_duplicates` |
//! | the overlap policy has gaps | `overlaps` |
//! | a final status is overwritten or undone | `status::late_start_does_not_reopen_an_ended_run` |
//! | enabling a job starts it at once | `engine::misfires::resumed_job_catches_nothing_up` |
//! | one bad row fails its whole batch, or messages have no rows | `duplicates::deleted_job_does_not_affect_its_batch`, `duplicates::rejected_batch_is_due_again` |
//! | jobs of an absent worker delay all others | `starvation::absent_workers_jobs_delay_no_others` |
//! | more instances run no more | `starvation::two_instances_double_the_concurrency` |
//! | the cluster pause and live events reach one server only | `cluster::cluster_pause_stops_every_server`, `cluster::live_events_reach_other_servers` |
//! | counters drift | `cluster::statistics_match_the_rows`, `status::statistics_count_each_status_once` |

mod cluster;
mod duplicates;
mod lost_messages;
mod overlaps;
mod starvation;
