//! File requests: served by a helper process beside each lease, which outlives nothing.

use crate::common::{Client, Host, agent, eventually, kill, runs, say};
use crate::upgrade::again;
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

type Answer = Result<FilesReply, FilesError>;

/// Running file helpers of a gateway. Their wrappers are told apart by their arguments, and tell of whom they are: a
/// helper's own environment can be read by root alone.
pub(crate) fn helpers(gateway: GatewayInstanceId) -> Vec<i32> {
    let is_helper = |pid: &i32| {
        let cmdline = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        cmdline.split(|b| *b == 0).any(|arg| arg == b"files-helper")
            && runs(*pid)
            && has_env(wrapper(*pid), ENV_GATEWAY_INSTANCE_ID, &gateway.to_string())
    };
    all_pids().into_iter().filter(is_helper).collect()
}

/// The parent of a helper; 0 of none.
fn wrapper(helper: i32) -> i32 {
    status_field(helper, "PPid").map_or(0, |pid| pid.parse().unwrap())
}

pub(crate) fn request(scope: FilesScope, root: &Path, op: FilesOp) -> Request {
    Request::Files(FilesRequest { scope, roots: vec![root.to_str().unwrap().to_owned()], op })
}

fn answer(reply: Reply) -> Answer {
    match reply {
        Reply::Files(answer) => answer,
        other => panic!("{other:?}"),
    }
}

/// A session with a working directory of its own.
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

    async fn ask(&self, gateway: &mut Client, body: Request) -> Answer {
        answer(gateway.call(body).await.unwrap())
    }
}

#[tokio::test]
async fn one_helper_serves_a_lease_and_ends_when_it_is_idle() {
    let (host, identity, mut gateway) = Host::serving_identity("files_idle_ms = 700").await;
    let session = Session::new(&mut gateway).await;
    assert_eq!(helpers(identity.id), [0; 0], "no helper before the first request");
    assert_eq!(session.ask(&mut gateway, session.write("a", "one")).await, Ok(FilesReply::Written));
    let first = helpers(identity.id);
    assert_eq!(first.len(), 1);
    assert_eq!(session.ask(&mut gateway, session.read("a")).await, Ok(FilesReply::Text("one".into())));
    assert_eq!(helpers(identity.id), first, "the same one");
    let outside = FilesOp::Read { path: "/etc/hostname".into(), line: None, limit: None, bytes_max: 9 };
    assert_eq!(session.ask(&mut gateway, session.request(outside)).await, Err(FilesError::Outside));
    eventually("an idle helper ends", || helpers(identity.id).is_empty());
    assert_eq!(session.ask(&mut gateway, session.read("a")).await, Ok(FilesReply::Text("one".into())));
    // Look-ups without a lease have a helper of their own, for a moment.
    let op = FilesOp::Programs { names: vec!["sh".into(), "no-such-program".into()], search: "/bin".into() };
    let look_up = FilesRequest { scope: FilesScope::Tenant, roots: vec![], op };
    let found = answer(gateway.call(Request::Files(look_up)).await.unwrap());
    assert_eq!(found, Ok(FilesReply::Programs(vec![Some("/bin/sh".into()), None])));
    eventually("both end", || helpers(identity.id).is_empty());
    let left = host.state_dir().join("wrappers/helpers").join(identity.id.to_string());
    eventually("nothing of them is left on disk", || std::fs::read_dir(&left).unwrap().next().is_none());
}

/// The agent puts a link in place of its project: nothing is read or written where it leads.
#[tokio::test]
async fn a_root_that_became_a_link_leads_nowhere() {
    let (_host, mut gateway) = Host::with_gateway().await;
    let session = Session::new(&mut gateway).await;
    let target = tempfile::tempdir().unwrap();
    std::fs::write(target.path().join("a"), "private").unwrap();
    assert_eq!(session.ask(&mut gateway, session.write("a", "mine")).await, Ok(FilesReply::Written));
    std::fs::rename(session.dir.path(), session.dir.path().with_extension("moved")).unwrap();
    symlink(target.path(), session.dir.path()).unwrap();
    for body in [session.read("a"), session.write("a", "x"), session.write("b", "x")] {
        assert_eq!(session.ask(&mut gateway, body).await, Err(FilesError::Outside));
    }
    assert_eq!(std::fs::read_to_string(target.path().join("a")).unwrap(), "private");
    assert_eq!(std::fs::read_dir(target.path()).unwrap().count(), 1);
    std::fs::remove_dir_all(session.dir.path().with_extension("moved")).unwrap();
}

#[tokio::test]
async fn who_may_not_use_files_is_refused() {
    let (host, mut gateway) = Host::with_gateway().await;
    let mut stranger = host.gateway().connect().await;
    let session = Session::new(&mut gateway).await;
    let code = |result: Result<Reply, _>| -> RefusalCode {
        let refusal: acp_shared::protocol::Refusal = result.unwrap_err();
        refusal.code
    };
    assert_eq!(code(stranger.call(session.read("a")).await), RefusalCode::LeaseUnknown);
    let scope = FilesScope::Lease(session.lease_id);
    let relative = request(scope, Path::new("relative"), FilesOp::Directory { path: "/".into() });
    assert_eq!(code(gateway.call(relative).await), RefusalCode::BadRequest);
    let op = FilesOp::Directories { paths: vec!["/".into(); 257] };
    assert_eq!(code(gateway.call(session.request(op)).await), RefusalCode::TooLarge);
    gateway.end(session.lease_id).await;
    assert_eq!(code(gateway.call(session.read("a")).await), RefusalCode::LeaseEnded);
}

/// A helper that does not answer is ended at its deadline; other sessions do not notice.
#[tokio::test]
async fn a_helper_that_does_not_answer_stalls_its_own_session_only() {
    let (_host, identity, mut gateway) = Host::serving_identity("files_request_ms = 3000").await;
    let (stalled, other) = (Session::new(&mut gateway).await, Session::new(&mut gateway).await);
    assert_eq!(stalled.ask(&mut gateway, stalled.write("a", "old")).await, Ok(FilesReply::Written));
    let helper = helpers(identity.id)[0];
    kill(helper, Signal::STOP);
    let begun = Instant::now();
    let waits = gateway.send(stalled.write("a", "new")).await;
    assert_eq!(other.ask(&mut gateway, other.write("b", "x")).await, Ok(FilesReply::Written));
    assert!(begun.elapsed() < Duration::from_secs(3), "the other session waited");
    let late = answer(gateway.reply(waits).await.unwrap());
    assert_eq!(late, Err(FilesError::TimedOut { within_ms: 3000 }));
    eventually("it is killed", || !runs(helper));
    assert_eq!(stalled.ask(&mut gateway, stalled.read("a")).await, Ok(FilesReply::Text("old".into())));
}

/// One helper for each lease, whatever its requests name.
#[tokio::test]
async fn requests_with_other_roots_share_one_helper() {
    let (_host, identity, mut gateway) = Host::with_identity().await;
    let session = Session::new(&mut gateway).await;
    let mut asked = Vec::new();
    for n in 0..12 {
        let root = session.dir.path().join(n.to_string());
        std::fs::create_dir(&root).unwrap();
        let op = FilesOp::Write { path: session.path(&format!("{n}/a")), content: b"x".to_vec() };
        asked.push(gateway.send(request(FilesScope::Lease(session.lease_id), &root, op)).await);
    }
    for id in asked {
        assert_eq!(answer(gateway.reply(id).await.unwrap()), Ok(FilesReply::Written));
        assert!(helpers(identity.id).len() <= 1);
    }
    assert_eq!(helpers(identity.id).len(), 1);
    let helper = helpers(identity.id)[0];
    // Its pipes are out of reach for agents of its user.
    let owner =
        std::os::unix::fs::MetadataExt::uid(&std::fs::metadata(format!("/proc/{helper}/fd")).unwrap());
    assert_eq!(owner, 0);
}

/// H3: while a helper is not known to be gone no other one is started for its lease, idle time or not.
#[tokio::test]
async fn no_helper_is_started_beside_one_that_does_not_end() {
    let config = "files_request_ms = 1000\nfiles_idle_ms = 200";
    let (_host, identity, mut gateway) = Host::serving_identity(config).await;
    let session = Session::new(&mut gateway).await;
    let [first, second] = ["a", "b"].map(|name| session.write(name, "x"));
    // A stopped wrapper does not end its helper, as with a file system that does not answer.
    let waits = gateway.send(first).await;
    assert_eq!(answer(gateway.reply(waits).await.unwrap()), Ok(FilesReply::Written));
    let helper = helpers(identity.id)[0];
    let above = wrapper(helper);
    kill(helper, Signal::STOP);
    kill(above, Signal::STOP);
    assert_eq!(session.ask(&mut gateway, second).await, Err(FilesError::TimedOut { within_ms: 1000 }));
    for _ in 0..2 {
        tokio::time::sleep(Duration::from_millis(700)).await;
        let refused = session.ask(&mut gateway, session.read("a")).await;
        assert!(matches!(refused, Err(FilesError::NoHelper { .. })), "{refused:?}");
        assert_eq!(helpers(identity.id), [helper]);
    }
    kill(above, Signal::CONT);
    eventually("it is killed", || !runs(helper));
    assert_eq!(session.ask(&mut gateway, session.read("a")).await, Ok(FilesReply::Text("x".into())));
}

/// What waits when a lease ends is not done after its end, and its helper is not left.
#[tokio::test]
async fn the_end_of_a_lease_ends_its_helper_and_what_waits_for_it() {
    let (_host, identity, mut gateway) = Host::serving_identity("files_request_ms = 20000").await;
    let session = Session::new(&mut gateway).await;
    assert_eq!(session.ask(&mut gateway, session.write("a", "old")).await, Ok(FilesReply::Written));
    let helper = helpers(identity.id)[0];
    kill(helper, Signal::STOP);
    let first = gateway.send(session.write("a", "new")).await;
    let second = gateway.send(session.write("b", "new")).await;
    gateway.end(session.lease_id).await;
    // It may be dead by now.
    drop(std::process::Command::new("kill").args(["-CONT", &helper.to_string()]).output());
    assert_eq!(answer(gateway.reply(first).await.unwrap()), Err(FilesError::Interrupted));
    assert_eq!(gateway.reply(second).await.unwrap_err().code, RefusalCode::LeaseEnded);
    eventually("no helper is left", || helpers(identity.id).is_empty());
    assert!(!session.dir.path().join("b").exists());
}

/// No helper outlives the supervisor, whatever it is doing; nor the wrapper that it runs under.
#[tokio::test]
async fn helpers_end_with_the_supervisor_and_with_their_wrapper() {
    let (mut host, identity, mut gateway) = Host::with_identity().await;
    let sessions = [Session::new(&mut gateway).await, Session::new(&mut gateway).await];
    for session in &sessions {
        assert_eq!(session.ask(&mut gateway, session.write("a", "x")).await, Ok(FilesReply::Written));
    }
    let all = helpers(identity.id);
    assert_eq!(all.len(), 2);
    kill(wrapper(all[0]), Signal::KILL);
    eventually("a helper ends with its wrapper", || !runs(all[0]));
    // Its request finds that out, and the next one has a new helper.
    let mut again = Err(FilesError::Interrupted);
    for session in [&sessions[0], &sessions[1], &sessions[0], &sessions[1]] {
        again = session.ask(&mut gateway, session.read("a")).await;
    }
    assert_eq!(again, Ok(FilesReply::Text("x".into())));
    let all = helpers(identity.id);
    kill(all[0], Signal::STOP);
    host.crash();
    eventually("no helper is left", || all.iter().all(|pid| !runs(*pid)));
    host.start();
    let helpers = host.state_dir().join("wrappers/helpers");
    assert!(!helpers.exists(), "what a crash left on disk is removed");
}

/// A planned restart ends the helpers: what was begun is answered or its connection ends, and all goes on after it.
#[tokio::test]
async fn an_upgrade_ends_helpers_and_files_are_served_after_it() {
    let (host, identity, mut gateway) = Host::serving_identity("files_request_ms = 20000").await;
    let session = Session::new(&mut gateway).await;
    assert_eq!(session.ask(&mut gateway, session.write("a", "old")).await, Ok(FilesReply::Written));
    let before = helpers(identity.id);
    kill(before[0], Signal::STOP);
    gateway.send(session.write("a", "new")).await;
    // It cannot be ended before the new image takes over.
    kill(wrapper(before[0]), Signal::STOP);
    let done = host.json(&["upgrade"]);
    assert_eq!(done["error"], serde_json::Value::Null, "{done}");
    eventually("the helper has ended", || !runs(before[0]));
    let mut gateway = again(&identity).await;
    assert_eq!(session.ask(&mut gateway, session.read("a")).await, Ok(FilesReply::Text("old".into())));
    assert_eq!(helpers(identity.id).len(), 1);
}

/// 3,000 requests through the helper, while names change between a file and a link out of the root.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heavy_a_link_swapped_under_the_helper_leads_nowhere() {
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
    let (mut good, mut refused, mut strange) = (0, 0, None);
    let runtime = tokio::runtime::Handle::current();
    tokio::task::block_in_place(|| {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    for (one, other) in [("dir", "dir-out"), ("leaf", "leaf-out")] {
                        // A write may have replaced a link by a file; then a file changes places with a file.
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
                    match session.ask(&mut gateway, body).await {
                        Ok(FilesReply::Written) => good += 1,
                        Ok(FilesReply::Text(text)) if text == "inside" => good += 1,
                        Err(FilesError::Outside | FilesError::NotFound) => refused += 1,
                        other => strange = Some((at, other)),
                    }
                }
            });
            stop.store(true, Ordering::Relaxed);
        });
    });
    assert_eq!(strange, None);
    say(&format!("{good} inside, {refused} refused"));
    assert!(good > 0 && refused > 0, "the race was no race");
    assert_eq!(std::fs::read_to_string(outside.path().join("file")).unwrap(), "outside");
    assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 1, "no file was created outside");
}
