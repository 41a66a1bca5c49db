#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use super::*;
use acp_shared::launch::Resource;

/// Root of a spawn that stands for a private home directory.
const PRIVATE: &str = "~/.local/state/acp-host/acpx/0a";
const NOFILE: ResourceLimit = ResourceLimit { resource: Resource::OpenFiles, soft: 64, hard: 128 };

fn account(uid: u32) -> Account {
    let entry = Some(PasswdEntry {
        name: format!("user{uid}"),
        home: format!("/home/{uid}"),
        shell: "/usr/sbin/nologin".to_owned(),
    });
    Account { uid, gid: uid + 1, groups: vec![uid + 2], entry }
}

fn run_as(uid: u32) -> Option<RunAs> {
    Some(RunAs { uid, gid: uid + 1, groups: vec![uid + 2] })
}

fn directories(cwd: &str, roots: &[&str]) -> SpawnDirectories {
    let roots: Vec<String> = roots.iter().map(|s| (*s).into()).collect();
    SpawnDirectories::of_session(cwd, &roots)
}

fn env(names: &[&str]) -> Vec<(String, String)> {
    names.iter().map(|name| ((*name).to_owned(), "v".to_owned())).collect()
}

fn user(uid: u32, cell: Option<&str>) -> ClientUser {
    ClientUser { uid, gid: uid + 1, cell: cell.map(Into::into) }
}

fn tenant_of(uid: u32) -> Tenant {
    Tenant { uid: Some(uid), ..Tenant::default() }
}

#[test]
fn agent_user_follows_tenant_and_supervisor_user() {
    let run_as_900 = || Tenant { run_as: Some(account(900)), ..tenant_of(5) };
    let root = |allow_root| Tenant { run_as: Some(account(0)), allow_root, ..tenant_of(5) };
    for (name, own_uid, uid, tenant, want) in [
        ("own user", 5, 5, None, Ok(None)),
        ("root under root", 0, 0, None, Ok(None)),
        ("another user under root", 0, 5, None, Ok(run_as(5))),
        ("another user under a user", 7, 5, None, Ok(None)),
        ("tenant with run_as", 0, 5, Some(run_as_900()), Ok(run_as(900))),
        ("tenant of another user", 0, 6, Some(run_as_900()), Ok(run_as(6))),
        ("root without allow_root", 0, 5, Some(root(false)), Err("allow_root")),
        ("root with allow_root", 0, 5, Some(root(true)), Ok(run_as(0))),
        ("run_as without root", 7, 5, Some(run_as_900()), Err("runs as root")),
    ] {
        let origin =
            SpawnOrigin { own_uid, account: account(uid), gateway: GatewayInstanceId::mint(), cell: None };
        let tenants: Vec<Tenant> = tenant.into_iter().collect();
        let got = confine(&tenants, &origin, &env(&[]), &directories("/w", &[]));
        match want {
            Ok(want) => {
                let confined = got.unwrap();
                assert_eq!(confined.confine.no_new_privs, want.is_some(), "{name}");
                assert_eq!(confined.confine.run_as, want, "{name}");
            }
            Err(part) => {
                let refusal = got.unwrap_err();
                assert_eq!(refusal.code, RefusalCode::NotAuthorised, "{name}");
                assert!(refusal.message.contains(part), "{name}: {}", refusal.message);
            }
        }
    }
}

#[test]
fn tenant_settings_are_applied() {
    let tenant = Tenant {
        run_as: Some(account(900)),
        no_new_privs: Some(false),
        umask: Some(0o077),
        limits: vec![NOFILE],
        oom_score_adj: Some(500),
        landlock: true,
        write_dirs: vec!["/cache".into()],
        temp_dir: Some("/t".into()),
        ..tenant_of(5)
    };
    let origin =
        SpawnOrigin { own_uid: 0, account: account(5), gateway: GatewayInstanceId::mint(), cell: None };
    let got = confine(
        &[tenant],
        &origin,
        &env(&["TMPDIR", "HOME", "A"]),
        &directories("/w/a", &["/w/a", PRIVATE, "/x"]),
    );
    let write = ["/w/a", "/x", "/cache", "/t"].map(str::to_owned).to_vec();
    let below = PRIVATE.trim_start_matches("~/").to_owned();
    let private = vec![PrivateDirectory { home: "/home/900".into(), below }];
    let want = Confine {
        run_as: run_as(900),
        no_new_privs: false,
        umask: Some(0o077),
        limits: vec![NOFILE],
        oom_score_adj: Some(500),
        landlock: Some(Landlock { write, private, scope: true }),
        cwd_without_links: true,
    };
    let env =
        [("A", "v"), ("HOME", "/home/900"), ("USER", "user900"), ("LOGNAME", "user900"), ("TMPDIR", "/t")];
    let env = env.map(|(k, v)| (k.to_owned(), v.to_owned())).to_vec();
    assert_eq!(got, Ok(AdapterStart { confine: want, env }));
}

#[test]
fn only_allowed_variables_pass() {
    let sent = &[
        "PATH",
        "LD_PRELOAD",
        "LD_LIBRARY_PATH",
        "NOTIFY_SOCKET",
        "GLIBC_TUNABLES",
        "MY_A",
        "MY_B",
        ENV_LEASE_ID,
    ];
    let allow = |names: &[&str]| Some(names.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>());
    let all =
        &["PATH", "LD_PRELOAD", "LD_LIBRARY_PATH", "NOTIFY_SOCKET", "GLIBC_TUNABLES", "MY_A", "MY_B"][..];
    for (name, own_uid, uid, env_allow, want) in [
        ("own user", 5, 5, None, all),
        ("another user: no loader variables", 0, 5, None, &["PATH", "MY_A", "MY_B"][..]),
        ("a list of names", 5, 5, allow(&["PATH"]), &["PATH"][..]),
        ("a prefix", 0, 5, allow(&["MY_*"]), &["MY_A", "MY_B"][..]),
        ("loader variable allowed by name", 0, 5, allow(&["LD_PRELOAD"]), &["LD_PRELOAD"][..]),
        ("no markers", 5, 5, allow(&["*"]), all),
        ("none", 0, 5, allow(&[]), &[][..]),
    ] {
        let origin =
            SpawnOrigin { own_uid, account: account(uid), gateway: GatewayInstanceId::mint(), cell: None };
        let tenant = Tenant { env_allow, ..tenant_of(uid) };
        let got = confine(&[tenant], &origin, &env(sent), &directories("/w", &[])).unwrap().env;
        assert_eq!(got.iter().map(|(k, _)| k.as_str()).collect::<Vec<_>>(), want, "{name}");
    }
}

#[test]
fn directories_must_lie_in_tenant_roots() {
    let origin =
        SpawnOrigin { own_uid: 5, account: account(5), gateway: GatewayInstanceId::mint(), cell: None };
    for (name, directories, fits) in [
        ("the root itself", directories("/srv/a", &[]), true),
        ("below the root", directories("/srv/a/b/c", &["/srv/a/b", "/home/x"]), true),
        ("sibling", directories("/srv/b", &[]), false),
        ("sibling with the same prefix", directories("/srv/ab", &[]), false),
        ("private home directory", directories("/srv/a", &[PRIVATE]), true),
        ("additional root outside", directories("/srv/a", &["/etc"]), false),
        ("other directory of the home directory", directories("/srv/a", &["~/.ssh"]), false),
        ("parent component", directories("/srv/a/../b", &[]), false),
        ("not absolute", directories("srv/a", &[]), false),
    ] {
        let tenant = Tenant { roots: vec!["/srv/a".into(), "/home/x".into()], ..tenant_of(5) };
        assert_eq!(confine(&[tenant], &origin, &env(&[]), &directories).is_ok(), fits, "{name}");
        assert!(confine(&[tenant_of(5)], &origin, &env(&[]), &directories).is_ok(), "{name}: without roots");
    }
}

#[test]
fn most_specific_tenant_applies() {
    let (gateway, other) = (GatewayInstanceId::mint(), GatewayInstanceId::mint());
    let caps = |pids| CgroupLimits { pids_max: Some(pids), ..CgroupLimits::default() };
    let tenants = [
        Tenant { caps: caps(1), ..tenant_of(5) },
        Tenant { instance_id: Some(gateway), caps: caps(3), ..tenant_of(5) },
        Tenant { uid: None, instance_id: Some(gateway), caps: caps(2), ..Tenant::default() },
        Tenant { caps: caps(4), ..Tenant::default() },
    ];
    let defaults = CgroupLimits { memory_bytes_max: Some(9), pids_max: Some(9), cpu_weight: None };
    for (uid, instance, want) in [(5, other, 1), (6, gateway, 2), (5, gateway, 3), (6, other, 9)] {
        let got = cgroup_limits_for(&tenants, defaults, &user(uid, None), instance);
        assert_eq!(got, CgroupLimits { pids_max: Some(want), ..defaults }, "{uid} {want}");
    }
}

#[test]
fn cells_are_covered_by_their_tenants_only() {
    let gateway = GatewayInstanceId::mint();
    let caps = |pids| CgroupLimits { pids_max: Some(pids), ..CgroupLimits::default() };
    let cell = Some("acp://plane/cell/main".to_owned());
    let tenants = [
        Tenant { caps: caps(1), ..tenant_of(5) },
        Tenant { instance_id: Some(gateway), caps: caps(2), ..Tenant::default() },
        Tenant { cell: cell.clone(), caps: caps(3), ..Tenant::default() },
        Tenant { cell, instance_id: Some(gateway), caps: caps(4), ..Tenant::default() },
    ];
    let other = GatewayInstanceId::mint();
    for (cell, instance, want) in [
        (Some("acp://plane/cell/main"), other, Some(3)),
        (Some("acp://plane/cell/main"), gateway, Some(4)),
        (Some("acp://plane/cell/b"), gateway, None),
        (None, other, Some(1)),
        (None, gateway, Some(2)),
    ] {
        let found = super::tenant_of(&tenants, &user(5, cell), instance);
        assert_eq!(found.and_then(|tenant| tenant.caps.pids_max), want, "{cell:?}");
    }
}

#[test]
fn agents_of_remote_cells_get_the_login_of_their_user() {
    let sent = env(&["HOME", "USER", "LOGNAME", "SHELL", "LANG", "LD_PRELOAD", "SSH_AUTH_SOCK"]);
    let cell: Option<Arc<str>> = Some("acp://plane/cell/main".into());
    let tenant = |run_as: Option<Account>| Tenant {
        cell: Some("acp://plane/cell/main".to_owned()),
        run_as,
        ..Tenant::default()
    };
    let nameless = Account { entry: None, ..account(900) };
    for (own_uid, tenant, of, want) in [
        (0, tenant(Some(account(900))), account(900), Some("/home/900")),
        (0, tenant(Some(nameless.clone())), nameless, None),
        (7, tenant(None), account(7), Some("/home/7")),
    ] {
        let run_as = tenant.run_as.as_ref().map(|account| account.uid);
        let origin =
            SpawnOrigin { own_uid, account: of, gateway: GatewayInstanceId::mint(), cell: cell.clone() };
        let got = confine(&[tenant], &origin, &sent, &directories("/w", &[])).unwrap();
        assert_eq!(got.confine.run_as.map(|run_as| run_as.uid), run_as);
        let value = |name: &str| got.env.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
        assert_eq!((value("HOME"), value("LANG"), value("SHELL")), (want, Some("v"), Some("/bin/sh")));
        assert_eq!(value("USER"), value("LOGNAME"));
        assert_eq!((value("LD_PRELOAD"), value("SSH_AUTH_SOCK")), (None, None));
    }
    let origin = SpawnOrigin { own_uid: 0, account: account(5), gateway: GatewayInstanceId::mint(), cell };
    let refusal = confine(&[tenant(None)], &origin, &sent, &directories("/w", &[])).unwrap_err();
    assert!(refusal.message.contains("run_as_user"), "{}", refusal.message);
}
