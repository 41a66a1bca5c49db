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
    suggested_text("session", "a session other than this conversation's", OptionPosition::Flag)
}

fn end_command(name: &str, description: &str) -> SlashCommandSpec {
    let discard = param("discard", "also ask the agent to forget it", OptionKind::Bool, OptionPosition::Flag);
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
        window("idle", "Show or set the idle timeout of the binding"),
        window("max-age", "Show or set the maximum age of the binding"),
    ];
    let whose = vec![required(suggested_text("session", "session to bind", OptionPosition::Word(0)))];
    vec![
        spec("acp", "Agents and their sessions", CommandArguments::Subcommands(acp)),
        spec("session", "Timeouts of this conversation's binding", CommandArguments::Subcommands(windows)),
        subcommand("focus", "Bind this conversation to a session", whose),
        subcommand("unfocus", "Unbind this conversation", vec![]),
        subcommand("agents", "List active sessions and the agents that can be started", vec![]),
    ]
}

fn spawn_commands() -> Vec<SlashCommandSpec> {
    let spawn = vec![
        suggested_text("agent", "agent to start", OptionPosition::Word(0)),
        text("cwd", "working directory", OptionPosition::Flag),
        text("label", "label of the session", OptionPosition::Flag),
        choice("mode", "lifetime of the session", &["persistent", "oneshot"], OptionPosition::Flag),
        choice("permission", "permission mode", &MODES, OptionPosition::Flag),
        choice("thread", "conversation to bind", &["auto", "here", "off"], OptionPosition::Flag),
    ];
    vec![subcommand("spawn", "Start a session", spawn)]
}

/// Returns the commands on running and queued turns.
fn turn_commands() -> Vec<SlashCommandSpec> {
    let this = text("run", "only this run", OptionPosition::Flag);
    let what = required(text("text", "message to add", OptionPosition::Remainder));
    let which = required(text("run", "run to remove", OptionPosition::Word(0)));
    vec![
        subcommand("cancel", "Stop the running turn", vec![session(), this]),
        subcommand("steer", "Add a message to the running turn", vec![what, session()]),
        subcommand("drop", "Remove a message from the queue", vec![which, session()]),
    ]
}

fn session_commands() -> Vec<SlashCommandSpec> {
    vec![
        end_command("close", "End the session"),
        end_command("archive", "End the session and keep it readable"),
        end_command("delete", "End the session and remove it from lists"),
        end_command("reset", "End the session and start over"),
        subcommand("new", "Start a new conversation in the session", vec![session()]),
        subcommand("sessions", "List the sessions", vec![]),
        subcommand("status", "Show the status of a session", vec![session()]),
    ]
}

fn setting_commands() -> Vec<SlashCommandSpec> {
    let word = |name: &str, description: &str| required(text(name, description, OptionPosition::Word(0)));
    let option = required(suggested_text("option", "option to set", OptionPosition::Word(0)));
    let value = required(text("value", "new value", OptionPosition::Word(1)));
    let modes = choice("mode", "permission mode", &MODES, OptionPosition::Word(0));
    let number = OptionKind::Integer { min: 0, max: 86_400 };
    let seconds =
        required(param("seconds", "0: only the gateway's own limit", number, OptionPosition::Word(0)));
    vec![
        subcommand("set-mode", "Set the agent's mode", vec![word("mode", "mode of the agent"), session()]),
        subcommand("set", "Set one of the agent's options", vec![option, value, session()]),
        subcommand("cwd", "Change the working directory", vec![word("dir", "new directory"), session()]),
        subcommand(
            "permissions",
            "List pending permission requests, or set the permission mode",
            vec![modes, session()],
        ),
        subcommand("timeout", "Set the time limit of turns", vec![seconds, session()]),
        subcommand("model", "Set the agent's model", vec![word("model", "name of the model"), session()]),
        subcommand("reset-options", "Reset all settings to the configuration", vec![session()]),
    ]
}

/// Returns the commands on permission requests.
fn permission_commands() -> Vec<SlashCommandSpec> {
    let id = || text("id", "id of the permission request, if there are several", OptionPosition::Word(0));
    let about = "number or id of the option, or values of a form: name=value name2=\"two words\"";
    let option = required(text("option", about, OptionPosition::Remainder));
    vec![
        subcommand("allow", "Allow the agent's request", vec![id(), session()]),
        subcommand("deny", "Deny the agent's request", vec![id(), session()]),
        subcommand(
            "answer",
            "Answer the agent's request with one of its options, or a form with values",
            vec![option, id(), session()],
        ),
    ]
}

fn other_commands() -> Vec<SlashCommandSpec> {
    vec![
        subcommand(
            "verbosity",
            "Show or set the amount of output in this conversation",
            vec![choice(
                "level",
                "amount of output",
                &["full", "compact", "none", "default"],
                OptionPosition::Word(0),
            )],
        ),
        subcommand("doctor", "Check the gateway", vec![]),
        // Discord has room for 25 subcommands: /acp install and /acp login are typed.
        subcommand(
            "usage",
            "Show turns and tokens by day, session and person",
            vec![param(
                "days",
                "number of days",
                OptionKind::Integer { min: 1, max: 366 },
                OptionPosition::Word(0),
            )],
        ),
        subcommand("help", "List all commands", vec![]),
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
pub(super) mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;
    use acp_core::command::{ChatCommand, parse};
    use acp_discord::core::commands::{line, registration};
    use acp_discord::core::event::{Interaction, Member, User};
    use acp_discord::core::ids::Snowflake;
    use acp_shared::redact::Secret;

    /// A slash command of user 5 in channel 99 of server 9.
    pub(in crate::channel::discord) fn command(name: &str, options: Vec<GivenOption>) -> SlashCommand {
        let user = User { id: Snowflake(5), name: "ann".to_owned(), display_name: None, bot: false };
        let interaction = Interaction {
            id: Snowflake(50),
            application: Snowflake(2),
            token: Secret::new("t".to_owned()),
            guild: Some(Snowflake(9)),
            channel: Snowflake(99),
            parent: None,
            is_thread: None,
            member: Member { user, roles: Vec::new() },
        };
        SlashCommand { interaction, name: name.to_owned(), options }
    }

    pub(in crate::channel::discord) fn given(name: &str, value: Value, focused: bool) -> GivenOption {
        GivenOption { name: name.to_owned(), value, focused }
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
                    let filled = params.iter().filter(|param| all || param.required);
                    let filled: Vec<GivenOption> =
                        filled.map(|param| given(&param.name, value(param), false)).collect();
                    let options = match verb {
                        Some(verb) => vec![given(verb, Value::Sub(filled), false)],
                        None => filled,
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
        let typed = |name: &str, focused| given(name, Value::Text("de".to_owned()), focused);
        let sub = |below| vec![given("spawn", Value::Sub(below), false)];
        for (name, want) in [
            ("agent", Some((SuggestionKind::Agents, "de".to_owned()))),
            ("session", Some((SuggestionKind::Sessions, "de".to_owned()))),
            ("option", Some((SuggestionKind::Options, "de".to_owned()))),
            ("cwd", None),
        ] {
            assert_eq!(
                focused_suggestion(&command("acp", sub(vec![typed("label", false), typed(name, true)]))),
                want
            );
        }
        assert_eq!(focused_suggestion(&command("acp", sub(vec![typed("agent", false)]))), None);
    }
}
