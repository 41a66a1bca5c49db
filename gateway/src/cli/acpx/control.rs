//! `cancel`, `set-mode` and `set`.

use super::args::SessionName;
use super::{AcpxEnd, AcpxResult, Command, ids};
use crate::api::client::encode;
use acp_core::api::{CancelBody, ConfigChoice, OptionBody};
use acp_core::request::{CancelResult, SessionStatus};
use acp_shared::ids::IdempotencyKey;
use serde_json::json;

impl Command {
    pub(super) async fn cancel(&mut self, name: SessionName) -> AcpxResult {
        let Some(found) = self.find(name.session).await? else {
            let members = json!({ "acpxRecordId": "unknown", "cancelled": false });
            return self.answer(
                "cancel_result",
                members,
                Some("nothing to cancel"),
                Some("nothing to cancel"),
            );
        };
        let key = found.session.session_key.to_string();
        let path = format!("/v1/sessions/{}/cancel", encode(&key));
        let body = CancelBody::default();
        let cancelling = self.client.post(&path, &body, &IdempotencyKey::mint()).await;
        let cancelled: CancelResult = cancelling.map_err(|failure| AcpxEnd::from(failure).of(&key))?;
        let request = cancelled.run_id.map(|run| run.to_string());
        let text = if request.is_some() { "cancel requested" } else { "nothing to cancel" };
        let mut members = ids(&found.session);
        members.insert("cancelled".to_owned(), request.is_some().into());
        members.insert("cancelledRequestId".to_owned(), json!(request));
        self.answer("cancel_result", members.into(), Some(text), Some(text))
    }

    pub(super) async fn set_mode(&mut self, mode: String, name: SessionName) -> AcpxResult {
        let found = self.require(name.session).await?;
        let body = OptionBody { mode: Some(mode.clone()), ..OptionBody::default() };
        self.set(found.session.session_key.as_str(), &body).await?;
        let mut members = ids(&found.session);
        members.insert("modeId".to_owned(), mode.as_str().into());
        self.answer("mode_set", members.into(), Some(&format!("mode set: {mode}")), Some(&mode))
    }

    pub(super) async fn set_option(
        &mut self,
        option: String,
        value: String,
        name: SessionName,
    ) -> AcpxResult {
        let found = self.require(name.session).await?;
        let key = found.session.session_key.as_str();
        let mut members = ids(&found.session);
        if option == "model" {
            self.set_model(key, &value).await?;
            members.insert("modelId".to_owned(), value.as_str().into());
            return self.answer(
                "model_set",
                members.into(),
                Some(&format!("model set: {value}")),
                Some(&value),
            );
        }
        let choice = ConfigChoice { id: option.clone(), value: value.clone() };
        self.set(key, &OptionBody { config: Some(choice), ..OptionBody::default() }).await?;
        members.insert("configId".to_owned(), option.as_str().into());
        members.insert("value".to_owned(), value.as_str().into());
        self.answer(
            "config_set",
            members.into(),
            Some(&format!("config set: {option}={value}")),
            Some(&value),
        )
    }

    /// Sets the agent's model.
    pub(super) async fn set_model(&self, key: &str, model: &str) -> AcpxResult {
        self.set(key, &OptionBody { model: Some(model.to_owned()), ..OptionBody::default() }).await
    }

    async fn set(&self, key: &str, body: &OptionBody) -> AcpxResult {
        let path = format!("/v1/sessions/{}/options", encode(key));
        let setting = self.client.post(&path, body, &IdempotencyKey::mint()).await;
        let _: SessionStatus = setting.map_err(|failure| AcpxEnd::from(failure).of(key))?;
        Ok(())
    }
}
