//! The socket: accept, handshake within a deadline, then one task that reads and one that writes. Reading never
//! waits for writing (H18).

use crate::context::Context;
use crate::core::admit::Policy;
use crate::link::{Link, LinkId, Outgoing};
use crate::owner::Event;
use acp_shared::conn::{self, Conn, ConnError, Listener, Receiver, Sender};
use acp_shared::protocol::{Refusal, RefusalCode, ToClient, ToSupervisor};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{Semaphore, oneshot};

/// How long a connection that is being refused may take to read why.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// How long to wait after accepting failed (out of descriptors, for example).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

type Client = Conn<ToSupervisor, ToClient>;

/// How many connections each user has.
type Users = Arc<Mutex<HashMap<Option<u32>, usize>>>;

/// One connection of a user, given back with the value: no user takes all of them.
struct Place {
    users: Users,
    user: Option<u32>,
}

impl Place {
    fn take(users: &Users, user: Option<u32>, max: usize) -> Option<Self> {
        let mut counts = users.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(user).or_default();
        if *count >= max {
            return None;
        }
        *count += 1;
        Some(Self { users: Arc::clone(users), user })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut counts = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&self.user) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.user);
            }
        }
    }
}

/// Accepts connections for as long as it is let. `ids` numbers them, over all who accept.
pub async fn serve(context: Arc<Context>, listener: Listener, (ids, policy): (Arc<AtomicU64>, Policy)) {
    let slots = Arc::new(Semaphore::new(crate::config::size(context.config.connections_max)));
    let per_user_max = crate::config::size(context.config.connections_per_user_max);
    let users = Users::default();
    loop {
        let client = match listener.accept::<ToSupervisor, ToClient>().await {
            Ok(client) => client,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Ok(slot) = Arc::clone(&slots).try_acquire_owned() else {
            // Not even a task for it: what is over the limit costs nothing.
            if context.may_log(client.peer.uid, "too many connections") {
                tracing::warn!(uid = client.peer.uid, "too many connections");
            }
            continue;
        };
        // All that nobody knows are one user: they get their refusal, and no more room than that.
        let known = policy.knows_user(client.peer.uid, client.peer.gid);
        let user = known.then_some(client.peer.uid);
        let Some(place) = Place::take(&users, user, per_user_max) else {
            if context.may_log(client.peer.uid, "too many connections of this user") {
                tracing::warn!(uid = client.peer.uid, "too many connections of this user");
            }
            continue;
        };
        let (context, id) = (Arc::clone(&context), LinkId(ids.fetch_add(1, Ordering::Relaxed)));
        tokio::spawn(async move {
            if let Err(error) = connection(&context, id, client).await {
                tracing::debug!(link = id.0, error = &error as &dyn std::error::Error, "connection ended");
            }
            drop((slot, place));
        });
    }
}

async fn connection(context: &Arc<Context>, id: LinkId, mut client: Client) -> Result<(), ConnError> {
    let within = Duration::from_millis(context.config.handshake_ms);
    let (link, outgoing) = Link::new(id);
    let shaken = tokio::time::timeout(within, handshake(context, &mut client, &link)).await;
    if !matches!(shaken, Ok(Ok(()))) {
        // The owner may have taken it in before its peer went away: then it is told like any other end.
        context.tell(Event::Unlinked(id)).await;
    }
    match shaken {
        Err(_) => return Err(ConnError::Timeout(within)),
        Ok(Err(ConnError::Refused(refusal))) => {
            if context.may_log(client.peer.uid, refusal.code.as_str()) {
                tracing::info!(link = id.0, uid = client.peer.uid, refusal = refusal.message, "refused");
            }
            let last = ToClient::Refused(refusal);
            return tokio::time::timeout(LAST_WORDS, client.sender.send(&last)).await.unwrap_or(Ok(()));
        }
        Ok(other) => other?,
    }
    let writer = tokio::spawn(write(client.sender, outgoing));
    let end = link.end().clone();
    let result = tokio::select! {
        () = end.cancelled() => Ok(()),
        result = read(context, client.receiver, &link) => result,
    };
    context.tell(Event::Unlinked(id)).await;
    end.cancel();
    drop(link);
    // The writer ends with the token; what it was writing is cut off.
    drop(writer.await);
    result
}

async fn handshake(context: &Arc<Context>, client: &mut Client, link: &Link) -> Result<(), ConnError> {
    let hello = match client.receiver.recv().await? {
        Some(ToSupervisor::Hello(hello)) => hello,
        Some(ToSupervisor::Request { .. }) => {
            return Err(ConnError::Refused(Refusal::new(
                RefusalCode::BadRequest,
                "the first message must be Hello",
            )));
        }
        None => return Err(ConnError::Closed),
    };
    let version = conn::negotiate(&hello).map_err(ConnError::Refused)?;
    let (answer, answered) = oneshot::channel();
    context.tell(Event::Hello { hello, version, peer: client.peer, link: link.clone(), answer }).await;
    let ending = || Refusal::new(RefusalCode::ShuttingDown, "the supervisor is ending");
    let welcome = answered.await.unwrap_or_else(|_| Err(ending())).map_err(ConnError::Refused)?;
    client.sender.send(&ToClient::Welcome(welcome)).await
}

async fn read(
    context: &Arc<Context>,
    mut receiver: Receiver<ToSupervisor>,
    link: &Link,
) -> Result<(), ConnError> {
    let in_flight_max = crate::config::size(context.config.requests_in_flight_max);
    while let Some(message) = receiver.recv().await? {
        match message {
            ToSupervisor::Request { id, body } => match link.begin(id, in_flight_max) {
                Some(to) => context.tell(Event::Request { body, to }).await,
                None => {
                    let why = format!("more than {in_flight_max} unanswered requests");
                    return refuse(link, Refusal::new(RefusalCode::TooLarge, why)).await;
                }
            },
            ToSupervisor::Hello(_) => {
                return refuse(link, Refusal::new(RefusalCode::BadRequest, "Hello came twice")).await;
            }
        }
    }
    Ok(())
}

/// Says why, and gives the writer a moment to say it.
async fn refuse(link: &Link, refusal: Refusal) -> Result<(), ConnError> {
    link.refuse(refusal.clone());
    drop(tokio::time::timeout(LAST_WORDS, link.end().cancelled()).await);
    Err(ConnError::Refused(refusal))
}

async fn write(mut sender: Sender<ToClient>, mut outgoing: Outgoing) {
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

/// Replies and news first; one piece of output whenever none of them waits.
async fn write_all(sender: &mut Sender<ToClient>, outgoing: &mut Outgoing) -> Result<(), ConnError> {
    loop {
        let message = tokio::select! {
            biased;
            message = outgoing.control.recv() => message,
            notice = outgoing.output.recv() => notice.map(ToClient::Notice),
        };
        let Some(message) = message else { return Ok(()) };
        sender.feed(&message).await?;
        outgoing.sent(&message);
        if outgoing.control.is_empty() && outgoing.output.is_empty() {
            sender.flush().await?;
        }
        match message {
            ToClient::Reply { .. } => outgoing.answered(),
            ToClient::Refused(_) => return sender.flush().await,
            ToClient::Welcome(_) | ToClient::Notice(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;

    #[test]
    fn no_user_takes_all_connections() {
        let users = Users::default();
        let (first, second) =
            (Place::take(&users, Some(7), 2).unwrap(), Place::take(&users, Some(7), 2).unwrap());
        assert!(Place::take(&users, Some(7), 2).is_none());
        let (other, stranger) =
            (Place::take(&users, Some(8), 2).unwrap(), Place::take(&users, None, 2).unwrap());
        drop(first);
        let again = Place::take(&users, Some(7), 2).unwrap();
        drop((second, other, stranger, again));
        assert!(users.lock().unwrap().is_empty());
    }
}
