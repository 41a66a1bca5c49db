//! Lease store on a disk that fails below SQLite: syncs and writes that return EIO, a torn WAL frame.

use crate::common::{DEFAULTS, Host, Identity, agent, eventually, pids_of};
use acp_shared::protocol::{LeaseState, RefusalCode, Request};
use acp_testkit::disk_fault::DiskFault;

/// Supervisor that runs with the fault library.
struct FaultyHost {
    host: Host,
    disk: DiskFault,
}

impl FaultyHost {
    fn new() -> (Self, Identity) {
        let host = Host::prepare(DEFAULTS);
        let disk = DiskFault::build(host.dir.path());
        let mut faulty = Self { host, disk };
        faulty.start();
        let identity = faulty.host.gateway();
        (faulty, identity)
    }

    fn start(&mut self) {
        let mut command = self.host.command();
        self.disk.preload(&mut command);
        self.host.start_as(command);
    }

    fn has_warned(&self) -> bool {
        self.host.warnings().contains("the lease store cannot be written")
    }
}

/// A spawn whose commit fails starts nothing; running trees can be ended, and a crash loses no committed lease.
async fn failing_calls_start_nothing(fault: &str) {
    let (mut faulty, identity) = FaultyHost::new();
    let mut gateway = identity.connect().await;
    let (ended, living, refused) = (agent(&["cat"]), agent(&["cat"]), agent(&["cat"]));
    gateway.spawn(&ended).await;
    gateway.spawn(&living).await;
    faulty.disk.set(fault);
    let refusal = gateway.call(Request::Spawn(refused.clone())).await.unwrap_err();
    assert_eq!(refusal.code, RefusalCode::StoreUnavailable, "{refusal:?}");
    assert!(pids_of(refused.lease_id).is_empty(), "nothing starts without a record");
    assert!(faulty.has_warned());
    gateway.close(ended.lease_id).await;
    eventually("the tree is gone", || pids_of(ended.lease_id).is_empty());
    gateway.state(ended.lease_id, LeaseState::Closed).await;
    faulty.host.crash();
    eventually("the wrapper ends its tree", || pids_of(living.lease_id).is_empty());
    faulty.disk.set("none");
    faulty.start();
    let mut gateway = identity.connect().await;
    let leases = gateway.leases().await;
    for spec in [&ended, &living] {
        let lease = leases.iter().find(|lease| lease.lease_id == spec.lease_id);
        assert!(lease.is_some_and(|lease| lease.state.is_ended()), "{lease:?}");
    }
    assert_eq!(gateway.spawn(&agent(&["cat"])).await.state, LeaseState::Open);
    assert!(!faulty.has_warned());
    assert_eq!(faulty.host.stop(), Some(0));
}

#[tokio::test]
async fn failing_syncs_start_nothing() {
    failing_calls_start_nothing("sync").await;
}

#[tokio::test]
async fn failing_writes_start_nothing() {
    failing_calls_start_nothing("write").await;
}

#[tokio::test]
async fn store_recovers_when_the_disk_does() {
    for fault in ["sync", "write"] {
        let (mut faulty, identity) = FaultyHost::new();
        let mut gateway = identity.connect().await;
        faulty.disk.set(fault);
        let spec = agent(&["cat"]);
        gateway.call(Request::Spawn(spec.clone())).await.unwrap_err();
        faulty.disk.set("none");
        assert_eq!(gateway.spawn(&spec).await.state, LeaseState::Open, "the same request after {fault}");
        assert!(!faulty.has_warned());
        assert_eq!(faulty.host.stop(), Some(0));
    }
}

#[tokio::test]
async fn torn_wal_frame_loses_no_committed_lease() {
    let (mut faulty, identity) = FaultyHost::new();
    let mut gateway = identity.connect().await;
    let (living, torn) = (agent(&["cat"]), agent(&["cat"]));
    gateway.spawn(&living).await;
    faulty.disk.set("torn");
    assert_eq!(gateway.try_call(Request::Spawn(torn.clone())).await, None, "killed in the middle of a write");
    assert_eq!(faulty.host.wait(), None, "killed by a signal");
    eventually("the wrapper ends its tree", || pids_of(living.lease_id).is_empty());
    assert!(pids_of(torn.lease_id).is_empty(), "nothing starts without a record");
    faulty.disk.set("none");
    faulty.start();
    let mut gateway = identity.connect().await;
    let leases = gateway.leases().await;
    let lease = leases.iter().find(|lease| lease.lease_id == living.lease_id);
    assert!(lease.is_some_and(|lease| lease.state.is_ended()), "{lease:?}");
    assert!(leases.iter().all(|lease| lease.lease_id != torn.lease_id), "the torn record is not read");
    assert_eq!(gateway.spawn(&torn).await.state, LeaseState::Open);
    assert_eq!(faulty.host.stop(), Some(0));
}
