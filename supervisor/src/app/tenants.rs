//! Tenants of the configuration, resolved on this machine when the supervisor starts: a missing user is an
//! error at start, not at the first spawn of an agent.

use crate::config::{Config, ConfigError, ResourceLimitValue, Switch, TenantConfig, Unlimited, UserOrGroup};
use crate::core::containment::CgroupLimits;
use crate::core::tenant::{Account, Tenant};
use crate::sys::users;
use acp_shared::launch::ResourceLimit;
use acp_shared::redact::Secret;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Resolves the tenants with their users, groups, directories and secrets.
///
/// # Errors
/// [`ConfigError::Tenant`] if a tenant is not valid for a supervisor of this user.
pub fn tenants(config: &Config, own_uid: u32) -> Result<Vec<Tenant>, ConfigError> {
    let tenants = config.each_tenant(|tenant| resolve(tenant, own_uid))?;
    let whom = |t: &Tenant| (t.uid, t.cell.clone(), t.instance_id);
    let again = |(at, t): &(usize, &Tenant)| tenants.iter().take(*at).any(|other| whom(other) == whom(t));
    match tenants.iter().enumerate().find(again) {
        Some((at, _)) => {
            let why = "selects the same gateways as an earlier one; merge the two".to_owned();
            Err(config.of_tenant(at, why))
        }
        None => Ok(tenants),
    }
}

/// Looks up users, groups, directories and the secret.
fn resolve(tenant: &TenantConfig, own_uid: u32) -> Result<Tenant, String> {
    let uid = match &tenant.user {
        Some(user) => Some(user_named(tenant, &UserOrGroup::Name(user.clone()))?.uid),
        None => tenant.uid,
    };
    let run_as = tenant.run_as_user.as_ref().map(|user| account(tenant, user, own_uid)).transpose()?;
    if tenant.cell.is_some() && run_as.is_none() && own_uid == 0 {
        return Err("has cell without run_as_user; name the user that its agents run as".into());
    }
    let limits = tenant.rlimits.iter().map(|(resource, limit)| {
        let (soft, hard) = match *limit {
            ResourceLimitValue::Both(both) => (both, both),
            ResourceLimitValue::Pair([soft, hard]) => (soft, hard),
            ResourceLimitValue::Word(Unlimited::Unlimited) => (u64::MAX, u64::MAX),
        };
        ResourceLimit { resource: *resource, soft, hard }
    });
    Ok(Tenant {
        uid,
        cell: tenant.cell.clone(),
        instance_id: tenant.instance_id,
        run_as,
        allow_root: tenant.allow_root,
        no_new_privs: tenant.no_new_privs,
        umask: tenant.umask,
        limits: limits.collect(),
        oom_score_adj: tenant.oom_score_adj,
        env_allow: tenant.env_allow.clone(),
        landlock: tenant.landlock == Switch::On,
        temp_dir: tenant.temp_dir.as_deref().map(directory).transpose()?,
        write_dirs: tenant.write_dirs.iter().map(|dir| directory(dir)).collect::<Result<_, _>>()?,
        roots: tenant.roots.iter().map(|dir| directory(dir)).collect::<Result<_, _>>()?,
        leases_max: tenant.leases_max,
        caps: CgroupLimits {
            memory_bytes_max: tenant.memory_max_bytes,
            pids_max: tenant.pids_max,
            cpu_weight: tenant.cpu_weight,
        },
        secret: tenant.secret_file.as_deref().map(|file| secret(file, own_uid, uid)).transpose()?,
    })
}

fn user_named(tenant: &TenantConfig, user: &UserOrGroup) -> Result<Account, String> {
    let account = match user {
        UserOrGroup::Number(uid) => users::account(*uid),
        UserOrGroup::Name(name) => match name.parse::<u32>() {
            Ok(uid) => users::account(uid),
            Err(_) => users::account_named(name),
        },
    };
    match (account, user, &tenant.run_as_group) {
        (Ok(Some(account)), ..) => Ok(account),
        (Ok(None), UserOrGroup::Number(uid), Some(group)) => {
            Ok(Account { uid: *uid, gid: group_id(group)?, groups: Vec::new(), entry: None })
        }
        (Ok(None), UserOrGroup::Number(uid), None) => Err(format!(
            "names user {uid}, who has no entry on this machine; add one, or set run_as_group too"
        )),
        (Ok(None), UserOrGroup::Name(name), _) => {
            Err(format!("names user {name:?}, who does not exist; create the user, or correct the name"))
        }
        (Err(error), ..) => Err(format!("names user {user}, who cannot be looked up: {error}")),
    }
}

fn account(tenant: &TenantConfig, user: &UserOrGroup, own_uid: u32) -> Result<Account, String> {
    let mut account = user_named(tenant, user)?;
    if own_uid != 0 {
        return Err(format!(
            "has run_as_user = {user}, and this supervisor does not run as root; start it as root, or remove it"
        ));
    }
    if account.uid == 0 && !tenant.allow_root {
        return Err("has run_as_user = root; choose another user, or set allow_root = true".into());
    }
    if let Some(group) = &tenant.run_as_group {
        account.gid = group_id(group)?;
    }
    if let Some(groups) = &tenant.groups {
        account.groups = groups.iter().map(group_id).collect::<Result<_, _>>()?;
    }
    Ok(account)
}

fn group_id(group: &UserOrGroup) -> Result<u32, String> {
    let name = match group {
        UserOrGroup::Number(gid) => return Ok(*gid),
        UserOrGroup::Name(name) => name,
    };
    if let Ok(gid) = name.parse() {
        return Ok(gid);
    }
    match users::group_named(name) {
        Ok(Some(gid)) => Ok(gid),
        Ok(None) => {
            Err(format!("names group {name:?}, which does not exist; create the group, or correct the name"))
        }
        Err(error) => Err(format!("names group {name:?}, which cannot be looked up: {error}")),
    }
}

/// Returns the canonical path of a directory, to compare sessions with it.
fn directory(path: &Path) -> Result<String, String> {
    let found = std::fs::canonicalize(path).and_then(|found| {
        if found.is_dir() { Ok(found) } else { Err(std::io::ErrorKind::NotADirectory.into()) }
    });
    match found.map(|found| found.into_os_string().into_string()) {
        Ok(Ok(found)) => Ok(found),
        Ok(Err(_)) => Err(format!("has the directory {}, whose name is not valid UTF-8", path.display())),
        Err(error) => Err(format!("has the directory {}, which cannot be used: {error}", path.display())),
    }
}

/// Reads a secret. A file that others can read or change is refused.
fn secret(path: &Path, own_uid: u32, uid: Option<u32>) -> Result<Secret, String> {
    let cannot = |error: std::io::Error| {
        format!("has the secret_file {}, which cannot be read: {error}", path.display())
    };
    let meta = std::fs::metadata(path).map_err(cannot)?;
    let trusted = meta.uid() == 0 || meta.uid() == own_uid || Some(meta.uid()) == uid;
    if !trusted || meta.mode() & 0o007 != 0 || meta.mode() & 0o020 != 0 {
        return Err(format!(
            "has the secret_file {}, which other users can read or change; give it to the gateway's user \
             with mode 0600",
            path.display()
        ));
    }
    let text = std::fs::read_to_string(path).map_err(cannot)?;
    let text = text.trim();
    if text.len() < crate::server::secret::TEXT_BYTES_MIN {
        return Err(format!(
            "has the secret_file {}, which holds less than {} characters; write 64 random characters",
            path.display(),
            crate::server::secret::TEXT_BYTES_MIN
        ));
    }
    Ok(Secret::new(text.to_owned()))
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;

    /// Errors from lookups on the machine name file and line too.
    #[test]
    fn missing_account_is_reported_with_file_and_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s.toml");
        std::fs::write(&path, "[[tenant]]\nuid = 1\n\n[[tenant]]\nuser = \"no-such-user-here\"").unwrap();
        let config = Config::load(Some(&path)).unwrap();
        let error = tenants(&config, 0).unwrap_err();
        assert!(error.to_string().contains(&format!("{}, line 4,", path.display())), "{error}");
        assert!(std::error::Error::source(&error).unwrap().to_string().contains("create the user"));
    }

    #[test]
    fn invalid_tenants_are_refused() {
        let own_uid = rustix::process::geteuid().as_raw();
        for (tenant, want) in [
            ("", "selects no gateway; set uid, user, cell or instance_id"),
            ("uid = 1\nuser = \"a\"", "more than one of uid, user and cell"),
            ("uid = 1\ncell = \"acp://p/cell/a\"", "more than one of uid, user and cell"),
            ("cell = \"acp://p/host/a\"", "which is a host"),
            ("cell = \"p/cell/a\"", "is not acp://PLANE/cell/ID"),
            ("cell = \"acp://p/cell/a\"\nsecret_file = \"/s\"", "remove secret_file"),
            (
                "cell = \"acp://p/cell/a\"\n[[tenant]]\ncell = \"acp://p/cell/a\"",
                if own_uid == 0 { "without run_as_user" } else { "the same gateways as an earlier one" },
            ),
            ("uid = 1\nrun_as_group = 1", "without run_as_user"),
            ("uid = 1\numask = 0o1000", "umask over 0o777"),
            ("uid = 1\noom_score_adj = 1001", "oom_score_adj"),
            ("uid = 1\ncpu_weight = 0", "cpu_weight"),
            ("uid = 1\nleases_max = 0", "a limit of 0"),
            ("uid = 1\nrlimits = { open_files = [2, 1] }", "above its hard limit"),
            ("uid = 1\nenv_allow = [\"A*B\"]", "a prefix with one * at its end"),
            ("uid = 1\nroots = [\"here\"]", "not absolute"),
            ("uid = 1\nroots = [\"/nonexistent/dir\"]", "cannot be used"),
            ("uid = 1\nsecret_file = \"/nonexistent/file\"", "cannot be read"),
            ("user = \"no-such-user-here\"", "create the user"),
            ("uid = 1\nrun_as_user = \"no-such-user-here\"", "create the user"),
            ("uid = 1\nrun_as_user = 4000000001", "set run_as_group too"),
            ("uid = 1\n[[tenant]]\nuid = 1", "the same gateways as an earlier one"),
        ] {
            let text = format!("[[tenant]]\n{tenant}");
            let error = Config::parse(&text).and_then(|config| tenants(&config, own_uid)).unwrap_err();
            assert!(error.to_string().contains(want), "{tenant}: {error}");
        }
        let text = "[[tenant]]\nuid = 1\nrun_as_user = 4000000001\nrun_as_group = 7";
        let config = Config::parse(text).unwrap();
        assert!(tenants(&config, 12345).unwrap_err().to_string().contains("start it as root"));
        let found = tenants(&config, 0).unwrap();
        assert_eq!(
            found[0].run_as.as_ref().map(|account| (account.uid, account.gid)),
            Some((4_000_000_001, 7))
        );
        let text = "[[tenant]]\nuid = 1\nrun_as_user = \"root\"";
        let error = tenants(&Config::parse(text).unwrap(), 0).unwrap_err();
        assert!(error.to_string().contains("allow_root = true"), "{error}");
        let error = Config::parse("[[tenant]]\nrun_as_usr = 1").unwrap_err().to_string();
        assert_eq!(error, r#"the configuration has no key "tenant.run_as_usr"; did you mean "run_as_user"?"#);
    }
}
