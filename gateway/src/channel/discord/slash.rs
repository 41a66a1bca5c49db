//! Definitions of the slash commands: the text commands as Discord forms. Input becomes the equivalent
//! command line.

use crate::channel::Suggest;
use acp_discord::core::commands::{
    CommandArguments, CommandOption, OptionKind, OptionPosition, SlashCommandSpec,
};
use acp_discord::core::event::{GivenOption, SlashCommand, Value};

/// Maximum length of a text option, in characters.
const TEXT_MAX: u32 = 1_000;

fn spec(name: &str, description: &str, arguments: CommandArguments) -> SlashCommandSpec {
    SlashCommandSpec { name: name.to_owned(), description: description.to_owned(), arguments }
}

fn verb(name: &str, description: &str, params: Vec<CommandOption>) -> SlashCommandSpec {
    spec(name, description, CommandArguments::Options(params))
}

fn param(name: &str, description: &str, kind: OptionKind, position: OptionPosition) -> CommandOption {
    CommandOption {
        name: name.to_owned(),
        description: description.to_owned(),
        kind,
        required: false,
        position,
    }
}

fn text(name: &str, description: &str, position: OptionPosition) -> CommandOption {
    param(name, description, OptionKind::Text { max: TEXT_MAX, suggest: false }, position)
}

/// Creates a text parameter with suggestions.
fn known(name: &str, description: &str, position: OptionPosition) -> CommandOption {
    param(name, description, OptionKind::Text { max: TEXT_MAX, suggest: true }, position)
}

fn wanted(param: CommandOption) -> CommandOption {
    CommandOption { required: true, ..param }
}

fn choice(name: &str, description: &str, of: &[&str], position: OptionPosition) -> CommandOption {
    let choices = of.iter().map(|one| ((*one).to_owned(), (*one).to_owned())).collect();
    param(name, description, OptionKind::Choice(choices), position)
}

fn session() -> CommandOption {
    known("session", "another session than this conversation's", OptionPosition::Flag)
}

fn ending(name: &str, description: &str) -> SlashCommandSpec {
    let discard = param("discard", "its agent forgets it too", OptionKind::Bool, OptionPosition::Flag);
    verb(name, description, vec![session(), discard])
}

/// Policies for the permission requests of an agent.
const MODES: [&str; 4] = ["ask", "approve-reads", "approve-all", "deny-all"];

/// Returns all commands in the order shown by Discord.
pub(super) fn specs() -> Vec<SlashCommandSpec> {
    let acp = [spawning(), turns(), sessions(), settings(), questions(), around()].concat();
    let window = |name: &str, description: &str| {
        verb(
            name,
            description,
            vec![text("time", "90m, 1h30m, 2d or off", OptionPosition::Word(0)), session()],
        )
    };
    let windows = vec![
        window("idle", "After how long without a word it ends"),
        window("max-age", "How long it lasts in any case"),
    ];
    let whose = vec![wanted(known("session", "which", OptionPosition::Word(0)))];
    vec![
        spec("acp", "Agents and their sessions", CommandArguments::Subcommands(acp)),
        spec("session", "How long this binding lasts", CommandArguments::Subcommands(windows)),
        verb("focus", "Bind this conversation to a session", whose),
        verb("unfocus", "Unbind this conversation", vec![]),
        verb("agents", "What runs, and what can be started", vec![]),
    ]
}

fn spawning() -> Vec<SlashCommandSpec> {
    let spawn = vec![
        known("agent", "which agent", OptionPosition::Word(0)),
        text("cwd", "its directory", OptionPosition::Flag),
        text("label", "what you call it", OptionPosition::Flag),
        choice("mode", "how long it lives", &["persistent", "oneshot"], OptionPosition::Flag),
        choice("permission", "what happens when it asks", &MODES, OptionPosition::Flag),
        choice("thread", "where it answers", &["auto", "here", "off"], OptionPosition::Flag),
    ];
    vec![verb("spawn", "Start a session", spawn)]
}

/// Returns the commands on running and queued turns.
fn turns() -> Vec<SlashCommandSpec> {
    let this = text("run", "this run and no other", OptionPosition::Flag);
    let what = wanted(text("text", "what", OptionPosition::Remainder));
    let which = wanted(text("run", "which", OptionPosition::Word(0)));
    vec![
        verb("cancel", "Stop the running turn", vec![session(), this]),
        verb("steer", "Say something into the running turn", vec![what, session()]),
        verb("drop", "Take a message out of the queue", vec![which, session()]),
    ]
}

fn sessions() -> Vec<SlashCommandSpec> {
    vec![
        ending("close", "End the session"),
        ending("archive", "End the session, to be read later"),
        ending("delete", "End the session, and list it no more"),
        ending("reset", "End the session, to begin again"),
        verb("new", "Start the agent's conversation anew", vec![session()]),
        verb("sessions", "The sessions", vec![]),
        verb("status", "What a session is and does", vec![session()]),
    ]
}

fn settings() -> Vec<SlashCommandSpec> {
    let word = |name: &str, description: &str| wanted(text(name, description, OptionPosition::Word(0)));
    let option = wanted(known("option", "which", OptionPosition::Word(0)));
    let value = wanted(text("value", "to what", OptionPosition::Word(1)));
    let modes = choice("mode", "what happens", &MODES, OptionPosition::Word(0));
    let number = OptionKind::Integer { min: 0, max: 86_400 };
    let seconds = wanted(param("seconds", "0 takes the limit away", number, OptionPosition::Word(0)));
    vec![
        verb("set-mode", "Set the agent's mode", vec![word("mode", "which"), session()]),
        verb("set", "Set one of the agent's options", vec![option, value, session()]),
        verb("cwd", "Go on in another directory", vec![word("dir", "which"), session()]),
        verb("permissions", "What the agent waits for, or what happens when it asks", vec![modes, session()]),
        verb("timeout", "How long a turn may take", vec![seconds, session()]),
        verb("model", "Set the agent's model", vec![word("model", "which"), session()]),
        verb("reset-options", "All settings back to what configuration says", vec![session()]),
    ]
}

/// Returns the commands on permission requests.
fn questions() -> Vec<SlashCommandSpec> {
    let id = || text("id", "which question, where there are several", OptionPosition::Word(0));
    let option = wanted(text("option", "its number or id", OptionPosition::Word(1)));
    vec![
        verb("allow", "Allow what the agent asks for", vec![id(), session()]),
        verb("deny", "Refuse it", vec![id(), session()]),
        verb("answer", "Answer it with one of its options", vec![option, id(), session()]),
    ]
}

fn around() -> Vec<SlashCommandSpec> {
    vec![
        verb(
            "verbosity",
            "How much this conversation is told of a turn",
            vec![choice(
                "level",
                "how much",
                &["full", "compact", "none", "default"],
                OptionPosition::Word(0),
            )],
        ),
        verb("doctor", "How the gateway is", vec![]),
        verb("install", "How agents are set up", vec![]),
        verb("help", "All commands", vec![]),
    ]
}

/// Returns the parameter that is being typed, as kind of suggestion and prefix.
pub(super) fn typed(command: &SlashCommand) -> Option<(Suggest, String)> {
    let given = focused(&command.options)?;
    let Value::Text(prefix) = &given.value else { return None };
    let what = match given.name.as_str() {
        "agent" => Suggest::Agents,
        "session" => Suggest::Sessions,
        "option" => Suggest::Options,
        _ => return None,
    };
    Some((what, prefix.clone()))
}

fn focused(options: &[GivenOption]) -> Option<&GivenOption> {
    options.iter().find_map(|given| match &given.value {
        Value::Sub(below) => focused(below),
        _ => given.focused.then_some(given),
    })
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;
    use crate::core::command::{Command as Known, parse};
    use acp_discord::core::commands::{line, registration};
    use acp_discord::core::event::{Interaction, Member, User};
    use acp_discord::core::ids::Snowflake;
    use acp_shared::redact::Secret;

    fn command(name: &str, options: Vec<GivenOption>) -> SlashCommand {
        let user = User { id: Snowflake(1), name: "ann".to_owned(), display_name: None, bot: false };
        let interaction = Interaction {
            id: Snowflake(5),
            application: Snowflake(2),
            token: Secret::new("t".to_owned()),
            guild: None,
            channel: Snowflake(3),
            parent: None,
            is_thread: None,
            member: Member { user, roles: Vec::new(), permissions: None },
            app_permissions: None,
            locale: None,
            attachment_limit: None,
        };
        SlashCommand { interaction, name: name.to_owned(), options }
    }

    fn value(param: &CommandOption) -> Value {
        match &param.kind {
            OptionKind::Text { .. } if param.name == "run" => {
                Value::Text("01890a5d-ac96-774b-bcce-b30200000001".to_owned())
            }
            OptionKind::Text { .. } if param.name == "time" => Value::Text("90m".to_owned()),
            OptionKind::Text { .. } => Value::Text("demo".to_owned()),
            OptionKind::Choice(of) => Value::Text(of[0].1.clone()),
            OptionKind::Integer { min, .. } => Value::Integer(*min),
            OptionKind::Bool => Value::Bool(true),
            OptionKind::File => panic!(),
        }
    }

    /// Discord accepts the registration, and every form yields a command that the gateway knows.
    #[test]
    fn e01_every_form_is_a_command_of_ours() {
        let specs = specs();
        let registered = registration(&specs).unwrap();
        assert_eq!(registered.as_array().map(Vec::len), Some(specs.len()));
        let mut seen = 0;
        for spec in &specs {
            let verbs: Vec<(Option<&str>, &Vec<CommandOption>)> = match &spec.arguments {
                CommandArguments::Options(params) => vec![(None, params)],
                CommandArguments::Subcommands(verbs) => verbs
                    .iter()
                    .map(|verb| match &verb.arguments {
                        CommandArguments::Options(params) => (Some(verb.name.as_str()), params),
                        CommandArguments::Subcommands(_) => panic!(),
                    })
                    .collect(),
            };
            for (verb, params) in verbs {
                for all in [true, false] {
                    let given: Vec<GivenOption> = params
                        .iter()
                        .filter(|param| all || param.required)
                        .map(|param| GivenOption {
                            name: param.name.clone(),
                            value: value(param),
                            focused: false,
                        })
                        .collect();
                    let options = match verb {
                        Some(verb) => {
                            vec![GivenOption {
                                name: verb.to_owned(),
                                value: Value::Sub(given),
                                focused: false,
                            }]
                        }
                        None => given,
                    };
                    let text = line(&specs, &command(&spec.name, options)).unwrap();
                    let read = parse(&text);
                    assert!(!matches!(read, None | Some(Known::Misused { .. })), "{text}: {read:?}");
                    seen += 1;
                }
            }
        }
        assert!(seen > 50, "{seen}");
    }

    #[test]
    fn what_is_typed_decides_what_is_suggested() {
        let given = |name: &str, focused| GivenOption {
            name: name.to_owned(),
            value: Value::Text("de".to_owned()),
            focused,
        };
        let sub =
            |below| vec![GivenOption { name: "spawn".to_owned(), value: Value::Sub(below), focused: false }];
        for (name, want) in [
            ("agent", Some((Suggest::Agents, "de".to_owned()))),
            ("session", Some((Suggest::Sessions, "de".to_owned()))),
            ("option", Some((Suggest::Options, "de".to_owned()))),
            ("cwd", None),
        ] {
            assert_eq!(typed(&command("acp", sub(vec![given("label", false), given(name, true)]))), want);
        }
        assert_eq!(typed(&command("acp", sub(vec![given("agent", false)]))), None);
    }
}
