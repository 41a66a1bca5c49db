//! Registration of the slash commands in the configured places, and removal everywhere else.
//!
//! Discord stores registrations, so commands of an earlier configuration remain until removed. This process
//! knows its own registrations. Those that an earlier process may have left elsewhere are removed once, from
//! a bounded number of servers. A single task does all of this: it runs after every possible change and
//! retries refused requests a few times.

use super::Inner;
use super::slash::specs;
use acp_discord::core::commands::registration;
use acp_discord::core::errors::{RejectionKind, ResourceKind};
use acp_discord::core::ids::Snowflake;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;

/// Maximum number of attempts in a row, and the first pause between attempts, which doubles: two minutes in
/// all. The next websocket session or reload starts over.
const TRIES: (u32, Duration) = (8, Duration::from_secs(1));
/// Maximum number of servers from which registrations by an earlier process are removed.
const TIDIED_MAX: usize = 100;
/// Maximum number of problems that are listed.
const NAMED_MAX: usize = 3;

/// Place of a registration: one server, or (`None`) global.
type Place = Option<Snowflake>;

/// Known state of the registrations.
#[derive(Debug, Default)]
pub(super) struct Registered {
    facts: Mutex<Facts>,
    look: Notify,
}

#[derive(Debug, Default)]
struct Facts {
    /// Application that the other fields refer to.
    application: Option<Snowflake>,
    /// Places in which this process registered the commands.
    there: BTreeSet<Place>,
    /// Places with possible leftovers of earlier registrations.
    stood: BTreeSet<Place>,
    /// Places that certainly have no commands.
    none: BTreeSet<Place>,
    /// Failed steps, with the reason.
    problems: BTreeMap<Place, String>,
}

/// Step that remains to be done in one place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Put(Place),
    TakeAway(Place),
}

impl Facts {
    /// Returns the steps after which commands are registered in `wanted` and nowhere else, for a bot that is
    /// a member of the servers `joined`. Missing registrations come before removals.
    fn steps(&self, wanted: &BTreeSet<Place>, joined: &BTreeSet<Snowflake>) -> Vec<Step> {
        let before = joined.iter().copied().map(Some).take(TIDIED_MAX);
        let known = self.there.iter().chain(&self.stood).copied();
        let may_stand: BTreeSet<Place> = known.chain([None]).chain(before).collect();
        let missing = wanted.difference(&self.there).copied().map(Step::Put);
        let extra =
            may_stand.into_iter().filter(|place| !wanted.contains(place) && !self.none.contains(place));
        missing.chain(extra.map(Step::TakeAway)).collect()
    }

    /// Records the result of a step. Returns true if the step needs a retry.
    fn note(&mut self, step: Step, done: Result<(), (Option<RejectionKind>, String)>) -> bool {
        let (Step::Put(place) | Step::TakeAway(place)) = step;
        match (step, done) {
            (Step::Put(_), Ok(())) => {
                self.there.insert(place);
                self.none.remove(&place);
            }
            (Step::TakeAway(_), Ok(())) => self.has_none(place),
            // The bot has no commands in a server without access.
            (
                Step::TakeAway(Some(_)),
                Err((
                    Some(
                        RejectionKind::LostAccess
                        | RejectionKind::Forbidden
                        | RejectionKind::Gone(ResourceKind::Guild),
                    ),
                    _,
                )),
            ) => self.has_none(place),
            (_, Err((_, why))) => {
                self.problems.insert(place, why);
                return true;
            }
        }
        self.problems.remove(&place);
        false
    }

    fn has_none(&mut self, place: Place) {
        self.there.remove(&place);
        self.stood.remove(&place);
        self.none.insert(place);
    }
}

impl Registered {
    fn facts(&self) -> MutexGuard<'_, Facts> {
        self.facts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Requests a run, since something may have changed.
    pub(super) fn look(&self) {
        self.look.notify_one();
    }

    /// Schedules the registration of all places, since the cause of an earlier problem may have been fixed.
    pub(super) fn begin_anew(&self) {
        let mut facts = self.facts();
        let there = std::mem::take(&mut facts.there);
        facts.stood.extend(there);
        facts.none.clear();
        facts.problems.clear();
    }

    /// Returns the problems as a text for people.
    pub(super) fn problems(&self) -> Option<String> {
        let facts = self.facts();
        let of = |(place, why): (&Place, &String)| match place {
            None => format!("everywhere: {why}"),
            Some(guild) => format!("in server {guild}: {why}"),
        };
        let named: Vec<String> = facts.problems.iter().map(of).take(NAMED_MAX).collect();
        (!named.is_empty()).then(|| {
            format!(
                "slash commands are not as configured in {} places ({}); text commands work all the same, and a reload \
                 tries again",
                facts.problems.len(),
                named.join("; ")
            )
        })
    }
}

/// Keeps the registrations as configured until the task is dropped.
pub(super) async fn keep(inner: Arc<Inner>) {
    let commands = match registration(&specs()) {
        Ok(Value::Array(commands)) => commands,
        Ok(_) => return,
        Err(broken) => {
            tracing::error!(?broken, "the slash commands cannot be registered");
            return;
        }
    };
    let mut tries = 0;
    loop {
        let look = inner.registered.look.notified();
        if tries == 0 {
            look.await;
        } else {
            let pause = TRIES.1 * 2_u32.saturating_pow(tries - 1);
            // A change ends the pause early.
            if tokio::time::timeout(pause, look).await.is_ok() {
                tries = 0;
            }
        }
        let is_left = go_over(&inner, &commands).await;
        tries = if is_left && tries + 1 < TRIES.0 { tries + 1 } else { 0 };
    }
}

/// Runs all remaining steps once. Returns true if any of the steps needs a retry.
async fn go_over(inner: &Inner, commands: &[Value]) -> bool {
    let Some(application) = inner.known.identity().map(|known| known.application) else { return false };
    let steps = {
        let named = inner.settings().door.guilds.clone();
        let wanted: BTreeSet<Place> = match named.is_empty() {
            true => [None].into(),
            false => named.into_iter().map(Some).collect(),
        };
        let mut facts = inner.registered.facts();
        if facts.application != Some(application) {
            *facts = Facts { application: Some(application), ..Facts::default() };
        }
        facts.problems.clear();
        facts.steps(&wanted, &inner.known.guilds())
    };
    let mut is_left = false;
    for step in steps {
        let (place, list) = match step {
            Step::Put(place) => (place, commands),
            Step::TakeAway(place) => (place, &[][..]),
        };
        let done = inner.rest.put_commands(application, place, list).await;
        if let Err(fault) = &done {
            tracing::warn!(%fault, ?step, "slash commands could not be set; text commands work all the same");
        }
        let done = done.map_err(|fault| (fault.rejection_kind(), fault.to_string()));
        is_left |= inner.registered.facts().note(step, done);
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
    fn commands_stand_where_they_are_wanted_and_nowhere_else() {
        let [one, two, three] = [1, 2, 3].map(|id| Some(Snowflake(id)));
        let joined = set([Snowflake(1), Snowflake(3)]);
        let mut facts = Facts::default();
        let first = facts.steps(&set([one, two]), &joined);
        let want = [Step::Put(one), Step::Put(two), Step::TakeAway(None), Step::TakeAway(three)];
        assert_eq!(first, want, "also what a process before this one may have put");
        let left: Vec<bool> = first.into_iter().map(|step| facts.note(step, Ok(()))).collect();
        assert_eq!(left, [false; 4]);
        assert_eq!(facts.steps(&set([one, two]), &joined), []);
        // A changed list removes the omitted servers, including one that the bot has left.
        assert_eq!(
            facts.steps(&set([three]), &joined),
            [Step::Put(three), Step::TakeAway(one), Step::TakeAway(two)]
        );
        assert_eq!(
            facts.steps(&set([None]), &joined),
            [Step::Put(None), Step::TakeAway(one), Step::TakeAway(two)]
        );
    }

    #[test]
    fn what_was_refused_is_to_be_tried_again_unless_the_bot_has_left() {
        let place = Some(Snowflake(1));
        for (step, kind, again) in [
            (Step::Put(place), RejectionKind::LostAccess, true),
            (Step::Put(place), RejectionKind::Temporary, true),
            (Step::TakeAway(place), RejectionKind::Temporary, true),
            (Step::TakeAway(place), RejectionKind::LostAccess, false),
            (Step::TakeAway(place), RejectionKind::Gone(ResourceKind::Guild), false),
            (Step::TakeAway(None), RejectionKind::LostAccess, true),
        ] {
            let mut facts = Facts { there: set([place, None]), ..Facts::default() };
            assert_eq!(facts.note(step, Err((Some(kind), "no".to_owned()))), again, "{step:?} {kind:?}");
            assert_eq!(facts.problems.len(), usize::from(again), "{step:?} {kind:?}");
        }
        let mut facts = Facts { there: set([place]), application: Some(Snowflake(9)), ..Facts::default() };
        facts.note(Step::Put(place), Err((None, "lost".to_owned())));
        let registered = Registered { facts: Mutex::new(facts), ..Registered::default() };
        assert!(registered.problems().is_some_and(|text| text.contains("in server 1: lost")));
        registered.begin_anew();
        assert_eq!(registered.problems(), None);
        let steps = registered.facts().steps(&set([None]), &set([]));
        assert_eq!(steps, [Step::Put(None), Step::TakeAway(place)], "where they stood is not forgotten");
        let many = set((0..1_000).map(Snowflake));
        assert_eq!(Facts::default().steps(&set([None]), &many).len(), 1 + TIDIED_MAX);
    }
}
