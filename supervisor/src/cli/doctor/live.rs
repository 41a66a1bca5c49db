//! Checks of the running supervisor, if there is one.

use super::Check;
use crate::cli::{Address, CliError, client, leases, status, text};
use crate::core::lease::UNENDED;
use crate::core::retention::NOT_PROVED;
use acp_shared::conn::ConnError;
use acp_shared::protocol::{LeaseInfo, LeaseState, Status};
use std::os::unix::fs::{FileTypeExt, MetadataExt};

const NAME: &str = "supervisor";
/// Age of the last sweep from which a warning is shown, in milliseconds: many times the default
/// reap_every_ms.
const SWEEP_LATE_MS: u64 = 10 * 60 * 1_000;

/// State reported by a running supervisor.
#[derive(Debug)]
pub(super) struct LiveState {
    pub(super) status: Status,
    leases: Vec<LeaseInfo>,
}

/// Connects to the supervisor. Returns the check and, if it answered, its state.
pub(super) async fn service(address: &Address) -> (Check, Option<LiveState>) {
    let socket = &address.socket;
    let shown = socket.display();
    let meta = match std::fs::symlink_metadata(socket) {
        Ok(meta) if meta.file_type().is_socket() => meta,
        Ok(_) => {
            let found = format!("{shown} is not a socket");
            let next = "move it away, or choose another --socket";
            return (Check::fail(NAME, found, "nothing can connect there", next), None);
        }
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            let next = "run this as root or as the supervisor's user, or join one of its admin_gids";
            let found = format!("{shown}: {error}");
            return (Check::fail(NAME, found, "this user has no permission to access it", next), None);
        }
        Err(_) => {
            let found = format!("no supervisor listens at {shown}");
            let next = "start one with `acp-supervisor serve`, or name its socket with --socket";
            return (Check::warn(NAME, found, "no supervisor runs with this socket", next), None);
        }
    };
    let mode = meta.mode() & 0o777;
    let asked = async {
        let mut client = client(address).await?;
        let status = status::ask(&mut client).await?;
        let leases = leases::list_all(&mut client, false).await?;
        Ok::<_, CliError>(LiveState { status, leases })
    };
    match asked.await {
        Ok(seen) => (answered(&seen.status, mode, meta.uid()), Some(seen)),
        Err(CliError::Connect { source: ConnError::Io(error), .. })
            if error.kind() == std::io::ErrorKind::ConnectionRefused =>
        {
            let found = format!("{shown} is stale: no process listens");
            let next = "start it with `acp-supervisor serve`";
            (Check::warn(NAME, found, "the supervisor has ended or was killed", next), None)
        }
        Err(error) => {
            let found = format!("{} (mode {mode:03o}, uid {})", error.message(), meta.uid());
            let next = "run this as root or as the supervisor's user, and check that both have the same \
                        version";
            (Check::fail(NAME, found, "its state cannot be read", next), None)
        }
    }
}

fn answered(status: &Status, mode: u32, uid: u32) -> Check {
    let uptime = text::duration(crate::context::wall_ms().saturating_sub(status.started_at_ms));
    let found = format!(
        "pid {}, version {}, up {uptime}; socket mode {mode:03o}, uid {uid}",
        status.pid, status.version
    );
    let here = env!("CARGO_PKG_VERSION");
    if let Some(why) = &status.read_only {
        return Check::fail(
            NAME,
            format!("{found}; read-only: {why}"),
            "it is read-only: no agent is started and no process is signalled",
            "follow its message, then restart it",
        );
    }
    if status.version != here {
        let means =
            format!("this program is version {here}: the two are compatible, but one of them is older");
        return Check::warn(NAME, found, means, "restart or upgrade the supervisor");
    }
    match mode {
        0o666 => {
            Check::ok(NAME, found, "every user may connect; permissions depend on the uid (allowed_uids)")
        }
        0o660 => Check::ok(NAME, found, "its groups may connect (allowed_gids, admin_gids)"),
        _ => Check::ok(NAME, found, "its own user and root may connect"),
    }
}

/// Checks lost leases, survivors, the last sweep, and warnings.
pub(super) fn leases(seen: &LiveState) -> Vec<Check> {
    let of = |state: LeaseState| seen.leases.iter().filter(move |l| l.state == state);
    let lost = of(LeaseState::Lost).count();
    let mut checks = vec![if lost == 0 {
        Check::ok("lost leases", "none", "every tree that ended is verified gone")
    } else {
        let newest = of(LeaseState::Lost).map(|l| l.started_at_ms).max().unwrap_or_default();
        let mut found = format!("{}, the newest started {}", text::count(lost, "lease"), text::time(newest));
        let unproved = of(LeaseState::Lost).filter(|l| l.state_reason.contains(NOT_PROVED));
        if let count @ 1.. = unproved.count() {
            found.push_str(&format!("; {NOT_PROVED}: {count}"));
        }
        Check::warn(
            "lost leases",
            found,
            "their process trees vanished without an orderly end or cannot be identified; no process is \
             signalled without proof",
            "`acp-supervisor leases verify --all` shows the evidence; they are checked again, and deleted \
             after retention_ms once they are proved gone",
        )
    }];
    let stuck: Vec<&LeaseInfo> =
        of(LeaseState::Closing).filter(|l| l.state_reason.contains(UNENDED)).collect();
    if let Some(first) = stuck.first() {
        checks.push(Check::warn(
            "survivors",
            format!("{}; {}: {}", text::count(stuck.len(), "lease"), first.lease_id, first.state_reason),
            "a process outlives SIGKILL: uninterruptible, traced, or another user's",
            "check the named processes; the lease closes when they are gone",
        ));
    }
    checks.push(sweep(seen.status.swept_at_ms, crate::context::wall_ms()));
    for warning in &seen.status.warnings {
        checks.push(Check::warn("warning", warning.clone(), "reported by the supervisor", "see its log"));
    }
    checks
}

/// Checks the time of the last sweep over leftover leases.
fn sweep(swept_at_ms: Option<u64>, now_ms: u64) -> Check {
    let name = "last sweep";
    match swept_at_ms.map(|at| now_ms.saturating_sub(at)) {
        Some(ms) if ms < SWEEP_LATE_MS => {
            Check::ok(name, format!("{} ago", text::duration(ms)), "leftover leases are checked on schedule")
        }
        Some(ms) => Check::warn(
            name,
            format!("{} ago", text::duration(ms)),
            "leftover leases are not checked again: the supervisor is stuck, or reap_every_ms is long",
            "see its log and reap_every_ms",
        ),
        None => Check::ok(name, "none yet", "the supervisor has just started"),
    }
}
