//! Socket of the session tools. Who may use it is decided for each request, by its token and by the process behind the
//! connection.

use crate::api::ApiLimits;
use crate::api::connection_slots::ConnectionSlots;
use crate::api::http::{Admission, Gate, HttpServer};
use crate::api::peer_ancestry::{self, ProcFs};
use crate::api::session_tools::AGENTS;
use crate::api::socket::{accept_until, bind_unix, closed, remove_socket, watch};
use crate::metrics::Metrics;
use acp_shared::log_limit::RefusalLog;
use axum::Router;
use axum::extract::Request;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::task::Context;
use tokio::net::{UnixListener, UnixStream};
use tokio_util::sync::CancellationToken;

/// Process at the other end of a connection, as it was when it connected.
#[derive(Debug, Clone)]
pub(super) struct AgentPeer {
    /// Effective user id.
    pub(super) uid: u32,
    /// Process id.
    pub(super) pid: Option<i32>,
    /// Tells whether the process id is still that of the same process, where the kernel supports it.
    process: Option<Arc<OwnedFd>>,
}

impl AgentPeer {
    fn of(stream: &UnixStream) -> Option<Self> {
        let peer = stream.peer_cred().ok()?;
        Some(Self { uid: peer.uid(), pid: peer.pid(), process: peer_ancestry::pidfd(stream).map(Arc::new) })
    }

    /// True if the process is `root` or descends from it, and has not ended.
    pub(super) fn descends_from(&self, root: i32) -> bool {
        self.pid.is_some_and(|pid| peer_ancestry::descends_from(&ProcFs, root, pid))
            && !self.process.as_deref().is_some_and(peer_ancestry::has_ended)
    }
}

/// Returns the owner of a user's connections, for [`ConnectionSlots`]: an address of its own, so that the connections of one
/// user do not close those of another one.
fn slot_owner(uid: u32) -> Option<IpAddr> {
    Some(Ipv4Addr::from(uid).into())
}

impl Gate for AgentPeer {
    fn admit(&self, request: &mut Request) -> Admission {
        request.extensions_mut().insert(self.clone());
        Admission::granted()
    }
}

/// Listening socket. Its file is removed when the gateway stops in order.
#[derive(Debug)]
pub(crate) struct AgentsListener {
    listener: UnixListener,
    path: PathBuf,
    metrics: Metrics,
}

impl AgentsListener {
    /// Listens at `path`. In the state directory only the gateway's user reaches the socket; elsewhere every user does.
    ///
    /// # Errors
    /// As [`bind_unix`].
    pub(crate) fn bind(path: &Path, is_elsewhere: bool, metrics: Metrics) -> io::Result<Self> {
        let mode = if is_elsewhere { 0o666 } else { 0o600 };
        Ok(Self { listener: bind_unix(path, mode)?, path: path.to_owned(), metrics })
    }

    /// Serves until `ending` is cancelled; then lets open requests finish for a short time.
    pub(crate) async fn serve(self, router: Router, limits: ApiLimits, ending: CancellationToken) {
        let Self { listener, path, metrics } = self;
        let server = HttpServer { router, limits };
        let slots = ConnectionSlots::new(limits.connections_max);
        let log = RefusalLog::default();
        let accept = move |cx: &mut Context<'_>| listener.poll_accept(cx);
        accept_until(accept, &log, &ending, |(stream, _), tasks| {
            let (Some(peer), Ok(socket)) = (AgentPeer::of(&stream), watch(&stream)) else { return };
            let (server, ending) = (server.clone(), ending.clone());
            let (slots, metrics, uid) = (slots.clone(), metrics.clone(), peer.uid);
            drop(tasks.spawn(async move {
                let (slot, displaced) = slots.take(slot_owner(uid));
                if displaced {
                    metrics.api_refused(AGENTS, "too_many_connections");
                }
                let _open = metrics.api_connection(AGENTS);
                server.serve(stream, Arc::new(peer), slot, true, closed(&socket), &ending).await;
            }));
        })
        .await;
        log.flush();
        remove_socket(&path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_of_one_user_do_not_close_those_of_another() {
        let slots = ConnectionSlots::new(4);
        let agent = slots.take(slot_owner(1_000)).0;
        let _call = agent.request();
        let others: Vec<_> = (0..6).map(|_| slots.take(slot_owner(1_001)).0).collect();
        let _calls: Vec<_> = others.iter().map(|slot| slot.request()).collect();
        let _ = slots.take(slot_owner(1_001));
        assert!(!agent.end().is_cancelled());
    }
}
