//! Settings, description and close of a session for a client.

use super::calls::{Caller, Replied};
use crate::api::access::authorize_setting;
use crate::api::sessions::describe;
use acp_core::agent_settings::MODEL_OPTION;
use acp_core::jsonrpc::put;
use acp_core::northbound::answers::{config_options, settings};
use acp_core::options::Setting;
use acp_shared::ids::{IdempotencyKey, SessionKey};
use serde_json::json;
use std::time::Duration;

/// Maximum wait of a close for the ends of the connection's turns, in milliseconds.
const CLOSE_WAIT_MS: u64 = 10_000;

impl Caller {
    /// `session/set_mode`.
    pub(super) async fn set_mode(&self, session: &SessionKey, mode: String) -> Replied {
        self.require(session)?;
        let (setting, row) = (Setting::Mode(mode), self.server.service.session(session).await?);
        authorize_setting(self.connection.principal(), &setting, &row.options)?;
        self.server.service.set(session, setting, IdempotencyKey::mint()).await?;
        Ok(Some(json!({})))
    }

    /// `session/set_config_option`: answers with the complete list.
    pub(super) async fn set_option(&self, session: &SessionKey, id: String, value: String) -> Replied {
        self.require(session)?;
        let row = self.server.service.session(session).await?;
        let setting = Setting::Config { id, value };
        authorize_setting(self.connection.principal(), &setting, &row.options)?;
        let is_model = |id: &str| {
            id == MODEL_OPTION || row.options.agent.model_option().is_some_and(|model| model.id == id)
        };
        let setting = match setting {
            Setting::Config { id, value } if is_model(&id) => Setting::Model(value),
            setting => setting,
        };
        self.server.service.set(session, setting, IdempotencyKey::mint()).await?;
        let row = self.server.service.session(session).await?;
        Ok(Some(json!({ "configOptions": config_options(&row.options) })))
    }

    /// `_acphost/session/show`.
    pub(super) async fn show(&self, session: &SessionKey) -> Replied {
        let service = self.server.service.as_ref();
        let row = service.session(session).await?;
        let mut result = settings(&row.options);
        put(&mut result, "session", json!(describe(service, row).await?));
        Ok(Some(result))
    }

    /// `session/close`: cancels the connection's own prompts, answers them, and closes the session on this connection. If
    /// nobody else uses the session, its agent's process ends.
    pub(super) async fn close(&self, session: &SessionKey) -> Replied {
        self.require(session)?;
        let own = self.own_runs(session);
        for run in own {
            self.server.service.cancel(session, Some(run), IdempotencyKey::mint()).await?;
        }
        let mut progress = self.connection.watch_progress();
        let answered =
            async { while !self.own_runs(session).is_empty() && progress.changed().await.is_ok() {} };
        if tokio::time::timeout(Duration::from_millis(CLOSE_WAIT_MS), answered).await.is_err() {
            tracing::warn!(session_key = %session, "acp close: a cancelled turn has not ended");
        }
        let detached = self.connection.state().detach(session);
        self.connection.after_push(detached);
        if !self.server.is_open(session) && !self.is_bound(session).await {
            let (by, key) = (self.connection.principal().name.clone(), IdempotencyKey::mint());
            // An agent that works for others, or could not continue later, keeps its process.
            if let Err(failure) = self.server.service.release(session, by, key).await {
                tracing::debug!(session_key = %session, %failure, "acp close: the agent stays");
            }
        }
        Ok(Some(json!({})))
    }

    fn own_runs(&self, session: &SessionKey) -> Vec<acp_shared::ids::RunId> {
        self.connection.state().session(session).map(|view| view.own_runs()).unwrap_or_default()
    }
}
