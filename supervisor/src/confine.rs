//! As whom and within which bounds a lease's processes run: what [`crate::core::tenant`] decides upon is looked up
//! here.

use crate::context::Context;
use crate::core::lease::Lease;
use crate::core::tenant::{self, Account, Asker, Confined, Places, Tenant, tenant_of};
use crate::spawn::{Asked, SpawnError};
use crate::sys::{Sys, people};
use acp_shared::ids::GatewayInstanceId;
use acp_shared::protocol::Spawn;
use std::io;
use std::sync::Arc;

/// Looks up the gateway's user and the session's directories, and decides. All of it is looked up now: a user may
/// have got another group, and a path another link, since the supervisor was started.
///
/// # Errors
/// [`SpawnError::Refused`], and what cannot be looked up.
pub(crate) async fn confine<S: Sys>(
    context: &Arc<Context<S>>,
    lease: &Lease,
    asked: &Asked,
) -> Result<Confined, SpawnError> {
    let own_uid = rustix::process::geteuid().as_raw();
    let tenant = tenant_of(&context.tenants, lease.owner_uid, lease.gateway);
    let look = Look {
        user: own_uid == 0 && lease.owner_uid != 0,
        places: tenant.is_some_and(|tenant| tenant.landlock || !tenant.roots.is_empty()),
    };
    let (at, gateway, uid) = (Arc::clone(context), lease.gateway, lease.owner_uid);
    if !look.user && !look.places {
        return decide(&at.tenants, own_uid, (uid, gateway), asked, look);
    }
    let asked = asked.clone();
    let decided =
        context.blocking(move |_| Ok(decide(&at.tenants, own_uid, (uid, gateway), &asked, look))).await;
    decided.unwrap_or_else(|source| Err(SpawnError::Io { what: "decide as whom it runs", source }))
}

/// What has to be looked up, since something depends on it.
#[derive(Debug, Clone, Copy)]
struct Look {
    user: bool,
    places: bool,
}

fn decide(
    tenants: &[Tenant],
    own_uid: u32,
    (uid, gateway): (u32, GatewayInstanceId),
    Asked { spec, gid }: &Asked,
    look: Look,
) -> Result<Confined, SpawnError> {
    let known = if look.user { people::account(uid) } else { Ok(None) };
    let known = known.map_err(|source| SpawnError::Io { what: "look up the gateway's user", source })?;
    // One without an entry has the group that its gateway has, which the kernel told; nothing else is known of it.
    let account = known.unwrap_or(Account { uid, gid: *gid, groups: Vec::new(), entry: None });
    let places = if look.places { real_places(spec)? } else { as_sent(spec) };
    let asker = Asker { own_uid, account, gateway };
    tenant::confine(tenants, &asker, spec, &places).map_err(SpawnError::Refused)
}

fn as_sent(spec: &Spawn) -> Places {
    Places { cwd: spec.cwd.clone(), roots: spec.roots.clone() }
}

/// The directories themselves, whatever links lead there.
fn real_places(spec: &Spawn) -> Result<Places, SpawnError> {
    let cannot = |path: &String, source| SpawnError::Place { path: path.clone(), source };
    let real = |path: &String| {
        let real = std::fs::canonicalize(path).map_err(|source| cannot(path, source))?;
        real.into_os_string().into_string().map_err(|_| cannot(path, io::ErrorKind::InvalidFilename.into()))
    };
    Ok(Places { cwd: real(&spec.cwd)?, roots: spec.roots.iter().map(real).collect::<Result<_, _>>()? })
}
