//! Converts responses and notices of the supervisor to the actor's input.

use crate::core::actor::LeaseNews;
use crate::supervisor::{CallError, FeedItem};
use acp_shared::protocol::{RefusalCode, Reply};
use std::collections::VecDeque;

/// Merges consecutive pieces of output, to commit all in one transaction.
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

/// Converts the response to a spawn.
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

/// Converts the response to an attach.
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

/// Converts the response to an acknowledgement. If it was refused, the agent would stay blocked: the next
/// attach repeats it.
pub(crate) fn acked(answer: Result<Reply, CallError>) -> Option<LeaseNews> {
    match answer {
        Err(CallError::Refused(refusal)) if refusal.code == RefusalCode::Busy => Some(LeaseNews::StreamsBusy),
        Ok(_) | Err(_) => None,
    }
}

/// Converts the response to a write to the agent's standard input.
pub(crate) fn written(seq: u64, answer: Result<Reply, CallError>) -> Option<LeaseNews> {
    match answer {
        Ok(_) => Some(LeaseNews::Written { seq }),
        Err(CallError::Refused(refusal)) => Some(LeaseNews::InputRefused { seq, code: refusal.code }),
        Err(CallError::Disconnected) => None,
    }
}

/// Converts the response to a request to close a lease.
pub(crate) fn closing(answer: Result<Reply, CallError>) -> Option<LeaseNews> {
    match answer {
        Err(CallError::Refused(refusal)) if refusal.code == RefusalCode::LeaseUnknown => {
            Some(LeaseNews::Unknown)
        }
        Ok(Reply::Closing { state }) if state.is_ended() => Some(LeaseNews::Changed),
        Ok(_) | Err(_) => None,
    }
}
