//! Fixtures of hosts: orphans, rows on disk, command prefixes, reused pids.

use crate::common::{Host, Identity, eventually, is_alive, kill, wrapper};
use acp_shared::ids::{GatewayInstanceId, LeaseId};
use acp_shared::protocol::{LeaseInfo, Spawn};
use acp_testkit::sys::ForeignProcess;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};
use std::io::ErrorKind;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

/// Makes the test a subreaper, so that it can reap orphans and free their pids.
pub(crate) fn adopt_orphans() {
    let me = Pid::from_raw(i32::try_from(std::process::id()).unwrap());
    rustix::process::set_child_subreaper(me).unwrap();
}

/// Waits for the death of an adopted process and frees its pid.
pub(crate) fn free(pid: i32) {
    let reap = || rustix::process::waitid(WaitId::Pid(Pid::from_raw(pid).unwrap()), WaitIdOptions::EXITED);
    eventually("the process is adopted and reaped", || match reap() {
        Ok(_) => true,
        // The wrapper has reaped the process, or the process is not adopted yet.
        Err(_) => !std::path::Path::new(&format!("/proc/{pid}")).exists(),
    });
}

/// Starts a program with this pid, once free.
pub(crate) fn start_with_pid(
    pid: i32,
    argv: &[&str],
    env: &[(&str, &str)],
    stdin: Option<BorrowedFd<'_>>,
) -> ForeignProcess {
    let mut started = None;
    eventually("the pid is free", || match ForeignProcess::with_pid(pid, argv, env, stdin) {
        Ok(start_with_pid) => {
            started = Some(start_with_pid);
            true
        }
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{error}");
            false
        }
    });
    let started = started.unwrap();
    eventually("the process has called exec", || {
        let exe = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
        exe == std::fs::canonicalize(argv[0]).unwrap()
    });
    started
}

/// Prepends a prefix that ends in `exec "$@"` or similar.
pub(crate) fn with_prefix(prefix: &[&str], command: &Command) -> Command {
    let mut outer = Command::new(prefix[0]);
    outer.args(&prefix[1..]).arg(command.get_program()).args(command.get_args());
    outer.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    outer
}

/// Start time of a process: field 22 of its stat file.
pub(crate) fn start_ticks(stat: &str) -> i64 {
    let text = std::fs::read_to_string(stat).unwrap();
    text.rsplit_once(')').unwrap().1.split_ascii_whitespace().nth(19).unwrap().parse().unwrap()
}

impl Host {
    /// Kills supervisor and wrapper of a new lease and frees the recorded pids.
    pub(crate) async fn orphan(&mut self, identity: &Identity, spec: &Spawn) -> LeaseInfo {
        adopt_orphans();
        let info = identity.connect().await.spawn(spec).await;
        self.crash_keeping_tree(&info);
        kill(info.wrapper_pid.unwrap(), Signal::KILL);
        for pid in [info.wrapper_pid.unwrap(), info.adapter_pid.unwrap()] {
            eventually("the process is dead", || !is_alive(pid));
            free(pid);
        }
        info
    }

    /// Stops a wrapper, so that it cannot end its tree, and kills the supervisor.
    pub(crate) fn crash_keeping_tree(&mut self, info: &LeaseInfo) {
        self.await_settled(info.lease_id);
        kill(info.wrapper_pid.unwrap(), Signal::STOP);
        self.crash();
    }

    /// Waits until a lease is open on disk, which may be after the reply.
    pub(crate) fn await_settled(&self, lease_id: LeaseId) {
        let begun = ["reserved", "bound"];
        eventually("the lease is open on disk", || !begun.contains(&self.row(lease_id).0.as_str()));
    }

    /// Waits until a lease has ended on disk.
    pub(crate) fn await_ended(&self, lease_id: LeaseId) {
        eventually("the lease has ended", || ["closed", "lost"].contains(&self.row(lease_id).0.as_str()));
    }

    /// Copies the state directory like a snapshot of a volume.
    pub(crate) fn copy_state(&self, to: &Self) {
        std::fs::create_dir_all(to.state_dir()).unwrap();
        for name in ["supervisor.db", "supervisor.db-wal", "supervisor.db-shm"] {
            let _ = std::fs::remove_file(to.state_dir().join(name));
        }
        let copy = to.state_dir().join("supervisor.db");
        self.rows().execute("VACUUM INTO ?1", [copy.to_str().unwrap()]).unwrap();
        std::fs::copy(self.state_dir().join("secret"), to.state_dir().join("secret")).unwrap();
    }

    #[expect(clippy::disallowed_methods, reason = "the test looks at the rows as they are on disk")]
    pub(crate) fn rows(&self) -> rusqlite::Connection {
        let rows = rusqlite::Connection::open(self.state_dir().join("supervisor.db")).unwrap();
        rows.busy_timeout(crate::common::TIMEOUT).unwrap();
        rows
    }

    /// State, reason and last evidence of a lease on disk.
    pub(crate) fn row(&self, lease_id: LeaseId) -> (String, String, String) {
        self.find_row(lease_id).unwrap()
    }

    /// Like [`Host::row`]; `None` without a row.
    pub(crate) fn find_row(&self, lease_id: LeaseId) -> Option<(String, String, String)> {
        let sql =
            "SELECT state, state_reason, coalesce(last_evidence_json, '') FROM leases WHERE lease_id = ?1";
        let read = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?));
        match self.rows().query_row(sql, [lease_id.to_string()], read) {
            Err(rusqlite::Error::QueryReturnedNoRows) => None,
            other => Some(other.unwrap()),
        }
    }

    /// True if a lease has recorded processes.
    pub(crate) fn is_bound(&self, lease_id: LeaseId) -> bool {
        let sql = "SELECT wrapper_pid IS NOT NULL FROM leases WHERE lease_id = ?1";
        self.rows().query_row(sql, [lease_id.to_string()], |row| row.get(0)).unwrap()
    }

    /// True if the gateway is recorded.
    pub(crate) fn has_gateway(&self, gateway: GatewayInstanceId) -> bool {
        let sql = "SELECT count(*) FROM homes WHERE gateway_instance_id = ?1";
        self.rows().query_row(sql, [gateway.to_string()], |row| row.get(0)).unwrap()
    }

    /// Changes the row of a lease while no supervisor uses the store.
    pub(crate) fn edit(&self, lease_id: LeaseId, assignments: &str) {
        let sql = format!("UPDATE leases SET {assignments} WHERE lease_id = ?1");
        assert_eq!(self.rows().execute(&sql, [lease_id.to_string()]).unwrap(), 1);
    }

    /// Prepares a state directory and programs for a supervisor of another user.
    pub(crate) fn of_user(uid: u32, config: &str) -> Self {
        let host = Self::prepare(config);
        std::fs::set_permissions(host.dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
        std::fs::copy(env!("CARGO_BIN_EXE_acp-supervisor"), host.dir.path().join("acp-supervisor")).unwrap();
        std::fs::copy(wrapper(), host.dir.path().join("acp-wrapper")).unwrap();
        std::os::unix::fs::chown(host.dir.path(), Some(uid), Some(uid)).unwrap();
        host
    }

    /// Command of a supervisor with its own copies of the programs.
    pub(crate) fn own_command(&self) -> Command {
        std::fs::write(self.dir.path().join("supervisor.toml"), &self.config).unwrap();
        let mut command = Command::new(self.dir.path().join("acp-supervisor"));
        command.arg("serve").arg("--json").arg("--state-dir").arg(self.state_dir());
        command.arg("--config").arg(self.dir.path().join("supervisor.toml"));
        command.env("RUST_LOG", "warn");
        command
    }
}
