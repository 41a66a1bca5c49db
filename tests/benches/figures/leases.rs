//! A minimal gateway client of the supervisor: it requests leases and adds as little overhead as possible.

use crate::api::runtime;
use acp_shared::conn::{self, Conn};
use acp_shared::ids::{GatewayInstanceId, LeaseId, SessionKey};
use acp_shared::protocol::{
    Graces, Hello, Home, LeaseInfo, LeaseKind, Notice, Reply, Request, Role, Spawn, ToClient, ToSupervisor,
    VERSION_MIN,
};
use acp_supervisor::server::secret::SECRET_FILE;
use acp_tests::service::Service;
use acp_tests::wait::SOON;
use acp_tests::world::World;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

/// Bytes of output per acknowledgement.
const ACK_BYTES: u64 = 1024 * 1024;

/// A connected client.
#[derive(Debug)]
pub(crate) struct Leases {
    runtime: Runtime,
    conn: Conn<ToClient, ToSupervisor>,
    next_id: u64,
    /// Environment variable that marks spawned processes as part of its world.
    mark: (String, String),
}

impl Leases {
    /// Connects as a new gateway.
    ///
    /// # Panics
    /// When the supervisor refuses.
    pub(crate) fn connect(world: &World, supervisor: &Service) -> Self {
        let runtime = runtime();
        let secret = std::fs::read_to_string(supervisor.socket().with_file_name(SECRET_FILE));
        let secret = secret.unwrap_or_else(|e| panic!("no secret: {e}"));
        let home = Home { machine_id: String::new(), dev: 1, ino: 1 };
        let hello = Hello {
            version_min: VERSION_MIN,
            version_max: VERSION_MIN,
            features: Vec::new(),
            role: Role::Gateway { instance_id: GatewayInstanceId::mint(), epoch: 1, home },
            secret: Some(acp_shared::redact::Secret::new(secret.trim().to_owned())),
        };
        let opened = runtime.block_on(conn::open(&supervisor.socket(), hello, SOON));
        let (conn, _) = opened.unwrap_or_else(|e| panic!("not connected: {e}"));
        Self { runtime, conn, next_id: 1, mark: world.env_mark() }
    }

    /// Builds the spawn request for a program.
    ///
    /// # Panics
    /// Never: the session key is a valid one.
    pub(crate) fn agent(&self, argv: &[&str]) -> Spawn {
        let lease_id = LeaseId::mint();
        let key = SessionKey::parse(&format!("agent:bench:acp:{lease_id}"));
        Spawn {
            lease_id,
            session_key: key.unwrap_or_else(|e| panic!("{e}")),
            kind: LeaseKind::Agent,
            argv: argv.iter().map(|arg| (*arg).to_owned()).collect(),
            env: vec![("PATH".to_owned(), "/usr/bin:/bin".to_owned()), self.mark.clone()],
            cwd: "/".to_owned(),
            roots: Vec::new(),
            graces: Graces::default(),
        }
    }

    /// Sends all requests at once and waits until the last program runs.
    ///
    /// # Panics
    /// When one is refused.
    pub(crate) fn spawn(&mut self, specs: &[Spawn]) -> (Vec<LeaseInfo>, Duration) {
        let began = Instant::now();
        let ids: Vec<u64> = specs.iter().map(|spec| self.send(Request::Spawn(spec.clone()))).collect();
        let mut infos = Vec::new();
        while infos.len() < ids.len() {
            match self.receive() {
                ToClient::Reply { result: Ok(Reply::Spawned(info)), .. } => infos.push(info),
                ToClient::Notice(_) => {}
                other => panic!("not spawned: {other:?}"),
            }
        }
        (infos, began.elapsed())
    }

    /// Sends a request and waits for its reply; notices are dropped.
    ///
    /// # Panics
    /// When it is refused.
    pub(crate) fn call(&mut self, body: Request) -> Reply {
        let wanted = self.send(body);
        loop {
            match self.receive() {
                ToClient::Reply { id, result } if id == wanted => {
                    return result.unwrap_or_else(|refusal| panic!("refused: {}", refusal.message));
                }
                ToClient::Reply { .. } | ToClient::Notice(_) => {}
                other => panic!("unexpected {other:?}"),
            }
        }
    }

    /// Closes these leases and waits until all have ended.
    pub(crate) fn close(&mut self, leases: &[LeaseInfo]) {
        for lease in leases {
            let reason = "measured".to_owned();
            let _ = self.call(Request::CloseLease { lease_id: lease.lease_id, reason });
        }
        acp_tests::wait::until(SOON, "all are closed", || {
            match self.call(Request::ListLeases { detail: false }) {
                Reply::Leases(all) => all.iter().all(|lease| lease.state.is_ended()),
                other => panic!("unexpected {other:?}"),
            }
        });
    }

    /// Sends an input and returns the time until `count` bytes of output after `offset` have arrived.
    pub(crate) fn drive(
        &mut self,
        lease_id: LeaseId,
        seq: u64,
        input: &[u8],
        offset: u64,
        count: u64,
    ) -> Duration {
        let began = Instant::now();
        let _ = self.send(Request::Input { lease_id, seq, bytes: input.to_vec() });
        let (mut end, mut acked) = (offset, offset);
        while end < offset + count {
            if let ToClient::Notice(Notice::Output { offset: at, bytes, .. }) = self.receive() {
                assert_eq!(at, end, "output is missing");
                end += bytes.len() as u64;
                if end - acked >= ACK_BYTES {
                    acked = end;
                    let _ = self.send(Request::Ack { lease_id, offset: end });
                }
            }
        }
        let took = began.elapsed();
        let _ = self.call(Request::Ack { lease_id, offset: end });
        took
    }

    fn send(&mut self, body: Request) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        let sent = self.runtime.block_on(self.conn.sender.send(&ToSupervisor::Request { id, body }));
        sent.unwrap_or_else(|e| panic!("cannot send to the supervisor: {e}"));
        id
    }

    fn receive(&mut self) -> ToClient {
        let received =
            self.runtime.block_on(async { tokio::time::timeout(SOON, self.conn.receiver.recv()).await });
        match received {
            Ok(Ok(Some(message))) => message,
            other => panic!("no message from the supervisor: {other:?}"),
        }
    }
}
