//! What schedulers of this kind have got wrong before, each as a test that says it does not happen here.
//!
//! The numbers are those of a list of weak spots that was made by reading an older scheduler of the same design; they
//! keep a mended spot findable. A spot that another file shows already is not shown twice:
//!
//! | spot | what went wrong there                                  | shown by |
//! |------|--------------------------------------------------------|----------|
//! | 1    | broker away at dispatch: runs lost, or storms of Failed | `lost_messages::mv01_…`, and `outages/broker.rs` |
//! | 2    | row, message and clock written one after the other     | `recovery.rs`: `mv02_…` |
//! | 3    | a message that no queue takes is gone                  | `lost_messages::mv03_…`, and `lost_runs/heartbeats.rs`: a deleted queue |
//! | 4    | a restart of the broker drops how runs ended            | `outages/broker.rs`: `mv04_…` |
//! | 5    | reports acknowledged before they are stored            | `outages/database.rs`: `mv05_…` |
//! | 9    | dead letters that are forgotten, or come for ever      | `failures/dead_letters.rs`: `mv09_…` |
//! | 11   | consumers that give up for good                        | `outages/broker.rs`: `mv11_…` |
//! | 12   | what is queued cannot be cancelled                     | `manual_run.rs`: `mv12_…` |
//! | 13   | a lost run is marked and not run again                 | `lost_runs/detection.rs`: `mv13_…` |
//! | 14   | a restart fires again what was fired                   | `duplicates::mv14_…` |
//! | 15   | two servers dispatch from an old list                  | `dispatch.rs`: `mv15_…` |
//! | 16   | a crash between message and clock fires again          | `duplicates::mv16_…` |
//! | 18   | the overlap rule has windows                           | `overlaps::mv18_…` |
//! | 21   | an end is overwritten, or undone                       | `status.rs`: `mv21_…` |
//! | 22   | enabling fires at once                                 | `engine/misfires.rs`: `mv22_…` |
//! | 22a  | one bad row spoils the batch, or messages without rows | `duplicates::mv22a_…` |
//! | 23   | jobs of an absent worker stand in everybody's way      | `starvation::mv23_…` |
//! | 24   | more instances do not run more                         | `starvation::mv24_…` |
//! | 28   | the emergency stop, and what pages hear, end at one server | `cluster::mv28_…` |
//! | 29   | counters drift                                         | `cluster::mv29_…`, and `status.rs`: `mv29_…` |

mod cluster;
mod duplicates;
mod harness;
mod lost_messages;
mod overlaps;
mod starvation;
