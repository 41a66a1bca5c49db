//! What is done to the house, drawn from a seed.

use acp_tests::seed::Seed;
use std::time::Duration;

/// The longest pause before a blow, and the base of times within one, in milliseconds.
const PAUSE_MS: u64 = 300;
const TIME_MS: u64 = 150;

/// What is struck.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Blow {
    /// The gateway is killed, wherever it is.
    Gateway,
    /// The gateway is killed when the channel has a part, and the gateway does not know it yet.
    GatewayBetween,
    /// The gateway is killed, and killed again while it starts.
    GatewayStarting,
    /// The gateway is stopped, and goes on or is killed.
    GatewayStopped,
    /// The supervisor is killed.
    Supervisor,
    /// The supervisor and the gateway are killed.
    Both,
    /// The supervisor is stopped and goes on.
    SupervisorStopped,
    /// An agent or its wrapper is killed.
    Agent,
    /// An agent or its wrapper is stopped and goes on.
    AgentStopped,
    /// The disk runs full.
    FullDisk,
    /// The whole chat service is away.
    ChannelAway,
}

/// One blow, with everything that is random about it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Step {
    /// How long it is quiet before.
    pub(crate) pause: Duration,
    /// What is struck.
    pub(crate) blow: Blow,
    /// How long what takes a while takes.
    pub(crate) time: Duration,
    /// Which of several.
    pub(crate) draw: u64,
}

impl Blow {
    /// Whether a turn may fail of it: an agent or what it runs under dies (H6).
    const fn may_fail_turns(self) -> bool {
        matches!(self, Self::Supervisor | Self::Both | Self::Agent)
    }
}

/// The order of a run.
#[derive(Debug)]
pub(crate) struct Plan {
    seed: Seed,
    /// Nothing is done of which a turn may fail.
    is_gentle: bool,
}

impl Plan {
    pub(crate) const fn new(seed: Seed) -> Self {
        Self { seed, is_gentle: false }
    }

    /// Nothing but what no turn may fail of.
    pub(crate) const fn gentle(seed: Seed) -> Self {
        Self { seed, is_gentle: true }
    }

    pub(crate) fn next_step(&mut self) -> Step {
        loop {
            let step = self.draw();
            if !(self.is_gentle && step.blow.may_fail_turns()) {
                return step;
            }
        }
    }

    fn draw(&mut self) -> Step {
        let pause = self.seed.time_below(Duration::from_millis(PAUSE_MS));
        let time = self.seed.time_below(Duration::from_millis(TIME_MS));
        let blow = match self.seed.below(100) {
            0..24 => Blow::Gateway,
            24..38 => Blow::GatewayBetween,
            38..46 => Blow::GatewayStarting,
            46..52 => Blow::GatewayStopped,
            52..58 => Blow::Supervisor,
            58..61 => Blow::Both,
            61..65 => Blow::SupervisorStopped,
            65..85 => Blow::Agent,
            85..90 => Blow::AgentStopped,
            90..95 => Blow::FullDisk,
            _ => Blow::ChannelAway,
        };
        Step { pause, blow, time, draw: self.seed.number() }
    }
}
