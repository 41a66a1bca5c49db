//! User, limits and rulesets of the adapter. Most tests need root.

use crate::rig::{Rig, is_alive, landlock_works, program, script, status_field, user};
use acp_shared::launch::{Confine, Landlock, Launch, PrivateDirectory, Resource, ResourceLimit, RunAs};
use acp_testkit::ability::{self, Ability};
use acp_testkit::skip_unless;
use nix::libc;
use rustix::process::Signal;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};

const UID: u32 = 64_123;
const GID: u32 = 64_124;

fn confined(text: &str, confine: Confine) -> Launch {
    Launch { confine, ..script(text) }
}

fn writable_roots(roots: &[&Path], scope: bool) -> Confine {
    let write = roots.iter().map(|root| root.to_str().unwrap().to_owned()).collect();
    Confine { landlock: Some(Landlock { write, scope, ..Landlock::default() }), ..Confine::default() }
}

/// Runs a script to its end and returns its output.
fn output_of(launch: &Launch) -> String {
    let mut rig = Rig::running(launch);
    let output = rig.read_all();
    assert_eq!(rig.exit_code(), 0, "{output}");
    output
}

/// Directory of this user that everybody can enter.
fn directory_of(uid: u32) -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    chown(directory.path(), Some(uid), None).unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let path = directory.path().canonicalize().unwrap();
    (directory, path)
}

#[test]
fn adapter_runs_as_user_without_capabilities() {
    skip_unless!(Ability::Root);
    let run_as = RunAs { uid: UID, gid: GID, groups: vec![7, 64_200] };
    for (groups, want) in [(vec![7, 64_200], "7 64200"), (Vec::new(), "")] {
        let run_as = Some(RunAs { groups, ..run_as.clone() });
        let launch = confined("cat /proc/self/status", Confine { run_as, ..Confine::default() });
        let status = output_of(&launch);
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            line.unwrap().split_whitespace().collect::<Vec<_>>().join(" ")
        };
        assert_eq!(field("Uid"), format!("{UID} {UID} {UID} {UID}"));
        assert_eq!(field("Gid"), format!("{GID} {GID} {GID} {GID}"));
        assert_eq!(field("Groups"), want);
        for set in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
            assert_eq!(field(set), "0".repeat(16), "{set}");
        }
        assert_eq!(field("NoNewPrivs"), "0", "not requested");
    }
}

#[test]
fn umask_limits_and_no_new_privs_are_applied() {
    let limits = vec![
        ResourceLimit { resource: Resource::OpenFiles, soft: 61, hard: 67 },
        ResourceLimit { resource: Resource::Core, soft: 0, hard: 4096 },
        ResourceLimit { resource: Resource::FileSize, soft: 1 << 20, hard: 1 << 21 },
        ResourceLimit { resource: Resource::Cpu, soft: 1000, hard: 2000 },
        ResourceLimit { resource: Resource::AddressSpace, soft: 1 << 32, hard: 1 << 33 },
        ResourceLimit { resource: Resource::Data, soft: 1 << 30, hard: 1 << 31 },
        ResourceLimit { resource: Resource::Processes, soft: 3000, hard: 3001 },
    ];
    let confine = Confine { umask: Some(0o027), limits, no_new_privs: true, ..Confine::default() };
    let launch = confined("cat /proc/self/limits; grep -E 'Umask|NoNewPrivs' /proc/self/status", confine);
    let output = output_of(&launch);
    let lines: Vec<Vec<&str>> = output.lines().map(|line| line.split_whitespace().collect()).collect();
    let has = |want: &str| {
        let want: Vec<&str> = want.split(' ').collect();
        assert!(lines.iter().any(|line| line.starts_with(&want)), "{want:?} is not in {output}");
    };
    has("Max open files 61 67");
    has("Max core file size 0 4096");
    has("Max file size 1048576 2097152");
    has("Max cpu time 1000 2000");
    has("Max address space 4294967296 8589934592");
    has("Max data size 1073741824 2147483648");
    has("Max processes 3000 3001");
    has("Umask: 0027");
    has("NoNewPrivs: 1");
}

#[test]
fn wrapper_is_not_confined() {
    skip_unless!(Ability::Root);
    let limits = vec![ResourceLimit { resource: Resource::OpenFiles, soft: 5, hard: 5 }];
    let confine = Confine { no_new_privs: true, limits, ..user(UID, GID) };
    let mut rig = Rig::running(&confined("echo up; read x", confine));
    rig.read_until("up");
    let of_wrapper = |name| status_field(rig.wrapper_pid(), name).unwrap();
    assert!(of_wrapper("Uid").starts_with("0\t0\t0"));
    assert_eq!(of_wrapper("NoNewPrivs"), "0");
    let limits = fs::read_to_string(format!("/proc/{}/limits", rig.wrapper_pid())).unwrap();
    assert!(!limits.lines().any(|line| line.starts_with("Max open files            5 ")), "{limits}");
}

#[test]
fn set_user_id_program_gains_no_privilege() {
    skip_unless!(Ability::Root);
    let (_directory, path) = directory_of(0);
    let id = path.join("id");
    fs::copy("/usr/bin/id", &id).unwrap();
    fs::set_permissions(&id, fs::Permissions::from_mode(0o4755)).unwrap();
    let text = format!("{} -u", id.display());
    let mut confine = user(UID, GID);
    let gained = output_of(&confined(&text, confine.clone()));
    if gained.trim() != "0" {
        println!(
            "probe: a set-user-id program on {} gains no privilege without no_new_privs either: {gained}",
            path.display()
        );
    }
    confine.no_new_privs = true;
    assert_eq!(output_of(&confined(&text, confine)).trim(), UID.to_string());
}

#[test]
fn directory_program_and_stdio_are_opened_as_user() {
    skip_unless!(Ability::Root);
    let (_directory, path) = directory_of(0);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
    let mut launch = confined("exit 0", user(UID, GID));
    launch.cwd = path.to_str().unwrap().to_owned();
    Rig::assert_exec_fails(&launch, "chdir", libc::EACCES, 126);
    let own = path.join("agent");
    fs::write(&own, "#!/bin/sh\n").unwrap();
    fs::set_permissions(&own, fs::Permissions::from_mode(0o700)).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    let mut launch = program(&[own.to_str().unwrap()]);
    launch.confine = user(UID, GID);
    Rig::assert_exec_fails(&launch, "exec", libc::EACCES, 126);
    launch.confine = Confine::default();
    assert_eq!(output_of(&launch), "", "root can run the program");
    let launch =
        confined("echo out > /dev/stdout; echo err > /dev/stderr; read x < /dev/stdin", user(UID, GID));
    let mut rig = Rig::running(&launch);
    std::io::Write::write_all(rig.stdin.as_mut().unwrap(), b"line\n").unwrap();
    assert_eq!(rig.read_all(), "out\nerr\n");
    assert_eq!(rig.exit_code(), 0);
}

#[test]
fn confined_user_cannot_read_wrapper() {
    skip_unless!(Ability::Root);
    let text = "for file in $(readlink /proc/$PPID/exe) /proc/$PPID/environ /proc/$PPID/mem /proc/$PPID/fd/3; do \
                cat $file 2>/dev/null && echo read $file; done; \
                ls /proc/$PPID/fd >/dev/null 2>&1 && echo listed; echo done; read x";
    let mut rig = Rig::running(&confined(text, user(UID, GID)));
    assert_eq!(rig.read_until("done\n"), "done\n");
    let launch = rig.launch_file();
    let readers = fs::metadata(&launch).unwrap().permissions().mode() & 0o077;
    let of_directory = fs::metadata(launch.parent().unwrap()).unwrap().permissions().mode() & 0o077;
    assert_eq!((readers, of_directory), (0, 0));
}

#[test]
fn writes_are_limited_to_roots() {
    if !landlock_works() {
        return;
    }
    let (_inside, inside) = directory_of(0);
    let (_outside, outside) = directory_of(0);
    let (one, held) = (outside.join("one"), outside.join("held"));
    fs::write(&one, "").unwrap();
    fs::write(&held, "precious").unwrap();
    let (i, o) = (inside.display(), outside.display());
    let text = format!(
        "cd {i}; mkdir d && echo x > d/f && mv d/f g && ln g h && ln -s g l && mkfifo p && rm h && rmdir d && \
         truncate -s 1 g && echo inside || exit 1; echo y > {o}/one && echo file || exit 2; \
         echo z > /dev/null && (exec > /dev/full; exit 0) && echo devices || exit 3; cat {o}/held && echo; \
         try() {{ \"$@\" 2>/dev/null && echo \"could $*\"; }}; \
         try sh -c 'echo x > {o}/held'; try sh -c 'echo x > {o}/new'; try truncate -s 0 {o}/held; try rm {o}/held; \
         try mkdir {o}/d; try ln {i}/g {o}/g; try ln {o}/held {i}/held; try mv {o}/held {i}/held; try mv {i}/g {o}/g; \
         try ln -s x {o}/l; try mkfifo {o}/p; try rmdir {o}; try mknod {o}/n c 1 3; \
         try setsid sh -c 'echo x > {o}/new'; echo done"
    );
    let missing = Path::new("/no/such/root");
    let output = output_of(&confined(&text, writable_roots(&[missing, &inside, &one], false)));
    assert_eq!(output, "inside\nfile\ndevices\nprecious\ndone\n");
    assert_eq!(fs::read_to_string(&held).unwrap(), "precious");
    assert_eq!(fs::read_to_string(&one).unwrap(), "y\n");
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 2);
}

/// The private directory of a tree is created as its user, and no directory around it is writable.
#[test]
fn private_directory_is_created_and_writable() {
    if !landlock_works() {
        return;
    }
    let is_root = ability::has(Ability::Root).is_ok();
    let (base, home) = directory_of(if is_root { UID } else { rustix::process::getuid().as_raw() });
    let link = base.path().with_extension("link");
    std::os::unix::fs::symlink(&home, &link).unwrap();
    let below = ".local/state/app/one";
    let confine = |home: &Path, below: &str| {
        let private = vec![PrivateDirectory { home: home.to_str().unwrap().into(), below: below.into() }];
        let landlock = Some(Landlock { private, scope: true, ..Landlock::default() });
        Confine { landlock, ..if is_root { user(UID, GID) } else { Confine::default() } }
    };
    let (own, over) = (home.join(below), home.join(".local/state/app"));
    fs::create_dir_all(home.join("target")).unwrap();
    let text = format!(
        "try() {{ \"$@\" 2>/dev/null && echo \"could $*\"; }}; cd {own} && mkdir d && echo x > d/f && mv d/f g && rm -r d && \
         echo own; try touch {over}/two; try mkdir {over}/two; try touch {home}/x; try mv {own} {over}/two; echo done",
        own = own.display(),
        over = over.display(),
        home = home.display(),
    );
    // The second start finds the directory, the third one a home directory by a link.
    for at in [&home, &home, &link] {
        assert_eq!(output_of(&confined(&text, confine(at, below))), "own\ndone\n");
    }
    let mode = fs::metadata(&own).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o700);
    // A link in its place, or above it, would redirect the permission.
    std::os::unix::fs::symlink(home.join("target"), over.join("linked")).unwrap();
    for below in [".local/state/app/linked", ".local/state/app/linked/deep"] {
        let launch = confined("exit 0", confine(&home, below));
        Rig::assert_exec_fails(&launch, "private_home", libc::ELOOP, 126);
    }
    fs::write(over.join("file"), "").unwrap();
    Rig::assert_exec_fails(
        &confined("exit 0", confine(&home, ".local/state/app/file")),
        "private_home",
        libc::ENOTDIR,
        126,
    );
    fs::remove_file(link).unwrap();
    if is_root {
        let (_base, home) = directory_of(0);
        fs::create_dir(home.join("of-root")).unwrap();
        Rig::assert_exec_fails(
            &confined("exit 0", confine(&home, "of-root")),
            "private_home",
            libc::EPERM,
            126,
        );
        Rig::assert_exec_fails(&confined("exit 0", confine(&home, "new")), "private_home", libc::EACCES, 126);
    }
}

#[test]
fn confined_signals_reach_only_own_tree() {
    let mut kinds = Vec::new();
    if landlock_works() {
        kinds.push(("scope", writable_roots(&[], true)));
    }
    if ability::has(Ability::Root).is_ok() {
        kinds.push(("user", user(UID, GID)));
    }
    for (name, confine) in kinds {
        let me = std::process::id();
        let text = format!(
            "sleep 60 & kill -0 $! && kill $! && echo own; kill -0 $PPID 2>/dev/null && echo wrapper; \
             kill -0 {me} 2>/dev/null && echo supervisor; kill -0 -$PPID 2>/dev/null && echo group; wait; echo done"
        );
        assert_eq!(output_of(&confined(&text, confine)), "own\ndone\n", "{name}");
    }
    // Without confinement the same signals are allowed.
    assert_eq!(output_of(&script("kill -0 $PPID && echo wrapper")), "wrapper\n");
}

/// A confined tree of the supervisor's own user cannot read its memory or environment. Root is excluded: its
/// capabilities override the ruleset.
#[test]
fn confined_tree_cannot_read_other_processes() {
    skip_unless!(Ability::Root);
    if !landlock_works() {
        return;
    }
    let text = "cat /proc/$PPID/environ >/dev/null 2>&1 && echo wrapper; cat /proc/self/environ >/dev/null && echo own";
    for (confine, want) in [(Confine::default(), "wrapper\nown\n"), (writable_roots(&[], true), "own\n")] {
        let mut rig = Rig::start_as(UID, &confined(text, confine));
        rig.run_adapter();
        assert_eq!(rig.read_all(), want);
    }
}

#[test]
fn tree_of_another_user_ends() {
    skip_unless!(Ability::Root);
    let stay = "trap \"\" TERM; echo up.; while :; do sleep 0.05; done";
    let mut confine = user(UID, GID);
    confine.no_new_privs = true;
    if landlock_works() {
        confine.landlock = Some(Landlock { write: vec!["/tmp".into()], scope: true, ..Landlock::default() });
    }
    let text = format!(
        "setsid sh -c '{stay}' & setsid env -i /bin/sh -c '(setsid sh -c \"{}\") &' & {stay}",
        stay.replace('"', "\\\"")
    );
    let mut launch = confined(&text, confine);
    launch.term_grace_ms = 200;
    let mut rig = Rig::running(&launch);
    rig.read_until_times("up.", 3);
    let tree = rig.descendants();
    assert!(tree.len() >= 3, "{tree:?}");
    drop(rig.control.take());
    assert_eq!(rig.exit_code(), 137);
    assert!(tree.iter().all(|pid| !is_alive(*pid)), "{tree:?}");
}

/// A change of the user resets the parent death signal; the wrapper sets it again.
#[test]
fn adapter_of_another_user_dies_with_killed_wrapper() {
    skip_unless!(Ability::Root);
    let mut rig =
        Rig::running(&confined("trap '' TERM HUP; echo up; while :; do sleep 0.05; done", user(UID, GID)));
    rig.read_until("up");
    let tree = rig.descendants();
    rig.signal(Signal::KILL);
    assert_eq!(rig.exit_code(), 1000 + 9);
    let adapter = tree[0];
    crate::rig::eventually("the adapter is dead", || !is_alive(adapter));
}

#[test]
fn invalid_confinement_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let link = dir.path().join("link");
    std::os::unix::fs::symlink("/", &link).unwrap();
    let limit = ResourceLimit { resource: Resource::OpenFiles, soft: 2, hard: 1 };
    for (name, confine, errno) in [
        ("umask", Confine { umask: Some(0o1000), ..Confine::default() }, libc::EINVAL),
        ("score", Confine { oom_score_adj: Some(1001), ..Confine::default() }, libc::EINVAL),
        ("invalid uid", user(u32::MAX, GID), libc::EINVAL),
        ("invalid gid", user(UID, u32::MAX), libc::EINVAL),
        ("relative root", writable_roots(&[Path::new("tmp")], false), libc::EINVAL),
        ("a root that became a link", writable_roots(&[&link], false), libc::ELOOP),
        ("limit", Confine { limits: vec![limit], ..Confine::default() }, libc::EINVAL),
    ] {
        let mut rig = Rig::start(&confined("exit 0", confine));
        assert_eq!(rig.setup_errno(), errno, "{name}");
    }
}

#[test]
fn working_directory_replaced_by_link_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (real, link) = (dir.path().canonicalize().unwrap(), dir.path().join("link"));
    std::os::unix::fs::symlink("/", &link).unwrap();
    let confine = Confine { cwd_without_links: true, ..Confine::default() };
    let mut launch = confined("pwd -P; ls /proc/self/fd | tail -n 1", confine);
    launch.cwd = real.to_str().unwrap().to_owned();
    // The last descriptor is that of `ls`: the wrapper closed the directory.
    assert_eq!(output_of(&launch), format!("{}\n3\n", real.display()));
    for descendants in ["", "/tmp"] {
        launch.cwd = format!("{}{descendants}", link.display());
        let rig = Rig::start(&launch);
        assert_eq!(rig.exec_errno(), (libc::ELOOP, "chdir".to_owned()), "{descendants:?}");
    }
}

#[test]
fn unprivileged_wrapper_refuses_other_user() {
    skip_unless!(Ability::Root);
    let launch = confined("exit 0", user(UID, GID));
    let mut rig = Rig::start_as(UID, &launch);
    assert_eq!(rig.setup_errno(), libc::EPERM);
    // Settings without privilege apply; a limit that needs privilege is reported.
    let mut launch = confined("id -u; umask", Confine { umask: Some(0o077), ..Confine::default() });
    let mut rig = Rig::start_as(UID, &launch);
    rig.run_adapter();
    assert_eq!(rig.read_all(), format!("{UID}\n0077\n"));
    launch.confine.limits =
        [0, 1].map(|hard| ResourceLimit { resource: Resource::Core, soft: 0, hard }).to_vec();
    let rig = Rig::start_as(UID, &launch);
    assert_eq!(rig.exec_errno(), (libc::EPERM, "setrlimit".to_owned()));
}

/// The kernel limits the number of stacked rulesets.
#[test]
fn unenforceable_ruleset_is_refused() {
    if !landlock_works() {
        return;
    }
    let (_directory, path) = directory_of(0);
    let ran = path.join("ran");
    let mut launch = confined(&format!("touch {}", ran.display()), writable_roots(&[&path], false));
    launch.cwd = "/".to_owned();
    let rig = Rig::start_with_landlock_exhausted(&launch);
    assert_eq!(rig.exec_errno(), (libc::E2BIG, "landlock".to_owned()));
    assert!(!ran.exists());
}
