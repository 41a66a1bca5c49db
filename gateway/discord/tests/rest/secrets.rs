//! Tokens are in no output, and no token is sent to a route that does not need it.

use crate::server::{FINAL, Reply, Server, TOKEN, new_message};
use acp_discord::core::base_url::BaseUrl;
use acp_discord::core::ids::Snowflake;
use acp_discord::core::message::{Callback, MessageBody};
use acp_discord::rest::{ClientSetupError, RestClient, RestSettings, Webhook};
use acp_shared::clock::Clock;
use acp_shared::redact::Secret;
use std::time::Duration;

#[tokio::test]
async fn errors_redact_tokens() {
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap_or_else(|e| panic!("{e}"));
    let port = closed.local_addr().map(|address| address.port()).unwrap_or_default();
    drop(closed);
    let replies =
        [Reply::Never, Reply::Cut, Reply::text(500, ""), Reply::text(200, "x"), Reply::error(404, 10015)];
    let (hook_token, open_token) = ("hook-secret-token", "open-secret-token");
    for reply in replies.into_iter().map(Some).chain([None]) {
        let server = Server::list(reply.clone().into_iter().collect()).await;
        let mut settings = server.settings();
        settings.request_timeout = Duration::from_millis(300);
        settings.callback_timeout = Duration::from_millis(300);
        if reply.is_none() {
            settings.base =
                BaseUrl::parse(&format!("http://127.0.0.1:{port}")).unwrap_or_else(|e| panic!("{e}"));
        }
        let rest = RestClient::new(settings.clone()).unwrap_or_else(|e| panic!("{e}"));
        let hook = Webhook { id: Snowflake(8), token: Secret::new(hook_token.to_owned()) };
        let open = Secret::new(open_token.to_owned());
        let (body, at) = (MessageBody::text("x"), Snowflake(1));
        let mut shown = format!("{settings:?} {rest:?} {hook:?} {open:?}");
        let errors = [
            rest.create_message(at, &new_message("n", "x"), FINAL).await.err(),
            rest.execute_webhook(&hook, None, at, &body, None, FINAL).await.err(),
            rest.callback(at, &open, &Callback::DeferredUpdate).await.err(),
            rest.edit_original(at, &open, &body).await.err(),
            rest.followup(at, &open, &body).await.err(),
        ];
        for error in errors.into_iter().flatten() {
            shown.push_str(&format!("{error} {error:?}"));
        }
        for secret in [TOKEN, hook_token, open_token] {
            assert!(!shown.contains(secret), "{reply:?}: {shown}");
        }
    }
}

#[tokio::test]
async fn requests_have_authorization_and_user_agent() {
    let server = Server::list(vec![Reply::message(5)]).await;
    assert!(server.rest().create_message(Snowflake(1), &new_message("n", "x"), FINAL).await.is_ok());
    let requests = server.requests();
    let request = requests.first().unwrap_or_else(|| panic!("no request"));
    assert_eq!(request.header("authorization"), Some(format!("Bot {TOKEN}").as_str()));
    let agent = request.header("user-agent").unwrap_or_default();
    assert!(agent.starts_with("DiscordBot (https://") && agent.ends_with(')'), "{agent}");
}

#[tokio::test]
async fn malformed_token_is_rejected_at_setup() {
    for text in ["", " ", "two words", "line\nbreak", "t\u{e4}"] {
        let base = BaseUrl::discord().unwrap_or_else(|e| panic!("{e}"));
        let token = Secret::new(text.to_owned());
        let started = RestClient::new(RestSettings::new(base, token, Clock::at(0)));
        assert_eq!(started.err(), Some(ClientSetupError::Token), "{text:?}");
    }
}
