//! Gateways of several users under a supervisor that runs as root. Skipped without root.

use crate::common::{Client, Host, Identity, agent, eventually, is_alive, script};
use crate::files::{helpers, request};
use crate::scenarios::{refusal_of, requests_about};
use acp_shared::files::{FilesError, FilesOp, FilesReply, FilesRequest, FilesScope};
use acp_shared::protocol::{LeaseState, Refusal, RefusalCode, Reply, Request, Spawn};
use acp_testkit::ability::Ability;
use acp_testkit::processes::status_field;
use acp_testkit::skip_unless;
use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Users of this test only, without entries or files. Group ids differ from user ids.
const UID_A: u32 = 65_001;
const UID_B: u32 = 65_002;
const AGENT_UID_A: u32 = 65_003;
const AGENT_UID_B: u32 = 65_004;

const fn group_of(uid: u32) -> u32 {
    uid + 100
}

/// Changes this thread to the user, as seen by the peers of its connections, and returns a runtime on it.
fn become_user(uid: u32) -> tokio::runtime::Runtime {
    let (user, group) = (Uid::from_raw(uid), Gid::from_raw(group_of(uid)));
    set_thread_groups(&[]).unwrap();
    set_thread_res_gid(group, group, group).unwrap();
    set_thread_res_uid(user, user, user).unwrap();
    current_thread()
}

fn current_thread() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// Runs work on a thread of this user.
pub(crate) fn as_user<T: Send + 'static>(uid: u32, work: impl AsyncFnOnce() -> T + Send + 'static) -> T {
    std::thread::spawn(move || become_user(uid).block_on(work())).join().unwrap()
}

/// A connected gateway of a user, called from the test's thread.
struct Tenant {
    runtime: tokio::runtime::Runtime,
    client: Client,
}

impl Tenant {
    fn connect(identity: &Identity, uid: u32) -> Self {
        let identity = identity.clone();
        let thread = std::thread::spawn(move || {
            let runtime = become_user(uid);
            let client = runtime.block_on(identity.connect());
            Self { runtime, client }
        });
        thread.join().unwrap()
    }

    fn call(&mut self, body: Request) -> Result<Reply, Refusal> {
        self.runtime.block_on(self.client.call(body))
    }

    fn spawn(&mut self, spec: &Spawn) -> i32 {
        self.runtime.block_on(self.client.spawn(spec)).adapter_pid.unwrap()
    }

    /// Output of an agent until its end.
    fn output(&mut self, spec: &Spawn) -> String {
        self.runtime.block_on(async {
            self.client.attach(spec.lease_id, 0).await;
            let (status, output) = self.client.read_to_exit(spec.lease_id).await;
            assert_eq!(status, acp_shared::launch::ExitStatus::Exited(0), "{output}");
            output
        })
    }
}

fn status(pid: i32, field: &str) -> Vec<String> {
    status_field(pid, field).unwrap().split_ascii_whitespace().map(str::to_owned).collect()
}

/// One user's gateway tries everything against another's.
#[test]
fn gateway_cannot_use_leases_of_another_user() {
    skip_unless!(Ability::Root);
    let host = Host::public(&format!("allowed_uids = [{UID_A}, {UID_B}]"));
    let (of_a, of_b) = (host.gateway(), host.gateway());
    let (mut a, mut b) = (Tenant::connect(&of_a, UID_A), Tenant::connect(&of_b, UID_B));
    let spec = agent(&["cat"]);
    let pid = b.spawn(&spec);
    // The agent has the user and group of its gateway, and no more.
    let group = vec![group_of(UID_B).to_string(); 4];
    assert_eq!((status(pid, "Uid"), status(pid, "Gid")), (vec![UID_B.to_string(); 4], group));
    assert!(status(pid, "Groups").is_empty());
    let lease_id = spec.lease_id;
    assert_eq!(a.call(Request::ListLeases { detail: true }), Ok(Reply::Leases(vec![])));
    for body in requests_about(lease_id) {
        assert_eq!(a.call(body.clone()).unwrap_err().code, RefusalCode::LeaseUnknown, "{body:?}");
    }
    let taken = Spawn { lease_id, ..agent(&["cat"]) };
    assert_eq!(a.call(Request::Spawn(taken)).unwrap_err().code, RefusalCode::LeaseConflict);
    for body in [Request::Reap { dry_run: true }, Request::Reap { dry_run: false }] {
        assert_eq!(a.call(body).unwrap_err().code, RefusalCode::NotAuthorised);
    }
    let state_dir = host.state_dir().to_str().unwrap().to_owned();
    assert!(a.call(Request::Shutdown { state_dir }).is_err());
    // With the identity of the other gateway, connected or not, and as an admin.
    let mut impostor = Identity { epoch: 99, ..of_b.clone() };
    for home in [of_b.home.clone(), acp_shared::protocol::Home { ino: 7, ..of_b.home.clone() }] {
        impostor.home = home;
        let identity = impostor.clone();
        let got = as_user(UID_A, async move || identity.try_connect().await.map(drop));
        assert_eq!(refusal_of(got).code, RefusalCode::InstanceOfOtherUser);
    }
    let mut cli = Command::new(host.program());
    let output =
        cli.args(["status", "--json", "--socket"]).arg(host.socket()).uid(UID_A).gid(UID_A).output().unwrap();
    assert!(String::from_utf8_lossy(&output.stdout).contains("NOT_AUTHORISED"), "{output:?}");
    let unknown = of_a.clone();
    let got = as_user(AGENT_UID_A, async move || unknown.try_connect().await.map(drop));
    assert_eq!(refusal_of(got).code, RefusalCode::NotAuthorised);
    // The other gateway is not affected.
    assert_eq!(
        b.call(Request::Input { lease_id, seq: 1, bytes: b"y".to_vec() }),
        Ok(Reply::Written { seq: 1 })
    );
    assert!(is_alive(pid));
    let log = host.log();
    let count = |text: &str| log.lines().filter(|line| line.contains(text)).count();
    let foreign = format!("owner={}", of_b.id);
    assert_eq!(
        log.lines().filter(|l| l.contains("another gateway") && l.contains(&foreign)).count(),
        8,
        "{log}"
    );
    assert!(count("belongs to another user") >= 2, "{log}");
    assert!(
        count("may not administer this supervisor") >= 1 && count("may not connect a gateway") >= 1,
        "{log}"
    );
    assert!(count("only for the admin CLI") >= 2, "{log}");
}

fn home_of(base: &Path, name: &str, uid: u32) -> PathBuf {
    let dir = base.join(name);
    std::fs::create_dir(&dir).unwrap();
    chown(&dir, Some(uid), Some(uid)).unwrap();
    dir
}

/// True if Landlock can confine writes (version 3). Otherwise prints the version.
fn can_confine_writes() -> bool {
    let abi = acp_testkit::sys::landlock_abi();
    if !matches!(abi, Ok(3..)) {
        println!("probe: no Landlock that confines writes: {abi:?}: partly skipped");
    }
    matches!(abi, Ok(3..))
}

/// The agent runs as another user and writes only in its session's directory.
#[test]
fn confined_agent_cannot_reach_supervisor_or_other_tenants() {
    skip_unless!(Ability::Root);
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let open = dir.path().join("open");
    std::fs::create_dir(&open).unwrap();
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o1777)).unwrap();
    let (work_a, work_b) = (home_of(dir.path(), "a", AGENT_UID_A), home_of(dir.path(), "b", AGENT_UID_B));
    let confined = can_confine_writes();
    let switch = if confined { "on" } else { "off" };
    let tenant = |uid: u32, agent_uid: u32, work: &Path| {
        let work = work.display();
        format!(
            "[[tenant]]\nuid = {uid}\nrun_as_user = {agent_uid}\nrun_as_group = {agent_uid}\nroots = [\"{work}\"]\n\
             temp_dir = \"{work}\"\nlandlock = \"{switch}\"\numask = 0o077\nleases_max = 2\n\
             rlimits = {{ open_files = [64, 128] }}\nenv_allow = [\"PATH\", \"SHOWN\"]\n"
        )
    };
    let host = Host::public(&format!(
        "{}{}",
        tenant(UID_A, AGENT_UID_A, &work_a),
        tenant(UID_B, AGENT_UID_B, &work_b)
    ));
    let (mut a, mut b) = (Tenant::connect(&host.gateway(), UID_A), Tenant::connect(&host.gateway(), UID_B));
    let within = |spec: Spawn, work: &Path| {
        let work = work.to_str().unwrap().to_owned();
        let mut spec = Spawn { cwd: work.clone(), roots: vec![work], ..spec };
        spec.env.push(("SHOWN".into(), "yes".into()));
        spec.env.push(("HIDDEN".into(), "no".into()));
        spec
    };
    let victim = within(agent(&["cat"]), &work_b);
    let victim_pid = b.spawn(&victim);
    let wrapper_pid = status(victim_pid, "PPid")[0].clone();
    let probe = [
        "set +e; try() { name=$1; shift; if \"$@\" >/dev/null 2>&1; then echo \"$name yes\"; else echo \"$name no\"; fi; }",
        "try own_root touch inside",
        "try null sh -c 'echo x > /dev/null'",
        &format!("try outside touch {}/outside", open.display()),
        &format!("try other_root touch {}/x", work_b.display()),
        &format!("try state_dir ls {}", host.state_dir().display()),
        &format!("try secret cat {}", host.state_dir().join("secret").display()),
        &format!("try environ cat /proc/{victim_pid}/environ"),
        &format!("try wrapper_environ cat /proc/{wrapper_pid}/environ"),
        "try own_wrapper_environ cat /proc/$PPID/environ",
        &format!("try supervisor_environ cat /proc/{}/environ", host.pid()),
        &format!("try kill_supervisor kill -0 {}", host.pid()),
        &format!("try kill_other kill -0 {victim_pid}"),
        "try kill_wrapper kill -0 $PPID",
        &format!("try socket {} status --socket {}", host.program().display(), host.socket().display()),
        "echo \"uid $(id -u) gid $(id -g) groups $(id -G)\"",
        "echo \"umask $(umask) files $(ulimit -Sn) $(ulimit -Hn)\"",
        "echo \"shown $SHOWN hidden $HIDDEN tmp $TMPDIR\"",
        "echo \"nnp $(grep NoNewPrivs /proc/self/status)\"",
        "exec ls /proc/self/fd",
    ]
    .join("\n");
    let spec = within(script(&probe), &work_a);
    a.spawn(&spec);
    let output = a.output(&spec);
    for (name, want) in [
        ("own_root", "yes"),
        ("null", "yes"),
        ("outside", if confined { "no" } else { "yes" }),
        ("other_root", "no"),
        ("state_dir", "no"),
        ("secret", "no"),
        ("environ", "no"),
        ("wrapper_environ", "no"),
        ("own_wrapper_environ", "no"),
        ("supervisor_environ", "no"),
        ("kill_supervisor", "no"),
        ("kill_other", "no"),
        ("kill_wrapper", "no"),
        ("socket", "no"),
    ] {
        let line = format!("{name} {want}");
        assert!(output.lines().any(|l| l == line), "{line}:\n{output}");
    }
    assert!(
        output.contains(&format!("uid {AGENT_UID_A} gid {AGENT_UID_A} groups {AGENT_UID_A}\n")),
        "{output}"
    );
    assert!(output.contains("umask 0077 files 64 128\n"), "{output}");
    assert!(output.contains(&format!("shown yes hidden  tmp {}\n", work_a.display())), "{output}");
    assert!(output.contains("NoNewPrivs:\t1"), "{output}");
    assert_eq!(std::fs::metadata(work_a.join("inside")).unwrap().uid(), AGENT_UID_A);
    // Three streams and the directory that `ls` reads.
    assert!(output.ends_with("\n0\n1\n2\n3\n"), "{output}");
    // Spawns in another directory or beyond the quota are refused.
    let outside = within(agent(&["cat"]), &work_b);
    assert_eq!(a.call(Request::Spawn(outside)).unwrap_err().code, RefusalCode::NotAuthorised);
    let link = work_a.join("link");
    std::os::unix::fs::symlink(&work_b, &link).unwrap();
    let outside = Spawn { cwd: link.to_str().unwrap().into(), ..within(agent(&["cat"]), &work_a) };
    let refused = a.call(Request::Spawn(outside)).unwrap_err();
    assert_eq!(refused.code, RefusalCode::NotAuthorised, "{refused}");
    b.spawn(&within(agent(&["cat", "-"]), &work_b));
    let third = b.call(Request::Spawn(within(agent(&["cat"]), &work_b))).unwrap_err();
    assert_eq!(third.code, RefusalCode::QuotaExceeded);
    assert!(third.message.contains("[[tenant]]") && third.retry_after_ms.is_some(), "{third}");
    // The wrapper can still end the agent.
    let reason = "test".to_owned();
    assert!(b.call(Request::CloseLease { lease_id: victim.lease_id, reason }).is_ok());
    eventually("the agent of another user is ended", || !is_alive(victim_pid));
}

/// File requests run as the tenant's user within its confinement.
#[test]
fn files_are_written_as_tenant_user() {
    skip_unless!(Ability::Root);
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let (work, other) = (home_of(dir.path(), "a", AGENT_UID_A), home_of(dir.path(), "b", AGENT_UID_B));
    std::fs::write(other.join("private"), "of b").unwrap();
    std::fs::set_permissions(other.join("private"), std::fs::Permissions::from_mode(0o600)).unwrap();
    let confined = can_confine_writes();
    let host = Host::public(&format!(
        "[[tenant]]\nuid = {UID_A}\nrun_as_user = {AGENT_UID_A}\nrun_as_group = {AGENT_UID_A}\nroots = [\"{}\"]\n\
         temp_dir = \"{}\"\nlandlock = \"{}\"\numask = 0o077\n[[tenant]]\nuid = {UID_B}\nrun_as_user = {AGENT_UID_B}\n\
         run_as_group = {AGENT_UID_B}\n",
        work.display(),
        work.display(),
        if confined { "on" } else { "off" },
    ));
    let (identity, of_b) = (host.gateway(), host.gateway());
    let (mut a, mut b) = (Tenant::connect(&identity, UID_A), Tenant::connect(&of_b, UID_B));
    let dir = work.to_str().unwrap().to_owned();
    let spec = Spawn { cwd: dir.clone(), roots: vec![dir], ..agent(&["cat"]) };
    a.spawn(&spec);
    let scope = FilesScope::Lease(spec.lease_id);
    // A request while the helper of a refused one ends is refused as busy.
    let mut ask = |scope, root: &Path, op: FilesOp| {
        let mut answer = None;
        eventually("a helper answers", || match a.call(request(scope, root, op.clone())) {
            Ok(Reply::Files(files)) => {
                answer = Some(files);
                true
            }
            Err(refusal) if refusal.code == RefusalCode::Busy => false,
            other => panic!("{other:?}"),
        });
        answer.unwrap()
    };
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let write = |path: &Path| FilesOp::Write { path: text(path), content: b"x".to_vec() };
    let written = work.join("new/file");
    assert_eq!(ask(scope, &work, write(&written)), Ok(FilesReply::Written));
    let meta = std::fs::metadata(&written).unwrap();
    assert_eq!((meta.uid(), meta.gid(), meta.mode() & 0o777), (AGENT_UID_A, AGENT_UID_A, 0o600));
    assert_eq!(std::fs::metadata(work.join("new")).unwrap().uid(), AGENT_UID_A);
    let [helper] = helpers(identity.id)[..] else { panic!("one helper") };
    assert_eq!(status(helper, "Uid"), vec![AGENT_UID_A.to_string(); 4]);
    assert_eq!(status(helper, "NoNewPrivs"), ["1"]);
    // Another tenant's directory and foreign roots are refused.
    let refused = ask(scope, &other, write(&other.join("x")));
    assert!(matches!(refused, Err(FilesError::NoHelper { .. })), "{refused:?}");
    // So is a link to them.
    let (link, none) = (work.join("link"), work.join("none"));
    std::os::unix::fs::symlink(&other, &link).unwrap();
    assert_eq!(ask(scope, &link, write(&link.join("x"))), Err(FilesError::Outside));
    assert_eq!(ask(scope, &none, write(&none.join("x"))), Err(FilesError::NotFound));
    assert!(!other.join("x").exists());
    // A tenant without roots is limited by its user's permissions.
    let private = text(&other.join("private"));
    let read = |path: String| FilesOp::Read { path, line: None, limit: None, bytes_max: 9 };
    let of_others = b.call(request(FilesScope::Tenant, &work, read(text(&written))));
    assert_eq!(of_others, Ok(Reply::Files(Err(FilesError::Denied))));
    let own = b.call(request(FilesScope::Tenant, &other, read(private)));
    assert_eq!(own, Ok(Reply::Files(Err(FilesError::Denied))), "the file belongs to root");
    let spec = agent(&["cat"]);
    b.spawn(&spec);
    let own = b.call(request(FilesScope::Lease(spec.lease_id), &other, write(&other.join("mine"))));
    assert_eq!(own, Ok(Reply::Files(Ok(FilesReply::Written))));
    assert_eq!(std::fs::metadata(other.join("mine")).unwrap().uid(), AGENT_UID_B);
}

/// Lookups of programs and directories ignore missing additional roots.
#[test]
fn lookups_run_as_tenant_user() {
    skip_unless!(Ability::Root);
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let (own, other) = (home_of(dir.path(), "a", AGENT_UID_A), home_of(dir.path(), "root", 0));
    for dir in [&own, &other] {
        std::fs::write(dir.join("tool"), "#!/bin/sh\n").unwrap();
        chown(dir.join("tool"), Some(AGENT_UID_A), Some(AGENT_UID_A)).unwrap();
        std::fs::set_permissions(dir.join("tool"), std::fs::Permissions::from_mode(0o755)).unwrap();
        std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o700)).unwrap();
    }
    let work = own.display();
    let host = Host::public(&format!(
        "[[tenant]]\nuid = {UID_A}\nrun_as_user = {AGENT_UID_A}\nrun_as_group = {AGENT_UID_A}\nroots = [\"{work}\"]\n\
         landlock = \"{}\"\n",
        if can_confine_writes() { "on" } else { "off" },
    ));
    let mut gateway = Tenant::connect(&host.gateway(), UID_A);
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let mut ask = |scope, roots: &[String], op| {
        let request = FilesRequest { scope, roots: roots.to_vec(), op };
        match gateway.call(Request::Files(request)) {
            Ok(Reply::Files(Ok(answer))) => answer,
            other => panic!("{other:?}"),
        }
    };
    let paths = vec![text(&own), text(&other), text(&own.join("none")), text(&own.join("tool"))];
    let found = ask(FilesScope::Tenant, &[], FilesOp::Directories { paths });
    let want = vec![
        Ok(text(&own)),
        Err(FilesError::Denied),
        Err(FilesError::NotFound),
        Err(FilesError::NotDirectory),
    ];
    assert_eq!(found, FilesReply::Directories(want));
    let names = vec!["tool".to_owned(), text(&other.join("tool")), text(&own.join("tool"))];
    let search = format!("{}:{}", other.display(), own.display());
    let found = ask(FilesScope::Tenant, &[], FilesOp::Programs { names, search });
    let tool = text(&own.join("tool"));
    assert_eq!(found, FilesReply::Programs(vec![Some(tool.clone()), None, Some(tool)]));
    // A missing additional root of a session.
    let roots = vec![text(&own), text(&own.join("none"))];
    let spec = Spawn { cwd: text(&own), roots: roots.clone(), ..agent(&["cat"]) };
    let op = FilesOp::Directory { path: text(&own) };
    let want = FilesReply::Directory { path: text(&own), roots: vec![text(&own)] };
    assert_eq!(ask(FilesScope::Tenant, &roots, op.clone()), want);
    gateway.spawn(&spec);
    let answer =
        gateway.call(Request::Files(FilesRequest { scope: FilesScope::Lease(spec.lease_id), roots, op }));
    assert_eq!(answer, Ok(Reply::Files(Ok(want))));
}

/// The state is private to the supervisor's user, whatever the umask.
#[test]
fn state_directory_is_private() {
    let host = Host::new();
    let mode = |path: PathBuf| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let state = host.state_dir();
    for dir in ["", "wrappers", "wrappers/versions", "spool"] {
        assert_eq!(mode(state.join(dir)), 0o700, "{dir}");
    }
    for file in ["secret", "supervisor.sock", "lock"] {
        assert_eq!(mode(state.join(file)), 0o600, "{file}");
    }
}

/// The refusal without the secret names the remedy.
#[test]
fn tenant_secret_is_required() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("secret");
    std::fs::write(&file, "0123456789abcdef0123456789abcdef\n").unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    let uid = rustix::process::geteuid().as_raw();
    let host = Host::with_config(&format!("[[tenant]]\nuid = {uid}\nsecret_file = \"{}\"", file.display()));
    let runtime = current_thread();
    let mut identity = host.gateway();
    for secret in [dir.path().join("none"), identity.secret.clone()] {
        identity.secret = secret;
        let refusal = refusal_of(runtime.block_on(identity.try_connect()));
        assert_eq!(refusal.code, RefusalCode::NotAuthorised);
        assert!(refusal.message.contains("supervisor.secret_file"), "{refusal}");
    }
    identity.secret = file;
    drop(runtime.block_on(identity.connect()));
}

/// Unused gateways of a user are forgotten; those with leases are kept.
#[test]
fn gateways_per_user_are_bounded() {
    let host = Host::with_config("gateways_per_user_max = 2");
    let runtime = current_thread();
    let (first, second, third) = (host.gateway(), host.gateway(), host.gateway());
    let mut kept = runtime.block_on(first.connect());
    runtime.block_on(kept.spawn(&agent(&["cat"])));
    drop(kept);
    let open = runtime.block_on(second.connect());
    let refusal = refusal_of(runtime.block_on(third.try_connect()));
    assert_eq!(refusal.code, RefusalCode::QuotaExceeded);
    assert!(refusal.message.contains("gateways_per_user_max"), "{refusal}");
    drop(open);
    eventually("the second one makes room", || runtime.block_on(third.try_connect()).is_ok());
    let mut copy = Identity { epoch: 2, ..first };
    copy.home.ino += 1;
    assert_eq!(refusal_of(runtime.block_on(copy.try_connect())).code, RefusalCode::CloneDetected);
}

#[tokio::test]
async fn crashing_agent_is_delayed() {
    let (host, mut gateway) = Host::serving("crash_backoff_ms = 60000").await;
    let missing = agent(&["/nonexistent/agent"]);
    assert_eq!(gateway.call(Request::Spawn(missing)).await.unwrap_err().code, RefusalCode::SpawnFailed);
    for _ in 0..2 {
        let spec = gateway.start(script("exit 3")).await;
        gateway.state(spec.lease_id, LeaseState::Closed).await;
    }
    let refusal = gateway.call(Request::Spawn(script("exit 3"))).await.unwrap_err();
    assert_eq!(refusal.code, RefusalCode::CrashLoop);
    assert!(refusal.retry_after_ms.is_some_and(|ms| ms > 1_000 && ms <= 60_000), "{refusal:?}");
    assert!(refusal.message.contains("crashed 2 times in a row"), "{refusal}");
    // Other agents and orderly closes do not count.
    for _ in 0..3 {
        let other = gateway.start(agent(&["cat"])).await;
        gateway.close_and_wait(other.lease_id).await;
    }
    let status = host.json(&["status"]);
    assert!(status["warnings"].to_string().contains("crashed 2 times in a row"), "{status}");
}
