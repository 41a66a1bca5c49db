//! The bytes of protocol versions 1 and 2, one message of each variant. Older peers would misread a message whose
//! line changes: append variants, and make a new version for anything else.
#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use acp_shared::figures::Figure;
use acp_shared::files::{FilesEntry, FilesError, FilesOp, FilesReply, FilesRequest, FilesScope, Inspection};
use acp_shared::ids::{GatewayInstanceId, LeaseId, SessionKey, StartId};
use acp_shared::launch::{ExitStatus, FromWrapper, Launch, ToWrapper};
use acp_shared::protocol::*;
use acp_shared::redact::Secret;
use acp_shared::wire::{self, WireError};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::{Debug, Write as _};

fn lease() -> LeaseId {
    LeaseId::parse("019a0000-0000-7000-8000-000000000001").unwrap()
}

fn gateway() -> GatewayInstanceId {
    GatewayInstanceId::parse("019a0000-0000-7000-8000-000000000002").unwrap()
}

fn session() -> SessionKey {
    SessionKey::parse("agent:demo:acp:1").unwrap()
}

fn hello(role: Role) -> Hello {
    Hello {
        version_min: 1,
        version_max: 300,
        features: vec!["a".into()],
        role,
        secret: Some(Secret::new("s".into())),
    }
}

fn spawn(kind: LeaseKind) -> Spawn {
    Spawn {
        lease_id: lease(),
        session_key: session(),
        kind,
        argv: vec!["agent".into(), "--acp".into()],
        env: vec![("A".into(), "1".into())],
        cwd: "/w".into(),
        roots: vec!["/w".into()],
        graces: Graces::default(),
    }
}

fn requests() -> Vec<Request> {
    let lease_id = lease();
    vec![
        Request::Spawn(spawn(LeaseKind::Agent)),
        Request::Attach { lease_id, from_offset: 5 },
        Request::Input { lease_id, seq: 1, bytes: b"{}\n".to_vec() },
        Request::Ack { lease_id, offset: 65_536 },
        Request::Tail { lease_id },
        Request::CloseLease { lease_id, reason: "done".into() },
        Request::Release { lease_id },
        Request::ListLeases { detail: true },
        Request::Verify { lease_id },
        Request::Reap { dry_run: true },
        Request::Status,
        Request::Shutdown { state_dir: "/s".into() },
        Request::Upgrade { program: Some("/p".into()), state_dir: "/s".into() },
    ]
}

fn files_ops() -> Vec<FilesOp> {
    let path = || "/w/a".to_owned();
    vec![
        FilesOp::Read { path: path(), line: Some(2), limit: None, bytes_max: 9 },
        FilesOp::Write { path: path(), content: b"x".to_vec() },
        FilesOp::Inspect { path: path(), text_bytes_max: 9 },
        FilesOp::Directory { path: path() },
        FilesOp::Directories { paths: vec![path()] },
        FilesOp::Programs { names: vec!["sh".into()], search: "/bin".into() },
    ]
}

fn files_replies() -> Vec<FilesReply> {
    let inspection = Inspection {
        canonical: Some("/w/a".into()),
        exists: true,
        is_regular: true,
        size: 1,
        sha256: Some("00".into()),
        text: Some("x".into()),
    };
    vec![
        FilesReply::Text("x".into()),
        FilesReply::Written,
        FilesReply::Inspected(inspection),
        FilesReply::Directory { path: "/w".into(), roots: vec!["/w".into()] },
        FilesReply::Directories(vec![Ok("/w".into()), Err(FilesError::NotFound)]),
        FilesReply::Programs(vec![Some("/bin/sh".into()), None]),
    ]
}

fn files_errors() -> Vec<FilesError> {
    vec![
        FilesError::BadPath,
        FilesError::Outside,
        FilesError::NotFound,
        FilesError::NotRegular,
        FilesError::TooLarge { bytes_max: 9 },
        FilesError::NotUtf8,
        FilesError::Denied,
        FilesError::Unsupported,
        FilesError::Io { message: "i".into() },
        FilesError::NoHelper { message: "n".into() },
        FilesError::TimedOut { within_ms: 9 },
        FilesError::Interrupted,
        FilesError::NotDirectory,
    ]
}

fn info() -> LeaseInfo {
    LeaseInfo {
        lease_id: lease(),
        gateway_instance_id: gateway(),
        owner_uid: 1000,
        session_key: session(),
        kind: LeaseKind::Agent,
        state: LeaseState::Open,
        state_reason: String::new(),
        wrapper_pid: Some(10),
        adapter_pid: Some(11),
        pgid: Some(11),
        sid: Some(10),
        wrapper_path: "/s/acp-wrapper".into(),
        command_hash: "00ff".into(),
        rung: "R2".into(),
        started_at_ms: 1_700_000_000_000,
        exit: None,
        stdout_end: 9,
        stdout_acked: 8,
        stdin_written: 3,
        memory_bytes: Some(4096),
        tree_size: Some(2),
        buffered_bytes: 1,
        cgroup_path: Some("/c".into()),
    }
}

fn evidence() -> EvidenceReport {
    let fact = EvidenceFact {
        subject: "wrapper".into(),
        name: "start_ticks".into(),
        recorded: "1".into(),
        live: "2".into(),
        agrees: Some(false),
    };
    EvidenceReport {
        lease: info(),
        facts: vec![fact],
        verdict: "not_ours".into(),
        why: "another start".into(),
        tree: vec![(10, "acp-wrapper".into())],
    }
}

fn status() -> Status {
    Status {
        pid: 1,
        version: "0.1.0".into(),
        supervisor_id: "s".into(),
        state_dir: "/s".into(),
        started_at_ms: 2,
        rung: "R2".into(),
        rungs_missing: vec![("R1".into(), "g".into())],
        abilities: vec![("pidfd".into(), true)],
        leases: vec![(LeaseState::Open, 3)],
        gateways: vec![(gateway(), 1)],
        buffered_bytes: 4,
        warnings: vec!["w".into()],
        read_only: Some("r".into()),
        swept_at_ms: Some(12),
        last_upgrade: Some(LastUpgrade {
            at_ms: 5,
            from_version: "1".into(),
            to_version: "2".into(),
            leases: 6,
            pause_ms: 7,
            error: Some("e".into()),
        }),
    }
}

fn replies() -> Vec<Reply> {
    let attached = Attached {
        state: LeaseState::Closing,
        stdout_base: 1,
        stdout_end: 2,
        stdout_eof: true,
        stdin_written: 3,
        stdin_accepted: 4,
        exit: Some(ExitStatus::Exited(0)),
    };
    let tail = Tail { bytes: b"out".to_vec(), truncated: true, exit: Some(ExitStatus::Signaled(9)) };
    let line = ReapLine {
        lease_id: lease(),
        state: LeaseState::Lost,
        action: "leave".into(),
        pids: vec![10],
        why: "unknown".into(),
    };
    vec![
        Reply::Spawned(info()),
        Reply::Attached(attached),
        Reply::Written { seq: 1 },
        Reply::Done,
        Reply::Tail(tail),
        Reply::Closing { state: LeaseState::Closing },
        Reply::Leases(vec![info()]),
        Reply::Evidence(evidence()),
        Reply::Reaped(vec![line]),
        Reply::Status(status()),
    ]
}

fn notices() -> Vec<Notice> {
    let lease_id = lease();
    let stderr_tail = "last words".into();
    vec![
        Notice::Output { lease_id, offset: 6, bytes: b"x\n".to_vec() },
        Notice::Exited {
            lease_id,
            status: ExitStatus::Unknown,
            end_offset: 8,
            stdin_written: 2,
            stderr_tail,
        },
        Notice::LeaseChanged { lease_id, state: LeaseState::Closed, reason: "gone".into() },
    ]
}

fn to_supervisor() -> Vec<ToSupervisor> {
    vec![ToSupervisor::Hello(hello(Role::Admin)), ToSupervisor::Request { id: 1, body: Request::Status }]
}

fn to_client() -> Vec<ToClient> {
    let notice = Notice::LeaseChanged { lease_id: lease(), state: LeaseState::Bound, reason: "b".into() };
    let welcome =
        Welcome { version: 1, features: vec![], pid: 2, supervisor_id: "s".into(), credit_bytes: 1 << 20 };
    vec![
        ToClient::Welcome(welcome),
        ToClient::Refused(Refusal::new(RefusalCode::VersionUnsupported, "no")),
        ToClient::Reply { id: 1, result: Ok(Reply::Done) },
        ToClient::Notice(notice),
    ]
}

fn requests_2() -> Vec<Request> {
    let files = FilesRequest {
        scope: FilesScope::Lease(lease()),
        roots: vec!["/w".into()],
        op: FilesOp::Directory { path: "/w".into() },
    };
    vec![
        Request::AckSynced { lease_id: lease(), offset: 65_536, event_id: 300 },
        Request::Files(files),
        Request::SessionLog { session_key: session(), from: LogFrom::End(65_536), bytes_max: 4_096 },
    ]
}

fn to_supervisor_2() -> Vec<ToSupervisor> {
    let marks = Marks {
        start_id: StartId::parse("019a0000-0000-7000-8000-000000000003").unwrap(),
        event_id: 70_000,
        offsets: vec![(lease(), 9)],
        accepts_loss: true,
    };
    let body = Request::Ack { lease_id: lease(), offset: 5 };
    vec![ToSupervisor::Marks(marks), ToSupervisor::Act { id: 1, epoch: 7, body }]
}

fn from_wrapper() -> Vec<FromWrapper> {
    vec![
        FromWrapper::Hello { wrapper_pid: 10, adapter_pid: 11 },
        FromWrapper::Running,
        FromWrapper::ExecFailed { errno: 2, stage: "exec".into() },
        FromWrapper::SetupFailed { errno: 12, stage: "fork".into() },
        FromWrapper::AdapterExited { status: ExitStatus::Exited(0) },
        FromWrapper::Done { status: ExitStatus::Exited(0), survivors: vec![12] },
    ]
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Prints one message of each variant, and checks the completeness and order of the variants.
fn print<T: Serialize + DeserializeOwned + PartialEq + Debug>(name: &str, all: &[T]) -> String {
    print_both(name, all, &[]).0
}

/// Prints the variants of version 1 and those appended by version 2.
fn print_both<T: Serialize + DeserializeOwned + PartialEq + Debug>(
    name: &str,
    first: &[T],
    second: &[T],
) -> (String, String) {
    let (first, second, _) = print_all(name, first, second, &[]);
    (first, second)
}

/// Prints the variants of version 1, those appended by version 2, and those of features.
fn print_all<T: Serialize + DeserializeOwned + PartialEq + Debug>(
    name: &str,
    first: &[T],
    second: &[T],
    features: &[T],
) -> (String, String, String) {
    let mut texts = (String::new(), String::new(), String::new());
    for (position, message) in first.iter().chain(second).chain(features).enumerate() {
        let bytes = wire::encode(message, FRAME_BYTES_MAX).unwrap();
        assert_eq!(usize::from(bytes[0]), position, "{name}: a variant moved: {message:?}");
        assert_eq!(&wire::decode::<T>(&bytes).unwrap(), message, "{name}");
        let debug = format!("{message:?}");
        let variant = debug.split(|c: char| !c.is_alphanumeric()).next().unwrap();
        let text = match position.checked_sub(first.len()) {
            None => &mut texts.0,
            Some(later) if later < second.len() => &mut texts.1,
            Some(_) => &mut texts.2,
        };
        let _ = writeln!(text, "{name}::{variant} {}", hex(&bytes));
    }
    // The next position is invalid, so no variant is missing above.
    let mut beyond = vec![0; 256];
    beyond[0] = u8::try_from(first.len() + second.len() + features.len()).unwrap();
    let error = wire::decode::<T>(&beyond).unwrap_err();
    let is_unknown = matches!(&error, WireError::Malformed { what } if what.contains("variant index"));
    assert!(is_unknown, "{name} has a variant without a golden message: {error}");
    texts
}

#[test]
fn protocol_bytes_match_golden_files() {
    assert_eq!((VERSION_MIN, VERSION_MAX), (1, 2), "a new version needs its own golden bytes");
    let (codes, codes_2) = RefusalCode::ALL.split_at(25);
    let home = Home { machine_id: "m".into(), dev: 1, ino: 70_000 };
    let roles = [Role::Gateway { instance_id: gateway(), epoch: 7, home }, Role::Admin];
    let terminal = LeaseKind::Terminal { parent_lease_id: lease(), output_bytes_max: 1024 };
    let kinds = [LeaseKind::Agent, terminal];
    let exits = [ExitStatus::Exited(1), ExitStatus::Signaled(15), ExitStatus::Unknown];
    let piece = LogPiece { offset: 7, bytes: b"line\n".to_vec(), end: 12 };
    let refusal = Refusal::new(RefusalCode::RolledBack, "no");
    let rollback = Rollback { refusal, epoch: 7, event_id: 8, agents: 1, kept_until_ms: 9 };
    let figure = Figure { name: "f".into(), state: "s".into(), value: 300 };
    let (requests_1, requests_2, request_of_feature) =
        print_all("Request", &requests(), &requests_2(), &[Request::Figures]);
    let later = [Reply::Files(Ok(FilesReply::Written)), Reply::SessionLog(piece)];
    let (replies_1, replies_2, reply_of_feature) =
        print_all("Reply", &replies(), &later, &[Reply::Figures(vec![figure])]);
    let list = FilesOp::List { path: "/w".into(), entries_max: 9 };
    let entry = FilesEntry { name: "a".into(), is_directory: true, size: 300 };
    let (_, ops, list) = print_all("FilesOp", &[], &files_ops(), &[list]);
    let entries = FilesReply::List { entries: vec![entry], more: true };
    let (_, file_replies, entries) = print_all("FilesReply", &[], &files_replies(), &[entries]);
    insta::assert_snapshot!("protocol-features", request_of_feature + &reply_of_feature + &list + &entries);
    let texts = [
        print_both("ToSupervisor", &to_supervisor(), &to_supervisor_2()),
        print_both("ToClient", &to_client(), &[ToClient::RolledBack(rollback)]),
        print_both("Role", &roles, &[]),
        print_both("LeaseKind", &kinds, &[]),
        print_both("LeaseState", &LeaseState::ALL, &[]),
        (requests_1, requests_2),
        (replies_1, replies_2),
        print_both("Notice", &notices(), &[]),
        print_both("ExitStatus", &exits, &[]),
        print_both("RefusalCode", codes, codes_2),
        print_both("FilesScope", &[], &[FilesScope::Lease(lease()), FilesScope::Tenant]),
        (String::new(), ops),
        (String::new(), file_replies),
        print_both("FilesError", &[], &files_errors()),
    ];
    let (first, second): (Vec<_>, Vec<_>) = texts.into_iter().unzip();
    insta::assert_snapshot!("protocol-v1", first.concat());
    insta::assert_snapshot!("protocol-v2", second.concat());
}

#[test]
fn launch_message_bytes_match_golden_files() {
    let text =
        [print("ToWrapper", &[ToWrapper::Launch, ToWrapper::Go]), print("FromWrapper", &from_wrapper())];
    insta::assert_snapshot!("launch-v1", text.concat());
}

#[test]
fn launch_file_is_json_and_refuses_unknown_fields() {
    let launch = Launch {
        version: acp_shared::launch::LAUNCH_VERSION,
        lease_id: lease(),
        gateway_instance_id: gateway(),
        argv: vec!["agent".into(), "a \"b\"".into()],
        env: vec![("PATH".into(), "/bin".into())],
        cwd: "/w".into(),
        term_grace_ms: 3000,
        sweep_ms: 5000,
        confine: acp_shared::launch::Confine::default(),
    };
    let text = serde_json::to_string_pretty(&launch).unwrap();
    assert_eq!(serde_json::from_str::<Launch>(&text).unwrap(), launch);
    let unknown = text.replacen('{', "{\"colour\": 1,", 1);
    assert!(serde_json::from_str::<Launch>(&unknown).is_err(), "an unknown field is refused");
    insta::assert_snapshot!("launch-file-v1", text);
}

#[test]
fn every_frame_fits_its_channel() {
    for message in from_wrapper() {
        assert!(wire::encode(&message, acp_shared::launch::CONTROL_BYTES_MAX).is_ok());
    }
    let input =
        |length: usize| Request::Input { lease_id: lease(), seq: u64::MAX, bytes: vec![b'x'; length] };
    let line_bytes_max = 32 * 1024 * 1024;
    let fits = ToSupervisor::Request { id: u64::MAX, body: input(line_bytes_max) };
    let bytes = wire::encode(&fits, FRAME_BYTES_MAX).unwrap();
    assert_eq!(wire::decode::<ToSupervisor>(&bytes).unwrap(), fits);
    let too_large = ToSupervisor::Request { id: 1, body: input(FRAME_BYTES_MAX) };
    assert!(wire::encode(&too_large, FRAME_BYTES_MAX).is_err());
}

#[test]
fn refusal_codes_are_distinct() {
    for (i, code) in RefusalCode::ALL.iter().enumerate() {
        let name = code.as_str();
        assert!(RefusalCode::ALL.iter().skip(i + 1).all(|other| other.as_str() != name), "{name}");
        assert!(!name.is_empty() && name.bytes().all(|b| b.is_ascii_uppercase() || b == b'_'), "{name}");
    }
}
