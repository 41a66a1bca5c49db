//! Floods of hostile clients; a well-behaved gateway is served throughout.

use crate::common::{Host, Identity, TIMEOUT, agent, eventually, report, script};
use crate::scenarios::refusal_of;
use crate::soak::Size;
use crate::tenants::as_user;
use acp_shared::conn::ConnError;
use acp_shared::protocol::{FRAME_BYTES_MAX, RefusalCode, Reply, Request, ToSupervisor};
use acp_shared::wire;
use acp_testkit::ability::{self, Ability};
use acp_testkit::processes::KillOnDrop;
use acp_testkit::skip_unless;
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit, setrlimit};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Maximum time of one round on a busy machine.
const ROUND_MAX: Duration = Duration::from_secs(10);
/// Users of this test only.
const HOSTILE_UID: u32 = 65_011;
const UNKNOWN_UID: u32 = 65_012;

/// Well-behaved gateway that spawns, reads, writes and closes in a loop, on its own thread.
struct Workload {
    rounds: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Duration>,
}

impl Workload {
    fn start(identity: Identity) -> Self {
        let (rounds, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (count, end) = (Arc::clone(&rounds), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(run_rounds(&identity, &count, &end))
        });
        let workload = Self { rounds, stop, thread };
        workload.await_rounds();
        workload
    }

    /// Waits until three more rounds are done.
    fn await_rounds(&self) {
        let before = self.rounds.load(Ordering::Relaxed);
        eventually("the honest gateway is served", || {
            assert!(!self.thread.is_finished(), "not served in time");
            self.rounds.load(Ordering::Relaxed) >= before + 3
        });
    }

    fn finish(self, name: &str) {
        self.await_rounds();
        self.stop.store(true, Ordering::Relaxed);
        let slowest = self.thread.join().unwrap();
        let rounds = self.rounds.load(Ordering::Relaxed);
        report(&format!("{name}: {rounds} rounds, slowest {slowest:?}"));
    }
}

/// Connects, and retries after a disconnection.
async fn connect_with_retry(identity: &Identity) -> crate::common::Client {
    let until = Instant::now() + TIMEOUT;
    loop {
        match identity.try_connect().await {
            Ok(client) => return client,
            Err(ConnError::Closed | ConnError::Io(_)) if Instant::now() < until => {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// Runs rounds until `stop` and returns the duration of the slowest.
async fn run_rounds(identity: &Identity, rounds: &AtomicU64, stop: &AtomicBool) -> Duration {
    let mut client = connect_with_retry(identity).await;
    let mut slowest = Duration::ZERO;
    while !stop.load(Ordering::Relaxed) {
        let began = Instant::now();
        let round = async {
            let spec = client.spawn_attached(agent(&["cat"])).await;
            assert_eq!(client.input(spec.lease_id, 1, b"hello\n").await, Ok(Reply::Written { seq: 1 }));
            assert_eq!(client.read(spec.lease_id, 0, 6).await, b"hello\n");
            client.ack(spec.lease_id, 6).await;
            client.close(spec.lease_id).await;
        };
        tokio::time::timeout(ROUND_MAX, round).await.unwrap();
        slowest = slowest.max(began.elapsed());
        rounds.fetch_add(1, Ordering::Relaxed);
    }
    slowest
}

fn hello(identity: &Identity) -> Vec<u8> {
    wire::encode_frame(&ToSupervisor::Hello(identity.hello()), FRAME_BYTES_MAX).unwrap()
}

/// Connects as a gateway and returns the raw stream after the welcome.
fn connect_welcomed(identity: &Identity) -> UnixStream {
    let mut stream = UnixStream::connect(&identity.socket).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.write_all(&hello(identity)).unwrap();
    let mut header = [0; 4];
    stream.read_exact(&mut header).unwrap();
    let mut frame = vec![0; u32::from_be_bytes(header).try_into().unwrap()];
    stream.read_exact(&mut frame).unwrap();
    stream
}

/// True if the supervisor has closed the connection.
fn is_closed(stream: &mut UnixStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    loop {
        match stream.read(&mut [0; 4096]) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return error.kind() != ErrorKind::WouldBlock,
        }
    }
}

/// Raises the soft limit of descriptors to the hard limit.
fn raise_descriptor_limit() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    setrlimit(Resource::Nofile, raised).unwrap();
    limit.maximum.unwrap_or(u64::MAX)
}

fn connect(path: &std::path::Path, count: usize) -> Vec<UnixStream> {
    (0..count).map(|_| UnixStream::connect(path).unwrap()).collect()
}

/// Half of the connections are silent, half send garbage; other users keep their connections.
#[test]
fn thousand_connections_do_not_block_gateway() {
    const COUNT: usize = 1_000;
    let limit = raise_descriptor_limit();
    if limit < 2 * COUNT as u64 {
        println!("probe: at most {limit} descriptors: skipped");
        return;
    }
    let root = ability::has(Ability::Root).is_ok();
    let host = Host::public(&format!("allowed_uids = [{HOSTILE_UID}]\nhandshake_ms = 3000"));
    let before = Size::of(host.pid());
    let workload = Workload::start(host.gateway());
    let path = host.socket();
    let began = Instant::now();
    let mut streams = match root {
        true => as_user(HOSTILE_UID, async move || connect(&path, COUNT)),
        false => connect(&path, COUNT),
    };
    for stream in streams.iter_mut().step_by(2) {
        // Connections over the limit are already closed.
        let _ = stream.write_all(&[0xff; 64]);
    }
    assert!(began.elapsed() < TIMEOUT, "connecting took too long");
    workload.await_rounds();
    if root {
        Workload::start(host.gateway()).finish("later gateway");
        assert!(host.log().contains("too many connections in the handshake"), "{}", host.log());
    }
    // Silent connections are closed at the handshake timeout.
    eventually("all connections are closed", || streams.iter_mut().all(is_closed));
    drop(streams);
    workload.finish("a thousand connections");
    eventually("their descriptors are closed", || Size::of(host.pid()).fds <= before.fds + 2);
}

/// The timeout counts for the whole handshake, not for each byte.
#[test]
fn slow_handshake_is_disconnected_in_time() {
    let host = Host::with_config("handshake_ms = 500");
    let workload = Workload::start(host.gateway());
    let bytes = hello(&host.gateway());
    let mut streams = connect(&host.socket(), 50);
    let (mut sent, began) = (0, Instant::now());
    eventually("all connections are closed", || {
        let byte = bytes[sent..].first().copied();
        sent += 1;
        // Each poll is 10 ms later.
        streams.retain_mut(|stream| {
            assert!(byte.is_some(), "a handshake of {:?} was accepted", began.elapsed());
            stream.write_all(&[byte.unwrap_or_default()]).is_ok()
        });
        streams.is_empty()
    });
    assert!(sent > 1 && sent < bytes.len(), "{sent} bytes");
    workload.finish("slow handshakes");
}

#[test]
fn protocol_violation_ends_only_own_connection() {
    let host = Host::new();
    let workload = Workload::start(host.gateway());
    let request = ToSupervisor::Request { id: 1, body: Request::Status };
    let request = wire::encode_frame(&request, FRAME_BYTES_MAX).unwrap();
    let oversized = u32::try_from(FRAME_BYTES_MAX + 1).unwrap().to_be_bytes();
    for _ in 0..20 {
        for bytes in [&[0xff; 4096][..], &oversized, &[0, 0, 0, 1, 0xee]] {
            let mut stream = connect_welcomed(&host.gateway());
            // The supervisor may close before it has read everything.
            let _ = stream.write_all(bytes);
            eventually("the connection is closed", || is_closed(&mut stream));
        }
    }
    workload.await_rounds();
    // Incomplete requests and announcements of large ones delay no other client.
    let mut halves: Vec<UnixStream> = (0..40).map(|_| connect_welcomed(&host.gateway())).collect();
    let large = u32::try_from(FRAME_BYTES_MAX).unwrap().to_be_bytes();
    for (at, stream) in halves.iter_mut().enumerate() {
        let part = if at % 2 == 0 { &request[..request.len() / 2] } else { &large };
        stream.write_all(part).unwrap();
    }
    let memory = Size::of(host.pid()).rss_kib;
    workload.await_rounds();
    assert!(memory < 300 * 1024, "{memory} KiB for announced frames");
    assert!(!halves.iter_mut().any(is_closed), "an incomplete request was closed");
    workload.finish("half frames");
}

/// Agents print without end; their gateways neither read nor acknowledge.
#[tokio::test]
async fn non_reading_gateways_delay_no_other() {
    let host = Host::with_config("ring_bytes_max = 65536\ncredit_bytes = 65536\nspool_bytes_max = 1048576");
    let workload = Workload::start(host.gateway());
    let mut clients = Vec::new();
    for _ in 0..4 {
        let mut client = host.gateway().connect().await;
        client.spawn_attached(script("yes")).await;
        for _ in 0..200 {
            client.send(Request::ListLeases { detail: false }).await;
        }
        clients.push(client);
    }
    workload.finish("non-reading gateways");
}

/// Command that holds 400 silent connections open and reopens closed ones.
fn connection_holder(host: &Host) -> (std::path::PathBuf, [String; 2]) {
    let program = crate::common::program("acp-testkit", "hold-connections");
    (program, [host.socket().display().to_string(), "400".to_owned()])
}

/// Asserts that the admin CLI is answered and gateways connect and reconnect.
async fn assert_open_to_others(host: &Host, mut identity: Identity, name: &str) {
    let workload = Workload::start(host.gateway());
    for _ in 0..5 {
        assert!(host.cli(&["status"]).status.success());
        identity.epoch += 1;
        let mut client = connect_with_retry(&identity).await;
        assert!(matches!(client.call(Request::Status).await, Ok(Reply::Status(_))));
    }
    workload.finish(name);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_of_supervised_tree_use_no_slot() {
    let host = Host::new();
    let identity = host.gateway();
    let mut client = identity.connect().await;
    let (program, args) = connection_holder(&host);
    // A child of the agent holds the connections.
    let spec = client.start(script(&format!("{} {}; true", program.display(), args.join(" ")))).await;
    client.attach(spec.lease_id, 0).await;
    assert_eq!(client.read(spec.lease_id, 0, 5).await, b"held\n");
    drop(client);
    assert_open_to_others(&host, identity, "connections of a supervised tree").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_without_hello_block_no_client() {
    let host = Host::new();
    let identity = host.gateway();
    drop(identity.connect().await);
    let (program, args) = connection_holder(&host);
    let mut command = std::process::Command::new(program);
    command.args(args).stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
    let mut connection_holder = KillOnDrop(command.spawn().unwrap());
    let mut line = [0; 5];
    connection_holder.stdout.as_mut().unwrap().read_exact(&mut line).unwrap();
    assert_open_to_others(&host, identity, "connections without Hello").await;
}

/// Without descriptors no connection can be accepted: the log has a few lines, then a count of the rest.
#[test]
fn failed_accepts_are_logged_a_few_times() {
    let host = Host::public("");
    let limit = |current| Rlimit { current, maximum: getrlimit(Resource::Nofile).maximum };
    let pid = Pid::from_raw(host.pid());
    let before = prlimit(pid, Resource::Nofile, limit(Some(1))).unwrap();
    let waiting = UnixStream::connect(host.socket()).unwrap();
    eventually("the rest is counted", || host.log().contains("similar messages suppressed"));
    prlimit(pid, Resource::Nofile, before).unwrap();
    drop(waiting);
    let logged = host.log().matches("cannot accept a connection").count();
    assert!((1..=20).contains(&logged), "{logged} lines");
    Workload::start(host.gateway()).finish("gateway");
}

/// H5: an observed epoch is useless while the gateway is connected.
#[tokio::test]
async fn replayed_epoch_is_refused() {
    let host = Host::new();
    let workload = Workload::start(host.gateway());
    let mut identity = host.gateway();
    identity.epoch = 10;
    let mut victim = identity.connect().await;
    let spec = victim.spawn_attached(agent(&["cat"])).await;
    for round in 0..30 {
        for epoch in [0, 1, 9, 10] {
            let replayed = Identity { epoch, ..identity.clone() };
            let code = refusal_of(replayed.try_connect().await).code;
            assert_eq!(code, RefusalCode::InstanceBusy, "epoch {epoch}");
        }
        let seq = round + 1;
        assert_eq!(victim.input(spec.lease_id, seq, b"x\n").await, Ok(Reply::Written { seq }));
        assert_eq!(victim.read(spec.lease_id, round * 2, 2).await, b"x\n");
    }
    workload.finish("replayed epochs");
}

#[test]
fn unauthorized_user_delays_no_other() {
    skip_unless!(Ability::Root);
    let host = Host::public(&format!("allowed_uids = [{HOSTILE_UID}]"));
    let workload = Workload::start(host.gateway());
    let identity = host.gateway();
    as_user(UNKNOWN_UID, async move || {
        for _ in 0..300 {
            let code = refusal_of(identity.try_connect().await).code;
            assert_eq!(code, RefusalCode::NotAuthorised);
        }
    });
    let count = |log: &str| {
        let lines = log.lines().filter(|line| line.contains(&format!("uid={UNKNOWN_UID}")));
        let (written, left_out): (Vec<_>, Vec<_>) = lines.partition(|line| line.contains("refused"));
        let count_of = |line: &str| line.split_once("left_out=")?.1.split(' ').next()?.parse::<usize>().ok();
        (written.len(), left_out.into_iter().filter_map(count_of).sum::<usize>())
    };
    eventually("every refusal is counted", || {
        let (written, left_out) = count(&host.log());
        assert!(written < 100, "too many log lines");
        written + left_out == 300
    });
    workload.finish("unauthorized user");
}
