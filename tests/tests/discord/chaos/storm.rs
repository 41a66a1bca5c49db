//! Runs a plan on real processes and records the judge's input.

use super::judge::{ASKS, Amended, Case, Said, Strike, is_open};
use super::plan::{self, Blow, Change, Step, Turn, Which, anew, token};
use crate::stage::{CREATE, Stage, button, labels};
use acp_tests::fake_discord::core::faults::{RestFate, When};
use acp_tests::fake_discord::core::model::{Id, Message};
use acp_tests::fake_discord::core::stage::SocketAct;
use acp_tests::house::Plan as HousePlan;
use acp_tests::processes::{Process, ProcessHandle};
use acp_tests::wait::{LONG, SOON, eventually, until, wait_until_instant};
use acp_tests::world::is_wrapper;
use rustix::process::Signal;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const MORE: &str = "[acp]\nmax_concurrent_sessions = 20\nmax_concurrent_sessions_per_account = 20\n\
    [acp.stream]\ndelivery_mode = \"live\"\nmin_interval_ms = 500\ncoalesce_idle_ms = 750\n";
/// Crashes are intended here: no crash back-off.
const SUPERVISOR: &str = "reap_term_ms = 300\ncrash_backoff_ms = 0\ncrashes_max = 0\n";
/// Maximum wait for a message between whose storage and receipt the gateway can be killed.
const CATCH: Duration = Duration::from_secs(8);
/// Deadline for the acknowledgement of a press, in milliseconds.
const PRESS_MS: u64 = 3_000;
/// Messages later than this after a kill are not affected by it.
const AFTERMATH_MS: u64 = 3_000;

/// Milliseconds since 1970, by the clock that the fake has too.
#[expect(clippy::disallowed_methods, reason = "a program of the tests has no other clock")]
fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// State of a run.
pub(super) struct Storm {
    pub(super) stage: Stage,
    threads: Vec<Id>,
    /// Working directory of each thread's agent.
    dirs: Vec<PathBuf>,
    said: Vec<Said>,
    /// Message ids of `said`.
    messages: Vec<Id>,
    strikes: Vec<Strike>,
    before: BTreeSet<Id>,
    /// The last press on each question.
    pressed: BTreeMap<Id, Id>,
    /// Messages that Discord had stored when the gateway was killed before their receipt.
    pub(super) between: BTreeSet<Id>,
    /// Counts of faults and actions.
    pub(super) tally: BTreeMap<&'static str, usize>,
}

impl Storm {
    /// Starts a session in each of `threads` threads.
    pub(super) fn new(threads: usize) -> Self {
        let stage = Stage::built(HousePlan::flags(&[]).supervisor(SUPERVISOR), MORE);
        let dirs: Vec<String> = (0..threads).map(|number| format!("work/room-{number}")).collect();
        let threads: Vec<Id> = dirs.iter().map(|dir| stage.spawn_in(dir)).collect();
        let dirs = dirs.iter().map(|dir| stage.house.world.path(dir)).collect();
        let before = stage.fake.whole_transcript().iter().map(|message| message.id).collect();
        let (said, messages, strikes) = (Vec::new(), Vec::new(), Vec::new());
        let (between, tally) = (BTreeSet::new(), BTreeMap::new());
        let pressed = BTreeMap::new();
        Self { stage, threads, dirs, said, messages, strikes, before, pressed, between, tally }
    }

    fn count(&mut self, what: &'static str) {
        *self.tally.entry(what).or_default() += 1;
    }

    /// Posts a message.
    pub(super) fn say(&mut self, thread: usize, token: String, turn: &Turn) {
        let (thread, at_ms, delayed) = (self.threads[thread], now_ms(), self.delayed());
        self.messages.push(self.stage.fake.post(self.stage.ann, thread, &turn.prompt));
        let may_be_late = self.delayed() > delayed;
        let Turn { prompt, answer, asks } = turn.clone();
        self.said.push(Said { thread, token, prompt, answer, at_ms, asks, may_be_late, amended: None });
    }

    /// Edits or deletes the last message of a thread, or the one before it; at most once each.
    fn amend(&mut self, thread: usize, change: Change, is_before: bool) {
        let thread = self.threads[thread];
        let mut there = (0..self.said.len()).rev().filter(|at| self.said[*at].thread == thread);
        let Some(at) = there.nth(usize::from(is_before)) else { return };
        let (said, message) = (&mut self.said[at], self.messages[at]);
        if said.amended.is_some() {
            return;
        }
        let what = match change {
            Change::Delete => {
                self.stage.fake.delete(message);
                said.amended = Some(Amended::Deleted);
                "deletions"
            }
            Change::Edit => {
                let token = anew(&said.token);
                let Turn { prompt, answer, .. } = Turn::quick(&token);
                self.stage.fake.edit(message, &prompt);
                said.amended = Some(Amended::Changed { token, prompt, answer });
                "edits"
            }
        };
        self.count(what);
    }

    /// Applies the step's change if this is its moment.
    fn amend_at(&mut self, step: &Step, is_struck: bool) {
        match step.amend {
            Some(amend) if is_struck != (amend.when == plan::When::AtOnce) => {
                self.amend(step.thread, amend.change, amend.when == plan::When::Before);
            }
            _ => {}
        }
    }

    /// Presses the first button of every open permission request as an approver. Acknowledged presses are never repeated;
    /// a press without acknowledgement in time has visibly failed and is repeated.
    fn press_all(&mut self) {
        if !self.said.iter().any(|said| said.asks) {
            return;
        }
        let all = self.stage.fake.whole_transcript();
        let asks = |message: &&Message| {
            message.author_id == self.stage.bot.user && message.content.starts_with(ASKS)
        };
        let interactions = self.stage.fake.interactions();
        let is_taken = |used: &Id| {
            let found = interactions.iter().find(|interaction| interaction.id == *used);
            found.is_some_and(|it| it.answered.is_some() || now_ms() < it.created_ms + PRESS_MS)
        };
        let open = all.iter().filter(asks).filter_map(|it| Some((it, labels(it).into_iter().next()?)));
        let open = open.filter(|(message, _)| !self.pressed.get(&message.id).is_some_and(is_taken));
        for (message, label) in open.collect::<Vec<_>>() {
            // The request may have been answered in the meantime.
            let used = self.stage.fake.click(self.stage.boss, message.id, &button(message, &label));
            if let Ok(used) = used {
                self.pressed.insert(message.id, used.id);
                self.count("presses");
            }
        }
    }

    /// Number of late or missing message events since Discord's process started.
    fn delayed(&self) -> u64 {
        let faults = self.stage.fake.tally().event_faults;
        ["drop", "odd", "overtaken"].iter().filter_map(|name| faults.get(*name)).sum()
    }

    pub(super) fn step(&mut self, number: usize, step: &Step) {
        wait_until_instant(Instant::now() + step.pause);
        self.press_all();
        let token = token(step.thread, number);
        let (blow, turn) = (step.blow, &step.turn);
        match blow {
            // The fault affects the message of this step.
            Blow::Event(fate) => {
                self.stage.fake.event_fault("MESSAGE_CREATE", When::Next(1), fate);
                if let Some(amend) = step.amend {
                    let event = match amend.change {
                        Change::Delete => "MESSAGE_DELETE",
                        Change::Edit => "MESSAGE_UPDATE",
                    };
                    self.stage.fake.event_fault(event, When::Next(1), fate);
                }
                self.count("events");
            }
            Blow::Request(fate, which) => {
                let (route, times) = match which {
                    Which::Create => (CREATE, 1),
                    Which::Any => ("*", 3),
                };
                self.stage.fake.rest_fault(route, When::Next(times), fate);
                self.count("requests");
            }
            Blow::Between => self.stage.fake.hold_answer(true),
            _ => {}
        }
        self.say(step.thread, token, turn);
        self.amend_at(step, false);
        self.strike(step);
        self.amend_at(step, true);
    }

    fn strike(&mut self, step: &Step) {
        match step.blow {
            Blow::Nothing | Blow::Event(_) | Blow::Request(..) => {}
            Blow::Between => self.kill_between(),
            Blow::Gateway => {
                self.kill_gateway();
                self.stage.house.start_gateway();
            }
            Blow::GatewayTwice => {
                self.kill_gateway();
                self.stage.house.start_gateway();
                wait_until_instant(Instant::now() + step.time);
                self.kill_gateway();
                self.stage.house.start_gateway();
            }
            Blow::GatewayStopped => self.stop(self.stage.house.gateway().pid(), step.time * 3),
            Blow::Supervisor => {
                let from_ms = self.kill_supervisor();
                wait_until_instant(Instant::now() + step.time);
                self.start_supervisor(from_ms);
            }
            Blow::Both => {
                let from_ms = self.kill_supervisor();
                self.kill_gateway();
                self.start_supervisor(from_ms);
                self.stage.house.start_gateway();
            }
            Blow::SupervisorStopped => self.stop(self.stage.house.supervisor().pid(), step.time * 3),
            Blow::Agent | Blow::Wrapper | Blow::AgentStopped => self.strike_agent(step),
            Blow::Discord | Blow::DiscordAndGateway => {
                self.count("kills of Discord");
                self.stage.fake.kill();
                if step.blow == Blow::DiscordAndGateway {
                    self.kill_gateway();
                    self.stage.house.start_gateway();
                }
                wait_until_instant(Instant::now() + step.time * 2);
                self.stage.fake.restart();
            }
            Blow::DiscordStopped => {
                let pid = self.stage.fake.pid().and_then(|pid| i32::try_from(pid).ok());
                self.stop(pid.unwrap_or_else(|| panic!("Discord is not there")), step.time * 2);
            }
            Blow::DiscordAway => {
                self.count("times away");
                self.stage.fake.set_unavailable(true);
                wait_until_instant(Instant::now() + step.time * 3);
                self.stage.fake.set_unavailable(false);
            }
            Blow::Socket(act) => {
                self.count("connections");
                self.stage.fake.sockets(None, act);
            }
            Blow::NoSession => {
                self.count("connections");
                self.stage.fake.refuse_sessions(1);
                self.stage.fake.sockets(None, SocketAct::InvalidSession { resumable: false });
            }
        }
    }

    fn kill_gateway(&mut self) {
        self.stage.house.kill_gateway();
        self.count("kills of the gateway");
    }

    fn kill_supervisor(&mut self) -> u64 {
        let from_ms = now_ms();
        self.stage.house.kill_supervisor();
        self.count("kills of the supervisor");
        from_ms
    }

    /// Starts the supervisor; its agents died with it, and none can start before it is back.
    fn start_supervisor(&mut self, from_ms: u64) {
        self.stage.house.start_supervisor();
        self.strikes.push(Strike { thread: None, from_ms, until_ms: now_ms() + AFTERMATH_MS });
    }

    /// Kills the gateway between a stored message and its receipt: the response is held and never sent.
    fn kill_between(&mut self) {
        let end = Instant::now() + CATCH;
        let held = eventually(2 * CATCH, "message stored", || {
            let held = self.stage.fake.underway().held.first().copied();
            (held.is_some() || Instant::now() > end).then_some(held)
        });
        if let Some(id) = held {
            self.kill_gateway();
            until(SOON, "client disconnected", || self.stage.fake.underway().unreceived.contains(&id));
            self.between.insert(id);
        } else {
            self.count("kills that found no message");
        }
        self.stage.fake.hold_answer(false);
        if held.is_some() {
            self.stage.house.start_gateway();
        }
    }

    /// Stops a process for a while.
    fn stop(&mut self, pid: i32, time: Duration) {
        // An unreaped child: its pid cannot be reused.
        if let Some(held) = ProcessHandle::open(pid) {
            self.stop_held(&held, time);
        }
    }

    fn stop_held(&mut self, held: &ProcessHandle, time: Duration) {
        if held.signal(Signal::STOP) {
            wait_until_instant(Instant::now() + time);
            let _ = held.signal(Signal::CONT);
            self.count("stops");
        }
    }

    /// Thread of an agent, or of a wrapper's agent.
    fn thread_of(&self, process: &Process, all: &[Process]) -> Option<Id> {
        let agent = match is_wrapper(process) {
            true => all.iter().find(|other| other.ppid == process.pid)?,
            false => process,
        };
        let dir = std::fs::read_link(format!("/proc/{}/cwd", agent.pid)).ok()?;
        let number = self.dirs.iter().position(|room| *room == dir)?;
        self.threads.get(number).copied()
    }

    fn strike_agent(&mut self, step: &Step) {
        let all = self.stage.house.world.agents();
        let wanted = |process: &&Process| match step.blow {
            Blow::Agent => !is_wrapper(process),
            Blow::Wrapper => is_wrapper(process),
            _ => true,
        };
        // Only processes whose thread is known.
        let found: Vec<(&Process, Id)> =
            all.iter().filter(wanted).filter_map(|it| Some((it, self.thread_of(it, &all)?))).collect();
        let at = usize::try_from(step.draw % (found.len() as u64).max(1)).unwrap_or_default();
        let Some((process, thread)) = found.get(at) else { return };
        let Some(held) = self.stage.house.world.open_process(process) else { return };
        if step.blow == Blow::AgentStopped {
            return self.stop_held(&held, step.time * 3);
        }
        let strike = Strike { thread: Some(*thread), from_ms: now_ms(), until_ms: now_ms() + AFTERMATH_MS };
        if held.kill() {
            self.strikes.push(strike);
            self.count(if is_wrapper(process) { "kills of wrappers" } else { "kills of agents" });
        }
    }

    /// Ends all faults and posts one more message in each thread: when it is answered, all earlier ones were handled.
    pub(super) fn settle(&mut self, number: usize) {
        let fake = &self.stage.fake;
        fake.hold_answer(false);
        fake.clear_faults();
        // A new gateway session triggers a backfill of missed messages.
        fake.sockets(None, SocketAct::InvalidSession { resumable: false });
        self.stage.is_there();
        let last: Vec<String> =
            (0..self.threads.len()).map(|thread| token(thread, number + thread)).collect();
        for (thread, token) in last.iter().enumerate() {
            self.say(thread, token.clone(), &Turn::quick(token));
        }
        let end = Instant::now() + LONG;
        until(2 * LONG, "last answers shown", || {
            self.press_all();
            let is_told = |(thread, token): (&Id, &String)| {
                self.stage.finals(*thread).iter().any(|text| text.contains(token.as_str()))
            };
            // The judge reports what is missing then.
            self.threads.iter().zip(&last).all(is_told) || Instant::now() > end
        });
        until(SOON, "no late request pending", || self.stage.fake.underway().late == 0);
        // Cards are folded and buttons removed after their turns.
        let end = Instant::now() + SOON;
        until(2 * SOON, "cards folded and buttons removed", || {
            let open = |it: &Message| !labels(it).is_empty() || is_open(&it.content);
            let is_over = |thread: &Id| !self.stage.told(*thread).iter().any(open);
            self.threads.iter().all(is_over) || Instant::now() > end
        });
    }

    /// Ends everything, restarts Discord, and returns the judge's input with the stored transcript.
    pub(super) fn end(self) -> (Case, Vec<Message>) {
        let mut received = BTreeMap::new();
        for entry in self.stage.house.agent_events("prompt") {
            *received.entry(entry["text"].as_str().unwrap_or_default().to_owned()).or_default() += 1;
        }
        let mut presses = BTreeMap::new();
        for pressed in self.stage.fake.interactions().iter().filter(|it| it.message_id.is_some()) {
            *presses.entry(pressed.channel_id).or_default() += 1;
        }
        let case = Case {
            bot: self.stage.bot.user,
            parent: self.stage.channel,
            threads: self.threads,
            before: self.before,
            said: self.said,
            presses,
            strikes: self.strikes,
            received,
        };
        let mut kept = Vec::new();
        self.stage.end_and_look(|fake| {
            fake.restart();
            kept = fake.whole_transcript();
        });
        (case, kept)
    }

    /// Waits until a request fault struck.
    pub(super) fn until_struck(&self) {
        until(SOON, "request fault struck", || !self.stage.fake.tally().rest_faults.is_empty());
    }

    /// Applies this fault to the next request that creates a message.
    pub(super) fn next_create(&self, fate: RestFate) {
        self.stage.fake.rest_fault(CREATE, When::Next(1), fate);
    }
}
