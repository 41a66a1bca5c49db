//! Server socket: accept, handshake within a deadline, then one reader task and one writer task for each
//! connection. Clients' messages go to the owner as events; its replies come through the connection's queues
//! ([`crate::relay::connection`]). Reading never waits for writing (H18).

pub(crate) mod remote;
pub mod secret;
pub(crate) mod socket;

use crate::context::Context;
use crate::context::event::Denial;
use crate::context::event::Event;
use crate::core::admission::AccessPolicy;
use crate::core::handshakes::{HandshakeUser, Handshakes};
use crate::relay::connection::{ConnectionHandle, ConnectionId, OutgoingQueues};
use crate::sys;
use acp_shared::conn::{self, Conn, ConnError, Listener, Peer, Receiver, Sender};
use acp_shared::protocol::{
    FRAME_BYTES_MAX, HELLO_BYTES_MAX, Hello, MARKS_BYTES_MAX, Marks, Refusal, RefusalCode, Role, ToClient,
    ToSupervisor, VERSION_MARKS,
};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{Semaphore, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Maximum time for a refused connection to read the reason.
const LAST_MESSAGES_WAIT: Duration = Duration::from_secs(1);
/// Maximum number of concurrent refusals of processes in supervised trees; further ones are closed without a
/// message.
const REFUSALS_MAX: usize = 16;
/// Pause after a failed accept, for example without free descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

type ServerConn = Conn<ToSupervisor, ToClient>;

/// Handshakes in progress, with the tokens that cancel them.
type HandshakeTable = Arc<Mutex<Handshakes<CancellationToken>>>;

/// Slot of one connection in the handshake table; released on drop.
struct HandshakeSlot {
    waiting: HandshakeTable,
    id: ConnectionId,
}

impl HandshakeSlot {
    fn take(waiting: &HandshakeTable, user: HandshakeUser, link: &ConnectionHandle) -> (Self, bool) {
        let mut all = waiting.lock();
        let displaced = all.begin(link.id().0, user, link.end().clone());
        if let Some(end) = &displaced {
            end.cancel();
        }
        (Self { waiting: Arc::clone(waiting), id: link.id() }, displaced.is_some())
    }
}

impl Drop for HandshakeSlot {
    fn drop(&mut self) {
        self.waiting.lock().end(self.id.0);
    }
}

/// Accepts connections until the task is aborted. `ids` is shared by all listeners of this process.
pub async fn serve(context: Arc<Context>, listener: Listener, ids: Arc<AtomicU64>, policy: AccessPolicy) {
    let (waiting, told) = (HandshakeTable::default(), Arc::new(Semaphore::new(REFUSALS_MAX)));
    loop {
        let client = match listener.accept::<ToSupervisor, ToClient>().await {
            Ok(mut client) => {
                client.receiver.limit(HELLO_BYTES_MAX);
                client
            }
            Err(error) => {
                if context.may_log(rustix::process::geteuid().as_raw(), "accept failed") {
                    tracing::warn!(%error, "cannot accept a connection");
                }
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Peer::Local { pid, uid, gid } = client.peer else { continue };
        // Agents run as the supervisor's user, but must not control the supervisor (H9). They get no
        // handshake slot, so they cannot displace their gateway or an admin either.
        if pid.is_some_and(|pid| context.is_lease_process(pid)) {
            if context.may_log(uid, "connection from a supervised process") {
                tracing::warn!(uid, pid, "connection from a supervised process refused");
            }
            if let Ok(permit) = Arc::clone(&told).try_acquire_owned() {
                tokio::spawn(async move {
                    drop(tokio::time::timeout(LAST_MESSAGES_WAIT, refuse_lease_process(client)).await);
                    drop(permit);
                });
            }
            continue;
        }
        // All users unknown to the policy count as one user.
        let user = policy.is_known_user(uid, gid).then_some(uid);
        let (link, outgoing) = ConnectionHandle::new(ConnectionId(ids.fetch_add(1, Ordering::Relaxed)));
        let (place, displaced) = HandshakeSlot::take(&waiting, user, &link);
        if displaced && context.may_log(uid, "too many handshakes") {
            tracing::warn!(uid, "too many connections in the handshake; oldest closed");
        }
        let connected = Arc::clone(&context);
        tokio::spawn(async move {
            let (context, id) = (connected, link.id());
            let within = Duration::from_millis(context.config.handshake_ms);
            let deadline = Instant::now() + within;
            if let Err(error) = connection(&context, client, link, outgoing, place, deadline).await {
                tracing::debug!(
                    connection = id.0,
                    error = &error as &dyn std::error::Error,
                    "connection ended"
                );
            }
        });
        // Let the new task read an arrived Hello before further connections can displace it.
        tokio::task::yield_now().await;
    }
}

/// Refuses a process of a supervised tree. Its Hello is read first, because some clients read the answer only
/// after the write.
async fn refuse_lease_process(mut client: ServerConn) -> Result<(), ConnError> {
    client.receiver.recv().await?;
    let why = "the supervisor refuses connections from the process trees that it supervises";
    client.sender.send(&ToClient::Refused(Refusal::new(RefusalCode::NotAuthorised, why))).await?;
    // Discard further messages, up to a limit: the client may send them before it reads the answer.
    client.receiver.discard(HELLO_BYTES_MAX as u64).await
}

async fn connection(
    context: &Arc<Context>,
    mut client: ServerConn,
    link: ConnectionHandle,
    outgoing: OutgoingQueues,
    place: HandshakeSlot,
    deadline: Instant,
) -> Result<(), ConnError> {
    let (id, end) = (link.id(), link.end().clone());
    let shaken = tokio::select! {
        shaken = tokio::time::timeout_at(deadline, handshake(context, &mut client, &link, place)) => shaken,
        () = end.cancelled() => Ok(Err(ConnError::Closed.into())),
    };
    if !matches!(shaken, Ok(Ok(()))) {
        // The owner may have admitted the client before it disconnected, so the owner is notified.
        context.send_event(Event::Unlinked(id)).await;
    }
    match shaken {
        Err(_) => return Err(ConnError::Timeout(Duration::from_millis(context.config.handshake_ms))),
        Ok(Err(HandshakeError::Denied(denial))) => {
            let refusal = denial.refusal();
            let (uid, cell) = match &client.peer {
                Peer::Local { uid, .. } => (*uid, None),
                Peer::Remote { name } => (remote::UNKNOWN_UID, Some(name)),
            };
            if context.may_log(uid, refusal.code.as_str()) {
                tracing::info!(connection = id.0, uid, cell, refusal = refusal.message, "connection refused");
            }
            let last = denial.message();
            return tokio::time::timeout(LAST_MESSAGES_WAIT, client.sender.send(&last))
                .await
                .unwrap_or(Ok(()));
        }
        Ok(Err(HandshakeError::Broken(error))) => return Err(error),
        Ok(Ok(())) => {}
    }
    client.receiver.limit(FRAME_BYTES_MAX);
    let silence = Duration::from_millis(context.config.remote_silence_ms);
    let silence = matches!(client.peer, Peer::Remote { .. }).then_some(silence);
    let writer = tokio::spawn(write(client.sender, outgoing));
    let result = tokio::select! {
        () = end.cancelled() => Ok(()),
        result = read(context, client.receiver, &link, silence) => result,
    };
    context.send_event(Event::Unlinked(id)).await;
    end.cancel();
    drop(link);
    // The writer ends with the token, without completing the current message.
    drop(writer.await);
    result
}

/// Reason for an incomplete handshake.
enum HandshakeError {
    /// The client was not admitted.
    Denied(Denial),
    /// The connection broke.
    Broken(ConnError),
}

impl From<ConnError> for HandshakeError {
    fn from(error: ConnError) -> Self {
        Self::Broken(error)
    }
}

impl From<Refusal> for HandshakeError {
    fn from(refusal: Refusal) -> Self {
        Self::Denied(refusal.into())
    }
}

async fn handshake(
    context: &Arc<Context>,
    client: &mut ServerConn,
    link: &ConnectionHandle,
    place: HandshakeSlot,
) -> Result<(), HandshakeError> {
    let hello = match client.receiver.recv().await? {
        Some(ToSupervisor::Hello(hello)) => hello,
        Some(ToSupervisor::Request { .. } | ToSupervisor::Marks(_) | ToSupervisor::Act { .. }) => {
            return Err(bad_request("the first message must be Hello").into());
        }
        None => return Err(ConnError::Closed.into()),
    };
    let version = conn::negotiate(&hello)?;
    let marks = marks(client, &hello, version).await?;
    // The client's messages are read: waiting for the disk must not occupy a handshake slot.
    drop(place);
    let (answer, answered) = oneshot::channel();
    context
        .send_event(Event::Hello {
            hello,
            version,
            marks,
            peer: client.peer.clone(),
            link: link.clone(),
            answer,
        })
        .await;
    let ending = || Refusal::new(RefusalCode::ShuttingDown, "the supervisor is shutting down");
    let welcome = answered.await.unwrap_or_else(|_| Err(ending().into())).map_err(HandshakeError::Denied)?;
    Ok(client.sender.send(&ToClient::Welcome(welcome)).await?)
}

fn bad_request(why: &str) -> Refusal {
    Refusal::new(RefusalCode::BadRequest, why)
}

/// Reads the marks, sent by every gateway of version 2 after its Hello.
async fn marks(
    client: &mut ServerConn,
    hello: &Hello,
    version: u16,
) -> Result<Option<Marks>, HandshakeError> {
    if version < VERSION_MARKS || matches!(hello.role, Role::Admin) {
        return Ok(None);
    }
    client.receiver.limit(MARKS_BYTES_MAX);
    match client.receiver.recv().await? {
        Some(ToSupervisor::Marks(marks)) => Ok(Some(marks)),
        Some(ToSupervisor::Hello(_) | ToSupervisor::Request { .. } | ToSupervisor::Act { .. }) => {
            Err(bad_request("the second message of a gateway must be Marks").into())
        }
        None => Err(ConnError::Closed.into()),
    }
}

async fn read(
    context: &Arc<Context>,
    mut receiver: Receiver<ToSupervisor>,
    link: &ConnectionHandle,
    silence: Option<Duration>,
) -> Result<(), ConnError> {
    let in_flight_max = crate::config::size(context.config.requests_in_flight_max);
    while let Some(message) = next_message(&mut receiver, silence).await? {
        link.record_received();
        let (id, epoch, body) = match message {
            ToSupervisor::Request { id, body } => (id, None, body),
            ToSupervisor::Act { id, epoch, body } => (id, Some(epoch), body),
            ToSupervisor::Hello(_) | ToSupervisor::Marks(_) => {
                let why = "the handshake was sent twice";
                return refuse(link, Refusal::new(RefusalCode::BadRequest, why)).await;
            }
        };
        let Some(to) = link.register_request(id, in_flight_max) else {
            let why = format!("more than {in_flight_max} unanswered requests");
            return refuse(link, Refusal::new(RefusalCode::TooLarge, why)).await;
        };
        context.send_event(Event::Request { body, epoch, to }).await;
    }
    Ok(())
}

/// Receives the next message. A peer that sends nothing for longer than `silence`, not even a part of a message, is given
/// up: its machine may be cut off without the kernel's notice. So is one whose messages waited while this process was
/// stopped or its machine suspended: they may have been sent long ago.
async fn next_message(
    receiver: &mut Receiver<ToSupervisor>,
    silence: Option<Duration>,
) -> Result<Option<ToSupervisor>, ConnError> {
    let Some(silence) = silence else { return receiver.recv().await };
    loop {
        let (before, began_ms) = (receiver.buffered_bytes(), sys::since_boot_ms());
        let received = tokio::time::timeout(silence, receiver.recv()).await;
        let waited = Duration::from_millis(sys::since_boot_ms().saturating_sub(began_ms));
        let was_stopped = waited > 2 * silence;
        match received {
            Ok(received) if !was_stopped => return received,
            Err(_) if !was_stopped && receiver.buffered_bytes() > before => {}
            Ok(_) | Err(_) => {
                tracing::warn!(?silence, ?waited, "remote gateway timed out");
                return Err(ConnError::Timeout(silence));
            }
        }
    }
}

/// Sends a refusal and waits briefly until it is written.
async fn refuse(link: &ConnectionHandle, refusal: Refusal) -> Result<(), ConnError> {
    link.refuse(refusal.clone());
    drop(tokio::time::timeout(LAST_MESSAGES_WAIT, link.end().cancelled()).await);
    Err(ConnError::Refused(refusal))
}

async fn write(mut sender: Sender<ToClient>, mut outgoing: OutgoingQueues) {
    let end = outgoing.end.clone();
    let result = tokio::select! {
        result = write_all(&mut sender, &mut outgoing) => result,
        () = end.cancelled() => Ok(()),
    };
    if let Err(error) = result {
        tracing::debug!(error = &error as &dyn std::error::Error, "cannot write to a client");
    }
    end.cancel();
}

/// Writes replies and notices first, and one piece of output whenever no reply is queued.
async fn write_all(sender: &mut Sender<ToClient>, outgoing: &mut OutgoingQueues) -> Result<(), ConnError> {
    loop {
        let message = tokio::select! {
            biased;
            message = outgoing.control.recv() => message,
            notice = outgoing.output.recv() => notice.map(ToClient::Notice),
        };
        let Some(message) = message else { return Ok(()) };
        sender.feed(&message).await?;
        outgoing.record_sent(&message);
        if outgoing.control.is_empty() && outgoing.output.is_empty() {
            sender.flush().await?;
        }
        match message {
            ToClient::Reply { .. } => outgoing.record_answered(),
            ToClient::Refused(_) => return sender.flush().await,
            ToClient::Welcome(_) | ToClient::Notice(_) | ToClient::RolledBack(_) => {}
        }
    }
}
