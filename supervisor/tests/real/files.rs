//! File requests, served by one helper process for each lease.

use crate::common::{Client, Host, TIMEOUT, agent, eventually, is_alive, kill, report};
use crate::upgrade::reconnect;
use acp_shared::files::{FilesError, FilesOp, FilesReply, FilesRequest, FilesScope};
use acp_shared::ids::{GatewayInstanceId, LeaseId};
use acp_shared::launch::ENV_GATEWAY_INSTANCE_ID;
use acp_shared::protocol::{RefusalCode, Reply, Request};
use acp_testkit::processes::{all_pids, has_env, status_field};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::process::Signal;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

type FilesResult = Result<FilesReply, FilesError>;

/// Running file helpers of a gateway. The wrapper's environment names it: the helper's own can be read by root only.
pub(crate) fn helpers(gateway: GatewayInstanceId) -> Vec<i32> {
    let is_helper = |pid: &i32| {
        let cmdline = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        cmdline.split(|b| *b == 0).any(|arg| arg == b"files-helper")
            && is_alive(*pid)
            && has_env(wrapper(*pid), ENV_GATEWAY_INSTANCE_ID, &gateway.to_string())
    };
    all_pids().into_iter().filter(is_helper).collect()
}

/// Pid of a helper's wrapper; 0 without one.
fn wrapper(helper: i32) -> i32 {
    status_field(helper, "PPid").map_or(0, |pid| pid.parse().unwrap())
}

pub(crate) fn request(scope: FilesScope, root: &Path, op: FilesOp) -> Request {
    Request::Files(FilesRequest { scope, roots: vec![root.to_str().unwrap().to_owned()], op })
}

fn files_result(reply: Reply) -> FilesResult {
    match reply {
        Reply::Files(files_result) => files_result,
        other => panic!("{other:?}"),
    }
}

/// Answers a file request. Repeats one that is refused as busy: a helper ends before the next one starts.
async fn call(gateway: &mut Client, body: Request) -> FilesResult {
    let until = Instant::now() + TIMEOUT;
    loop {
        match gateway.call(body.clone()).await {
            Ok(reply) => return files_result(reply),
            Err(refusal) => {
                assert_eq!(refusal.code, RefusalCode::Busy, "{refusal:?}");
                assert!(Instant::now() < until, "busy for {TIMEOUT:?}: {refusal:?}");
                tokio::time::sleep(Duration::from_millis(refusal.retry_after_ms.unwrap())).await;
            }
        }
    }
}

/// A session with its own working directory.
struct Session {
    lease_id: LeaseId,
    dir: tempfile::TempDir,
}

impl Session {
    async fn new(gateway: &mut Client) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let spec = gateway.start(agent(&["cat"])).await;
        Self { lease_id: spec.lease_id, dir }
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().to_owned()
    }

    fn request(&self, op: FilesOp) -> Request {
        request(FilesScope::Lease(self.lease_id), self.dir.path(), op)
    }

    fn read(&self, name: &str) -> Request {
        self.request(FilesOp::Read { path: self.path(name), line: None, limit: None, bytes_max: 1 << 20 })
    }

    fn write(&self, name: &str, content: &str) -> Request {
        self.request(FilesOp::Write { path: self.path(name), content: content.into() })
    }

    async fn call(&self, gateway: &mut Client, body: Request) -> FilesResult {
        call(gateway, body).await
    }
}

#[tokio::test]
async fn lease_has_one_file_helper_until_idle() {
    let (host, identity, mut gateway) = Host::serving_identity("files_idle_ms = 700").await;
    let session = Session::new(&mut gateway).await;
    assert_eq!(helpers(identity.id), [0; 0], "no helper before the first request");
    assert_eq!(session.call(&mut gateway, session.write("a", "one")).await, Ok(FilesReply::Written));
    let first = helpers(identity.id);
    assert_eq!(first.len(), 1);
    assert_eq!(session.call(&mut gateway, session.read("a")).await, Ok(FilesReply::Text("one".into())));
    assert_eq!(helpers(identity.id), first, "another helper");
    let outside = FilesOp::Read { path: "/etc/hostname".into(), line: None, limit: None, bytes_max: 9 };
    assert_eq!(session.call(&mut gateway, session.request(outside)).await, Err(FilesError::Outside));
    eventually("an idle helper ends", || helpers(identity.id).is_empty());
    assert_eq!(session.call(&mut gateway, session.read("a")).await, Ok(FilesReply::Text("one".into())));
    // Lookups without a lease use a separate helper.
    let op = FilesOp::Programs { names: vec!["sh".into(), "no-such-program".into()], search: "/bin".into() };
    let look_up = FilesRequest { scope: FilesScope::Tenant, roots: vec![], op };
    let found = call(&mut gateway, Request::Files(look_up)).await;
    assert_eq!(found, Ok(FilesReply::Programs(vec![Some("/bin/sh".into()), None])));
    eventually("both helpers end", || helpers(identity.id).is_empty());
    let left = host.state_dir().join("wrappers/helpers").join(identity.id.to_string());
    eventually("the helper directories are removed", || std::fs::read_dir(&left).unwrap().next().is_none());
}

#[tokio::test]
async fn lookups_share_an_idle_helper() {
    let (_host, identity, mut gateway) = Host::serving_identity("").await;
    let look_up = |op| Request::Files(FilesRequest { scope: FilesScope::Tenant, roots: vec![], op });
    let programs = FilesOp::Programs { names: vec!["sh".into()], search: "/bin".into() };
    let directories = FilesOp::Directories { paths: vec!["/".into()] };
    let mut seen = Vec::new();
    // On a loaded machine, an idle helper may end before the next look-up, which then waits for its end.
    for _ in 0..20 {
        let mut round = Vec::new();
        for op in [&programs, &directories] {
            let found = call(&mut gateway, look_up(op.clone())).await;
            assert!(matches!(found, Ok(_) | Err(FilesError::NoHelper { .. })), "{found:?}");
            round.push((found, helpers(identity.id)));
        }
        if let [(Ok(_), first), (Ok(_), second)] = round.as_slice()
            && first.len() == 1
            && first == second
        {
            return eventually("the shared helper ends", || helpers(identity.id).is_empty());
        }
        seen.push(round);
    }
    panic!("each set of names had its own helper: {seen:?}");
}

/// An agent replaces its project by a link, which is neither read nor written through.
#[tokio::test]
async fn files_below_root_replaced_by_link_are_refused() {
    let (_host, mut gateway) = Host::with_gateway().await;
    let session = Session::new(&mut gateway).await;
    let target = tempfile::tempdir().unwrap();
    std::fs::write(target.path().join("a"), "private").unwrap();
    assert_eq!(session.call(&mut gateway, session.write("a", "mine")).await, Ok(FilesReply::Written));
    std::fs::rename(session.dir.path(), session.dir.path().with_extension("moved")).unwrap();
    symlink(target.path(), session.dir.path()).unwrap();
    for body in [session.read("a"), session.write("a", "x"), session.write("b", "x")] {
        assert_eq!(session.call(&mut gateway, body).await, Err(FilesError::Outside));
    }
    assert_eq!(std::fs::read_to_string(target.path().join("a")).unwrap(), "private");
    assert_eq!(std::fs::read_dir(target.path()).unwrap().count(), 1);
    std::fs::remove_dir_all(session.dir.path().with_extension("moved")).unwrap();
}

#[tokio::test]
async fn unauthorized_file_request_is_refused() {
    let (host, mut gateway) = Host::with_gateway().await;
    let mut other_gateway = host.gateway().connect().await;
    let session = Session::new(&mut gateway).await;
    let code = |result: Result<Reply, _>| -> RefusalCode {
        let refusal: acp_shared::protocol::Refusal = result.unwrap_err();
        refusal.code
    };
    assert_eq!(code(other_gateway.call(session.read("a")).await), RefusalCode::LeaseUnknown);
    let scope = FilesScope::Lease(session.lease_id);
    let relative = request(scope, Path::new("relative"), FilesOp::Directory { path: "/".into() });
    assert_eq!(code(gateway.call(relative).await), RefusalCode::BadRequest);
    let op = FilesOp::Directories { paths: vec!["/".into(); 257] };
    assert_eq!(code(gateway.call(session.request(op)).await), RefusalCode::TooLarge);
    gateway.close_and_wait(session.lease_id).await;
    assert_eq!(code(gateway.call(session.read("a")).await), RefusalCode::LeaseEnded);
}

/// The helper is killed at the timeout of its request.
#[tokio::test]
async fn hanging_helper_delays_only_its_session() {
    let (_host, identity, mut gateway) = Host::serving_identity("files_request_ms = 3000").await;
    let (stalled, other) = (Session::new(&mut gateway).await, Session::new(&mut gateway).await);
    assert_eq!(stalled.call(&mut gateway, stalled.write("a", "old")).await, Ok(FilesReply::Written));
    let helper = helpers(identity.id)[0];
    kill(helper, Signal::STOP);
    let begun = Instant::now();
    let pending = gateway.send(stalled.write("a", "new")).await;
    assert_eq!(other.call(&mut gateway, other.write("b", "x")).await, Ok(FilesReply::Written));
    assert!(begun.elapsed() < Duration::from_secs(3), "the other session waited");
    let late = files_result(gateway.reply(pending).await.unwrap());
    assert_eq!(late, Err(FilesError::TimedOut { within_ms: 3000 }));
    eventually("the helper is killed", || !is_alive(helper));
    assert_eq!(stalled.call(&mut gateway, stalled.read("a")).await, Ok(FilesReply::Text("old".into())));
}

#[tokio::test]
async fn requests_with_different_roots_share_one_helper() {
    let (_host, identity, mut gateway) = Host::with_identity().await;
    let session = Session::new(&mut gateway).await;
    let mut requests = Vec::new();
    for n in 0..12 {
        let root = session.dir.path().join(n.to_string());
        std::fs::create_dir(&root).unwrap();
        let op = FilesOp::Write { path: session.path(&format!("{n}/a")), content: b"x".to_vec() };
        requests.push(gateway.send(request(FilesScope::Lease(session.lease_id), &root, op)).await);
    }
    for id in requests {
        assert_eq!(files_result(gateway.reply(id).await.unwrap()), Ok(FilesReply::Written));
        assert!(helpers(identity.id).len() <= 1);
    }
    assert_eq!(helpers(identity.id).len(), 1);
    let helper = helpers(identity.id)[0];
    // Agents of the user cannot reach the helper's pipes.
    let owner =
        std::os::unix::fs::MetadataExt::uid(&std::fs::metadata(format!("/proc/{helper}/fd")).unwrap());
    assert_eq!(owner, 0);
}

/// H3: a lease has no second helper while the first may be running.
#[tokio::test]
async fn helper_is_not_replaced_before_its_end() {
    let config = "files_request_ms = 1000\nfiles_idle_ms = 200";
    let (_host, identity, mut gateway) = Host::serving_identity(config).await;
    let session = Session::new(&mut gateway).await;
    let [first, second] = ["a", "b"].map(|name| session.write(name, "x"));
    // A stopped wrapper cannot end its helper, as with a hung file system.
    let pending = gateway.send(first).await;
    assert_eq!(files_result(gateway.reply(pending).await.unwrap()), Ok(FilesReply::Written));
    let helper = helpers(identity.id)[0];
    let wrapper_pid = wrapper(helper);
    kill(helper, Signal::STOP);
    kill(wrapper_pid, Signal::STOP);
    assert_eq!(session.call(&mut gateway, second).await, Err(FilesError::TimedOut { within_ms: 1000 }));
    for _ in 0..2 {
        tokio::time::sleep(Duration::from_millis(700)).await;
        let refused = session.call(&mut gateway, session.read("a")).await;
        assert!(matches!(refused, Err(FilesError::NoHelper { .. })), "{refused:?}");
        assert_eq!(helpers(identity.id), [helper]);
    }
    kill(wrapper_pid, Signal::CONT);
    eventually("the helper is killed", || !is_alive(helper));
    assert_eq!(session.call(&mut gateway, session.read("a")).await, Ok(FilesReply::Text("x".into())));
}

#[tokio::test]
async fn end_of_lease_ends_helper_and_pending_requests() {
    let (_host, identity, mut gateway) = Host::serving_identity("files_request_ms = 20000").await;
    let session = Session::new(&mut gateway).await;
    assert_eq!(session.call(&mut gateway, session.write("a", "old")).await, Ok(FilesReply::Written));
    let helper = helpers(identity.id)[0];
    kill(helper, Signal::STOP);
    let first = gateway.send(session.write("a", "new")).await;
    let second = gateway.send(session.write("b", "new")).await;
    gateway.close_and_wait(session.lease_id).await;
    // The helper may be dead already.
    drop(std::process::Command::new("kill").args(["-CONT", &helper.to_string()]).output());
    assert_eq!(files_result(gateway.reply(first).await.unwrap()), Err(FilesError::Interrupted));
    assert_eq!(gateway.reply(second).await.unwrap_err().code, RefusalCode::LeaseEnded);
    eventually("no helper is left", || helpers(identity.id).is_empty());
    assert!(!session.dir.path().join("b").exists());
}

#[tokio::test]
async fn helpers_end_with_supervisor_and_wrapper() {
    let (mut host, identity, mut gateway) = Host::with_identity().await;
    let sessions = [Session::new(&mut gateway).await, Session::new(&mut gateway).await];
    for session in &sessions {
        assert_eq!(session.call(&mut gateway, session.write("a", "x")).await, Ok(FilesReply::Written));
    }
    let all = helpers(identity.id);
    assert_eq!(all.len(), 2);
    kill(wrapper(all[0]), Signal::KILL);
    eventually("a helper ends with its wrapper", || !is_alive(all[0]));
    // The first request detects the end; a later one has a new helper.
    let mut again = Err(FilesError::Interrupted);
    for session in [&sessions[0], &sessions[1], &sessions[0], &sessions[1]] {
        again = session.call(&mut gateway, session.read("a")).await;
    }
    assert_eq!(again, Ok(FilesReply::Text("x".into())));
    let all = helpers(identity.id);
    kill(all[0], Signal::STOP);
    host.crash();
    eventually("no helper is left", || all.iter().all(|pid| !is_alive(*pid)));
    host.start();
    let helpers = host.state_dir().join("wrappers/helpers");
    assert!(!helpers.exists(), "directories of the crash remain");
}

/// A request in progress is answered or its connection ends; later requests are served.
#[tokio::test]
async fn upgrade_ends_helpers_and_files_are_served_afterwards() {
    let (host, identity, mut gateway) = Host::serving_identity("files_request_ms = 20000").await;
    let session = Session::new(&mut gateway).await;
    assert_eq!(session.call(&mut gateway, session.write("a", "old")).await, Ok(FilesReply::Written));
    let before = helpers(identity.id);
    kill(before[0], Signal::STOP);
    gateway.send(session.write("a", "new")).await;
    // The helper cannot be ended before the new program takes over.
    kill(wrapper(before[0]), Signal::STOP);
    let done = host.json(&["upgrade"]);
    assert_eq!(done["error"], serde_json::Value::Null, "{done}");
    eventually("the helper has ended", || !is_alive(before[0]));
    let mut gateway = reconnect(&identity).await;
    assert_eq!(session.call(&mut gateway, session.read("a")).await, Ok(FilesReply::Text("old".into())));
    assert_eq!(helpers(identity.id).len(), 1);
}

/// Names are swapped between a file and a link out of the root during 3,000 requests.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heavy_swapped_link_never_leaves_root() {
    const OPERATIONS: usize = 3_000;
    let (_host, mut gateway) = Host::with_gateway().await;
    let session = Session::new(&mut gateway).await;
    let (root, outside) = (session.dir.path(), tempfile::tempdir().unwrap());
    std::fs::write(outside.path().join("file"), "outside").unwrap();
    std::fs::create_dir(root.join("dir")).unwrap();
    std::fs::write(root.join("dir/file"), "inside").unwrap();
    symlink(outside.path(), root.join("dir-out")).unwrap();
    std::fs::write(root.join("leaf"), "inside").unwrap();
    symlink(outside.path().join("file"), root.join("leaf-out")).unwrap();
    let stop = AtomicBool::new(false);
    let (mut good, mut refused, mut unexpected) = (0, 0, None);
    let runtime = tokio::runtime::Handle::current();
    tokio::task::block_in_place(|| {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    for (one, other) in [("dir", "dir-out"), ("leaf", "leaf-out")] {
                        // A write may have replaced the link by a file.
                        let _ =
                            renameat_with(CWD, root.join(one), CWD, root.join(other), RenameFlags::EXCHANGE);
                    }
                }
            });
            runtime.block_on(async {
                for at in 0..OPERATIONS {
                    let body = match at % 5 {
                        0 => session.read("dir/file"),
                        1 => session.read("leaf"),
                        2 => session.write("dir/new", "inside"),
                        3 => session.write("leaf", "inside"),
                        _ => session.read("dir-out/file"),
                    };
                    match session.call(&mut gateway, body).await {
                        Ok(FilesReply::Written) => good += 1,
                        Ok(FilesReply::Text(text)) if text == "inside" => good += 1,
                        Err(FilesError::Outside | FilesError::NotFound) => refused += 1,
                        other => unexpected = Some((at, other)),
                    }
                }
            });
            stop.store(true, Ordering::Relaxed);
        });
    });
    assert_eq!(unexpected, None);
    report(&format!("{good} inside, {refused} refused"));
    assert!(good > 0 && refused > 0, "no race occurred");
    assert_eq!(std::fs::read_to_string(outside.path().join("file")).unwrap(), "outside");
    assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 1, "no file was created outside");
}
