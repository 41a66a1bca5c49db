//! The chat service: strict, and as forgetful as real chat services.
//!
//! It deduplicates messages by nonce within one connection; the same nonce over another connection is a new
//! message. So a gateway that was killed or disconnected must do a lookup before it sends again: a real
//! service's window of minutes would hide most errors of that kind. A nonce that a lookup did not find stays
//! deduplicated until that gateway dies, so that a message that lands later cannot appear twice.
//!
//! A connection is read to its end, even if the gateway died, before the next one is served.

use super::fate::{self, LookupFate, SendFate};
use super::wire::{PersonText, Text, ToGateway, ToService, line};
use crate::seed::Seed;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::{BufRead, BufReader, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Delay until an unacknowledged message is delivered again.
const REDELIVERY_DELAY: Duration = Duration::from_millis(700);
/// Write timeout: a gateway that does not read for this long loses its connection.
const WRITE_MAX: Duration = Duration::from_secs(1);
/// Number of acknowledged messages that are delivered again over a new connection.
const REPEATS: u64 = 3;

/// A message in a conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// The service's id.
    pub message_id: String,
    /// Content of the message.
    pub text: Text,
}

/// A person's message and its state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PersonMessage {
    /// The message.
    pub said: PersonText,
    /// Whether the gateway accepted it.
    pub taken: bool,
    /// Reason of a refusal.
    pub refused: Option<String>,
}

/// Counters.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tally {
    /// Sends by outcome.
    pub fates: BTreeMap<&'static str, u64>,
    /// Lookups.
    pub lookups: u64,
    /// Messages that were deduplicated by their nonce.
    pub repeated: u64,
    /// Deliveries of people's messages.
    pub deliveries: u64,
    /// Connections.
    pub connections: u64,
}

/// The chat service, which runs in the test process.
#[derive(Debug)]
pub struct ChatService {
    shared: Arc<Shared>,
    socket: PathBuf,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

/// State of [`ChatService::withhold_answer`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hold {
    No,
    Wanted,
    Held,
}

/// A scheduled event.
#[derive(Debug)]
struct Due {
    at: Instant,
    what: DueEvent,
}

#[derive(Debug)]
enum DueEvent {
    /// Sends an answer, if the connection is still this one.
    Answer { connection: u64, tell: ToGateway },
    /// A message is accepted and answered.
    Land { connection: u64, call: u64, text: Text },
    /// Delivers a person's message.
    Deliver { said: usize },
}

#[derive(Debug)]
struct State {
    seed: Seed,
    /// Whether faults are injected.
    is_faulty: bool,
    is_over: bool,
    conversations: BTreeMap<String, Vec<Message>>,
    person_messages: Vec<PersonMessage>,
    /// Message ids by nonce of this connection.
    window: HashMap<String, String>,
    /// Nonces that a lookup of this gateway did not find.
    promised: HashSet<String>,
    /// Pid of the connected gateway.
    life: u32,
    faults: HashMap<String, u32>,
    due: Vec<Due>,
    stream: Option<UnixStream>,
    connection: u64,
    hold: Hold,
    ids: u64,
    tally: Tally,
}

impl ChatService {
    /// Listens at `socket`; faults are drawn from `seed`.
    ///
    /// # Panics
    /// When the socket cannot be bound.
    #[must_use]
    pub fn start(socket: &Path, seed: Seed) -> Self {
        let listener = UnixListener::bind(socket).unwrap_or_else(|e| panic!("{}: {e}", socket.display()));
        let state = State {
            seed,
            is_faulty: false,
            is_over: false,
            conversations: BTreeMap::new(),
            person_messages: Vec::new(),
            window: HashMap::new(),
            promised: HashSet::new(),
            life: 0,
            faults: HashMap::new(),
            due: Vec::new(),
            stream: None,
            connection: 0,
            hold: Hold::No,
            ids: 0,
            tally: Tally::default(),
        };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
        let (serving, timing) = (Arc::clone(&shared), Arc::clone(&shared));
        let threads = vec![
            std::thread::spawn(move || serving.serve(&listener)),
            std::thread::spawn(move || timing.run_timers()),
        ];
        Self { shared, socket: socket.to_owned(), threads }
    }

    /// Switches fault injection on or off.
    pub fn set_faulty(&self, is_faulty: bool) {
        self.shared.state().is_faulty = is_faulty;
    }

    /// Makes the whole service unreachable, or reachable again. Messages of people are delivered when it is
    /// back.
    ///
    /// # Panics
    /// When the socket cannot be moved.
    pub fn set_unavailable(&self, is_unavailable: bool) {
        let aside = self.socket.with_extension("away");
        let (from, to) = if is_unavailable { (&self.socket, &aside) } else { (&aside, &self.socket) };
        std::fs::rename(from, to).unwrap_or_else(|e| panic!("{}: {e}", from.display()));
        if is_unavailable {
            self.shared.state().hang_up();
        }
    }

    /// Adds a person's message and returns its id. It is delivered repeatedly until the gateway accepts it.
    pub fn say(&self, conversation: &str, author: &str, text: &str) -> String {
        let mut state = self.shared.state();
        let said = PersonText {
            conversation: conversation.to_owned(),
            message_id: format!("said-{}", state.person_messages.len()),
            author: author.to_owned(),
            text: text.to_owned(),
        };
        let message_id = said.message_id.clone();
        state.person_messages.push(PersonMessage { said, taken: false, refused: None });
        let index = state.person_messages.len() - 1;
        let is_faulty = state.is_faulty;
        let how = if is_faulty { fate::draw_delivery(&mut state.seed) } else { fate::Delivery::AT_ONCE };
        for _ in 0..how.times {
            state.schedule(how.after, DueEvent::Deliver { said: index });
        }
        self.shared.changed.notify_all();
        message_id
    }

    /// Waits for the next final message and accepts it without ever answering; returns `false` if none came
    /// before the deadline.
    #[must_use]
    pub fn withhold_answer(&self, deadline: Duration) -> bool {
        let mut state = self.shared.state();
        state.hold = Hold::Wanted;
        let waited =
            self.shared.changed.wait_timeout_while(state, deadline, |state| state.hold != Hold::Held);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let is_held = state.hold == Hold::Held;
        state.hold = Hold::No;
        is_held
    }

    /// Number of people's messages in a conversation that are neither accepted nor refused yet.
    #[must_use]
    pub fn count_pending(&self, conversation: &str) -> usize {
        let open = |saying: &&PersonMessage| {
            saying.said.conversation == conversation && !saying.taken && saying.refused.is_none()
        };
        self.shared.state().person_messages.iter().filter(open).count()
    }

    /// Kind of the last message of a conversation.
    #[must_use]
    pub fn last_kind(&self, conversation: &str) -> Option<String> {
        let state = self.shared.state();
        state.conversations.get(conversation)?.last().map(|message| message.text.kind.clone())
    }

    /// Messages of all conversations, in order.
    #[must_use]
    pub fn conversations(&self) -> BTreeMap<String, Vec<Message>> {
        self.shared.state().conversations.clone()
    }

    /// All messages of people, in order.
    #[must_use]
    pub fn person_messages(&self) -> Vec<PersonMessage> {
        self.shared.state().person_messages.clone()
    }

    /// Counters so far.
    #[must_use]
    pub fn tally(&self) -> Tally {
        self.shared.state().tally.clone()
    }
}

impl fate::Delivery {
    const AT_ONCE: Self = Self { after: Duration::ZERO, times: 1 };
}

impl Drop for ChatService {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        state.is_over = true;
        state.hang_up();
        drop(state);
        self.shared.changed.notify_all();
        // Wakes the thread that waits for a connection, so that it sees `is_over`.
        let _ = UnixStream::connect(&self.socket);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Serves connections one after another, each to its end.
    fn serve(&self, listener: &UnixListener) {
        for stream in listener.incoming().flatten() {
            let Ok(read) = stream.try_clone() else { continue };
            {
                let mut state = self.state();
                if state.is_over {
                    return;
                }
                state.connected(stream);
            }
            self.changed.notify_all();
            for text in BufReader::new(read).lines() {
                // A truncated line is ignored.
                let Ok(ask) = text.map_err(drop).and_then(|text| serde_json::from_str(&text).map_err(drop))
                else {
                    break;
                };
                self.state().handle(ask);
                self.changed.notify_all();
            }
            self.state().disconnected();
        }
    }

    /// Executes due events.
    fn run_timers(&self) {
        let mut state = self.state();
        while !state.is_over {
            let now = Instant::now();
            state.run_due(now);
            let next = state.due.iter().map(|due| due.at).min();
            let wait = next.map_or(REDELIVERY_DELAY, |at| at.saturating_duration_since(Instant::now()));
            let waited = self.changed.wait_timeout(state, wait);
            (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl State {
    fn schedule(&mut self, after: Duration, what: DueEvent) {
        self.due.push(Due { at: Instant::now() + after, what });
    }

    fn connected(&mut self, stream: UnixStream) {
        let _ = stream.set_write_timeout(Some(WRITE_MAX));
        self.stream = Some(stream);
        self.connection += 1;
        self.tally.connections += 1;
        // Delivers open messages and a few others, in any order.
        let open: Vec<usize> = self.pending().collect();
        for said in open {
            let after = Duration::from_millis(if self.is_faulty { self.seed.below(60) } else { 0 });
            self.schedule(after, DueEvent::Deliver { said });
        }
        for _ in 0..if self.is_faulty { REPEATS } else { 0 } {
            let said = usize::try_from(self.seed.below(self.person_messages.len() as u64)).unwrap_or(0);
            if said < self.person_messages.len() {
                self.schedule(Duration::ZERO, DueEvent::Deliver { said });
            }
        }
    }

    fn pending(&self) -> impl Iterator<Item = usize> {
        let is_open = |(_, saying): &(usize, &PersonMessage)| !saying.taken && saying.refused.is_none();
        self.person_messages.iter().enumerate().filter(is_open).map(|(index, _)| index)
    }

    /// Ends the connection: each pending message is accepted or dropped at random, and its nonces are
    /// forgotten unless promised.
    fn disconnected(&mut self) {
        self.hang_up();
        let ended = self.connection;
        for due in std::mem::take(&mut self.due) {
            match due.what {
                DueEvent::Land { connection, text, .. } if connection == ended => {
                    if self.seed.below(2) == 0 {
                        self.accept(text);
                    }
                }
                DueEvent::Answer { connection, .. } if connection == ended => {}
                what => self.due.push(Due { what, ..due }),
            }
        }
        let promised = &self.promised;
        self.window.retain(|nonce, _| promised.contains(nonce));
    }

    fn hang_up(&mut self) {
        if let Some(stream) = self.stream.take() {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    fn transmit(&mut self, tell: &ToGateway) {
        if let Some(stream) = &mut self.stream
            && stream.write_all(line(tell).as_bytes()).is_err()
        {
            self.hang_up();
        }
    }

    fn run_due(&mut self, now: Instant) {
        self.due.sort_by_key(|due| due.at);
        let later = self.due.partition_point(|due| due.at <= now);
        let rest = self.due.split_off(later);
        for due in std::mem::replace(&mut self.due, rest) {
            match due.what {
                DueEvent::Answer { tell, .. } => self.transmit(&tell),
                DueEvent::Land { call, text, .. } => {
                    let message_id = self.accept(text);
                    self.transmit(&ToGateway::Sent { call, message_id });
                }
                DueEvent::Deliver { said } => self.deliver(said),
            }
        }
    }

    fn deliver(&mut self, index: usize) {
        let Some(saying) = self.person_messages.get(index) else { return };
        let tell = ToGateway::Said(saying.said.clone());
        let is_open = !saying.taken && saying.refused.is_none();
        if self.stream.is_some() {
            self.tally.deliveries += 1;
            self.transmit(&tell);
            // Repeats until it is acknowledged. Without a connection, the next connection starts with it.
            let asked =
                self.due.iter().any(|due| matches!(due.what, DueEvent::Deliver { said } if said == index));
            if is_open && !asked {
                self.schedule(REDELIVERY_DELAY, DueEvent::Deliver { said: index });
            }
        }
    }

    fn handle(&mut self, ask: ToService) {
        match ask {
            ToService::Hello { life } if life == self.life => {}
            ToService::Hello { life } => {
                self.life = life;
                self.window.clear();
                self.promised.clear();
            }
            ToService::Send { call, message } => self.send(call, message),
            ToService::Lookup { call, conversation, nonce } => self.lookup(call, &conversation, &nonce),
            ToService::Acknowledge { conversation, message_id, refused } => {
                let ours = |saying: &&mut PersonMessage| {
                    saying.said.conversation == conversation && saying.said.message_id == message_id
                };
                if let Some(saying) = self.person_messages.iter_mut().find(ours) {
                    saying.taken |= refused.is_none();
                    saying.refused = saying.refused.take().or(refused);
                }
            }
        }
    }

    fn send(&mut self, call: u64, text: Text) {
        if self.hold == Hold::Wanted && text.kind == "final" {
            self.hold = Hold::Held;
            self.count("held");
            self.accept(text);
            return;
        }
        let had = self.faults.get(&text.nonce).copied().unwrap_or(0);
        let fate = if self.is_faulty { fate::draw_send(&mut self.seed, had) } else { SendFate::Well };
        if fate != SendFate::Well {
            self.faults.insert(text.nonce.clone(), had + 1);
        }
        self.count(fate.word());
        let connection = self.connection;
        match fate {
            SendFate::Well => {
                let message_id = self.accept(text);
                self.transmit(&ToGateway::Sent { call, message_id });
            }
            SendFate::SlowAnswer(after) => {
                let message_id = self.accept(text);
                self.schedule(
                    after,
                    DueEvent::Answer { connection, tell: ToGateway::Sent { call, message_id } },
                );
            }
            SendFate::LostAnswer => drop(self.accept(text)),
            SendFate::LateLanding(after) => self.schedule(after, DueEvent::Land { connection, call, text }),
            SendFate::Lost => {}
            SendFate::Limited(after) => {
                let retry_after_ms = u64::try_from(after.as_millis()).unwrap_or(u64::MAX);
                self.transmit(&ToGateway::Limited { call, retry_after_ms });
            }
            SendFate::Unavailable => self.transmit(&ToGateway::Unavailable { call }),
            SendFate::CutAfter => {
                self.accept(text);
                self.hang_up();
            }
            SendFate::CutBefore => self.hang_up(),
        }
    }

    fn lookup(&mut self, call: u64, conversation: &str, nonce: &str) {
        self.tally.lookups += 1;
        let fate = if self.is_faulty { fate::draw_lookup(&mut self.seed) } else { LookupFate::Well };
        match fate {
            LookupFate::Well => {
                let mut held = self.conversations.get(conversation).into_iter().flatten();
                let found = held.rfind(|message| message.text.nonce == nonce);
                let message_id = found.map(|message| message.message_id.clone());
                if message_id.is_none() {
                    self.promised.insert(nonce.to_owned());
                }
                self.transmit(&ToGateway::Found { call, message_id });
            }
            LookupFate::Unknown => self.transmit(&ToGateway::Unknown { call }),
            LookupFate::Lost => {}
        }
    }

    /// Adds a message to its conversation, once per nonce of this connection, and returns its id.
    fn accept(&mut self, text: Text) -> String {
        if let Some(message_id) = self.window.get(&text.nonce) {
            self.tally.repeated += 1;
            return message_id.clone();
        }
        self.ids += 1;
        let message_id = format!("m{}", self.ids);
        self.window.insert(text.nonce.clone(), message_id.clone());
        let conversation = self.conversations.entry(text.conversation.clone()).or_default();
        conversation.push(Message { message_id: message_id.clone(), text });
        message_id
    }

    fn count(&mut self, fate: &'static str) {
        *self.tally.fates.entry(fate).or_default() += 1;
    }
}

impl SendFate {
    /// Name of the outcome in the counters.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Well => "well",
            Self::SlowAnswer(_) => "slow answer",
            Self::LostAnswer => "lost answer",
            Self::LateLanding(_) => "late landing",
            Self::Lost => "lost",
            Self::Limited(_) => "limited",
            Self::Unavailable => "unavailable",
            Self::CutAfter => "cut after",
            Self::CutBefore => "cut before",
        }
    }
}

#[cfg(test)]
mod tests;
