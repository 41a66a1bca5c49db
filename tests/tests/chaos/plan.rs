//! Faults of a run, drawn from a seed.

use acp_tests::seed::Seed;
use std::time::Duration;

/// Maximum pause before a fault, and base of durations within one, in milliseconds.
const PAUSE_MS: u64 = 300;
const TIME_MS: u64 = 150;

/// Kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Blow {
    /// The gateway is killed at a random moment.
    Gateway,
    /// The gateway is killed between a send and its receipt.
    GatewayBetween,
    /// The gateway is killed, and again during its start.
    GatewayStarting,
    /// The gateway is stopped, and continued or killed.
    GatewayStopped,
    /// The supervisor is killed.
    Supervisor,
    /// The supervisor and the gateway are killed.
    Both,
    /// The supervisor is stopped and continued.
    SupervisorStopped,
    /// An agent or its wrapper is killed.
    Agent,
    /// An agent or its wrapper is stopped and continued.
    AgentStopped,
    /// The disk runs full.
    FullDisk,
    /// The chat service is unavailable.
    ChannelAway,
}

/// One fault with its random parameters.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Step {
    /// Pause before the fault.
    pub(crate) pause: Duration,
    /// Kind of fault.
    pub(crate) blow: Blow,
    /// Duration of a fault that lasts.
    pub(crate) time: Duration,
    /// Random number that selects one of several targets.
    pub(crate) draw: u64,
}

impl Blow {
    /// True if a turn may fail by it: it kills an agent or its supervisor (H6).
    const fn may_fail_turns(self) -> bool {
        matches!(self, Self::Supervisor | Self::Both | Self::Agent)
    }
}

/// Sequence of faults of a run.
#[derive(Debug)]
pub(crate) struct Plan {
    seed: Seed,
    /// Only faults that fail no turn.
    is_gentle: bool,
}

impl Plan {
    pub(crate) const fn new(seed: Seed) -> Self {
        Self { seed, is_gentle: false }
    }

    /// Plan with only those faults that fail no turn.
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
