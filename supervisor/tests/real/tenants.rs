//! Gateways of several users under a supervisor that runs as root. Where this test does not, it says so and is left

//! out.

use crate::common::{Client, Host, Identity, agent, eventually, runs, script};
use crate::files::{helpers, request};
use crate::start::{refused, requests_about};
use acp_shared::files::{FilesError, FilesOp, FilesReply, FilesRequest, FilesScope};
use acp_shared::protocol::{LeaseState, Refusal, RefusalCode, Reply, Request, Spawn};
use acp_testkit::ability::Ability;
use acp_testkit::possible;
use acp_testkit::processes::status_field;
use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Users of this test alone: they have no entry and no file. The group of each has another number than its user.
const A: u32 = 65_001;
const B: u32 = 65_002;
const RUNS_A: u32 = 65_003;
const RUNS_B: u32 = 65_004;

const fn group_of(uid: u32) -> u32 {
    uid + 100
}

/// Makes this thread one of the user, as the kernel tells whoever it connects to, and returns a runtime on it.
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

/// Does something on a thread that is this user.
pub(crate) fn as_user<T: Send + 'static>(uid: u32, work: impl AsyncFnOnce() -> T + Send + 'static) -> T {
    std::thread::spawn(move || become_user(uid).block_on(work())).join().unwrap()
}

/// A gateway of a user, connected for as long as the value lives; it is used from the test's own thread.
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

    /// What an agent printed until it ended.
    fn output(&mut self, spec: &Spawn) -> String {
        self.runtime.block_on(async {
            self.client.attach(spec.lease_id, 0).await;
            let (status, said) = self.client.all(spec.lease_id).await;
            assert_eq!(status, acp_shared::launch::ExitStatus::Exited(0), "{said}");
            said
        })
    }
}

fn status(pid: i32, field: &str) -> Vec<String> {
    status_field(pid, field).unwrap().split_ascii_whitespace().map(str::to_owned).collect()
}

/// Everything that one user's gateway may try against another's.
#[test]
fn a_gateway_of_one_user_has_no_hold_on_anothers_leases() {
    possible!(Ability::Root);
    let host = Host::public(&format!("allowed_uids = [{A}, {B}]"));
    let (of_a, of_b) = (host.gateway(), host.gateway());
    let (mut a, mut b) = (Tenant::connect(&of_a, A), Tenant::connect(&of_b, B));
    let spec = agent(&["cat"]);
    let pid = b.spawn(&spec);
    // Nobody gets more than the gateway's user has: its group is the one that the gateway itself has.
    let group = vec![group_of(B).to_string(); 4];
    assert_eq!((status(pid, "Uid"), status(pid, "Gid")), (vec![B.to_string(); 4], group));
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
    // As the other gateway, alive or away, and as an admin.
    let mut impostor = Identity { epoch: 99, ..of_b.clone() };
    for home in [of_b.home.clone(), acp_shared::protocol::Home { ino: 7, ..of_b.home.clone() }] {
        impostor.home = home;
        let identity = impostor.clone();
        let got = as_user(A, async move || identity.try_connect().await.map(drop));
        assert_eq!(refused(got).code, RefusalCode::InstanceOfOtherUser);
    }
    let mut cli = Command::new(host.program());
    let output =
        cli.args(["status", "--json", "--socket"]).arg(host.socket()).uid(A).gid(A).output().unwrap();
    assert!(String::from_utf8_lossy(&output.stdout).contains("NOT_AUTHORISED"), "{output:?}");
    let stranger = of_a.clone();
    let got = as_user(RUNS_A, async move || stranger.try_connect().await.map(drop));
    assert_eq!(refused(got).code, RefusalCode::NotAuthorised);
    // It never knew.
    assert_eq!(
        b.call(Request::Input { lease_id, seq: 1, bytes: b"y".to_vec() }),
        Ok(Reply::Written { seq: 1 })
    );
    assert!(runs(pid));
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

/// Whether this kernel can confine writes, as it does since version 3 of Landlock; else it says what it saw.
fn landlock() -> bool {
    let abi = acp_testkit::sys::landlock_abi();
    if !matches!(abi, Ok(3..)) {
        println!("probe: no Landlock that confines writes: {abi:?}: its part is left out");
    }
    matches!(abi, Ok(3..))
}

/// An agent that runs as another user, and writes only where its session works.
#[test]
fn a_confined_agent_reaches_nothing_of_its_supervisor_or_of_other_tenants() {
    possible!(Ability::Root);
    let place = tempfile::tempdir().unwrap();
    std::fs::set_permissions(place.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let open = place.path().join("open");
    std::fs::create_dir(&open).unwrap();
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o1777)).unwrap();
    let (work_a, work_b) = (home_of(place.path(), "a", RUNS_A), home_of(place.path(), "b", RUNS_B));
    let confined = landlock();
    let switch = if confined { "on" } else { "off" };
    let tenant = |uid: u32, runs: u32, work: &Path| {
        let work = work.display();
        format!(
            "[[tenant]]\nuid = {uid}\nrun_as_user = {runs}\nrun_as_group = {runs}\nroots = [\"{work}\"]\n\
             temp_dir = \"{work}\"\nlandlock = \"{switch}\"\numask = 0o077\nleases_max = 2\n\
             rlimits = {{ open_files = [64, 128] }}\nenv_allow = [\"PATH\", \"SHOWN\"]\n"
        )
    };
    let host = Host::public(&format!("{}{}", tenant(A, RUNS_A, &work_a), tenant(B, RUNS_B, &work_b)));
    let (mut a, mut b) = (Tenant::connect(&host.gateway(), A), Tenant::connect(&host.gateway(), B));
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
    let said = a.output(&spec);
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
        assert!(said.lines().any(|l| l == line), "{line}:\n{said}");
    }
    assert!(said.contains(&format!("uid {RUNS_A} gid {RUNS_A} groups {RUNS_A}\n")), "{said}");
    assert!(said.contains("umask 0077 files 64 128\n"), "{said}");
    assert!(said.contains(&format!("shown yes hidden  tmp {}\n", work_a.display())), "{said}");
    assert!(said.contains("NoNewPrivs:\t1"), "{said}");
    assert_eq!(std::fs::metadata(work_a.join("inside")).unwrap().uid(), RUNS_A);
    // Its three streams and the directory that `ls` reads: nothing leaked.
    assert!(said.ends_with("\n0\n1\n2\n3\n"), "{said}");
    // Elsewhere it does not even start; nor does more than is its share.
    let astray = within(agent(&["cat"]), &work_b);
    assert_eq!(a.call(Request::Spawn(astray)).unwrap_err().code, RefusalCode::NotAuthorised);
    let link = work_a.join("link");
    std::os::unix::fs::symlink(&work_b, &link).unwrap();
    let astray = Spawn { cwd: link.to_str().unwrap().into(), ..within(agent(&["cat"]), &work_a) };
    let refused = a.call(Request::Spawn(astray)).unwrap_err();
    assert_eq!(refused.code, RefusalCode::NotAuthorised, "{refused}");
    b.spawn(&within(agent(&["cat", "-"]), &work_b));
    let third = b.call(Request::Spawn(within(agent(&["cat"]), &work_b))).unwrap_err();
    assert_eq!(third.code, RefusalCode::QuotaExceeded);
    assert!(third.message.contains("[[tenant]]") && third.retry_after_ms.is_some(), "{third}");
    // The wrapper kept the power to end it.
    let reason = "test".to_owned();
    assert!(b.call(Request::CloseLease { lease_id: victim.lease_id, reason }).is_ok());
    eventually("the agent of another user is ended", || !runs(victim_pid));
}

/// Files of a session are touched as the user that its agents run as, and within its confinement.
#[test]
fn files_are_written_as_the_tenants_user() {
    possible!(Ability::Root);
    let place = tempfile::tempdir().unwrap();
    std::fs::set_permissions(place.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let (work, other) = (home_of(place.path(), "a", RUNS_A), home_of(place.path(), "b", RUNS_B));
    std::fs::write(other.join("private"), "of b").unwrap();
    std::fs::set_permissions(other.join("private"), std::fs::Permissions::from_mode(0o600)).unwrap();
    let confined = landlock();
    let host = Host::public(&format!(
        "[[tenant]]\nuid = {A}\nrun_as_user = {RUNS_A}\nrun_as_group = {RUNS_A}\nroots = [\"{}\"]\n\
         temp_dir = \"{}\"\nlandlock = \"{}\"\numask = 0o077\n[[tenant]]\nuid = {B}\nrun_as_user = {RUNS_B}\n\
         run_as_group = {RUNS_B}\n",
        work.display(),
        work.display(),
        if confined { "on" } else { "off" },
    ));
    let (identity, of_b) = (host.gateway(), host.gateway());
    let (mut a, mut b) = (Tenant::connect(&identity, A), Tenant::connect(&of_b, B));
    let dir = work.to_str().unwrap().to_owned();
    let spec = Spawn { cwd: dir.clone(), roots: vec![dir], ..agent(&["cat"]) };
    a.spawn(&spec);
    let scope = FilesScope::Lease(spec.lease_id);
    let mut ask = |scope, root: &Path, op| match a.call(request(scope, root, op)) {
        Ok(Reply::Files(answer)) => answer,
        other => panic!("{other:?}"),
    };
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let write = |path: &Path| FilesOp::Write { path: text(path), content: b"x".to_vec() };
    let written = work.join("new/file");
    assert_eq!(ask(scope, &work, write(&written)), Ok(FilesReply::Written));
    let meta = std::fs::metadata(&written).unwrap();
    assert_eq!((meta.uid(), meta.gid(), meta.mode() & 0o777), (RUNS_A, RUNS_A, 0o600));
    assert_eq!(std::fs::metadata(work.join("new")).unwrap().uid(), RUNS_A);
    let [helper] = helpers(identity.id)[..] else { panic!("one helper") };
    assert_eq!(status(helper, "Uid"), vec![RUNS_A.to_string(); 4]);
    assert_eq!(status(helper, "NoNewPrivs"), ["1"]);
    // Neither another tenant's directory nor a root outside of its own roots.
    let refused = ask(scope, &other, write(&other.join("x")));
    assert!(matches!(refused, Err(FilesError::NoHelper { .. })), "{refused:?}");
    // Nor a link that leads there, whoever opens it first.
    let (link, none) = (work.join("link"), work.join("none"));
    std::os::unix::fs::symlink(&other, &link).unwrap();
    assert_eq!(ask(scope, &link, write(&link.join("x"))), Err(FilesError::Outside));
    assert_eq!(ask(scope, &none, write(&none.join("x"))), Err(FilesError::NotFound));
    assert!(!other.join("x").exists());
    // Without roots of its own a tenant is still only its user.
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
    assert_eq!(std::fs::metadata(other.join("mine")).unwrap().uid(), RUNS_B);
}

/// Programs and directories are looked up as the user that agents run as; a missing additional root stops nothing.
#[test]
fn look_ups_are_made_as_the_tenants_user() {
    possible!(Ability::Root);
    let place = tempfile::tempdir().unwrap();
    std::fs::set_permissions(place.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let (own, other) = (home_of(place.path(), "a", RUNS_A), home_of(place.path(), "root", 0));
    for dir in [&own, &other] {
        std::fs::write(dir.join("tool"), "#!/bin/sh\n").unwrap();
        chown(dir.join("tool"), Some(RUNS_A), Some(RUNS_A)).unwrap();
        std::fs::set_permissions(dir.join("tool"), std::fs::Permissions::from_mode(0o755)).unwrap();
        std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o700)).unwrap();
    }
    let work = own.display();
    let host = Host::public(&format!(
        "[[tenant]]\nuid = {A}\nrun_as_user = {RUNS_A}\nrun_as_group = {RUNS_A}\nroots = [\"{work}\"]\n\
         landlock = \"{}\"\n",
        if landlock() { "on" } else { "off" },
    ));
    let mut gateway = Tenant::connect(&host.gateway(), A);
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
    // An additional root of a session that is gone.
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

/// The state of a supervisor is for its user alone, whatever the umask was.
#[test]
fn what_it_keeps_is_private() {
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

/// A tenant with a secret of its own: who does not know it is refused, and told what to do.
#[test]
fn a_tenant_must_know_its_secret() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("secret");
    std::fs::write(&file, "0123456789abcdef0123456789abcdef\n").unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    let uid = rustix::process::geteuid().as_raw();
    let host = Host::with_config(&format!("[[tenant]]\nuid = {uid}\nsecret_file = \"{}\"", file.display()));
    let runtime = current_thread();
    let mut identity = host.gateway();
    for secret in [place.path().join("none"), identity.secret.clone()] {
        identity.secret = secret;
        let refusal = refused(runtime.block_on(identity.try_connect()));
        assert_eq!(refusal.code, RefusalCode::NotAuthorised);
        assert!(refusal.message.contains("supervisor.secret_file"), "{refusal}");
    }
    identity.secret = file;
    drop(runtime.block_on(identity.connect()));
}

/// A user that makes gateways all day fills no table; those in use are never forgotten.
#[test]
fn the_gateways_of_a_user_are_bounded() {
    let host = Host::with_config("gateways_per_user_max = 2");
    let runtime = current_thread();
    let (first, second, third) = (host.gateway(), host.gateway(), host.gateway());
    let mut kept = runtime.block_on(first.connect());
    runtime.block_on(kept.spawn(&agent(&["cat"])));
    drop(kept);
    let open = runtime.block_on(second.connect());
    let refusal = refused(runtime.block_on(third.try_connect()));
    assert_eq!(refusal.code, RefusalCode::QuotaExceeded);
    assert!(refusal.message.contains("gateways_per_user_max"), "{refusal}");
    drop(open);
    eventually("the second one makes room", || runtime.block_on(third.try_connect()).is_ok());
    let mut copy = Identity { epoch: 2, ..first };
    copy.home.ino += 1;
    assert_eq!(refused(runtime.block_on(copy.try_connect())).code, RefusalCode::CloneDetected);
}

/// An agent that dies at once is not started over and over.
#[tokio::test]
async fn an_agent_that_keeps_crashing_is_held_back() {
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
    // Another agent is another matter, and one that is closed in order is none.
    for _ in 0..3 {
        let other = gateway.start(agent(&["cat"])).await;
        gateway.end(other.lease_id).await;
    }
    let status = host.json(&["status"]);
    assert!(status["warnings"].to_string().contains("crashed 2 times in a row"), "{status}");
}
