//! Retries with backoff, the same for everything that a conversation worker does: no message, edit or deletion
//! is lost because the store or Discord was unavailable for a moment.

use crate::channel::{ConversationEventOutcome, IntakeOutcome, MessageChangeOutcome};
use acp_discord::core::errors::RejectionKind;
use acp_discord::core::ids::Snowflake;
use acp_discord::rest::RestError;
use acp_shared::backoff::Backoff;

/// Pauses between attempts. The longest is short, since a deleted message must be dropped before its turn
/// begins.
pub(super) const RETRY_BACKOFF: Backoff = Backoff::new(500, 8_000);

/// Result of an attempt that may have to be repeated.
pub(super) trait Retryable {
    /// Returns the reason if the attempt failed and a retry may succeed.
    fn retry_reason(&self) -> Option<String>;
}

impl Retryable for IntakeOutcome {
    fn retry_reason(&self) -> Option<String> {
        match self {
            Self::Later { why } => Some(why.clone()),
            Self::Accepted(_) | Self::Refused { .. } => None,
        }
    }
}

impl Retryable for MessageChangeOutcome {
    fn retry_reason(&self) -> Option<String> {
        match self {
            Self::Later { why } => Some(why.clone()),
            Self::Done | Self::TooLate | Self::NotOurs => None,
        }
    }
}

impl Retryable for ConversationEventOutcome {
    fn retry_reason(&self) -> Option<String> {
        match self {
            Self::Later { why } => Some(why.clone()),
            Self::Parked | Self::Resumed | Self::Ended | Self::Nothing => None,
        }
    }
}

/// Result of a read-only request. A refusal for lack of access is final: Discord reports restored access, and
/// then the request is made again.
impl<T> Retryable for Result<T, RestError> {
    fn retry_reason(&self) -> Option<String> {
        let fault = self.as_ref().err()?;
        let is_for_now = match fault {
            RestError::Rejected(rejection) => {
                rejection.is_retryable()
                    && !matches!(rejection.kind, RejectionKind::Forbidden | RejectionKind::LostAccess)
            }
            RestError::Limited { .. } | RestError::Uncertain { .. } | RestError::Superseded => true,
        };
        is_for_now.then(|| fault.to_string())
    }
}

/// Retries an operation until success or permanent failure. Later jobs of the conversation wait meanwhile.
pub(super) async fn retry_until_done<T: Retryable, F: Future<Output = T>>(
    what: &'static str,
    at: Snowflake,
    attempt: impl Fn() -> F,
) -> T {
    let mut backoff = RETRY_BACKOFF;
    loop {
        let done = attempt().await;
        let Some(why) = done.retry_reason() else { return done };
        tracing::warn!(kind = what, why, thread_id = %at, "inbound event deferred");
        tokio::time::sleep(backoff.next_pause()).await;
    }
}

/// A refusal of this kind.
#[cfg(test)]
pub(super) fn rejected(kind: RejectionKind) -> RestError {
    let (route, why) = ("channel", "no".to_owned());
    RestError::Rejected(acp_discord::rest::Rejection { route, status: None, code: None, kind, why })
}

#[cfg(test)]
mod tests {
    use super::*;
    use acp_discord::core::errors::ResourceKind;
    use std::sync::Mutex;
    use std::time::Duration;
    use tokio::time::Instant;

    #[tokio::test(start_paused = true)]
    async fn deferred_change_is_retried_until_done_or_impossible() {
        let later = || MessageChangeOutcome::Later { why: "busy".to_owned() };
        for (answers, want, after_ms) in [
            (vec![MessageChangeOutcome::Done], MessageChangeOutcome::Done, 0),
            (
                vec![MessageChangeOutcome::NotOurs, MessageChangeOutcome::Done],
                MessageChangeOutcome::NotOurs,
                0,
            ),
            (vec![later(), MessageChangeOutcome::Done], MessageChangeOutcome::Done, 500),
            (vec![later(), later(), MessageChangeOutcome::TooLate], MessageChangeOutcome::TooLate, 1_500),
            (
                vec![later(), later(), later(), later(), later(), MessageChangeOutcome::Done],
                MessageChangeOutcome::Done,
                15_500,
            ),
        ] {
            let begun = Instant::now();
            let left = Mutex::new(answers.into_iter());
            let next =
                || left.lock().ok().and_then(|mut left| left.next()).unwrap_or(MessageChangeOutcome::NotOurs);
            let done = retry_until_done("it", Snowflake(1), || std::future::ready(next())).await;
            assert_eq!((done, begun.elapsed()), (want, Duration::from_millis(after_ms)));
        }
    }

    #[test]
    fn final_outcomes_are_not_retried() {
        let why = || "busy".to_owned();
        let event = ConversationEventOutcome::Later { why: why() };
        let intake = IntakeOutcome::Later { why: why() };
        assert_eq!([event.retry_reason(), intake.retry_reason()], [Some(why()), Some(why())]);
        let finished = [
            ConversationEventOutcome::Parked,
            ConversationEventOutcome::Resumed,
            ConversationEventOutcome::Ended,
            ConversationEventOutcome::Nothing,
        ];
        assert!(finished.iter().all(|changed| changed.retry_reason().is_none()));
        let finished = [
            IntakeOutcome::Accepted(crate::channel::CallerReply::default()),
            IntakeOutcome::Refused { why: why() },
        ];
        assert!(finished.iter().all(|offered| offered.retry_reason().is_none()));
    }

    #[test]
    fn permanent_refusal_is_not_retried() {
        for (kind, want) in [
            (RejectionKind::Temporary, true),
            (RejectionKind::NotSent, true),
            (RejectionKind::Unauthorized, true),
            (RejectionKind::Forbidden, false),
            (RejectionKind::LostAccess, false),
            (RejectionKind::Gone(ResourceKind::Channel), false),
        ] {
            assert_eq!(Err::<(), _>(rejected(kind)).retry_reason().is_some(), want, "{kind:?}");
        }
        assert_eq!(Ok::<_, RestError>(()).retry_reason(), None);
    }
}
