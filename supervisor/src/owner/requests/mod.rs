//! Request handlers, one file for each request of the protocol. A handler makes no decisions about processes:
//! it checks permissions, and forwards the work to the task of the lease or to a task of its own.

mod close;
mod figures;
mod files;
mod list;
pub(crate) mod reap;
mod release;
mod session_log;
mod shutdown;
pub(crate) mod spawn;
mod status;
mod streams;
mod upgrade;
pub(crate) mod verify;

use crate::core::admission::ClientUser;
use crate::owner::{ClientKind, Owner};
use crate::relay::connection::Responder;
use acp_shared::protocol::{Refusal, RefusalCode, Request};

/// Dispatches a request to its handler.
pub(crate) fn dispatch(owner: &mut Owner, who: ClientKind, user: ClientUser, body: Request, to: Responder) {
    if let Some(why) = owner.context.store.read_only()
        && !is_read_only(&body)
    {
        let why = format!("this supervisor is read-only and signals nothing: {why}");
        return to.answer(Err(Refusal::new(RefusalCode::StoreUnavailable, why)));
    }
    match body {
        Request::Spawn(spec) => spawn::handle(owner, who, user, spec, to),
        Request::Attach { lease_id, from_offset } => streams::attach(owner, who, lease_id, from_offset, to),
        Request::Input { lease_id, seq, bytes } => streams::input(owner, who, lease_id, seq, bytes, to),
        Request::Ack { lease_id, offset } => streams::ack(owner, who, lease_id, offset, to),
        Request::AckSynced { lease_id, offset, event_id } => {
            if let ClientKind::Gateway(gateway) = who {
                owner.record_event(gateway, event_id);
            }
            streams::ack(owner, who, lease_id, offset, to);
        }
        Request::Tail { lease_id } => streams::tail(owner, who, lease_id, to),
        Request::CloseLease { lease_id, reason } => close::handle(owner, who, lease_id, &reason, to),
        Request::Release { lease_id } => release::handle(owner, who, lease_id, to),
        Request::ListLeases { detail } => list::handle(owner, who, detail, to),
        Request::Verify { lease_id } => verify::handle(owner, who, lease_id, to),
        Request::Reap { dry_run } => reap::handle(owner, who, dry_run, to),
        Request::Status => status::handle(owner, who, to),
        Request::Figures => figures::handle(owner, who, to),
        Request::Upgrade { program, state_dir } => upgrade::handle(owner, who, program, &state_dir, to),
        Request::Files(request) => files::handle(owner, who, user, request, to),
        Request::SessionLog { session_key, from, bytes_max } => {
            session_log::handle(owner, who, session_key, from, bytes_max, to);
        }
        Request::Shutdown { state_dir } => shutdown::handle(owner, who, &user, &state_dir, to),
    }
}

/// True for requests that change neither a process nor a record. Shutdown is one of them: a read-only
/// supervisor has started nothing.
const fn is_read_only(body: &Request) -> bool {
    match body {
        Request::ListLeases { .. }
        | Request::Verify { .. }
        | Request::Reap { dry_run: true }
        | Request::Status
        | Request::Figures
        | Request::SessionLog { .. }
        | Request::Shutdown { .. } => true,
        Request::Spawn(_)
        | Request::Attach { .. }
        | Request::Input { .. }
        | Request::Ack { .. }
        | Request::AckSynced { .. }
        | Request::Tail { .. }
        | Request::CloseLease { .. }
        | Request::Release { .. }
        | Request::Upgrade { .. }
        | Request::Files(_)
        | Request::Reap { dry_run: false } => false,
    }
}

/// Refuses gateways.
fn admin_only(owner: &Owner, who: ClientKind) -> Result<(), Refusal> {
    match who {
        ClientKind::Admin => Ok(()),
        ClientKind::Gateway(gateway) => {
            if owner.context.may_log(owner.uid_of(who), "only the admin CLI") {
                tracing::warn!(%gateway, "request refused; only for the admin CLI");
            }
            Err(Refusal::new(RefusalCode::NotAuthorised, "only the admin CLI may do this"))
        }
    }
}
