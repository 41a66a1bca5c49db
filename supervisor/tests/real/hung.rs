//! Directories that hang. Only requests that need such a directory wait.

use crate::common::{Client, Host, TIMEOUT, agent, eventually, is_possible, pids_of, script};
use crate::files::{helpers, request};
use crate::scenarios::await_gone;
use acp_shared::files::{FilesError, FilesOp, FilesReply, FilesRequest, FilesScope};
use acp_shared::ids::LeaseId;
use acp_shared::protocol::{LeaseState, Reply, Request, Spawn};
use acp_testkit::processes::KillOnDrop;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Maximum latency of requests that do not use the hung directory.
const LATENCY_MAX: Duration = Duration::from_secs(10);

/// Mounts a file system that never answers.
const MOUNT: &str =
    "exec 3<>/dev/fuse; mount -i -t fuse -o fd=3,rootmode=40000,user_id=0,group_id=0 none /mnt";

/// Starts a supervisor in its own mount namespace. Returns `None` and prints the probe if no directory can hang here.
fn host_with_namespace(config: &str) -> Option<Host> {
    if !is_possible("mount a file system that never answers", "unshare", &["-m", "sh", "-ec", MOUNT]) {
        return None;
    }
    let mut host = Host::prepare(config);
    host.mount_script = Some(":".to_owned());
    host.start();
    Some(host)
}

/// Mounts a FUSE file system without a server over a directory in the supervisor's namespace. Dropping the value makes
/// pending requests fail.
fn hang_directory(host: &Host, dir: &Path) -> KillOnDrop {
    let text = format!("{}; echo hangs; read _", MOUNT.replace("/mnt", &dir.display().to_string()));
    let mut command = Command::new("nsenter");
    command.args(["-m", "-t", &host.pid().to_string(), "sh", "-ec", &text]);
    let mut holder = KillOnDrop(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap());
    let mut line = String::new();
    BufReader::new(holder.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "hangs\n");
    holder
}

/// Asserts that `work` finishes within [`LATENCY_MAX`].
async fn within_latency<T>(what: &str, work: impl Future<Output = T>) -> T {
    tokio::time::timeout(LATENCY_MAX, work).await.unwrap_or_else(|_| panic!("timeout: {what}"))
}

async fn await_closed(gateway: &mut Client, lease_id: LeaseId) {
    while gateway.leases().await.iter().any(|l| l.lease_id == lease_id && l.state != LeaseState::Closed) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn assert_input_works(gateway: &mut Client, spec: &Spawn, seq: u64) {
    let answer = within_latency("input of another lease", gateway.input(spec.lease_id, seq, b"x")).await;
    assert_eq!(answer, Ok(Reply::Written { seq }));
}

#[tokio::test]
async fn hung_spool_delays_only_its_readers() {
    let Some(mut host) = host_with_namespace("crash_backoff_ms = 0\ncrashes_max = 0") else {
        return;
    };
    let mut identity = host.gateway();
    identity.secret = host.state_dir().join("secret");
    let mut gateway = identity.connect().await;
    let mut leases = Vec::new();
    for _ in 0..6 {
        let spec = gateway.start(script("echo output")).await;
        await_closed(&mut gateway, spec.lease_id).await;
        leases.push(spec.lease_id);
    }
    drop(gateway);
    // The next supervisor has no open stream of the leases.
    assert_eq!(host.stop(), Some(0));
    host.start();
    let mut gateway = identity.connect().await;
    let other = gateway.start(agent(&["cat"])).await;
    let hung_mount = hang_directory(&host, &host.state_dir().join("spool"));
    let mut requests = Vec::new();
    for lease_id in &leases[1..] {
        requests.push(gateway.send(Request::Attach { lease_id: *lease_id, from_offset: 0 }).await);
    }
    assert_input_works(&mut gateway, &other, 1).await;
    let released = within_latency("a release", gateway.call(Request::Release { lease_id: leases[0] })).await;
    assert_eq!(released, Ok(Reply::Done));
    within_latency("the list", gateway.leases()).await;
    gateway.close(other.lease_id).await;
    within_latency("an end", await_closed(&mut gateway, other.lease_id)).await;
    assert!(pids_of(other.lease_id).is_empty());
    drop(hung_mount);
    for id in requests {
        drop(gateway.reply(id).await);
    }
}

/// Agents that exceed the ring while closing are killed despite the hung spool and many requests on their streams.
#[tokio::test]
async fn hung_spool_delays_no_kill() {
    let config = "ring_bytes_max = 4096\ncredit_bytes = 4096\nrequests_in_flight_max = 4000";
    let Some(host) = host_with_namespace(config) else { return };
    let mut gateway = host.gateway().connect().await;
    let specs: Vec<Spawn> = (0..6).map(|_| script("trap '' TERM; yes")).collect();
    gateway.spawn_all(&specs).await;
    let hung_mount = hang_directory(&host, &host.state_dir().join("spool"));
    let began = Instant::now();
    for spec in &specs {
        gateway.close(spec.lease_id).await;
        for _ in 0..500 {
            gateway.send(Request::Ack { lease_id: spec.lease_id, offset: 0 }).await;
        }
    }
    await_gone(&specs);
    assert!(began.elapsed() < LATENCY_MAX, "{:?}", began.elapsed());
    for spec in &specs {
        within_latency("end of the lease", await_closed(&mut gateway, spec.lease_id)).await;
    }
    drop(hung_mount);
}

#[tokio::test]
async fn hung_launch_directory_delays_only_spawns() {
    let Some(mut host) = host_with_namespace("") else { return };
    let mut gateway = host.gateway().connect().await;
    let specs: Vec<Spawn> = (0..6).map(|_| agent(&["cat"])).collect();
    gateway.spawn_all(&specs).await;
    let other = gateway.start(agent(&["cat"])).await;
    let hung_mount = hang_directory(&host, &host.state_dir().join("wrappers"));
    for spec in &specs {
        gateway.close(spec.lease_id).await;
    }
    for spec in &specs {
        within_latency("end of the lease", await_closed(&mut gateway, spec.lease_id)).await;
        assert!(pids_of(spec.lease_id).is_empty());
    }
    // A new spawn needs the launch directory.
    let next = agent(&["cat"]);
    let requests = gateway.send(Request::Spawn(next.clone())).await;
    assert_input_works(&mut gateway, &other, 1).await;
    assert!(pids_of(next.lease_id).is_empty());
    drop(hung_mount);
    drop(tokio::time::timeout(TIMEOUT, gateway.reply(requests)).await.unwrap());
    assert_eq!(host.stop(), Some(0));
}

/// The look-ups of the directory fail at their timeout.
#[tokio::test]
async fn hung_directory_delays_only_its_own_lookups() {
    let Some(host) = host_with_namespace("") else { return };
    let (identity, mut gateway) = host.connect_gateway().await;
    let (hung_dir, dir) = (host.dir.path().join("hung"), host.dir.path().join("work"));
    for dir in [&hung_dir, &dir] {
        std::fs::create_dir(dir).unwrap();
    }
    let hung_mount = hang_directory(&host, &hung_dir);
    let look_up = |path: &Path| {
        let op = FilesOp::Directories { paths: vec![path.to_str().unwrap().to_owned()] };
        Request::Files(FilesRequest { scope: FilesScope::Tenant, roots: Vec::new(), op })
    };
    let mut asked = Vec::new();
    for n in 0..20 {
        asked.push(gateway.send(look_up(&hung_dir.join(n.to_string()))).await);
    }
    let found = FilesReply::Directories(vec![Ok(dir.to_str().unwrap().to_owned())]);
    let other = within_latency("another directory", gateway.call(look_up(&dir))).await;
    assert_eq!(other, Ok(Reply::Files(Ok(found.clone()))));
    for id in asked {
        match within_latency("an answer at the deadline", gateway.reply(id)).await {
            Ok(Reply::Files(Err(
                FilesError::TimedOut { within_ms: 4_000 } | FilesError::NoHelper { .. },
            ))) => {}
            other => panic!("{other:?}"),
        }
    }
    let other = within_latency("another directory", gateway.call(look_up(&dir))).await;
    assert_eq!(other, Ok(Reply::Files(Ok(found))));
    drop(hung_mount);
    eventually("the helpers have ended", || helpers(identity.id).is_empty());
}

/// The file requests fail at their timeout.
#[tokio::test]
async fn hung_project_delays_only_its_file_requests() {
    let Some(host) = host_with_namespace("files_request_ms = 3000") else { return };
    let (identity, mut gateway) = host.connect_gateway().await;
    let (stuck, other) = (agent(&["cat"]), agent(&["cat"]));
    gateway.spawn_all([&stuck, &other]).await;
    let (hung_dir, dir) = (host.dir.path().join("hung"), host.dir.path().join("work"));
    for dir in [&hung_dir, &dir] {
        std::fs::create_dir(dir).unwrap();
    }
    let hung_mount = hang_directory(&host, &hung_dir);
    let write = |dir: &Path| FilesOp::Write {
        path: dir.join("a").to_str().unwrap().to_owned(),
        content: b"x".to_vec(),
    };
    let first = gateway.send(request(FilesScope::Lease(stuck.lease_id), &hung_dir, write(&hung_dir))).await;
    let second = gateway.send(request(FilesScope::Lease(stuck.lease_id), &hung_dir, write(&hung_dir))).await;
    let written = gateway.call(request(FilesScope::Lease(other.lease_id), &dir, write(&dir)));
    let written = within_latency("files of another session", written).await;
    assert_eq!(written, Ok(Reply::Files(Ok(FilesReply::Written))));
    for id in [first, second] {
        match within_latency("reply at the timeout", gateway.reply(id)).await {
            Ok(Reply::Files(Err(FilesError::TimedOut { within_ms: 3000 } | FilesError::NoHelper { .. }))) => {
            }
            other => panic!("{other:?}"),
        }
    }
    gateway.close(stuck.lease_id).await;
    within_latency("end of the lease", gateway.state(stuck.lease_id, LeaseState::Closed)).await;
    drop(hung_mount);
    eventually("the helpers have ended", || helpers(identity.id).len() <= 1);
}
