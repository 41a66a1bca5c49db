//! A supervisor that has nothing to do does nothing.

use crate::common::{Host, agent, say};
use std::time::Duration;

/// How often all threads of a process gave up the processor of their own accord, which is how often they woke.
pub(crate) fn wakes(pid: i32) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let switches = tasks.filter_map(|task| {
        let status = std::fs::read_to_string(task.path().join("status")).ok()?;
        let line = status.lines().find(|line| line.starts_with("voluntary_ctxt_switches"))?;
        line.split_whitespace().nth(1)?.parse::<u64>().ok()
    });
    switches.sum()
}

/// Wake-ups within ten seconds, once what was going on is over.
async fn idle_wakes(host: &Host) -> u64 {
    // The runtime's spare threads end after ten idle seconds.
    tokio::time::sleep(Duration::from_secs(12)).await;
    let before = wakes(host.pid());
    tokio::time::sleep(Duration::from_secs(10)).await;
    let count = wakes(host.pid()).saturating_sub(before);
    say(&format!("{count} wake-ups in 10 s"));
    count
}

#[tokio::test]
async fn heavy_an_idle_supervisor_does_not_wake() {
    let host = Host::new();
    let count = idle_wakes(&host).await;
    assert!(count <= 10, "{count} wake-ups in 10 s without any lease");
}

#[tokio::test]
async fn heavy_leases_that_do_nothing_wake_it_rarely() {
    let (host, mut gateway) = Host::with_gateway().await;
    for _ in 0..20 {
        gateway.spawn(&agent(&["cat"])).await;
    }
    let count = idle_wakes(&host).await;
    // A look after strays every two seconds, whatever the number of leases.
    assert!(count <= 60, "{count} wake-ups in 10 s with 20 idle leases");
}
