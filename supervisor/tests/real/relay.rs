//! Streams of an agent: offsets, input numbers, back-pressure, reconnection, output of ended agents.

use crate::common::{Host, agent, eventually, is_alive, pids_of, script};
use acp_shared::launch::ExitStatus;
use acp_shared::protocol::{LeaseState, Notice, RefusalCode, Reply, Request};

#[tokio::test]
async fn output_carries_offsets() {
    let (_host, mut gateway) = Host::with_gateway().await;
    let (spec, info) = gateway.spawn_with_info(agent(&["cat"])).await;
    assert_eq!(info.state, LeaseState::Open);
    assert!(is_alive(info.adapter_pid.unwrap()) && is_alive(info.wrapper_pid.unwrap()));
    let attached = gateway.attach(spec.lease_id, 0).await;
    assert_eq!((attached.stdout_base, attached.stdin_written, attached.exit), (0, 0, None));
    assert_eq!(gateway.input(spec.lease_id, 1, b"hello\n").await, Ok(Reply::Written { seq: 1 }));
    assert_eq!(gateway.read(spec.lease_id, 0, 6).await, b"hello\n");
    assert_eq!(gateway.input(spec.lease_id, 2, b"world\n").await, Ok(Reply::Written { seq: 2 }));
    assert_eq!(gateway.read(spec.lease_id, 6, 6).await, b"world\n");
    gateway.ack(spec.lease_id, 12).await;
    let info = gateway.leases().await.remove(0);
    assert_eq!((info.stdout_acked, info.stdout_end, info.stdin_written), (12, 12, 2));
    // EOF ends cat.
    gateway.close(spec.lease_id).await;
    assert_eq!(gateway.await_exit(spec.lease_id).await.1, 12);
    gateway.state(spec.lease_id, LeaseState::Closed).await;
    assert!(pids_of(spec.lease_id).is_empty());
}

#[tokio::test]
async fn input_is_written_once_and_compared() {
    let (_host, mut gateway) = Host::with_gateway().await;
    let spec = gateway.spawn_attached(agent(&["cat"])).await;
    let id = spec.lease_id;
    for (seq, bytes, want) in [
        (0, "x", Err(RefusalCode::SeqGap)),
        (2, "x", Err(RefusalCode::SeqGap)),
        (1, "a", Ok(Reply::Written { seq: 1 })),
        (1, "a", Ok(Reply::Written { seq: 1 })),
        (1, "b", Err(RefusalCode::SeqConflict)),
        (3, "x", Err(RefusalCode::SeqGap)),
        (2, "", Ok(Reply::Written { seq: 2 })),
        (3, "c", Ok(Reply::Written { seq: 3 })),
        (1, "a", Ok(Reply::Written { seq: 1 })),
    ] {
        let got = gateway.input(id, seq, bytes.as_bytes()).await;
        assert_eq!(got.map_err(|refusal| refusal.code), want, "{seq} {bytes}");
    }
    gateway.close(id).await;
    assert_eq!(gateway.await_exit(id).await.1, 2, "only a and c were written");
}

#[tokio::test]
async fn full_ring_blocks_agent_without_loss() {
    let (_host, mut gateway) = Host::serving("ring_bytes_max = 8192\ncredit_bytes = 4096").await;
    let spec = gateway.start(script("seq -w 1 50000; sleep 60")).await;
    let mut end = 0;
    // Without a reader the ring fills and stays full.
    loop {
        let now = gateway.leases().await.remove(0).stdout_end;
        if now == 8192 && now == end {
            break;
        }
        end = now;
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    assert_eq!(gateway.welcome.credit_bytes, 4096);
    gateway.attach(spec.lease_id, 0).await;
    let all = gateway.read_and_ack(spec.lease_id, 0, 50_000 * 6).await;
    let want: String = (1..=50_000).map(|i| format!("{i:05}\n")).collect();
    assert!(all == want.as_bytes());
}

#[tokio::test]
async fn output_beyond_credit_waits_without_starving_replies() {
    let (_host, mut gateway) = Host::serving("ring_bytes_max = 65536\ncredit_bytes = 4096").await;
    let spec = gateway.spawn_attached(script("yes | head -c 20000; exec cat")).await;
    assert_eq!(gateway.read(spec.lease_id, 0, 4096).await.len(), 4096);
    // Without an acknowledgement no more output comes; other requests are answered.
    assert_eq!(gateway.input(spec.lease_id, 1, b"x").await, Ok(Reply::Written { seq: 1 }));
    assert!(matches!(gateway.call(Request::Status).await, Ok(Reply::Status(_))));
    assert!(gateway.notices.is_empty(), "{:?}", gateway.notices);
    gateway.ack(spec.lease_id, 1000).await;
    assert_eq!(gateway.read(spec.lease_id, 4096, 1000).await.len(), 1000);
}

#[tokio::test]
async fn new_connection_continues_from_committed_offset() {
    let (_host, mut identity, mut gateway) = Host::with_identity().await;
    let (spec, info) = gateway.spawn_with_info(agent(&["cat"])).await;
    gateway.attach(spec.lease_id, 0).await;
    gateway.input(spec.lease_id, 1, b"0123456789").await.unwrap();
    assert_eq!(gateway.read(spec.lease_id, 0, 10).await, b"0123456789");
    gateway.ack(spec.lease_id, 4).await;
    drop(gateway);

    identity.epoch = 2;
    let mut gateway = identity.connect().await;
    let attached = gateway.attach(spec.lease_id, 6).await;
    assert_eq!((attached.stdout_base, attached.stdout_end, attached.stdin_written), (6, 10, 1));
    assert_eq!(gateway.read(spec.lease_id, 6, 4).await, b"6789");
    // The reply shows the gap to a client behind its own acknowledgement (H7).
    let attached = gateway.attach(spec.lease_id, 0).await;
    assert_eq!(attached.stdout_base, 6);
    assert_eq!(gateway.output(spec.lease_id).await, (6, b"6789".to_vec()));
    let ahead = gateway.call(Request::Attach { lease_id: spec.lease_id, from_offset: 11 }).await.unwrap_err();
    assert_eq!(ahead.code, RefusalCode::OffsetUnavailable);
    // The agent and its input numbers continue.
    assert_eq!(gateway.input(spec.lease_id, 1, b"0123456789").await, Ok(Reply::Written { seq: 1 }));
    assert_eq!(gateway.input(spec.lease_id, 2, b"ab").await, Ok(Reply::Written { seq: 2 }));
    assert_eq!(gateway.read(spec.lease_id, 10, 2).await, b"ab");
    assert_eq!(gateway.leases().await.remove(0).adapter_pid, info.adapter_pid);
}

#[tokio::test]
async fn output_of_ended_agent_is_readable() {
    let (mut host, identity, mut gateway) = Host::with_identity().await;
    let spec = gateway.start(script("echo last words; echo oops >&2; exit 7")).await;
    gateway.state(spec.lease_id, LeaseState::Closed).await;
    let info = gateway.leases().await.remove(0);
    assert_eq!(
        (info.state, info.exit, info.stdout_end),
        (LeaseState::Closed, Some(ExitStatus::Exited(7)), 11)
    );

    let attached = gateway.attach(spec.lease_id, 0).await;
    assert_eq!(
        (attached.stdout_eof, attached.exit, attached.stdout_end),
        (true, Some(ExitStatus::Exited(7)), 11)
    );
    assert_eq!(gateway.read(spec.lease_id, 0, 11).await, b"last words\n");
    assert_eq!(gateway.await_exit(spec.lease_id).await, (ExitStatus::Exited(7), 11));
    gateway.log_with(&spec.session_key, "| oops\n").await;
    drop(gateway);

    // The next supervisor keeps the output.
    assert_eq!(host.stop(), Some(0));
    host.start();
    let mut gateway = identity.connect().await;
    let attached = gateway.attach(spec.lease_id, 5).await;
    assert_eq!((attached.state, attached.stdout_base, attached.stdout_end), (LeaseState::Closed, 5, 11));
    assert_eq!(gateway.read(spec.lease_id, 5, 6).await, b"words\n");
    assert_eq!(gateway.await_exit(spec.lease_id).await.0, ExitStatus::Exited(7));
    assert_eq!(gateway.call(Request::Release { lease_id: spec.lease_id }).await, Ok(Reply::Done));
    let refusal =
        gateway.call(Request::Attach { lease_id: spec.lease_id, from_offset: 5 }).await.unwrap_err();
    assert_eq!(refusal.code, RefusalCode::LeaseEnded);
    let spool = host.state_dir().join("spool");
    eventually("the spool is gone", || std::fs::read_dir(&spool).unwrap().next().is_none());
}

#[tokio::test]
async fn closing_agent_is_drained_beyond_ring() {
    let (_host, mut gateway) = Host::serving("ring_bytes_max = 4096\ncredit_bytes = 4096").await;
    // After EOF the agent prints more than ring and pipe hold.
    let spec = gateway.start(script("cat; seq -w 1 50000; echo end")).await;
    gateway.close_and_wait(spec.lease_id).await;
    let end = 50_000 * 6 + 4;
    let info = gateway.leases().await.remove(0);
    assert_eq!((info.stdout_end, info.exit), (end, Some(ExitStatus::Exited(0))));
    gateway.attach(spec.lease_id, 0).await;
    let mut all = Vec::new();
    loop {
        match gateway.notice().await {
            Notice::Output { offset, bytes, .. } => {
                assert_eq!(offset, all.len() as u64);
                all.extend(bytes);
                gateway.ack(spec.lease_id, all.len() as u64).await;
            }
            Notice::Exited { end_offset, .. } => {
                assert_eq!(end_offset, end);
                break;
            }
            Notice::LeaseChanged { .. } => {}
        }
    }
    let want: String = (1..=50_000).map(|i| format!("{i:05}\n")).chain(["end\n".into()]).collect();
    assert!(all == want.as_bytes());
}

#[tokio::test]
async fn input_of_non_reading_agent_waits() {
    let (_host, mut gateway) = Host::serving("stdin_bytes_max = 100000").await;
    let spec = gateway.start(script("sleep 60")).await;
    let big = vec![b'x'; 90_000];
    // More than a pipe holds: the reply waits.
    let first = gateway.send(Request::Input { lease_id: spec.lease_id, seq: 1, bytes: big.clone() }).await;
    let busy = gateway.input(spec.lease_id, 2, &big).await.unwrap_err();
    assert_eq!((busy.code, busy.retry_after_ms.is_some()), (RefusalCode::Busy, true));
    assert_eq!(gateway.leases().await.remove(0).stdin_written, 0);
    gateway.close(spec.lease_id).await;
    assert_eq!(gateway.reply(first).await.unwrap_err().code, RefusalCode::LeaseEnded);
}

/// Agents of one gateway share a memory limit; another gateway has its own.
#[tokio::test]
async fn buffered_output_is_bounded_per_gateway() {
    const MAX: u64 = 200_000;
    let host = Host::with_config(&format!("gateway_bytes_max = {MAX}"));
    let (mut a, mut b) = (host.gateway().connect().await, host.gateway().connect().await);
    let (first, second, other) = (script("yes"), script("yes"), script("yes"));
    a.spawn(&first).await;
    a.spawn(&second).await;
    b.spawn(&other).await;
    for (gateway, agents) in [(&mut a, 2), (&mut b, 1)] {
        let mut held = 0;
        let until = std::time::Instant::now() + crate::common::TIMEOUT;
        while held < MAX {
            assert!(std::time::Instant::now() < until, "{held}");
            held = gateway.leases().await.iter().map(|l| l.stdout_end - l.stdout_acked).sum();
        }
        // Data being read at the limit is kept too.
        assert!(held <= MAX + agents * 2 * 65_536, "{held}");
    }
    a.attach(first.lease_id, 0).await;
    a.read_and_ack(first.lease_id, 0, 3_000_000).await;
    // A small message is accepted, a large one is refused.
    assert_eq!(b.input(other.lease_id, 1, b"x").await, Ok(Reply::Written { seq: 1 }));
    assert_eq!(b.input(other.lease_id, 2, &[0; 100_000]).await.unwrap_err().code, RefusalCode::Busy);
}
