//! Discrete-event model of an installation: sessions of several cells that are prompted, gateways that journal the answers in
//! groups of commits, one database server, and a chat service with a budget of requests.
//!
//! [`simulate`] is a function of its arguments: no clock, no file, no process. The costs come from runs of the product, which
//! `make bench ARGS=model` makes.

mod fit;
mod run;
mod station;

pub use fit::fit;
pub use run::simulate;
pub use station::exponential;

/// Behaviour of people and agents. Times are in seconds.
///
/// A session is at rest for `away`, then visited: prompted a few times, with `think` between the end of a turn and the next
/// prompt. All three times, and those of a turn, are exponential, the number of prompts is geometric.
#[derive(Debug, Clone)]
pub struct Load {
    /// Sessions of one cell.
    pub sessions: usize,
    /// Mean time between two visits.
    pub away: f64,
    /// Mean number of prompts of a visit, at least 1.
    pub prompts: f64,
    /// Mean time between the end of a turn and the next prompt of a visit.
    pub think: f64,
    /// Mean time an agent takes to its first chunk.
    pub answer: f64,
    /// Chunks of a turn, at least 1.
    pub chunks: u32,
    /// Mean time between two chunks.
    pub pace: f64,
}

/// Costs of the product, in seconds.
#[derive(Debug, Clone, Default)]
pub struct Costs {
    /// CPU of the gateway for a turn without its chunks.
    pub turn: f64,
    /// CPU of the gateway for a chunk.
    pub chunk: f64,
    /// CPU of the gateway for a group of commits.
    pub group: f64,
    /// CPU of the gateway for a request to the chat service.
    pub request: f64,
    /// CPU of the gateway for the start of an agent.
    pub start: f64,
    /// Commits of a turn before its agent is asked, and after the last chunk.
    pub commits: [u32; 2],
    /// Rows of one of these commits; a chunk is one row.
    pub rows: f64,
    /// Time of a group: the sync of the disk, or the round trips to the server.
    pub sync: f64,
    /// Time of a group for each of its rows.
    pub row: f64,
    /// CPU of the database server for a group, and for each of its rows.
    pub server: [f64; 2],
    /// Time between gateway and agent, both ways, without the agent's own.
    pub hop: f64,
    /// Time in which an agent starts.
    pub starting: f64,
    /// True if the costs of a turn and of a chunk are means of exponential ones.
    pub is_exponential: bool,
}

/// Budget of a chat service.
#[derive(Debug, Clone)]
pub struct Chat {
    /// Requests a second of one application.
    pub per_second: f64,
    /// Number of applications. Those of a cell's sessions share one.
    pub applications: usize,
    /// Requests of a turn that are never left out: its status card, its answer. They go before edits.
    pub of_turn: u32,
    /// Shortest time between two edits of one status card.
    pub spacing: f64,
}

/// Machines and limits.
#[derive(Debug, Clone)]
pub struct Machines {
    /// Cells, with a gateway each.
    pub cells: usize,
    /// Processors of a gateway.
    pub gateway_cores: usize,
    /// Processors of the database server, which all cells share.
    pub server_cores: usize,
    /// Rows of a group of commits at most.
    pub group_max: u32,
    /// Sessions in use of a cell at most: a prompt to a resting session is refused above it.
    pub in_use_max: usize,
    /// Time after which an idle agent is ended.
    pub idle: f64,
    /// The chat service, if the sessions are bound to conversations.
    pub chat: Option<Chat>,
}

/// Period of a simulation, in seconds.
#[derive(Debug, Clone, Copy)]
pub struct Period {
    /// Time before the measurement. The sessions begin as they are found after a long time, but nothing is queued.
    pub warm_up: f64,
    /// Time that is measured.
    pub measured: f64,
}

/// Values of a quantity in the measured time.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Values(Vec<f64>);

impl Values {
    /// Percentile by nearest rank; NaN without values.
    #[must_use]
    pub fn percentile(&self, percent: usize) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let rank = (sorted.len() * percent).div_ceil(100).max(1) - 1;
        sorted.get(rank).copied().unwrap_or(f64::NAN)
    }

    /// Mean; NaN without values.
    #[must_use]
    pub fn mean(&self) -> f64 {
        self.0.iter().sum::<f64>() / number(self.0.len())
    }
}

/// Answers of the model for all cells together. Shares are of the measured time and of all processors of a kind.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Answers {
    /// Prompts since the begin that were accepted, turns under way at the begin included.
    pub prompts: u64,
    /// Turns that have ended since the begin.
    pub ended: u64,
    /// Turns that are under way or queued at the end.
    pub open: u64,
    /// Prompts since the begin that the cap refused.
    pub refused: u64,
    /// Ended turns a second.
    pub turn_rate: f64,
    /// Committed chunks a second.
    pub chunk_rate: f64,
    /// Groups of commits a second.
    pub group_rate: f64,
    /// Starts of agents a second.
    pub start_rate: f64,
    /// Use of the gateways' processors.
    pub gateway: f64,
    /// Share of time in which a writer has a group under way, the mean of the cells.
    pub writer: f64,
    /// Use of the database server's processors.
    pub server: f64,
    /// Use of the chat service's budget.
    pub chat: f64,
    /// Requests that are never left out and wait for the budget at the end.
    pub chat_waiting: usize,
    /// Sessions in use at the end.
    pub in_use: usize,
    /// Time from a prompt to its first committed chunk.
    pub first: Values,
    /// Time between two edits of a status card in one turn.
    pub edits: Values,
    /// Time from the end of a turn to its last request.
    pub shown: Values,
}

/// Hosts for so many sessions in use, by memory: agents of `agent_mb` on machines of `host_mb`, an eighth of which is left to
/// the system.
#[must_use]
pub fn hosts(in_use: usize, agent_mb: f64, host_mb: f64) -> f64 {
    (number(in_use) / (host_mb * 0.875 / agent_mb).floor()).ceil()
}

/// Converts a count.
#[expect(clippy::cast_precision_loss, reason = "counts of this size lose nothing that matters here")]
fn number(count: usize) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests;
