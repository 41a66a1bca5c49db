//! Users and programs: they type in rooms and call the API, repeat requests without a response, and sometimes
//! repeat answered ones.

use crate::channel::{ConversationEvent, ConversationEventOutcome, InboundPort, MessageChangeOutcome};
use crate::conversation::inbound::InboundService;
use crate::session::manager::Manager;
use crate::session::task::ActorRequest;
use crate::sim::chat::{ACCOUNT, ROOM};
use crate::tests::{prompt_request, spawn_request};
use acp_core::actor::{ActorCommand, QuestionAnswer};
use acp_core::failure::Failure;
use acp_core::options::Setting;
use acp_core::permission::Voter;
use acp_core::request::{CloseRequest, PromptRequest, SpawnRequest};
use acp_core::rows::{ConversationRef, RunMode, SessionMode};
use acp_core::session::Ending;
use acp_shared::codes::Code;
use acp_shared::ids::{IdempotencyKey, RunId, SessionKey};
use acp_store::inbox::{Inbound, Outcome};
use parking_lot::Mutex;
use std::sync::Arc;
use tokio::sync::mpsc::Sender;
use tokio::sync::oneshot;

/// Request of a user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum UserRequest {
    /// A message in a conversation.
    Say {
        conversation: String,
        text: String,
    },
    /// Calls of the API.
    Prompt {
        session: SessionKey,
        text: String,
        steer: bool,
        anew: bool,
    },
    Cancel {
        session: SessionKey,
    },
    Close {
        session: SessionKey,
        ending: Ending,
        discard: bool,
    },
    Renew {
        session: SessionKey,
    },
    /// Moves a session to another host.
    Move {
        session: SessionKey,
        to: &'static str,
    },
    Oneshot {
        text: String,
    },
    Answer {
        session: SessionKey,
        permission: String,
        option: String,
    },
    /// The message of another request was edited, or deleted if there is no text.
    Edited {
        conversation: String,
        message: usize,
        text: Option<String>,
    },
    /// The chat service reports a change of a conversation.
    Changed {
        conversation: String,
        change: ConversationEvent,
    },
    /// The conversation was read up to the message of that request.
    CaughtUp {
        conversation: String,
        through: usize,
    },
}

impl UserRequest {
    /// True if the request archives a conversation.
    pub(super) fn puts_away(&self) -> bool {
        matches!(self, Self::Changed { change: ConversationEvent::Archived { .. }, .. })
    }

    /// True if the request unarchives a conversation.
    pub(super) fn takes_out(&self) -> bool {
        matches!(self, Self::Changed { change: ConversationEvent::Unarchived, .. })
    }
}

/// One request, for the whole simulation.
#[derive(Debug)]
pub(super) struct SubmittedRequest {
    pub(super) want: UserRequest,
    /// First response received.
    pub(super) answer: Option<String>,
    /// True if the request was refused; refusals are not stored.
    pub(super) refused: bool,
    /// True if the request was sent in this run of the gateway and is not answered.
    pub(super) waits: bool,
    /// Epoch of the gateway that was asked last, with several of them.
    pub(super) asked: u64,
}

impl SubmittedRequest {
    pub(super) fn new(want: UserRequest) -> Self {
        Self { want, answer: None, refused: false, waits: false, asked: 0 }
    }
}

/// Responses in transit: number of the request, and the response.
pub(super) type PendingResponses = Arc<Mutex<Vec<(usize, Result<String, Failure>)>>>;

/// Access to the gateway.
#[derive(Clone)]
pub(super) struct UserPort {
    pub(super) inlet: InboundService,
    pub(super) manager: Arc<Manager>,
    pub(super) answers: PendingResponses,
    /// Seeded bug: messages without a route go to this session.
    pub(super) fallback: Option<SessionKey>,
}

/// Returns the conversation of that name.
pub(super) fn conversation(id: &str) -> ConversationRef {
    ConversationRef::new(ROOM, ACCOUNT, id)
}

/// Returns the message id of a request.
pub(super) fn message_id(no: usize) -> String {
    format!("message-{no}")
}

fn request(text: &str, steer: bool, anew: bool) -> PromptRequest {
    let mode = if steer { RunMode::Steer } else { RunMode::Prompt };
    PromptRequest { mode, new_conversation: anew, ..prompt_request(text) }
}

/// Sends a prompt to an actor directly, without the manager. A response is optional.
pub(super) fn ask_directly(actor: &Sender<ActorRequest>, text: String) {
    let Ok(key) = IdempotencyKey::parse(&text.replace(' ', "-")) else { return };
    let request = request(&text, false, false);
    let (reply, _) = oneshot::channel();
    let command = ActorCommand::Prompt { run_id: RunId::mint(), request, key, caps: None };
    drop(actor.try_send(ActorRequest { command, keyed: None, reply }));
}

impl UserPort {
    /// Sends a request, and puts its response in transit.
    pub(super) fn ask(&self, no: usize, want: UserRequest) {
        let door = self.clone();
        tokio::spawn(async move {
            let answer = door.answer(no, want).await;
            door.answers.lock().push((no, answer));
        });
    }

    async fn answer(&self, no: usize, want: UserRequest) -> Result<String, Failure> {
        let key = IdempotencyKey::parse(&format!("wish-{no}")).map_err(|_| Failure::of(Code::Runtime))?;
        let manager = &self.manager;
        Ok(match want {
            UserRequest::Say { conversation: at, text } => {
                let (message_id, author) = (message_id(no), "ann".to_owned());
                let inbound = Inbound::new(conversation(&at), message_id, author, text);
                let outcome = self.inlet.accept(inbound.clone()).await?;
                self.fall_back(&inbound, &outcome, key).await;
                format!("{outcome:?}")
            }
            UserRequest::Prompt { session, text, steer, anew } => {
                let accepted = manager.prompt(&session, request(&text, steer, anew), key).await?;
                format!("{accepted:?}")
            }
            UserRequest::Cancel { session } => format!("{:?}", manager.cancel(&session, None, key).await?),
            UserRequest::Close { session, ending, discard } => {
                let request = CloseRequest { ending, discard, ..CloseRequest::new("by hand") };
                format!("{:?}", manager.close(&session, request, key).await?)
            }
            UserRequest::Renew { session } => format!("{:?}", manager.new_conversation(&session, key).await?),
            UserRequest::Move { session, to } => {
                let setting = Setting::Host(to.to_owned());
                format!("{:?}", manager.set(&session, setting, key).await?)
            }
            UserRequest::Oneshot { text } => format!("{:?}", manager.spawn(oneshot(&text), key).await?),
            UserRequest::Answer { session, permission, option } => {
                let answer = QuestionAnswer::Option(option);
                let by = Voter { name: "ann".to_owned(), ..Voter::default() };
                manager.answer_question(&session, &permission, answer, by, key).await?;
                "answered".to_owned()
            }
            UserRequest::Edited { conversation: at, message, text } => {
                let (at, id) = (conversation(&at), message_id(message));
                let amended = match text {
                    Some(text) => self.inlet.on_message_edited(at, id, text).await,
                    None => self.inlet.on_message_deleted(at, id).await,
                };
                heard(matches!(amended, MessageChangeOutcome::Later { .. }))?
            }
            UserRequest::Changed { conversation: at, change } => {
                let changed = self.inlet.on_conversation_event(conversation(&at), change).await;
                heard(matches!(changed, ConversationEventOutcome::Later { .. }))?
            }
            UserRequest::CaughtUp { conversation: at, through } => {
                heard(!self.inlet.set_backfill_mark(conversation(&at), through.to_string()).await)?
            }
        })
    }

    async fn fall_back(&self, inbound: &Inbound, outcome: &Outcome, key: IdempotencyKey) {
        let Some(session) = &self.fallback else { return };
        if matches!(outcome, Outcome::Refused { .. }) && !inbound.text.starts_with('/') {
            let message_id = Some(inbound.message_id.clone());
            let request =
                PromptRequest { requester_message_id: message_id, ..request(&inbound.text, false, false) };
            drop(self.manager.prompt(session, request, key).await);
        }
    }
}

/// Returns the response to a channel's report: retry later, or done.
fn heard(later: bool) -> Result<String, Failure> {
    if later { Err(Failure::of(Code::StoreUnavailable)) } else { Ok("heard".to_owned()) }
}

fn oneshot(text: &str) -> SpawnRequest {
    SpawnRequest { mode: SessionMode::Oneshot, interactive: false, ..spawn_request(None, Some(text)) }
}
