//! Files: passed to the queue of the session's helper, which answers.

use crate::confine::Customer;
use crate::core::ladder::Rung;
use crate::link::Responder;
use crate::owner::{Owner, Who};
use acp_shared::conn::Peer;
use acp_shared::files::{FilesOp, FilesRequest, FilesScope, NAMES_MAX, ROOTS_MAX, WRITE_BYTES_MAX};
use acp_shared::ids::GatewayInstanceId;
use acp_shared::protocol::{Refusal, RefusalCode};
use std::sync::Arc;

pub(super) fn handle(owner: &mut Owner, who: Who, peer: Peer, request: FilesRequest, to: Responder) {
    match check(owner, who, &request) {
        Ok(gateway) => {
            let customer = Customer { gateway, uid: peer.uid, gid: peer.gid };
            let context = Arc::clone(&owner.context);
            owner.files.ask(&context, customer, request, to);
        }
        Err(refusal) => to.answer(Err(refusal)),
    }
}

fn check(owner: &mut Owner, who: Who, request: &FilesRequest) -> Result<GatewayInstanceId, Refusal> {
    let refuse = |code, why: String| Err(Refusal::new(code, why));
    let Who::Gateway(gateway) = who else {
        return refuse(RefusalCode::NotAuthorised, "only a gateway may use files".to_owned());
    };
    if owner.stopping {
        return refuse(RefusalCode::ShuttingDown, "the supervisor is ending".to_owned());
    }
    if owner.context.holding.rung == Rung::R4 {
        return Err(super::spawn::unheld());
    }
    let names = match &request.op {
        FilesOp::Directories { paths } => paths.len(),
        FilesOp::Programs { names, .. } => names.len(),
        FilesOp::Read { .. }
        | FilesOp::Write { .. }
        | FilesOp::Inspect { .. }
        | FilesOp::Directory { .. } => 0,
    };
    if request.roots.len() > ROOTS_MAX || names > NAMES_MAX {
        return refuse(RefusalCode::TooLarge, format!("more than {ROOTS_MAX} roots or {NAMES_MAX} names"));
    }
    if request.op.content_bytes() as u64 > WRITE_BYTES_MAX {
        return refuse(
            RefusalCode::TooLarge,
            format!("a file is written with at most {WRITE_BYTES_MAX} bytes"),
        );
    }
    if request.roots.iter().any(|root| !root.starts_with('/') || root.contains('\0')) {
        return refuse(RefusalCode::BadRequest, "a root is no absolute path".to_owned());
    }
    if let FilesScope::Lease(lease_id) = request.scope
        && owner.visible(who, lease_id)?.lease.state.is_ended()
    {
        return refuse(RefusalCode::LeaseEnded, format!("lease {lease_id} has ended"));
    }
    Ok(gateway)
}
