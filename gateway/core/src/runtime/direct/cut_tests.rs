//! A machine that is saved and opened again is the same machine, wherever it is cut.

use super::*;
use acp_shared::ids::LeaseId;
use proptest::prelude::*;

/// One thing that can happen to a link; runs and leases are taken from small pools, so that they meet.
#[derive(Debug, Clone)]
enum Happens {
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
    /// The agent answers the request that was sent this many messages ago.
    Reply {
        back: usize,
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

fn happens() -> impl Strategy<Value = Happens> {
    prop_oneof![
        1 => (0..2_usize, any::<bool>(), any::<bool>()).prop_map(|(lease, resume, mode)| Happens::Ensure { lease, resume, mode }),
        3 => (0..3_usize, any::<bool>()).prop_map(|(run, steer)| Happens::Submit { run, steer }),
        6 => (0..LINES.len()).prop_map(|i| Happens::Line(LINES[i].into())),
        1 => prop::collection::vec(any::<u8>(), 0..40).prop_map(Happens::Line),
        8 => (0..3_usize, prop::bool::weighted(0.85), 0..BODIES.len()).prop_map(|(back, ok, body)| Happens::Reply { back, ok, body }),
        2 => (0..40_u64, any::<bool>()).prop_map(|(at, ok)| Happens::Answer { at, ok }),
        1 => (0..3_usize).prop_map(Happens::Cancel),
        1 => Just(Happens::Option),
        1 => Just(Happens::Close),
        1 => Just(Happens::Probe),
    ]
}

/// A handshake first in most cases, so that the rest meets an open session.
fn script() -> impl Strategy<Value = Vec<Happens>> {
    let open = |body| Happens::Reply { back: 0, ok: true, body };
    let start = prop_oneof![
        3 => Just(vec![Happens::Ensure { lease: 0, resume: false, mode: false }, open(2), open(4)]),
        2 => Just(vec![Happens::Ensure { lease: 0, resume: true, mode: false }, open(3), open(1)]),
        1 => Just(Vec::new()),
    ];
    (start, prop::collection::vec(happens(), 0..40)).prop_map(|(start, rest)| [start, rest].concat())
}

struct World {
    leases: [LeaseId; 2],
    runs: [RunId; 3],
}

fn step(
    world: &World,
    sent: &[String],
    at: u64,
    link: &mut dyn BackendMachine,
    what: &Happens,
) -> Vec<BackendStep> {
    match what {
        Happens::Ensure { lease, resume, mode } => link.start_session(&StartSessionParams {
            lease_id: world.leases[*lease],
            resume: resume.then(|| "s1".to_owned()),
            mode: mode.then(|| "default".to_owned()),
            options: vec![("a".to_owned(), "b".to_owned())],
            offer_terminal: *lease == 0,
            ..super::tests::ensure()
        }),
        Happens::Submit { run, steer } => link.submit(&SubmitParams {
            run_id: world.runs[*run],
            text: "t".to_owned(),
            files: None,
            steer: *steer,
        }),
        Happens::Line(line) => link.stream(at, line),
        Happens::Reply { back, ok, body } => {
            let Some(id) = sent.iter().rev().nth(*back) else { return Vec::new() };
            let kind = if *ok { "result" } else { "error" };
            link.stream(at, format!(r#"{{"id":{id},"{kind}":{}}}"#, BODIES[*body]).as_bytes())
        }
        Happens::Answer { at, ok } => {
            let error = crate::backend::RpcError { code: -1, message: "no".to_owned() };
            link.answer(&RequestReply {
                at: *at,
                outcome: if *ok { Ok("{}".to_owned()) } else { Err(error) },
                is_rejection: !ok,
            })
        }
        Happens::Cancel(run) => link.cancel(world.runs[*run]),
        Happens::Option => link.set_option(&OptionChange::Mode("default".to_owned())),
        Happens::Close => link.close(crate::backend::CloseMode::Discard),
        Happens::Probe => link.probe(),
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
    fn wherever_it_is_cut_it_goes_on_the_same(script in script(), cut in 0..45_usize) {
        let world = World { leases: [(); 2].map(|()| LeaseId::mint()), runs: [(); 3].map(|()| RunId::mint()) };
        let mut straight = DirectMachine::open(None).unwrap();
        let mut restored = straight.clone();
        let mut sent = Vec::new();
        let (mut begun, mut ended) = (Vec::new(), Vec::new());
        for (i, what) in script.iter().enumerate() {
            if i == cut {
                restored = DirectMachine::open(Some(&restored.save())).unwrap();
            }
            let steps = step(&world, &sent, i as u64, &mut straight, what);
            prop_assert_eq!(&step(&world, &sent, i as u64, &mut restored, what), &steps);
            prop_assert_eq!(&straight, &restored);
            // What is saved reads back as exactly what it was, at every step.
            prop_assert_eq!(&DirectMachine::open(Some(&straight.save())).unwrap(), &straight);
            prop_assert!(straight.save().len() < 16 * 1024);
            for step in &steps {
                match step {
                    BackendStep::Send { kind: InputKind::Prompt { run_id }, .. } => begun.push(*run_id),
                    BackendStep::TurnDone { run_id, .. } => ended.push(*run_id),
                    _ => {}
                }
            }
            // A turn ends at most once, and only one that was begun.
            for run_id in world.runs {
                let count = |list: &[RunId]| list.iter().filter(|run| **run == run_id).count();
                prop_assert!(count(&ended) <= count(&begun));
            }
            sent.extend(ids_of(&steps));
        }
    }

    #[test]
    fn hostile_lines_never_panic_and_never_end_a_turn(lines in prop::collection::vec(
        prop_oneof![
            prop::collection::vec(any::<u8>(), 0..80),
            "[{}\\[\\]\":,a-z0-9 ]{0,80}".prop_map(String::into_bytes),
            ("(id|method|params|result|error)", "(session/update|session/request_permission|fs/read_text_file|initialize|\\$/cancel_request)", "[{}\\[\\]\":,a-z0-9]{0,20}")
                .prop_map(|(key, method, junk)| format!(r#"{{"id":0,"method":"{method}","params":{{"{key}":"{junk}"}}}}"#).into_bytes()),
        ], 0..20)) {
        let (mut link, _) = super::tests::running();
        for (at, line) in lines.iter().enumerate() {
            for step in link.stream(at as u64, line) {
                let bad = matches!(step, BackendStep::TurnDone { .. } | BackendStep::TurnFailed { .. } | BackendStep::Failed(_) | BackendStep::Ready { .. });
                prop_assert!(!bad, "{:?}", step);
            }
        }
    }
}
