#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
use super::*;
use crate::runtime::agent_host::fs::tests::FakeDisk;
use crate::tests::lease_info;
use acp_shared::ids::AgentName;
use acp_shared::protocol::{LeaseInfo, LeaseState, Refusal};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

#[derive(Default)]
pub(crate) struct FakeSupervisor {
    requests: Mutex<Vec<String>>,
    pub(crate) terminals: Mutex<BTreeMap<LeaseId, Terminal>>,
    /// Number of calls that fail as disconnected.
    pub(crate) unavailable_calls: AtomicU32,
    pub(crate) disk: FakeDisk,
}

#[derive(Default, Clone)]
pub(crate) struct Terminal {
    bytes: Vec<u8>,
    truncated: bool,
    exit: Option<ExitStatus>,
    lease: Option<LeaseInfo>,
}

impl FakeSupervisor {
    fn is_unavailable(&self) -> bool {
        let less = |n: u32| n.checked_sub(1);
        self.unavailable_calls.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }

    fn answer(&self, request: Request) -> Result<Reply, CallError> {
        let mut requests = self.requests.lock().unwrap();
        let mut terminals = self.terminals.lock().unwrap();
        let unknown = || CallError::Refused(Refusal::new(RefusalCode::LeaseUnknown, "no such lease"));
        if self.is_unavailable() {
            return Err(CallError::Disconnected);
        }
        match request {
            Request::Spawn(spawn) => {
                requests.push(format!("spawn {:?} in {}", spawn.argv, spawn.cwd));
                terminals.entry(spawn.lease_id).or_default().lease = Some(lease_info(&spawn));
                Ok(Reply::Spawned(lease_info(&spawn)))
            }
            Request::Tail { lease_id } => {
                let Terminal { bytes, truncated, exit, .. } =
                    terminals.get(&lease_id).cloned().ok_or_else(unknown)?;
                Ok(Reply::Tail(Tail { bytes, truncated, exit }))
            }
            Request::CloseLease { lease_id, reason } => {
                requests.push(format!("close: {reason}"));
                let terminal = terminals.get_mut(&lease_id).ok_or_else(unknown)?;
                terminal.exit.get_or_insert(ExitStatus::Signaled(15));
                Ok(Reply::Closing { state: LeaseState::Closing })
            }
            Request::Release { lease_id } => {
                requests.push("release".to_owned());
                terminals.remove(&lease_id).map(|_| Reply::Done).ok_or_else(unknown)
            }
            Request::ListLeases { .. } => {
                Ok(Reply::Leases(terminals.values().filter_map(|terminal| terminal.lease.clone()).collect()))
            }
            Request::Files(request) => self.disk.answer(request),
            other => panic!("unexpected request: {other:?}"),
        }
    }
}

impl SupervisorCalls for Arc<FakeSupervisor> {
    fn is_connected(&self) -> bool {
        !self.is_unavailable()
    }

    async fn call(&self, request: Request) -> Result<Reply, CallError> {
        self.answer(request)
    }

    async fn exited(&self, lease_id: LeaseId) -> Result<Option<ExitStatus>, CallError> {
        if self.is_unavailable() {
            return Err(CallError::Disconnected);
        }
        Ok(self.terminals.lock().unwrap().get(&lease_id).and_then(|terminal| terminal.exit))
    }
}

fn spawn_request(command: &TerminalCommand<'_>) -> Result<Spawn, RpcError> {
    let key = SessionKey::mint(&AgentName::parse("demo").unwrap());
    let context = TerminalContext {
        parent_lease_id: LeaseId::mint(),
        session_key: &key,
        roots: vec!["/p".to_owned()],
        cwd: "/p/sub".to_owned(),
        env: &[("PATH".to_owned(), "/bin".to_owned()), ("A".to_owned(), "1".to_owned())],
    };
    spawn_of(LeaseId::mint(), context, command)
}

fn command<'a>(command: &'a str, args: &'a [String]) -> TerminalCommand<'a> {
    TerminalCommand { command, args, env: &[], output_bytes_max: None }
}

#[test]
fn terminal_command_becomes_child_lease() {
    let (args, env) = (["-l".to_owned()], [("A".to_owned(), "2".to_owned())]);
    let wanted = TerminalCommand { env: &env, output_bytes_max: Some(5), ..command("ls", &args) };
    let spawn = spawn_request(&wanted).unwrap();
    assert_eq!(
        (spawn.argv, spawn.cwd.as_str(), spawn.roots),
        (vec!["ls".to_owned(), "-l".to_owned()], "/p/sub", vec!["/p".to_owned()])
    );
    assert_eq!(spawn.env, [("PATH".to_owned(), "/bin".to_owned()), ("A".to_owned(), "2".to_owned())]);
    assert!(matches!(spawn.kind, LeaseKind::Terminal { output_bytes_max: 5, .. }));
    let huge = TerminalCommand { output_bytes_max: Some(u64::MAX), ..command("ls", &[]) };
    assert!(matches!(
        spawn_request(&huge).unwrap().kind,
        LeaseKind::Terminal { output_bytes_max: OUTPUT_BYTES_MAX, .. }
    ));
}

#[test]
fn command_line_without_arguments_runs_in_shell() {
    let one = ["a b".to_owned()];
    let shell = |line: &str| vec!["/bin/sh".to_owned(), "-c".to_owned(), line.to_owned()];
    for (command, args, want) in [
        ("ls", &[][..], vec!["ls".to_owned()]),
        ("/usr/bin/g++", &[], vec!["/usr/bin/g++".to_owned()]),
        ("ls -la | wc", &[], shell("ls -la | wc")),
        ("echo $HOME", &[], shell("echo $HOME")),
        ("my program", &one, vec!["my program".to_owned(), "a b".to_owned()]),
    ] {
        assert_eq!(argv(command, args), Ok(want), "{command}");
    }
    for (command, args) in [("", &[][..]), ("  ", &[]), ("a\0", &[]), ("a", &["\0".to_owned()])] {
        assert_eq!(argv(command, args).unwrap_err().code, INVALID_PARAMS);
    }
}

#[test]
fn invalid_variable_is_refused() {
    let bad = [("A=B".to_owned(), String::new())];
    let spawn = spawn_request(&TerminalCommand { env: &bad, ..command("ls", &[]) });
    assert_eq!(spawn.unwrap_err().code, INVALID_PARAMS);
}

#[tokio::test]
async fn terminal_requests_can_be_repeated() {
    let fake = Arc::new(FakeSupervisor::default());
    let spawn = spawn_request(&command("make", &[])).unwrap();
    let id = spawn.lease_id;
    let created = create(&fake, spawn.clone()).await.unwrap();
    assert_eq!(created, format!(r#"{{"terminalId":"{id}"}}"#));
    assert_eq!(create(&fake, spawn).await.unwrap(), created, "the same terminal after a crash");
    fake.terminals.lock().unwrap().get_mut(&id).unwrap().bytes = b"hi".to_vec();
    assert_eq!(output(&fake, id).await.unwrap(), r#"{"output":"hi","truncated":false}"#);
    assert_eq!(kill(&fake, id).await.unwrap(), "{}");
    let end = r#"{"exitCode":null,"signal":"SIGTERM"}"#;
    assert_eq!(wait_for_exit(&fake, id).await.unwrap(), end);
    let last = output(&fake, id).await.unwrap();
    assert_eq!(last, format!(r#"{{"exitStatus":{end},"output":"hi","truncated":false}}"#));
    assert_eq!(release(&fake, id).await.unwrap(), "{}");
    assert_eq!(release(&fake, id).await.unwrap(), "{}", "after a crash");
    assert!(matches!(output(&fake, id).await, Err(TerminalError::Rpc(error)) if error.code == NOT_FOUND));
    let requests = fake.requests.lock().unwrap().clone();
    let make = "spawn [\"make\"] in /p/sub";
    let close = "close: terminal/release";
    assert_eq!(requests, [make, make, "close: terminal/kill", close, "release", close, "release"]);
}

#[tokio::test]
async fn unavailable_supervisor_is_not_reported_to_agent() {
    let fake =
        Arc::new(FakeSupervisor { unavailable_calls: AtomicU32::new(u32::MAX), ..FakeSupervisor::default() });
    let id = LeaseId::mint();
    for result in [
        output(&fake, id).await,
        wait_for_exit(&fake, id).await,
        kill(&fake, id).await,
        release(&fake, id).await,
    ] {
        assert!(matches!(result, Err(TerminalError::Unavailable)));
    }
}

#[test]
fn terminals_of_other_sessions_are_not_found() {
    let (own, other) = (LeaseId::mint(), LeaseId::mint());
    let allowed = BTreeSet::from([own]);
    assert_eq!(find(&own.to_string(), &allowed), Ok(own));
    for id in [other.to_string(), String::new(), "1".to_owned(), own.to_string().to_uppercase()] {
        assert_eq!(find(&id, &allowed), Err(no_terminal()), "{id}");
    }
}

#[test]
fn output_omits_partial_characters() {
    let exited = Some(ExitStatus::Exited(0));
    for (bytes, truncated, exit, want) in [
        (&b"plain"[..], false, None, "plain"),
        (b"\xa9 cut", true, None, " cut"),
        (b"\xa9 odd", false, None, "\u{fffd} odd"),
        (b"half \xc3", false, None, "half "),
        (b"half \xf0\x9f\x98", false, None, "half "),
        (b"half \xc3", false, exited, "half \u{fffd}"),
        (b"odd \xff", false, None, "odd \u{fffd}"),
        (b"", true, None, ""),
    ] {
        assert_eq!(text(&Tail { bytes: bytes.to_vec(), truncated, exit }), want, "{bytes:?}");
    }
}

#[test]
fn exit_status_maps_to_json() {
    for (exit, want) in [
        (Some(ExitStatus::Exited(3)), r#"{"exitCode":3,"signal":null}"#),
        (Some(ExitStatus::Signaled(9)), r#"{"exitCode":null,"signal":"SIGKILL"}"#),
        (Some(ExitStatus::Signaled(40)), r#"{"exitCode":null,"signal":"signal 40"}"#),
        (Some(ExitStatus::Unknown), r#"{"exitCode":null,"signal":null}"#),
        (None, r#"{"exitCode":null,"signal":null}"#),
    ] {
        assert_eq!(exit_status(exit).to_string(), want);
    }
}

#[test]
fn limit_of_terminals_is_a_typed_error() {
    let refusal = Refusal::new(RefusalCode::QuotaExceeded, "16 terminals of this agent run");
    let error = TerminalError::from(CallError::Refused(refusal)).rpc();
    assert_eq!((error.code, error.message.as_str()), (LIMIT_REACHED, "16 terminals of this agent run"));
}
