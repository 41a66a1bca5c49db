#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
use super::*;
use crate::runtime::agent_host::terminal::tests::FakeSupervisor;
use acp_shared::protocol::Refusal;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

const ROOT: &str = "/project";

/// Files in memory. Each queued fault applies to one write.
#[derive(Default)]
pub(crate) struct FakeDisk {
    pub(crate) files: Mutex<BTreeMap<String, String>>,
    pub(crate) writes: Mutex<u32>,
    write_faults: Mutex<VecDeque<(bool, WriteFault)>>,
}

type WriteFault = Result<FilesError, CallError>;

impl FakeDisk {
    pub(crate) fn answer(&self, request: FilesRequest) -> Result<Reply, CallError> {
        let (root, mut files) = (request.roots[0].clone(), self.files.lock().unwrap());
        let beneath = |path: &str| path.starts_with(&root);
        Ok(Reply::Files(match request.op {
            FilesOp::Read { path, .. } | FilesOp::Inspect { path, .. } | FilesOp::Directory { path }
                if !beneath(&path) =>
            {
                Err(FilesError::Outside)
            }
            FilesOp::Read { path, .. } => {
                files.get(&path).cloned().map(FilesReply::Text).ok_or(FilesError::NotFound)
            }
            FilesOp::Write { path, content } => {
                let fault = self.write_faults.lock().unwrap().pop_front();
                if fault.as_ref().is_none_or(|(is_done, _)| *is_done) {
                    *self.writes.lock().unwrap() += 1;
                    files.insert(path, String::from_utf8(content).unwrap());
                }
                match fault {
                    None => Ok(FilesReply::Written),
                    Some((_, fault)) => Err(fault?),
                }
            }
            FilesOp::Inspect { path, .. } => {
                let text = files.get(&path).cloned();
                let exists = text.is_some();
                Ok(FilesReply::Inspected(Inspection {
                    canonical: Some(path),
                    exists,
                    is_regular: exists,
                    size: text.as_ref().map_or(0, |text| text.len() as u64),
                    sha256: text.as_deref().map(sha256),
                    text,
                }))
            }
            FilesOp::Directory { path } => Ok(FilesReply::Directory { path, roots: vec![root] }),
            FilesOp::Directories { .. } | FilesOp::Programs { .. } | FilesOp::List { .. } => {
                panic!("not a file request of a session")
            }
        }))
    }
}

fn project() -> Project<'static> {
    Project { lease_id: LeaseId::mint(), roots: Vec::leak(vec![ROOT.to_owned()]) }
}

fn code(result: Result<String, TerminalError>) -> Option<i64> {
    match result {
        Err(TerminalError::Rpc(error)) => Some(error.code),
        Ok(_) | Err(TerminalError::Unavailable) => None,
    }
}

/// H3: a write with a lost response is settled by the file's content, and sent once.
#[tokio::test]
async fn write_with_lost_response_is_inspected_and_not_repeated() {
    let busy = || CallError::Refused(Refusal::new(RefusalCode::Busy, "later"));
    for (name, is_done, fault, want) in [
        ("lost response, done", true, Err(CallError::Disconnected), Some(true)),
        ("lost response, not done", false, Err(CallError::Disconnected), Some(false)),
        ("helper killed, done", true, Ok(FilesError::Interrupted), Some(true)),
        ("deadline, not done", false, Ok(FilesError::TimedOut { within_ms: 1 }), Some(false)),
        ("refused before it began", false, Err(busy()), Some(true)),
        ("denied", false, Ok(FilesError::Denied), Some(false)),
    ] {
        let fake = Arc::new(FakeSupervisor::default());
        fake.disk.write_faults.lock().unwrap().push_back((is_done, fault));
        let mut is_uncertain = false;
        let mut result = Err(TerminalError::Unavailable);
        for _ in 0..3 {
            if matches!(result, Err(TerminalError::Unavailable)) {
                result = write(&fake, project(), "/project/a", "new", &mut is_uncertain).await;
            }
        }
        let settled = match result {
            Ok(_) => Some(true),
            Err(TerminalError::Rpc(_)) => Some(false),
            Err(TerminalError::Unavailable) => None,
        };
        assert_eq!(settled, want, "{name}");
        let written = *fake.disk.writes.lock().unwrap();
        assert_eq!(written, u32::from(want == Some(true)), "{name}: number of writes");
    }
}

#[tokio::test]
async fn unsent_write_is_not_uncertain() {
    let fake = Arc::new(FakeSupervisor::default());
    fake.unavailable_calls.store(1, std::sync::atomic::Ordering::Relaxed);
    let mut is_uncertain = false;
    let result = write(&fake, project(), "/project/a", "new", &mut is_uncertain).await;
    assert!(matches!(result, Err(TerminalError::Unavailable)) && !is_uncertain);
    assert!(write(&fake, project(), "/project/a", "new", &mut is_uncertain).await.is_ok());
}

#[tokio::test]
async fn failures_map_to_protocol_codes() {
    let fake = Arc::new(FakeSupervisor::default());
    assert_eq!(code(read(&fake, project(), "/project/none", None, None).await), Some(NOT_FOUND));
    assert_eq!(code(read(&fake, project(), "/etc/passwd", None, None).await), Some(INVALID_PARAMS));
    for (failure, want) in [
        (FilesError::BadPath, INVALID_PARAMS),
        (FilesError::NotRegular, INVALID_PARAMS),
        (FilesError::TooLarge { bytes_max: 3 }, INVALID_PARAMS),
        (FilesError::NotUtf8, INVALID_PARAMS),
        (FilesError::Denied, INTERNAL_ERROR),
        (FilesError::NoHelper { message: "x".to_owned() }, INTERNAL_ERROR),
    ] {
        assert_eq!(code(Err(failed(&failure, "/p"))), Some(want), "{failure}");
    }
    let TerminalError::Rpc(error) = failed(&FilesError::NotFound, &"p".repeat(1000)) else { panic!() };
    assert_eq!(error.message, format!("{}: no such file", "p".repeat(PATH_SHOWN_MAX)));
}

#[tokio::test]
async fn write_target_is_inspected() {
    let fake = Arc::new(FakeSupervisor::default());
    fake.disk.files.lock().unwrap().insert("/project/a".to_owned(), "old".to_owned());
    for (path, content, is_same, old) in [
        ("/project/a", "new", false, FileContent::Text("old".to_owned())),
        ("/project/a", "old", true, FileContent::Text("old".to_owned())),
        ("/project/none", "new", false, FileContent::Absent),
    ] {
        let want = host::Inspection { path: path.to_owned(), is_same, old };
        let found = inspect_target(&fake, project(), path, content).await;
        assert_eq!(found.ok(), Some(want), "{path} {content}");
    }
    for path in ["/project/a/", "/etc/passwd"] {
        assert!(matches!(inspect_target(&fake, project(), path, "x").await, Err(TerminalError::Rpc(_))));
    }
}
