#![expect(clippy::unwrap_used, clippy::panic, reason = "a failed unwrap is a failed test")]

use super::*;
use crate::supervisor::simulated::SimSupervisorConnection;
use acp_shared::protocol::Refusal;

fn lookup(programs: usize) -> LookupRequest {
    LookupRequest {
        programs: (0..programs).map(|n| format!("program-{n:03}")).collect(),
        search: "/bin".to_owned(),
        directories: BTreeSet::from(["/a".to_owned()]),
    }
}

async fn next(wire: &mut SimSupervisorConnection) -> (u64, FilesOp) {
    for _ in 0..1_000 {
        if let Some((id, Request::Files(FilesRequest { scope: FilesScope::Tenant, roots, op }))) = wire.take()
        {
            assert_eq!(roots, [""; 0]);
            return (id, op);
        }
        tokio::task::yield_now().await;
    }
    panic!("no request")
}

fn answer(op: FilesOp) -> Result<Reply, Refusal> {
    Ok(Reply::Files(Ok(match op {
        FilesOp::Programs { names, .. } => {
            let found = names.iter().map(|name| name.ends_with('0').then(|| format!("/bin/{name}")));
            FilesReply::Programs(found.collect())
        }
        FilesOp::Directories { paths } => {
            FilesReply::Directories(paths.iter().map(|_| Err(FilesError::NotFound)).collect())
        }
        other => panic!("{other:?}"),
    })))
}

#[tokio::test(start_paused = true)]
async fn lookup_is_split_and_results_are_matched() {
    let (supervisor, mut wire) = SimSupervisorConnection::new();
    wire.up("s");
    let pending = tokio::spawn(async move { look_up(&supervisor, &lookup(NAMES_MAX + 1)).await });
    for count in [NAMES_MAX, 1] {
        let (id, op) = next(&mut wire).await;
        assert!(
            matches!(&op, FilesOp::Programs { names, search } if names.len() == count && search == "/bin")
        );
        wire.reply(id, answer(op));
    }
    let (id, op) = next(&mut wire).await;
    // Refused for lack of room: retried.
    wire.reply(id, Err(Refusal::new(RefusalCode::Busy, "no room").retry_after(10)));
    tokio::time::sleep(Duration::from_millis(11)).await;
    let (id, again) = next(&mut wire).await;
    assert_eq!(op, again);
    wire.reply(id, answer(again));
    let found = pending.await.unwrap().unwrap();
    assert_eq!(found.programs.len(), 26);
    assert_eq!(found.programs["program-010"], "/bin/program-010");
    assert_eq!(found.directories["/a"], Err(FilesError::NotFound));
}

#[tokio::test(start_paused = true)]
async fn lookup_waits_for_supervisor_and_times_out() {
    let (supervisor, mut wire) = SimSupervisorConnection::new();
    assert_eq!(look_up(&supervisor, &lookup(1)).await, Err(LookupError::Away));
    let started = tokio::time::Instant::now();
    let failure = look_up_with_timeout(&supervisor, &lookup(1)).await.unwrap_err();
    assert_eq!((failure.code, started.elapsed()), (Code::BackendUnavailable, WAIT));

    let pending = tokio::spawn(async move { look_up_with_timeout(&supervisor, &lookup(1)).await });
    tokio::time::sleep(WAIT / 2).await;
    wire.up("s");
    drop(next(&mut wire).await);
    wire.down();
    wire.up("other");
    for _ in 0..2 {
        let (id, op) = next(&mut wire).await;
        wire.reply(id, answer(op));
    }
    assert_eq!(pending.await.unwrap().unwrap().programs.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn failed_lookup_has_a_reason() {
    let (supervisor, mut wire) = SimSupervisorConnection::new();
    wire.up("s");
    let pending = tokio::spawn(async move { look_up_with_timeout(&supervisor, &lookup(1)).await });
    let (id, _) = next(&mut wire).await;
    let error = FilesError::NoHelper { message: "no program".to_owned() };
    wire.reply(id, Ok(Reply::Files(Err(error))));
    let failure = pending.await.unwrap().unwrap_err();
    assert_eq!(failure.code, Code::BackendUnavailable);
    assert!(failure.message.contains("no program"), "{failure}");
}

/// A look-up writes nothing, so it is repeated.
#[tokio::test(start_paused = true)]
async fn interrupted_lookup_is_retried() {
    let (supervisor, mut wire) = SimSupervisorConnection::new();
    wire.up("s");
    let pending = tokio::spawn(async move { look_up(&supervisor, &lookup(0)).await });
    let (id, op) = next(&mut wire).await;
    wire.reply(id, Ok(Reply::Files(Err(FilesError::Interrupted))));
    tokio::time::sleep(Duration::from_millis(RETRY_MS + 1)).await;
    let (id, again) = next(&mut wire).await;
    assert_eq!(op, again);
    wire.reply(id, answer(again));
    assert_eq!(pending.await.unwrap().unwrap().directories["/a"], Err(FilesError::NotFound));
}

#[tokio::test(start_paused = true)]
async fn recent_lookup_serves_an_equal_request_for_a_second() {
    let results = LookupResults {
        programs: BTreeMap::from([("a".to_owned(), "/bin/a".to_owned())]),
        ..LookupResults::default()
    };
    for (wanted, waited_ms, is_served) in [(1, 0, true), (1, 999, true), (1, 1_000, false), (2, 0, false)] {
        let recent = RecentLookup::new(lookup(1), results.clone());
        tokio::time::advance(Duration::from_millis(waited_ms)).await;
        let found = recent.into_results(&lookup(wanted));
        assert_eq!(found, is_served.then(|| results.clone()), "{wanted}, {waited_ms}");
    }
}
