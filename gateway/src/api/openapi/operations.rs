//! Table of the operations.

use super::{Answer, Operation, SchemaOf, list, named, object};
use crate::api::acpx::NameListQuery;
use crate::api::console::{
    ConsoleMessageBody, ConsoleMessageResponse, ConversationView, MessagesPage, MessagesQuery,
};
use crate::api::events::{EventsQuery, StreamQuery};
use crate::api::export::{DiffQuery, ExportQuery};
use crate::api::files::{ContentQuery, DirectoriesQuery, EntriesQuery, FilesQuery};
use crate::api::host::AuditQuery;
use crate::api::session_log::LogQuery;
use crate::api::sessions::ListQuery;
use acp_core::api::{
    AcpxSessionView, AgentView, AnswerBody, AuditView, BoundView, CancelBody, CapabilitiesView, CheckView,
    CloseBody, ConsoleBody, DiffView, DirectoriesView, Done, EntriesView, EventsPage, EvidenceView,
    FilesView, HealthView, HostView, IdentityView, LeaseView, LogPage, LoginBody, LoginView, NamedPromptBody,
    NamedPromptView, NewBody, OptionBody, OwnerView, PendingPermissionView, PermissionView, PromptBody,
    ReleaseBody, SessionPatch, SessionView, SpawnBody, SpawnedView, StatusView, TokenBody, TokenCreatedView,
    TokenView, UnbindBody,
};
use acp_core::request::{CancelResult, PromptAccepted, SessionStatus};
use utoipa::IntoParams;
use utoipa::openapi::path::{Parameter, ParameterIn};

fn query<T: IntoParams>() -> Vec<Parameter> {
    T::into_params(|| Some(ParameterIn::Query))
}

const fn get(path: &'static str, id: &'static str, summary: &'static str, answer: Answer) -> Operation {
    Operation { method: "get", path, id, summary, query: None, body: None, answer, errors: &[] }
}

const fn post(
    path: &'static str,
    id: &'static str,
    summary: &'static str,
    body: SchemaOf,
    answer: SchemaOf,
) -> Operation {
    let answer = Answer::Json(answer);
    Operation { method: "post", path, id, summary, query: None, body: Some(body), answer, errors: &[] }
}

impl Operation {
    const fn with(self, query: fn() -> Vec<Parameter>) -> Self {
        Self { query: Some(query), ..self }
    }

    const fn failing(self, errors: &'static [u16]) -> Self {
        Self { errors, ..self }
    }
}

/// All operations.
pub(super) const OPERATIONS: &[Operation] = &[
    get("/health", "liveness", "Tell that the gateway answers; needs no token", Answer::Json(named::<Done>)),
    get(
        "/metrics",
        "metrics",
        "Read the metrics in the format of OpenMetrics",
        Answer::Text(&["application/openmetrics-text"]),
    ),
    get("/v1/openapi.json", "openapi", "Read this document", Answer::Json(object)),
    get(
        "/v1/capabilities",
        "capabilities",
        "Read versions and limits of the API",
        Answer::Json(named::<CapabilitiesView>),
    ),
    get("/v1/health", "health", "Read the health of the gateway", Answer::Json(named::<HealthView>)),
    get(
        "/v1/owner",
        "owner",
        "Report which gateway serves the control plane; 503 on one that stands by; needs no token",
        Answer::Json(named::<OwnerView>),
    ),
    get(
        "/v1/status",
        "status",
        "Read the state of the gateway and of what it uses",
        Answer::Json(named::<StatusView>),
    ),
    get("/v1/agents", "listAgents", "List the agents", Answer::Json(list::<AgentView>)).failing(&[502]),
    get(
        "/v1/directories",
        "completeDirectory",
        "Complete the working directory of a new session",
        Answer::Json(named::<DirectoriesView>),
    )
    .with(query::<DirectoriesQuery>)
    .failing(&[502]),
    get("/v1/doctor", "doctor", "Check the installation", Answer::Json(list::<CheckView>)),
    get("/v1/hosts", "listHosts", "List the machines that run agents", Answer::Json(list::<HostView>)),
    get("/v1/leases", "listLeases", "List the leases of the gateway", Answer::Json(list::<LeaseView>))
        .failing(&[502]),
    get(
        "/v1/leases/{id}",
        "showLease",
        "Compare the record of a lease with its processes",
        Answer::Json(named::<EvidenceView>),
    )
    .failing(&[404, 502]),
    get(
        "/v1/audit",
        "audit",
        "List settled permission requests with who answered them, the newest first",
        Answer::Json(list::<AuditView>),
    )
    .with(query::<AuditQuery>),
    get("/v1/stream", "stream", "Follow the events of all sessions", Answer::Events)
        .with(query::<StreamQuery>)
        .failing(&[404]),
    get(
        "/v1/permissions",
        "listPermissions",
        "List the pending permission requests",
        Answer::Json(list::<PendingPermissionView>),
    ),
    get("/v1/sessions", "listSessions", "List sessions", Answer::JsonPage(list::<SessionView>))
        .with(query::<ListQuery>),
    get(
        "/v1/acpx/sessions",
        "listAcpxSessions",
        "List the sessions with names in the contract of acpx",
        Answer::Json(list::<AcpxSessionView>),
    )
    .with(query::<NameListQuery>),
    Operation {
        answer: Answer::JsonOrEvents(named::<NamedPromptView>),
        ..post(
            "/v1/acpx/prompt",
            "promptAcpxSession",
            "Send a prompt to the open session with a name; a stream begins with the response, and has the journal rows of the turn",
            named::<NamedPromptBody>,
            object,
        )
    },
    post("/v1/sessions", "spawn", "Start a session", named::<SpawnBody>, named::<SpawnedView>)
        .failing(&[404]),
    get("/v1/sessions/{key}", "show", "Show a session", Answer::Json(named::<SessionView>)),
    Operation {
        method: "patch",
        ..post(
            "/v1/sessions/{key}",
            "patch",
            "Change the label of a session",
            named::<SessionPatch>,
            named::<SessionStatus>,
        )
    },
    post(
        "/v1/sessions/{key}/prompt",
        "prompt",
        "Send a prompt, or steer the running turn",
        named::<PromptBody>,
        named::<PromptAccepted>,
    ),
    post("/v1/sessions/{key}/cancel", "cancel", "Stop a run", named::<CancelBody>, named::<CancelResult>),
    post(
        "/v1/sessions/{key}/release",
        "release",
        "End the agent's process; the session stays",
        named::<ReleaseBody>,
        named::<SessionStatus>,
    ),
    post("/v1/sessions/{key}/close", "close", "Close a session", named::<CloseBody>, named::<SessionStatus>),
    post(
        "/v1/sessions/{key}/archive",
        "archive",
        "Close a session and keep it in lists",
        named::<CloseBody>,
        named::<SessionStatus>,
    ),
    post(
        "/v1/sessions/{key}/delete",
        "delete",
        "Close a session and hide it from lists",
        named::<CloseBody>,
        named::<SessionStatus>,
    ),
    post(
        "/v1/sessions/{key}/reset",
        "reset",
        "Close a session to begin again",
        named::<CloseBody>,
        named::<SessionStatus>,
    ),
    post(
        "/v1/sessions/{key}/unbind",
        "unbind",
        "Unbind conversations from a session",
        named::<UnbindBody>,
        list::<BoundView>,
    ),
    post(
        "/v1/sessions/{key}/new",
        "newConversation",
        "Begin a new conversation with the next prompt",
        named::<NewBody>,
        named::<SessionStatus>,
    ),
    post(
        "/v1/sessions/{key}/options",
        "setOption",
        "Change one setting of a session",
        named::<OptionBody>,
        named::<SessionStatus>,
    ),
    get(
        "/v1/sessions/{key}/permissions",
        "listSessionPermissions",
        "List the pending permission requests of a session",
        Answer::Json(list::<PermissionView>),
    ),
    post(
        "/v1/sessions/{key}/permissions/{id}",
        "answerPermission",
        "Answer a permission request",
        named::<AnswerBody>,
        named::<Done>,
    ),
    get(
        "/v1/sessions/{key}/events",
        "events",
        "Read or follow the journal of a session",
        Answer::JsonOrEvents(named::<EventsPage>),
    )
    .with(query::<EventsQuery>),
    get(
        "/v1/sessions/{key}/log",
        "log",
        "Read the standard error of a session's agents",
        Answer::Json(named::<LogPage>),
    )
    .with(query::<LogQuery>)
    .failing(&[502]),
    get(
        "/v1/sessions/{key}/export",
        "export",
        "Read the whole journal of a session",
        Answer::Text(&["application/x-ndjson", "text/markdown"]),
    )
    .with(query::<ExportQuery>),
    get(
        "/v1/sessions/{key}/diff",
        "diff",
        "Read the changes of files that the agent reported",
        Answer::Json(named::<DiffView>),
    )
    .with(query::<DiffQuery>),
    get(
        "/v1/sessions/{key}/files",
        "files",
        "List the directories of a session, and inspect a file",
        Answer::Json(named::<FilesView>),
    )
    .with(query::<FilesQuery>)
    .failing(&[413, 502]),
    get(
        "/v1/sessions/{key}/files/content",
        "fileContent",
        "Read a file of a session",
        Answer::Text(&["text/plain"]),
    )
    .with(query::<ContentQuery>)
    .failing(&[413, 502]),
    get(
        "/v1/sessions/{key}/files/entries",
        "fileEntries",
        "List a directory of a session",
        Answer::Json(named::<EntriesView>),
    )
    .with(query::<EntriesQuery>)
    .failing(&[413, 502]),
    get(
        "/v1/console/conversations/{id}",
        "showConversation",
        "Show the session of a console conversation",
        Answer::Json(named::<ConversationView>),
    ),
    get(
        "/v1/console/conversations/{id}/messages",
        "listMessages",
        "Read or follow a console conversation",
        Answer::JsonOrEvents(named::<MessagesPage>),
    )
    .with(query::<MessagesQuery>),
    post(
        "/v1/console/conversations/{id}/messages",
        "postMessage",
        "Send a message to a console conversation",
        named::<ConsoleMessageBody>,
        named::<ConsoleMessageResponse>,
    )
    .failing(&[404]),
    post(
        "/v1/login",
        "login",
        "Exchange a one-time code of the console for a token; needs no token",
        named::<LoginBody>,
        named::<LoginView>,
    ),
    Operation {
        method: "post",
        ..get(
            "/v1/logout",
            "logout",
            "End the sign-in of the token that is sent",
            Answer::Json(named::<Done>),
        )
    },
    get("/v1/whoami", "whoami", "Tell who sends the request", Answer::Json(named::<IdentityView>)),
    Operation {
        answer: Answer::Events,
        ..post(
            "/v1/console/open",
            "openConsole",
            "Open a console for as long as the response is read; for local users only",
            named::<ConsoleBody>,
            object,
        )
    },
    get(
        "/v1/tokens",
        "listTokens",
        "List the tokens; for local users and their consoles only",
        Answer::Json(list::<TokenView>),
    ),
    post(
        "/v1/tokens",
        "addToken",
        "Add a token; for local users only",
        named::<TokenBody>,
        named::<TokenCreatedView>,
    ),
    Operation {
        method: "delete",
        ..get(
            "/v1/tokens/{token}",
            "revokeToken",
            "Revoke a token by its id or name; for local users and their consoles only",
            Answer::Json(named::<TokenView>),
        )
        .failing(&[404])
    },
];
