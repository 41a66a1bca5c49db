//! Simulated chat service: accepts messages, deduplicates by nonce, loses responses, limits, refuses, and may
//! not know which messages it has, all by chance. Its messages are what users see.

use crate::channel::{BoxFuture, ChannelAdapter, ChannelProperties, LookupOutcome, Outgoing, SendOutcome};
use crate::sim::rng::SeededRng;
use acp_core::message_split::{MessageLimit, Unit};
use acp_core::route::UnboundDestination;
use acp_core::rows::ConversationRef;
use parking_lot::{Mutex, MutexGuard};
use std::sync::Arc;
use tokio::sync::oneshot;

/// Name of the channel.
pub(super) const ROOM: &str = "room";

/// Name of its account.
pub(super) const ACCOUNT: &str = "main";

/// Maximum size of a file, in bytes.
const FILE_BYTES_MAX: u64 = 100_000;

/// Message that users see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ShownMessage {
    pub(super) conversation: String,
    pub(super) message: Outgoing,
}

/// Permanent fault of all output of a turn in one conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OutputFault {
    /// All messages are refused permanently.
    Refused,
    /// The result of sending is never known.
    Unknown,
    /// Files are refused, temporarily and permanently.
    NoFiles,
}

/// Call of the gateway that is not answered yet.
#[derive(Debug)]
pub(super) enum ChannelCall {
    Send(ConversationRef, Outgoing, oneshot::Sender<SendOutcome>),
    Lookup(ConversationRef, Outgoing, oneshot::Sender<LookupOutcome>),
}

/// The service. Cheap to clone; it outlives the gateways.
#[derive(Debug, Clone, Default)]
pub(super) struct SimChannel {
    inside: Arc<Mutex<SimChannelState>>,
    /// Epoch of the gateway that calls, with several of them.
    caller: u64,
}

#[derive(Debug, Default)]
pub(super) struct SimChannelState {
    /// Calls that wait, each with its caller.
    pub(super) calls: Vec<(u64, ChannelCall)>,
    pub(super) shown: Vec<ShownMessage>,
    /// True while every call fails with an unknown result.
    pub(super) asleep: bool,
    /// Conversation with a permanent fault, and its kind.
    pub(super) fate: Option<(&'static str, OutputFault)>,
    /// Seeded bug: the service's response is taken for that of another message.
    pub(super) ignores_nonces: bool,
    /// Seeded bug: messages arrive without their files.
    pub(super) loses_files: bool,
}

impl SimChannel {
    /// The same service for another gateway.
    pub(super) fn of(&self, caller: u64) -> Self {
        Self { inside: Arc::clone(&self.inside), caller }
    }

    /// True if a call of the gateway waits.
    pub(super) fn is_called(&self) -> bool {
        self.lock().first_of(self.caller).is_some()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, SimChannelState> {
        self.inside.lock()
    }
}

impl ChannelAdapter for SimChannel {
    fn id(&self) -> &'static str {
        ROOM
    }

    fn account_id(&self) -> &str {
        ACCOUNT
    }

    fn properties(&self) -> ChannelProperties {
        ChannelProperties {
            file_bytes_max: Some(FILE_BYTES_MAX),
            // A small limit, so that answers have several parts; with room for the text next to a file.
            ..ChannelProperties::new(MessageLimit::new(Unit::Utf16, 80), UnboundDestination::Hint)
        }
    }

    fn send<'a>(&'a self, to: &'a ConversationRef, message: &'a Outgoing) -> BoxFuture<'a, SendOutcome> {
        let (reply, answer) = oneshot::channel();
        self.lock().calls.push((self.caller, ChannelCall::Send(to.clone(), message.clone(), reply)));
        Box::pin(async move {
            answer.await.unwrap_or_else(|_| SendOutcome::Uncertain { why: "no answer".to_owned() })
        })
    }

    fn lookup<'a>(&'a self, to: &'a ConversationRef, message: &'a Outgoing) -> BoxFuture<'a, LookupOutcome> {
        let (reply, answer) = oneshot::channel();
        self.lock().calls.push((self.caller, ChannelCall::Lookup(to.clone(), message.clone(), reply)));
        Box::pin(async move {
            answer.await.unwrap_or_else(|_| LookupOutcome::Unknown { why: "no answer".to_owned() })
        })
    }
}

impl SimChannelState {
    /// Returns the permanent fault of a message. Replies to people have none: they are retried without limit.
    fn fate(&self, to: &ConversationRef, message: &Outgoing) -> Option<OutputFault> {
        let (conversation, fate) = self.fate?;
        (conversation == to.conversation_id && message.run_id.is_some()).then_some(fate)
    }

    fn find(&self, to: &ConversationRef, message: &Outgoing) -> Option<usize> {
        self.shown.iter().position(|shown| {
            shown.conversation == to.conversation_id && shown.message.nonce == message.nonce
        })
    }

    fn show(&mut self, to: &ConversationRef, message: &Outgoing) -> String {
        let found = if self.ignores_nonces { None } else { self.find(to, message) };
        let at = found.unwrap_or_else(|| {
            let mut message = message.clone();
            if self.loses_files {
                message.files.clear();
            }
            self.shown.push(ShownMessage { conversation: to.conversation_id.clone(), message });
            self.shown.len() - 1
        });
        format!("m{at}")
    }

    /// Handles one of the calls. A fault occurs once in `trouble` times; never for 0.
    pub(super) fn serve(&mut self, at: usize, trouble: usize, chance: &mut SeededRng) -> String {
        match self.calls.remove(at).1 {
            ChannelCall::Send(to, message, reply) => {
                let outcome = self.take(&to, &message, trouble, chance);
                let line = format!("{} {:?}: {outcome:?}", to.conversation_id, message.text);
                drop(reply.send(outcome));
                line
            }
            ChannelCall::Lookup(to, message, reply) => {
                let found = if self.ignores_nonces { None } else { self.find(&to, &message) };
                let outcome = match found {
                    _ if self.asleep => LookupOutcome::Unknown { why: "asleep".to_owned() },
                    _ if self.fate(&to, &message) == Some(OutputFault::Unknown) => {
                        LookupOutcome::Unknown { why: "nobody knows".to_owned() }
                    }
                    _ if chance.one_in(trouble * 2) => LookupOutcome::Unknown { why: "asleep".to_owned() },
                    Some(at) => LookupOutcome::Found { message_id: format!("m{at}") },
                    None => LookupOutcome::Absent,
                };
                let line = format!("{} {:?}: {outcome:?}", to.conversation_id, message.text);
                drop(reply.send(outcome));
                line
            }
        }
    }

    fn take(
        &mut self,
        to: &ConversationRef,
        message: &Outgoing,
        trouble: usize,
        chance: &mut SeededRng,
    ) -> SendOutcome {
        if self.asleep {
            return SendOutcome::Uncertain { why: "asleep".to_owned() };
        }
        match self.fate(to, message) {
            Some(OutputFault::Unknown) => return SendOutcome::Uncertain { why: "nobody knows".to_owned() },
            Some(OutputFault::Refused) if self.find(to, message).is_none() => {
                return SendOutcome::Rejected { why: "never here".to_owned(), again: false };
            }
            Some(OutputFault::NoFiles) if !message.files.is_empty() && self.find(to, message).is_none() => {
                return SendOutcome::FilesRefused { why: "no files".to_owned(), again: chance.one_in(2) };
            }
            Some(OutputFault::Refused | OutputFault::NoFiles) | None => {}
        }
        if !chance.one_in(trouble) {
            return SendOutcome::Sent { message_id: self.show(to, message) };
        }
        match chance.below(6) {
            _ if !message.files.is_empty() && self.find(to, message).is_none() && chance.one_in(2) => {
                SendOutcome::FilesRefused { why: "no files now".to_owned(), again: chance.one_in(2) }
            }
            0 => SendOutcome::Limited { retry_after_ms: 1 + chance.next() % 3_000 },
            1 => SendOutcome::Rejected { why: "not now".to_owned(), again: true },
            2 if chance.one_in(4) => SendOutcome::Rejected { why: "never".to_owned(), again: false },
            3 => SendOutcome::Uncertain { why: "lost on the way".to_owned() },
            _ => {
                self.show(to, message);
                SendOutcome::Uncertain { why: "the answer was lost".to_owned() }
            }
        }
    }

    /// Index of the first call of a gateway.
    pub(super) fn first_of(&self, caller: u64) -> Option<usize> {
        self.calls.iter().position(|(of, _)| *of == caller)
    }

    /// Drops the calls of a killed gateway. Sent messages may still arrive, without a response.
    pub(super) fn forsake(&mut self, caller: u64, chance: &mut SeededRng) {
        for (_, call) in self.calls.extract_if(.., |(of, _)| *of == caller).collect::<Vec<_>>() {
            if let ChannelCall::Send(to, message, _) = call
                && chance.one_in(2)
            {
                self.show(&to, &message);
            }
        }
    }
}
