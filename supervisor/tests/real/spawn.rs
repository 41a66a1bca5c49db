//! Spawning: idempotence, conflicts, failures.

use crate::common::{Host, agent, eventually, pids_of, script};
use crate::scenarios::await_gone;
use crate::upgrade::descriptors;
use acp_shared::protocol::{LeaseState, RefusalCode, Reply, Request, Spawn};
use acp_testkit::processes::{KillOnDrop, children};

#[tokio::test]
async fn repeated_spawn_is_idempotent() {
    let (_host, mut gateway) = Host::with_gateway().await;
    let spec = agent(&["cat"]);
    // The second request waits for the first.
    let (first, second) =
        (gateway.send(Request::Spawn(spec.clone())).await, gateway.send(Request::Spawn(spec.clone())).await);
    let first = gateway.reply(first).await.unwrap();
    assert_eq!(gateway.reply(second).await.unwrap(), first);
    assert_eq!(gateway.call(Request::Spawn(spec.clone())).await.unwrap(), first);
    let other = Spawn { argv: vec!["cat".into(), "-u".into()], ..spec.clone() };
    assert_eq!(gateway.call(Request::Spawn(other)).await.unwrap_err().code, RefusalCode::LeaseConflict);
    assert_eq!(pids_of(spec.lease_id).len(), 2, "one wrapper, one adapter");

    gateway.close_and_wait(spec.lease_id).await;
    match gateway.call(Request::Spawn(spec)).await.unwrap() {
        Reply::Spawned(info) => assert_eq!(info.state, LeaseState::Closed, "restarted"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn session_has_one_agent() {
    let (_host, mut gateway) = Host::with_gateway().await;
    let first = script("trap '' TERM; while :; do sleep 1; done");
    let second = Spawn { session_key: first.session_key.clone(), ..agent(&["cat"]) };
    gateway.spawn(&first).await;
    let busy = |reply: Result<Reply, _>| reply.map_err(|refusal: acp_shared::protocol::Refusal| refusal.code);
    assert_eq!(busy(gateway.call(Request::Spawn(second.clone())).await), Err(RefusalCode::SessionBusy));
    gateway.close(first.lease_id).await;
    // The session is free only after the close.
    assert_eq!(busy(gateway.call(Request::Spawn(second.clone())).await), Err(RefusalCode::SessionBusy));
    gateway.state(first.lease_id, LeaseState::Closed).await;
    assert_eq!(gateway.spawn(&second).await.state, LeaseState::Open);
}

#[tokio::test]
async fn failed_spawn_reports_reason_and_leaves_nothing() {
    let (host, mut gateway) = Host::with_gateway().await;
    let missing = agent(&["/nonexistent/agent"]);
    let not_executable = agent(&["/etc/passwd"]);
    let no_cwd = Spawn { cwd: "/nonexistent".into(), ..agent(&["cat"]) };
    for (spec, part) in
        [(missing, "No such file"), (not_executable, "Permission denied"), (no_cwd, "No such file")]
    {
        let refusal = gateway.call(Request::Spawn(spec.clone())).await.unwrap_err();
        assert_eq!(refusal.code, RefusalCode::SpawnFailed);
        assert!(refusal.message.contains(part), "{}", refusal.message);
        let info = gateway.leases().await.into_iter().find(|l| l.lease_id == spec.lease_id).unwrap();
        assert_eq!(info.state, LeaseState::Closed, "{info:?}");
        assert!(info.state_reason.contains(part), "{info:?}");
        eventually("nothing is left", || pids_of(spec.lease_id).is_empty());
    }
    // The session is free after a failure.
    let launches =
        host.state_dir().join("wrappers").join(gateway.leases().await[0].gateway_instance_id.to_string());
    assert_eq!(std::fs::read_dir(launches).unwrap().count(), 0, "launch directories are removed");
}

#[tokio::test]
async fn invalid_spawn_is_refused() {
    let (_host, mut gateway) = Host::serving("leases_per_gateway_max = 1\ngrace_max_ms = 60000").await;
    let good = agent(&["cat"]);
    let with = |change: &dyn Fn(&mut Spawn)| {
        let mut spec = agent(&["cat"]);
        change(&mut spec);
        spec
    };
    for (spec, want) in [
        (with(&|s| s.argv.clear()), RefusalCode::BadRequest),
        (with(&|s| s.argv = vec![String::new()]), RefusalCode::BadRequest),
        (with(&|s| s.argv.push("a\0b".into())), RefusalCode::BadRequest),
        (with(&|s| s.cwd = "relative".into()), RefusalCode::BadRequest),
        (with(&|s| s.env.push(("A=B".into(), "x".into()))), RefusalCode::BadRequest),
        (with(&|s| s.graces.term_ms = 60_001), RefusalCode::TooLarge),
        (with(&|s| s.argv = vec!["x".into(); 5_000]), RefusalCode::TooLarge),
    ] {
        assert_eq!(gateway.call(Request::Spawn(spec.clone())).await.unwrap_err().code, want, "{spec:?}");
    }
    assert!(gateway.leases().await.is_empty());
    gateway.spawn(&good).await;
    let refused = gateway.call(Request::Spawn(agent(&["cat"]))).await.unwrap_err();
    assert_eq!((refused.code, refused.retry_after_ms.is_some()), (RefusalCode::QuotaExceeded, true));
}

#[tokio::test]
async fn environment_is_requested_variables_and_markers() {
    let (_host, identity, mut gateway) = Host::with_identity().await;
    let forged = ("OPENCLAW_ACPX_LEASE_ID".to_owned(), "forged".to_owned());
    let spec = Spawn { env: vec![("A".into(), "1 2".into()), forged], ..agent(&["/usr/bin/env"]) };
    gateway.spawn(&spec).await;
    gateway.attach(spec.lease_id, 0).await;
    let (_, end) = {
        let all = gateway.output(spec.lease_id).await.1;
        let mut lines: Vec<String> = String::from_utf8(all).unwrap().lines().map(str::to_owned).collect();
        lines.sort();
        let want = [
            "A=1 2".to_owned(),
            format!("OPENCLAW_ACPX_LEASE_ID={}", spec.lease_id),
            format!("OPENCLAW_GATEWAY_INSTANCE_ID={}", identity.id),
        ];
        assert_eq!(lines, want);
        gateway.await_exit(spec.lease_id).await
    };
    assert!(end > 0);
}

#[tokio::test]
async fn concurrent_spawns_succeed() {
    let (_host, mut gateway) = Host::with_gateway().await;
    let specs: Vec<Spawn> = (0..40).map(|_| agent(&["cat"])).collect();
    let ids = gateway.send_spawns(&specs).await;
    for id in ids {
        assert!(matches!(gateway.reply(id).await, Ok(Reply::Spawned(_))));
    }
    assert!(gateway.leases().await.iter().all(|l| l.state == LeaseState::Open));
    for spec in &specs {
        gateway.close(spec.lease_id).await;
    }
    await_gone(&specs);
}

/// The limit of descriptors is reached at any step of a spawn.
#[tokio::test]
async fn spawn_without_descriptors_leaves_nothing() {
    let (host, mut gateway) = Host::with_gateway().await;
    // Descriptors that stay open are opened by the first spawn.
    let warm = gateway.start(agent(&["cat"])).await;
    gateway.close_and_wait(warm.lease_id).await;
    let pid = rustix::process::Pid::from_raw(host.pid());
    let resource = rustix::process::Resource::Nofile;
    let before = rustix::process::getrlimit(resource);
    let open = || descriptors(&host) as u64;
    let (mut failed, mut ids) = (0, Vec::new());
    for free in 0..24 {
        let limit = rustix::process::Rlimit { current: Some(open() + free), ..before };
        rustix::process::prlimit(pid, resource, limit).unwrap();
        let spec = agent(&["cat"]);
        let result = gateway.call(Request::Spawn(spec.clone())).await;
        rustix::process::prlimit(pid, resource, before).unwrap();
        failed += u32::from(result.is_err());
        if result.is_ok() {
            gateway.close(spec.lease_id).await;
        }
        ids.push(spec.lease_id);
    }
    assert!((1..24).contains(&failed), "{failed}");
    for lease_id in ids {
        eventually("nothing runs", || pids_of(lease_id).is_empty());
    }
    eventually("no child is left", || children(host.pid()).is_empty());
    gateway.await_all_ended().await;
}

/// False reports about wrapper, adapter or sender: no named process is signalled, and the wrapper is ended.
#[tokio::test]
async fn lying_wrapper_is_ended_alone() {
    let mut host = Host::prepare("spawn_ms = 3000");
    let lying_wrapper = crate::common::program("acp-testkit", "lying-wrapper");
    host.wrapper = Some(lying_wrapper);
    host.start();
    let mut gateway = host.gateway().connect().await;
    let mut named = KillOnDrop(std::process::Command::new("sleep").arg("300").spawn().unwrap());
    let pid = named.id().to_string();
    for (name, why) in [
        ("wrapper", "reports another pid"),
        ("adapter", "not a child of the wrapper"),
        ("sender", "another process sent the wrapper's report"),
        ("garbage", "violated its protocol"),
        ("descriptors", "carries descriptors"),
        // The wrapper may exit before it is read.
        ("nothing", ""),
    ] {
        let spec = agent(&["lie", name, &pid]);
        let refusal = gateway.call(Request::Spawn(spec.clone())).await.unwrap_err();
        assert_eq!(refusal.code, RefusalCode::SpawnFailed);
        let gone = name == "nothing"
            && ["ended or violated its protocol", "control socket failed"]
                .iter()
                .any(|w| refusal.message.contains(w));
        assert!(gone || (!why.is_empty() && refusal.message.contains(why)), "{name}: {}", refusal.message);
        assert!(named.try_wait().unwrap().is_none(), "{name}");
        eventually("the lying wrapper is gone", || pids_of(spec.lease_id).is_empty());
        host.await_ended(spec.lease_id);
    }
}

/// Another process uses the wrapper's control socket; descriptors that it sends are closed.
#[tokio::test]
async fn messages_of_another_sender_are_ignored() {
    let mut host = Host::prepare("spawn_ms = 3000");
    host.wrapper = Some(crate::common::program("acp-testkit", "lying-wrapper"));
    host.start();
    let mut gateway = host.gateway().connect().await;
    let before = descriptors(&host);
    let done = host.dir.path().join("done");
    let spec = gateway.start(agent(&["lie", "impersonated", done.to_str().unwrap()])).await;
    eventually("all false messages are sent", || done.exists());
    let info = gateway.leases().await.remove(0);
    assert_eq!((info.state, info.exit), (LeaseState::Open, None));
    eventually("no descriptor is kept", || descriptors(&host) < before + 12);
    gateway.close_and_wait(spec.lease_id).await;
    assert!(pids_of(spec.lease_id).is_empty());
}

#[tokio::test]
async fn adapter_exiting_at_once_closes_lease() {
    let (host, mut gateway) = Host::with_gateway().await;
    for code in 0..20 {
        let spec = gateway.spawn_attached(script(&format!("exit {code}"))).await;
        let (status, end) = gateway.await_exit(spec.lease_id).await;
        assert_eq!((status, end), (acp_shared::launch::ExitStatus::Exited(code), 0));
        eventually("the lease is closed", || host.row(spec.lease_id).0 == "closed");
        assert!(pids_of(spec.lease_id).is_empty());
    }
}
