//! Prompt for a session with a name: one request, answered by the stream of the turn.

use super::connections::AttemptError;
use super::{ANSWER_BYTES_MAX, invalid_response, refusal, with_deadline};
use super::{EventSelection, EventStream, GatewayClient, HeldStream, RetryBudget};
use crate::api::sse_parser::SseParser;
use acp_core::api::{NamedPromptBody, NamedPromptView};
use acp_core::failure::Failure;
use acp_shared::codes::Code;
use acp_shared::ids::IdempotencyKey;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Limited};
use hyper::{Method, StatusCode, header};

impl GatewayClient {
    /// Sends a prompt to the open session with a name. Returns the accepted prompt, and the journal rows of its turn. Retries
    /// after a lost response carry the same idempotency key.
    ///
    /// # Errors
    /// As [`GatewayClient::get`]; `ACP_UNCERTAIN` if the session is closed at a retry.
    pub(crate) async fn prompt_named(
        &self,
        body: &NamedPromptBody,
        key: &IdempotencyKey,
    ) -> Result<(NamedPromptView, EventStream), Failure> {
        let body = serde_json::to_vec(body).map_err(|error| invalid_response(&error.to_string()))?;
        let body = Bytes::from(body);
        let mut retry = RetryBudget::new(false);
        let mut is_repeated = false;
        let asking = async {
            loop {
                let lost = match self.try_prompt_named(body.clone(), key).await {
                    Ok(Err(refused)) if is_repeated && refused.code == Code::NoSession => {
                        let text = "The gateway did not answer the first attempt, and the session is closed now. Its history \
                                    tells if the prompt was accepted: `acpx sessions history`.";
                        return Err(Failure::new(Code::Uncertain, text).origin("client"));
                    }
                    Ok(answered) => return answered,
                    Err(lost) => lost,
                };
                if !retry.wait(&lost, self.deadline).await {
                    return Err(self.unavailable(&lost));
                }
                is_repeated = true;
            }
        };
        with_deadline(self.deadline, asking).await
    }

    /// Makes one attempt.
    async fn try_prompt_named(
        &self,
        body: Bytes,
        key: &IdempotencyKey,
    ) -> Result<Result<(NamedPromptView, EventStream), Failure>, AttemptError> {
        let accept = [(header::ACCEPT, "text/event-stream")];
        let request = match self.request(Method::POST, "/v1/acpx/prompt", body, Some(key), &accept) {
            Ok(request) => request,
            Err(failure) => return Ok(Err(failure)),
        };
        let response = self.send(request).await?;
        if response.status() != StatusCode::OK {
            return refusal(response).await.map(Err);
        }
        let kind = response.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        if kind.is_some_and(|kind| kind.starts_with("text/event-stream")) {
            let mut held = HeldStream { body: response.into_body(), parser: SseParser::default() };
            let Some(first) = held.next().await else {
                return Err(AttemptError::Broken("the gateway ended the stream".to_owned()));
            };
            return Ok(self.accepted(first.data.as_bytes(), Some(held)));
        }
        // The gateway has no place for another stream now.
        let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
        let body = body.map_err(|error| AttemptError::Broken(error.to_string()))?;
        Ok(self.accepted(&body.to_bytes(), None))
    }

    /// Reads the accepted prompt, and returns it with the rest of its stream, or with a stream of its own.
    fn accepted(
        &self,
        json: &[u8],
        rest: Option<HeldStream>,
    ) -> Result<(NamedPromptView, EventStream), Failure> {
        let view: NamedPromptView =
            serde_json::from_slice(json).map_err(|error| invalid_response(&error.to_string()))?;
        let selection = EventSelection {
            session: view.session.session.session_key.clone(),
            after: view.accepted.after_seq,
            run: Some(view.accepted.run_id),
            replay: false,
            follow: true,
        };
        let (retry, events) = (RetryBudget::new(true), self.journal(selection));
        let events = match rest {
            Some(HeldStream { body, parser }) => EventStream { body: Some(body), parser, retry, ..events },
            None => EventStream { retry, ..events },
        };
        Ok((view, events))
    }
}
