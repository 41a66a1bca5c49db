//! Supervisor connection without a socket, for simulated time: the owner of the [`SimSupervisorConnection`] is the other end.

use super::{ClientShared, ConnectionDriver, DurableProgress, PingTimes, REQUESTS_MAX, SupervisorClient};
use crate::supervisor::{SupervisorStatus, hello};
use acp_shared::conn::Endpoint;
use acp_shared::files::{FilesOp, FilesReply, FilesRequest};
use acp_shared::ids::{GatewayInstanceId, StartId};
use acp_shared::probe;
use acp_shared::protocol::{
    Home, Marks, Notice, Refusal, Reply, Request, Role, ToClient, VERSION_MAX, Welcome,
};
use futures_util::future::BoxFuture;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;

/// Progress of a gateway without a store.
struct NoProgress(StartId);

impl DurableProgress for NoProgress {
    fn marks(&self) -> BoxFuture<'_, Result<Marks, String>> {
        let marks = Marks { start_id: self.0, event_id: 0, offsets: Vec::new(), accepts_loss: false };
        Box::pin(async { Ok(marks) })
    }

    fn admitted(&self, _connection: u64) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(async { Ok(()) })
    }
}

/// Time of the runtime, which a simulation advances.
fn runtime_time() -> Duration {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    Instant::now().saturating_duration_since(*START)
}

/// Returns the progress of a gateway without a store.
pub(crate) fn no_progress() -> Box<dyn DurableProgress> {
    Box::new(NoProgress(StartId::mint()))
}

/// Returns the greeting of a supervisor.
pub(crate) fn welcome(supervisor_id: &str) -> Welcome {
    let supervisor_id = supervisor_id.to_owned();
    Welcome { version: VERSION_MAX, features: Vec::new(), pid: 1, supervisor_id, credit_bytes: 1 << 20 }
}

/// Returns the role of a gateway.
pub(crate) fn gateway_role() -> Role {
    let home = Home { machine_id: String::new(), dev: 0, ino: 0 };
    Role::Gateway { instance_id: GatewayInstanceId::mint(), epoch: 1, home }
}

/// Returns a connected supervisor that only looks up programs and directories on this machine.
pub(crate) fn local_lookup_supervisor() -> SupervisorClient {
    let (supervisor, mut wire) = SimSupervisorConnection::new();
    wire.up("supervisor");
    tokio::spawn(async move {
        while let Some((id, request)) = wire.driver.queue.recv().await {
            let Request::Files(FilesRequest { op, .. }) = request else { continue };
            let found = match op {
                FilesOp::Programs { names, search } => {
                    FilesReply::Programs(names.iter().map(|name| probe::program(name, &search)).collect())
                }
                FilesOp::Directories { paths } => {
                    FilesReply::Directories(paths.iter().map(|path| probe::directory(path)).collect())
                }
                other => panic!("{other:?}"),
            };
            wire.reply(id, Ok(Reply::Files(Ok(found))));
        }
    });
    supervisor
}

/// The supervisor's end of the connection.
pub(crate) struct SimSupervisorConnection {
    driver: ConnectionDriver,
    /// Features of the supervisor.
    pub(crate) features: &'static [&'static str],
}

impl SimSupervisorConnection {
    /// Creates both ends of a connection that is down.
    pub(crate) fn new() -> (SupervisorClient, Self) {
        let (requests, queue) = mpsc::channel(REQUESTS_MAX);
        let shared = ClientShared::new(SupervisorStatus::Down("not connected yet".to_owned()), runtime_time);
        let driver = ConnectionDriver {
            endpoint: Endpoint::Socket(PathBuf::new()),
            secret: None,
            hello: hello(Role::Admin),
            progress: no_progress(),
            shared: Arc::clone(&shared),
            queue,
            ping_times: PingTimes { ping_after_ms: 0, pong_timeout_ms: 0 },
        };
        (SupervisorClient { shared, requests }, Self { driver, features: &[] })
    }

    /// Sets the connection up.
    pub(crate) fn up(&mut self, supervisor_id: &str) {
        while self.driver.queue.try_recv().is_ok() {}
        let features = self.features.iter().map(|name| (*name).to_owned()).collect();
        self.driver.set_up(Welcome { features, ..welcome(supervisor_id) });
    }

    /// Breaks the connection.
    pub(crate) fn down(&self) {
        self.driver.set_down(SupervisorStatus::Down("the connection broke".to_owned()));
    }

    /// True if requests are queued.
    pub(crate) fn has_requests(&self) -> bool {
        !self.driver.queue.is_empty()
    }

    /// Takes the next request, in order.
    pub(crate) fn take(&mut self) -> Option<(u64, Request)> {
        self.driver.queue.try_recv().ok()
    }

    /// Replies to a request.
    pub(crate) fn reply(&self, id: u64, result: Result<Reply, Refusal>) {
        self.driver.shared.deliver(ToClient::Reply { id, result });
    }

    /// Sends a notice about a lease.
    pub(crate) fn notice(&self, notice: Notice) {
        self.driver.shared.deliver(ToClient::Notice(notice));
    }
}
