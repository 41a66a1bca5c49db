//! Registration of the slash commands in the configured places, and removal everywhere else.
//!
//! Discord stores registrations, so commands of an earlier configuration remain until removed. This process
//! knows its own registrations. Those that an earlier process may have left elsewhere are removed once, from
//! a bounded number of servers. A single task does all of this: it runs after every possible change and
//! retries refused requests a few times.
//!
//! A gateway with a part of the shards registers and removes in its own servers only. The global registration belongs to the application:
//! each gateway that is to have it puts the same list, and none of them removes it.

use super::Inner;
use crate::channel::discord::command_definitions::specs;
use acp_core::shards::ShardRange;
use acp_discord::core::commands::registration;
use acp_discord::core::errors::{RejectionKind, ResourceKind};
use acp_discord::core::ids::Snowflake;
use parking_lot::Mutex;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

/// Maximum number of attempts in a row, and the first pause between attempts, which doubles: two minutes in
/// all. The next websocket session or reload starts over.
const ATTEMPTS: (u32, Duration) = (8, Duration::from_secs(1));
/// Maximum number of servers from which registrations by an earlier process are removed.
const CLEANED_UP_MAX: usize = 100;
/// Maximum number of problems that are listed.
const NAMED_MAX: usize = 3;

/// Place of a registration: one server, or (`None`) global.
type CommandScope = Option<Snowflake>;

/// Known state of the registrations.
#[derive(Debug, Default)]
pub(super) struct CommandRegistration {
    facts: Mutex<RegistrationState>,
    look: Notify,
}

#[derive(Debug, Default)]
struct RegistrationState {
    /// Application that the other fields refer to.
    application: Option<Snowflake>,
    /// Places in which this process registered the commands.
    there: BTreeSet<CommandScope>,
    /// Places with possible leftovers of earlier registrations.
    stood: BTreeSet<CommandScope>,
    /// Places that certainly have no commands.
    none: BTreeSet<CommandScope>,
    /// Failed steps, with the reason.
    problems: BTreeMap<CommandScope, String>,
}

/// Step that remains to be done in one place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum RegistrationStep {
    Put(CommandScope),
    TakeAway(CommandScope),
}

/// True if another gateway may own the registration of this scope.
fn may_be_others(place: CommandScope, shards: Option<ShardRange>) -> bool {
    shards.is_some_and(|shards| match place {
        None => !shards.is_whole(),
        Some(guild) => shards.refusal(Some(guild.0)).is_some(),
    })
}

impl RegistrationState {
    /// Returns the steps after which commands are registered in `wanted` and nowhere else, for a bot that is
    /// a member of the servers `joined`. Missing registrations come before removals. What may be another gateway's is not removed.
    fn steps(
        &self,
        wanted: &BTreeSet<CommandScope>,
        joined: &BTreeSet<Snowflake>,
        shards: Option<ShardRange>,
    ) -> Vec<RegistrationStep> {
        let is_own = |place: &CommandScope| !may_be_others(*place, shards);
        let before = joined.iter().copied().map(Some).filter(is_own).take(CLEANED_UP_MAX);
        let known = self.there.iter().chain(&self.stood).copied();
        let may_stand: BTreeSet<CommandScope> = known.chain([None]).chain(before).collect();
        let missing = wanted.difference(&self.there).copied().map(RegistrationStep::Put);
        let is_extra =
            |place: &CommandScope| is_own(place) && !wanted.contains(place) && !self.none.contains(place);
        let extra = may_stand.into_iter().filter(is_extra);
        missing.chain(extra.map(RegistrationStep::TakeAway)).collect()
    }

    /// Records the result of a step. Returns true if the step needs a retry.
    fn record_result(
        &mut self,
        step: RegistrationStep,
        done: Result<(), (Option<RejectionKind>, String)>,
    ) -> bool {
        let (RegistrationStep::Put(place) | RegistrationStep::TakeAway(place)) = step;
        match (step, done) {
            (RegistrationStep::Put(_), Ok(())) => {
                self.there.insert(place);
                self.none.remove(&place);
            }
            (RegistrationStep::TakeAway(_), Ok(())) => self.mark_removed(place),
            // The bot has no commands in a server without access.
            (
                RegistrationStep::TakeAway(Some(_)),
                Err((
                    Some(
                        RejectionKind::LostAccess
                        | RejectionKind::Forbidden
                        | RejectionKind::Gone(ResourceKind::Guild),
                    ),
                    _,
                )),
            ) => self.mark_removed(place),
            (_, Err((_, why))) => {
                self.problems.insert(place, why);
                return true;
            }
        }
        self.problems.remove(&place);
        false
    }

    fn mark_removed(&mut self, place: CommandScope) {
        self.there.remove(&place);
        self.stood.remove(&place);
        self.none.insert(place);
    }
}

impl CommandRegistration {
    /// Requests a run, since something may have changed.
    pub(super) fn notify(&self) {
        self.look.notify_one();
    }

    /// Schedules the registration of all places, since the cause of an earlier problem may have been fixed.
    pub(super) fn reset(&self) {
        let mut facts = self.facts.lock();
        let there = std::mem::take(&mut facts.there);
        facts.stood.extend(there);
        facts.none.clear();
        facts.problems.clear();
    }

    /// Returns the problems as a text for people.
    pub(super) fn problems(&self) -> Option<String> {
        let facts = self.facts.lock();
        let of = |(place, why): (&CommandScope, &String)| match place {
            None => format!("everywhere: {why}"),
            Some(guild) => format!("in server {guild}: {why}"),
        };
        let named: Vec<String> = facts.problems.iter().map(of).take(NAMED_MAX).collect();
        (!named.is_empty()).then(|| {
            format!(
                "slash commands are not registered as configured in {} places ({}); text commands still \
                 work, and a reload retries",
                facts.problems.len(),
                named.join("; ")
            )
        })
    }
}

/// Keeps the registrations as configured until the task is dropped.
pub(super) async fn run(inner: Arc<Inner>) {
    let commands = match registration(&specs()) {
        Ok(Value::Array(commands)) => commands,
        Ok(_) => return,
        Err(broken) => {
            tracing::error!(?broken, "slash command specification invalid");
            return;
        }
    };
    let mut tries = 0;
    loop {
        let look = inner.registration.look.notified();
        if tries == 0 {
            look.await;
        } else {
            let pause = ATTEMPTS.1 * 2_u32.saturating_pow(tries - 1);
            // A change ends the pause early.
            if tokio::time::timeout(pause, look).await.is_ok() {
                tries = 0;
            }
        }
        let is_left = apply_steps(&inner, &commands).await;
        tries = if is_left && tries + 1 < ATTEMPTS.0 { tries + 1 } else { 0 };
    }
}

/// Runs all remaining steps once. Returns true if any of the steps needs a retry.
async fn apply_steps(inner: &Inner, commands: &[Value]) -> bool {
    let Some(application) = inner.cache.identity().map(|known| known.application) else { return false };
    let steps = {
        let settings = inner.settings();
        let access = &settings.access;
        let served = access.guilds.iter().filter(|guild| access.is_guild_allowed(Some(**guild)));
        let wanted: BTreeSet<CommandScope> = match access.guilds.is_empty() {
            true => [None].into(),
            false => served.copied().map(Some).collect(),
        };
        let mut facts = inner.registration.facts.lock();
        if facts.application != Some(application) {
            *facts = RegistrationState { application: Some(application), ..RegistrationState::default() };
        }
        facts.problems.clear();
        facts.steps(&wanted, &inner.cache.guilds(), access.shards)
    };
    let mut is_left = false;
    for step in steps {
        let (place, list) = match step {
            RegistrationStep::Put(place) => (place, commands),
            // The shards may have changed since.
            RegistrationStep::TakeAway(place) if may_be_others(place, inner.settings().access.shards) => {
                continue;
            }
            RegistrationStep::TakeAway(place) => (place, &[][..]),
        };
        let done = inner.rest.put_commands(application, place, list).await;
        if let Err(fault) = &done {
            tracing::warn!(%fault, ?step, "slash command registration failed; text commands still work");
        }
        let done = done.map_err(|fault| (fault.rejection_kind(), fault.to_string()));
        is_left |= inner.registration.facts.lock().record_result(step, done);
    }
    is_left
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set<T: Ord>(all: impl IntoIterator<Item = T>) -> BTreeSet<T> {
        all.into_iter().collect()
    }

    #[test]
    fn commands_are_registered_only_where_configured() {
        let [one, two, three] = [1, 2, 3].map(|id| Some(Snowflake(id)));
        let joined = set([Snowflake(1), Snowflake(3)]);
        let mut facts = RegistrationState::default();
        let first = facts.steps(&set([one, two]), &joined, None);
        let want = [
            RegistrationStep::Put(one),
            RegistrationStep::Put(two),
            RegistrationStep::TakeAway(None),
            RegistrationStep::TakeAway(three),
        ];
        assert_eq!(first, want, "also registrations of an earlier process");
        let retried: Vec<bool> = first.into_iter().map(|step| facts.record_result(step, Ok(()))).collect();
        assert_eq!(retried, [false; 4]);
        assert_eq!(facts.steps(&set([one, two]), &joined, None), []);
        // A changed list removes the omitted servers, including one that the bot has left.
        assert_eq!(
            facts.steps(&set([three]), &joined, None),
            [RegistrationStep::Put(three), RegistrationStep::TakeAway(one), RegistrationStep::TakeAway(two)]
        );
        assert_eq!(
            facts.steps(&set([None]), &joined, None),
            [RegistrationStep::Put(None), RegistrationStep::TakeAway(one), RegistrationStep::TakeAway(two)]
        );
    }

    /// Some of the shards, with the guilds of the tests.
    const PART: Option<ShardRange> = Some(ShardRange { from: 0, to: 1, of: 2 });

    /// Servers that belong to another gateway since the range was changed are left to it.
    #[test]
    fn commands_in_servers_of_other_shards_are_kept() {
        let [own, former] = [2 << 22, 1 << 22].map(Snowflake);
        let joined = set([own, former]);
        let whole = PART.map(|range| ShardRange { to: 2, ..range });
        let mut facts =
            RegistrationState { there: set([Some(own), Some(former)]), ..RegistrationState::default() };
        assert_eq!(facts.steps(&set([]), &joined, PART), [RegistrationStep::TakeAway(Some(own))]);
        facts.stood = std::mem::take(&mut facts.there);
        assert_eq!(facts.steps(&set([Some(own)]), &joined, PART), [RegistrationStep::Put(Some(own))]);
        assert_eq!(facts.steps(&set([]), &joined, whole).len(), 3, "everywhere");
        let others = (0..1_000).map(|id| Snowflake((2 * id + 1) << 22));
        let many = others.chain([Snowflake(u64::MAX << 23)]).collect();
        assert_eq!(
            RegistrationState::default().steps(&set([]), &many, PART).len(),
            1,
            "own servers count only"
        );
    }

    /// Gateways of one application with other lists of servers do not undo each other's registrations.
    #[test]
    fn global_registration_of_another_gateway_is_kept() {
        let [one, three] = [1, 3].map(|id| Some(Snowflake(id)));
        let mut facts = RegistrationState::default();
        let joined = set([Snowflake(1), Snowflake(3)]);
        let first = facts.steps(&set([one]), &joined, PART);
        assert_eq!(first, [RegistrationStep::Put(one), RegistrationStep::TakeAway(three)]);
        for step in first {
            facts.record_result(step, Ok(()));
        }
        let list_removed = facts.steps(&set([None]), &joined, PART);
        assert_eq!(list_removed, [RegistrationStep::Put(None), RegistrationStep::TakeAway(one)]);
        facts.record_result(RegistrationStep::Put(None), Ok(()));
        assert_eq!(facts.steps(&set([]), &joined, PART), [RegistrationStep::TakeAway(one)]);
    }

    #[test]
    fn failed_registration_is_retried_unless_bot_left() {
        let guild = Some(Snowflake(1));
        for (step, kind, is_retried) in [
            (RegistrationStep::Put(guild), RejectionKind::LostAccess, true),
            (RegistrationStep::Put(guild), RejectionKind::Temporary, true),
            (RegistrationStep::TakeAway(guild), RejectionKind::Temporary, true),
            (RegistrationStep::TakeAway(guild), RejectionKind::LostAccess, false),
            (RegistrationStep::TakeAway(guild), RejectionKind::Gone(ResourceKind::Guild), false),
            (RegistrationStep::TakeAway(None), RejectionKind::LostAccess, true),
        ] {
            let mut facts = RegistrationState { there: set([guild, None]), ..RegistrationState::default() };
            assert_eq!(
                facts.record_result(step, Err((Some(kind), "no".to_owned()))),
                is_retried,
                "{step:?} {kind:?}"
            );
            assert_eq!(facts.problems.len(), usize::from(is_retried), "{step:?} {kind:?}");
        }
        let mut facts = RegistrationState {
            there: set([guild]),
            application: Some(Snowflake(9)),
            ..RegistrationState::default()
        };
        facts.record_result(RegistrationStep::Put(guild), Err((None, "lost".to_owned())));
        let registered = CommandRegistration { facts: Mutex::new(facts), ..CommandRegistration::default() };
        assert!(registered.problems().is_some_and(|text| text.contains("in server 1: lost")));
        registered.reset();
        assert_eq!(registered.problems(), None);
        let steps = registered.facts.lock().steps(&set([None]), &set([]), None);
        assert_eq!(
            steps,
            [RegistrationStep::Put(None), RegistrationStep::TakeAway(guild)],
            "earlier registrations are remembered"
        );
        let many = set((0..1_000).map(Snowflake));
        assert_eq!(RegistrationState::default().steps(&set([None]), &many, None).len(), 1 + CLEANED_UP_MAX);
    }
}
