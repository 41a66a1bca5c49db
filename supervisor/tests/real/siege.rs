//! Hostile clients by the hundred, while an honest gateway is at work: it is served throughout.

use crate::common::{DEADLINE, Host, Identity, agent, eventually, say, script};
use crate::soak::Size;
use crate::start::refused;
use crate::tenants::as_user;
use acp_shared::conn::ConnError;
use acp_shared::protocol::{FRAME_BYTES_MAX, RefusalCode, Reply, Request, ToSupervisor};
use acp_shared::wire;
use acp_testkit::ability::{self, Ability};
use acp_testkit::possible;
use acp_testkit::processes::Killed;
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit, setrlimit};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long one round of honest work may take, on a machine that is busy with other tests.
const ROUND: Duration = Duration::from_secs(10);
/// Users of this test alone.
const HOSTILE: u32 = 65_011;
const UNKNOWN: u32 = 65_012;

/// A gateway that spawns, says, hears and closes all the time, on a thread of its own.
struct Honest {
    rounds: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Duration>,
}

impl Honest {
    fn begin(identity: Identity) -> Self {
        let (rounds, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (count, end) = (Arc::clone(&rounds), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(work(&identity, &count, &end))
        });
        let honest = Self { rounds, stop, thread };
        honest.goes_on();
        honest
    }

    /// Waits until it did more work.
    fn goes_on(&self) {
        let before = self.rounds.load(Ordering::Relaxed);
        eventually("the honest gateway is served", || {
            assert!(!self.thread.is_finished(), "it was not served in time");
            self.rounds.load(Ordering::Relaxed) >= before + 3
        });
    }

    fn end(self, what: &str) {
        self.goes_on();
        self.stop.store(true, Ordering::Relaxed);
        let slowest = self.thread.join().unwrap();
        let rounds = self.rounds.load(Ordering::Relaxed);
        say(&format!("{what}: {rounds} rounds of honest work, the slowest took {slowest:?}"));
    }
}

/// Connects as a gateway does: again, when it is cut off.
async fn connect_at_last(identity: &Identity) -> crate::common::Client {
    let until = Instant::now() + DEADLINE;
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

/// Returns how long the slowest round took.
async fn work(identity: &Identity, rounds: &AtomicU64, stop: &AtomicBool) -> Duration {
    let mut client = connect_at_last(identity).await;
    let mut slowest = Duration::ZERO;
    while !stop.load(Ordering::Relaxed) {
        let began = Instant::now();
        let round = async {
            let spec = client.start_attached(agent(&["cat"])).await;
            assert_eq!(client.input(spec.lease_id, 1, b"hello\n").await, Ok(Reply::Written { seq: 1 }));
            assert_eq!(client.read(spec.lease_id, 0, 6).await, b"hello\n");
            client.ack(spec.lease_id, 6).await;
            client.close(spec.lease_id).await;
        };
        tokio::time::timeout(ROUND, round).await.unwrap();
        slowest = slowest.max(began.elapsed());
        rounds.fetch_add(1, Ordering::Relaxed);
    }
    slowest
}

fn hello(identity: &Identity) -> Vec<u8> {
    wire::encode_frame(&ToSupervisor::Hello(identity.hello()), FRAME_BYTES_MAX).unwrap()
}

/// A connection that was welcomed, as bytes.
fn welcomed(identity: &Identity) -> UnixStream {
    let mut stream = UnixStream::connect(&identity.socket).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    stream.write_all(&hello(identity)).unwrap();
    let mut header = [0; 4];
    stream.read_exact(&mut header).unwrap();
    let mut frame = vec![0; u32::from_be_bytes(header).try_into().unwrap()];
    stream.read_exact(&mut frame).unwrap();
    stream
}

/// Whether the supervisor has closed it.
fn is_cut_off(stream: &mut UnixStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    loop {
        match stream.read(&mut [0; 4096]) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return error.kind() != ErrorKind::WouldBlock,
        }
    }
}

/// The soft limit of descriptors of this process becomes its hard one.
fn many_descriptors() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    setrlimit(Resource::Nofile, raised).unwrap();
    limit.maximum.unwrap_or(u64::MAX)
}

fn connect(path: &std::path::Path, count: usize) -> Vec<UnixStream> {
    (0..count).map(|_| UnixStream::connect(path).unwrap()).collect()
}

/// A thousand, half of them silent, half with garbage, of a user who may connect: others have their places still.
#[test]
fn a_thousand_connections_at_once() {
    const COUNT: usize = 1_000;
    let limit = many_descriptors();
    if limit < 2 * COUNT as u64 {
        println!("probe: {limit} descriptors at most: left out");
        return;
    }
    let root = ability::has(Ability::Root).is_ok();
    let host = Host::public(&format!("allowed_uids = [{HOSTILE}]\nhandshake_ms = 3000"));
    let before = Size::of(host.pid());
    let honest = Honest::begin(host.gateway());
    let path = host.socket();
    let began = Instant::now();
    let mut streams = match root {
        true => as_user(HOSTILE, async move || connect(&path, COUNT)),
        false => connect(&path, COUNT),
    };
    for stream in streams.iter_mut().step_by(2) {
        // Those over the limit are closed already.
        let _ = stream.write_all(&[0xff; 64]);
    }
    assert!(began.elapsed() < DEADLINE, "they must wait");
    honest.goes_on();
    if root {
        Honest::begin(host.gateway()).end("one that came later");
        assert!(host.log().contains("too many connections in the handshake"), "{}", host.log());
    }
    // The silent ones have the time of the handshake.
    eventually("all of them are disconnected", || streams.iter_mut().all(is_cut_off));
    drop(streams);
    honest.end("a thousand connections");
    eventually("their descriptors are given back", || Size::of(host.pid()).fds <= before.fds + 2);
}

/// Byte by byte, each of them in time: what counts is the whole.
#[test]
fn a_handshake_byte_by_byte_is_cut_off_in_its_time() {
    let host = Host::with_config("handshake_ms = 500");
    let honest = Honest::begin(host.gateway());
    let bytes = hello(&host.gateway());
    let mut streams = connect(&host.socket(), 50);
    let (mut sent, began) = (0, Instant::now());
    eventually("all of them are disconnected", || {
        let byte = bytes[sent..].first().copied();
        sent += 1;
        // Ten milliseconds lie between two of them.
        streams.retain_mut(|stream| {
            assert!(byte.is_some(), "a handshake of {:?} was accepted", began.elapsed());
            stream.write_all(&[byte.unwrap_or_default()]).is_ok()
        });
        streams.is_empty()
    });
    assert!(sent > 1 && sent < bytes.len(), "{sent} bytes");
    honest.end("slow handshakes");
}

/// Gateways that were welcomed, and go wrong afterwards.
#[test]
fn welcomed_gateways_that_go_wrong_end_themselves_alone() {
    let host = Host::new();
    let honest = Honest::begin(host.gateway());
    let request = ToSupervisor::Request { id: 1, body: Request::Status };
    let request = wire::encode_frame(&request, FRAME_BYTES_MAX).unwrap();
    let oversized = u32::try_from(FRAME_BYTES_MAX + 1).unwrap().to_be_bytes();
    for _ in 0..20 {
        for bytes in [&[0xff; 4096][..], &oversized, &[0, 0, 0, 1, 0xee]] {
            let mut stream = welcomed(&host.gateway());
            // It may close before it has read everything.
            let _ = stream.write_all(bytes);
            eventually("it is disconnected", || is_cut_off(&mut stream));
        }
    }
    honest.goes_on();
    // A request that never comes to its end, and the announcement of a large one, hold up nobody.
    let mut halves: Vec<UnixStream> = (0..40).map(|_| welcomed(&host.gateway())).collect();
    let large = u32::try_from(FRAME_BYTES_MAX).unwrap().to_be_bytes();
    for (at, stream) in halves.iter_mut().enumerate() {
        let part = if at % 2 == 0 { &request[..request.len() / 2] } else { &large };
        stream.write_all(part).unwrap();
    }
    let memory = Size::of(host.pid()).rss_kib;
    honest.goes_on();
    assert!(memory < 300 * 1024, "{memory} KiB for frames that were only announced");
    assert!(!halves.iter_mut().any(is_cut_off), "they may take their time");
    honest.end("half frames");
}

/// Gateways whose agents talk without end, and who neither read nor acknowledge.
#[tokio::test]
async fn gateways_that_hear_nothing_hold_up_nobody() {
    let host = Host::with_config("ring_bytes_max = 65536\ncredit_bytes = 65536\nspool_bytes_max = 1048576");
    let honest = Honest::begin(host.gateway());
    let mut deaf = Vec::new();
    for _ in 0..4 {
        let mut client = host.gateway().connect().await;
        client.start_attached(script("yes")).await;
        for _ in 0..200 {
            client.send(Request::ListLeases { detail: false }).await;
        }
        deaf.push(client);
    }
    honest.end("deaf gateways");
}

/// A process that keeps 400 connections open without a word, and opens anew those that are closed.
fn holder(host: &Host) -> (std::path::PathBuf, [String; 2]) {
    let program = crate::common::program("acp-testkit", "hold-connections");
    (program, [host.socket().display().to_string(), "400".to_owned()])
}

/// While something holds connections: an admin is answered, gateways come, go on and come back.
async fn assert_open_to_others(host: &Host, mut identity: Identity, what: &str) {
    let honest = Honest::begin(host.gateway());
    for _ in 0..5 {
        assert!(host.cli(&["status"]).status.success());
        identity.epoch += 1;
        let mut client = connect_at_last(&identity).await;
        assert!(matches!(client.call(Request::Status).await, Ok(Reply::Status(_))));
    }
    honest.end(what);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_of_a_supervised_tree_take_no_place() {
    let host = Host::new();
    let identity = host.gateway();
    let mut client = identity.connect().await;
    let (program, args) = holder(&host);
    // A child of the agent holds them.
    let spec = client.start(script(&format!("{} {}; true", program.display(), args.join(" ")))).await;
    client.attach(spec.lease_id, 0).await;
    assert_eq!(client.read(spec.lease_id, 0, 5).await, b"held\n");
    drop(client);
    assert_open_to_others(&host, identity, "connections of a supervised tree").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_without_hello_keep_nobody_out() {
    let host = Host::new();
    let identity = host.gateway();
    drop(identity.connect().await);
    let (program, args) = holder(&host);
    let mut command = std::process::Command::new(program);
    command.args(args).stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
    let mut holder = Killed(command.spawn().unwrap());
    let mut line = [0; 5];
    holder.stdout.as_mut().unwrap().read_exact(&mut line).unwrap();
    assert_open_to_others(&host, identity, "connections without Hello").await;
}

/// Without descriptors no connection can be accepted: the log says so a few times, then how often it did not.
#[test]
fn accepts_that_fail_are_logged_a_few_times() {
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
    Honest::begin(host.gateway()).end("one that came later");
}

/// H5: what was heard of an earlier handshake is of no use while the gateway is there.
#[tokio::test]
async fn replayed_epochs_never_get_in() {
    let host = Host::new();
    let honest = Honest::begin(host.gateway());
    let mut identity = host.gateway();
    identity.epoch = 10;
    let mut victim = identity.connect().await;
    let spec = victim.start_attached(agent(&["cat"])).await;
    for round in 0..30 {
        for epoch in [0, 1, 9, 10] {
            let replayed = Identity { epoch, ..identity.clone() };
            let code = refused(replayed.try_connect().await).code;
            assert_eq!(code, RefusalCode::InstanceBusy, "epoch {epoch}");
        }
        let seq = round + 1;
        assert_eq!(victim.input(spec.lease_id, seq, b"x\n").await, Ok(Reply::Written { seq }));
        assert_eq!(victim.read(spec.lease_id, round * 2, 2).await, b"x\n");
    }
    honest.end("replayed epochs");
}

/// A user who may not connect, at the door all the time.
#[test]
fn a_user_who_may_not_connect_holds_up_nobody() {
    possible!(Ability::Root);
    let host = Host::public(&format!("allowed_uids = [{HOSTILE}]"));
    let honest = Honest::begin(host.gateway());
    let identity = host.gateway();
    as_user(UNKNOWN, async move || {
        for _ in 0..300 {
            let code = refused(identity.try_connect().await).code;
            assert_eq!(code, RefusalCode::NotAuthorised);
        }
    });
    let count = |log: &str| {
        let lines = log.lines().filter(|line| line.contains(&format!("uid={UNKNOWN}")));
        let (written, left_out): (Vec<_>, Vec<_>) = lines.partition(|line| line.contains("refused"));
        let number = |line: &str| line.split_once("left_out=")?.1.split(' ').next()?.parse::<usize>().ok();
        (written.len(), left_out.into_iter().filter_map(number).sum::<usize>())
    };
    eventually("each of them is counted", || {
        let (written, left_out) = count(&host.log());
        assert!(written < 100, "a journal is filled");
        written + left_out == 300
    });
    honest.end("a user who may not connect");
}
