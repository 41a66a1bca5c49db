//! `discord setup`: from a bot's token to an account in `gateway.toml`. Discord is asked about the bot; the person who
//! may talk to agents is the one who posts a one-time code.

use crate::channel::discord::setup::{BotProfile, BotSetup, CodeAuthor, TOKEN_FORM, is_token};
use crate::cli::config::{ConfigArgs, environment, file_of, read, toml_string};
use crate::cli::init::write_private;
use crate::cli::output::{CliError, CliResult, Out};
use crate::cli::questions::Questions;
use crate::cli::serve::make_private;
use crate::cli::{GlobalArgs, usage};
use acp_core::config::load::{Inputs, load};
use acp_core::failure::Failure;
use acp_shared::clock::Clock;
use acp_shared::codes::Code;
use acp_shared::ids::random_hex;
use acp_shared::redact::Secret;
use clap::{Args, Subcommand};
use serde::Serialize;
use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Number of random digits of the code.
const CODE_DIGITS: usize = 8;

/// `discord …`
#[derive(Debug, Subcommand)]
pub(crate) enum DiscordCommand {
    /// Check a bot's token online, print its invitation, learn your user id, and write the account
    #[command(
        after_help = "Example: acp-gateway discord setup --token-file ~/discord.token\n\nThe steps in Discord's developer portal: docs/manual/discord.md"
    )]
    Setup(SetupArgs),
}

/// `discord setup`
#[derive(Debug, Args)]
pub(crate) struct SetupArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// File with the bot's token, which stays there [default: asked, and stored in the state directory]
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Name of the account in the configuration
    #[arg(long, value_name = "NAME", default_value = "main")]
    account: String,
    /// Id of the user who may talk to agents [default: whoever posts the code]
    #[arg(long, value_name = "ID")]
    user: Option<String>,
    /// Base URL of a proxy or test service instead of Discord's own
    #[arg(long, value_name = "URL")]
    base_url: Option<String>,
    /// Maximum time to wait for the code, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 900)]
    timeout: u64,
}

#[derive(Debug, Serialize)]
struct SetupOutput {
    file: PathBuf,
    account: String,
    token_file: PathBuf,
    user: String,
    invite_url: String,
}

/// `discord …`
pub(crate) async fn run(global: &GlobalArgs, verb: DiscordCommand, out: &mut Out) -> CliResult {
    let DiscordCommand::Setup(args) = verb;
    let state_dir = global.state_dir()?;
    let file = check_account(&state_dir, &args)?;
    let mut questions = Questions::new(false)?;
    let token = match &args.token_file {
        Some(path) => {
            let text = std::fs::read_to_string(path);
            let text = text.map_err(|error| usage(format!("{}: {error}", path.display())))?;
            check_token(&args, text.trim())
                .map_err(|failure| usage(format!("{}: {}", path.display(), failure.message)))?;
            Secret::new(text.trim().to_owned())
        }
        None => {
            let question = "Paste the token of the bot and press Enter; it is not shown:\n";
            questions
                .secret(question, "name a file with --token-file", |token| check_token(&args, token))
                .await?
        }
    };
    let bot = BotSetup::new(token.clone(), args.base_url.as_deref(), clock()).map_err(usage)?;
    let profile = check_bot(&bot, &mut questions, out).await?;
    let user = match &args.user {
        Some(id) => CodeAuthor { id: id.clone(), name: id.clone() },
        None => learn_user(&bot, &args, &profile, &mut questions, out).await?,
    };
    make_private(&state_dir)?;
    let token_file = match &args.token_file {
        Some(path) => std::path::absolute(path).map_err(|error| usage(error.to_string()))?,
        None => store_token(&state_dir, &args.account, &token)?,
    };
    let section = account_text(&args, &token_file, &profile, &user);
    append(&file, &section).inspect_err(|_| {
        if args.token_file.is_none() {
            // Stored above for this account, which is not written.
            drop(std::fs::remove_file(&token_file));
        }
    })?;
    let shown = SetupOutput {
        file,
        account: args.account,
        token_file,
        user: user.id,
        invite_url: profile.invite_url,
    };
    let up = global.advise("up", args.config.config.as_deref());
    out.show(&shown, |shown| {
        format!(
            "Wrote the account {} to {}; the token is in {}.\n\nNext:\n  \
             {up}\n    start, or restart, the gateway; a service is reloaded\n  \
             /acp spawn\n    in a channel of Discord: starts a session in a new thread",
            shown.account,
            shown.file.display(),
            shown.token_file.display()
        )
    })
}

/// Returns the configuration file, which must be valid and without the account.
fn check_account(state_dir: &Path, args: &SetupArgs) -> Result<PathBuf, Failure> {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if args.account.is_empty() || !args.account.chars().all(plain) {
        return Err(usage(format!("--account {:?}: use letters, digits, - and _", args.account)));
    }
    if args.user.as_ref().is_some_and(|id| id.is_empty() || !id.bytes().all(|c| c.is_ascii_digit())) {
        return Err(usage("--user must be an id of digits: right-click yourself in Discord, Copy User ID"));
    }
    let file = file_of(state_dir, args.config.config.as_deref());
    let with_file = ConfigArgs { config: file.exists().then(|| file.clone()) };
    let (loaded, _) = read(state_dir, &with_file, None)?;
    if loaded.config.channels.discord.accounts.contains_key(&args.account) {
        return Err(usage(format!(
            "{} has an account {} already: name another one with --account, or edit the file",
            file.display(),
            args.account
        )));
    }
    let token = token_path(state_dir, &args.account);
    if args.token_file.is_none() && token.exists() {
        let text = format!("{} exists: use it with --token-file, or delete it", token.display());
        return Err(usage(text));
    }
    Ok(file)
}

/// Refuses a token of a wrong form before it is sent. Another service than Discord may have other tokens.
fn check_token(args: &SetupArgs, token: &str) -> Result<(), Failure> {
    match args.base_url.is_some() || is_token(token) {
        true => Ok(()),
        false => Err(usage(TOKEN_FORM)),
    }
}

fn token_path(state_dir: &Path, account: &str) -> PathBuf {
    state_dir.join(format!("discord-{account}.token"))
}

/// Asks Discord about the bot until the intent is on.
async fn check_bot(bot: &BotSetup, questions: &mut Questions, out: &mut Out) -> Result<BotProfile, CliError> {
    loop {
        let profile = questions.wait(bot.profile()).await?.map_err(refused)?;
        out.note(&format!("The token is valid: bot {}.", profile.name))?;
        if profile.has_message_content {
            return Ok(profile);
        }
        questions.explain(
            "The Message Content intent is off, so messages would have no text. Developer portal, your application, Bot, \
             Privileged Gateway Intents: switch on Message Content Intent and save.",
        );
        questions.ask("Press Enter to check again", "Enter", |_| Ok(())).await?;
    }
}

/// Learns the user id from a code.
async fn learn_user(
    bot: &BotSetup,
    args: &SetupArgs,
    profile: &BotProfile,
    questions: &mut Questions,
    out: &mut Out,
) -> Result<CodeAuthor, CliError> {
    let code: String = random_hex().chars().take(CODE_DIGITS).collect();
    let code = format!("acp-{code}");
    let guilds = match profile.guilds.as_slice() {
        [] => "The bot is in no server yet.".to_owned(),
        names => format!("The bot is in: {}.", names.join(", ")),
    };
    questions.explain(&format!(
        "{guilds} To add it to a server, open this address, choose the server, and authorize:\n\n  {}\n\n\
         Then post this line in a channel that the bot can read. Whoever posts it may talk to agents, which act as this \
         user of this machine:\n\n  {code}\n",
        profile.invite_url
    ));
    let deadline = Duration::from_secs(args.timeout);
    let posted = questions.wait(tokio::time::timeout(deadline, bot.wait_for_code(&code))).await?;
    let author = posted.map_err(|_| {
        let text = format!(
            "nobody posted the code within {} seconds. Check that the bot is in the server and may view the channel, \
             then try again",
            args.timeout
        );
        Failure::new(Code::Timeout, text).origin("client")
    })?;
    let author = author.map_err(refused)?;
    out.note(&format!("{} posted the code (user id {}).", author.name, author.id))?;
    Ok(author)
}

fn refused(why: String) -> Failure {
    Failure::new(Code::ChannelUnavailable, why).origin("client")
}

/// Stores the token in a file of the state directory that only this user can read.
fn store_token(state_dir: &Path, account: &str, token: &Secret) -> Result<PathBuf, Failure> {
    let path = token_path(state_dir, account);
    let written = write_private(&path, &format!("{}\n", token.expose()));
    let written = written.map_err(|error| usage(format!("cannot write {}: {error}", path.display())));
    written.map(|()| path)
}

/// Builds the section of the account.
fn account_text(args: &SetupArgs, token_file: &Path, profile: &BotProfile, user: &CodeAuthor) -> String {
    let account = format!("channels.discord.accounts.{}", args.account);
    let comment = |text: &str| text.replace(char::is_control, " ");
    let base = match &args.base_url {
        Some(url) => format!("base_url = {}\n", toml_string(url)),
        None => String::new(),
    };
    format!(
        "\n# Discord bot {}, written by `acp-gateway discord setup`. Teams: docs/manual/discord.md.\n\
         [{account}]\n\
         token_file = {}\n{base}\
         # Users who may talk to agents: {}.\n\
         allowed_users = [{}]\n\
         [{account}.thread_bindings]\n\
         # Allows /acp spawn to create threads.\n\
         spawn_acp_sessions = true\n",
        comment(&profile.name),
        toml_string(&token_file.display().to_string()),
        comment(&user.name),
        toml_string(&user.id),
    )
}

/// Appends a section to the configuration file, complete or not at all; a new file has mode 0600, an existing one keeps
/// its mode.
fn append(file: &Path, section: &str) -> Result<(), Failure> {
    let failed = |error: io::Error| usage(format!("cannot write {}: {error}", file.display()));
    let before = match std::fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(failed(error)),
    };
    let end = if before.is_empty() || before.ends_with('\n') { "" } else { "\n" };
    let text = format!("{before}{end}{section}");
    let checked = load(Inputs { file: Some((file, &text)), env: &environment(), ..Inputs::default() });
    checked.map_err(|error| Failure::new(Code::ConfigInvalid, error.to_string()).origin("client"))?;
    let new = file.with_extension("new");
    let replace = || {
        let _ = std::fs::remove_file(&new);
        let mut opened = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
        opened.write_all(text.as_bytes())?;
        if let Ok(meta) = std::fs::metadata(file) {
            opened.set_permissions(meta.permissions())?;
        }
        opened.sync_all()?;
        std::fs::rename(&new, file)
    };
    replace().map_err(failed)
}

#[expect(clippy::disallowed_methods, reason = "the clock of this process starts here")]
fn clock() -> Clock {
    Clock::start()
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;
    use clap::Parser;
    use std::os::unix::fs::PermissionsExt as _;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        args: SetupArgs,
    }

    fn args(more: &[&str]) -> SetupArgs {
        Line::try_parse_from([&["setup"][..], more].concat()).unwrap().args
    }

    /// The section joins what is there, whatever names people have; a second one of the same name is refused.
    #[test]
    fn account_is_appended_to_a_valid_configuration() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("gateway.toml");
        std::fs::write(&file, "[acp]\ndefault_agent = \"demo\"").unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o640)).unwrap();
        let args = args(&["--account", "team-1", "--base-url", "http://127.0.0.1:9"]);
        assert_eq!(check_account(dir.path(), &args), Ok(file.clone()));
        let profile = BotProfile {
            name: "bot\n[evil]".to_owned(),
            has_message_content: true,
            guilds: Vec::new(),
            invite_url: String::new(),
        };
        let user = CodeAuthor { id: "123".to_owned(), name: "a\r\nb".to_owned() };
        let section = account_text(&args, Path::new("/x/\"t\""), &profile, &user);
        append(&file, &section).unwrap();
        let text = std::fs::read_to_string(&file).unwrap();
        let loaded = load(Inputs { file: Some((&file, &text)), ..Inputs::default() }).unwrap().config;
        let account = &loaded.channels.discord.accounts["team-1"];
        assert_eq!(account.allowed_users, ["123"]);
        assert_eq!(account.token_file.as_deref(), Some("/x/\"t\""));
        assert_eq!(account.base_url.as_deref(), Some("http://127.0.0.1:9"));
        assert_eq!(account.thread_bindings.spawn_acp_sessions, Some(true));
        assert!(loaded.acp.default_agent.is_some());
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o640);
        assert!(check_account(dir.path(), &args).unwrap_err().message.contains("team-1 already"));
        assert!(append(&file, &section).is_err());
        assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
    }

    #[test]
    fn names_and_ids_of_a_wrong_form_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        for (more, want) in
            [(["--account", "a.b"], "letters"), (["--account", ""], "letters"), (["--user", "ann"], "digits")]
        {
            let failure = check_account(dir.path(), &args(&more)).unwrap_err();
            assert!(failure.message.contains(want), "{failure:?}");
        }
    }
}
