//! The service: strict, and forgetful only where chat services are.
//!
//! It takes a message once for each nonce, as long as the same connection lasts; one that comes again over
//! another connection is another message to it. So a gateway that was killed or cut off must look before it sends
//! again: a real service's window of minutes would hide most of what goes wrong there. A gateway that looked, and
//! was told that there is nothing, is safe until it dies: what lands later must not surprise it.
//!
//! A connection is read to its end, whatever became of the gateway, before the next one is served.

use super::fate::{self, LookFate, SendFate};
use super::wire::{Ask, Said, Tell, Text, line};
use crate::seed::Seed;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::{BufRead, BufReader, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What nobody acknowledged is brought again after this long.
const AGAIN: Duration = Duration::from_millis(700);
/// A gateway that does not read for so long loses its connection.
const WRITE_MAX: Duration = Duration::from_secs(1);
/// How many messages that were acknowledged are brought all the same over a new connection.
const REPEATS: u64 = 3;

/// A message as a conversation holds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// The service's id.
    pub message_id: String,
    /// What was sent.
    pub text: Text,
}

/// What a person said, and what became of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Saying {
    /// What was said, and where.
    pub said: Said,
    /// Whether the gateway took it.
    pub taken: bool,
    /// Why it did not.
    pub refused: Option<String>,
}

/// How often each thing happened.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tally {
    /// Sends by what became of them.
    pub fates: BTreeMap<&'static str, u64>,
    /// Looks for messages.
    pub looks: u64,
    /// Messages whose nonce had come over this connection.
    pub repeated: u64,
    /// How often something that a person said was brought.
    pub brought: u64,
    /// Connections.
    pub connections: u64,
}

/// The service, which lives in the test.
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

/// A send whose answer is kept back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hold {
    No,
    Wanted,
    Held,
}

/// Something that happens later.
#[derive(Debug)]
struct Due {
    at: Instant,
    what: What,
}

#[derive(Debug)]
enum What {
    /// An answer, over the connection of that number.
    Tell { connection: u64, tell: Tell },
    /// A message lands, and is answered.
    Land { connection: u64, call: u64, text: Text },
    /// Something said is brought.
    Bring { said: usize },
}

#[derive(Debug)]
struct State {
    seed: Seed,
    /// Whether things go wrong.
    is_wild: bool,
    is_over: bool,
    conversations: BTreeMap<String, Vec<Message>>,
    sayings: Vec<Saying>,
    /// The nonces of this connection.
    window: HashMap<String, String>,
    /// The nonces of which this gateway was told that there is no message.
    promised: HashSet<String>,
    /// Which gateway that is.
    life: u32,
    mishaps: HashMap<String, u32>,
    due: Vec<Due>,
    stream: Option<UnixStream>,
    connection: u64,
    hold: Hold,
    ids: u64,
    tally: Tally,
}

impl ChatService {
    /// Listens at `socket`; what goes wrong follows from `seed`.
    ///
    /// # Panics
    /// When it cannot.
    #[must_use]
    pub fn start(socket: &Path, seed: Seed) -> Self {
        let listener = UnixListener::bind(socket).unwrap_or_else(|e| panic!("{}: {e}", socket.display()));
        let state = State {
            seed,
            is_wild: false,
            is_over: false,
            conversations: BTreeMap::new(),
            sayings: Vec::new(),
            window: HashMap::new(),
            promised: HashSet::new(),
            life: 0,
            mishaps: HashMap::new(),
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
            std::thread::spawn(move || timing.keep_time()),
        ];
        Self { shared, socket: socket.to_owned(), threads }
    }

    /// From now on things go wrong, or not any more.
    pub fn set_wild(&self, is_wild: bool) {
        self.shared.state().is_wild = is_wild;
    }

    /// The whole service is away, as far as anybody who asks for it can tell, or back. What people say meanwhile is
    /// brought then.
    ///
    /// # Panics
    /// When the socket cannot be moved.
    pub fn set_away(&self, is_away: bool) {
        let aside = self.socket.with_extension("away");
        let (from, to) = if is_away { (&self.socket, &aside) } else { (&aside, &self.socket) };
        std::fs::rename(from, to).unwrap_or_else(|e| panic!("{}: {e}", from.display()));
        if is_away {
            self.shared.state().hang_up();
        }
    }

    /// A person says something; its id. It is brought to the gateway until that takes it.
    pub fn say(&self, conversation: &str, author: &str, text: &str) -> String {
        let mut state = self.shared.state();
        let said = Said {
            conversation: conversation.to_owned(),
            message_id: format!("said-{}", state.sayings.len()),
            author: author.to_owned(),
            text: text.to_owned(),
        };
        let message_id = said.message_id.clone();
        state.sayings.push(Saying { said, taken: false, refused: None });
        let index = state.sayings.len() - 1;
        let is_wild = state.is_wild;
        let how = if is_wild { fate::of_said(&mut state.seed) } else { fate::Bringing::AT_ONCE };
        for _ in 0..how.times {
            state.later(how.after, What::Bring { said: index });
        }
        self.shared.changed.notify_all();
        message_id
    }

    /// Keeps back the answer to the next final message, which lands, and waits until there is one; false when none came.
    /// Nobody ever gets that answer.
    #[must_use]
    pub fn hold_an_answer(&self, deadline: Duration) -> bool {
        let mut state = self.shared.state();
        state.hold = Hold::Wanted;
        let waited =
            self.shared.changed.wait_timeout_while(state, deadline, |state| state.hold != Hold::Held);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let is_held = state.hold == Hold::Held;
        state.hold = Hold::No;
        is_held
    }

    /// How much of what people said in a conversation was not taken yet.
    #[must_use]
    pub fn waiting(&self, conversation: &str) -> usize {
        let open = |saying: &&Saying| {
            saying.said.conversation == conversation && !saying.taken && saying.refused.is_none()
        };
        self.shared.state().sayings.iter().filter(open).count()
    }

    /// What kind the last message of a conversation is of.
    #[must_use]
    pub fn last_kind(&self, conversation: &str) -> Option<String> {
        let state = self.shared.state();
        state.conversations.get(conversation)?.last().map(|message| message.text.kind.clone())
    }

    /// What every conversation holds, in order.
    #[must_use]
    pub fn conversations(&self) -> BTreeMap<String, Vec<Message>> {
        self.shared.state().conversations.clone()
    }

    /// What people said, in order.
    #[must_use]
    pub fn sayings(&self) -> Vec<Saying> {
        self.shared.state().sayings.clone()
    }

    /// What happened so far.
    #[must_use]
    pub fn tally(&self) -> Tally {
        self.shared.state().tally.clone()
    }
}

impl fate::Bringing {
    const AT_ONCE: Self = Self { after: Duration::ZERO, times: 1 };
}

impl Drop for ChatService {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        state.is_over = true;
        state.hang_up();
        drop(state);
        self.shared.changed.notify_all();
        // Whoever waits for the next connection gets one, and looks.
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

    /// One connection after the other, each to its end.
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
                // What was cut off in the middle never came.
                let Ok(ask) = text.map_err(drop).and_then(|text| serde_json::from_str(&text).map_err(drop))
                else {
                    break;
                };
                self.state().hear(ask);
                self.changed.notify_all();
            }
            self.state().disconnected();
        }
    }

    /// Does what is due.
    fn keep_time(&self) {
        let mut state = self.state();
        while !state.is_over {
            let now = Instant::now();
            state.do_due(now);
            let next = state.due.iter().map(|due| due.at).min();
            let wait = next.map_or(AGAIN, |at| at.saturating_duration_since(Instant::now()));
            let waited = self.changed.wait_timeout(state, wait);
            (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl State {
    fn later(&mut self, after: Duration, what: What) {
        self.due.push(Due { at: Instant::now() + after, what });
    }

    fn connected(&mut self, stream: UnixStream) {
        let _ = stream.set_write_timeout(Some(WRITE_MAX));
        self.stream = Some(stream);
        self.connection += 1;
        self.tally.connections += 1;
        // What is open, and a little of what is not, in any order.
        let open: Vec<usize> = self.open().collect();
        for said in open {
            let after = Duration::from_millis(if self.is_wild { self.seed.below(60) } else { 0 });
            self.later(after, What::Bring { said });
        }
        for _ in 0..if self.is_wild { REPEATS } else { 0 } {
            let said = usize::try_from(self.seed.below(self.sayings.len() as u64)).unwrap_or(0);
            if said < self.sayings.len() {
                self.later(Duration::ZERO, What::Bring { said });
            }
        }
    }

    fn open(&self) -> impl Iterator<Item = usize> {
        let is_open = |(_, saying): &(usize, &Saying)| !saying.taken && saying.refused.is_none();
        self.sayings.iter().enumerate().filter(is_open).map(|(index, _)| index)
    }

    /// The connection is at its end: what is under way lands or does not, and what it knew is forgotten.
    fn disconnected(&mut self) {
        self.hang_up();
        let ended = self.connection;
        for due in std::mem::take(&mut self.due) {
            match due.what {
                What::Land { connection, text, .. } if connection == ended => {
                    if self.seed.below(2) == 0 {
                        self.land(text);
                    }
                }
                What::Tell { connection, .. } if connection == ended => {}
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

    fn tell(&mut self, tell: &Tell) {
        if let Some(stream) = &mut self.stream
            && stream.write_all(line(tell).as_bytes()).is_err()
        {
            self.hang_up();
        }
    }

    fn do_due(&mut self, now: Instant) {
        self.due.sort_by_key(|due| due.at);
        let later = self.due.partition_point(|due| due.at <= now);
        let rest = self.due.split_off(later);
        for due in std::mem::replace(&mut self.due, rest) {
            match due.what {
                What::Tell { tell, .. } => self.tell(&tell),
                What::Land { call, text, .. } => {
                    let message_id = self.land(text);
                    self.tell(&Tell::Sent { call, message_id });
                }
                What::Bring { said } => self.bring(said),
            }
        }
    }

    fn bring(&mut self, index: usize) {
        let Some(saying) = self.sayings.get(index) else { return };
        let tell = Tell::Said(saying.said.clone());
        let is_open = !saying.taken && saying.refused.is_none();
        if self.stream.is_some() {
            self.tally.brought += 1;
            self.tell(&tell);
            // Until it is acknowledged. Without a connection, the next one begins with it.
            let asked = self.due.iter().any(|due| matches!(due.what, What::Bring { said } if said == index));
            if is_open && !asked {
                self.later(AGAIN, What::Bring { said: index });
            }
        }
    }

    fn hear(&mut self, ask: Ask) {
        match ask {
            Ask::Hello { life } if life == self.life => {}
            Ask::Hello { life } => {
                self.life = life;
                self.window.clear();
                self.promised.clear();
            }
            Ask::Send { call, message } => self.send(call, message),
            Ask::Lookup { call, conversation, nonce } => self.look(call, &conversation, &nonce),
            Ask::Acknowledge { conversation, message_id, refused } => {
                let ours = |saying: &&mut Saying| {
                    saying.said.conversation == conversation && saying.said.message_id == message_id
                };
                if let Some(saying) = self.sayings.iter_mut().find(ours) {
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
            self.land(text);
            return;
        }
        let had = self.mishaps.get(&text.nonce).copied().unwrap_or(0);
        let fate = if self.is_wild { fate::of_send(&mut self.seed, had) } else { SendFate::Well };
        if fate != SendFate::Well {
            self.mishaps.insert(text.nonce.clone(), had + 1);
        }
        self.count(fate.word());
        let connection = self.connection;
        match fate {
            SendFate::Well => {
                let message_id = self.land(text);
                self.tell(&Tell::Sent { call, message_id });
            }
            SendFate::SlowAnswer(after) => {
                let message_id = self.land(text);
                self.later(after, What::Tell { connection, tell: Tell::Sent { call, message_id } });
            }
            SendFate::LostAnswer => drop(self.land(text)),
            SendFate::LateLanding(after) => self.later(after, What::Land { connection, call, text }),
            SendFate::Lost => {}
            SendFate::Limited(after) => {
                let retry_after_ms = u64::try_from(after.as_millis()).unwrap_or(u64::MAX);
                self.tell(&Tell::Limited { call, retry_after_ms });
            }
            SendFate::Unavailable => self.tell(&Tell::Unavailable { call }),
            SendFate::CutAfter => {
                self.land(text);
                self.hang_up();
            }
            SendFate::CutBefore => self.hang_up(),
        }
    }

    fn look(&mut self, call: u64, conversation: &str, nonce: &str) {
        self.tally.looks += 1;
        let fate = if self.is_wild { fate::of_look(&mut self.seed) } else { LookFate::Well };
        match fate {
            LookFate::Well => {
                let mut held = self.conversations.get(conversation).into_iter().flatten();
                let found = held.rfind(|message| message.text.nonce == nonce);
                let message_id = found.map(|message| message.message_id.clone());
                if message_id.is_none() {
                    self.promised.insert(nonce.to_owned());
                }
                self.tell(&Tell::Found { call, message_id });
            }
            LookFate::Unknown => self.tell(&Tell::Unknown { call }),
            LookFate::Lost => {}
        }
    }

    /// Puts a message into its conversation, once for each nonce of this connection; its id.
    fn land(&mut self, text: Text) -> String {
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
    /// The word in tallies.
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
