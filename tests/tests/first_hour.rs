//! The first hour of a newcomer, from the installation to a killed gateway: `docs/manual/first-hour.md` is the record of this
//! test. `ACP_WRITE_FIRST_HOUR=1` writes it.

use acp_tests::cli::{RunningCommand, run};
use acp_tests::fake_discord::FakeDiscord;
use acp_tests::fake_discord::core::model::Id;
use acp_tests::pty::Pty;
use acp_tests::wait::{LONG, SOON, eventually, until};
use acp_tests::world::{World, bin, repository};
use rustix::process::Signal;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::Command;

const PAGE: &str = "docs/manual/first-hour.md";
const TOKEN: &str = "the-secret-token";

/// A machine without acp-host, and the record of what was typed and shown.
struct Newcomer {
    // In drop order.
    fake: FakeDiscord,
    world: World,
    channel: Id,
    ann: Id,
    bot: Id,
    text: String,
}

impl Newcomer {
    fn new() -> Self {
        let world = World::new();
        let fake = FakeDiscord::start(&world.dir("fake"));
        let guild = fake.add_guild("Our team");
        let channel = fake.add_channel(guild, "general");
        let ann = fake.add_user(guild, "ann");
        let bot = fake.add_bot(guild, "helper", TOKEN).user;
        let _ = world.dir("home/project");
        let token = world.write("home/discord.token", TOKEN);
        set_mode(&token);
        Self { fake, world, channel, ann, bot, text: String::new() }
    }

    fn home(&self) -> PathBuf {
        self.world.path("home")
    }

    /// Installed program, as found on the PATH of the person.
    fn program(&self, name: &str) -> Command {
        let mut command = Command::new(self.home().join(".local/bin").join(name));
        let like = self.world.command(name);
        command.env_clear().envs(like.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let state = self.home().join(".local/state");
        command.env("XDG_STATE_HOME", state).env("TERM", "xterm").current_dir(self.home().join("project"));
        command
    }

    fn say(&mut self, text: &str) {
        let _ = writeln!(self.text, "{text}\n");
    }

    /// Records lines of a terminal.
    fn show(&mut self, lines: &str) {
        let shown = self.plain(lines);
        let _ = writeln!(self.text, "```text\n{}\n```\n", shown.trim_end());
    }

    /// Replaces what differs from run to run.
    fn plain(&self, text: &str) -> String {
        let home = self.home().display().to_string();
        let text = text.replace(&self.fake.url(), "http://127.0.0.1:8080").replace(&home, "~");
        let mut out = String::new();
        for line in text.lines() {
            out.push_str(steady(line).trim_end());
            out.push('\n');
        }
        out
    }

    /// Runs a command, which must succeed, and records what it prints.
    fn run(&mut self, args: &[&str]) -> String {
        let mut command = self.program(args[0]);
        let output = run(command.args(&args[1..]), LONG).ok();
        let typed = args.iter().map(|arg| quoted(arg)).collect::<Vec<_>>().join(" ");
        self.show(&format!("$ {typed}\n{}{}", output.stderr, output.stdout));
        output.stdout
    }

    /// Starts `up`, which is ready when this returns.
    fn up(&self) -> RunningCommand {
        let mut up = RunningCommand::start(self.program("acp-gateway").arg("up"));
        while !up.line(LONG).unwrap_or_else(|| panic!("up ended")).contains("Ctrl-C ends everything") {}
        up
    }
}

/// Ends `up` as a person does.
fn interrupt(up: RunningCommand) {
    assert!(up.signal(Signal::INT));
    let said = up.finish(LONG).ok().stderr;
    let begin = said.find("Ending the gateway, its supervisor and all agents");
    let end = said.find("Everything has ended.");
    assert!(begin.is_some() && begin < end, "{said}");
}

fn set_mode(file: &std::path::Path) {
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(file, mode).unwrap_or_else(|e| panic!("{e}"));
}

fn quoted(arg: &str) -> String {
    if arg.contains([' ', '\'']) { format!("'{arg}'") } else { arg.to_owned() }
}

/// Replaces keys, ids, times and names of a line.
fn steady(line: &str) -> String {
    if line.trim_start().starts_with("-# demo") {
        let margin = &line[..line.len() - line.trim_start().len()];
        return format!("{margin}-# demo · 1s · 12 tokens (2 in, 10 out)");
    }
    if let Some((choice, _)) = line.split_once(" (").filter(|(choice, _)| choice.starts_with("[permission: "))
    {
        return format!("{choice} (you)]");
    }
    if let Some((head, _)) = line.split_once(":acp:") {
        return format!("{head}:acp:01a2…");
    }
    if let Some(code) = line.trim_start().strip_prefix("acp-").filter(|code| code.len() == 8) {
        return line.replace(code, "1a2b3c4d");
    }
    let mut out = String::new();
    let mut rest = line;
    while let Some(at) = rest.find(|c: char| c.is_ascii_digit()) {
        let digits = rest[at..].find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len() - at);
        let id = &rest[at..at + digits];
        out.push_str(&rest[..at]);
        // Ids of Discord; the permissions of an invitation are shorter.
        out.push_str(if digits >= 17 { "1576000000000000000" } else { id });
        rest = &rest[at + digits..];
    }
    out + rest
}

fn install(new: &mut Newcomer) {
    let (man, completions) = (new.world.dir("man"), new.world.dir("completions"));
    for program in ["acp-gateway", "acp-supervisor"] {
        for (what, to) in [("man", &man), ("completions", &completions)] {
            let mut command = new.world.command(program);
            let _ = run(command.args(["generate", what]).arg(to), LONG).ok();
        }
    }
    let mut install = Command::new("sh");
    let programs = bin("acp-gateway");
    let programs = programs.parent().unwrap_or_else(|| panic!("no directory of programs"));
    install.arg(repository().join("packaging/install.sh")).arg(programs).arg(&man).arg(&completions);
    let _ = run(install.env("PREFIX", new.home().join(".local")), LONG).ok();
    new.say("# The first hour\n\nA record of a new user's first steps, made by a test. Keys, ids and ports are shortened.");
    new.say("## Install\n\nFrom a checkout, into the home directory; [other ways](install.md).");
    new.show("$ make install PREFIX=~/.local");
}

fn set_up(new: &mut Newcomer) {
    new.say("## Set up\n\nWithout flags, `init` asks. It proves the agent with one turn.");
    new.run(&["acp-gateway", "init", "--yes", "--agent", "demo", "--permission-mode", "ask"]);
    new.say("Then, in another terminal, which stays open:");
    new.show("$ acp-gateway up");
}

fn chat(new: &mut Newcomer) {
    new.say("## Talk\n\nThe agent asks before it writes; `1` allows it ([chat](chat.md)).");
    let mut chat = Pty::start(new.program("acp-gateway").arg("chat"), 80, 40);
    chat.until("Ctrl-D leaves");
    chat.write("write hello.txt Hello from the agent\r");
    chat.until("Answer with a number");
    chat.write("1");
    let screen = chat.until("─ ");
    new.show(&format!("$ acp-gateway chat\n{}", screen.split("\n─ ").next().unwrap_or_default()));
    chat.write("\u{4}");
    assert_eq!(chat.exit_code(), Some(0));
    let written = std::fs::read_to_string(new.home().join("project/hello.txt"));
    new.show(&format!("$ cat hello.txt\n{}", written.unwrap_or_else(|e| panic!("{e}"))));
}

fn discord(new: &mut Newcomer) -> RunningCommand {
    new.say("## Connect Discord\n\nThe bot and its token come from the developer portal ([discord](discord.md)). Here Discord is a fake on this machine, hence `--base-url`.");
    let (url, token) = (new.fake.url(), new.home().join("discord.token"));
    let mut command = Command::new("sh");
    let like = new.program("acp-gateway");
    command.env_clear().envs(like.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let program = like.get_program().to_string_lossy().into_owned();
    let line =
        format!("exec '{program}' discord setup --token-file '{}' --base-url {url} 2>&1", token.display());
    let (mut running, stdin) = RunningCommand::start_piped(command.args(["-c", &line]));
    let mut seen = Vec::new();
    let code = loop {
        let line = running.line(LONG).unwrap_or_else(|| panic!("no code: {seen:?}"));
        seen.push(line.clone());
        if let Some(code) = line.trim().strip_prefix("acp-").filter(|code| code.len() == 8) {
            break format!("acp-{code}");
        }
    };
    until(SOON, "bot connected", || new.fake.is_connected(new.bot));
    new.fake.post(new.ann, new.channel, &code);
    drop(stdin);
    let rest = running.finish(LONG).ok().stdout;
    let typed = "$ acp-gateway discord setup --token-file ~/discord.token --base-url http://127.0.0.1:8080";
    // The rest has what was read above, too.
    new.show(&format!(
        "{typed}\n{}",
        if rest.contains(&seen[0]) { rest } else { seen.join("\n") + "\n" + &rest }
    ));
    new.say("Ctrl-C and `acp-gateway up` again; then ann types `/acp spawn` in the channel, and a prompt in the thread that opens:");
    let mut up = new.up();
    until(SOON, "commands registered", || new.fake.is_connected(new.bot) && !new.fake.commands().is_empty());
    new.fake.post(new.ann, new.channel, "/acp spawn");
    let thread =
        eventually(LONG, "thread opened", || new.fake.threads_of(new.channel).first().map(|it| it.id));
    new.fake.post(new.ann, thread, "hello");
    let is_told = |new: &Newcomer, part: &str| {
        new.fake.transcript(thread).iter().any(|it| it.author_id == new.bot && it.content.contains(part))
    };
    until(LONG, "answer in the thread", || is_told(new, "echo: hello") || is_told(new, "hello"));
    new.fake.post(new.ann, thread, "stream 12 pace 250");
    until(LONG, "stream begun", || is_told(new, "chunk 1"));
    up.kill9();
    let up = new.up();
    until(LONG, "stream complete", || is_told(new, "chunk 12\n-# demo"));
    let shown: Vec<String> = new
        .fake
        .transcript(thread)
        .iter()
        .filter(|it| !it.content.is_empty())
        .map(|it| {
            let who = if it.author_id == new.ann { "ann" } else { "helper" };
            let text = it.content.replace('\n', "\n        ");
            format!("{who:>6}: {text}")
        })
        .collect();
    let (before, after) =
        shown.split_at(shown.iter().position(|it| it.contains("stream 12")).unwrap_or(shown.len()));
    let (before, after) = (before.join("\n"), after.join("\n"));
    new.show(&before);
    new.say("## Kill it\n\nThe gateway is killed with `kill -9` in the middle of an answer and started again. The agent has gone on, and the answer in the thread is whole and there once:");
    new.show(&after);
    up
}

#[test]
fn first_hour_is_as_the_manual_records_it() {
    let mut new = Newcomer::new();
    install(&mut new);
    set_up(&mut new);
    let up = new.up();
    chat(&mut new);
    interrupt(up);
    let up = discord(&mut new);
    interrupt(up);
    until(SOON, "no agent left", || new.world.agents().is_empty());
    let path = repository().join(PAGE);
    let text = new.text.trim_end().to_owned() + "\n";
    if std::env::var_os("ACP_WRITE_FIRST_HOUR").is_some() {
        let mut file = std::fs::File::create(&path).unwrap_or_else(|e| panic!("{e}"));
        file.write_all(text.as_bytes()).unwrap_or_else(|e| panic!("{e}"));
    }
    let page = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(page == text, "{PAGE} differs; write it with ACP_WRITE_FIRST_HOUR=1: {text}");
}
