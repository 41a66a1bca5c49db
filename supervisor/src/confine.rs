//! As whom and within which bounds processes of a tenant run: [`crate::core::tenant`] decides, this module looks up
//! what it needs.

use crate::context::Context;
use crate::core::tenant::{self, Account, Asker, Confined, Places, Tenant, tenant_of};
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

/// Looks up the gateway's user and the session's directories, and decides. All of it is looked up now: a user may
/// have got another group, and a path another link, since the supervisor was started.
///
/// # Errors
/// [`SpawnError::Refused`], and what cannot be looked up.
pub(crate) async fn confine<S: Sys>(
    context: &Arc<Context<S>>,
    customer: Customer,
    start: Start,
) -> Result<Confined, SpawnError> {
    let own_uid = rustix::process::geteuid().as_raw();
    let tenant = tenant_of(&context.tenants, customer.uid, customer.gateway);
    let look = Look {
        user: own_uid == 0 && customer.uid != 0,
        places: tenant.is_some_and(|tenant| tenant.landlock || !tenant.roots.is_empty()),
    };
    let at = Arc::clone(context);
    if !look.user && !look.places {
        return decide(&at.tenants, own_uid, customer, start, look);
    }
    let decided = context.blocking(move |_| Ok(decide(&at.tenants, own_uid, customer, start, look))).await;
    decided.unwrap_or_else(|source| Err(SpawnError::Io { what: "decide as whom it runs", source }))
}

/// Facts to look up.
#[derive(Debug, Clone, Copy)]
struct Look {
    user: bool,
    places: bool,
}

fn decide(
    tenants: &[Tenant],
    own_uid: u32,
    customer: Customer,
    start: Start,
    look: Look,
) -> Result<Confined, SpawnError> {
    let Customer { gateway, uid, gid } = customer;
    let known = if look.user { people::account(uid) } else { Ok(None) };
    let known = known.map_err(|source| SpawnError::Io { what: "look up the gateway's user", source })?;
    // One without an entry has the group that its gateway has, which the kernel told; nothing else is known of it.
    let account = known.unwrap_or(Account { uid, gid, groups: Vec::new(), entry: None });
    let places = if look.places { real_places(start.places)? } else { start.places };
    let asker = Asker { own_uid, account, gateway };
    tenant::confine(tenants, &asker, &start.env, &places).map_err(SpawnError::Refused)
}

/// The directories themselves, whatever links lead there. Roots after the first one, the working directory, that cannot
/// be found are left out.
fn real_places(sent: Places) -> Result<Places, SpawnError> {
    let real = |path: String| {
        let real = std::fs::canonicalize(&path).and_then(|real| {
            real.into_os_string().into_string().map_err(|_| io::ErrorKind::InvalidFilename.into())
        });
        real.map_err(|source| SpawnError::Place { path, source })
    };
    let mut roots = sent.roots.into_iter().map(real);
    let first = roots.next().transpose()?;
    Ok(Places {
        cwd: sent.cwd.map(real).transpose()?,
        roots: first.into_iter().chain(roots.filter_map(Result::ok)).collect(),
    })
}
