//! The connection without a socket, for simulated time: the other end is whoever holds the [`Wire`].

use super::{Driver, REQUESTS_MAX, ReadMarks, Shared, Supervisor};
use crate::supervisor::{LinkStatus, hello};
use acp_shared::files::{FilesOp, FilesReply, FilesRequest};
use acp_shared::ids::StartId;
use acp_shared::probe;
use acp_shared::protocol::{Marks, Notice, Refusal, Reply, Request, Role, ToClient, VERSION_MAX, Welcome};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use tokio::sync::{mpsc, watch};

/// The marks of a gateway without a store.
pub(crate) fn no_marks() -> ReadMarks {
    let start_id = StartId::mint();
    Box::new(move || {
        Box::pin(async move { Ok(Marks { start_id, event_id: 0, offsets: Vec::new(), accepts_loss: false }) })
    })
}

/// A connected supervisor that looks up programs and directories on this machine, and answers nothing else.
pub(crate) fn looking_up() -> Supervisor {
    let (supervisor, mut wire) = Wire::new();
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

/// The supervisor's end.
pub(crate) struct Wire {
    driver: Driver,
}

impl Wire {
    /// Both ends of a connection that is down.
    pub(crate) fn new() -> (Supervisor, Self) {
        let (requests, queue) = mpsc::channel(REQUESTS_MAX);
        let status = watch::Sender::new(LinkStatus::Down("not connected yet".to_owned()));
        let shared = Arc::new(Shared { state: Mutex::default(), status });
        let driver = Driver {
            path: PathBuf::new(),
            secret: PathBuf::new(),
            hello: hello(Role::Admin),
            marks: no_marks(),
            shared: Arc::clone(&shared),
            queue,
            patience_ms: (0, 0),
        };
        (Supervisor { shared, requests }, Self { driver })
    }

    /// Connects.
    pub(crate) fn up(&mut self, supervisor_id: &str) {
        while self.driver.queue.try_recv().is_ok() {}
        self.driver.set_up(Welcome {
            version: VERSION_MAX,
            features: Vec::new(),
            pid: 1,
            supervisor_id: supervisor_id.to_owned(),
            credit_bytes: 1 << 20,
        });
    }

    /// Breaks.
    pub(crate) fn down(&self) {
        self.driver.set_down(LinkStatus::Down("the connection broke".to_owned()));
    }

    /// Whether there are requests.
    pub(crate) fn has_requests(&self) -> bool {
        !self.driver.queue.is_empty()
    }

    /// The next request, in the order in which they were made.
    pub(crate) fn take(&mut self) -> Option<(u64, Request)> {
        self.driver.queue.try_recv().ok()
    }

    /// Answers a request.
    pub(crate) fn reply(&self, id: u64, result: Result<Reply, Refusal>) {
        self.driver.shared.deliver(ToClient::Reply { id, result });
    }

    /// Tells news of a lease.
    pub(crate) fn notice(&self, notice: Notice) {
        self.driver.shared.deliver(ToClient::Notice(notice));
    }
}
