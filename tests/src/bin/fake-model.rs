//! A scripted model on loopback; see `acp_tests::fake_model`. Prints one line with its address when it is ready.

use std::io::Write as _;

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await?;
    let url = format!("http://{}/v1", listener.local_addr()?);
    let line = serde_json::json!({"event": "ready", "pid": std::process::id(), "url": url});
    writeln!(std::io::stdout().lock(), "{line}")?;
    acp_tests::fake_model::serve(listener).await
}
