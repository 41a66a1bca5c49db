//! SessionLog: returns a piece of the standard error of a session's agents.

use crate::owner::{ClientKind, Owner};
use crate::relay::connection::Responder;
use acp_shared::ids::SessionKey;
use acp_shared::protocol::{LogFrom, RefusalCode, Reply};

/// Reads a piece of a session log. The path contains the gateway's id, so a gateway can read only its own
/// logs.
pub(super) fn handle(
    owner: &Owner,
    who: ClientKind,
    session_key: SessionKey,
    from: LogFrom,
    bytes_max: u64,
    to: Responder,
) {
    let ClientKind::Gateway(gateway) = who else {
        return to.refuse(RefusalCode::NotAuthorised, "only its gateway may read the log of a session");
    };
    let logs = owner.context.logs.clone();
    tokio::spawn(async move {
        match logs.read(gateway, &session_key, from, bytes_max).await {
            Ok(piece) => to.answer(Ok(Reply::SessionLog(piece))),
            Err(error) => {
                tracing::warn!(%error, %gateway, %session_key, "cannot read session log");
                to.refuse(RefusalCode::Busy, "the log of this session cannot be read now; try again");
            }
        }
    });
}
