//! Directories that hang: whoever asks for anything in them is never answered. Only what needs such a directory waits.

use crate::common::{Client, DEADLINE, Host, agent, can, eventually, marked, script};
use crate::files::{helpers, request};
use crate::start::await_gone;
use acp_shared::files::{FilesError, FilesOp, FilesReply, FilesRequest, FilesScope};
use acp_shared::ids::LeaseId;
use acp_shared::protocol::{LeaseState, Reply, Request, Spawn};
use acp_testkit::processes::Killed;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How long anybody may wait who needs nothing of a directory that hangs.
const SOON: Duration = Duration::from_secs(10);

/// Mounts a file system that never answers.
const MOUNT: &str =
    "exec 3<>/dev/fuse; mount -i -t fuse -o fd=3,rootmode=40000,user_id=0,group_id=0 none /mnt";

/// A supervisor with a mount namespace of its own; `None`, with what was seen, where nothing can be made to hang.
fn host(config: &str) -> Option<Host> {
    if !can("mount a file system that never answers", "unshare", &["-m", "sh", "-ec", MOUNT]) {
        return None;
    }
    let mut host = Host::idle(config);
    host.before = Some(":".to_owned());
    host.start();
    Some(host)
}

/// Has a directory hang for the supervisor: a file system in user space without anybody who serves it. It answers with
/// errors once this is dropped.
fn hang(host: &Host, dir: &Path) -> Killed {
    let text = format!("{}; echo hangs; read _", MOUNT.replace("/mnt", &dir.display().to_string()));
    let mut command = Command::new("nsenter");
    command.args(["-m", "-t", &host.pid().to_string(), "sh", "-ec", &text]);
    let mut holder = Killed(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap());
    let mut line = String::new();
    BufReader::new(holder.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "hangs\n");
    holder
}

/// What is asked for is answered soon.
async fn soon<T>(what: &str, work: impl Future<Output = T>) -> T {
    tokio::time::timeout(SOON, work).await.unwrap_or_else(|_| panic!("not soon: {what}"))
}

async fn ended(gateway: &mut Client, lease_id: LeaseId) {
    while gateway.leases().await.iter().any(|l| l.lease_id == lease_id && l.state != LeaseState::Closed) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn lives(gateway: &mut Client, spec: &Spawn, seq: u64) {
    let answer = soon("another lease", gateway.input(spec.lease_id, seq, b"x")).await;
    assert_eq!(answer, Ok(Reply::Written { seq }));
}

/// What ended agents said lies in a directory that hangs: who asks for it waits, and nobody else.
#[tokio::test]
async fn a_hung_spool_holds_up_only_who_asks_for_it() {
    let Some(mut host) = host("crash_backoff_ms = 0\ncrashes_max = 0") else { return };
    let mut identity = host.gateway();
    identity.secret = host.state_dir().join("secret");
    let mut gateway = identity.connect().await;
    let mut said = Vec::new();
    for _ in 0..6 {
        let spec = gateway.start(script("echo last words")).await;
        ended(&mut gateway, spec.lease_id).await;
        said.push(spec.lease_id);
    }
    drop(gateway);
    // The next supervisor has no stream of them open.
    assert_eq!(host.stop(), Some(0));
    host.start();
    let mut gateway = identity.connect().await;
    let other = gateway.start(agent(&["cat"])).await;
    let hung = hang(&host, &host.state_dir().join("spool"));
    let mut asked = Vec::new();
    for lease_id in &said[1..] {
        asked.push(gateway.send(Request::Attach { lease_id: *lease_id, from_offset: 0 }).await);
    }
    lives(&mut gateway, &other, 1).await;
    let released = soon("a release", gateway.call(Request::Release { lease_id: said[0] })).await;
    assert_eq!(released, Ok(Reply::Done));
    soon("the list", gateway.leases()).await;
    gateway.close(other.lease_id).await;
    soon("an end", ended(&mut gateway, other.lease_id)).await;
    assert!(marked(other.lease_id).is_empty());
    drop(hung);
    for id in asked {
        drop(gateway.reply(id).await);
    }
}

/// Agents that talk on while they are ended, more than is kept in memory, and a disk that takes nothing: they end all
/// the same, however much is asked of their streams.
#[tokio::test]
async fn a_hung_spool_holds_up_no_kill() {
    let config = "ring_bytes_max = 4096\ncredit_bytes = 4096\nrequests_in_flight_max = 4000";
    let Some(host) = host(config) else { return };
    let mut gateway = host.gateway().connect().await;
    let specs: Vec<Spawn> = (0..6).map(|_| script("trap '' TERM; yes")).collect();
    gateway.spawn_all(&specs).await;
    let hung = hang(&host, &host.state_dir().join("spool"));
    let began = Instant::now();
    for spec in &specs {
        gateway.close(spec.lease_id).await;
        for _ in 0..500 {
            gateway.send(Request::Ack { lease_id: spec.lease_id, offset: 0 }).await;
        }
    }
    await_gone(&specs);
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    for spec in &specs {
        soon("its end is told", ended(&mut gateway, spec.lease_id)).await;
    }
    drop(hung);
}

/// The directories that wrappers were started from hang when their leases end.
#[tokio::test]
async fn a_hung_launch_directory_holds_up_nobody() {
    let Some(mut host) = host("") else { return };
    let mut gateway = host.gateway().connect().await;
    let specs: Vec<Spawn> = (0..6).map(|_| agent(&["cat"])).collect();
    gateway.spawn_all(&specs).await;
    let other = gateway.start(agent(&["cat"])).await;
    let hung = hang(&host, &host.state_dir().join("wrappers"));
    for spec in &specs {
        gateway.close(spec.lease_id).await;
    }
    for spec in &specs {
        soon("its end is told", ended(&mut gateway, spec.lease_id)).await;
        assert!(marked(spec.lease_id).is_empty());
    }
    // One that is to start needs that directory.
    let next = agent(&["cat"]);
    let asked = gateway.send(Request::Spawn(next.clone())).await;
    lives(&mut gateway, &other, 1).await;
    assert!(marked(next.lease_id).is_empty());
    drop(hung);
    drop(tokio::time::timeout(DEADLINE, gateway.reply(asked)).await.unwrap());
    assert_eq!(host.stop(), Some(0));
}

/// A directory that hangs fails the look-ups of itself soon, and delays no others, however many there are.
#[tokio::test]
async fn a_directory_that_hangs_delays_look_ups_of_itself_only() {
    let Some(host) = host("") else { return };
    let (identity, mut gateway) = host.connect_gateway().await;
    let (hung_dir, dir) = (host.dir.path().join("hung"), host.dir.path().join("work"));
    for dir in [&hung_dir, &dir] {
        std::fs::create_dir(dir).unwrap();
    }
    let hung = hang(&host, &hung_dir);
    let look_up = |path: &Path| {
        let op = FilesOp::Directories { paths: vec![path.to_str().unwrap().to_owned()] };
        Request::Files(FilesRequest { scope: FilesScope::Tenant, roots: Vec::new(), op })
    };
    let mut asked = Vec::new();
    for n in 0..20 {
        asked.push(gateway.send(look_up(&hung_dir.join(n.to_string()))).await);
    }
    let found = FilesReply::Directories(vec![Ok(dir.to_str().unwrap().to_owned())]);
    let other = soon("another directory", gateway.call(look_up(&dir))).await;
    assert_eq!(other, Ok(Reply::Files(Ok(found.clone()))));
    for id in asked {
        match soon("an answer at the deadline", gateway.reply(id)).await {
            Ok(Reply::Files(Err(
                FilesError::TimedOut { within_ms: 4_000 } | FilesError::NoHelper { .. },
            ))) => {}
            other => panic!("{other:?}"),
        }
    }
    let other = soon("another directory", gateway.call(look_up(&dir))).await;
    assert_eq!(other, Ok(Reply::Files(Ok(found))));
    drop(hung);
    eventually("its helpers are gone", || helpers(identity.id).is_empty());
}

/// A project whose file system hangs stalls the file requests of its own session, until their deadline.
#[tokio::test]
async fn a_project_that_hangs_stalls_its_own_file_requests_only() {
    let Some(host) = host("files_request_ms = 3000") else { return };
    let (identity, mut gateway) = host.connect_gateway().await;
    let (stuck, other) = (agent(&["cat"]), agent(&["cat"]));
    gateway.spawn_all([&stuck, &other]).await;
    let (hung_dir, dir) = (host.dir.path().join("hung"), host.dir.path().join("work"));
    for dir in [&hung_dir, &dir] {
        std::fs::create_dir(dir).unwrap();
    }
    let hung = hang(&host, &hung_dir);
    let write = |dir: &Path| FilesOp::Write {
        path: dir.join("a").to_str().unwrap().to_owned(),
        content: b"x".to_vec(),
    };
    let first = gateway.send(request(FilesScope::Lease(stuck.lease_id), &hung_dir, write(&hung_dir))).await;
    let second = gateway.send(request(FilesScope::Lease(stuck.lease_id), &hung_dir, write(&hung_dir))).await;
    let written = gateway.call(request(FilesScope::Lease(other.lease_id), &dir, write(&dir)));
    let written = soon("files of another session", written).await;
    assert_eq!(written, Ok(Reply::Files(Ok(FilesReply::Written))));
    for id in [first, second] {
        match soon("an answer at the deadline", gateway.reply(id)).await {
            Ok(Reply::Files(Err(FilesError::TimedOut { within_ms: 3000 } | FilesError::NoHelper { .. }))) => {
            }
            other => panic!("{other:?}"),
        }
    }
    gateway.close(stuck.lease_id).await;
    soon("the end of its lease", gateway.state(stuck.lease_id, LeaseState::Closed)).await;
    drop(hung);
    eventually("its helpers are gone", || helpers(identity.id).len() <= 1);
}
