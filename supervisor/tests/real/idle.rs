//! Wake-ups of an idle supervisor.

use crate::common::{Host, agent, report};
use std::time::Duration;

/// Number of voluntary context switches of all threads of a process.
pub(crate) fn wake_ups(pid: i32) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let switches = tasks.filter_map(|task| {
        let status = std::fs::read_to_string(task.path().join("status")).ok()?;
        let line = status.lines().find(|line| line.starts_with("voluntary_ctxt_switches"))?;
        line.split_whitespace().nth(1)?.parse::<u64>().ok()
    });
    switches.sum()
}

/// Number of wake-ups in ten seconds of idling.
async fn idle_wake_ups(host: &Host) -> u64 {
    // The runtime's spare threads end after ten idle seconds.
    tokio::time::sleep(Duration::from_secs(12)).await;
    let before = wake_ups(host.pid());
    tokio::time::sleep(Duration::from_secs(10)).await;
    let count = wake_ups(host.pid()).saturating_sub(before);
    report(&format!("{count} wake-ups in 10 s"));
    count
}

#[tokio::test]
async fn heavy_idle_supervisor_does_not_wake() {
    let host = Host::new();
    let count = idle_wake_ups(&host).await;
    assert!(count <= 10, "{count} wake-ups in 10 s without any lease");
}

#[tokio::test]
async fn heavy_idle_leases_rarely_wake_supervisor() {
    let (host, mut gateway) = Host::with_gateway().await;
    for _ in 0..20 {
        gateway.spawn(&agent(&["cat"])).await;
    }
    let count = idle_wake_ups(&host).await;
    // One sweep for orphans every two seconds, whatever the number of leases.
    assert!(count <= 60, "{count} wake-ups in 10 s with 20 idle leases");
}
