//! Authorization of commands. Source: openclaw.md §2 "Authorization": everything except reading requires the
//! owner or an operator, and a requester inside a sandbox never spawns.
//!
//! Owners of a session are the person who spawned it (the first one bound to it) and everyone bound to it
//! now. The operator runs the gateway; each channel decides who of its users that is
//! (`ChannelAdapter::author_role`). No source document has a key for further
//! administrators, so none exists.

use super::{ChatCommand, SessionAction};
use crate::failure::Failure;
use acp_shared::codes::Code;
use serde::{Deserialize, Serialize};

/// Creator name of bindings that no person made; everybody may change and replace these.
pub const SYSTEM: &str = "system";

/// Rights of a requester beyond their own sessions and bindings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RequesterRole {
    /// Runs the gateway; may do everything.
    Operator,
    /// User of the channel; no further rights.
    Person,
    /// Runs inside a sandbox; no further rights, and may not spawn.
    Sandboxed,
}

/// Permission requests that a requester may answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ApprovalScope {
    /// Requests of agents in their own sessions.
    #[default]
    Own,
    /// Requests of any agent.
    All,
    /// None, not even those of their own agents.
    Nothing,
}

/// Sender of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Requester<'a> {
    /// Name verified by the channel; empty if unknown, in which case the requester owns nothing.
    pub name: &'a str,
    /// Rights beyond their own sessions and bindings.
    pub role: RequesterRole,
    /// Permission requests that the requester may answer.
    pub approves: ApprovalScope,
}

acp_shared::named! {
    /// Requirement of a command on the requester, with the description for the manual.
    pub enum AccessRequirement {
        /// None; lists are limited to the requester's own sessions.
        Anyone = "everyone",
        /// Owner of the session.
        Owner = "owner of the session",
        /// Owner of the session, unless the channel names the approvers.
        Approver = "owner of the session, or approver of the channel",
        /// Creator of the binding.
        Binder = "creator of the binding",
        /// Owner of the session, and creator of the binding that is replaced.
        Focus = "owner of the session, unless another person bound the conversation",
    }
}

/// Owners of the session and the bindings that a command concerns.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ownership {
    /// Owners of the session.
    pub session: Vec<String>,
    /// Creators of the bindings that change.
    pub bindings: Vec<String>,
}

impl ChatCommand {
    /// Requirement on the requester of this command.
    pub const fn required_access(&self) -> AccessRequirement {
        match self {
            Self::On { act, .. } => match act {
                SessionAction::Cancel
                | SessionAction::CancelRun(_)
                | SessionAction::Drop(_)
                | SessionAction::SteerRun(_)
                | SessionAction::Steer(_)
                | SessionAction::Close { .. }
                | SessionAction::New
                | SessionAction::Status
                | SessionAction::Set(_)
                | SessionAction::Permissions => AccessRequirement::Owner,
                SessionAction::Answer(_) => AccessRequirement::Approver,
            },
            Self::Focus(_) => AccessRequirement::Focus,
            Self::Unfocus | Self::Window { change: Some(_), .. } | Self::Verbosity { change: Some(_) } => {
                AccessRequirement::Binder
            }
            Self::Window { change: None, .. }
            | Self::Verbosity { change: None }
            | Self::Spawn(_)
            | Self::Sessions
            | Self::Usage { .. }
            | Self::Agents
            | Self::Doctor
            | Self::Install
            | Self::Help
            | Self::Misused { .. } => AccessRequirement::Anyone,
        }
    }
}

impl Requester<'_> {
    fn has_name(&self, name: &str) -> bool {
        !self.name.is_empty() && self.name == name
    }

    /// True if the requester owns something with these owners, or is the operator.
    pub fn owns(&self, owners: &[String]) -> bool {
        self.role == RequesterRole::Operator || owners.iter().any(|owner| self.has_name(owner))
    }

    /// Checks that the requester may start a session.
    ///
    /// # Errors
    /// `ACP_NOT_OWNER` with the detail `SANDBOXED`.
    pub fn may_spawn(&self) -> Result<(), Failure> {
        if self.role == RequesterRole::Sandboxed {
            let text = "A sandboxed requester cannot start sessions.";
            return Err(Failure::new(Code::NotOwner, text).detail("SANDBOXED").origin("gateway"));
        }
        Ok(())
    }

    /// Checks that the requester meets a command's requirement.
    ///
    /// # Errors
    /// `ACP_NOT_OWNER`; with the detail `BOUND_BY_OTHER` if only the binding belongs to another person.
    pub fn may(&self, requirement: AccessRequirement, belongs: &Ownership) -> Result<(), Failure> {
        let of_session = self.owns(&belongs.session);
        let of_others = belongs.bindings.iter().any(|by| !self.has_name(by) && by != SYSTEM);
        let bound_by_others = of_others && self.role != RequesterRole::Operator;
        let refused = match requirement {
            AccessRequirement::Anyone => false,
            AccessRequirement::Owner => !of_session,
            AccessRequirement::Approver => match self.approves {
                ApprovalScope::All => false,
                ApprovalScope::Own => !of_session,
                ApprovalScope::Nothing if self.role != RequesterRole::Operator => {
                    return Err(not_approver());
                }
                ApprovalScope::Nothing => false,
            },
            AccessRequirement::Binder if bound_by_others => return Err(bound_by_other()),
            AccessRequirement::Binder => false,
            AccessRequirement::Focus if of_session && bound_by_others => return Err(bound_by_other()),
            AccessRequirement::Focus => !of_session,
        };
        if refused { Err(Failure::of(Code::NotOwner).origin("gateway")) } else { Ok(()) }
    }
}

fn not_approver() -> Failure {
    let text = "Only approvers configured for this gateway can answer permission requests here.";
    Failure::new(Code::NotOwner, text).detail("NOT_APPROVER").origin("gateway")
}

fn bound_by_other() -> Failure {
    let text = "Another person bound this conversation; only that person or the operator of this gateway can \
                change the binding.";
    Failure::new(Code::NotOwner, text).detail("BOUND_BY_OTHER").origin("gateway")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ownership(session: &[&str], bindings: &[&str]) -> Ownership {
        let all = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        Ownership { session: all(session), bindings: all(bindings) }
    }

    #[test]
    fn requirements_are_checked_for_every_requester() {
        use AccessRequirement::{Anyone, Binder, Focus, Owner};
        let (yes, no, bound) = (None, Some(None), Some(Some("BOUND_BY_OTHER")));
        // Owners of the session, creators of the bindings; what each requirement gives, "anyone" always.
        let table: [(&[&str], &[&str], _); 8] = [
            (&["ann"], &["ann"], [(Owner, yes), (Binder, yes), (Focus, yes)]),
            (&["bob"], &["bob"], [(Owner, no), (Binder, bound), (Focus, no)]),
            (&[], &[SYSTEM], [(Owner, no), (Binder, yes), (Focus, no)]),
            (&["ann"], &["bob"], [(Owner, yes), (Binder, bound), (Focus, bound)]),
            (&["ann"], &[SYSTEM], [(Owner, yes), (Binder, yes), (Focus, yes)]),
            (&["bob", "ann"], &["ann", "bob"], [(Owner, yes), (Binder, bound), (Focus, bound)]),
            (&["ann"], &[], [(Owner, yes), (Binder, yes), (Focus, yes)]),
            (&[], &[], [(Owner, no), (Binder, yes), (Focus, no)]),
        ];
        for (session, bindings, row) in table {
            let (ownership, case) = (ownership(session, bindings), format!("{session:?} {bindings:?}"));
            for (requirement, want) in [(Anyone, yes)].into_iter().chain(row) {
                let of = |name, role| {
                    let requester = Requester { name, role, approves: ApprovalScope::Own };
                    requester.may(requirement, &ownership).err().map(|failure| {
                        assert_eq!(failure.code, Code::NotOwner);
                        failure.detail_code
                    })
                };
                let want = want.map(|detail: Option<&str>| detail.map(str::to_owned));
                assert_eq!(of("ann", RequesterRole::Person), want, "{case} {requirement:?}");
                assert_eq!(of("ann", RequesterRole::Sandboxed), want, "{case} {requirement:?}");
                assert_eq!(of("eve", RequesterRole::Operator), None, "{case} {requirement:?}");
                assert_eq!(of("", RequesterRole::Operator), None, "{case} {requirement:?}");
            }
        }
    }

    #[test]
    fn unnamed_requester_owns_nothing() {
        let unnamed = Requester { name: "", role: RequesterRole::Person, approves: ApprovalScope::Own };
        assert!(unnamed.may(AccessRequirement::Owner, &ownership(&[""], &[])).is_err());
        assert!(unnamed.may(AccessRequirement::Binder, &ownership(&[], &[""])).is_err());
    }

    #[test]
    fn sandboxed_agent_may_not_spawn() {
        use RequesterRole::{Operator, Person, Sandboxed};
        for (role, may) in [(Operator, true), (Person, true), (Sandboxed, false)] {
            let requester = Requester { name: "ann", role, approves: ApprovalScope::Own };
            assert_eq!(requester.may_spawn().is_ok(), may, "{role:?}");
        }
    }
}
