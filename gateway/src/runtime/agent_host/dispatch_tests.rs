#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
use super::*;
use crate::runtime::agent_host::terminal::tests::FakeSupervisor;
use acp_core::backend::AgentRequest;
use acp_core::rows::RequestState;
use acp_shared::ids::{AgentName, SessionKey};
use serde_json::Value;
use std::sync::Arc;

const CWD: &str = "/project";

struct Session {
    agent: LeaseId,
    fake: Arc<FakeSupervisor>,
}

impl Session {
    fn new() -> Self {
        Self { agent: LeaseId::mint(), fake: Arc::default() }
    }

    fn job(&self, what: AgentRequestKind, intent: Option<String>, again: bool) -> AgentRequestJob {
        let (method, params) = (String::new(), String::new());
        let request = AgentRequest {
            at: 0,
            run_id: None,
            method,
            params,
            what,
            is_recalled: false,
            voters: acp_core::permission::Voters::Anyone,
        };
        let session_key = SessionKey::mint(&AgentName::parse("demo").unwrap());
        let row = AgentRequestRow {
            lease_id: self.agent,
            session_key,
            request,
            state: RequestState::Started,
            intent,
        };
        let env = vec![("PATH".to_owned(), "/bin".to_owned())];
        AgentRequestJob { row, again, roots: vec![CWD.to_owned()], env, recalled: Arc::default() }
    }

    async fn serve(&self, what: AgentRequestKind, again: bool) -> Result<Value, RpcError> {
        let intent = match &what {
            AgentRequestKind::TerminalCreate { .. } => Some(LeaseId::mint().to_string()),
            _ => None,
        };
        let result = serve(&self.fake, self.job(what, intent, again)).await;
        result.map(|text| serde_json::from_str(&text).unwrap())
    }
}

fn create(command: &str) -> AgentRequestKind {
    AgentRequestKind::TerminalCreate {
        command: command.to_owned(),
        args: vec![],
        env: vec![],
        cwd: None,
        output_bytes_max: None,
    }
}

#[tokio::test]
async fn file_requests_are_served() {
    let session = Session::new();
    let (path, content) = ("/project/a".to_owned(), "one\ntwo\n".to_owned());
    let write = AgentRequestKind::FsWrite { path: path.clone(), content: content.as_str().into() };
    assert_eq!(session.serve(write, false).await.unwrap(), serde_json::json!({}));
    let read = AgentRequestKind::FsRead { path, line: None, limit: None };
    for again in [false, true] {
        assert_eq!(session.serve(read.clone(), again).await.unwrap()["content"], content);
    }
    let outside = AgentRequestKind::FsRead { path: "/etc/passwd".to_owned(), line: None, limit: None };
    assert_eq!(session.serve(outside, false).await.unwrap_err().code, INVALID_PARAMS);
}

/// H3: a write begun by an earlier gateway is answered from the file's content.
#[tokio::test]
async fn write_of_earlier_gateway_is_not_repeated() {
    let session = Session::new();
    let disk = &session.fake.disk;
    let write = AgentRequestKind::FsWrite { path: "/project/a".to_owned(), content: "new".into() };
    for (content, is_ok) in [(Some("new"), true), (Some("old"), false), (Some(""), false), (None, false)] {
        *disk.files.lock().unwrap() =
            content.map(|text| ("/project/a".to_owned(), text.to_owned())).into_iter().collect();
        assert_eq!(session.serve(write.clone(), true).await.is_ok(), is_ok, "{content:?}");
        assert_eq!(disk.files.lock().unwrap().get("/project/a").map(String::as_str), content);
    }
    assert_eq!(*disk.writes.lock().unwrap(), 0);
}

#[tokio::test]
async fn terminals_belong_to_their_agent() {
    let session = Session::new();
    let made = session.serve(create("make"), false).await.unwrap();
    let terminal_id = made["terminalId"].as_str().unwrap().to_owned();
    let output = AgentRequestKind::TerminalOutput { terminal_id: terminal_id.clone() };
    assert_eq!(session.serve(output.clone(), false).await.unwrap()["truncated"], false);
    let other = Session { fake: Arc::clone(&session.fake), ..Session::new() };
    assert_eq!(other.serve(output.clone(), false).await.unwrap_err().code, acp_core::jsonrpc::NOT_FOUND);
    let kill = AgentRequestKind::TerminalKill { terminal_id: terminal_id.clone() };
    session.serve(kill, false).await.unwrap();
    let wait = AgentRequestKind::TerminalWait { terminal_id: terminal_id.clone() };
    assert_eq!(session.serve(wait, true).await.unwrap()["signal"], "SIGTERM");
    session.serve(AgentRequestKind::TerminalRelease { terminal_id }, false).await.unwrap();
    assert!(session.serve(output, false).await.is_err());
}

#[tokio::test]
async fn repeated_terminal_request_returns_same_terminal() {
    let session = Session::new();
    let id = LeaseId::mint();
    for again in [false, true] {
        let job = session.job(create("make"), Some(id.to_string()), again);
        assert_eq!(serve(&session.fake, job).await.unwrap(), format!(r#"{{"terminalId":"{id}"}}"#));
    }
    assert_eq!(session.fake.terminals.lock().unwrap().len(), 1);
    let without = session.job(create("make"), None, false);
    assert_eq!(serve(&session.fake, without).await.unwrap_err().code, INTERNAL_ERROR);
}

#[tokio::test]
async fn unavailable_supervisor_is_awaited_for_limited_time() {
    let session = Session::new();
    for (unavailable_calls, served) in [(3, true), (u32::MAX, false)] {
        session.fake.unavailable_calls.store(unavailable_calls, std::sync::atomic::Ordering::Relaxed);
        let job = session.job(create("make"), Some(LeaseId::mint().to_string()), false);
        assert_eq!(serve_within(&session.fake, job, 4 * RETRY_MS).await.is_ok(), served);
    }
}

#[tokio::test]
async fn request_recalled_before_sending_is_not_executed() {
    let write = AgentRequestKind::FsWrite { path: "/project/a".to_owned(), content: "x".into() };
    for what in [write, create("make")] {
        let session = Session::new();
        session.fake.unavailable_calls.store(3, Ordering::Relaxed);
        let job = session.job(what, Some(LeaseId::mint().to_string()), false);
        let recalled = Arc::clone(&job.recalled);
        let served = serve_within(&session.fake, job, 100 * RETRY_MS);
        let recall = async {
            tokio::time::sleep(Duration::from_millis(RETRY_MS / 2)).await;
            recalled.store(true, Ordering::Relaxed);
        };
        let (served, ()) = tokio::join!(served, recall);
        assert_eq!(served.unwrap_err().code, REFUSED);
        assert!(session.fake.terminals.lock().unwrap().is_empty());
        assert_eq!(*session.fake.disk.writes.lock().unwrap(), 0);
    }
}

#[tokio::test]
async fn recalled_write_in_progress_is_inspected() {
    let session = Session::new();
    session.fake.disk.files.lock().unwrap().insert("/project/a".to_owned(), "x".to_owned());
    let write = AgentRequestKind::FsWrite { path: "/project/a".to_owned(), content: "x".into() };
    let job = session.job(write, None, true);
    job.recalled.store(true, Ordering::Relaxed);
    assert_eq!(serve(&session.fake, job).await.unwrap(), "{}");
}

/// A recalled command that an earlier gateway may have started is looked up, and never started.
#[tokio::test]
async fn recalled_command_of_an_earlier_gateway_is_answered_and_not_started() {
    for is_running in [true, false] {
        let session = Session::new();
        let id = LeaseId::mint();
        if is_running {
            let job = session.job(create("make"), Some(id.to_string()), false);
            serve(&session.fake, job).await.unwrap();
        }
        let job = session.job(create("make"), Some(id.to_string()), true);
        job.recalled.store(true, Ordering::Relaxed);
        let served = serve(&session.fake, job).await.map_err(|error| error.code);
        assert_eq!(served, if is_running { Ok(format!(r#"{{"terminalId":"{id}"}}"#)) } else { Err(REFUSED) });
        assert_eq!(session.fake.terminals.lock().unwrap().len(), usize::from(is_running));
    }
}
