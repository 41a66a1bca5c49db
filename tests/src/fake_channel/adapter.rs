//! The gateway's side: a channel adapter with one connection to the fake chat service.

use super::wire::{PersonText, Text, ToGateway, ToService, line};
use super::{ENV_SOCKET, MESSAGE_UNITS_MAX, NAME};
use acp_gateway::channel::{
    BoxFuture, ChannelAdapter, ChannelProperties, ConversationRef, Inbound, InboundPort, IntakeOutcome,
    LookupOutcome, MessageLimit, Outgoing, SendOutcome, UnboundDestination, Unit,
};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::OwnedReadHalf;
use tokio::sync::{mpsc, oneshot};

/// Timeout for an answer, and for a connection.
const ANSWER_MS: u64 = 500;
/// Delay between connection attempts.
const CONNECT_MS: u64 = 20;
/// Maximum number of lines queued for the socket, and of messages queued for the gateway; the service
/// delivers dropped messages again.
const WAITING_MAX: usize = 1_024;

/// Runs the gateway with this channel.
#[must_use]
pub fn main() -> ExitCode {
    let channel = |socket| Arc::new(FakeChannel::new(Path::new(&socket))) as Arc<dyn ChannelAdapter>;
    acp_gateway::cli::main_with(std::env::var_os(ENV_SOCKET).map(channel).into_iter().collect())
}

/// The channel adapter.
#[derive(Debug)]
pub struct FakeChannel {
    link: Arc<Link>,
    started: Once,
}

#[derive(Debug)]
struct Link {
    socket: PathBuf,
    calls: AtomicU64,
    line: Mutex<Line>,
    said: mpsc::Sender<PersonText>,
    heard: Mutex<Option<mpsc::Receiver<PersonText>>>,
}

/// The current connection and the calls that wait for answers on it.
#[derive(Debug, Default)]
struct Line {
    out: Option<mpsc::Sender<String>>,
    waiting: HashMap<u64, oneshot::Sender<ToGateway>>,
}

impl FakeChannel {
    /// Creates an adapter for the service behind a socket; connects on first use.
    #[must_use]
    pub fn new(socket: &Path) -> Self {
        let (said, heard) = mpsc::channel(WAITING_MAX);
        let link = Link {
            socket: socket.to_owned(),
            calls: AtomicU64::new(1),
            line: Mutex::default(),
            said,
            heard: Mutex::new(Some(heard)),
        };
        Self { link: Arc::new(link), started: Once::new() }
    }

    fn link(&self) -> &Link {
        self.started.call_once(|| {
            tokio::spawn(Arc::clone(&self.link).keep_connected());
        });
        &self.link
    }
}

/// Result of a call.
enum CallResult {
    Answered(ToGateway),
    /// Not sent: no connection.
    NotSent,
    /// Sent, but not answered: its effect is unknown.
    Unanswered,
}

impl Link {
    fn line(&self) -> std::sync::MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn keep_connected(self: Arc<Self>) {
        loop {
            if let Ok(stream) = UnixStream::connect(&self.socket).await {
                let (read, mut write) = stream.into_split();
                let (out, mut lines) = mpsc::channel::<String>(WAITING_MAX);
                let hello = ToService::Hello { life: std::process::id() };
                let _ = out.try_send(line(&hello));
                self.line().out = Some(out);
                let writing = async {
                    while let Some(text) = lines.recv().await {
                        if write.write_all(text.as_bytes()).await.is_err() {
                            return;
                        }
                    }
                };
                tokio::select! {
                    () = writing => {}
                    () = self.receive_lines(read) => {}
                }
                // Dropping the senders fails all waiting calls.
                *self.line() = Line::default();
            }
            tokio::time::sleep(Duration::from_millis(CONNECT_MS)).await;
        }
    }

    async fn receive_lines(&self, read: OwnedReadHalf) {
        let mut lines = BufReader::new(read).lines();
        while let Ok(Some(text)) = lines.next_line().await {
            match serde_json::from_str::<ToGateway>(&text) {
                Ok(ToGateway::Said(said)) => drop(self.said.try_send(said)),
                Ok(tell) => {
                    let waiting = tell.call().and_then(|call| self.line().waiting.remove(&call));
                    if let Some(waiting) = waiting {
                        let _ = waiting.send(tell);
                    }
                }
                Err(_) => return,
            }
        }
    }

    /// Queues a line for the connection and returns the receiver of its answer; `None` without a connection.
    fn enqueue(&self, call: u64, ask: &ToService) -> Option<oneshot::Receiver<ToGateway>> {
        let (answer, answered) = oneshot::channel();
        let mut at = self.line();
        at.out.as_ref()?.try_send(line(ask)).ok()?;
        at.waiting.insert(call, answer);
        Some(answered)
    }

    async fn call(&self, ask: impl FnOnce(u64) -> ToService) -> CallResult {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        let ask = ask(call);
        let end = tokio::time::Instant::now() + Duration::from_millis(ANSWER_MS);
        let answered = loop {
            if let Some(answered) = self.enqueue(call, &ask) {
                break answered;
            }
            if tokio::time::Instant::now() >= end {
                return CallResult::NotSent;
            }
            tokio::time::sleep(Duration::from_millis(CONNECT_MS)).await;
        };
        let answer = tokio::time::timeout(Duration::from_millis(ANSWER_MS), answered).await;
        self.line().waiting.remove(&call);
        match answer {
            Ok(Ok(tell)) => CallResult::Answered(tell),
            Ok(Err(_)) | Err(_) => CallResult::Unanswered,
        }
    }

    async fn deliver(&self, inbox: &dyn InboundPort, said: PersonText) {
        let message = Inbound::new(at(&said.conversation), said.message_id.clone(), said.author, said.text);
        let refused = match inbox.offer(message).await {
            IntakeOutcome::Accepted(_) => None,
            // The service delivers it again.
            IntakeOutcome::Later { .. } => return,
            IntakeOutcome::Refused { why } => Some(why),
        };
        let PersonText { conversation, message_id, .. } = said;
        let ask = ToService::Acknowledge { conversation, message_id, refused };
        if let Some(out) = &self.line().out {
            let _ = out.try_send(line(&ask));
        }
    }
}

/// Reference to a conversation.
fn at(conversation_id: &str) -> ConversationRef {
    ConversationRef::new(NAME, "default", conversation_id)
}

impl ChannelAdapter for FakeChannel {
    fn id(&self) -> &'static str {
        NAME
    }

    fn properties(&self) -> ChannelProperties {
        ChannelProperties::new(MessageLimit::new(Unit::Utf16, MESSAGE_UNITS_MAX), UnboundDestination::Hint)
    }

    fn send<'a>(&'a self, to: &'a ConversationRef, message: &'a Outgoing) -> BoxFuture<'a, SendOutcome> {
        let text = Text {
            conversation: to.conversation_id.clone(),
            nonce: message.nonce.clone(),
            kind: message.kind.as_str().to_owned(),
            text: message.text.clone(),
        };
        Box::pin(async move {
            let why = |why: &str| why.to_owned();
            match self.link().call(|call| ToService::Send { call, message: text }).await {
                CallResult::Answered(ToGateway::Sent { message_id, .. }) => SendOutcome::Sent { message_id },
                CallResult::Answered(ToGateway::Limited { retry_after_ms, .. }) => {
                    SendOutcome::Limited { retry_after_ms }
                }
                CallResult::Answered(ToGateway::Unavailable { .. }) => {
                    SendOutcome::Rejected { why: why("the service is out of order"), again: true }
                }
                CallResult::NotSent => {
                    SendOutcome::Rejected { why: why("there is no connection"), again: true }
                }
                CallResult::Answered(_) | CallResult::Unanswered => {
                    SendOutcome::Uncertain { why: why("no answer") }
                }
            }
        })
    }

    fn lookup<'a>(&'a self, to: &'a ConversationRef, message: &'a Outgoing) -> BoxFuture<'a, LookupOutcome> {
        let (conversation, nonce) = (to.conversation_id.clone(), message.nonce.clone());
        Box::pin(async move {
            match self.link().call(|call| ToService::Lookup { call, conversation, nonce }).await {
                CallResult::Answered(ToGateway::Found { message_id: Some(message_id), .. }) => {
                    LookupOutcome::Found { message_id }
                }
                CallResult::Answered(ToGateway::Found { message_id: None, .. }) => LookupOutcome::Absent,
                _ => LookupOutcome::Unknown { why: "no answer".to_owned() },
            }
        })
    }

    fn listen(&self, inbox: Arc<dyn InboundPort>) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let _ = self.link();
            let heard = self.link.heard.lock().unwrap_or_else(PoisonError::into_inner).take();
            let Some(mut heard) = heard else { return };
            let mut delivering = tokio::task::JoinSet::new();
            while let Some(said) = heard.recv().await {
                let (link, inbox) = (Arc::clone(&self.link), Arc::clone(&inbox));
                delivering.spawn(async move { link.deliver(inbox.as_ref(), said).await });
                while delivering.try_join_next().is_some() {}
            }
        })
    }
}
