//! Commands of the runbook, read out of the page, so that a test follows what an operator would type.

use crate::cli::{Output, run};
use crate::house::{GATEWAY, House};
use crate::wait::LONG;
use crate::world::{World, bin, repository};
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The page.
const PAGE: &str = "docs/manual/runbook.md";

/// Commands of one section, in their order.
#[derive(Debug)]
pub struct Section {
    title: String,
    commands: VecDeque<String>,
}

impl Section {
    /// Reads the commands below a heading, without their comments.
    ///
    /// # Panics
    /// When the page has no such section, or the section no commands.
    #[must_use]
    pub fn read(title: &str) -> Self {
        let text = std::fs::read_to_string(repository().join(PAGE)).unwrap_or_else(|e| panic!("{PAGE}: {e}"));
        let heading = format!("## {title}");
        let lines = text.lines().skip_while(|line| *line != heading).skip(1);
        let lines = lines.take_while(|line| !line.starts_with("## "));
        let mut is_inside = false;
        let mut commands = VecDeque::new();
        for line in lines {
            if line.starts_with("```") {
                is_inside = line == "```sh";
            } else if is_inside {
                commands.push_back(line.split("  #").next().unwrap_or_default().trim().to_owned());
            }
        }
        assert!(!commands.is_empty(), "{PAGE} has no commands below {heading:?}");
        Self { title: title.to_owned(), commands }
    }

    /// Takes the next command, which must begin with this text.
    ///
    /// # Panics
    /// When the page says something else.
    pub fn take(&mut self, start: &str) -> String {
        let next = self.commands.pop_front();
        let next = next.unwrap_or_else(|| panic!("{:?} ends before {start:?}", self.title));
        assert!(next.starts_with(start), "{:?} says {next:?} instead of {start:?}", self.title);
        next
    }

    /// Checks that all commands were taken.
    ///
    /// # Panics
    /// When commands are left.
    pub fn end(self) {
        assert!(self.commands.is_empty(), "{:?}: not followed: {:?}", self.title, self.commands);
    }
}

/// Shell in which `G` and `S` mean what the page says.
#[derive(Debug)]
pub struct Operator {
    state_dir: PathBuf,
    socket: PathBuf,
    env: Vec<(String, String)>,
}

impl Operator {
    /// An operator of a house.
    #[must_use]
    pub fn of(house: &House) -> Self {
        Self::at(&house.world, &house.world.path(GATEWAY), house.socket())
    }

    /// An operator of the gateway with this state directory.
    #[must_use]
    pub fn at(world: &World, state_dir: &Path, socket: &Path) -> Self {
        let command = world.command("acp-gateway");
        let text = |value: &std::ffi::OsStr| value.to_string_lossy().into_owned();
        let env = command.get_envs().filter_map(|(name, value)| Some((text(name), text(value?)))).collect();
        Self { state_dir: state_dir.to_owned(), socket: socket.to_owned(), env }
    }

    /// Runs a line of the page, with these words replaced (`KEY`, `FILE` …).
    ///
    /// # Panics
    /// When it takes too long.
    #[must_use]
    pub fn run(&self, line: &str, words: &[(&str, &str)]) -> Output {
        let replace = |word: &str| {
            words.iter().find(|(name, _)| *name == word).map_or(word, |(_, value)| *value).to_owned()
        };
        let line = line.split(' ').map(replace).collect::<Vec<_>>().join(" ");
        let script = format!(
            "G() {{ \"$ACP_GATEWAY\" --state-dir \"$ACP_STATE\" \"$@\"; }}\n\
             S() {{ \"$ACP_SUPERVISOR\" --socket \"$ACP_SOCKET\" \"$@\"; }}\n{line}\n"
        );
        let mut command = Command::new("sh");
        command.arg("-c").arg(script).env_clear().envs(self.env.iter().cloned());
        command.env("ACP_GATEWAY", bin("acp-gateway")).env("ACP_STATE", &self.state_dir);
        command.env("ACP_SUPERVISOR", bin("acp-supervisor")).env("ACP_SOCKET", &self.socket);
        run(&mut command, LONG)
    }
}
