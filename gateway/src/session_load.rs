//! Makes a session's actor from what is committed, with what configuration says of its agent now.

use crate::core::actor::{Actor, Profile};
use crate::core::effect::{Fence, Snapshot};
use crate::core::link::Link;
use crate::core::rows::SessionRow;
use crate::error::Failure;
use crate::lookup::{Findings, Lookup};
use crate::runtime::missing::MissingLink;
use crate::session_task::Deps;
use acp_shared::codes::Code;
use acp_shared::ids::SessionKey;

/// Makes the actor from the database; from now on no earlier one of this session can write.
///
/// # Errors
/// `ACP_STORE_UNAVAILABLE`, `NO_SESSION`, `RUNTIME`.
pub(crate) async fn load(deps: &Deps, key: &SessionKey) -> Result<(Actor, Fence), Failure> {
    let (snapshot, fence) = deps.store.claim(key.clone()).await.map_err(Failure::from)?;
    Ok((make(deps, snapshot)?, fence))
}

/// Makes the actor from what was under way.
///
/// # Errors
/// `RUNTIME`.
pub(crate) fn make(deps: &Deps, snapshot: Snapshot) -> Result<Actor, Failure> {
    let saved = snapshot.lease.as_ref().map(|lease| lease.link_state.as_str());
    let unreadable = |error| {
        tracing::error!(session_key = %snapshot.session.session_key, %error, "the saved link state cannot be read");
        Failure::of(Code::Runtime).origin("gateway")
    };
    let limits = deps.profiles.limits(&snapshot.session.agent);
    // Without it the agent's words make no sense any more: it is ended, and the session goes on with another one.
    let (link, link_lost): (Box<dyn Link>, bool) = match deps.registry.get(&snapshot.session.backend) {
        Some(backend) => match backend.link(saved).map_err(unreadable) {
            Ok(link) => (link, false),
            Err(_) => (backend.link(None).map_err(unreadable)?, true),
        },
        // The session can still be closed; that nothing can be started is in its profile.
        None => (Box::new(MissingLink::new(saved)), true),
    };
    // What may no longer be started is still followed, cancelled and closed: only a start needs a valid profile.
    let profile = match configured(deps, &snapshot.session) {
        Ok(profile) => profile,
        Err(failure) => Profile::of_running(snapshot.lease.as_ref().map(|lease| &lease.spawn), failure),
    };
    let mut actor = Actor::restore(snapshot, link, profile, limits);
    if link_lost {
        actor.lose_link();
    }
    Ok(actor)
}

/// How the session's agent is treated, as far as configuration has it.
///
/// # Errors
/// `ACP_BACKEND_MISSING`, `ACP_AGENT_NOT_ALLOWED`.
pub(crate) fn configured(deps: &Deps, session: &SessionRow) -> Result<Profile, Failure> {
    deps.registry.require(&session.backend).map_err(|failure| {
        let message =
            format!("{} The session was made with the backend {}.", failure.message, session.backend);
        Failure { message, ..failure.detail("SESSION_BACKEND") }
    })?;
    deps.profiles.configured(&session.agent)
}

/// Everything that must be looked up before the session's agent is started.
pub(crate) fn lookup(deps: &Deps, session: &SessionRow) -> Lookup {
    let directories = &session.options.additional_directories;
    deps.profiles.lookup(&session.agent, Some(&session.cwd), directories)
}

/// How the session's agent may be started now: in the very directory that it was spawned in, which may have been
/// moved, replaced by a link or taken out of the roots since.
///
/// # Errors
/// `ACP_BACKEND_MISSING`, `ACP_AGENT_NOT_ALLOWED`, `ACP_CWD_NOT_ALLOWED`.
pub(crate) fn profile(deps: &Deps, session: &SessionRow, found: &Findings) -> Result<Profile, Failure> {
    configured(deps, session)?;
    let profile = deps.profiles.profile(&session.agent, found)?;
    let cwd = deps.profiles.cwd(&session.agent, Some(&session.cwd), found)?;
    if cwd != session.cwd {
        let why =
            format!("The working directory {} leads to {cwd} by now. Start a new session.", session.cwd);
        return Err(Failure::new(Code::CwdNotAllowed, why).origin("gateway"));
    }
    for directory in &session.options.additional_directories {
        if deps.profiles.directory(&session.agent, directory, found)? != *directory {
            let why =
                format!("The additional directory {directory} leads elsewhere by now. Start a new session.");
            return Err(Failure::new(Code::CwdNotAllowed, why).origin("gateway"));
        }
    }
    Ok(profile)
}
