//! What shells see of the programs: completion in real shells, and colours.

use acp_tests::cli::run;
use acp_tests::house::{GATEWAY, House};
use acp_tests::pty::Pty;
use acp_tests::wait::{LONG, SOON, eventually};
use acp_tests::world::bin;
use rustix::process::Signal;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

#[path = "shell/foreign.rs"]
mod foreign;

/// A shell in a terminal.
struct Shell {
    pty: Pty,
}

/// Command of a shell in the environment of a user: our programs are in PATH, and `$SCRIPTS` has the completion scripts as the
/// packages install them.
fn command_of(house: &House, shell: &str) -> Command {
    let scripts = house.world.dir("completions");
    let generate =
        house.world.command("acp-gateway").args(["generate", "completions"]).arg(&scripts).status();
    assert!(generate.is_ok_and(|status| status.success()));
    let gateway = house.world.command("acp-gateway");
    let mut command = Command::new(shell);
    command.env_clear().envs(gateway.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let programs = bin("acp-gateway").parent().map(PathBuf::from).unwrap_or_default();
    let path = std::env::var("PATH").unwrap_or_default();
    command
        .env("PATH", format!("{}:{path}", programs.display()))
        .env("SCRIPTS", scripts)
        .env("PS1", "$ ")
        .env("ACP_GATEWAY_STATE_DIR", house.world.path(GATEWAY))
        .current_dir(house.world.dir("work/project"));
    command
}

impl Shell {
    /// Starts a shell whose first lines are these.
    fn start(command: &mut Command, first_lines: &[&str]) -> Self {
        let mut shell = Self { pty: Pty::start(command, 160, 50) };
        for line in first_lines {
            shell.pty.write(&format!("{line}\r"));
        }
        shell.pty.write("echo rea''dy\r");
        shell.pty.until("\nready");
        shell
    }

    /// Types a line with Tab at its end, and waits for what becomes of it.
    fn completes(&mut self, typed: &str, want: &str) {
        self.pty.write(&format!("{typed}\t"));
        self.pty.until(want);
        // Ctrl-U empties the line.
        self.pty.write("\u{15}");
    }
}

/// A house with one labelled session of the demo agent, and its key.
fn house_with_label() -> (House, String) {
    let house = House::new(&[]);
    let spawned = house.verb(&["sessions", "spawn", "--agent", "demo", "--label", "fix the build"]);
    let key = spawned["session_key"].as_str().unwrap_or_default().to_owned();
    (house, key)
}

#[test]
fn bash_completes_agents_sessions_and_values() {
    let (house, key) = house_with_label();
    let first = ["source \"$SCRIPTS/acp-gateway.bash\""];
    let mut bash = command_of(&house, "bash");
    let mut bash = Shell::start(bash.args(["--norc", "--noprofile", "-i"]), &first);
    bash.completes("acp-gateway chat --agent dem", "chat --agent demo");
    bash.completes("acp-gateway prompt age", &format!("prompt {key}"));
    // Readline replaces only what follows a colon.
    let (start, id) = key.rsplit_once(':').unwrap_or_default();
    bash.completes(&format!("acp-gateway sessions show {start}:"), &format!("sessions show {key}"));
    let prefix = id.get(..6).unwrap_or_default();
    bash.completes(&format!("acp-gateway logs {prefix}"), &format!("logs {id}"));
    bash.completes("acp-gateway sessions export fix", "export fix\\ the\\ build");
    bash.completes("acp-gateway steer \"fix t", "steer \"fix the build\"");
    bash.completes("acp-gateway sessions release ", "release fix\\ the\\ build");
    bash.completes("acp-gateway sessions set --last --mode au", "--mode auto");
    bash.completes("acp-gateway sessions spawn --permission=deny", "--permission=deny-all");
    bash.completes("acp-gateway sess", "acp-gateway sessions");
    drop(bash);
    house.end();
}

#[test]
fn completion_prints_nothing_without_an_answer_in_time() {
    let mut house = House::new(&[]);
    let complete = |house: &House| {
        let mut command = house.world.command("acp-gateway");
        command.env("ACP_COMPLETE", "bash").env("ACP_GATEWAY_STATE_DIR", house.world.path(GATEWAY));
        let begun = Instant::now();
        let done = run(command.args(["--", "acp-gateway chat --agent ", ""]), SOON).ok();
        (done.stdout + &done.stderr, begun.elapsed())
    };
    assert!(complete(&house).0.lines().any(|line| line == "demo"));
    // A gateway that hangs.
    assert!(house.gateway().signal(Signal::STOP));
    let (printed, took) = complete(&house);
    assert!(house.gateway().signal(Signal::CONT));
    assert_eq!(printed, "");
    // 300 ms, and the time that a busy machine needs for a process.
    assert!(took < Duration::from_secs(3), "{took:?}");
    house.kill_gateway();
    assert_eq!(complete(&house).0, "");
    house.start_gateway();
    house.end();
}

/// Runs a program and returns what it wrote to standard output, a terminal or a pipe.
fn written(command: &mut Command, is_terminal: bool) -> String {
    if !is_terminal {
        return run(command, LONG).ok().stdout;
    }
    let mut pty = Pty::start(command, 120, 60);
    assert_eq!(pty.exit_code(), Some(0), "{}", pty.written());
    // The terminal keeps what an ended program wrote until it is read.
    eventually(LONG, "the text is read", || Some(pty.written()).filter(|text| text.ends_with('\n')))
}

/// Flags, a variable, whether standard output is a terminal, and whether colours are expected.
type ColourCase<'a> = (&'a [&'a str], Option<(&'a str, &'a str)>, bool, bool);

#[test]
fn colours_follow_flag_then_environment_then_terminal() {
    let house = House::new(&[]);
    let key = house.verb(&["sessions", "spawn", "--agent", "demo"])["session_key"].to_string();
    let (color_always, color_never) = (["--color", "always"], ["--color=never"]);
    // Environments come after the clean one of a terminal, which has no NO_COLOR.
    let cases: [ColourCase<'_>; 8] = [
        (&[], None, true, true),
        (&[], None, false, false),
        (&color_never, None, true, false),
        (&color_always, None, false, true),
        (&[], Some(("CLICOLOR_FORCE", "1")), false, true),
        (&color_never, Some(("CLICOLOR_FORCE", "1")), false, false),
        (&color_always, Some(("NO_COLOR", "1")), false, true),
        (&[], Some(("CLICOLOR", "0")), true, false),
    ];
    for (flags, env, is_terminal, want) in cases {
        for program in ["acp-gateway", "acp-supervisor"] {
            let mut command = house.world.command(program);
            command.arg("--help").args(flags).envs(env);
            let text = written(&mut command, is_terminal);
            assert!(text.contains("Usage:"), "{text}");
            assert_eq!(text.contains("\u{1b}["), want, "{program} {flags:?} {env:?}: {text:?}");
        }
    }
    for (flags, want) in [(&[][..], true), (&color_never[..], false)] {
        let think = ["prompt", key.trim_matches('"'), "think about colours"];
        let text = written(&mut house.plain(&[&think[..], flags].concat()), true);
        assert!(text.contains("about colours"), "{text}");
        assert_eq!(text.contains("\u{1b}[2;3m"), want, "{flags:?}: {text:?}");
    }
    house.end();
}

/// Help and usage errors are cut between words only, however narrow the terminal.
#[test]
fn help_fits_a_narrow_terminal() {
    let house = House::new(&[]);
    let typed: [(&str, &[&str]); 8] = [
        ("acp-gateway", &["--help"]),
        ("acp-gateway", &["sessions", "spawn", "--help"]),
        ("acp-gateway", &["sessions", "set", "--help"]),
        ("acp-gateway", &["sessions", "set", "--nonsense"]),
        ("acp-gateway", &["prompt", "--help"]),
        ("acp-supervisor", &["--help"]),
        ("acp-supervisor", &["leases", "--help"]),
        ("acp-supervisor", &["leases", "list", "--nonsense"]),
    ];
    for (program, args) in typed {
        let mut command = house.world.command(program);
        let mut pty = Pty::start(command.args(args).args(["--color", "never"]), 40, 200);
        let _ = pty.exit_code();
        // Its first paragraph ends with a newline as well.
        let is_whole = |text: &String| text.contains("Usage:") && text.ends_with('\n');
        let text = eventually(LONG, "the text is read", || Some(pty.written()).filter(is_whole));
        // A single word, such as a path, may be longer.
        let is_cut = |line: &&str| line.chars().count() > 40 && line.trim().contains(' ');
        let cut: Vec<&str> = text.lines().map(str::trim_end).filter(is_cut).collect();
        assert_eq!(cut, [""; 0], "{program} {args:?}:\n{text}");
        // The help of an option has room for words.
        assert!(!text.contains("Agent\r\n"), "{text}");
    }
    house.end();
}

/// Tables and their notes fit the terminal, however narrow; a pipe gets whole lines.
#[test]
fn tables_fit_the_terminal() {
    let (house, key) = house_with_label();
    let tables: [&[&str]; 3] = [&["sessions", "list"], &["agents", "--all"], &["token", "list"]];
    for columns in [40, 50, 80] {
        for args in tables {
            let mut pty = Pty::start(&mut house.plain(&[args, &["--color", "never"]].concat()), columns, 50);
            assert_eq!(pty.exit_code(), Some(0), "{}", pty.written());
            let text =
                eventually(LONG, "the text is read", || Some(pty.written()).filter(|it| it.ends_with('\n')));
            let is_row = |line: &&str| line.starts_with(' ');
            let widest = text.lines().filter(is_row).map(|line| line.trim_end().chars().count()).max();
            assert!(widest.unwrap_or(0) <= usize::from(columns), "{args:?}, {columns} columns:\n{text}");
        }
    }
    let piped = run(&mut house.plain(&["sessions", "list"]), LONG).ok().stdout;
    assert!(piped.lines().any(|line| line.contains(&key) && line.contains("fix the build")), "{piped}");
    house.end();
}
