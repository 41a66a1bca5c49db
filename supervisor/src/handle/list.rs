//! ListLeases: what the client may see, oldest first.

use crate::link::Responder;
use crate::owner::{Owner, Who};
use acp_shared::protocol::Reply;

pub(super) fn handle(owner: &Owner, who: Who, to: Responder) {
    let visible = owner.leases.values().filter(|entry| match who {
        Who::Admin => true,
        Who::Gateway(gateway) => entry.lease.gateway == gateway,
    });
    let mut leases: Vec<_> = visible.map(crate::owner::Entry::info).collect();
    leases.sort_by_key(|info| (info.started_at_ms, info.lease_id));
    to.answer(Ok(Reply::Leases(leases)));
}
