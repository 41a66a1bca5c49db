//! Credentials, environment and limits of the agents of each gateway.
//!
//! A gateway never gets more privileges than its own user has: a supervisor that runs as root starts the
//! agents of another user's gateway as that user, unless a tenant configures another user. Root must be
//! allowed explicitly.

use crate::core::admission::ClientUser;
use crate::core::containment::CgroupLimits;
use acp_shared::ids::GatewayInstanceId;
use acp_shared::launch::{
    Confine, ENV_GATEWAY_INSTANCE_ID, ENV_LEASE_ID, Landlock, PrivateDirectory, ResourceLimit, RunAs,
};
use acp_shared::private_home;
use acp_shared::protocol::{Refusal, RefusalCode};
use acp_shared::redact::Secret;
use std::path::{Component, Path};
use std::sync::Arc;

/// Variables that are not passed on to another user: those that control the dynamic loader and the C library,
/// and those that belong to the sender's services. A `*` at the end matches any suffix.
pub const ENV_DENIED: &[&str] = &[
    "LD_*",
    "GCONV_PATH",
    "GETCONF_DIR",
    "GLIBC_TUNABLES",
    "HOSTALIASES",
    "LOCALDOMAIN",
    "LOCPATH",
    "MALLOC_*",
    "NLSPATH",
    "RESOLV_HOST_CONF",
    "RES_OPTIONS",
    "TZDIR",
    "BASH_ENV",
    "BASH_FUNC_*",
    "ACP_SUPERVISOR_*",
    "NOTIFY_SOCKET",
    "LISTEN_*",
    "WATCHDOG_*",
    "CREDENTIALS_DIRECTORY",
    "JOURNAL_STREAM",
    "INVOCATION_ID",
    "MAINPID",
    "DBUS_SESSION_BUS_ADDRESS",
    "SSH_AUTH_SOCK",
    "XDG_RUNTIME_DIR",
];
/// Writable directory for temporary files of a confined agent if no `temp_dir` is configured.
const TEMP_DIR: &str = "/tmp";
/// Shell of remote cells' agents whose user has none.
const SHELL: &str = "/bin/sh";

/// System user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    /// User id.
    pub uid: u32,
    /// Primary group.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
    /// Entry in the user database, if there is one.
    pub entry: Option<PasswdEntry>,
}

/// Entry of a user in the user database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PasswdEntry {
    /// Name.
    pub name: String,
    /// Home directory.
    pub home: String,
    /// Login shell; may be empty.
    pub shell: String,
}

impl Account {
    fn run_as(&self) -> RunAs {
        RunAs { uid: self.uid, gid: self.gid, groups: self.groups.clone() }
    }

    /// Returns a shell that runs commands. Users of services have one that refuses every login.
    fn shell(&self) -> &str {
        let shell = self.entry.as_ref().map_or("", |entry| entry.shell.as_str());
        if shell.is_empty() || shell.ends_with("/nologin") || shell.ends_with("/false") {
            SHELL
        } else {
            shell
        }
    }
}

/// Set of gateways and the settings of their agents, from the configuration, with names resolved.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tenant {
    /// Matches the gateways of this user.
    pub uid: Option<u32>,
    /// Matches the gateways of this remote cell, by the URI name of its certificate. Without it, a tenant matches
    /// gateways of this machine only.
    pub cell: Option<String>,
    /// Matches this gateway.
    pub instance_id: Option<GatewayInstanceId>,
    /// User that the agents run as.
    pub run_as: Option<Account>,
    /// True if the agents may run as root.
    pub allow_root: bool,
    /// Disables privileges from set-user-id programs (`no_new_privs`).
    pub no_new_privs: Option<bool>,
    /// File mode creation mask of the agents.
    pub umask: Option<u32>,
    /// Resource limits of the agents.
    pub limits: Vec<ResourceLimit>,
    /// OOM-killer score adjustment of the agents.
    pub oom_score_adj: Option<i32>,
    /// Names of variables passed to the agents, with `PREFIX_*` as patterns; `None` passes all but
    /// [`ENV_DENIED`].
    pub env_allow: Option<Vec<String>>,
    /// True if writes are confined by Landlock.
    pub landlock: bool,
    /// Directory for temporary files of the agents.
    pub temp_dir: Option<String>,
    /// Additional writable directories of the agents.
    pub write_dirs: Vec<String>,
    /// Allowed parent directories of sessions; empty allows any.
    pub roots: Vec<String>,
    /// Maximum number of running leases of this tenant.
    pub leases_max: Option<u64>,
    /// Limits of each process tree.
    pub caps: CgroupLimits,
    /// Secret that the tenant's gateways must present.
    pub secret: Option<Secret>,
}

impl Tenant {
    /// True if a gateway belongs to this tenant.
    #[must_use]
    pub fn covers(&self, uid: u32, cell: Option<&str>, gateway: GatewayInstanceId) -> bool {
        (self.uid.is_some() || self.cell.is_some() || self.instance_id.is_some())
            && self.cell.as_deref() == cell
            && self.uid.is_none_or(|of| of == uid)
            && self.instance_id.is_none_or(|of| of == gateway)
    }
}

/// Returns the tenant of a gateway: the most specific match.
#[must_use]
pub fn tenant_of<'a>(
    tenants: &'a [Tenant],
    user: &ClientUser,
    gateway: GatewayInstanceId,
) -> Option<&'a Tenant> {
    let exactness = |t: &&Tenant| (t.instance_id.is_some(), t.uid.is_some());
    tenants.iter().filter(|t| t.covers(user.uid, user.cell.as_deref(), gateway)).max_by_key(exactness)
}

/// Returns the limits of each process tree of a gateway.
#[must_use]
pub fn cgroup_limits_for(
    tenants: &[Tenant],
    defaults: CgroupLimits,
    user: &ClientUser,
    gateway: GatewayInstanceId,
) -> CgroupLimits {
    tenant_of(tenants, user, gateway).map_or(defaults, |tenant| tenant.caps.or(defaults))
}

/// Origin of a spawn request.
#[derive(Debug, Clone)]
pub struct SpawnOrigin {
    /// User id of this supervisor.
    pub own_uid: u32,
    /// User of the gateway.
    pub account: Account,
    /// Gateway id.
    pub gateway: GatewayInstanceId,
    /// URI name of a remote cell; `None` for a gateway of this machine.
    pub cell: Option<Arc<str>>,
}

impl SpawnOrigin {
    fn user(&self) -> ClientUser {
        ClientUser { uid: self.account.uid, gid: self.account.gid, cell: self.cell.clone() }
    }
}

/// Directories of a spawn request as named by the gateway. Symbolic links are not allowed; the kernel
/// enforces this when the directories are opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpawnDirectories {
    /// Working directory, if the session has one.
    pub cwd: Option<String>,
    /// Directories that the session works in.
    pub roots: Vec<String>,
    /// Paths of private home directories, below the home directory of the agents' user.
    pub private: Vec<String>,
}

impl SpawnDirectories {
    /// Returns the directories of a session with this working directory and these roots of a spawn.
    #[must_use]
    pub fn of_session(cwd: &str, all_roots: &[String]) -> Self {
        let private = all_roots.iter().filter_map(|root| private_home::of_root(root));
        let roots = all_roots.iter().filter(|root| private_home::of_root(root).is_none());
        Self {
            cwd: Some(cwd.to_owned()),
            roots: roots.cloned().collect(),
            private: private.map(str::to_owned).collect(),
        }
    }
}

/// Start settings of an adapter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdapterStart {
    /// User and restrictions.
    pub confine: Confine,
    /// Environment without the variables of the lease.
    pub env: Vec<(String, String)>,
}

/// Decides the settings with which a requested adapter is started.
///
/// # Errors
/// [`RefusalCode::NotAuthorised`] if the tenant's settings forbid the start.
pub fn confine(
    tenants: &[Tenant],
    origin: &SpawnOrigin,
    env: &[(String, String)],
    directories: &SpawnDirectories,
) -> Result<AdapterStart, Refusal> {
    let plain = Tenant::default();
    let tenant = tenant_of(tenants, &origin.user(), origin.gateway).unwrap_or(&plain);
    check_within(&tenant.roots, directories)?;
    let account = run_as(tenant, origin)?;
    let changes = account.is_some_and(|account| account.uid != origin.account.uid);
    let is_remote = origin.cell.is_some();
    let mut env = environment(tenant, account.is_some() || is_remote, env);
    if is_remote {
        // The gateway sends the variables of a login on another machine.
        env.retain(|(name, _)| !["HOME", "USER", "LOGNAME", "SHELL"].contains(&name.as_str()));
        set(&mut env, "SHELL", account.unwrap_or(&origin.account).shell());
    }
    let login =
        if is_remote { Some(account.unwrap_or(&origin.account)) } else { account.filter(|_| changes) };
    if let Some(PasswdEntry { name, home, .. }) = login.and_then(|account| account.entry.as_ref()) {
        for (key, value) in [("HOME", home), ("USER", name), ("LOGNAME", name)] {
            set(&mut env, key, value);
        }
    }
    if let Some(dir) = &tenant.temp_dir {
        set(&mut env, "TMPDIR", dir);
    }
    let home = env.iter().find(|(name, _)| name == "HOME").map(|(_, home)| home.as_str());
    let confine = Confine {
        run_as: account.map(Account::run_as),
        no_new_privs: tenant.no_new_privs.unwrap_or(account.is_some() || tenant.landlock),
        umask: tenant.umask,
        limits: tenant.limits.clone(),
        oom_score_adj: tenant.oom_score_adj,
        landlock: tenant.landlock.then(|| landlock(tenant, directories, home)),
        cwd_without_links: tenant.landlock || !tenant.roots.is_empty(),
    };
    Ok(AdapterStart { confine, env })
}

fn refused<T>(why: String) -> Result<T, Refusal> {
    Err(Refusal::new(RefusalCode::NotAuthorised, why))
}

fn run_as<'a>(tenant: &'a Tenant, origin: &'a SpawnOrigin) -> Result<Option<&'a Account>, Refusal> {
    let uid = origin.account.uid;
    let account = match &tenant.run_as {
        Some(account) => account,
        None if origin.own_uid == 0 && origin.cell.is_some() => {
            return refused("agents of a remote cell need run_as_user in its [[tenant]]".to_owned());
        }
        None if origin.own_uid == 0 && uid != 0 => &origin.account,
        None => return Ok(None),
    };
    if origin.own_uid != 0 {
        return refused(format!(
            "agents of user {uid} are to run as user {}, which only a supervisor that runs as root can do",
            account.uid
        ));
    }
    if account.uid == 0 && !tenant.allow_root {
        return refused(format!(
            "agents of user {uid} are to run as root, and allow_root = true is not in its [[tenant]]"
        ));
    }
    Ok(Some(account))
}

fn check_within(allowed: &[String], directories: &SpawnDirectories) -> Result<(), Refusal> {
    if allowed.is_empty() {
        return Ok(());
    }
    let fits = |path: &String| {
        let path = Path::new(path);
        let plain = path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
        path.is_absolute() && plain && allowed.iter().any(|root| path.starts_with(root))
    };
    directories.cwd.iter().chain(&directories.roots).find(|path| !fits(path)).map_or(Ok(()), |path| {
        refused(format!(
            "{path} is not below {}; choose another working directory, or add it to roots of the [[tenant]] in \
             the supervisor's configuration",
            allowed.join(" or ")
        ))
    })
}

fn landlock(tenant: &Tenant, directories: &SpawnDirectories, home: Option<&str>) -> Landlock {
    let temp = tenant.temp_dir.as_deref().unwrap_or(TEMP_DIR);
    let all = directories.roots.iter().chain(&directories.cwd).chain(&tenant.write_dirs).map(String::as_str);
    let mut write: Vec<String> = Vec::new();
    for dir in all.chain([temp]) {
        if !write.iter().any(|known| known == dir) {
            write.push(dir.to_owned());
        }
    }
    // Without a usable HOME there is no private home directory; the bridge of acpx reports that.
    let private = home.filter(|home| home.starts_with('/')).into_iter().flat_map(|home| {
        let directory = |below: &String| PrivateDirectory { home: home.to_owned(), below: below.clone() };
        directories.private.iter().map(directory)
    });
    Landlock { write, private: private.collect(), scope: true }
}

/// True if a pattern, `PREFIX*` or a whole name, matches this name.
fn matches(pattern: &str, name: &str) -> bool {
    pattern.strip_suffix('*').map_or(pattern == name, |prefix| name.starts_with(prefix))
}

fn environment(tenant: &Tenant, other_user: bool, sent: &[(String, String)]) -> Vec<(String, String)> {
    let passes = |name: &str| match &tenant.env_allow {
        _ if name == ENV_LEASE_ID || name == ENV_GATEWAY_INSTANCE_ID => false,
        Some(allow) => allow.iter().any(|pattern| matches(pattern, name)),
        None => !other_user || !ENV_DENIED.iter().any(|pattern| matches(pattern, name)),
    };
    sent.iter().filter(|(name, _)| passes(name)).cloned().collect()
}

fn set(env: &mut Vec<(String, String)>, name: &str, value: &str) {
    env.retain(|(key, _)| key != name);
    env.push((name.to_owned(), value.to_owned()));
}

#[cfg(test)]
#[path = "tenant_tests.rs"]
mod tests;
