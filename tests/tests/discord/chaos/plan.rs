//! Messages and faults of a run, drawn from a seed before it begins.

use acp_tests::fake_agent::chunk_text;
use acp_tests::fake_discord::core::faults::{EventFate, RestFate, Scope};
use acp_tests::fake_discord::core::stage::SocketAct;
use acp_tests::seed::Seed;
use std::time::Duration;

/// Threads of a run.
pub(super) const THREADS: usize = 10;
/// Maximum pause before a step, and base of durations within one, in milliseconds.
const PAUSE_MS: u64 = 150;
const TIME_MS: u64 = 400;
/// One of this many messages is edited or deleted.
const AMENDS_ONE_IN: u64 = 4;

/// Fault of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Blow {
    /// Nothing.
    Nothing,
    /// The gateway is killed between a stored message and its receipt.
    Between,
    /// The gateway is killed at a random moment.
    Gateway,
    /// The gateway is killed, and again soon after its start.
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
    /// Discord is killed, and restarted later with its stored messages.
    Discord,
    /// Discord is killed, and the gateway is killed and started meanwhile.
    DiscordAndGateway,
    /// Discord's process is stopped for a while.
    DiscordStopped,
    /// Discord answers 503 and resets connections for a while.
    DiscordAway,
    /// Fault of the next request that creates a message, or of the next few of any kind.
    Request(RestFate, Which),
    /// Fault of the next message event.
    Event(EventFate),
    /// Fault of the gateway connection.
    Socket(SocketAct),
    /// The gateway session is invalidated, and the next one too.
    NoSession,
}

/// Affected requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Which {
    /// Next request that creates a message.
    Create,
    /// Next three requests of any kind.
    Any,
}

/// Faults of a hundred steps, each kind with its share.
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

/// Prompt and expected answer without a fault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Turn {
    /// Prompt.
    pub(super) prompt: String,
    /// Expected answer.
    pub(super) answer: String,
    /// The agent asks for a permission in it.
    pub(super) asks: bool,
}

/// Unique token of a turn and its answer.
pub(super) fn token(thread: usize, number: usize) -> String {
    format!("tok-{thread}-{number}")
}

impl Turn {
    /// Turn without delays.
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

/// Change of a message by its author.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    /// Deletion.
    Delete,
    /// Edit, see [`anew`].
    Edit,
}

/// Moment of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum When {
    /// At once, before the fault.
    AtOnce,
    /// After the fault.
    AfterBlow,
    /// After the fault, for the message before it in that thread.
    Before,
}

/// Change of a message and its moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Amend {
    pub(super) change: Change,
    pub(super) when: When,
}

impl Amend {
    /// Draws a change; a message of [`Blow::Between`] must be answered soon, so that it is not changed at once.
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

/// Token of an edited text.
pub(super) fn anew(token: &str) -> String {
    format!("{token}-anew")
}

/// One step: a message and a fault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Step {
    /// Pause before the step.
    pub(super) pause: Duration,
    /// Thread of the message.
    pub(super) thread: usize,
    /// Message.
    pub(super) turn: Turn,
    /// Change of the message.
    pub(super) amend: Option<Amend>,
    /// Fault.
    pub(super) blow: Blow,
    /// Duration of a fault that lasts.
    pub(super) time: Duration,
    /// Random number that selects one of several targets.
    pub(super) draw: u64,
}

/// All steps of a run, in order. Each hundred of them holds every kind of fault with its share.
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
            // In the same thread it may have to wait for its turn.
            thread = last.thread;
        }
        let mut turn = Turn::draw(&mut seed, &token(thread, number));
        if blow == Blow::Between {
            // The message to be interrupted comes soon.
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
            assert_eq!(quiet, [] as [usize; 0], "threads without a message");
        }
    }
}
