//! Definitions of the slash commands: the text commands as Discord forms. Input becomes the equivalent
//! command line.

use crate::channel::SuggestionKind;
use acp_discord::core::commands::{
    CommandArguments, CommandOption, OptionKind, OptionPosition, SlashCommandSpec,
};
use acp_discord::core::event::{GivenOption, SlashCommand, Value};

/// Maximum length of a text option, in characters.
const TEXT_MAX: u32 = 1_000;

fn spec(name: &str, description: &str, arguments: CommandArguments) -> SlashCommandSpec {
    SlashCommandSpec { name: name.to_owned(), description: description.to_owned(), arguments }
}

fn subcommand(name: &str, description: &str, params: Vec<CommandOption>) -> SlashCommandSpec {
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
fn suggested_text(name: &str, description: &str, position: OptionPosition) -> CommandOption {
    param(name, description, OptionKind::Text { max: TEXT_MAX, suggest: true }, position)
}

fn required(param: CommandOption) -> CommandOption {
    CommandOption { required: true, ..param }
}

fn choice(name: &str, description: &str, of: &[&str], position: OptionPosition) -> CommandOption {
    let choices = of.iter().map(|one| ((*one).to_owned(), (*one).to_owned())).collect();
    param(name, description, OptionKind::Choice(choices), position)
}

fn session() -> CommandOption {
    suggested_text("session", "another session than this conversation's", OptionPosition::Flag)
}

fn end_command(name: &str, description: &str) -> SlashCommandSpec {
    let discard = param("discard", "its agent forgets it too", OptionKind::Bool, OptionPosition::Flag);
    subcommand(name, description, vec![session(), discard])
}

/// Policies for the permission requests of an agent.
const MODES: [&str; 4] = ["ask", "approve-reads", "approve-all", "deny-all"];

/// Returns all commands in the order shown by Discord.
pub(super) fn specs() -> Vec<SlashCommandSpec> {
    let acp = [
        spawn_commands(),
        turn_commands(),
        session_commands(),
        setting_commands(),
        permission_commands(),
        other_commands(),
    ]
    .concat();
    let window = |name: &str, description: &str| {
        subcommand(
            name,
            description,
            vec![text("time", "90m, 1h30m, 2d or off", OptionPosition::Word(0)), session()],
        )
    };
    let windows = vec![
        window("idle", "After how long without a word it ends"),
        window("max-age", "How long it lasts in any case"),
    ];
    let whose = vec![required(suggested_text("session", "which", OptionPosition::Word(0)))];
    vec![
        spec("acp", "Agents and their sessions", CommandArguments::Subcommands(acp)),
        spec("session", "How long this binding lasts", CommandArguments::Subcommands(windows)),
        subcommand("focus", "Bind this conversation to a session", whose),
        subcommand("unfocus", "Unbind this conversation", vec![]),
        subcommand("agents", "What runs, and what can be started", vec![]),
    ]
}

fn spawn_commands() -> Vec<SlashCommandSpec> {
    let spawn = vec![
        suggested_text("agent", "which agent", OptionPosition::Word(0)),
        text("cwd", "its directory", OptionPosition::Flag),
        text("label", "what you call it", OptionPosition::Flag),
        choice("mode", "how long it lives", &["persistent", "oneshot"], OptionPosition::Flag),
        choice("permission", "what happens when it asks", &MODES, OptionPosition::Flag),
        choice("thread", "where it answers", &["auto", "here", "off"], OptionPosition::Flag),
    ];
    vec![subcommand("spawn", "Start a session", spawn)]
}

/// Returns the commands on running and queued turns.
fn turn_commands() -> Vec<SlashCommandSpec> {
    let this = text("run", "this run and no other", OptionPosition::Flag);
    let what = required(text("text", "what", OptionPosition::Remainder));
    let which = required(text("run", "which", OptionPosition::Word(0)));
    vec![
        subcommand("cancel", "Stop the running turn", vec![session(), this]),
        subcommand("steer", "Say something into the running turn", vec![what, session()]),
        subcommand("drop", "Take a message out of the queue", vec![which, session()]),
    ]
}

fn session_commands() -> Vec<SlashCommandSpec> {
    vec![
        end_command("close", "End the session"),
        end_command("archive", "End the session, to be read later"),
        end_command("delete", "End the session, and list it no more"),
        end_command("reset", "End the session, to begin again"),
        subcommand("new", "Start the agent's conversation anew", vec![session()]),
        subcommand("sessions", "The sessions", vec![]),
        subcommand("status", "What a session is and does", vec![session()]),
    ]
}

fn setting_commands() -> Vec<SlashCommandSpec> {
    let word = |name: &str, description: &str| required(text(name, description, OptionPosition::Word(0)));
    let option = required(suggested_text("option", "which", OptionPosition::Word(0)));
    let value = required(text("value", "to what", OptionPosition::Word(1)));
    let modes = choice("mode", "what happens", &MODES, OptionPosition::Word(0));
    let number = OptionKind::Integer { min: 0, max: 86_400 };
    let seconds = required(param("seconds", "0 takes the limit away", number, OptionPosition::Word(0)));
    vec![
        subcommand("set-mode", "Set the agent's mode", vec![word("mode", "which"), session()]),
        subcommand("set", "Set one of the agent's options", vec![option, value, session()]),
        subcommand("cwd", "Go on in another directory", vec![word("dir", "which"), session()]),
        subcommand(
            "permissions",
            "What the agent waits for, or what happens when it asks",
            vec![modes, session()],
        ),
        subcommand("timeout", "How long a turn may take", vec![seconds, session()]),
        subcommand("model", "Set the agent's model", vec![word("model", "which"), session()]),
        subcommand("reset-options", "All settings back to what configuration says", vec![session()]),
    ]
}

/// Returns the commands on permission requests.
fn permission_commands() -> Vec<SlashCommandSpec> {
    let id = || text("id", "which question, where there are several", OptionPosition::Word(0));
    let option = required(text("option", "its number or id", OptionPosition::Word(1)));
    vec![
        subcommand("allow", "Allow what the agent asks for", vec![id(), session()]),
        subcommand("deny", "Refuse it", vec![id(), session()]),
        subcommand("answer", "Answer it with one of its options", vec![option, id(), session()]),
    ]
}

fn other_commands() -> Vec<SlashCommandSpec> {
    vec![
        subcommand(
            "verbosity",
            "How much this conversation is told of a turn",
            vec![choice(
                "level",
                "how much",
                &["full", "compact", "none", "default"],
                OptionPosition::Word(0),
            )],
        ),
        subcommand("doctor", "How the gateway is", vec![]),
        subcommand("install", "How agents are set up", vec![]),
        subcommand("help", "All commands", vec![]),
    ]
}

/// Returns the parameter that is being typed, as kind of suggestion and prefix.
pub(super) fn focused_suggestion(command: &SlashCommand) -> Option<(SuggestionKind, String)> {
    let given = focused_option(&command.options)?;
    let Value::Text(prefix) = &given.value else { return None };
    let what = match given.name.as_str() {
        "agent" => SuggestionKind::Agents,
        "session" => SuggestionKind::Sessions,
        "option" => SuggestionKind::Options,
        _ => return None,
    };
    Some((what, prefix.clone()))
}

fn focused_option(options: &[GivenOption]) -> Option<&GivenOption> {
    options.iter().find_map(|given| match &given.value {
        Value::Sub(below) => focused_option(below),
        _ => given.focused.then_some(given),
    })
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;
    use crate::core::command::{ChatCommand, parse};
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
    fn every_slash_command_maps_to_gateway_command() {
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
                    assert!(!matches!(read, None | Some(ChatCommand::Misused { .. })), "{text}: {read:?}");
                    seen += 1;
                }
            }
        }
        assert!(seen > 50, "{seen}");
    }

    #[test]
    fn focused_option_selects_suggestions() {
        let given = |name: &str, focused| GivenOption {
            name: name.to_owned(),
            value: Value::Text("de".to_owned()),
            focused,
        };
        let sub =
            |below| vec![GivenOption { name: "spawn".to_owned(), value: Value::Sub(below), focused: false }];
        for (name, want) in [
            ("agent", Some((SuggestionKind::Agents, "de".to_owned()))),
            ("session", Some((SuggestionKind::Sessions, "de".to_owned()))),
            ("option", Some((SuggestionKind::Options, "de".to_owned()))),
            ("cwd", None),
        ] {
            assert_eq!(
                focused_suggestion(&command("acp", sub(vec![given("label", false), given(name, true)]))),
                want
            );
        }
        assert_eq!(focused_suggestion(&command("acp", sub(vec![given("agent", false)]))), None);
    }
}
