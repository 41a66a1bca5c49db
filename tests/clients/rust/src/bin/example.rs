use agent_client_protocol::schema::ProtocolVersion;
use agent_client_protocol::v1::ConnectionTo;
use agent_client_protocol::v1::schema::{
    ContentBlock, InitializeRequest, NewSessionRequest, PermissionOptionKind, PromptRequest,
    RequestPermissionOutcome, RequestPermissionRequest, RequestPermissionResponse, SelectedPermissionOutcome,
    SessionNotification, SessionUpdate,
};
use agent_client_protocol::{Agent, Client};
use agent_client_protocol_http::HttpClient;
use std::env;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let token = format!("Bearer {}", env::var("ACP_TOKEN")?).parse()?;
    let headers = [(reqwest::header::AUTHORIZATION, token)].into_iter().collect();
    let url = env::var("ACP_URL").unwrap_or("http://127.0.0.1:7433/acp".to_owned());
    let http = HttpClient::builder_with_endpoint(url)
        .configure_http(|http| http.default_headers(headers))
        .build()?;
    let prompt = env::args().nth(1).unwrap_or("hello".to_owned());

    Client
        .v1()
        .on_receive_notification(
            async |notification: SessionNotification, _| {
                if let SessionUpdate::AgentMessageChunk(chunk) = notification.update
                    && let ContentBlock::Text(text) = chunk.content
                {
                    print!("{}", text.text);
                }
                Ok(())
            },
            agent_client_protocol::on_receive_notification!(),
        )
        .on_receive_request(
            async |request: RequestPermissionRequest, responder, _| {
                let once =
                    request.options.into_iter().find(|option| option.kind == PermissionOptionKind::AllowOnce);
                let outcome = once.map_or(RequestPermissionOutcome::Cancelled, |option| {
                    RequestPermissionOutcome::Selected(SelectedPermissionOutcome::new(option.option_id))
                });
                responder.respond(RequestPermissionResponse::new(outcome))
            },
            agent_client_protocol::on_receive_request!(),
        )
        .connect_with(http, async move |agent: ConnectionTo<Agent>| {
            agent.send_request(InitializeRequest::new(ProtocolVersion::V1)).block_task().await?;
            let cwd = env::current_dir().unwrap_or_default();
            let session = agent.send_request(NewSessionRequest::new(cwd)).block_task().await?.session_id;
            let prompt = vec![ContentBlock::from(prompt)];
            agent.send_request(PromptRequest::new(session, prompt)).block_task().await?;
            Ok(())
        })
        .await?;
    Ok(())
}
