//! Access to the routes of the API: one table with the scope that each needs. A route without an entry is refused, and
//! what a principal may not see is answered like what does not exist.

use crate::api::extract::ApiError;
use crate::api::web_files;
use crate::api::web_gate::{TokenFault, unauthorized};
use crate::metrics::Metrics;
use crate::runtime::agents::DEMO;
use crate::session::service::Service;
use acp_core::api::ACTS_FOR_HEADER;
use acp_core::failure::Failure;
use acp_core::options::Setting;
use acp_core::policy::{PolicyScope, effective_policy};
use acp_core::preset;
use acp_core::principal::{Principal, Scope};
use acp_core::request::SpawnRequest;
use acp_core::rows::{RunPermissions, SessionOptions, SessionRow};
use acp_core::visibility::{Action, AgentRequester, principal_sees};
use acp_core::widening::{scope_of_permission, scope_of_servers, scope_of_setting};
use acp_shared::codes::Code;
use acp_shared::ids::{AgentName, SessionKey};
use axum::Router;
use axum::extract::{FromRequestParts as _, MatchedPath, RawPathParams, Request, State};
use axum::http::Method;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use std::collections::HashMap;
use std::sync::Arc;

/// Maximum number of remembered decisions of a [`VisibleSessions`].
const KNOWN_MAX: usize = 10_000;

/// Start of every session key, which no name of an agent has.
const KEY_START: &str = "agent:";

/// Share of a route's response for a principal that sees only some sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reach {
    /// The same as others: the route shows no session.
    Nothing,
    /// The session `{key}`, if the principal may perform this action on it.
    Session(Action),
    /// What the handler selects for it.
    Selected,
    /// Nothing: the route shows or does more than sessions of single agents.
    Everything,
}
use Action::{History, Send, Status};
use Reach::{Everything, Nothing, Selected, Session};

/// Entry of the table.
#[derive(Debug, Clone, Copy)]
struct Access {
    method: &'static str,
    path: &'static str,
    /// Scope that is needed; `None`: not even a token.
    scope: Option<Scope>,
    reach: Reach,
}

const fn access(method: &'static str, path: &'static str, scope: Scope, reach: Reach) -> Access {
    Access { method, path, scope: Some(scope), reach }
}

/// All routes. Some handlers need more for some requests: see [`acp_core::widening`].
const ACCESS: &[Access] = &[
    Access { method: "GET", path: "/health", scope: None, reach: Nothing },
    // For balancers.
    Access { method: "GET", path: "/v1/owner", scope: None, reach: Nothing },
    // The code is the credential.
    Access { method: "POST", path: "/v1/login", scope: None, reach: Nothing },
    access("POST", "/v1/logout", Scope::Read, Nothing),
    access("GET", "/v1/whoami", Scope::Read, Nothing),
    access("POST", "/v1/console/open", Scope::Admin, Everything),
    access("GET", "/v1/openapi.json", Scope::Read, Nothing),
    access("GET", "/v1/capabilities", Scope::Read, Nothing),
    access("GET", "/v1/stream", Scope::Read, Selected),
    access("GET", "/v1/permissions", Scope::Read, Selected),
    access("GET", "/v1/health", Scope::Read, Nothing),
    access("GET", "/v1/status", Scope::Read, Everything),
    access("GET", "/metrics", Scope::Read, Everything),
    access("GET", "/v1/agents", Scope::Read, Selected),
    // A session may be started in these directories, and can list them, too.
    access("GET", "/v1/directories", Scope::Prompt, Selected),
    access("GET", "/v1/doctor", Scope::Read, Everything),
    access("GET", "/v1/leases", Scope::Read, Everything),
    access("GET", "/v1/leases/{id}", Scope::Read, Everything),
    access("GET", "/v1/audit", Scope::Read, Selected),
    access("GET", "/v1/sessions", Scope::Read, Selected),
    access("GET", "/v1/acpx/sessions", Scope::Read, Selected),
    access("POST", "/v1/sessions", Scope::Prompt, Selected),
    access("GET", "/v1/sessions/{key}", Scope::Read, Session(Status)),
    access("PATCH", "/v1/sessions/{key}", Scope::Prompt, Session(History)),
    access("POST", "/v1/sessions/{key}/release", Scope::Prompt, Session(History)),
    access("GET", "/v1/sessions/{key}/export", Scope::Read, Session(History)),
    access("GET", "/v1/sessions/{key}/diff", Scope::Read, Session(History)),
    access("GET", "/v1/sessions/{key}/files", Scope::Read, Session(History)),
    access("GET", "/v1/sessions/{key}/files/content", Scope::Read, Session(History)),
    access("GET", "/v1/sessions/{key}/files/entries", Scope::Read, Session(History)),
    access("POST", "/v1/sessions/{key}/prompt", Scope::Prompt, Session(Send)),
    access("POST", "/v1/sessions/{key}/cancel", Scope::Prompt, Session(History)),
    access("POST", "/v1/sessions/{key}/close", Scope::Prompt, Session(History)),
    access("POST", "/v1/sessions/{key}/archive", Scope::Prompt, Session(History)),
    access("POST", "/v1/sessions/{key}/delete", Scope::Prompt, Session(History)),
    access("POST", "/v1/sessions/{key}/reset", Scope::Prompt, Session(History)),
    access("POST", "/v1/sessions/{key}/unbind", Scope::Prompt, Session(History)),
    access("POST", "/v1/sessions/{key}/new", Scope::Prompt, Session(History)),
    access("POST", "/v1/sessions/{key}/options", Scope::Prompt, Session(History)),
    access("GET", "/v1/sessions/{key}/permissions", Scope::Read, Session(History)),
    access("POST", "/v1/sessions/{key}/permissions/{id}", Scope::Approve, Session(History)),
    access("GET", "/v1/sessions/{key}/events", Scope::Read, Session(History)),
    access("GET", "/v1/sessions/{key}/log", Scope::Read, Session(History)),
    // A message in a console conversation may be any command of the operator.
    access("GET", "/v1/console/conversations/{id}", Scope::Read, Everything),
    access("GET", "/v1/console/conversations/{id}/messages", Scope::Read, Everything),
    access("POST", "/v1/console/conversations/{id}/messages", Scope::Admin, Everything),
    // Each call of an ACP client has a scope of its own.
    access("GET", "/acp", Scope::Read, Selected),
    access("POST", "/acp", Scope::Read, Selected),
    access("DELETE", "/acp", Scope::Read, Selected),
    access("GET", "/acp/{agent}", Scope::Read, Selected),
    access("POST", "/acp/{agent}", Scope::Read, Selected),
    access("DELETE", "/acp/{agent}", Scope::Read, Selected),
    access("GET", "/v1/tokens", Scope::Admin, Everything),
    access("POST", "/v1/tokens", Scope::Admin, Everything),
    access("DELETE", "/v1/tokens/{token}", Scope::Admin, Everything),
];

fn entry(method: &Method, path: &str) -> Option<&'static Access> {
    // A route that answers GET answers HEAD.
    let method = if method == Method::HEAD { "GET" } else { method.as_str() };
    ACCESS.iter().find(|entry| entry.path == path && entry.method == method)
}

/// True if the request needs no token.
pub(super) fn is_open(request: &Request) -> bool {
    web_files::is_file(request)
        || entry(request.method(), request.uri().path()).is_some_and(|entry| entry.scope.is_none())
}

/// Refuses the request unless the principal has the scope.
///
/// # Errors
/// `PERMISSION_DENIED` with the needed scope.
pub(crate) fn require(principal: &Principal, scope: Scope, what: &str) -> Result<(), Failure> {
    if principal.may(scope) {
        return Ok(());
    }
    let text = format!("{what} needs scope {scope}; {} has scope {}", principal.name, principal.scope);
    Err(Failure::new(Code::PermissionDenied, text).detail("SCOPE_REQUIRED").origin("gateway"))
}

/// Refuses what concerns all agents to a principal that may use only some.
///
/// # Errors
/// `PERMISSION_DENIED`.
pub(crate) fn require_all_agents(principal: &Principal) -> Result<(), Failure> {
    if !principal.is_limited() {
        return Ok(());
    }
    let text = format!("{} may use only some agents, and this concerns all of them", principal.name);
    Err(Failure::new(Code::PermissionDenied, text).detail("AGENTS_LIMITED").origin("gateway"))
}

/// Checks what a new session needs beyond the scope `prompt`: the agent, its permission mode, programs of the client, and
/// the session that owns the new one.
///
/// # Errors
/// `AGENT_NOT_ALLOWED`, `PERMISSION_DENIED`, `NO_SESSION`.
pub(crate) async fn authorize_spawn(
    service: &dyn Service,
    principal: &Principal,
    request: &SpawnRequest,
) -> Result<(), Failure> {
    if let Some(agent) = &principal.acts_for {
        let text = format!("a session cannot be started for {}: leave out {ACTS_FOR_HEADER}", agent.agent);
        return Err(Failure::new(Code::PermissionDenied, text).detail("AGENTS_LIMITED").origin("gateway"));
    }
    let loaded = service.config();
    let agent = request.agent.as_ref().or(loaded.config.acp.default_agent.as_ref());
    if agent.is_some_and(|agent| !principal.may_use_agent(agent.as_str())) {
        return Err(Failure::of(Code::AgentNotAllowed));
    }
    if let Some(mode) = request.permission {
        // Without an agent, the spawn is refused later.
        let scope = agent.map_or_else(PolicyScope::default, |agent| PolicyScope::default().with_agent(agent));
        let configured = effective_policy(&loaded, &scope).permission.mode.value;
        require(principal, scope_of_permission(configured, mode), "a wider permission mode than configured")?;
    }
    let programs = "starting MCP servers of your own on the gateway's machine";
    require(principal, scope_of_servers(&request.mcp_servers), programs)?;
    if !request.command.is_empty() {
        require(principal, Scope::Admin, "running a command of your own as an agent")?;
    }
    if request.auth_method.is_some() {
        require(principal, Scope::Admin, "signing an agent in")?;
    }
    if request.resume.is_some() || request.listing.is_some() {
        require(principal, Scope::Admin, "the conversations that an agent has stored")?;
    }
    if let Some(key) = &request.spawned_by
        && principal.is_limited()
    {
        visible_session(service, principal, key, Status).await?;
    }
    Ok(())
}

/// Checks the scope that a setting of a session needs.
///
/// # Errors
/// `PERMISSION_DENIED`.
pub(crate) fn authorize_setting(
    principal: &Principal,
    setting: &Setting,
    now: &SessionOptions,
) -> Result<(), Failure> {
    require(principal, scope_of_setting(setting, now), "a setting that lets the agent do more")
}

/// Checks the scope that the permission settings of a run need.
///
/// # Errors
/// `PERMISSION_DENIED`.
pub(crate) fn authorize_run(
    principal: &Principal,
    permissions: RunPermissions,
    now: &SessionOptions,
) -> Result<(), Failure> {
    let mode = permissions.mode.map(Setting::Permission);
    let policy = permissions.non_interactive.map(Setting::NonInteractive);
    mode.iter().chain(&policy).try_for_each(|setting| authorize_setting(principal, setting, now))
}

/// Returns a session with which the principal may do this.
///
/// # Errors
/// `NO_SESSION` if there is none, or the principal may not see it.
pub(crate) async fn visible_session(
    service: &dyn Service,
    principal: &Principal,
    key: &SessionKey,
    action: Action,
) -> Result<SessionRow, Failure> {
    let row = service.session(key).await?;
    if principal_sees(principal, &row, action) { Ok(row) } else { Err(Failure::of(Code::NoSession)) }
}

/// Sessions with which a principal may do something, each looked up once.
pub(crate) struct VisibleSessions {
    service: Arc<dyn Service>,
    principal: Principal,
    action: Action,
    known: HashMap<SessionKey, bool>,
}

impl VisibleSessions {
    /// Creates the selection for a principal.
    pub(crate) fn new(service: &Arc<dyn Service>, principal: Principal, action: Action) -> Self {
        Self { service: Arc::clone(service), principal, action, known: HashMap::new() }
    }

    /// True if the principal may see the session.
    ///
    /// # Errors
    /// As [`Service::session`], except for a session that does not exist.
    pub(crate) async fn sees(&mut self, key: &SessionKey) -> Result<bool, Failure> {
        if !self.principal.is_limited() {
            return Ok(true);
        }
        if let Some(sees) = self.known.get(key) {
            return Ok(*sees);
        }
        let sees = match visible_session(self.service.as_ref(), &self.principal, key, self.action).await {
            Ok(_) => true,
            Err(failure) if failure.code == Code::NoSession => false,
            Err(failure) => return Err(failure),
        };
        if self.known.len() >= KNOWN_MAX {
            self.known.clear();
        }
        self.known.insert(key.clone(), sees);
        Ok(sees)
    }
}

/// Returns the principal as one that asks for an agent: the agent of a session, or an agent without one. It then sees what
/// both see.
///
/// # Errors
/// `NO_SESSION` if there is no such session, or the principal may not see it; `USAGE` for an unknown agent.
async fn acting_for(service: &dyn Service, principal: Principal, name: &str) -> Result<Principal, Failure> {
    let config = &service.config().config;
    let agent = if name.starts_with(KEY_START) {
        let key = SessionKey::parse(name).map_err(|_| Failure::of(Code::NoSession))?;
        AgentRequester::of_session(&visible_session(service, &principal, &key, Status).await?, config)
    } else {
        let agent = AgentName::parse(name).ok().filter(|agent| {
            let is_built_in = agent.as_str() == DEMO || preset::find(agent.as_str()).is_some();
            let is_known = is_built_in || config.agents.contains_key(agent);
            is_known && principal.may_use_agent(agent.as_str())
        });
        let Some(agent) = agent else {
            let text = format!("{name:?} is neither a session nor an agent that you may use");
            return Err(Failure::new(Code::Usage, text).origin("gateway"));
        };
        AgentRequester::of_agent(agent, service.instance_id(), config)
    };
    let name = agent.session.as_ref().map_or_else(|| agent.agent.to_string(), ToString::to_string);
    Ok(Principal { name, acts_for: Some(Arc::new(agent)), ..principal })
}

/// What the check of a request uses.
#[derive(Clone)]
struct AccessCheck {
    service: Arc<dyn Service>,
    metrics: Metrics,
}

/// Adds the check of each request to all routes.
pub(crate) fn protected(routes: Router, service: Arc<dyn Service>, metrics: Metrics) -> Router {
    routes.layer(from_fn_with_state(AccessCheck { service, metrics }, check))
}

async fn check(State(check): State<AccessCheck>, request: Request, next: Next) -> Response {
    // Unknown paths have no handler: their answer tells nothing.
    let Some(path) = request.extensions().get::<MatchedPath>().cloned() else {
        return next.run(request).await;
    };
    let (mut parts, body) = request.into_parts();
    let Some(entry) = entry(&parts.method, path.as_str()) else {
        return crate::api::unsupported_method().into_response();
    };
    let Some(scope) = entry.scope else { return next.run(Request::from_parts(parts, body)).await };
    let Some(mut principal) = parts.extensions.get::<Principal>().cloned() else {
        return unauthorized(TokenFault::Missing);
    };
    if let Some(name) = parts.headers.get(ACTS_FOR_HEADER) {
        principal =
            match acting_for(check.service.as_ref(), principal, name.to_str().unwrap_or_default()).await {
                Ok(principal) => principal,
                Err(refused) => return ApiError::from(refused).into_response(),
            };
        parts.extensions.insert(principal.clone());
    }
    if let Err(refused) = require(&principal, scope, &format!("{} {}", entry.method, entry.path)) {
        check.metrics.api_refused("any", "scope");
        return ApiError::from(refused).into_response();
    }
    if principal.is_limited() {
        let params = RawPathParams::from_request_parts(&mut parts, &()).await.ok();
        let key = params.iter().flatten().find(|(name, _)| *name == "key").map(|(_, key)| key.to_owned());
        if let Err(refused) = check.reach(&principal, entry.reach, key.as_deref()).await {
            check.metrics.api_refused("any", "agent");
            return ApiError::from(refused).into_response();
        }
    }
    next.run(Request::from_parts(parts, body)).await
}

impl AccessCheck {
    async fn reach(&self, principal: &Principal, reach: Reach, key: Option<&str>) -> Result<(), Failure> {
        match reach {
            Nothing | Selected => Ok(()),
            Everything => require_all_agents(principal),
            Session(action) => {
                let key = SessionKey::parse(key.unwrap_or_default());
                let key = key.map_err(|_| Failure::of(Code::NoSession))?;
                visible_session(self.service.as_ref(), principal, &key, action).await.map(drop)
            }
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Paths and methods of the table.
    pub(crate) fn listed() -> Vec<(&'static str, &'static str)> {
        ACCESS.iter().map(|entry| (entry.path, entry.method)).collect()
    }

    #[test]
    fn table_has_one_entry_for_each_method_and_path() {
        let mut all = listed();
        all.sort_unstable();
        let count = all.len();
        all.dedup();
        assert_eq!(all.len(), count);
        assert!(entry(&Method::HEAD, "/v1/health").is_some() && entry(&Method::PUT, "/v1/health").is_none());
    }

    #[test]
    fn routes_of_a_session_are_limited_to_its_agent() {
        for entry in ACCESS {
            assert_eq!(entry.path.contains("{key}"), matches!(entry.reach, Session(_)), "{entry:?}");
        }
    }
}
