//! Projects: channels in which a message opens a child conversation with a session of its own
//! (`[[channels.discord.projects]]`). The entry is committed under the message's key before the session is
//! created, so that after a crash the same session, conversation and prompt are continued.

use super::{BindingError, SessionBindingService};
use crate::session::service::Service;
use acp_core::binding::{ConversationOrigin, Placement};
use acp_core::config::channels::Project;
use acp_core::failure::Failure;
use acp_core::request::{CloseRequest, SpawnRequest};
use acp_core::rows::ConversationRef;
use acp_shared::codes::Code;
use acp_shared::ids::{IdempotencyKey, SessionKey};
use acp_store::inbox::Inbound;
use acp_store::{Store, bindings, command_queries};
use std::sync::Arc;

/// Scope under which the entries of messages are stored.
const ENTRY_SCOPE: &str = "project";

/// Session opened for a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OpenedSession {
    /// Key of the session.
    pub(crate) session_key: SessionKey,
    /// Conversation of the session; `None` while it is not created yet.
    pub(crate) conversation: Option<ConversationRef>,
    /// Text for the author, if the conversation is not created yet.
    pub(crate) notice: Option<String>,
}

/// Opens sessions in the channels of projects. Cheap to clone.
#[derive(Clone)]
pub(crate) struct ProjectSessions {
    store: Store,
    bindings: SessionBindingService,
    service: Arc<dyn Service>,
}

impl ProjectSessions {
    /// Creates the service.
    pub(crate) fn new(store: Store, bindings: SessionBindingService, service: Arc<dyn Service>) -> Self {
        Self { store, bindings, service }
    }

    /// Opens a session for a message in an unbound channel of a project; `None` in other conversations.
    ///
    /// # Errors
    /// As [`Service::spawn`] and [`SessionBindingService::binding_of_spawn`]; `ACP_NOT_BOUND` if the binding
    /// ended meanwhile.
    pub(crate) async fn open(
        &self,
        inbound: &Inbound,
        key: &IdempotencyKey,
    ) -> Result<Option<OpenedSession>, Failure> {
        let Some(project) = self.entry(inbound, key).await? else { return Ok(None) };
        self.service.policy(&inbound.conversation).may_prompt()?;
        let origin =
            ConversationOrigin { message_id: inbound.message_id.clone(), title: inbound.text.clone() };
        let request = SpawnRequest {
            agent: project.agent,
            cwd: project.cwd.map(|cwd| cwd.display().to_string()),
            permission: project.permission,
            bind: Some(inbound.conversation.clone()),
            placement: Placement::Child,
            origin: Some(origin),
            author: inbound.who().to_owned(),
            interactive: true,
            ..SpawnRequest::default()
        };
        let session_key = self.service.spawn(request, key.clone()).await?.session_key;
        let failure = match self.bindings.binding_of_spawn(&session_key).await {
            Ok(Some(bound)) => {
                let conversation = Some(bound.binding.conversation);
                return Ok(Some(OpenedSession { session_key, conversation, notice: None }));
            }
            Err(error @ BindingError::NotMadeYet { .. }) => {
                let notice = Some(Failure::from(error).message);
                return Ok(Some(OpenedSession { session_key, conversation: None, notice }));
            }
            Err(error @ BindingError::NotMade { .. }) => Failure::from(error),
            Ok(None) => {
                let text =
                    "The thread of this message was unbound before the agent got the message. Send it again.";
                Failure::new(Code::NotBound, text)
            }
            Err(error) => return Err(error.into()),
        };
        // Its output would be visible nowhere, so the session is closed.
        let request = CloseRequest::new("spawn-failed: its conversation could not be made");
        self.service.close(&session_key, request, key.clone()).await?;
        Err(failure)
    }

    /// Returns the entry committed for a message, or commits the one of its channel.
    async fn entry(&self, inbound: &Inbound, key: &IdempotencyKey) -> Result<Option<Project>, Failure> {
        let (at, of) = (inbound.conversation.clone(), key.clone());
        let config = self.service.config();
        let found = config.config.channels.discord.project_of(&at);
        // Only a message in the channel itself opens a session, and not one in a thread below.
        let Some(project) = found.filter(|project| project.channel == at.conversation_id).cloned() else {
            let before =
                self.store.read("project_before", move |db| command_queries::before(db, ENTRY_SCOPE, &of));
            return Ok(before.await?);
        };
        let decided = self.store.write("project_decide", move |tx| {
            if bindings::of_conversation(tx, &at)?.is_some() {
                return command_queries::before(tx, ENTRY_SCOPE, &of);
            }
            command_queries::run_once(tx, ENTRY_SCOPE, &of, || Ok(project)).map(Some)
        });
        Ok(decided.await?)
    }
}
