//! Release: discards the kept output of an ended lease.

use crate::owner::{ClientKind, Owner};
use crate::relay::RelayCmd;
use crate::relay::connection::Responder;
use acp_shared::ids::LeaseId;
use acp_shared::protocol::{Refusal, RefusalCode, Reply};
use std::sync::Arc;

pub(super) fn handle(owner: &mut Owner, who: ClientKind, lease_id: LeaseId, to: Responder) {
    let context = Arc::clone(&owner.context);
    let entry = match owner.visible_lease(who, lease_id) {
        Ok(entry) => entry,
        Err(refusal) => return to.answer(Err(refusal)),
    };
    if !entry.lease.state.is_ended() {
        let why = format!("lease {lease_id} has not ended; close it first");
        return to.answer(Err(Refusal::new(RefusalCode::BadRequest, why)));
    }
    if !entry.lease.released {
        entry.lease.released = true;
        if let Some(relay) = entry.relay.take() {
            let totals = relay.totals();
            entry.lease.stdout_base = totals.stdout_base.max(entry.lease.stdout_base);
            relay.send(RelayCmd::Release);
        } else {
            context.spools.remove(entry.lease.gateway, lease_id);
        }
        context.store.post_lease(&entry.lease);
    }
    to.answer(Ok(Reply::Done));
}
