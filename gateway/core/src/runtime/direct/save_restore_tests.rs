//! A machine restored from its saved state behaves the same, at any position.

use super::*;
use acp_shared::ids::LeaseId;
use proptest::prelude::*;

/// Input of a machine. Runs and leases come from small pools, so that inputs refer to each other.
#[derive(Debug, Clone)]
enum Input {
    Ensure {
        lease: usize,
        resume: bool,
        mode: bool,
    },
    Submit {
        run: usize,
        steer: bool,
    },
    Line(Vec<u8>),
    /// Response to the request sent this many messages ago.
    Reply {
        index: usize,
        ok: bool,
        body: usize,
    },
    Answer {
        at: u64,
        ok: bool,
    },
    Cancel(usize),
    Option,
    Close,
    Probe,
}

const BODIES: [&str; 8] = [
    "{}",
    "null",
    r#"{"protocolVersion":1,"agentCapabilities":{"loadSession":true,"sessionCapabilities":{"close":{}}},"_meta":{"steering":{"supported":true}}}"#,
    r#"{"protocolVersion":1,"agentCapabilities":{"sessionCapabilities":{"resume":{}}},"authMethods":[{"name":"x"}]}"#,
    r#"{"sessionId":"s1","modes":{"currentModeId":"yolo","availableModes":[{"id":"default"}]}}"#,
    r#"{"stopReason":"end_turn","usage":{}}"#,
    r#"{"outcome":"injected"}"#,
    r#"{"code":-32603,"message":"x"}"#,
];

const LINES: [&str; 12] = [
    r#"{"method":"session/update","params":{"sessionId":"s1","update":{"sessionUpdate":"agent_message_chunk","content":{}}}}"#,
    r#"{"method":"session/update","params":{"sessionId":"s2","update":{"sessionUpdate":"tool_call"}}}"#,
    r#"{"method":"session/update","params":{"update":{"sessionUpdate":"current_mode_update","currentModeId":"yolo"}}}"#,
    r#"{"method":"session/update"}"#,
    r#"{"id":0,"method":"session/request_permission","params":{"options":[]}}"#,
    r#"{"id":"a","method":"session/request_permission","params":{}}"#,
    r#"{"id":null,"method":"fs/read_text_file","params":{"path":"/a"}}"#,
    r#"{"id":1,"method":"terminal/wait_for_exit","params":{"terminalId":"t"}}"#,
    r#"{"id":2,"method":"craft/drainMidTurnQueue"}"#,
    r#"{"method":"$/cancel_request","params":{"requestId":0}}"#,
    r#"{"id":null,"error":{"code":-32700}}"#,
    "not json at all",
];

fn any_input() -> impl Strategy<Value = Input> {
    prop_oneof![
        1 => (0..2_usize, any::<bool>(), any::<bool>()).prop_map(|(lease, resume, mode)| Input::Ensure { lease, resume, mode }),
        3 => (0..3_usize, any::<bool>()).prop_map(|(run, steer)| Input::Submit { run, steer }),
        6 => (0..LINES.len()).prop_map(|i| Input::Line(LINES[i].into())),
        1 => prop::collection::vec(any::<u8>(), 0..40).prop_map(Input::Line),
        8 => (0..3_usize, prop::bool::weighted(0.85), 0..BODIES.len()).prop_map(|(index, ok, body)| Input::Reply { index, ok, body }),
        2 => (0..40_u64, any::<bool>()).prop_map(|(at, ok)| Input::Answer { at, ok }),
        1 => (0..3_usize).prop_map(Input::Cancel),
        1 => Just(Input::Option),
        1 => Just(Input::Close),
        1 => Just(Input::Probe),
    ]
}

/// Starts with a handshake in most cases, so that later inputs meet an open session.
fn script() -> impl Strategy<Value = Vec<Input>> {
    let open = |body| Input::Reply { index: 0, ok: true, body };
    let start = prop_oneof![
        3 => Just(vec![Input::Ensure { lease: 0, resume: false, mode: false }, open(2), open(4)]),
        2 => Just(vec![Input::Ensure { lease: 0, resume: true, mode: false }, open(3), open(1)]),
        1 => Just(Vec::new()),
    ];
    (start, prop::collection::vec(any_input(), 0..40)).prop_map(|(start, rest)| [start, rest].concat())
}

struct Ids {
    leases: [LeaseId; 2],
    runs: [RunId; 3],
}

fn step(
    ids: &Ids,
    sent: &[String],
    at: u64,
    machine: &mut dyn BackendMachine,
    input: &Input,
) -> Vec<BackendStep> {
    match input {
        Input::Ensure { lease, resume, mode } => machine.start_session(&StartSessionParams {
            lease_id: ids.leases[*lease],
            resume: resume.then(|| "s1".to_owned()),
            mode: mode.then(|| "default".to_owned()),
            options: vec![("a".to_owned(), "b".to_owned())],
            offer_terminal: *lease == 0,
            ..super::tests::defaults()
        }),
        Input::Submit { run, steer } => machine.submit(&SubmitParams {
            run_id: ids.runs[*run],
            text: "t".to_owned(),
            files: None,
            steer: *steer,
        }),
        Input::Line(line) => machine.stream(at, line),
        Input::Reply { index, ok, body } => {
            let Some(id) = sent.iter().rev().nth(*index) else { return Vec::new() };
            let kind = if *ok { "result" } else { "error" };
            machine.stream(at, format!(r#"{{"id":{id},"{kind}":{}}}"#, BODIES[*body]).as_bytes())
        }
        Input::Answer { at, ok } => {
            let error = crate::jsonrpc::RpcError { code: -1, message: "no".to_owned() };
            machine.answer(&RequestReply {
                at: *at,
                outcome: if *ok { Ok("{}".to_owned()) } else { Err(error) },
                is_rejection: !ok,
            })
        }
        Input::Cancel(run) => machine.cancel(ids.runs[*run]),
        Input::Option => machine.set_option(&OptionChange::Mode("default".to_owned())),
        Input::Close => machine.close(crate::backend::CloseMode::Discard),
        Input::Probe => machine.probe(),
    }
}

fn ids_of(steps: &[BackendStep]) -> Vec<String> {
    let id = |bytes: &[u8]| match RpcMessage::parse(str::from_utf8(bytes.trim_ascii()).unwrap()).unwrap() {
        RpcMessage::Request { id, .. } => Some(id.to_owned()),
        _ => None,
    };
    let sent = |step: &BackendStep| match step {
        BackendStep::Send { bytes, .. } => id(bytes),
        _ => None,
    };
    steps.iter().filter_map(sent).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn restored_machine_continues_identically(script in script(), cut in 0..45_usize) {
        let ids = Ids { leases: [(); 2].map(|()| LeaseId::mint()), runs: [(); 3].map(|()| RunId::mint()) };
        let mut original = DirectMachine::open(None).unwrap();
        let mut restored = original.clone();
        let mut sent = Vec::new();
        let (mut started, mut ended) = (Vec::new(), Vec::new());
        for (i, input) in script.iter().enumerate() {
            if i == cut {
                restored = DirectMachine::open(Some(&restored.save())).unwrap();
            }
            let steps = step(&ids, &sent, i as u64, &mut original, input);
            prop_assert_eq!(&step(&ids, &sent, i as u64, &mut restored, input), &steps);
            prop_assert_eq!(&original, &restored);
            // The saved state round-trips at every step.
            prop_assert_eq!(&DirectMachine::open(Some(&original.save())).unwrap(), &original);
            prop_assert!(original.save().len() < 16 * 1024);
            for step in &steps {
                match step {
                    BackendStep::Send { kind: InputKind::Prompt { run_id }, .. } => started.push(*run_id),
                    BackendStep::TurnDone { run_id, .. } => ended.push(*run_id),
                    _ => {}
                }
            }
            // A turn ends at most once, and only after its start.
            for run_id in ids.runs {
                let count = |list: &[RunId]| list.iter().filter(|run| **run == run_id).count();
                prop_assert!(count(&ended) <= count(&started));
            }
            sent.extend(ids_of(&steps));
        }
    }

    #[test]
    fn hostile_lines_never_end_a_turn(lines in prop::collection::vec(
        prop_oneof![
            prop::collection::vec(any::<u8>(), 0..80),
            "[{}\\[\\]\":,a-z0-9 ]{0,80}".prop_map(String::into_bytes),
            ("(id|method|params|result|error)", "(session/update|session/request_permission|fs/read_text_file|initialize|\\$/cancel_request)", "[{}\\[\\]\":,a-z0-9]{0,20}")
                .prop_map(|(key, method, junk)| format!(r#"{{"id":0,"method":"{method}","params":{{"{key}":"{junk}"}}}}"#).into_bytes()),
        ], 0..20)) {
        let (mut machine, _) = super::tests::running();
        for (at, line) in lines.iter().enumerate() {
            for step in machine.stream(at as u64, line) {
                let bad = matches!(step, BackendStep::TurnDone { .. } | BackendStep::TurnFailed { .. } | BackendStep::Failed(_) | BackendStep::Ready { .. });
                prop_assert!(!bad, "{:?}", step);
            }
        }
    }
}
