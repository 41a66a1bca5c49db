//! Shutdown (H17): allowed for the supervisor's user and root, with the right state directory, while no other
//! gateway uses the supervisor.

use crate::core::admission::ClientUser;
use crate::owner::{ClientKind, Owner};
use crate::relay::connection::Responder;
use acp_shared::protocol::{Refusal, RefusalCode, Reply};
use std::path::Path;

pub(super) fn handle(owner: &mut Owner, who: ClientKind, user: &ClientUser, state_dir: &str, to: Responder) {
    if let Err(refusal) = check(owner, who, user, state_dir) {
        tracing::info!(refusal = refusal.message, "shutdown refused");
        return to.answer(Err(refusal));
    }
    to.answer(Ok(Reply::Done));
    // A repeated request does not shorten the graces; only a second signal does.
    if !owner.stopping {
        owner.stop();
    }
}

fn check(owner: &Owner, who: ClientKind, user: &ClientUser, state_dir: &str) -> Result<(), Refusal> {
    if let Some(cell) = &user.cell {
        let why =
            format!("{cell} is on another machine, and only clients of this machine may end the supervisor");
        return Err(Refusal::new(RefusalCode::NotAuthorised, why));
    }
    if user.uid != owner.policy.own_uid && user.uid != 0 {
        return Err(Refusal::new(RefusalCode::NotAuthorised, "this supervisor runs as another user"));
    }
    check_state_dir(owner, state_dir)?;
    let others = owner.leases.values().filter(|e| !e.lease.state.is_ended() && e.commands.is_some());
    let others = others.filter(|e| who != ClientKind::Gateway(e.lease.gateway)).count();
    if others > 0 {
        return Err(Refusal::new(
            RefusalCode::InUse,
            format!("{others} leases of other gateways are living"),
        ));
    }
    Ok(())
}

/// Refuses a request that names another state directory.
pub(super) fn check_state_dir(owner: &Owner, state_dir: &str) -> Result<(), Refusal> {
    let same = |a: &Path, b: &Path| std::fs::canonicalize(a).ok() == std::fs::canonicalize(b).ok();
    if same(Path::new(state_dir), &owner.context.state_dir) {
        return Ok(());
    }
    let here = owner.context.state_dir.display();
    Err(Refusal::new(RefusalCode::NotAuthorised, format!("this supervisor's state directory is {here}")))
}
