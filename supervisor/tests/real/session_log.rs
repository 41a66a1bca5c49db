//! Standard error of agents: stored in the session log without configured secrets, and nowhere else.

use crate::common::{Client, Host, TIMEOUT, eventually, script};
use acp_shared::ids::SessionKey;
use acp_shared::protocol::{LeaseState, LogFrom, LogPiece, Reply, Request, Spawn};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

impl Client {
    /// Waits until the log of a session contains `want` and returns the log.
    pub(crate) async fn log_with(&mut self, session_key: &SessionKey, want: &str) -> String {
        let until = Instant::now() + TIMEOUT;
        loop {
            let (session_key, from) = (session_key.clone(), LogFrom::Offset(0));
            let request = Request::SessionLog { session_key, from, bytes_max: 1 << 20 };
            let Reply::SessionLog(piece) = self.call(request).await.unwrap() else { panic!("no log") };
            let text = String::from_utf8(piece.bytes).unwrap();
            if text.contains(want) {
                return text;
            }
            assert!(Instant::now() < until, "{want:?} is not in {text:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

const SECRET: &str = "sk-configured-0123456789";

/// Agent with a secret in its environment.
fn with_secret(text: &str) -> Spawn {
    Spawn {
        env: vec![
            ("PATH".to_owned(), std::env::var("PATH").unwrap_or_default()),
            ("API_KEY".to_owned(), SECRET.to_owned()),
        ],
        ..script(text)
    }
}

/// All files below a directory.
fn files(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .flat_map(|entry| if entry.path().is_dir() { files(&entry.path()) } else { vec![entry.path()] })
        .collect()
}

#[tokio::test]
async fn secrets_are_in_no_supervisor_file() {
    let mut host = Host::prepare("");
    let mut command = host.command();
    command
        .env("RUST_LOG", "info")
        .stderr(std::fs::File::create(host.state_dir().with_file_name("log")).unwrap());
    host.start_as(command);
    let mut gateway = host.gateway().connect().await;
    // The secret is split, with a pause between the two writes.
    let spec = with_secret(
        "printf \"key ${API_KEY%%-01*}\" >&2; sleep 0.3; echo \"-0123456789 refused\" >&2; exit 3",
    );
    gateway.spawn(&spec).await;
    gateway.state(spec.lease_id, LeaseState::Closed).await;
    let text = gateway.log_with(&spec.session_key, "* agent ended: exit code 3\n").await;
    assert!(text.contains("| key [redacted:API_KEY] refused\n"), "{text}");
    assert!(host.log().contains("[redacted:API_KEY] refused"), "{}", host.log());
    assert!(!host.log().contains("sk-configured"), "{}", host.log());
    let logs = host.state_dir().join("logs");
    assert_eq!(files(&logs).len(), 1);
    for file in files(&host.state_dir()) {
        let bytes = std::fs::read(&file).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        assert!(!text.contains("sk-configured"), "{}", file.display());
    }
    for file in files(&logs) {
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }
}

#[tokio::test]
async fn session_log_is_readable_by_its_gateway_only() {
    let (host, mut gateway) = Host::serving("stderr_bytes_max = 4096\nretention_ms = 2000").await;
    let first = with_secret("echo one >&2");
    gateway.spawn(&first).await;
    gateway.state(first.lease_id, LeaseState::Closed).await;
    let second =
        Spawn { session_key: first.session_key.clone(), ..with_secret("seq -w 1 2000 >&2; sleep 1000") };
    gateway.spawn(&second).await;
    let text = gateway.log_with(&first.session_key, "| 2000\n").await;
    assert!(text.len() <= 2 * 4096 && !text.contains("| one\n"), "{}", text.len());
    let mut read = async |session_key: &SessionKey, from| {
        let request = Request::SessionLog { session_key: session_key.clone(), from, bytes_max: 100 };
        gateway.call(request).await
    };
    let Ok(Reply::SessionLog(piece)) = read(&first.session_key, LogFrom::End(90)).await else {
        panic!("no log")
    };
    let text = String::from_utf8(piece.bytes.clone()).unwrap();
    assert!(text.ends_with("| 2000\n") && piece.offset + piece.bytes.len() as u64 == piece.end, "{text}");
    let none = LogPiece { offset: 0, bytes: Vec::new(), end: 0 };
    let unknown = SessionKey::parse("unknown").unwrap();
    assert_eq!(read(&unknown, LogFrom::Offset(0)).await, Ok(Reply::SessionLog(none.clone())));
    let mut other = host.gateway().connect().await;
    let request = Request::SessionLog {
        session_key: first.session_key.clone(),
        from: LogFrom::Offset(0),
        bytes_max: 100,
    };
    assert_eq!(other.call(request).await, Ok(Reply::SessionLog(none)), "log of another gateway");

    // The log is removed with the last lease of the session.
    let logs = host.state_dir().join("logs");
    assert!(!files(&logs).is_empty());
    gateway
        .call(Request::CloseLease { lease_id: second.lease_id, reason: "enough".to_owned() })
        .await
        .unwrap();
    gateway.state(second.lease_id, LeaseState::Closed).await;
    eventually("the log is removed", || files(&logs).is_empty());
}
