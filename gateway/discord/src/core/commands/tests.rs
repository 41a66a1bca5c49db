#![expect(clippy::expect_used, reason = "a failed expectation is a failed test")]

use super::*;
use crate::core::event::{GivenOption, SlashCommand, Value, samples};
use proptest::prelude::*;

fn spec(name: &str, arguments: CommandArguments) -> SlashCommandSpec {
    SlashCommandSpec { name: name.to_owned(), description: format!("{name} command"), arguments }
}

fn param(name: &str, position: OptionPosition) -> CommandOption {
    let kind = OptionKind::Text { max: 200, suggest: false };
    CommandOption {
        name: name.to_owned(),
        description: format!("{name} option"),
        kind,
        required: false,
        position,
    }
}

fn tree() -> Vec<SlashCommandSpec> {
    let choice = |text: &str| (text.to_owned(), text.to_owned());
    let spawn = vec![
        CommandOption {
            kind: OptionKind::Text { max: 100, suggest: true },
            ..param("agent", OptionPosition::Word(0))
        },
        CommandOption {
            kind: OptionKind::Choice(vec![choice("auto"), choice("here")]),
            ..param("thread", OptionPosition::Flag)
        },
        param("label", OptionPosition::Flag),
        CommandOption { kind: OptionKind::Bool, ..param("discard", OptionPosition::Flag) },
        CommandOption {
            kind: OptionKind::Integer { min: 0, max: 9 },
            ..param("count", OptionPosition::Flag)
        },
    ];
    let answer = vec![
        CommandOption { required: true, ..param("option", OptionPosition::Word(1)) },
        param("id", OptionPosition::Word(0)),
        param("session", OptionPosition::Flag),
    ];
    let steer = vec![
        CommandOption { required: true, ..param("text", OptionPosition::Remainder) },
        param("session", OptionPosition::Flag),
    ];
    let verbs = vec![
        spec("spawn", CommandArguments::Options(spawn)),
        spec("answer", CommandArguments::Options(answer)),
        spec("steer", CommandArguments::Options(steer)),
        spec(
            "set",
            CommandArguments::Subcommands(vec![spec(
                "mode",
                CommandArguments::Options(vec![param("mode", OptionPosition::Word(0))]),
            )]),
        ),
    ];
    vec![
        spec("acp", CommandArguments::Subcommands(verbs)),
        spec("unfocus", CommandArguments::Options(Vec::new())),
    ]
}

fn given(name: &str, value: Value) -> GivenOption {
    GivenOption { name: name.to_owned(), value, focused: false }
}

fn text(name: &str, value: &str) -> GivenOption {
    given(name, Value::Text(value.to_owned()))
}

fn command(name: &str, options: Vec<GivenOption>) -> SlashCommand {
    SlashCommand { interaction: samples::interaction(1), name: name.to_owned(), options }
}

fn acp(verb: &str, options: Vec<GivenOption>) -> SlashCommand {
    command("acp", vec![given(verb, Value::Sub(options))])
}

#[test]
fn registration_has_every_kind_of_option() {
    let json = registration(&tree()).expect("good");
    let acp = &json[0];
    assert_eq!((&acp["type"], &acp["name"], &acp["contexts"]), (&json!(1), &json!("acp"), &json!([0, 1])));
    let spawn = &acp["options"][0];
    assert_eq!((&spawn["type"], &spawn["options"][0]["autocomplete"]), (&json!(1), &json!(true)));
    assert_eq!(spawn["options"][1]["choices"][1], json!({ "name": "here", "value": "here" }));
    assert_eq!(spawn["options"][3]["type"], json!(5));
    assert_eq!(spawn["options"][4]["max_value"], json!(9));
    let answer = &acp["options"][1]["options"];
    assert_eq!((&answer[0]["name"], &answer[0]["required"]), (&json!("option"), &json!(true)));
    let set = &acp["options"][3];
    assert_eq!((&set["type"], &set["options"][0]["type"]), (&json!(2), &json!(1)));
    assert_eq!(json[1]["options"], json!([]));
}

#[test]
fn out_of_bounds_commands_are_rejected() {
    let options = |params: Vec<CommandOption>| vec![spec("acp", CommandArguments::Options(params))];
    let many = |n: usize| (0..n).map(|i| param(&format!("p{i}"), OptionPosition::Flag)).collect::<Vec<_>>();
    let choices = |n: usize, len: usize| {
        let choice = |i| (format!("{i}"), "v".repeat(len));
        CommandOption {
            kind: OptionKind::Choice((0..n).map(choice).collect()),
            ..param("p", OptionPosition::Flag)
        }
    };
    let long = |n: usize| CommandOption { description: "x".repeat(n), ..param("p", OptionPosition::Flag) };
    let named = |name: &str| vec![spec(name, CommandArguments::Options(Vec::new()))];
    let deep = |n: usize| {
        let leaf = spec("leaf", CommandArguments::Options(Vec::new()));
        vec![(0..n).fold(leaf, |below, i| spec(&format!("v{i}"), CommandArguments::Subcommands(vec![below])))]
    };
    let heavy = |n: usize| {
        let param = |i| CommandOption {
            description: "x".repeat(100),
            ..param(&format!("{i:02}"), OptionPosition::Flag)
        };
        let verb = |v| spec(&format!("verb{v}"), CommandArguments::Options((0..20).map(param).collect()));
        vec![spec("acp", CommandArguments::Subcommands((0..n).map(verb).collect()))]
    };
    let required = CommandOption { required: true, ..param("r", OptionPosition::Flag) };
    for (case, tree, good) in [
        ("25 options", options(many(25)), true),
        ("26 options", options(many(26)), false),
        ("description of 100", options(vec![long(100)]), true),
        ("description of 101", options(vec![long(101)]), false),
        ("no description", options(vec![long(0)]), false),
        ("25 choices", options(vec![choices(25, 100)]), true),
        ("26 choices", options(vec![choices(26, 1)]), false),
        ("no choice", options(vec![choices(0, 1)]), false),
        ("value of 101", options(vec![choices(1, 101)]), false),
        ("name of 32", named(&"x".repeat(32)), true),
        ("name of 33", named(&"x".repeat(33)), false),
        ("no name", named(""), false),
        ("capital", named("Acp"), false),
        ("space", named("a b"), false),
        ("group", deep(2), true),
        ("group of groups", deep(3), false),
        ("3 verbs full", heavy(3), true),
        ("4 verbs full", heavy(4), false),
        ("duplicate command", [named("a"), named("a")].concat(), false),
        (
            "duplicate option",
            options(vec![param("p", OptionPosition::Flag), param("p", OptionPosition::Word(0))]),
            false,
        ),
        ("100 commands", (0..100).flat_map(|i| named(&format!("c{i}"))).collect(), true),
        ("101 commands", (0..101).flat_map(|i| named(&format!("c{i}"))).collect(), false),
        ("required first", options(vec![required.clone(), param("p", OptionPosition::Flag)]), true),
        ("required last", options(vec![param("p", OptionPosition::Flag), required]), false),
        (
            "same position",
            options(vec![param("p", OptionPosition::Word(1)), param("q", OptionPosition::Word(1))]),
            false,
        ),
        (
            "two remainders",
            options(vec![param("p", OptionPosition::Remainder), param("q", OptionPosition::Remainder)]),
            false,
        ),
        (
            "boolean as a word",
            options(vec![CommandOption { kind: OptionKind::Bool, ..param("p", OptionPosition::Word(0)) }]),
            false,
        ),
    ] {
        assert_eq!(registration(&tree).is_ok(), good, "{case}: {:?}", check(&tree));
    }
    let broken = check(&options(vec![long(101)])).expect_err("too long").to_string();
    assert_eq!(broken, "slash command `acp p`: 101 characters of description, at most 100 allowed");
}

#[test]
fn chosen_options_become_a_command_line() {
    let all = vec![
        text("label", "my thing"),
        text("thread", "here"),
        given("discard", Value::Bool(true)),
        given("count", Value::Integer(3)),
        text("agent", "claude"),
    ];
    for (command, line) in [
        (command("unfocus", Vec::new()), "/unfocus"),
        (acp("spawn", Vec::new()), "/acp spawn"),
        (acp("spawn", all), "/acp spawn claude --label \"my thing\" --thread here --discard --count 3"),
        (acp("spawn", vec![given("discard", Value::Bool(false)), text("label", "")]), "/acp spawn"),
        (
            acp("spawn", vec![text("agent", "--x"), text("label", "--y z")]),
            "/acp spawn --label=\"--y z\" -- --x",
        ),
        // In the order of the line, not of the options.
        (acp("answer", vec![text("option", "2"), text("id", "7")]), "/acp answer 7 2"),
        (acp("answer", vec![text("option", "2")]), "/acp answer 2"),
        (
            acp("steer", vec![text("text", " say \"hi\" "), text("session", "a b")]),
            "/acp steer --session \"a b\" say \"hi\"",
        ),
        (acp("steer", vec![text("text", "-- no")]), "/acp steer -- -- no"),
        (acp("set", vec![given("mode", Value::Sub(vec![text("mode", "a\"b")]))]), "/acp set mode \"a\\\"b\""),
    ] {
        assert_eq!(super::line(&tree(), &command).as_deref(), Ok(line));
    }
}

#[test]
fn command_of_another_version_is_rejected() {
    for command in [
        command("old", Vec::new()),
        command("acp", Vec::new()),
        acp("old", Vec::new()),
        acp("spawn", vec![text("old", "x")]),
        acp("set", vec![text("mode", "x")]),
        acp("spawn", vec![given("agent", Value::Sub(Vec::new()))]),
        acp("spawn", vec![given("agent", Value::Other)]),
    ] {
        let refused = super::line(&tree(), &command).expect_err("refused");
        assert!(refused.to_string().contains("Reload Discord"), "{refused}");
    }
}

#[test]
fn debug_output_redacts_interaction_token() {
    let printed = format!("{:?}", acp("spawn", Vec::new()));
    assert!(!printed.contains("hunter2") && printed.contains("***"), "{printed}");
}

/// Parsed line as its handler sees it: words, flags with values, and the rest as typed.
#[derive(Debug, Default, PartialEq)]
struct ParsedLine {
    words: Vec<String>,
    flags: Vec<(String, String)>,
    rest: String,
}

fn next_word(text: &str) -> Option<(String, &str)> {
    let text = text.trim_start();
    let (mut out, mut quote, mut chars) = (None::<String>, None, text.char_indices());
    while let Some((at, c)) = chars.next() {
        match (quote, c) {
            (None, c) if c.is_whitespace() => return Some((out?, &text[at..])),
            (Some('\''), '\\') => out.get_or_insert_default().push(c),
            (_, '\\') => out.get_or_insert_default().push(chars.next().expect("a character to take").1),
            (Some(open), c) if c == open || (open == '"' && "\u{201C}\u{201D}\u{201E}".contains(c)) => {
                quote = None
            }
            (None, '"' | '\'' | '\u{201C}' | '\u{201D}' | '\u{201E}') => {
                quote = Some(if c == '\'' { c } else { '"' });
                out.get_or_insert_default();
            }
            _ => out.get_or_insert_default().push(c),
        }
    }
    assert_eq!(quote, None, "a quote is open in {text}");
    Some((out?, ""))
}

/// Parses a line. Flags outside of `switches` have a value. `has_text`: a free text follows the flags.
fn parse_line(line: &str, switches: &[&str], has_text: bool) -> ParsedLine {
    let mut out = ParsedLine::default();
    let mut rest = line;
    let mut over = false;
    while !has_text || rest.trim_start().starts_with('-') {
        let Some((next, after)) = next_word(rest) else { break };
        let is_flag = next.starts_with("--") && !over;
        rest = after;
        match next.strip_prefix("--").filter(|_| is_flag) {
            None => out.words.push(next),
            Some("") => {
                over = true;
                if has_text {
                    break;
                }
            }
            Some(flag) => {
                let (name, value) = match flag.split_once('=') {
                    Some((name, value)) => (name, value.to_owned()),
                    None if switches.contains(&flag) => (flag, String::new()),
                    None => {
                        let (value, after) = next_word(rest).expect("a value");
                        assert!(!value.starts_with("--"), "{line}");
                        rest = after;
                        (flag, value)
                    }
                };
                out.flags.push((name.to_owned(), value));
            }
        }
    }
    out.rest = rest.trim().to_owned();
    out
}

fn value() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-z]{1,8}",
        "-{0,3}[a-z ]{0,5}",
        "[-=\"'\\\\ \u{201C}\u{201D}\u{201E}a]{0,12}",
        "\\PC{0,20}",
        "[a\n\t ]{0,6}",
    ]
}

proptest! {
    #[test]
    fn words_and_flags_round_trip(
        agent in value(), label in value(), discard: bool, count in proptest::option::of(0_i64..9),
    ) {
        let mut options = vec![
            text("label", &label), text("agent", &agent), given("discard", Value::Bool(discard)),
        ];
        options.extend(count.map(|count| given("count", Value::Integer(count))));
        let line = super::line(&tree(), &acp("spawn", options)).expect("known");
        let read = parse_line(line.strip_prefix("/acp spawn").expect("verb"), &["discard"], false);
        let words: Vec<String> = Some(agent).filter(|agent| !agent.is_empty()).into_iter().collect();
        let mut flags = Vec::new();
        flags.extend(Some(("label".to_owned(), label)).filter(|(_, label)| !label.is_empty()));
        flags.extend(discard.then(|| ("discard".to_owned(), String::new())));
        flags.extend(count.map(|count| ("count".to_owned(), count.to_string())));
        prop_assert_eq!(read, ParsedLine { words, flags, rest: String::new() }, "{}", line);
    }

    #[test]
    fn free_text_round_trips(session in value(), prompt in value()) {
        let options = vec![text("text", &prompt), text("session", &session)];
        let line = super::line(&tree(), &acp("steer", options)).expect("known");
        let read = parse_line(line.strip_prefix("/acp steer").expect("verb"), &[], true);
        let flags = Some(("session".to_owned(), session)).filter(|(_, session)| !session.is_empty());
        let expected = ParsedLine { words: Vec::new(), flags: flags.into_iter().collect(), rest: prompt.trim().to_owned() };
        prop_assert_eq!(read, expected, "{}", line);
    }
}
