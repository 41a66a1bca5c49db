//! Valid and invalid forms of every row of the grammar, and texts that are not commands.
use super::*;
use proptest::prelude::*;

fn changes(command: &ChatCommand) -> bool {
    match command {
        ChatCommand::Spawn(_) | ChatCommand::Focus(_) | ChatCommand::Unfocus => true,
        ChatCommand::On { act, .. } => act.changes(),
        ChatCommand::Window { change, .. } => change.is_some(),
        ChatCommand::Verbosity { change } => change.is_some(),
        ChatCommand::Sessions
        | ChatCommand::Usage { .. }
        | ChatCommand::Agents
        | ChatCommand::Doctor
        | ChatCommand::Install
        | ChatCommand::Help
        | ChatCommand::Misused { .. } => false,
    }
}

fn spawn(change: impl FnOnce(&mut SpawnArgs)) -> ChatCommand {
    let mut args = SpawnArgs::default();
    change(&mut args);
    ChatCommand::Spawn(args)
}

fn on(target: &str, act: SessionAction) -> ChatCommand {
    let target = (!target.is_empty()).then(|| target.to_owned());
    ChatCommand::On { target, act }
}

fn set(target: &str, setting: Setting) -> ChatCommand {
    on(target, SessionAction::Set(setting))
}

fn close(target: &str, ending: Ending, discard: bool) -> ChatCommand {
    on(target, SessionAction::Close { ending, discard })
}

fn answer(permission: Option<&str>, verdict: PermissionChoice) -> SessionAction {
    SessionAction::Answer(AnswerArgs { permission: permission.map(str::to_owned), verdict })
}

fn window(target: &str, window: BindingTimeout, change: Option<Option<u64>>) -> ChatCommand {
    let target = (!target.is_empty()).then(|| target.to_owned());
    ChatCommand::Window { target, window, change }
}

fn config(id: &str, value: &str) -> Setting {
    Setting::Config { id: id.to_owned(), value: value.to_owned() }
}

fn run() -> RunId {
    RunId::parse("01890a5d-ac96-774b-bcce-b30200000001").unwrap()
}

/// Values for a form with two fields.
fn filled() -> SessionAction {
    let fields = ["name=Ann Lee", "age=20"].map(str::to_owned).to_vec();
    answer(Some("x:1"), PermissionChoice::Fields(fields))
}

fn valid_inputs() -> Vec<(&'static str, ChatCommand)> {
    use SessionAction::{CancelRun, Steer};
    let reads = Some(PermissionMode::ApproveReads);
    let demo = || AgentName::parse("demo").ok();
    let placed = |place| spawn(|args| args.place = place);
    let full = |args: &mut SpawnArgs| {
        args.agent = demo();
        args.cwd = Some("/tmp/a b".to_owned());
        args.label = Some("my own".to_owned());
        args.mode = Some(SessionMode::Oneshot);
        args.permission = Some(PermissionMode::DenyAll);
        args.place = SpawnPlacement::Here;
    };
    vec![
        ("/acp spawn", spawn(|_| ())),
        ("/acp spawn demo", spawn(|args| args.agent = demo())),
        ("/ACP Spawn demo", spawn(|args| args.agent = demo())),
        (
            "/acp spawn --cwd '/tmp/a b' demo --label=\"my own\" \u{2014}mode oneshot \u{2013}\u{2013}permission=deny-all --thread here",
            spawn(full),
        ),
        (
            "/acp spawn demo \u{2012}cwd=\"/tmp/a b\" \u{2015}label \u{201C}my own\u{201D} --mode=ONESHOT --permission deny\u{2011}all \u{2212}bind=here",
            spawn(full),
        ),
        ("/acp spawn --thread auto", placed(SpawnPlacement::Auto)),
        ("/acp spawn --thread=off", placed(SpawnPlacement::Off)),
        ("/acp spawn --bind off", placed(SpawnPlacement::Off)),
        ("/acp spawn --mode persistent", spawn(|args| args.mode = Some(SessionMode::Persistent))),
        ("/acp spawn --permission approve-reads", spawn(|args| args.permission = reads)),
        ("/acp cancel", on("", SessionAction::Cancel)),
        ("/acp cancel my own label", on("my own label", SessionAction::Cancel)),
        ("/acp cancel --session=\"my own\"", on("my own", SessionAction::Cancel)),
        ("/acp cancel --run 01890a5d-ac96-774b-bcce-b30200000001", on("", SessionAction::CancelRun(run()))),
        ("/acp cancel x --run=01890a5d-ac96-774b-bcce-b30200000001", on("x", CancelRun(run()))),
        ("/acp steer --run 01890a5d-ac96-774b-bcce-b30200000001", on("", SessionAction::SteerRun(run()))),
        ("/acp drop 01890a5d-ac96-774b-bcce-b30200000001", on("", SessionAction::Drop(run()))),
        ("/acp drop 01890a5d-ac96-774b-bcce-b30200000001 x", on("x", SessionAction::Drop(run()))),
        ("/acp steer don't \"quote\"", on("", SessionAction::Steer("don't \"quote\"".to_owned()))),
        ("/acp steer\ntwo\nlines", on("", SessionAction::Steer("two\nlines".to_owned()))),
        ("/acp steer --session 'a b' look --there", on("a b", Steer("look --there".to_owned()))),
        ("/acp steer -- --all of it", on("", SessionAction::Steer("--all of it".to_owned()))),
        ("/acp close", close("", Ending::Closed, false)),
        ("/acp close --discard", close("", Ending::Closed, true)),
        ("/acp close one two --discard", close("one two", Ending::Closed, true)),
        ("/acp archive x", close("x", Ending::Archived, false)),
        ("/acp delete \u{2014}discard", close("", Ending::Deleted, true)),
        ("/acp reset", close("", Ending::Reset, false)),
        ("/acp new", on("", SessionAction::New)),
        ("/acp new x", on("x", SessionAction::New)),
        ("/acp sessions", ChatCommand::Sessions),
        ("/acp usage", ChatCommand::Usage { days: 7 }),
        ("/acp usage 30", ChatCommand::Usage { days: 30 }),
        ("/acp status", on("", SessionAction::Status)),
        ("/acp status agent:demo:acp:1", on("agent:demo:acp:1", SessionAction::Status)),
        ("/acp set-mode plan", set("", Setting::Mode("plan".to_owned()))),
        ("/acp set\u{2010}mode plan my own", set("my own", Setting::Mode("plan".to_owned()))),
        ("/acp mode plan", set("", Setting::Mode("plan".to_owned()))),
        ("/acp set effort high", set("", config("effort", "high"))),
        ("/acp set effort 'very high' x", set("x", config("effort", "very high"))),
        ("/acp set cwd /tmp", set("", Setting::Cwd("/tmp".to_owned()))),
        ("/acp move big1 x", set("x", Setting::Host("big1".to_owned()))),
        ("/acp set model big", set("", Setting::Model("big".to_owned()))),
        ("/acp cwd '/tmp/a b' x", set("x", Setting::Cwd("/tmp/a b".to_owned()))),
        ("/acp permissions", on("", SessionAction::Permissions)),
        ("/acp permissions --session x", on("x", SessionAction::Permissions)),
        ("/acp permissions Approve\u{2011}All x", set("x", Setting::Permission(PermissionMode::ApproveAll))),
        ("/acp timeout 600", set("", Setting::TimeoutS(600))),
        ("/acp timeout 0 x", set("x", Setting::TimeoutS(0))),
        ("/acp model 'big one'", set("", Setting::Model("big one".to_owned()))),
        ("/acp reset-options", set("", Setting::Defaults)),
        ("/acp reset-options x", set("x", Setting::Defaults)),
        ("/acp allow", on("", answer(None, PermissionChoice::Allow))),
        ("/acp allow x:1 --session s", on("s", answer(Some("x:1"), PermissionChoice::Allow))),
        ("/acp deny x:1", on("", answer(Some("x:1"), PermissionChoice::Deny))),
        ("/acp answer 2", on("", answer(None, PermissionChoice::Option("2".to_owned())))),
        ("/acp answer x:1 name=\"Ann Lee\" age=20", on("", filled())),
        ("/acp answer x:1 2", on("", answer(Some("x:1"), PermissionChoice::Option("2".to_owned())))),
        ("/acp verbosity", ChatCommand::Verbosity { change: None }),
        ("/acp verbosity full", ChatCommand::Verbosity { change: Some(Some(Verbosity::Full)) }),
        ("/acp verbosity Compact", ChatCommand::Verbosity { change: Some(Some(Verbosity::Compact)) }),
        ("/acp verbosity none", ChatCommand::Verbosity { change: Some(Some(Verbosity::None)) }),
        ("/acp verbosity default", ChatCommand::Verbosity { change: Some(None) }),
        ("/acp doctor", ChatCommand::Doctor),
        ("/acp install", ChatCommand::Install),
        ("/acp login", spawn(|_| {})),
        (
            "/acp login demo key",
            spawn(|args| {
                args.agent = AgentName::parse("demo").ok();
                args.auth_method = Some("key".to_owned());
            }),
        ),
        ("/acp", ChatCommand::Help),
        ("  /acp help ", ChatCommand::Help),
        ("/acp --help", ChatCommand::Help),
        ("/acp help me", ChatCommand::Help),
        ("/focus agent:demo:acp:1", ChatCommand::Focus("agent:demo:acp:1".to_owned())),
        ("/focus my own label", ChatCommand::Focus("my own label".to_owned())),
        ("/unfocus", ChatCommand::Unfocus),
        ("/agents", ChatCommand::Agents),
        ("/session idle", window("", BindingTimeout::Idle, None)),
        ("/session idle 1h30m", window("", BindingTimeout::Idle, Some(Some(5_400_000)))),
        ("/session idle off my own", window("my own", BindingTimeout::Idle, Some(None))),
        ("/session max-age --session x", window("x", BindingTimeout::MaxAge, None)),
        ("/session max\u{2011}age 2", window("", BindingTimeout::MaxAge, Some(Some(7_200_000)))),
    ]
}

const BOTH_PLACEMENTS: &str = "--thread and --bind set the same option: use only one of them.";

const INVALID_INPUTS: [(&str, &str); 58] = [
    ("/acp verbosity loud", "\"loud\" is not a verbosity; use full, compact, none or default."),
    ("/acp verbosity full x", "Unexpected argument \"x\": the command takes one value."),
    ("/acp login a b c", "Unexpected argument \"c\": give an agent and a method."),
    ("/acp spawn a b", "Unexpected argument \"b\": the command takes one agent."),
    ("/acp spawn a!", "\"a!\": agent name may contain only letters, digits and -_.:/@."),
    ("/acp spawn --cwd", "--cwd requires a value."),
    ("/acp spawn --cwd --label x", "--cwd requires a value."),
    ("/acp spawn --cwd=", "--cwd requires a value."),
    ("/acp spawn --cwd ''", "--cwd requires a value."),
    ("/acp spawn --cwd /a --cwd /b", "--cwd is given twice."),
    ("/acp spawn --mode eternal", "--mode must be persistent or oneshot."),
    ("/acp spawn --permission yes", "--permission must be ask, approve-reads, approve-all or deny-all."),
    ("/acp spawn --thread there", "--thread must be auto, here or off."),
    ("/acp spawn --bind auto", "--bind must be here or off."),
    ("/acp spawn --bind here --thread here", BOTH_PLACEMENTS),
    ("/acp spawn --thread=off \u{2014}bind=off", BOTH_PLACEMENTS),
    ("/acp spawn --colour red", "Unknown flag \"--colour\"."),
    ("/acp spawn 'x", "A quote (') is not closed."),
    ("/acp spawn x\\", "A backslash at the end escapes nothing."),
    ("/acp cancel --discard", "Unknown flag \"--discard\"."),
    ("/acp cancel x --session y", "Unexpected argument \"x\": the session is already given by --session."),
    ("/acp cancel --run x", "\"x\" is not a run id."),
    ("/acp drop", "Missing argument: a run id."),
    ("/acp drop x", "\"x\" is not a run id."),
    ("/acp steer --run x", "\"x\" is not a run id."),
    ("/acp steer --run 01890a5d-ac96-774b-bcce-b30200000001 go", "--run and a text cannot be combined."),
    ("/acp steer", "Missing argument: a text."),
    ("/acp steer --session x", "Missing argument: a text."),
    ("/acp steer --sesion x go", "Unknown flag \"--sesion\"."),
    ("/acp close --discard=yes", "--discard takes no value."),
    ("/acp archive --force", "Unknown flag \"--force\"."),
    ("/acp delete --discard --discard", "--discard is given twice."),
    ("/acp reset 'x", "A quote (') is not closed."),
    ("/acp new --x", "Unknown flag \"--x\"."),
    ("/acp sessions all", "Unexpected argument \"all\": the command takes none."),
    ("/acp status --x", "Unknown flag \"--x\"."),
    ("/acp usage week", "\"week\" is not a number of days from 1 to 366."),
    ("/acp set-mode", "Missing argument: a mode."),
    ("/acp set a", "Missing argument: an option and a value are required."),
    ("/acp cwd", "Missing argument: a directory."),
    ("/acp move", "Missing argument: a host."),
    (
        "/acp permissions perhaps",
        "\"perhaps\" is not a permission mode; use ask, approve-reads, approve-all or deny-all.",
    ),
    ("/acp timeout", "Missing argument: a number of seconds."),
    ("/acp timeout 5m", "\"5m\" is not a number of seconds."),
    ("/acp timeout +5", "\"+5\" is not a number of seconds."),
    ("/acp model", "Missing argument: a model."),
    ("/acp reset-options --all", "Unknown flag \"--all\"."),
    ("/acp allow a b", "Unexpected argument \"b\": the command takes one permission request."),
    ("/acp deny a b", "Unexpected argument \"b\": the command takes one permission request."),
    (
        "/acp answer",
        "The command takes an option, or words FIELD=VALUE, preceded by the request's id if several are pending. Quote \
             a value with spaces: FIELD=\"two words\".",
    ),
    ("/acp doctor now", "Unexpected argument \"now\": the command takes none."),
    ("/acp install codex", "Unexpected argument \"codex\": the command takes none."),
    ("/focus", "Missing argument: a session (its key, id or label)."),
    ("/unfocus x", "Unexpected argument \"x\": the command takes none."),
    ("/agents x", "Unexpected argument \"x\": the command takes none."),
    ("/session idle soon", "\"soon\" is not a duration: use 90m, 1h30m, 2d, a number of hours, or off."),
    ("/session max-age 400d", "A timeout can be at most 365 days; off removes it."),
    ("/session max-age 1h --for x", "Unknown flag \"--for\"."),
];

#[test]
fn every_command_is_parsed() {
    for (text, want) in valid_inputs() {
        assert_eq!(parse(text), Some(want), "{text:?}");
    }
}

#[test]
fn misuse_is_answered_with_usage() {
    for (text, want) in INVALID_INPUTS {
        let Some(ChatCommand::Misused { why, usage: Some(row) }) = parse(text) else {
            panic!("{text}: {:?}", parse(text))
        };
        assert_eq!(why, want, "{text}");
        assert!(text.starts_with(format!("{} {}", row.head, row.verb).trim_end()), "{text}: {row:?}");
        let usage = table::misuse_text(&why, Some(row));
        assert_eq!(usage, format!("{why}\nUsage: {}\n/acp help lists all commands.", row.usage()));
    }
}

/// Every row has a valid and an invalid form; help accepts anything.
#[test]
fn every_command_has_valid_and_invalid_examples() {
    for row in &table::COMMANDS {
        let begins = |text: &str| {
            let text = tokenizer::normalize_keyword(text.trim());
            let name = format!("{} {}", row.head, row.verb);
            let rest = text.strip_prefix(name.trim_end());
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(char::is_whitespace))
        };
        assert!(valid_inputs().iter().any(|(text, _)| begins(text)), "{row:?}");
        assert!(row.verb == "help" || INVALID_INPUTS.iter().any(|(text, _)| begins(text)), "{row:?}");
    }
}

#[test]
fn unknown_command_gets_help() {
    for (text, why) in [
        ("/acp list", "/acp has no command \"list\"."),
        ("/acp \u{2014}discard", "/acp has no command \"-discard\"."),
        ("/session", "/session requires a command."),
        ("/session status", "/session has no command \"status\"."),
    ] {
        assert_eq!(parse(text), Some(ChatCommand::Misused { why: why.to_owned(), usage: None }), "{text}");
        assert!(table::misuse_text(why, None).ends_with(&table::help_text()));
    }
}

#[test]
fn similar_command_is_suggested_with_its_usage() {
    for (text, verb) in [("/acp spwan demo", "spawn"), ("/acp stauts", "status"), ("/session idel", "idle")] {
        let Some(ChatCommand::Misused { why, usage: Some(row) }) = parse(text) else { panic!("{text}") };
        assert_eq!(row.verb, verb, "{text}");
        assert!(why.ends_with(&format!(" Did you mean {} {verb}?", row.head)), "{why}");
        assert_eq!(table::misuse_text(&why, Some(row)).lines().count(), 3);
    }
}

#[test]
fn similar_text_is_not_a_command() {
    let ours = ["/acpfoo", "/acp-foo", "/acp\u{2014}spawn", "/acps spawn", "see /acp help", "//acp", "/ acp"];
    let others = ["/focused", "/unfocused x", "/agent", "/sessions", "/compact", "hello", ""];
    for text in ours.into_iter().chain(others) {
        assert_eq!(parse(text), None, "{text}");
    }
}

/// Row and command agree on the requirement; only a spawn changes something without one.
#[test]
fn table_and_commands_agree_on_authorization() {
    for (text, command) in valid_inputs() {
        let (head, rest) = cut(text);
        let verb = tokenizer::normalize_keyword(cut(rest).0);
        let rows = table::COMMANDS.iter().filter(|row| row.head == head.to_ascii_lowercase());
        let row = rows
            .clone()
            .find(|row| row.verb.is_empty() || row.verb == verb || row.aliases.contains(&verb.as_str()))
            .unwrap();
        let shows = matches!(
            command,
            ChatCommand::Window { change: None, .. } | ChatCommand::Verbosity { change: None }
        );
        assert!(row.who == command.required_access() || shows, "{text}");
        let free = matches!(command, ChatCommand::Spawn(_)) || !changes(&command);
        assert!(free || command.required_access() != authorization::AccessRequirement::Anyone, "{text}");
    }
}

#[test]
fn manual_has_every_command() {
    let text = include_str!("../../../../docs/manual/commands.md");
    let (_, rest) = text.split_once("<!-- commands -->\n").unwrap();
    let (table, _) = rest.split_once("<!-- end -->").unwrap();
    assert_eq!(table, table::manual(), "put this table into docs/manual/commands.md");
}

proptest! {
    #[test]
    fn text_after_command_name_never_reaches_agent(
        head in prop::sample::select(vec!["/acp", "/Acp", "/ACP", "/focus", "/unfocus", "/agents", "/session"]),
        before in "[ \\t\\n\u{3000}]{0,3}",
        gap in prop::sample::select(vec![" ", "\n", "\t", "\u{a0}", "\u{2003}"]),
        rest in "(\\PC|\\n){0,60}",
    ) {
        let text = format!("{before}{head}{gap}{rest}");
        prop_assert!(parse(&text).is_some());
    }

    #[test]
    fn parser_accepts_any_arguments(
        row in 0..table::COMMANDS.len(),
        words in prop::collection::vec(
            prop_oneof![
                "\\PC{0,12}",
                "[-\u{2014}\u{2013}\u{2011}'\"\u{201C}\\\\ =]{0,6}[a-z]{0,8}=?\\PC{0,4}",
                Just("--session".to_owned()),
                Just("--discard".to_owned()),
                "[0-9]{1,30}[a-z]{0,3}",
            ],
            0..8,
        ),
    ) {
        let row = &table::COMMANDS[row];
        let text = format!("{} {} {}", row.head, row.verb, words.join(" "));
        prop_assert!(parse(&text).is_some());
    }

    #[test]
    fn text_without_slash_is_not_a_command(text in "[^/\\s]\\PC{0,40}") {
        prop_assert_eq!(parse(&text), None);
    }
}
