//! What is said and what is struck, all of it drawn from a seed before anything begins.

use acp_tests::fake_agent::chunk_text;
use acp_tests::fake_discord::core::faults::{EventFate, RestFate, Scope};
use acp_tests::fake_discord::core::stage::SocketAct;
use acp_tests::seed::Seed;
use std::time::Duration;

/// Threads of a run.
pub(super) const THREADS: usize = 10;
/// The longest pause before a step, and the base of times within one, in milliseconds.
const PAUSE_MS: u64 = 150;
const TIME_MS: u64 = 400;
/// Of so many messages one is changed or deleted.
const AMENDS_ONE_IN: u64 = 4;

/// What is struck in a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Blow {
    /// Nothing.
    Nothing,
    /// The gateway is killed when Discord has kept a message of which the gateway has not heard.
    Between,
    /// The gateway is killed, wherever it is.
    Gateway,
    /// The gateway is killed, and killed again soon after it began to serve.
    GatewayTwice,
    /// The gateway is stopped for a while.
    GatewayStopped,
    /// The supervisor is killed, and comes back after a while.
    Supervisor,
    /// The supervisor and the gateway are killed.
    Both,
    /// The supervisor is stopped for a while.
    SupervisorStopped,
    /// An agent is killed.
    Agent,
    /// The wrapper of an agent is killed.
    Wrapper,
    /// An agent or a wrapper is stopped for a while.
    AgentStopped,
    /// Discord is killed, and comes back after a while with what it had kept.
    Discord,
    /// The same, and the gateway dies and starts while Discord is not there.
    DiscordAndGateway,
    /// Discord's process is stopped for a while.
    DiscordStopped,
    /// Discord answers 503 and resets connections for a while.
    DiscordAway,
    /// Something becomes of the next request: of one that makes a message, or of the next few of any kind.
    Request(RestFate, Which),
    /// Something becomes of the next event that tells of a message.
    Event(EventFate),
    /// Something is done to the connection on which events come.
    Socket(SocketAct),
    /// The session of events is over, and so is the next one that is asked for.
    NoSession,
}

/// Which requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Which {
    /// The next one that makes a message.
    Create,
    /// The next three, whatever they are.
    Any,
}

/// How often each kind of blow comes among a hundred.
fn shares(seed: &mut Seed) -> Vec<Blow> {
    let many = |blow: Blow, count: usize| std::iter::repeat_n(blow, count);
    let plain = [
        (Blow::Between, 32),
        (Blow::Nothing, 5),
        (Blow::Gateway, 6),
        (Blow::GatewayTwice, 2),
        (Blow::GatewayStopped, 3),
        (Blow::Supervisor, 2),
        (Blow::Both, 1),
        (Blow::SupervisorStopped, 3),
        (Blow::Agent, 5),
        (Blow::Wrapper, 3),
        (Blow::AgentStopped, 3),
        (Blow::Discord, 3),
        (Blow::DiscordAndGateway, 2),
        (Blow::DiscordStopped, 2),
        (Blow::DiscordAway, 2),
        (Blow::NoSession, 1),
    ];
    let mut deck: Vec<Blow> = plain.into_iter().flat_map(|(blow, count)| many(blow, count)).collect();
    let mut ms = |from: u64, to: u64| from + seed.below(to - from);
    let limited = |retry_after_ms, scope| RestFate::RateLimited { retry_after_ms, scope };
    deck.extend(
        [
            (limited(ms(100, 1_500), Scope::User), Which::Create),
            (limited(ms(100, 1_500), Scope::Shared), Which::Create),
            (limited(ms(100, 1_500), Scope::Global), Which::Create),
            (limited(ms(100, 1_000), Scope::User), Which::Any),
            (RestFate::LostBefore, Which::Create),
            (RestFate::LostBefore, Which::Any),
            (RestFate::LostAfter, Which::Create),
            (RestFate::LostAfter, Which::Any),
            (RestFate::Late { ms: ms(300, 3_000) }, Which::Create),
            (RestFate::Late { ms: ms(300, 3_000) }, Which::Create),
            (RestFate::ErrorBefore { status: 500 }, Which::Create),
            (RestFate::ErrorBefore { status: 503 }, Which::Any),
            (RestFate::ErrorAfter { status: 502 }, Which::Create),
            (RestFate::ErrorAfter { status: 504 }, Which::Any),
            (RestFate::StallBefore { ms: Some(ms(200, 2_000)) }, Which::Create),
            (RestFate::StallAfter { ms: Some(ms(200, 2_000)) }, Which::Create),
        ]
        .map(|(fate, which)| Blow::Request(fate, which)),
    );
    deck.extend(
        [
            EventFate::Drop,
            EventFate::Duplicate,
            EventFate::Overtaken,
            EventFate::Odd,
            EventFate::ResetInstead,
            EventFate::ResetAfter,
        ]
        .map(Blow::Event),
    );
    deck.extend(
        [SocketAct::Reset, SocketAct::Reconnect, SocketAct::InvalidSession { resumable: false }]
            .map(Blow::Socket),
    );
    deck
}

/// A turn that somebody asks for, and what the agent says in it when nothing befalls it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Turn {
    /// What is said to the agent.
    pub(super) prompt: String,
    /// What it answers.
    pub(super) answer: String,
    /// The agent asks for a permission in it.
    pub(super) asks: bool,
}

/// What is in one turn and in its answer, and nowhere else.
pub(super) fn token(thread: usize, number: usize) -> String {
    format!("tok-{thread}-{number}")
}

impl Turn {
    /// One that takes no time.
    pub(super) fn quick(token: &str) -> Self {
        Self { prompt: format!("say {token}."), answer: format!("{token}."), asks: false }
    }

    fn draw(seed: &mut Seed, token: &str) -> Self {
        let (begins, ends) = (format!("{token} begins "), format!(" {token} ends"));
        let say = |what: String, middle: String| Self {
            prompt: format!("say {token} begins \\n\n{what}\nsay \\n{token} ends"),
            answer: format!("{begins}\n{middle}\n{ends}"),
            asks: false,
        };
        let pieces = |count: u64, pace: u64, size: usize| {
            let middle: String = (1..=count).map(|number| chunk_text(number, size)).collect();
            say(format!("chunks {count} pace_ms={pace} size={size}"), middle)
        };
        match seed.below(10) {
            0..2 => Self::quick(token),
            2 => {
                let allowed = "permission: selected allow_once".to_owned();
                Self { asks: true, ..say(format!("permission {token}"), allowed) }
            }
            3..6 => say(format!("sleep {}", seed.below(1_200)), String::new()),
            6..8 => pieces(1 + seed.below(30), seed.below(30), 40),
            8 => say("tool run true".to_owned(), String::new()),
            // Several messages.
            _ => pieces(40 + seed.below(30), seed.below(10), 90),
        }
    }
}

/// What somebody does with a message that they said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    /// They take it back.
    Delete,
    /// They give it another text, see [`anew`].
    Edit,
}

/// When they do that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum When {
    /// As soon as it is said, before something is struck.
    AtOnce,
    /// After something was struck.
    AfterBlow,
    /// Then too, with the message before it in that thread.
    Before,
}

/// That somebody changes what they said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Amend {
    pub(super) change: Change,
    pub(super) when: When,
}

impl Amend {
    /// One that the gateway may die of must bring an answer soon: it stays until then.
    fn draw(seed: &mut Seed, blow: Blow) -> Self {
        let change = if seed.below(2) == 0 { Change::Delete } else { Change::Edit };
        let when = match seed.below(6) {
            0..3 if blow != Blow::Between => When::AtOnce,
            0..4 => When::AfterBlow,
            _ => When::Before,
        };
        Self { change, when }
    }
}

/// The token of what a message is changed to.
pub(super) fn anew(token: &str) -> String {
    format!("{token}-anew")
}

/// One step: somebody says something, and something is struck.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Step {
    /// How long it is quiet before.
    pub(super) pause: Duration,
    /// Where it is said.
    pub(super) thread: usize,
    /// What is said.
    pub(super) turn: Turn,
    /// What they do with it.
    pub(super) amend: Option<Amend>,
    /// What is struck.
    pub(super) blow: Blow,
    /// How long what takes a while takes.
    pub(super) time: Duration,
    /// Which of several.
    pub(super) draw: u64,
}

/// All steps of a run, in order. Each hundred of them holds every kind of blow as often as it should come.
pub(super) fn plan(mut seed: Seed, turns: usize) -> Vec<Step> {
    let mut deck = Vec::new();
    let mut steps: Vec<Step> = Vec::new();
    for number in 0..turns {
        if deck.is_empty() {
            deck = shares(&mut seed);
        }
        let at = usize::try_from(seed.below(deck.len() as u64)).unwrap_or_default();
        let blow = deck.swap_remove(at);
        let pause = seed.time_below(Duration::from_millis(PAUSE_MS));
        let time = seed.time_below(Duration::from_millis(TIME_MS));
        let mut thread = usize::try_from(seed.below(THREADS as u64)).unwrap_or_default();
        let amend = (seed.below(AMENDS_ONE_IN) == 0).then(|| Amend::draw(&mut seed, blow));
        if let (Some(_), Some(last)) = (amend, steps.last()) {
            // Where it may have to wait for its turn.
            thread = last.thread;
        }
        let mut turn = Turn::draw(&mut seed, &token(thread, number));
        if blow == Blow::Between {
            // Something to be killed at comes soon.
            turn = Turn::quick(&token(thread, number));
        }
        steps.push(Step { pause, thread, turn, amend, blow, time, draw: seed.number() });
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_seed_gives_same_plan() {
        let of = |seed| plan(Seed::from_number(seed), 500);
        assert_eq!(of(7), of(7));
        assert_ne!(of(7), of(8));
    }

    #[test]
    fn five_hundred_turns_contain_every_fault_and_enough_kills() {
        for seed in 0..20 {
            let steps = plan(Seed::from_number(seed), 500);
            let count = |is: fn(&Blow) -> bool| steps.iter().filter(|step| is(&step.blow)).count();
            assert_eq!(steps.len(), 500);
            assert_eq!(count(|blow| *blow == Blow::Between), 160);
            assert_eq!(count(|blow| matches!(blow, Blow::Supervisor | Blow::Both)), 15);
            assert_eq!(count(|blow| matches!(blow, Blow::Agent | Blow::Wrapper)), 40);
            assert_eq!(count(|blow| matches!(blow, Blow::Discord | Blow::DiscordAndGateway)), 25);
            assert_eq!(count(|blow| matches!(blow, Blow::Request(..))), 80);
            assert_eq!(count(|blow| matches!(blow, Blow::Event(_))), 30);
            assert_eq!(count(|blow| matches!(blow, Blow::Socket(_) | Blow::NoSession)), 20);
            for change in [Change::Delete, Change::Edit] {
                for when in [When::AtOnce, When::AfterBlow, When::Before] {
                    let amend = Some(Amend { change, when });
                    let count = steps.iter().filter(|step| step.amend == amend).count();
                    assert!(count > 3, "{amend:?}: {count} times");
                }
            }
            let quiet: Vec<usize> =
                (0..THREADS).filter(|thread| steps.iter().all(|step| step.thread != *thread)).collect();
            assert_eq!(quiet, [] as [usize; 0], "threads where nothing is said");
        }
    }
}
