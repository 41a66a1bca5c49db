#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
use super::*;
use crate::runtime::agent_host::terminal::tests::Fake;
use acp_shared::protocol::Refusal;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

const ROOT: &str = "/project";

/// Files in memory. Each queued fate befalls one write.
#[derive(Default)]
pub(crate) struct Disk {
    pub(crate) files: Mutex<BTreeMap<String, String>>,
    pub(crate) writes: Mutex<u32>,
    fates: Mutex<VecDeque<(bool, Fate)>>,
}

type Fate = Result<FilesError, CallError>;

impl Disk {
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
                let fate = self.fates.lock().unwrap().pop_front();
                if fate.as_ref().is_none_or(|(is_done, _)| *is_done) {
                    *self.writes.lock().unwrap() += 1;
                    files.insert(path, String::from_utf8(content).unwrap());
                }
                match fate {
                    None => Ok(FilesReply::Written),
                    Some((_, fate)) => Err(fate?),
                }
            }
            FilesOp::Inspect { path, .. } => {
                let text = files.get(&path).cloned();
                let is_there = text.is_some();
                Ok(FilesReply::Inspected(Inspection {
                    canonical: Some(path),
                    exists: is_there,
                    is_regular: is_there,
                    size: text.as_ref().map_or(0, |text| text.len() as u64),
                    sha256: text.as_deref().map(sha256),
                    text,
                }))
            }
            FilesOp::Directory { path } => Ok(FilesReply::Directory { path, roots: vec![root] }),
            FilesOp::Directories { .. } | FilesOp::Programs { .. } => {
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

/// H3: a write whose answer is lost is settled by what is in the file, and asked for once.
#[tokio::test]
async fn a_write_without_an_answer_is_inspected_and_never_repeated() {
    let busy = || CallError::Refused(Refusal::new(RefusalCode::Busy, "later"));
    for (name, is_done, fate, want) in [
        ("lost answer, done", true, Err(CallError::Disconnected), Some(true)),
        ("lost answer, not done", false, Err(CallError::Disconnected), Some(false)),
        ("helper killed, done", true, Ok(FilesError::Interrupted), Some(true)),
        ("deadline, not done", false, Ok(FilesError::TimedOut { within_ms: 1 }), Some(false)),
        ("refused before it began", false, Err(busy()), Some(true)),
        ("denied", false, Ok(FilesError::Denied), Some(false)),
    ] {
        let fake = Arc::new(Fake::default());
        fake.disk.fates.lock().unwrap().push_back((is_done, fate));
        let mut is_uncertain = false;
        let mut result = Err(TerminalError::Unavailable);
        for _ in 0..3 {
            if matches!(result, Err(TerminalError::Unavailable)) {
                result = write(&fake, project(), ("/project/a", "new"), &mut is_uncertain).await;
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

/// Nothing is sent while the supervisor is away, so nothing is uncertain then.
#[tokio::test]
async fn a_write_that_is_not_sent_stays_certain() {
    let fake = Arc::new(Fake::default());
    fake.away_for.store(1, std::sync::atomic::Ordering::Relaxed);
    let mut is_uncertain = false;
    let result = write(&fake, project(), ("/project/a", "new"), &mut is_uncertain).await;
    assert!(matches!(result, Err(TerminalError::Unavailable)) && !is_uncertain);
    assert!(write(&fake, project(), ("/project/a", "new"), &mut is_uncertain).await.is_ok());
}

#[tokio::test]
async fn failures_have_the_codes_of_the_protocol() {
    let fake = Arc::new(Fake::default());
    assert_eq!(code(read(&fake, project(), "/project/none", (None, None)).await), Some(NOT_FOUND));
    assert_eq!(code(read(&fake, project(), "/etc/passwd", (None, None)).await), Some(INVALID_PARAMS));
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
    let TerminalError::Rpc(told) = failed(&FilesError::NotFound, &"p".repeat(1000)) else { panic!() };
    assert_eq!(told.message, format!("{}: no such file", "p".repeat(PATH_SHOWN_MAX)));
}

/// Files that a question about a write is about.
#[tokio::test]
async fn the_target_of_a_write_is_inspected() {
    let fake = Arc::new(Fake::default());
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
