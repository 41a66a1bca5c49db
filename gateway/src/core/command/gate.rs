//! Who may do what. Source: openclaw.md §2 "Authorization": everything but looking needs the owner or an operator,
//! and what speaks from inside of a sandbox never spawns.
//!
//! A session belongs to whoever was first bound to it, which is who spawned it, and to whoever is bound to it now. The
//! operator is who runs the gateway; which of a channel's people that is, the channel says
//! ([`crate::channel::Channel::standing`]). No source document has a key for further administrators, so there is none.

use super::{Act, Command};
use crate::error::Failure;
use acp_shared::codes::Code;
use serde::{Deserialize, Serialize};

/// Whom a binding belongs to that no person made; everybody may change it and take its place.
pub(crate) const SYSTEM: &str = "system";

/// What somebody may do beyond what is theirs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    /// Runs the gateway: everything.
    Operator,
    /// A person of the channel: nothing.
    Person,
    /// Speaks from inside of a sandbox: nothing, and may not spawn.
    Sandboxed,
}

/// What somebody may answer of what agents ask.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Approves {
    /// What the agents of their own sessions ask.
    #[default]
    Own,
    /// What any agent asks.
    All,
    /// Nothing, not even what their own agents ask.
    Nothing,
}

/// Who asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Requester<'a> {
    /// The name that the channel vouches for; empty when it knows none, and then nothing is theirs.
    pub(crate) name: &'a str,
    /// What they may do beyond what is theirs.
    pub(crate) standing: Standing,
    /// What they may answer of what agents ask.
    pub(crate) approves: Approves,
}

/// Whom a command is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Who {
    /// Everybody; lists show them what is theirs.
    Anyone,
    /// Whom the session belongs to.
    Owner,
    /// Whom the session belongs to, unless the channel says who may answer what agents ask.
    Approver,
    /// Whom the binding belongs to.
    Binder,
    /// Whom the session belongs to, and the binding that it takes the place of.
    Focus,
}

impl Who {
    /// For people.
    #[cfg(test)]
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Anyone => "everybody",
            Self::Owner => "who owns the session",
            Self::Approver => "who owns the session, or whom the channel lets approve",
            Self::Binder => "who made the binding",
            Self::Focus => "who owns the session, where nobody else is bound",
        }
    }
}

/// Whose things a command is about.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Belongs {
    /// Whom the session belongs to.
    pub(crate) session: Vec<String>,
    /// Who made the bindings that are changed.
    pub(crate) bindings: Vec<String>,
}

impl Command {
    /// Whom it is for.
    pub(crate) const fn who(&self) -> Who {
        match self {
            Self::On { act, .. } => match act {
                Act::Cancel
                | Act::CancelRun(_)
                | Act::Drop(_)
                | Act::SteerRun(_)
                | Act::Steer(_)
                | Act::Close { .. }
                | Act::New
                | Act::Status
                | Act::Set(_)
                | Act::Permissions => Who::Owner,
                Act::Answer(_) => Who::Approver,
            },
            Self::Focus(_) => Who::Focus,
            Self::Unfocus | Self::Window { change: Some(_), .. } | Self::Verbosity { change: Some(_) } => {
                Who::Binder
            }
            Self::Window { change: None, .. }
            | Self::Verbosity { change: None }
            | Self::Spawn(_)
            | Self::Sessions
            | Self::Agents
            | Self::Doctor
            | Self::Install
            | Self::Help
            | Self::Misused { .. } => Who::Anyone,
        }
    }
}

impl Requester<'_> {
    fn is(&self, name: &str) -> bool {
        !self.name.is_empty() && self.name == name
    }

    /// Whether something is theirs to see and to act on.
    pub(crate) fn owns(&self, owners: &[String]) -> bool {
        self.standing == Standing::Operator || owners.iter().any(|owner| self.is(owner))
    }

    /// Whether they may start a session.
    ///
    /// # Errors
    /// `ACP_NOT_OWNER` with the detail `SANDBOXED`.
    pub(crate) fn may_spawn(&self) -> Result<(), Failure> {
        if self.standing == Standing::Sandboxed {
            let text = "What runs in a sandbox cannot start sessions.";
            return Err(Failure::new(Code::NotOwner, text).detail("SANDBOXED").origin("gateway"));
        }
        Ok(())
    }

    /// Whether they may do something of that kind with these things.
    ///
    /// # Errors
    /// `ACP_NOT_OWNER`; with the detail `BOUND_BY_OTHER` where it is the binding that is not theirs.
    pub(crate) fn may(&self, who: Who, belongs: &Belongs) -> Result<(), Failure> {
        let of_session = self.owns(&belongs.session);
        let of_others = belongs.bindings.iter().any(|by| !self.is(by) && by != SYSTEM);
        let bound_by_others = of_others && self.standing != Standing::Operator;
        let refused = match who {
            Who::Anyone => false,
            Who::Owner => !of_session,
            Who::Approver => match self.approves {
                Approves::All => false,
                Approves::Own => !of_session,
                Approves::Nothing if self.standing != Standing::Operator => return Err(not_approver()),
                Approves::Nothing => false,
            },
            Who::Binder if bound_by_others => return Err(bound_by_other()),
            Who::Binder => false,
            Who::Focus if of_session && bound_by_others => return Err(bound_by_other()),
            Who::Focus => !of_session,
        };
        if refused { Err(Failure::of(Code::NotOwner).origin("gateway")) } else { Ok(()) }
    }
}

fn not_approver() -> Failure {
    let text = "What agents ask here is answered by those alone whom this gateway names for that.";
    Failure::new(Code::NotOwner, text).detail("NOT_APPROVER").origin("gateway")
}

fn bound_by_other() -> Failure {
    let text =
        "Somebody else bound this conversation, and only they or who runs this gateway may change that.";
    Failure::new(Code::NotOwner, text).detail("BOUND_BY_OTHER").origin("gateway")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn belongs(session: &[&str], bindings: &[&str]) -> Belongs {
        let all = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        Belongs { session: all(session), bindings: all(bindings) }
    }

    /// Every kind of requester against every kind of command and every kind of thing.
    #[test]
    fn e02_who_may_do_what() {
        use Who::{Anyone, Binder, Focus, Owner};
        let (own, other, system) =
            (belongs(&["ann"], &["ann"]), belongs(&["bob"], &["bob"]), belongs(&[], &[SYSTEM]));
        let mine_bound_by_bob = belongs(&["ann"], &["bob"]);
        let mine_bound_by_system = belongs(&["ann"], &[SYSTEM]);
        let shared = belongs(&["bob", "ann"], &["ann", "bob"]);
        let (free, nobodys) = (belongs(&["ann"], &[]), belongs(&[], &[]));
        let (yes, no, bound) = (None, Some(None), Some(Some("BOUND_BY_OTHER")));
        let table = [
            ("own", &own, [(Anyone, yes), (Owner, yes), (Binder, yes), (Focus, yes)]),
            ("another's", &other, [(Anyone, yes), (Owner, no), (Binder, bound), (Focus, no)]),
            ("the system's", &system, [(Anyone, yes), (Owner, no), (Binder, yes), (Focus, no)]),
            (
                "own, bound by another",
                &mine_bound_by_bob,
                [(Anyone, yes), (Owner, yes), (Binder, bound), (Focus, bound)],
            ),
            (
                "own, bound by the system",
                &mine_bound_by_system,
                [(Anyone, yes), (Owner, yes), (Binder, yes), (Focus, yes)],
            ),
            ("shared", &shared, [(Anyone, yes), (Owner, yes), (Binder, bound), (Focus, bound)]),
            ("own, bound nowhere", &free, [(Anyone, yes), (Owner, yes), (Binder, yes), (Focus, yes)]),
            ("nobody's", &nobodys, [(Anyone, yes), (Owner, no), (Binder, yes), (Focus, no)]),
        ];
        for (what, belongs, row) in table {
            for (who, want) in row {
                let of = |name, standing| {
                    let may = Requester { name, standing, approves: Approves::Own }.may(who, belongs);
                    may.err().map(|failure| {
                        assert_eq!(failure.code, Code::NotOwner);
                        failure.detail_code
                    })
                };
                let want = want.map(|detail: Option<&str>| detail.map(str::to_owned));
                assert_eq!(of("ann", Standing::Person), want, "{what} {who:?}");
                assert_eq!(of("ann", Standing::Sandboxed), want, "{what} {who:?}");
                assert_eq!(of("eve", Standing::Operator), None, "{what} {who:?}");
                assert_eq!(of("", Standing::Operator), None, "{what} {who:?}");
            }
        }
    }

    #[test]
    fn e02_who_has_no_name_owns_nothing() {
        let unnamed = Requester { name: "", standing: Standing::Person, approves: Approves::Own };
        assert!(unnamed.may(Who::Owner, &belongs(&[""], &[])).is_err());
        assert!(unnamed.may(Who::Binder, &belongs(&[], &[""])).is_err());
    }

    #[test]
    fn e02_a_sandbox_never_spawns() {
        for (standing, may) in
            [(Standing::Operator, true), (Standing::Person, true), (Standing::Sandboxed, false)]
        {
            assert_eq!(
                Requester { name: "ann", standing, approves: Approves::Own }.may_spawn().is_ok(),
                may,
                "{standing:?}"
            );
        }
    }
}
