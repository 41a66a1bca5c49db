//! CloseLease: the orderly end, terminals first. Idempotent.

use crate::link::Responder;
use crate::owner::{Owner, Who};
use acp_shared::ids::LeaseId;
use acp_shared::protocol::{LeaseState, Reply};

pub(super) fn handle(owner: &mut Owner, who: Who, lease_id: LeaseId, reason: &str, to: Responder) {
    let ended = match owner.visible(who, lease_id) {
        Ok(entry) if entry.lease.state.is_ended() => Some(entry.lease.state),
        Ok(_) => None,
        Err(refusal) => return to.answer(Err(refusal)),
    };
    if ended.is_none() {
        owner.close(lease_id, reason);
    }
    to.answer(Ok(Reply::Closing { state: ended.unwrap_or(LeaseState::Closing) }));
}
