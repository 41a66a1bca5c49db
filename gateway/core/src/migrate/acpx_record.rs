//! Records of sessions that acpx keeps: the conversation's id at the agent, and if it can be resumed.

use super::fields::Fields;
use serde_json::Value;

/// Record of a session of acpx.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AcpxRecord {
    /// Id of the record.
    pub record_id: String,
    /// Name of the session, if it has one.
    pub name: Option<String>,
    /// Id of the conversation at the agent.
    pub acp_session_id: Option<String>,
    /// True if the agent can resume or load conversations; `None` if unknown.
    pub can_resume: Option<bool>,
    /// True if the session is closed.
    pub is_closed: bool,
}

/// Reads a record in one of its two forms.
///
/// # Errors
/// The reason why it is no such record.
pub fn acpx_record(file: &Value) -> Result<AcpxRecord, String> {
    let fields = Fields::of(file)?;
    let (id, session, capabilities) = match fields.text("schema")? {
        Some("acpx.session.v1") => ("acpx_record_id", "acp_session_id", "agent_capabilities"),
        Some("openclaw.acpx.session.v1") => ("acpxRecordId", "acpSessionId", "agentCapabilities"),
        Some(_) => {
            return Err("its `schema` is none of acpx.session.v1 and openclaw.acpx.session.v1".to_owned());
        }
        None => return Err("it has no `schema`".to_owned()),
    };
    let can_resume = match fields.object(capabilities)? {
        None => None,
        Some(found) => {
            let resume = found.object("sessionCapabilities")?.is_some_and(|of| {
                of.0.get("resume").is_some_and(|resume| !resume.is_null() && *resume != Value::Bool(false))
            });
            Some(found.flag("loadSession")?.unwrap_or(false) || resume)
        }
    };
    let own = |text: Option<&str>| text.map(str::to_owned);
    Ok(AcpxRecord {
        record_id: fields.required(id)?.to_owned(),
        name: own(fields.text("name")?),
        acp_session_id: own(fields.text(session)?),
        can_resume,
        is_closed: fields.flag("closed")?.unwrap_or(false),
    })
}
