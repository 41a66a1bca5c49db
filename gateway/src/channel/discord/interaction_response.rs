//! Replies to slash commands and clicks. Each interaction is processed once and answered once. A reply is
//! retried as long as the interaction can be answered. If the reply fails, or may have been sent and a repeat
//! would be visible as a second reply, the gateway replies in the conversation.

use super::Inner;
use crate::channel::{CallerReply, Inbound, InboundPort, PostedReply, ReplyReservation};
use acp_discord::core::errors::RejectionKind;
use acp_discord::core::event::Interaction;
use acp_discord::rest::{RestError, SentMessage};
use acp_shared::backoff::Backoff;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::Instant;

/// Period in which an interaction can be answered: one minute less than the lifetime of the token (discord.md
/// §3).
const RESPONSE_WINDOW: Duration = Duration::from_secs(14 * 60);
/// Pauses between two attempts.
const BACKOFF: Backoff = Backoff::new(1_000, 30_000);
/// Maximum number of replies that wait for a retry. Beyond that, the gateway replies in the conversation at
/// once.
pub(super) const PENDING_RETRIES_MAX: usize = 32;

/// Pending reply to an interaction. With a reservation: the result. Without: a notice that the gateway will
/// process the interaction later and then reply in the conversation.
pub(super) struct PendingResponse {
    /// Reservation: while held, no other task processes the interaction or replies.
    reservation: Option<ReplyReservation>,
    /// The interaction as passed to the inbound port.
    message: Inbound,
    /// Content of the reply.
    pub(super) said: CallerReply,
    until: Instant,
}

impl PendingResponse {
    pub(super) fn new(
        reservation: ReplyReservation,
        message: Inbound,
        said: Result<CallerReply, CallerReply>,
        begun: Instant,
    ) -> Self {
        // A deferred interaction must not wait for the reply, which may be retried for minutes.
        let reservation = said.is_ok().then_some(reservation);
        let said = said.unwrap_or_else(|not_yet| not_yet);
        Self { reservation, message, said, until: begun + RESPONSE_WINDOW }
    }
}

/// Effect of sending a reply a second time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ResendEffect {
    /// Replaces the first reply.
    Replaces,
    /// Appears as a second reply.
    Duplicates,
}

/// Returns the minimum pause before a failed reply may be sent again; `None` if not allowed.
fn retry_delay(fault: &RestError, effect: ResendEffect) -> Option<Duration> {
    match fault {
        RestError::Limited { retry_after } => Some(*retry_after),
        RestError::Uncertain { .. } => (effect == ResendEffect::Replaces).then_some(Duration::ZERO),
        RestError::Superseded => Some(Duration::ZERO),
        RestError::Rejected(rejection) => {
            let is_for_now = matches!(
                rejection.kind,
                RejectionKind::Temporary | RejectionKind::NotSent | RejectionKind::Slow
            );
            is_for_now.then_some(Duration::ZERO)
        }
    }
}

impl Inner {
    /// Sends a reply and records the success. `give` makes one attempt; `shown` returns the reply if it
    /// remains in the conversation as a message. After a definite failure the progress placeholder is
    /// removed.
    pub(super) async fn respond<F: Future<Output = Result<SentMessage, RestError>>>(
        &self,
        inbox: &dyn InboundPort,
        at: &Interaction,
        due: PendingResponse,
        effect: ResendEffect,
        give: impl Fn() -> F,
        shown: impl FnOnce(&SentMessage) -> Option<PostedReply>,
    ) {
        match respond_with_retry(&self.retry_permits, due.until, effect, give).await {
            Ok(posted) if due.reservation.is_some() => self.record_reply(inbox, due, shown(&posted)).await,
            // Without a reservation, the gateway processes the interaction and replies.
            Ok(_) => {}
            Err(fault) => {
                tracing::warn!(
                    %fault,
                    interaction = %at.id,
                    "interaction reply failed; replying in the conversation"
                );
                drop(due);
                if effect == ResendEffect::Replaces && !matches!(fault, RestError::Uncertain { .. }) {
                    self.delete_placeholder(at).await;
                }
            }
        }
    }

    /// Deletes the progress placeholder of a command.
    pub(super) async fn delete_placeholder(&self, at: &Interaction) {
        if let Err(fault) = self.rest.delete_original(at.application, &at.token).await {
            tracing::debug!(%fault, interaction = %at.id, "deleting command placeholder failed");
        }
    }

    /// Records that the user got a reply. Retries on failure and holds the reservation meanwhile, so that the
    /// gateway does not reply too.
    pub(super) async fn record_reply(
        &self,
        inbox: &dyn InboundPort,
        due: PendingResponse,
        answer: Option<PostedReply>,
    ) {
        let mut backoff = BACKOFF;
        while !inbox.mark_replied(due.message.clone(), answer.clone()).await {
            let next = Instant::now() + backoff.next_pause();
            if next >= due.until {
                break;
            }
            tokio::time::sleep_until(next).await;
        }
        drop(due.reservation);
    }
}

/// Sends a reply, with retries until success, a final refusal or the deadline. Each reply that waits for a
/// retry holds a permit of `places`.
async fn respond_with_retry<T, F: Future<Output = Result<T, RestError>>>(
    places: &Semaphore,
    until: Instant,
    effect: ResendEffect,
    give: impl Fn() -> F,
) -> Result<T, RestError> {
    let (mut backoff, mut place) = (BACKOFF, None);
    loop {
        let fault = match give().await {
            Ok(posted) => return Ok(posted),
            Err(fault) => fault,
        };
        place = place.or_else(|| places.try_acquire().ok());
        let wait = retry_delay(&fault, effect).filter(|_| place.is_some());
        let next =
            wait.map(|wait| Instant::now() + wait.max(backoff.next_pause())).filter(|next| *next < until);
        let Some(next) = next else { return Err(fault) };
        tracing::info!(%fault, "interaction reply retried");
        tokio::time::sleep_until(next).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channel::discord::retry::rejected;
    use acp_core::rows::ConversationRef;
    use std::cell::{Cell, RefCell};
    use std::sync::Arc;

    /// A deferred interaction must not wait for its reply, which may be retried for minutes.
    #[test]
    fn reservation_is_held_until_reply_only_for_finished_commands() {
        let reply = CallerReply::default;
        for (reply, is_held) in [(Ok(reply()), true), (Err(reply()), false)] {
            let held = Arc::new(());
            let reservation = ReplyReservation { is_new: true, _held: Box::new(Arc::clone(&held)) };
            let at = ConversationRef::new("discord", "main", "7");
            let message = Inbound::new(at, "1".to_owned(), "ann".to_owned(), "/acp cancel".to_owned());
            let due = PendingResponse::new(reservation, message, reply, Instant::now());
            assert_eq!(Arc::strong_count(&held) == 2, is_held, "{:?}", due.said);
        }
    }

    fn uncertain() -> RestError {
        RestError::Uncertain { why: "reset".to_owned() }
    }

    fn limited(seconds: u64) -> RestError {
        RestError::Limited { retry_after: Duration::from_secs(seconds) }
    }

    /// Runs a reply with these faults; returns the result, the number of attempts and the seconds elapsed.
    async fn run(
        permits: usize,
        effect: ResendEffect,
        faults: Vec<RestError>,
    ) -> (Result<(), RestError>, usize, u64) {
        let (begun, remaining) = (Instant::now(), RefCell::new(faults.into_iter()));
        let count = Cell::new(0);
        let attempt = || async {
            count.set(count.get() + 1);
            remaining.borrow_mut().next().map_or(Ok(()), Err)
        };
        let result =
            respond_with_retry(&Semaphore::new(permits), begun + RESPONSE_WINDOW, effect, attempt).await;
        (result, count.get(), begun.elapsed().as_secs())
    }

    #[tokio::test(start_paused = true)]
    async fn uncertain_reply_is_resent_only_if_it_replaces() {
        use ResendEffect::{Duplicates, Replaces};
        let late = || rejected(RejectionKind::TooLate);
        for (effect, faults, want) in [
            (Replaces, vec![], (Ok(()), 1, 0)),
            (Replaces, vec![uncertain(), uncertain()], (Ok(()), 3, 3)),
            (Duplicates, vec![uncertain()], (Err(uncertain()), 1, 0)),
            (Duplicates, vec![limited(7), rejected(RejectionKind::Temporary)], (Ok(()), 3, 9)),
            (Replaces, vec![rejected(RejectionKind::NotSent), late()], (Err(late()), 2, 1)),
            (Replaces, vec![late()], (Err(late()), 1, 0)),
            (Replaces, vec![limited(15 * 60)], (Err(limited(15 * 60)), 1, 0)),
        ] {
            assert_eq!(run(1, effect, faults.clone()).await, want, "{effect:?} {faults:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn reply_retries_end_with_token_lifetime() {
        let (result, attempts, seconds) = run(1, ResendEffect::Replaces, vec![uncertain(); 1_000]).await;
        assert_eq!(result, Err(uncertain()));
        assert!((20..60).contains(&attempts), "{attempts}");
        assert!((780..=840).contains(&seconds), "{seconds}");
    }

    /// Without a permit a reply is not retried; the gateway replies in the conversation instead.
    #[tokio::test(start_paused = true)]
    async fn reply_without_permit_is_not_retried() {
        assert_eq!(run(0, ResendEffect::Replaces, vec![uncertain()]).await, (Err(uncertain()), 1, 0));
    }
}
