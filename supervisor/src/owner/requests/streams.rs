//! Attach, Input, Ack and Tail: forwarded to the relay of the lease, which answers.

use crate::owner::{ClientKind, Owner};
use crate::relay::RelayCmd;
use crate::relay::connection::Responder;
use acp_shared::ids::LeaseId;
use acp_shared::protocol::{Refusal, RefusalCode};

fn pass(
    owner: &mut Owner,
    who: ClientKind,
    lease_id: LeaseId,
    to: Responder,
    command: impl FnOnce(Responder) -> RelayCmd,
) {
    match gateway_only(owner, who).and_then(|()| owner.relay_of(who, lease_id)) {
        Ok(relay) => relay.request(command(to)),
        Err(refusal) => to.answer(Err(refusal)),
    }
}

/// Refuses admins: they may list and close leases, but only the gateway may use the streams.
fn gateway_only(owner: &Owner, who: ClientKind) -> Result<(), Refusal> {
    match who {
        ClientKind::Gateway(_) => Ok(()),
        ClientKind::Admin => {
            if owner.context.may_log(owner.uid_of(who), "only its gateway") {
                tracing::warn!("request refused; streams are only for the gateway of the lease");
            }
            Err(Refusal::new(RefusalCode::NotAuthorised, "only its gateway may use the streams of a lease"))
        }
    }
}

pub(super) fn attach(owner: &mut Owner, who: ClientKind, lease_id: LeaseId, from: u64, to: Responder) {
    pass(owner, who, lease_id, to, |to| RelayCmd::Attach { from, to });
}

pub(super) fn input(
    owner: &mut Owner,
    who: ClientKind,
    lease_id: LeaseId,
    seq: u64,
    bytes: Vec<u8>,
    to: Responder,
) {
    pass(owner, who, lease_id, to, |to| RelayCmd::Input { seq, bytes, to });
}

pub(super) fn ack(owner: &mut Owner, who: ClientKind, lease_id: LeaseId, offset: u64, to: Responder) {
    pass(owner, who, lease_id, to, |to| RelayCmd::Ack { offset, to });
}

pub(super) fn tail(owner: &mut Owner, who: ClientKind, lease_id: LeaseId, to: Responder) {
    pass(owner, who, lease_id, to, RelayCmd::Tail);
}
