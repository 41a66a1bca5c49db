//! Parser of each command's arguments. Errors are sentences for people.

use crate::command::duration;
use crate::command::tokenizer::{Flag, ParsedArgs, normalize_keyword, quote_word};
use crate::command::{
    AnswerArgs, BindingTimeout, ChatCommand, PermissionChoice, SessionAction, SpawnArgs, SpawnPlacement,
};
use crate::options::Setting;
use crate::rows::{PermissionMode, SessionMode, Verbosity};
use crate::session::Ending;
use acp_shared::ids::{AgentName, RunId};

type ParseResult = Result<ChatCommand, String>;

const SESSION: Flag = Flag::Value("session");
const RUN: Flag = Flag::Value("run");
const DISCARD: Flag = Flag::Switch("discard");
const SPAWN: [Flag; 6] = [
    Flag::Value("cwd"),
    Flag::Value("label"),
    Flag::Value("mode"),
    Flag::Value("permission"),
    Flag::Value("thread"),
    Flag::Value("bind"),
];

/// Days of a usage report: by default, and at most.
const USAGE_DAYS: u64 = 7;
const USAGE_DAYS_MAX: u64 = 366;

fn parse_args(args: &str) -> Result<ParsedArgs, String> {
    ParsedArgs::parse(args, &[SESSION])
}

/// Returns the named session: the remaining words or the flag, but not both.
fn session_arg(given: &ParsedArgs, words: &[String]) -> Result<Option<String>, String> {
    let said = words.join(" ");
    match (said.is_empty(), given.value("session")) {
        (true, flag) => Ok(flag.map(str::to_owned)),
        (false, None) => Ok(Some(said)),
        (false, Some(_)) => Err(format!(
            "Unexpected argument {}: the session is already given by --session.",
            quote_word(&said)
        )),
    }
}

fn without_args(args: &str, command: ChatCommand) -> ParseResult {
    if args.is_empty() {
        Ok(command)
    } else {
        Err(format!("Unexpected argument {}: the command takes none.", quote_word(args)))
    }
}

/// Parses a command whose only argument is the session.
fn session_command(args: &str, act: SessionAction) -> ParseResult {
    let given = parse_args(args)?;
    Ok(ChatCommand::On { target: session_arg(&given, &given.words)?, act })
}

/// Parses a command whose arguments are a value and optionally the session.
fn value_command(
    args: &str,
    what: &str,
    act: impl FnOnce(&str) -> Result<SessionAction, String>,
) -> ParseResult {
    let given = parse_args(args)?;
    let Some((value, rest)) = given.words.split_first() else {
        return Err(format!("Missing argument: {what}."));
    };
    Ok(ChatCommand::On { target: session_arg(&given, rest)?, act: act(value)? })
}

pub(super) fn help(_: &str) -> ParseResult {
    Ok(ChatCommand::Help)
}

pub(super) fn doctor(args: &str) -> ParseResult {
    without_args(args, ChatCommand::Doctor)
}

pub(super) fn install(args: &str) -> ParseResult {
    without_args(args, ChatCommand::Install)
}

pub(super) fn sessions(args: &str) -> ParseResult {
    without_args(args, ChatCommand::Sessions)
}

pub(super) fn usage(args: &str) -> ParseResult {
    let days = match args {
        "" => Some(USAGE_DAYS),
        _ => args.parse().ok().filter(|days| (1..=USAGE_DAYS_MAX).contains(days)),
    };
    days.map(|days| ChatCommand::Usage { days })
        .ok_or_else(|| format!("{} is not a number of days from 1 to {USAGE_DAYS_MAX}.", quote_word(args)))
}

pub(super) fn agents(args: &str) -> ParseResult {
    without_args(args, ChatCommand::Agents)
}

pub(super) fn unfocus(args: &str) -> ParseResult {
    without_args(args, ChatCommand::Unfocus)
}

pub(super) fn focus(args: &str) -> ParseResult {
    let given = parse_args(args)?;
    let target = session_arg(&given, &given.words)?;
    target
        .map(ChatCommand::Focus)
        .ok_or_else(|| "Missing argument: a session (its key, id or label).".to_owned())
}

pub(super) fn cancel(args: &str) -> ParseResult {
    let given = ParsedArgs::parse(args, &[SESSION, RUN])?;
    let act =
        given.value("run").map(run).transpose()?.map_or(SessionAction::Cancel, SessionAction::CancelRun);
    Ok(ChatCommand::On { target: session_arg(&given, &given.words)?, act })
}

pub(super) fn drop_run(args: &str) -> ParseResult {
    value_command(args, "a run id", |id| Ok(SessionAction::Drop(run(id)?)))
}

fn run(id: &str) -> Result<RunId, String> {
    RunId::parse(id).map_err(|_| format!("{} is not a run id.", quote_word(id)))
}

pub(super) fn new(args: &str) -> ParseResult {
    session_command(args, SessionAction::New)
}

pub(super) fn status(args: &str) -> ParseResult {
    session_command(args, SessionAction::Status)
}

pub(super) fn reset_options(args: &str) -> ParseResult {
    session_command(args, SessionAction::Set(Setting::Defaults))
}

pub(super) fn steer(args: &str) -> ParseResult {
    // The text as typed: quotes belong to the text.
    let (given, text) = ParsedArgs::before_text(args, &[SESSION, RUN])?;
    if let Some(id) = given.value("run") {
        let what = if text.is_empty() {
            Ok(SessionAction::SteerRun(run(id)?))
        } else {
            Err("--run and a text cannot be combined.")
        };
        return Ok(ChatCommand::On { target: session_arg(&given, &[])?, act: what? });
    }
    if text.is_empty() {
        return Err("Missing argument: a text.".to_owned());
    }
    Ok(ChatCommand::On { target: session_arg(&given, &[])?, act: SessionAction::Steer(text.to_owned()) })
}

pub(super) fn close(args: &str) -> ParseResult {
    end(args, Ending::Closed)
}

pub(super) fn archive(args: &str) -> ParseResult {
    end(args, Ending::Archived)
}

pub(super) fn delete(args: &str) -> ParseResult {
    end(args, Ending::Deleted)
}

pub(super) fn reset(args: &str) -> ParseResult {
    end(args, Ending::Reset)
}

fn end(args: &str, ending: Ending) -> ParseResult {
    let given = ParsedArgs::parse(args, &[SESSION, DISCARD])?;
    let act = SessionAction::Close { ending, discard: given.has("discard") };
    Ok(ChatCommand::On { target: session_arg(&given, &given.words)?, act })
}

pub(super) fn set_mode(args: &str) -> ParseResult {
    value_command(args, "a mode", |mode| Ok(SessionAction::Set(Setting::Mode(mode.to_owned()))))
}

pub(super) fn model(args: &str) -> ParseResult {
    value_command(args, "a model", |model| Ok(SessionAction::Set(Setting::Model(model.to_owned()))))
}

pub(super) fn cwd(args: &str) -> ParseResult {
    value_command(args, "a directory", |cwd| Ok(SessionAction::Set(Setting::Cwd(cwd.to_owned()))))
}

pub(super) fn move_to(args: &str) -> ParseResult {
    value_command(args, "a host", |host| Ok(SessionAction::Set(Setting::Host(host.to_owned()))))
}

pub(super) fn timeout(args: &str) -> ParseResult {
    value_command(args, "a number of seconds", |seconds| {
        let digits = !seconds.is_empty() && seconds.chars().all(|c| c.is_ascii_digit());
        let parsed = seconds.parse().ok().filter(|_| digits);
        let parsed = parsed.ok_or_else(|| format!("{} is not a number of seconds.", quote_word(seconds)))?;
        Ok(SessionAction::Set(Setting::TimeoutS(parsed)))
    })
}

pub(super) fn set(args: &str) -> ParseResult {
    let given = parse_args(args)?;
    let [option, value, rest @ ..] = given.words.as_slice() else {
        return Err("Missing argument: an option and a value are required.".to_owned());
    };
    let value = value.clone();
    let setting = match normalize_keyword(option).as_str() {
        "cwd" => Setting::Cwd(value),
        "model" => Setting::Model(value),
        _ => Setting::Config { id: option.clone(), value },
    };
    Ok(ChatCommand::On { target: session_arg(&given, rest)?, act: SessionAction::Set(setting) })
}

pub(super) fn permissions(args: &str) -> ParseResult {
    let given = parse_args(args)?;
    let Some((mode, rest)) = given.words.split_first() else {
        return Ok(ChatCommand::On { target: session_arg(&given, &[])?, act: SessionAction::Permissions });
    };
    let mode = permission_mode(mode).ok_or_else(|| {
        format!(
            "{} is not a permission mode; use ask, approve-reads, approve-all or deny-all.",
            quote_word(mode)
        )
    })?;
    Ok(ChatCommand::On {
        target: session_arg(&given, rest)?,
        act: SessionAction::Set(Setting::Permission(mode)),
    })
}

fn permission_mode(word: &str) -> Option<PermissionMode> {
    Some(match normalize_keyword(word).as_str() {
        "ask" => PermissionMode::Ask,
        "approve-reads" => PermissionMode::ApproveReads,
        "approve-all" => PermissionMode::ApproveAll,
        "deny-all" => PermissionMode::DenyAll,
        _ => return None,
    })
}

pub(super) fn allow(args: &str) -> ParseResult {
    verdict(args, PermissionChoice::Allow)
}

pub(super) fn deny(args: &str) -> ParseResult {
    verdict(args, PermissionChoice::Deny)
}

fn verdict(args: &str, verdict: PermissionChoice) -> ParseResult {
    let given = parse_args(args)?;
    let permission = match given.words.as_slice() {
        [] => None,
        [id] => Some(id.clone()),
        [_, extra, ..] => {
            return Err(format!(
                "Unexpected argument {}: the command takes one permission request.",
                quote_word(extra)
            ));
        }
    };
    answered(&given, permission, verdict)
}

pub(super) fn answer(args: &str) -> ParseResult {
    let given = parse_args(args)?;
    let is_field = |word: &String| word.contains('=');
    let (permission, verdict) = match given.words.as_slice() {
        [option] => (None, PermissionChoice::Option(option.clone())),
        fields if !fields.is_empty() && fields.iter().all(is_field) => {
            (None, PermissionChoice::Fields(fields.to_vec()))
        }
        [id, option] => (Some(id.clone()), PermissionChoice::Option(option.clone())),
        [id, fields @ ..] if !fields.is_empty() && fields.iter().all(is_field) => {
            (Some(id.clone()), PermissionChoice::Fields(fields.to_vec()))
        }
        _ => {
            return Err(
                "The command takes an option, or words FIELD=VALUE, preceded by the request's id if several \
                 are pending. Quote a value with spaces: FIELD=\"two words\"."
                    .to_owned(),
            );
        }
    };
    answered(&given, permission, verdict)
}

fn answered(given: &ParsedArgs, permission: Option<String>, verdict: PermissionChoice) -> ParseResult {
    Ok(ChatCommand::On {
        target: session_arg(given, &[])?,
        act: SessionAction::Answer(AnswerArgs { permission, verdict }),
    })
}

pub(super) fn idle(args: &str) -> ParseResult {
    binding_window(args, BindingTimeout::Idle)
}

pub(super) fn max_age(args: &str) -> ParseResult {
    binding_window(args, BindingTimeout::MaxAge)
}

fn binding_window(args: &str, window: BindingTimeout) -> ParseResult {
    let given = parse_args(args)?;
    let (change, rest) = match given.words.split_first() {
        None => (None, &[][..]),
        Some((time, rest)) => (Some(duration::parse(time)?), rest),
    };
    Ok(ChatCommand::Window { target: session_arg(&given, rest)?, window, change })
}

pub(super) fn verbosity(args: &str) -> ParseResult {
    let word = match ParsedArgs::parse(args, &[])?.words.as_slice() {
        [] => return Ok(ChatCommand::Verbosity { change: None }),
        [word] => normalize_keyword(word),
        [_, extra, ..] => {
            return Err(format!("Unexpected argument {}: the command takes one value.", quote_word(extra)));
        }
    };
    let known = Verbosity::ALL.into_iter().find(|known| known.as_str() == word);
    if known.is_none() && word != "default" {
        return Err(format!("{} is not a verbosity; use full, compact, none or default.", quote_word(&word)));
    }
    Ok(ChatCommand::Verbosity { change: Some(known) })
}

pub(super) fn spawn(args: &str) -> ParseResult {
    let given = ParsedArgs::parse(args, &SPAWN)?;
    let agent = match given.words.as_slice() {
        [] => None,
        [agent] => Some(AgentName::parse(agent).map_err(|error| format!("{}: {error}.", quote_word(agent)))?),
        [_, extra, ..] => {
            return Err(format!("Unexpected argument {}: the command takes one agent.", quote_word(extra)));
        }
    };
    let mode = match given.value("mode").map(normalize_keyword).as_deref() {
        None => None,
        Some("persistent") => Some(SessionMode::Persistent),
        Some("oneshot") => Some(SessionMode::Oneshot),
        Some(_) => return Err("--mode must be persistent or oneshot.".to_owned()),
    };
    let permission =
        match given.value("permission") {
            None => None,
            Some(word) => Some(permission_mode(word).ok_or_else(|| {
                "--permission must be ask, approve-reads, approve-all or deny-all.".to_owned()
            })?),
        };
    let own = |name: &str| given.value(name).map(str::to_owned);
    let place = place(&given)?;
    let (cwd, label) = (own("cwd"), own("label"));
    Ok(ChatCommand::Spawn(SpawnArgs { agent, cwd, label, mode, permission, place, auth_method: None }))
}

/// `/acp login`: a spawn, whose session shows what the agent needs.
pub(super) fn login(args: &str) -> ParseResult {
    let given = ParsedArgs::parse(args, &[])?;
    let (agent, auth_method) = match given.words.as_slice() {
        [] => (None, None),
        [agent] => (Some(agent), None),
        [agent, method] => (Some(agent), Some(method.clone())),
        [_, _, extra, ..] => {
            return Err(format!("Unexpected argument {}: give an agent and a method.", quote_word(extra)));
        }
    };
    let agent = agent
        .map(|agent| AgentName::parse(agent).map_err(|error| format!("{}: {error}.", quote_word(agent))));
    Ok(ChatCommand::Spawn(SpawnArgs { agent: agent.transpose()?, auth_method, ..SpawnArgs::default() }))
}

fn place(given: &ParsedArgs) -> Result<SpawnPlacement, String> {
    let thread = given.value("thread").map(normalize_keyword);
    let bind = given.value("bind").map(normalize_keyword);
    match (thread.as_deref(), bind.as_deref()) {
        (Some(_), Some(_)) => {
            Err("--thread and --bind set the same option: use only one of them.".to_owned())
        }
        (None, None) | (Some("auto"), None) => Ok(SpawnPlacement::Auto),
        (Some("here"), None) | (None, Some("here")) => Ok(SpawnPlacement::Here),
        (Some("off"), None) | (None, Some("off")) => Ok(SpawnPlacement::Off),
        (Some(_), None) => Err("--thread must be auto, here or off.".to_owned()),
        (None, Some(_)) => Err("--bind must be here or off.".to_owned()),
    }
}
