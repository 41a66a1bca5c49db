//! CloseLease: ends a lease with grace periods, terminals first. Idempotent.

use crate::core::lease::sanitize_reason;
use crate::owner::{ClientKind, Owner};
use crate::relay::connection::Responder;
use acp_shared::ids::LeaseId;
use acp_shared::protocol::{LeaseState, Reply};

pub(super) fn handle(owner: &mut Owner, who: ClientKind, lease_id: LeaseId, reason: &str, to: Responder) {
    let ended = match owner.visible_lease(who, lease_id) {
        Ok(entry) if entry.lease.state.is_ended() => Some(entry.lease.state),
        // An admin gets a refusal for a leftover lease; a gateway is notified of its end as of any other.
        Ok(entry) if who == ClientKind::Admin && entry.commands.is_none() => {
            return to.answer(Err(entry.left_over_refusal()));
        }
        Ok(_) => None,
        Err(refusal) => return to.answer(Err(refusal)),
    };
    if ended.is_none() {
        if who == ClientKind::Admin {
            tracing::info!(%lease_id, reason = sanitize_reason(reason), "lease close requested by admin");
        }
        owner.close(lease_id, &sanitize_reason(reason));
    }
    to.answer(Ok(Reply::Closing { state: ended.unwrap_or(LeaseState::Closing) }));
}
