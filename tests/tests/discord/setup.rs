//! `acp-gateway discord setup`: from a token to a bot that serves the person who posted the code.

use acp_tests::cli::{RunningCommand, run};
use acp_tests::fake_discord::FakeDiscord;
use acp_tests::fake_discord::client::BotHandle;
use acp_tests::fake_discord::core::gateway::intent::MESSAGE_CONTENT;
use acp_tests::fake_discord::core::model::Id;
use acp_tests::wait::{LONG, SOON, until};
use acp_tests::world::{World, bin};
use serde_json::json;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{ChildStdin, Command};

const TOKEN: &str = "the-secret-token";

/// A world without services, a fake Discord with a bot, and two people.
struct Ground {
    // In drop order.
    fake: FakeDiscord,
    world: World,
    channel: Id,
    ann: Id,
    eve: Id,
    bot: BotHandle,
}

impl Ground {
    fn new() -> Self {
        let world = World::new();
        let fake = FakeDiscord::start(&world.dir("fake"));
        let guild = fake.add_guild("Our guild");
        let channel = fake.add_channel(guild, "general");
        let [ann, eve] = ["ann", "eve"].map(|name| fake.add_user(guild, name));
        let bot = fake.add_bot(guild, "helper", TOKEN);
        Self { world, fake, channel, ann, eve, bot }
    }

    /// Shell words of the verb, with standard error as standard output.
    fn line(&self, args: &[&str]) -> String {
        let (program, state) = (bin("acp-gateway"), self.world.path("state"));
        format!(
            "'{}' discord setup --state-dir '{}' --base-url '{}' {} 2>&1",
            program.display(),
            state.display(),
            self.fake.url(),
            args.join(" ")
        )
    }

    fn start(&self, args: &[&str]) -> (RunningCommand, ChildStdin) {
        let mut command = self.shell();
        command.args(["-c", &format!("exec {}", self.line(args))]);
        RunningCommand::start_piped(&mut command)
    }

    fn shell(&self) -> Command {
        let like = self.world.command("acp-gateway");
        let mut command = Command::new("sh");
        command.env_clear().envs(like.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command
    }

    fn read(&self, file: &str) -> String {
        std::fs::read_to_string(self.world.path("state").join(file)).unwrap_or_default()
    }
}

/// Reads lines up to one with `part`, and returns all.
fn read_until(running: &mut RunningCommand, part: &str) -> Vec<String> {
    let mut seen = Vec::new();
    loop {
        let Some(line) = running.line(LONG) else { panic!("{part:?} was not printed: {seen:#?}") };
        let found = line.contains(part);
        seen.push(line);
        if found {
            return seen;
        }
    }
}

fn type_in(stdin: &mut ChildStdin, text: &str) {
    stdin.write_all(text.as_bytes()).and_then(|()| stdin.flush()).unwrap_or_else(|e| panic!("{e}"));
}

/// The intent is asked for until it is on; only the person whose message is the code counts; the token is in its own file and
/// nowhere else; a gateway with the written configuration serves that person.
#[test]
fn setup_writes_account_of_the_person_with_the_code() {
    let ground = Ground::new();
    ground.fake.set_privileged_intents(ground.bot.user, 0);
    let (mut running, mut stdin) = ground.start(&[]);
    type_in(&mut stdin, &format!("{TOKEN}\n"));
    let mut seen = read_until(&mut running, "Message Content intent is off");
    ground.fake.set_privileged_intents(ground.bot.user, MESSAGE_CONTENT);
    type_in(&mut stdin, "\n");
    seen.extend(read_until(&mut running, "  acp-"));
    let text = seen.join("\n");
    let invite = format!("client_id={}&scope=bot+applications.commands&permissions=", ground.bot.application);
    for part in ["bot helper", "Our guild", &invite] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let code = seen.last().map(|line| line.trim().to_owned()).unwrap_or_default();
    until(SOON, "bot connected", || ground.fake.is_connected(ground.bot.user));
    ground.fake.post(ground.eve, ground.channel, &format!("should I post {code}?"));
    let message = ground.fake.post(ground.ann, ground.channel, &code);
    let output = running.finish(LONG).ok();
    assert!(output.stdout.contains("ann posted the code") && output.stdout.contains("Next:"), "{output:#?}");
    assert!(!(text + &output.stdout).contains(TOKEN));
    let shown = ground.fake.transcript(ground.channel).into_iter().find(|it| it.id == message);
    assert!(shown.is_some_and(|it| it.reactions.contains_key("✅")));
    let (config, token) = (ground.read("gateway.toml"), ground.read("discord-main.token"));
    assert!(config.contains(&format!("allowed_users = [\"{}\"]", ground.ann)), "{config}");
    assert!(!config.contains(TOKEN) && token.trim() == TOKEN, "{config}");
    for file in ["gateway.toml", "discord-main.token"] {
        let meta = std::fs::metadata(ground.world.path("state").join(file)).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(meta.permissions().mode() & 0o777, 0o600, "{file}");
    }
    // The account works as it is.
    let up = ground.world.up("state");
    let is_own = |application: Id| application == ground.bot.application;
    until(SOON, "bot connected with commands", || {
        ground.fake.is_connected(ground.bot.user)
            && ground.fake.commands().iter().any(|command| is_own(command.application_id))
    });
    let options = [("agent", json!("demo"))];
    let used = ground.fake.command(ground.ann, ground.channel, &ground.bot, "acp spawn", &options);
    assert!(used.is_ok(), "{used:?}");
    until(SOON, "thread opened", || !ground.fake.threads_of(ground.channel).is_empty());
    assert_eq!(up.terminate(LONG), Some(0));
    // The same account again is refused before anything is asked.
    let again = run(ground.shell().args(["-c", &format!("exec {}", ground.line(&[]))]), LONG);
    assert!(again.code == Some(2) && again.stdout.contains("main already"), "{again:#?}");
}

/// A file with a token stays where it is; with `--user` nothing is posted. A refused token writes nothing.
#[test]
fn setup_takes_token_file_and_user() {
    let ground = Ground::new();
    let file = ground.world.write("my token", &format!("{TOKEN}\n"));
    let named = format!("'{}'", file.display());
    let (running, _stdin) = ground.start(&["--token-file", &named, "--user", "42", "--account", "team"]);
    let output = running.finish(LONG).ok();
    let config = ground.read("gateway.toml");
    assert!(config.contains("[channels.discord.accounts.team]") && config.contains("\"42\""), "{config}");
    assert!(config.contains(&file.display().to_string()) && ground.read("discord-team.token").is_empty());
    assert!(!output.stdout.contains(TOKEN));
    ground.world.write("my token", "another-token\n");
    let (running, _stdin) = ground.start(&["--token-file", &named, "--user", "42", "--account", "other"]);
    let output = running.finish(LONG);
    assert!(output.code == Some(1) && output.stdout.contains("Reset Token"), "{output:#?}");
    assert_eq!(ground.read("gateway.toml"), config);
}

/// In a terminal the token is not shown, and Ctrl-C ends the command at each step: nothing is written, and the terminal
/// echoes again.
#[test]
fn interrupted_setup_writes_nothing_and_restores_the_terminal() {
    let ground = Ground::new();
    for is_typed in [false, true] {
        let inner = format!("trap : INT; {}; echo \"code $?\"; stty -a", ground.line(&[]));
        let script = ground.world.write("inner.sh", &inner);
        let mut command = Command::new("script");
        let like = ground.world.command("acp-gateway");
        command.env_clear().envs(like.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command.env("TERM", "xterm").env("SHELL", "/bin/sh");
        command.args(["-q", "-e", "-c", &format!("sh {}", script.display()), "/dev/null"]);
        let (mut running, mut stdin) = RunningCommand::start_piped(&mut command);
        // The echo is off before the question is shown.
        let mut seen = read_until(&mut running, "it is not shown");
        if is_typed {
            type_in(&mut stdin, &format!("{TOKEN}\r"));
            seen.extend(read_until(&mut running, "  acp-"));
        }
        type_in(&mut stdin, "\u{3}");
        seen.extend(read_until(&mut running, "code "));
        let text = seen.join("\n");
        assert!(text.contains("code 130") && !text.contains(TOKEN), "{text}");
        let terminal = running.finish(LONG).stdout;
        assert!(terminal.contains(" echo ") && !terminal.contains("-echo "), "{terminal}");
        assert_eq!(
            (ground.read("gateway.toml"), ground.read("discord-main.token")),
            <(String, String)>::default()
        );
    }
}
