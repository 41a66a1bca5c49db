//! The client as a bridge of the session tools: it carries messages of an agent to the gateway, with the token of its lease.

use super::connections::{BACKLOG_WAIT, Connections};
use super::{AttemptError, GatewayClient, RetryBudget, read_failure};
use acp_core::failure::Failure;
use acp_core::session_tools::MCP_PATH;
use acp_shared::codes::Code;
use acp_shared::ids::IdempotencyKey;
use acp_shared::redact::Secret;
use bytes::Bytes;
use hyper::{Method, StatusCode, header};
use std::path::PathBuf;
use std::time::Instant;

impl RetryBudget {
    /// Starts the time limit again after an attempt that has waited for its result: the gateway was lost only now.
    fn renew(&mut self, began: Instant) {
        if began.elapsed() > 2 * BACKLOG_WAIT {
            *self = Self::new(true);
        }
    }
}

impl GatewayClient {
    /// Creates a client of the session tools.
    pub(crate) fn of_agent(socket: PathBuf, token: String) -> Self {
        let connections = Connections::new(socket);
        Self { connections, deadline: None, acts_for: None, token: Some(Secret::new(token)) }
    }

    /// Sends one message of MCP, and again under the same key while the gateway restarts. Returns the answer, if it has one.
    ///
    /// # Errors
    /// The failure returned by the gateway; `GATEWAY_UNAVAILABLE`.
    pub(crate) async fn post_message(
        &self,
        message: Bytes,
        key: &IdempotencyKey,
    ) -> Result<Option<String>, Failure> {
        let mut retry = RetryBudget::new(true);
        let token = self.token.as_ref().map(|token| format!("Bearer {}", token.expose())).unwrap_or_default();
        loop {
            let headers = [(header::AUTHORIZATION, token.as_str())];
            let request = self.request(Method::POST, MCP_PATH, message.clone(), Some(key), &headers)?;
            let began = Instant::now();
            let outcome = self.once(request).await;
            retry.renew(began);
            let lost = match outcome {
                Ok((StatusCode::OK, body)) => return Ok(Some(String::from_utf8_lossy(&body).into_owned())),
                Ok((status, _)) if status.is_success() => return Ok(None),
                Ok((status, body)) => {
                    let failure = read_failure(status, &body);
                    let may_retry = status == StatusCode::SERVICE_UNAVAILABLE && failure.retryable;
                    if !may_retry || !retry.wait(&AttemptError::Broken(String::new()), self.deadline).await {
                        return Err(failure);
                    }
                    continue;
                }
                Err(lost) => lost,
            };
            if !retry.wait(&lost, self.deadline).await {
                return Err(unanswered());
            }
        }
    }
}

/// Failure of a request whose effect is unknown. A repetition could send a message twice.
fn unanswered() -> Failure {
    let text = "The gateway does not answer. It may have taken the request: once it answers again, look with sessions_list and \
         sessions_history before you repeat it.";
    Failure::new(Code::GatewayUnavailable, text).origin("client").detail("CONNECTION_LOST")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn unanswered_request_is_not_for_repetition() {
        let failure = unanswered();
        assert!(!failure.retryable && failure.message.contains("sessions_history"), "{failure:?}");
    }

    #[tokio::test]
    async fn time_for_a_restart_begins_when_the_gateway_is_lost() {
        let now = Instant::now();
        let lost = AttemptError::Broken(String::new());
        for (waited_s, may_retry) in [(1, false), (120, true)] {
            let mut retry = RetryBudget { until: now, ..RetryBudget::new(true) };
            retry.renew(now.checked_sub(Duration::from_secs(waited_s)).unwrap_or(now));
            assert_eq!(retry.wait(&lost, None).await, may_retry, "{waited_s}");
        }
    }
}
