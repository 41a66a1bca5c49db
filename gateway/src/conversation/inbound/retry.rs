//! Retry of unfinished messages and replies: after a restart, or because the store or the channel was
//! unavailable.
//!
//! In each conversation one worker sends the pending replies, in the order of the messages. Incoming messages
//! do not wait for it, and conversations are independent.

use super::{InboundService, Inner, queue_key, span};
use crate::conversation::inbound::reply::PriorReply;
use crate::conversation::inbound::reservation::{MessageKey, message_key};
use acp_core::failure::Failure;
use acp_core::rows::ConversationRef;
use acp_shared::backoff::Backoff;
use acp_store::command_replies;
use acp_store::inbox::{self, Inbound, InboxRow, Outcome};
use acp_store::interactive_messages;
use acp_store::sent_messages;
use acp_store::{StoreError, StoreHealth};
use parking_lot::Mutex;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

/// Maximum number of messages of a conversation read at once.
const BATCH_ROWS: u64 = 256;
/// Maximum number of conversations retried concurrently.
const CONCURRENT_MAX: usize = 64;
/// Delays before messages that are not settled are retried.
const RETRY_BACKOFF: Backoff = Backoff::new(1_000, 30_000);

/// Pending replies.
#[derive(Debug, Default)]
pub(super) struct ReplyQueue(Mutex<ReplyQueueState>);

#[derive(Debug, Default)]
struct ReplyQueueState {
    /// Conversations with an active worker; true if more replies arrived since the worker's last read.
    busy: HashMap<ConversationRef, bool>,
    /// Messages executed by this process whose reply was not attempted yet.
    new: HashSet<MessageKey>,
}

impl ReplyQueue {
    /// Marks a message as executed just now, so that its reply was certainly not sent; `false` removes the
    /// mark.
    pub(super) fn mark_fresh(&self, inbound: &Inbound, is_so: bool) {
        let (mut state, key) = (self.0.lock(), message_key(inbound));
        if is_so {
            state.new.insert(key)
        } else {
            state.new.remove(&key)
        };
    }

    /// Claims the reply. Returns true for the first attempt in this process.
    fn take_fresh(&self, inbound: &Inbound) -> bool {
        self.0.lock().new.remove(&message_key(inbound))
    }
}

/// Worker that sends the pending replies of a conversation.
struct ReplyWorker<'a> {
    inner: &'a Inner,
    at: ConversationRef,
    is_over: bool,
}

impl<'a> ReplyWorker<'a> {
    /// Starts a worker; `None` if one is active already, which then reads again before it ends.
    fn begin(inner: &'a Inner, at: &ConversationRef) -> Option<Self> {
        let at = queue_key(at);
        match inner.reply_queue.0.lock().busy.entry(at.clone()) {
            Entry::Occupied(mut there) => {
                there.insert(true);
                None
            }
            Entry::Vacant(free) => {
                free.insert(false);
                Some(Self { inner, at, is_over: false })
            }
        }
    }

    /// True if more replies arrived since the last read; otherwise the worker ends.
    fn has_more(&mut self) -> bool {
        let mut state = self.inner.reply_queue.0.lock();
        let has_more = state.busy.insert(self.at.clone(), false).unwrap_or(false);
        if !has_more {
            state.busy.remove(&self.at);
            self.is_over = true;
        }
        has_more
    }
}

impl Drop for ReplyWorker<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            // A reply could not be sent: retried later, with newer ones.
            self.inner.reply_queue.0.lock().busy.remove(&self.at);
            self.inner.retry_needed.notify_one();
        }
    }
}

impl InboundService {
    /// Processes unfinished messages and replies at start, before any channel is opened. Returns the number
    /// of settled messages.
    ///
    /// # Errors
    /// The store cannot be read.
    pub(crate) async fn resume(&self) -> Result<usize, StoreError> {
        let places = self.inner.store.read("inbox_unsettled", inbox::unsettled_in).await?;
        let (mut settled, mut each) = (0, JoinSet::new());
        for at in places {
            if each.len() >= CONCURRENT_MAX {
                settled += settled_count(each.join_next().await);
            }
            let inner = Arc::clone(&self.inner);
            each.spawn(async move { inner.resume_conversation(&at).await });
        }
        while let Some(done) = each.join_next().await {
            settled += settled_count(Some(done));
        }
        Ok(settled)
    }

    /// Retries messages that could not be settled (full disk, channel unavailable), until they are or `stop`.
    pub(crate) async fn run_retries(self, stop: CancellationToken) {
        self.inner.retry_needed.notify_one();
        let mut health = self.inner.store.health();
        let mut adapters = self.inner.channels.changes();
        let mut backoff = RETRY_BACKOFF;
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.inner.retry_needed.notified() => {}
                // A new adapter may make replies deliverable.
                Ok(()) = adapters.changed() => {}
            }
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = tokio::time::sleep(backoff.next_pause()) => {}
                () = wait_until_writable(&mut health) => {}
            }
            // Unfinished work is resumed by the next start.
            let is_settled = tokio::select! {
                biased;
                () = stop.cancelled() => return,
                is_settled = self.retry_unsettled() => is_settled,
            };
            if is_settled {
                backoff.reset();
            } else {
                self.inner.retry_needed.notify_one();
            }
        }
    }

    /// Retries all unsettled messages. True if the remaining ones are in progress elsewhere or wait for an
    /// adapter.
    async fn retry_unsettled(&self) -> bool {
        let Ok(settled) = self.resume().await else { return false };
        if settled > 0 {
            tracing::info!(settled, "deferred messages settled");
        }
        let left = self.inner.store.read("inbox_left", |db| inbox::unsettled_messages(db, BATCH_ROWS));
        let inner = &self.inner;
        let is_elsewhere = |row: &InboxRow| {
            inner.reservations.is_held(&row.inbound) || !inner.channels.has_adapter(&row.inbound.conversation)
        };
        left.await.is_ok_and(|rows| rows.iter().all(is_elsewhere))
    }
}

/// Returns the number of messages settled by a task that has ended.
fn settled_count(task: Option<Result<usize, tokio::task::JoinError>>) -> usize {
    let settled = task.transpose().map_err(|error| {
        tracing::error!(%error, "conversation task panicked");
    });
    settled.ok().flatten().unwrap_or(0)
}

/// Waits until the store accepts commits again.
async fn wait_until_writable(health: &mut watch::Receiver<StoreHealth>) {
    while health.changed().await.is_ok() {
        if *health.borrow_and_update() == StoreHealth::Well {
            return;
        }
    }
    std::future::pending().await
}

impl Inner {
    /// Executes and answers the unfinished messages of a conversation. Returns the number of settled ones.
    async fn resume_conversation(&self, at: &ConversationRef) -> usize {
        let of = at.clone();
        let undone =
            self.store.read("inbox_undone", move |db| inbox::unprocessed_messages(db, &of, BATCH_ROWS)).await;
        // A reserved message is left to its adapter.
        let is_left = |row: &InboxRow| !self.reservations.is_held(&row.inbound);
        for row in undone.unwrap_or_default().into_iter().filter(is_left) {
            let message_id = row.inbound.message_id.clone();
            let around = span(&row.inbound);
            if let Err(failure) = self.process(row.inbound).instrument(around).await {
                tracing::warn!(message_id, %failure, "pending message deferred");
            }
        }
        self.flush_replies(at).await
    }

    /// Sends the pending replies of a conversation, unless a worker is active. Returns the number of settled
    /// messages.
    pub(super) async fn flush_replies(&self, at: &ConversationRef) -> usize {
        let mut settled = 0;
        let Some(mut worker) = ReplyWorker::begin(self, at) else { return settled };
        loop {
            let of = at.clone();
            let untold =
                self.store.read("inbox_untold", move |db| inbox::pending_replies(db, &of, BATCH_ROWS)).await;
            let Ok(rows) = untold else { return settled };
            let (is_page, before) = (rows.len() as u64 == BATCH_ROWS, settled);
            for (row, outcome) in rows {
                if self.is_reply_by_caller(&row.inbound) {
                    continue;
                }
                let (message_id, around) = (row.inbound.message_id.clone(), span(&row.inbound));
                if let Err(failure) = self.flush_reply(row, outcome).instrument(around).await {
                    // Later replies must not overtake this one.
                    tracing::info!(message_id, %failure, "reply deferred");
                    return settled;
                }
                settled += 1;
            }
            let goes_on = is_page && settled > before;
            if !goes_on && !worker.has_more() {
                return settled;
            }
        }
    }

    /// Sends the reply to a message, and settles the message.
    async fn flush_reply(&self, row: InboxRow, outcome: Outcome) -> Result<(), Failure> {
        let before = match (self.reply_queue.take_fresh(&row.inbound), row.caller_tells) {
            (true, _) => PriorReply::NotSent,
            (false, true) => PriorReply::MaybeSentByCaller,
            (false, false) => PriorReply::MaybeSent,
        };
        let told = self.send_reply(&row.inbound, &outcome, row.received_at_ms, before).await?;
        let receives_own_messages = self
            .channels
            .get(&row.inbound.conversation)
            .is_ok_and(|it| it.properties().receives_own_messages);
        let said = row.inbound;
        let settle = move |tx: &acp_store::Tx<'_>| {
            for reply in &told {
                command_replies::record_outcome(tx, &reply.nonce, Some(&reply.message.message_id))?;
                if receives_own_messages {
                    sent_messages::record_sent_message(tx, &said.conversation, &reply.message.message_id)?;
                }
                if let (true, Some(asks), Some(session)) =
                    (reply.has_buttons, outcome.asks(), outcome.prompted())
                {
                    interactive_messages::insert_message(
                        tx,
                        &said.conversation,
                        session,
                        &reply.message,
                        &asks.about,
                    )?;
                }
            }
            inbox::settle(tx, &said, &outcome)
        };
        self.store.write("inbox_settle", settle).await.map_err(Failure::from)
    }
}
