//! What the supervisor answers and says, as news for an actor.

use crate::core::actor::LeaseNews;
use crate::supervisor::{CallError, FeedItem};
use acp_shared::protocol::{RefusalCode, Reply};
use std::collections::VecDeque;

/// Output pieces that follow each other become one, so that they become one transaction.
pub(crate) fn merge(items: VecDeque<FeedItem>) -> Vec<LeaseNews> {
    let mut merged: Vec<LeaseNews> = Vec::new();
    for item in items {
        match item {
            FeedItem::Output { offset, bytes } => match merged.last_mut() {
                Some(LeaseNews::Output { offset: from, bytes: before })
                    if *from + before.len() as u64 == offset =>
                {
                    before.extend_from_slice(&bytes);
                }
                _ => merged.push(LeaseNews::Output { offset, bytes }),
            },
            FeedItem::Exited { status, end_offset, stdin_written } => {
                merged.push(LeaseNews::Exited { status, end_offset, stdin_written });
            }
            FeedItem::Changed { state, .. } if state.is_ended() => merged.push(LeaseNews::Changed),
            FeedItem::Changed { .. } => {}
        }
    }
    merged
}

/// What came of a spawn.
pub(crate) fn spawned(answer: Result<Reply, CallError>) -> Option<LeaseNews> {
    match answer {
        Ok(_) => Some(LeaseNews::Spawned),
        Err(CallError::Refused(refusal)) => Some(LeaseNews::SpawnRefused {
            code: refusal.code,
            message: refusal.message,
            retry_after_ms: refusal.retry_after_ms,
        }),
        Err(CallError::Disconnected) => None,
    }
}

/// What came of an attach.
pub(crate) fn attached(answer: Result<Reply, CallError>) -> Option<LeaseNews> {
    match answer {
        Ok(Reply::Attached(attached)) => Some(LeaseNews::Attached(attached)),
        Err(CallError::Refused(refusal)) => match refusal.code {
            RefusalCode::LeaseUnknown | RefusalCode::LeaseEnded => Some(LeaseNews::Unknown),
            RefusalCode::OffsetUnavailable => Some(LeaseNews::OffsetGone),
            _ => Some(LeaseNews::StreamsBusy),
        },
        Ok(_) | Err(CallError::Disconnected) => None,
    }
}

/// An acknowledgement that was not taken would leave the agent waiting for room: the next attach repeats it.
pub(crate) fn acked(answer: Result<Reply, CallError>) -> Option<LeaseNews> {
    match answer {
        Err(CallError::Refused(refusal)) if refusal.code == RefusalCode::Busy => Some(LeaseNews::StreamsBusy),
        Ok(_) | Err(_) => None,
    }
}

/// What came of a message.
pub(crate) fn written(seq: u64, answer: Result<Reply, CallError>) -> Option<LeaseNews> {
    match answer {
        Ok(_) => Some(LeaseNews::Written { seq }),
        Err(CallError::Refused(refusal)) => Some(LeaseNews::InputRefused { seq, code: refusal.code }),
        Err(CallError::Disconnected) => None,
    }
}

/// What came of asking for the end of a lease.
pub(crate) fn closing(answer: Result<Reply, CallError>) -> Option<LeaseNews> {
    match answer {
        Err(CallError::Refused(refusal)) if refusal.code == RefusalCode::LeaseUnknown => {
            Some(LeaseNews::Unknown)
        }
        Ok(Reply::Closing { state }) if state.is_ended() => Some(LeaseNews::Changed),
        Ok(_) | Err(_) => None,
    }
}
