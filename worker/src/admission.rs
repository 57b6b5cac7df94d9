//! From a delivery to the leave to start it.
//!
//! What may be a second copy is asked about at the server. Then a delivery waits here for a place and for an outbox that
//! can be written, and nowhere else, and is claimed. Whoever may not start it says what becomes of its
//! message instead:
//!
//! | What is found | What follows |
//! |---|---|
//! | the claim is free, or of an earlier attempt | it runs |
//! | somebody wished it to end | it is reported as cancelled |
//! | another instance has claimed this attempt, and lives | a copy: acknowledged |
//! | another instance has claimed this attempt, and does not renew it | it is waited for; then it is reported as lost |
//! | this attempt has ended, or a later one was claimed | a copy: acknowledged |
//! | perhaps a copy, and Redis or the server does not answer | handed back |
//! | no copy, and Redis does not answer | the server is asked, for a second at most: what it denies is dropped, everything else runs |
//!
//! The fourth row is what keeps an attempt from being started twice by a worker that dies in a run's first
//! milliseconds. Whether such a run began is known to nobody: its process is gone, its report never left. To start the
//! same attempt again would be a second start that no fence can tell from the first; so the attempt is given up, and the
//! server decides, as about every lost run, whether another follows.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use milvaion_protocol::{
    message::{Denial, JobMessage},
    topology::MAX_PRIORITY,
};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::{
    cancel_request::Wish,
    claim::{Answer, Attempt},
    clerk::Clerk,
    faults,
    inquiry::Inquiry,
    outbox::Gate,
    places::{Place, Places},
    recent::Recent,
    vitals::Vitals,
};

/// How long a delivery waits for a place here before it is handed back. Runs may take hours, and another instance may have
/// a place; if none has, it comes back at once and waits again, which costs a message each time.
const TURN: Duration = Duration::from_secs(2);
/// How long a delivery stays away after it was handed back because nobody could say whether it is a copy.
const PAUSE: Duration = Duration::from_secs(1);
/// How often a copy looks whether the holder of its claim is alive.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// How long a server may take that was asked when the worker stops.
const LAST_ANSWER: Duration = Duration::from_secs(2);
/// How long a first copy waits for the server's word in place of Redis's.
const SECOND_OPINION: Duration = Duration::from_secs(1);
/// How long nobody is asked for a second opinion after there was none.
const UNASKED: Duration = Duration::from_secs(10);
/// How soon what was sent back for want of a place comes back as what it was. The broker puts it where it had been and
/// gives it to whoever has room, which takes milliseconds; what stays away for longer may have begun elsewhere.
const RETURN: Duration = Duration::from_secs(5);
/// How long the server's leave for a copy holds while it waits for a place.
const LEAVE: Duration = Duration::from_secs(5);

/// Whom a delivery has to pass.
pub(crate) struct Admission {
    /// In the order of the job types.
    pub(crate) places: Places,
    /// Shut while a run could not be remembered.
    pub(crate) outbox: Gate,
    pub(crate) clerk: Clerk,
    pub(crate) inquiry: Inquiry,
    pub(crate) vitals: Vitals,
    pub(crate) stop: CancellationToken,
    /// What was sent back, and until when the server is not asked for a second opinion.
    pub(crate) memory: Mutex<Memory>,
}

/// What the room remembers from one delivery to another.
#[derive(Default)]
pub(crate) struct Memory {
    unasked: Option<Instant>,
    sent_back: Recent,
}

/// Where a delivery may come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// No other was before it.
    First,
    /// This instance had it and sent it back for want of a place; elsewhere it may have begun meanwhile.
    SentBack,
    /// Another may have been before it.
    PerhapsCopy,
}

/// What becomes of a delivery whose turn has come.
pub(crate) enum Turn {
    /// It runs.
    Begins(Place),
    /// It is reported as cancelled instead, with this reason.
    Cancelled(String),
    /// It is reported as lost instead, with the instance that claimed it, if that is known.
    Lost(Option<String>),
    /// It does not run here; what to tell the broker.
    Elsewhere(Verdict),
}

/// What to tell the broker about a delivery that does not run here.
pub(crate) enum Verdict {
    Ack,
    HandBack,
}

impl Admission {
    /// Where a delivery may come from that the broker, or its sender, says things of.
    ///
    /// The broker marks what this instance sent back itself like everything else that comes again. Were that taken for
    /// a copy, a busy type would ask the server before each start, and could start nothing while Redis is away.
    pub(crate) fn origin(&self, attempt: Attempt, is_redelivered: bool, is_republished: bool) -> Origin {
        match (is_republished, is_redelivered) {
            (true, _) => Origin::PerhapsCopy,
            (false, true) if self.memory().sent_back.take(attempt, RETURN) => Origin::SentBack,
            (false, true) => Origin::PerhapsCopy,
            (false, false) => Origin::First,
        }
    }

    /// Waits for a delivery's turn and claims it. `line` is the place of its job type.
    pub(crate) async fn admit(&self, line: usize, message: &JobMessage, origin: Origin) -> Turn {
        let priority = message.priority.min(MAX_PRIORITY);
        let mut may_be_a_copy = origin == Origin::PerhapsCopy;
        let (mut last_lease, mut granted_at): (_, Option<Instant>) = (None, None);
        let is_unguarded = faults::sabotaged("s05");
        loop {
            // Before a place is waited for, which others could use meanwhile, and before the claim, which would take the
            // place of the one of whoever runs it.
            if may_be_a_copy && !is_unguarded && granted_at.is_none_or(|at| at.elapsed() >= LEAVE) {
                if let Some(verdict) = self.check(message).await {
                    if matches!(verdict, Verdict::HandBack) {
                        self.pause(PAUSE).await;
                    }
                    return Turn::Elsewhere(verdict);
                }
                granted_at = Some(Instant::now());
            }
            let place = tokio::select! {
                biased;
                place = self.turn(line, priority) => Some(place),
                () = self.stop.cancelled() => None,
                () = sleep(TURN) => None,
            };
            // A worker that stops starts nothing, whatever became free; and what has waited long enough may find a free
            // place in another instance.
            let Some(place) = place.filter(|_| !self.stop.is_cancelled()) else {
                if !may_be_a_copy {
                    self.memory().sent_back.note((message.occurrence_id, message.attempt));
                }
                return Turn::Elsewhere(Verdict::HandBack);
            };
            match self.clerk.claim((message.occurrence_id, message.attempt)).await {
                Ok(Answer::Granted { cancel: None }) => return Turn::Begins(place),
                Ok(Answer::Granted { cancel: Some(text) }) => {
                    let wish = Wish::read(&text);
                    return if wish.means(message.attempt) {
                        Turn::Cancelled(wish.reason().to_owned())
                    } else {
                        Turn::Begins(place)
                    };
                }
                Ok(_) if is_unguarded => return Turn::Begins(place),
                // Somebody else had it in between.
                Ok(_) if origin == Origin::SentBack && !may_be_a_copy => may_be_a_copy = true,
                Ok(Answer::Ended) => {
                    self.tell_of_copy(message, "it has ended, or a later attempt was claimed");
                    return Turn::Elsewhere(Verdict::Ack);
                }
                Ok(Answer::Held { by, lease }) => {
                    // A copy that came because its holder died must not be dropped: only a renewed lease is a sign of
                    // life, and an unrenewed one ends.
                    let renewed = last_lease.is_some_and(|last| lease > last);
                    if renewed || !may_be_a_copy {
                        self.tell_of_copy(message, &format!("{by} runs it"));
                        return Turn::Elsewhere(Verdict::Ack);
                    }
                    last_lease = Some(lease);
                    drop(place);
                    self.pause(LOOK_AGAIN).await;
                }
                // Redis does not hear of everybody who lives: the server must have been asked.
                Ok(Answer::Abandoned { .. } | Answer::Untold) if !may_be_a_copy => may_be_a_copy = true,
                Ok(Answer::Abandoned { by }) => return Turn::Lost(Some(by)),
                Ok(Answer::Untold) => return Turn::Lost(None),
                Err(error) if may_be_a_copy && !is_unguarded => {
                    tracing::warn!(occurrence.id = %message.occurrence_id, error = %error, "perhaps a copy, and nobody to ask: handed back");
                    drop(place);
                    // It may be ours without our knowing, and would keep others from it.
                    self.clerk.release((message.occurrence_id, message.attempt));
                    self.pause(PAUSE).await;
                    return Turn::Elsewhere(Verdict::HandBack);
                }
                Err(error) => {
                    if let Some(reason) = self.second_opinion(message).await {
                        self.tell_of_copy(message, &reason);
                        return Turn::Elsewhere(Verdict::Ack);
                    }
                    tracing::warn!(occurrence.id = %message.occurrence_id, error = %error, "starts without a claim");
                    return Turn::Begins(place);
                }
            }
        }
    }

    /// Marks an attempt as ended, so that a late copy is dropped.
    pub(crate) fn end(&self, attempt: Attempt) {
        self.clerk.end(attempt);
    }

    /// Counts a copy that is dropped, and says why it is.
    pub(crate) fn tell_of_copy(&self, message: &JobMessage, reason: &str) {
        self.vitals.copy();
        tracing::info!(
            occurrence.id = %message.occurrence_id,
            occurrence.attempt = message.attempt,
            reason,
            "a copy of a message is dropped"
        );
    }

    /// Asks the server about what may be a second copy: Redis may have forgotten the first one. None when it may start,
    /// as far as the server knows.
    async fn check(&self, message: &JobMessage) -> Option<Verdict> {
        let asking = self.inquiry.ask((message.occurrence_id, message.attempt));
        tokio::pin!(asking);
        let answer = tokio::select! {
            answer = &mut asking => answer,
            // A worker that stops starts nothing, but what is known to be a copy need not go round again.
            () = self.stop.cancelled() => match timeout(LAST_ANSWER, asking).await {
                Ok(answer) => answer,
                Err(_) => return Some(Verdict::HandBack),
            },
        };
        match answer {
            Ok(reply) if reply.granted => self.stop.is_cancelled().then_some(Verdict::HandBack),
            Ok(reply) => {
                let reason = reply.reason.map_or("the server denies it", Denial::word);
                self.tell_of_copy(message, &reply.by.map_or_else(|| reason.to_owned(), |by| format!("{reason}: {by}")));
                Some(Verdict::Ack)
            }
            Err(error) => {
                tracing::warn!(occurrence.id = %message.occurrence_id, error = %error, "perhaps a copy, and no server to ask: handed back");
                Some(Verdict::HandBack)
            }
        }
    }

    /// Why a first copy is not to start that Redis says nothing of; none if it is, or nobody can say. Redis would have
    /// known of a cancellation; without it only the server does.
    async fn second_opinion(&self, message: &JobMessage) -> Option<String> {
        if self.memory().unasked.is_some_and(|until| Instant::now() < until) {
            return None;
        }
        match timeout(SECOND_OPINION, self.inquiry.ask((message.occurrence_id, message.attempt))).await {
            Ok(Ok(reply)) if reply.granted => None,
            Ok(Ok(reply)) => Some(reply.reason.map_or("the server denies it", Denial::word).to_owned()),
            // Those behind it need not wait for the same silence.
            Ok(Err(_)) | Err(_) => {
                self.memory().unasked = Some(Instant::now() + UNASKED);
                None
            }
        }
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until a run could be remembered and has a place.
    async fn turn(&self, line: usize, priority: u8) -> Place {
        self.outbox.open().await;
        self.places.take(line, priority).await
    }

    async fn pause(&self, time: Duration) {
        tokio::select! {
            () = sleep(time) => {}
            () = self.stop.cancelled() => {}
        }
    }
}
