//! Unread output of ended agents: on disk, without descriptors, with bounded memory.

use crate::common::{Client, Host, agent, eventually, script};
use crate::upgrade::{descriptors, reconnect};
use acp_shared::ids::LeaseId;
use acp_shared::launch::ExitStatus;
use acp_shared::protocol::{LeaseState, Reply, Request};
use acp_testkit::processes::status_field;
use std::time::Duration;

/// The output stays readable after an upgrade and in the next supervisor.
#[tokio::test]
async fn output_of_ended_agents_holds_no_descriptor() {
    const MANY: usize = 20;
    let (mut host, identity, mut gateway) = Host::with_identity().await;
    let first = gateway.start(agent(&["cat"])).await;
    gateway.close_and_wait(first.lease_id).await;
    let before = descriptors(&host);
    let mut outputs = Vec::new();
    for n in 0..MANY {
        let spec = gateway.start(script(&format!("echo output of {n}"))).await;
        gateway.state(spec.lease_id, LeaseState::Closed).await;
        outputs.push((spec.lease_id, format!("output of {n}\n")));
    }
    eventually("an ended lease holds no descriptor", || descriptors(&host) <= before + 1);
    read_all(&mut gateway, &outputs).await;
    drop(gateway);
    assert!(host.cli(&["upgrade"]).status.success());
    let mut gateway = reconnect(&identity).await;
    eventually("an ended lease holds no descriptor after an upgrade", || descriptors(&host) <= before + 1);
    read_all(&mut gateway, &outputs).await;
    drop(gateway);
    assert_eq!(host.stop(), Some(0));
    host.start();
    let mut gateway = identity.connect().await;
    read_all(&mut gateway, &outputs).await;
    eventually("an ended lease holds no descriptor in the next supervisor", || {
        descriptors(&host) <= before + 1
    });
    for (lease_id, _) in &outputs {
        assert_eq!(gateway.call(Request::Release { lease_id: *lease_id }).await, Ok(Reply::Done));
    }
    let spool = host.state_dir().join("spool");
    eventually("every spool is gone", || std::fs::read_dir(&spool).unwrap().next().is_none());
}

async fn read_all(gateway: &mut Client, outputs: &[(LeaseId, String)]) {
    for (lease_id, output) in outputs {
        gateway.attach(*lease_id, 0).await;
        assert_eq!(gateway.read(*lease_id, 0, output.len()).await, output.as_bytes());
        assert_eq!(gateway.await_exit(*lease_id).await.0, ExitStatus::Exited(0));
    }
}

/// Copies an ended lease with this much output into many leases of an earlier supervisor.
fn copy_lease(host: &Host, of: LeaseId, many: usize, bytes: u64) -> Vec<LeaseId> {
    let rows = host.rows();
    rows.execute_batch("BEGIN; CREATE TEMP TABLE one AS SELECT * FROM leases LIMIT 0").unwrap();
    rows.execute("INSERT INTO one SELECT * FROM leases WHERE lease_id = ?1", [of.to_string()]).unwrap();
    let mut all = Vec::new();
    for _ in 0..many {
        let id = LeaseId::mint();
        let end = i64::try_from(bytes).unwrap();
        rows.execute("UPDATE one SET lease_id = ?1, stdout_base = 0, stdout_end = ?2", (id.to_string(), end))
            .unwrap();
        rows.execute("INSERT INTO leases SELECT * FROM one", []).unwrap();
        let file = std::fs::File::create(host.state_dir().join(format!("spool/{id}.0.out"))).unwrap();
        file.set_len(bytes).unwrap();
        all.push(id);
    }
    rows.execute_batch("COMMIT").unwrap();
    all
}

/// Anonymous memory of a process, in KiB.
fn anonymous_kib(pid: i32) -> u64 {
    status_field(pid, "RssAnon").unwrap().trim_end_matches(" kB").parse().unwrap()
}

/// A reconnecting gateway attaches to a thousand ended leases at once.
#[tokio::test]
async fn thousand_ended_leases_are_attached_with_bounded_memory() {
    const MANY: usize = 1_000;
    const EACH: u64 = 256 * 1024;
    const MORE_KIB: u64 = 48 * 1024;
    let config = "credit_bytes = 65536\nspool_total_bytes_max = 1000000000";
    let (mut host, identity, mut gateway) = Host::serving_identity(config).await;
    let spec = gateway.start(script("echo x")).await;
    gateway.state(spec.lease_id, LeaseState::Closed).await;
    drop(gateway);
    assert_eq!(host.stop(), Some(0));
    let all = copy_lease(&host, spec.lease_id, MANY, EACH);
    host.start();
    let mut gateway = identity.connect().await;
    gateway.leases().await;
    let (before, open) = (anonymous_kib(host.pid()), descriptors(&host));
    let mut requests = Vec::new();
    for lease_id in &all {
        requests.push(gateway.send(Request::Attach { lease_id: *lease_id, from_offset: 0 }).await);
    }
    // The gateway does not read yet.
    let until = std::time::Instant::now() + Duration::from_secs(1);
    let mut peak = 0;
    while std::time::Instant::now() < until {
        peak = peak.max(anonymous_kib(host.pid()));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    for id in requests {
        let Reply::Attached(attached) = gateway.reply(id).await.unwrap() else { panic!("no attach") };
        assert_eq!((attached.stdout_base, attached.stdout_end), (0, EACH));
    }
    peak = peak.max(anonymous_kib(host.pid()));
    crate::common::report(&format!("{MANY} ended leases attached: {} KiB more", peak.saturating_sub(before)));
    assert!(peak < before + MORE_KIB, "{before} KiB, then {peak} KiB");
    // Reading opens the file for a moment.
    eventually("no lease holds a descriptor", || descriptors(&host) <= open + 2);
    let last = *all.last().unwrap();
    let all = gateway.read_and_ack(last, 0, usize::try_from(EACH).unwrap());
    tokio::time::timeout(crate::common::TIMEOUT, all).await.unwrap();
}
