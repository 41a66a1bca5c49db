//! Upgrade (H14): replaces the running program. Admin only, with the right state directory.

use super::{admin_only, shutdown};
use crate::owner::{ClientKind, Owner};
use crate::relay::connection::Responder;

pub(super) fn handle(
    owner: &mut Owner,
    who: ClientKind,
    program: Option<String>,
    state_dir: &str,
    to: Responder,
) {
    match admin_only(owner, who).and_then(|()| shutdown::check_state_dir(owner, state_dir)) {
        Ok(()) => owner.upgrade(program, to),
        Err(refusal) => {
            tracing::info!(refusal = refusal.message, "upgrade refused");
            to.answer(Err(refusal));
        }
    }
}
