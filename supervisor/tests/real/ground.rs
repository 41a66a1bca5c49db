//! What the cases of identity and visibility need beside a supervisor: orphans on demand, rows as they were written,

//! supervisors in other surroundings, numbers given anew.

use crate::common::{Host, Identity, eventually, kill, runs, wrapper};
use acp_shared::ids::{GatewayInstanceId, LeaseId};
use acp_shared::protocol::{LeaseInfo, Spawn};
use acp_testkit::sys::Stranger;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};
use std::io::ErrorKind;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

/// Orphans of the supervisors that this test kills come to the test, so that it can free their numbers.
pub(crate) fn adopt_orphans() {
    let me = Pid::from_raw(i32::try_from(std::process::id()).unwrap());
    rustix::process::set_child_subreaper(me).unwrap();
}

/// Waits for the death of an adopted process and frees its number.
pub(crate) fn free(pid: i32) {
    let reap = || rustix::process::waitid(WaitId::Pid(Pid::from_raw(pid).unwrap()), WaitIdOptions::EXITED);
    eventually("the process is adopted and reaped", || match reap() {
        Ok(_) => true,
        // Its wrapper has reaped it, or it is not adopted yet.
        Err(_) => !std::path::Path::new(&format!("/proc/{pid}")).exists(),
    });
}

/// A program under a number that comes free now.
pub(crate) fn stranger(
    pid: i32,
    argv: &[&str],
    env: &[(&str, &str)],
    stdin: Option<BorrowedFd<'_>>,
) -> Stranger {
    let mut made = None;
    eventually("the number is free", || match Stranger::at(pid, argv, env, stdin) {
        Ok(stranger) => {
            made = Some(stranger);
            true
        }
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{error}");
            false
        }
    });
    let made = made.unwrap();
    eventually("it has called exec", || {
        let exe = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
        exe == std::fs::canonicalize(argv[0]).unwrap()
    });
    made
}

/// The same command after a prefix that ends in `exec "$@"` or the like.
pub(crate) fn under(prefix: &[&str], command: &Command) -> Command {
    let mut outer = Command::new(prefix[0]);
    outer.args(&prefix[1..]).arg(command.get_program()).args(command.get_args());
    outer.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    outer
}

/// When a process started, as its kernel says it: field 22 of its stat file.
pub(crate) fn start_ticks(stat: &str) -> i64 {
    let text = std::fs::read_to_string(stat).unwrap();
    text.rsplit_once(')').unwrap().1.split_ascii_whitespace().nth(19).unwrap().parse().unwrap()
}

impl Host {
    /// A lease whose supervisor and wrapper were killed, with their numbers on record and free.
    pub(crate) async fn orphan(&mut self, identity: &Identity, spec: &Spawn) -> LeaseInfo {
        adopt_orphans();
        let info = identity.connect().await.spawn(spec).await;
        self.leave_behind(&info);
        kill(info.wrapper_pid.unwrap(), Signal::KILL);
        for pid in [info.wrapper_pid.unwrap(), info.adapter_pid.unwrap()] {
            eventually("it is dead", || !runs(pid));
            free(pid);
        }
        info
    }

    /// SIGKILL to the supervisor, with this wrapper stopped before, so that it cleans nothing up.
    pub(crate) fn leave_behind(&mut self, info: &LeaseInfo) {
        self.settled(info.lease_id);
        kill(info.wrapper_pid.unwrap(), Signal::STOP);
        self.crash();
    }

    /// Waits until the disk says that a lease is open: the answer to a spawn does not wait for that.
    pub(crate) fn settled(&self, lease_id: LeaseId) {
        let begun = ["reserved", "bound"];
        eventually("the lease is open on disk", || !begun.contains(&self.row(lease_id).0.as_str()));
    }

    /// Waits until the disk says that a lease has ended.
    pub(crate) fn ended(&self, lease_id: LeaseId) {
        eventually("the lease has ended", || ["closed", "lost"].contains(&self.row(lease_id).0.as_str()));
    }

    /// Gives another state directory what this one has on disk at one moment, as a snapshot of a volume would.
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
        rows.busy_timeout(crate::common::DEADLINE).unwrap();
        rows
    }

    /// State, reason and last evidence of a lease, as they are on disk.
    pub(crate) fn row(&self, lease_id: LeaseId) -> (String, String, String) {
        self.find(lease_id).unwrap()
    }

    /// As [`Host::row`], where there may be none.
    pub(crate) fn find(&self, lease_id: LeaseId) -> Option<(String, String, String)> {
        let sql =
            "SELECT state, state_reason, coalesce(last_evidence_json, '') FROM leases WHERE lease_id = ?1";
        let read = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?));
        match self.rows().query_row(sql, [lease_id.to_string()], read) {
            Err(rusqlite::Error::QueryReturnedNoRows) => None,
            other => Some(other.unwrap()),
        }
    }

    /// Whether a lease names processes.
    pub(crate) fn is_bound(&self, lease_id: LeaseId) -> bool {
        let sql = "SELECT wrapper_pid IS NOT NULL FROM leases WHERE lease_id = ?1";
        self.rows().query_row(sql, [lease_id.to_string()], |row| row.get(0)).unwrap()
    }

    /// Whether a gateway has been seen, on disk.
    pub(crate) fn knows(&self, gateway: GatewayInstanceId) -> bool {
        let sql = "SELECT count(*) FROM homes WHERE gateway_instance_id = ?1";
        self.rows().query_row(sql, [gateway.to_string()], |row| row.get(0)).unwrap()
    }

    /// Changes the row of a lease while no supervisor holds the store.
    pub(crate) fn edit(&self, lease_id: LeaseId, assignments: &str) {
        let sql = format!("UPDATE leases SET {assignments} WHERE lease_id = ?1");
        assert_eq!(self.rows().execute(&sql, [lease_id.to_string()]).unwrap(), 1);
    }

    /// A state directory and programs for a supervisor of another user; it is not started.
    pub(crate) fn of_user(uid: u32, config: &str) -> Self {
        let host = Self::idle(config);
        std::fs::set_permissions(host.dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
        std::fs::copy(env!("CARGO_BIN_EXE_acp-supervisor"), host.dir.path().join("acp-supervisor")).unwrap();
        std::fs::copy(wrapper(), host.dir.path().join("acp-wrapper")).unwrap();
        std::os::unix::fs::chown(host.dir.path(), Some(uid), Some(uid)).unwrap();
        host
    }

    /// The command of a supervisor with its own copies of the programs.
    pub(crate) fn own_command(&self) -> Command {
        std::fs::write(self.dir.path().join("supervisor.toml"), &self.config).unwrap();
        let mut command = Command::new(self.dir.path().join("acp-supervisor"));
        command.arg("serve").arg("--json").arg("--state-dir").arg(self.state_dir());
        command.arg("--config").arg(self.dir.path().join("supervisor.toml"));
        command.env("RUST_LOG", "warn");
        command
    }
}
