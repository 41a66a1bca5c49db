//! Restores a session's actor from the database, with the current configuration of its agent.

use crate::runtime::lookup::{LookupRequest, LookupResults};
use crate::runtime::profiles::Profiles;
use crate::session::task::Deps;
use acp_core::actor::{Actor, AgentProfile};
use acp_core::backend::BackendMachine;
use acp_core::failure::Failure;
use acp_core::rows::SessionRow;
use acp_core::runtime::unavailable::UnavailableMachine;
use acp_core::writes::{ActorFence, ActorSnapshot};
use acp_shared::codes::Code;
use acp_shared::ids::{AgentName, SessionKey};

/// Restores the actor from the database, and returns it with the dependencies of the session's host. Earlier actors of this
/// session can no longer write.
///
/// # Errors
/// `ACP_STORE_UNAVAILABLE`, `NO_SESSION`, `RUNTIME`.
pub(crate) async fn load(deps: &Deps, key: &SessionKey) -> Result<(Deps, Actor, ActorFence), Failure> {
    let (snapshot, fence) = deps.store.claim(key.clone()).await.map_err(Failure::from)?;
    restore(deps, snapshot, fence)
}

/// Restores the actor from a claimed snapshot, and returns it with the dependencies of the session's host.
///
/// # Errors
/// `RUNTIME`.
pub(crate) fn restore(
    deps: &Deps,
    snapshot: ActorSnapshot,
    fence: ActorFence,
) -> Result<(Deps, Actor, ActorFence), Failure> {
    let deps = deps.on(snapshot.session.options.host_name());
    let actor = make(&deps, snapshot)?;
    Ok((deps, actor, fence))
}

/// Restores the actor from a snapshot.
///
/// # Errors
/// `RUNTIME`.
pub(crate) fn make(deps: &Deps, snapshot: ActorSnapshot) -> Result<Actor, Failure> {
    let saved = snapshot.lease.as_ref().map(|lease| lease.link_state.as_str());
    let unreadable = |error| {
        tracing::error!(
            session_key = %snapshot.session.session_key,
            %error,
            "saved backend state unreadable"
        );
        Failure::of(Code::Runtime).origin("gateway")
    };
    let limits = deps.host.profiles.limits(&snapshot.session.agent);
    // Without the backend state the output cannot be parsed: the agent is ended, and replaced by a new one.
    let (link, backend_state_lost): (Box<dyn BackendMachine>, bool) =
        match deps.host.registry.get(&snapshot.session.backend) {
            Some(backend) => match backend.machine(saved).map_err(unreadable) {
                Ok(link) => (link, false),
                Err(_) => (backend.machine(None).map_err(unreadable)?, true),
            },
            // The session can still be closed; its profile refuses a start.
            None => (Box::new(UnavailableMachine::new(saved)), true),
        };
    // An agent that may no longer be started can still be read, cancelled and closed.
    let profile = match configured(deps, &snapshot.session) {
        Ok(profile) => profile,
        Err(failure) => {
            AgentProfile::of_running_lease(snapshot.lease.as_ref().map(|lease| &lease.spawn), failure)
        }
    };
    let mut actor = Actor::restore(snapshot, link, profile, limits);
    if backend_state_lost {
        actor.mark_backend_state_lost();
    }
    Ok(actor)
}

/// Returns the profile of the session's agent from the configuration alone.
///
/// # Errors
/// `ACP_BACKEND_MISSING`, `ACP_AGENT_NOT_ALLOWED`.
pub(crate) fn configured(deps: &Deps, session: &SessionRow) -> Result<AgentProfile, Failure> {
    deps.host.registry.require(&session.backend).map_err(|failure| {
        let message =
            format!("{} The session was created with the backend {}.", failure.message, session.backend);
        Failure { message, ..failure.detail("SESSION_BACKEND") }
    })?;
    agent_profile(deps.host.profiles.as_ref(), &session.agent, &session.options.command, None)
}

/// Returns the profile of a session's agent: the configured one, or that of the session's own command. Without `found` the
/// configuration alone decides.
pub(super) fn agent_profile(
    profiles: &dyn Profiles,
    agent: &AgentName,
    command: &[String],
    found: Option<&LookupResults>,
) -> Result<AgentProfile, Failure> {
    match (command, found) {
        ([], None) => profiles.configured(agent),
        ([], Some(found)) => profiles.profile(agent, found),
        (command, found) => profiles.of_command(agent, command, found),
    }
}

/// Returns the programs and directories to look up before the session's agent is started.
pub(crate) fn lookup(deps: &Deps, session: &SessionRow) -> LookupRequest {
    let directories = &session.options.additional_directories;
    let mut lookup = deps.host.profiles.lookup(&session.agent, Some(&session.cwd), directories);
    lookup.programs.extend(session.options.command.first().cloned());
    lookup.programs.extend(deps.host.registry.get(&session.backend).iter().flat_map(|it| it.programs()));
    lookup
}

/// Returns the profile to start the session's agent now, in exactly the directory it was spawned in, which
/// may have been moved, replaced by a link or removed from the roots since.
///
/// # Errors
/// `ACP_BACKEND_MISSING`, `ACP_AGENT_NOT_ALLOWED`, `ACP_CWD_NOT_ALLOWED`.
pub(crate) fn profile(
    deps: &Deps,
    session: &SessionRow,
    found: &LookupResults,
) -> Result<AgentProfile, Failure> {
    configured(deps, session)?;
    let (profiles, command) = (deps.host.profiles.as_ref(), &session.options.command);
    let profile = agent_profile(profiles, &session.agent, command, Some(found))?;
    let cwd = deps.host.profiles.cwd(&session.agent, Some(&session.cwd), found)?;
    if cwd != session.cwd {
        let why =
            format!("The working directory {} now resolves to {cwd}. Start a new session.", session.cwd);
        return Err(moved(why, "working directory"));
    }
    for directory in &session.options.additional_directories {
        if deps.host.profiles.directory(&session.agent, directory, found)? != *directory {
            let why = format!(
                "The additional directory {directory} now resolves to another path. Start a new session."
            );
            return Err(moved(why, "additional directory"));
        }
    }
    deps.host.registry.require(&session.backend)?.launch(profile, session, &found.programs)
}

/// Builds the failure of a start in a directory that now lies elsewhere.
fn moved(text: String, what: &str) -> Failure {
    let shown = format!("The {what} of the session now resolves to another path. Start a new session.");
    Failure::new(Code::CwdNotAllowed, text).for_conversations(shown).origin("gateway")
}
