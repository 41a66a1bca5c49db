//! As whom and within which bounds processes of a tenant run: [`crate::core::tenant`] decides, this module looks up
//! what it needs.

use crate::context::Context;
use crate::core::tenant::{self, Account, Asker, Confined, Places, Tenant};
use crate::spawn::SpawnError;
use crate::sys::{Sys, people};
use acp_shared::ids::GatewayInstanceId;
use std::io;
use std::sync::Arc;

/// A gateway that asks for a process, as the kernel said when it connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Customer {
    /// Its installation.
    pub(crate) gateway: GatewayInstanceId,
    /// Its user.
    pub(crate) uid: u32,
    /// Group of its process, for agents of a user without an entry.
    pub(crate) gid: u32,
}

/// Input of a confinement.
#[derive(Debug, Clone)]
pub(crate) struct Start {
    /// Environment that was sent.
    pub(crate) env: Vec<(String, String)>,
    /// Directories as they were sent.
    pub(crate) places: Places,
}

/// Looks up the gateway's user, which may have got another group since the supervisor was started, and decides.
/// Directories are not resolved here: links could change until they are used, and their file system may hang. The
/// wrapper and the file helper open them without following links.
///
/// # Errors
/// [`SpawnError::Refused`], and what cannot be looked up.
pub(crate) async fn confine<S: Sys>(
    context: &Arc<Context<S>>,
    customer: Customer,
    start: Start,
) -> Result<Confined, SpawnError> {
    let own_uid = rustix::process::geteuid().as_raw();
    let at = Arc::clone(context);
    if own_uid != 0 || customer.uid == 0 {
        return decide(&at.tenants, own_uid, customer, Ok(None), &start);
    }
    let decided = context
        .blocking(move |_| Ok(decide(&at.tenants, own_uid, customer, people::account(customer.uid), &start)));
    decided.await.unwrap_or_else(|source| Err(SpawnError::Io { what: "decide as whom it runs", source }))
}

fn decide(
    tenants: &[Tenant],
    own_uid: u32,
    customer: Customer,
    known: io::Result<Option<Account>>,
    start: &Start,
) -> Result<Confined, SpawnError> {
    let Customer { gateway, uid, gid } = customer;
    let known = known.map_err(|source| SpawnError::Io { what: "look up the gateway's user", source })?;
    // One without an entry has the group that its gateway has, which the kernel told; nothing else is known of it.
    let account = known.unwrap_or(Account { uid, gid, groups: Vec::new(), entry: None });
    let asker = Asker { own_uid, account, gateway };
    tenant::confine(tenants, &asker, &start.env, &start.places).map_err(SpawnError::Refused)
}
