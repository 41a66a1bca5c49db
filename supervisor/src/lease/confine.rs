//! User and restrictions of a tenant's processes: [`crate::core::tenant`] decides, this module supplies its
//! inputs.

use crate::context::Context;
use crate::core::admission::ClientUser;
use crate::core::tenant::{self, Account, AdapterStart, SpawnDirectories, SpawnOrigin, Tenant};
use crate::lease::spawn::SpawnError;
use crate::sys::Sys;
use crate::sys::users;
use acp_shared::ids::GatewayInstanceId;
use std::io;
use std::sync::Arc;

/// Gateway requesting a process.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Requester {
    /// Installation of the gateway.
    pub(crate) gateway: GatewayInstanceId,
    /// User of the gateway. The group is used for agents of a user without a passwd entry.
    pub(crate) user: ClientUser,
}

/// Inputs of a confinement.
#[derive(Debug, Clone)]
pub(crate) struct ConfinementInput {
    /// Environment of the request.
    pub(crate) env: Vec<(String, String)>,
    /// Directories of the request.
    pub(crate) directories: SpawnDirectories,
}

/// Looks up the gateway's user, whose groups may have changed since the supervisor started, and decides.
/// Directories are not resolved here: links could change until they are used, and their file system may hang.
/// The wrapper and the file helper open them without following links.
///
/// [`SpawnError::Refused`], and errors of the look-up.
pub(crate) async fn confine<S: Sys>(
    context: &Arc<Context<S>>,
    requester: Requester,
    start: ConfinementInput,
) -> Result<AdapterStart, SpawnError> {
    let own_uid = rustix::process::geteuid().as_raw();
    let at = Arc::clone(context);
    let is_remote = requester.user.cell.is_some();
    if !is_remote && (own_uid != 0 || requester.user.uid == 0) {
        return decide(&at.tenants, own_uid, requester, Ok(None), &start);
    }
    let decided = context.blocking(move |_| {
        let known = users::account(requester.user.uid);
        Ok(decide(&at.tenants, own_uid, requester, known, &start))
    });
    decided
        .await
        .unwrap_or_else(|source| Err(SpawnError::Io { what: "determine the user that it runs as", source }))
}

fn decide(
    tenants: &[Tenant],
    own_uid: u32,
    requester: Requester,
    known: io::Result<Option<Account>>,
    start: &ConfinementInput,
) -> Result<AdapterStart, SpawnError> {
    let Requester { gateway, user: ClientUser { uid, gid, cell } } = requester;
    let known = known.map_err(|source| SpawnError::Io { what: "look up the gateway's user", source })?;
    // Without a passwd entry only the group of the gateway's process is known, as reported by the kernel.
    let account = known.unwrap_or(Account { uid, gid, groups: Vec::new(), entry: None });
    let origin = SpawnOrigin { own_uid, account, gateway, cell };
    tenant::confine(tenants, &origin, &start.env, &start.directories).map_err(SpawnError::Refused)
}
