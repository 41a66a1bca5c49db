//! Time limits of an agent that opens its session: the download of its program does not count against the
//! opening.

use super::{Actor, StepOutput};
use crate::rows::LeaseStatus;
use crate::timeouts::format_duration;
use serde_json::json;

/// Maximum time of a start that may download the agent's program or signs in, in milliseconds.
const FETCH_MS: u64 = 600_000;
/// Package runners, which download an agent's program before its first start.
pub const PACKAGE_RUNNERS: [&str; 2] = ["npx", "uvx"];
/// Time without a line of the agent after which the download is reported first, in milliseconds.
const FIRST_REPORT_MS: u64 = 5_000;
/// Time between the further reports, in milliseconds.
const REPORT_MS: u64 = 30_000;

impl Actor {
    /// Arms the time limit of a process that was or will be started.
    pub(super) fn arm_opening_timer(&mut self, out: &StepOutput) {
        self.timers.init_ms = Some(out.now_ms + self.opening_ms());
        self.timers.fetch_ms = self.may_be_fetching().then_some(out.now_ms + FIRST_REPORT_MS);
    }

    /// Time limit for opening a session, in milliseconds.
    pub(super) fn opening_ms(&self) -> u64 {
        let signs_in = self.session.options.auth_method.is_some();
        let init_ms = self.profile.init_ms;
        if signs_in || self.may_be_fetching() { init_ms.max(FETCH_MS) } else { init_ms }
    }

    /// True if the agent's program may still be downloaded: its process was started and has not written a line. The
    /// command of the process tells, since a restarted gateway has not looked the program up.
    pub(super) fn may_be_fetching(&self) -> bool {
        let Some(lease) = &self.lease else { return false };
        let runner = lease.row.spawn.argv.first().and_then(|program| program.rsplit('/').next());
        lease.row.usage != LeaseStatus::Intended
            && lease.row.stdout_offset == 0
            && (self.profile.may_fetch || runner.is_some_and(|runner| PACKAGE_RUNNERS.contains(&runner)))
    }

    /// Ends the time for a download: the agent has written its first line.
    pub(super) fn end_fetch(&mut self, out: &StepOutput) {
        if self.timers.fetch_ms.take().is_some() && self.timers.init_ms.is_some() {
            let signs_in = self.session.options.auth_method.is_some();
            let init_ms = self.profile.init_ms;
            self.timers.init_ms = Some(out.now_ms + if signs_in { init_ms.max(FETCH_MS) } else { init_ms });
        }
    }

    /// Reports that the agent's program is still being downloaded.
    pub(super) fn report_fetch(&mut self, out: &mut StepOutput) {
        let Some(until_ms) = self.timers.init_ms.filter(|_| self.may_be_fetching()) else { return };
        let runner =
            self.profile.argv.first().map_or("npx", |program| program.rsplit('/').next().unwrap_or(program));
        let took_ms = self.opening_ms().saturating_sub(until_ms.saturating_sub(out.now_ms));
        let text = format!(
            "{runner} is starting the agent's program, and downloads it first if it is new: {} so far, at most {}.",
            format_duration(took_ms / 1_000 * 1_000),
            format_duration(self.opening_ms())
        );
        self.report(json!({ "status": "agent_fetched", "text": text }), out);
        self.timers.fetch_ms = Some(out.now_ms + REPORT_MS);
    }
}
