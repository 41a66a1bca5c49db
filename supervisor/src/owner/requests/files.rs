//! Files: forwarded to the queue of the session's helper, which answers.

use crate::core::admission::ClientUser;
use crate::core::containment::ContainmentLevel;
use crate::lease::confine::Requester;
use crate::owner::{ClientKind, Owner};
use crate::relay::connection::Responder;
use acp_shared::files::{
    FilesOp, FilesRequest, FilesScope, NAME_BYTES_MAX, NAMES_MAX, ROOTS_MAX, SEARCH_BYTES_MAX,
    WRITE_BYTES_MAX,
};
use acp_shared::ids::GatewayInstanceId;
use acp_shared::protocol::{LeaseState, Refusal, RefusalCode};
use std::sync::Arc;

pub(super) fn handle(
    owner: &mut Owner,
    who: ClientKind,
    user: ClientUser,
    request: FilesRequest,
    to: Responder,
) {
    match check(owner, who, &request) {
        Ok(gateway) => {
            let requester = Requester { gateway, user };
            let context = Arc::clone(&owner.context);
            owner.files.enqueue(&context, requester, request, to);
        }
        Err(refusal) => to.answer(Err(refusal)),
    }
}

fn check(owner: &mut Owner, who: ClientKind, request: &FilesRequest) -> Result<GatewayInstanceId, Refusal> {
    let refuse = |code, why: String| Err(Refusal::new(code, why));
    let ClientKind::Gateway(gateway) = who else {
        return refuse(RefusalCode::NotAuthorised, "only a gateway may use files".to_owned());
    };
    if owner.stopping {
        return refuse(RefusalCode::ShuttingDown, "the supervisor is shutting down".to_owned());
    }
    if owner.context.containment.rung == ContainmentLevel::R4 {
        return Err(super::spawn::no_containment());
    }
    is_sane(request)?;
    if let FilesScope::Lease(lease_id) = request.scope
        && matches!(
            owner.visible_lease(who, lease_id)?.lease.state,
            LeaseState::Closing | LeaseState::Closed | LeaseState::Lost
        )
    {
        return refuse(RefusalCode::LeaseEnded, format!("lease {lease_id} has ended"));
    }
    Ok(gateway)
}

/// Refuses a request that is too large or not valid.
fn is_sane(FilesRequest { scope, roots, op }: &FilesRequest) -> Result<(), Refusal> {
    let refuse = |code, why: String| Err(Refusal::new(code, why));
    if roots.len() > ROOTS_MAX || op.names().len() > NAMES_MAX {
        return refuse(RefusalCode::TooLarge, format!("more than {ROOTS_MAX} roots or {NAMES_MAX} names"));
    }
    if roots.iter().chain(op.names()).any(|name| name.len() > NAME_BYTES_MAX) {
        return refuse(RefusalCode::TooLarge, format!("a path or name of more than {NAME_BYTES_MAX} bytes"));
    }
    if op.search().len() > SEARCH_BYTES_MAX {
        return refuse(RefusalCode::TooLarge, format!("a search path of more than {SEARCH_BYTES_MAX} bytes"));
    }
    if op.content().len() as u64 > WRITE_BYTES_MAX {
        let why = format!("a write of more than {WRITE_BYTES_MAX} bytes");
        return refuse(RefusalCode::TooLarge, why);
    }
    if roots.iter().any(|root| !root.starts_with('/') || root.contains('\0')) {
        return refuse(RefusalCode::BadRequest, "a root is not an absolute path".to_owned());
    }
    if *scope == FilesScope::Tenant && matches!(op, FilesOp::Write { .. }) {
        return refuse(RefusalCode::BadRequest, "a write needs a lease".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;

    #[test]
    fn every_field_of_files_request_is_bounded() {
        let read = |path: String| FilesOp::Read { path, line: None, limit: None, bytes_max: 1 };
        let request = |roots, op| FilesRequest { scope: FilesScope::Tenant, roots, op };
        let long = |bytes: usize| format!("/{}", "x".repeat(bytes - 1));
        let programs = |names, search| FilesOp::Programs { names, search };
        for (request, good) in [
            (request(vec![long(NAME_BYTES_MAX)], read(long(NAME_BYTES_MAX))), true),
            (request(vec![long(NAME_BYTES_MAX + 1)], read("/".into())), false),
            (request(vec![], read(long(NAME_BYTES_MAX + 1))), false),
            (request(vec![], FilesOp::Directory { path: long(NAME_BYTES_MAX + 1) }), false),
            (request(vec![], FilesOp::Inspect { path: long(NAME_BYTES_MAX + 1), text_bytes_max: 0 }), false),
            (request(vec![], FilesOp::Directories { paths: vec![long(NAME_BYTES_MAX + 1)] }), false),
            (request(vec![], programs(vec![long(NAME_BYTES_MAX + 1)], String::new())), false),
            (request(vec![], programs(vec![], long(SEARCH_BYTES_MAX))), true),
            (request(vec![], programs(vec![], long(SEARCH_BYTES_MAX + 1))), false),
            (request(vec!["/".into(); ROOTS_MAX + 1], read("/".into())), false),
        ] {
            let code = is_sane(&request).map_err(|refusal| refusal.code);
            assert_eq!(code, if good { Ok(()) } else { Err(RefusalCode::TooLarge) }, "{:?}", request.op);
            let encoded = acp_shared::wire::encode(&request, usize::MAX).unwrap().len();
            assert!(request.bytes() >= encoded, "{} {encoded}", request.bytes());
        }
        let write = FilesOp::Write { path: "/a".into(), content: vec![0; 1_000] };
        let write = request(vec!["/".into()], write);
        assert!(write.bytes() > 1_000);
        assert_eq!(is_sane(&write).unwrap_err().code, RefusalCode::BadRequest, "without a lease");
    }
}
