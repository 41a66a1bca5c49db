//! Which agents there are, and how one is started: configuration over the built-in table over defaults. The
//! environment is an argument, so that what an agent gets to see is decided in one place and tested.

use crate::api::AgentView;
use crate::config::check::RESERVED_ENV;
use crate::config::{Agent, Config};
use crate::core::actor::{Limits, Profile};
use crate::core::mcp;
use crate::core::policy::{Policy, Scope};
use crate::core::preset::{DEFAULT, PRESETS, Preset, find};
use crate::error::Failure;
use crate::live::Live;
use acp_shared::codes::Code;
use acp_shared::ids::AgentName;
use acp_shared::protocol::Graces;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Name of the agent inside of this program.
pub(crate) const DEMO: &str = "demo";
/// Variables of the gateway that every agent sees; `NAME*` names all that begin so. Secrets of the gateway are
/// not among them, and get in only through the `env_allow` of `acp`, of the backend or of the agent.
const ENV_ALLOWED: [&str; 11] =
    ["HOME", "PATH", "USER", "LOGNAME", "SHELL", "LANG", "LC_*", "TERM", "TMPDIR", "TZ", "XDG_*"];
/// Programs that fetch an agent before they start it.
const FETCHERS: [&str; 2] = ["npx", "uvx"];

/// The agents of this gateway.
#[derive(Debug, Clone)]
pub(crate) struct Agents {
    live: Live,
    env: Vec<(String, String)>,
    demo: Vec<String>,
}

/// A way to start an agent here.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Found {
    argv: Vec<String>,
    /// Whether a fetcher stands for the agent itself.
    fetched: bool,
}

impl Agents {
    /// The agents of a configuration. `env` is the gateway's environment, `exe` this program, `state_dir` the
    /// gateway's.
    pub(crate) fn new(live: Live, env: Vec<(String, String)>, exe: &Path, state_dir: &Path) -> Self {
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let demo = vec![text(exe), "demo-agent".to_owned(), "--state-dir".to_owned(), text(state_dir)];
        Self { live, env, demo }
    }

    /// How to start and treat an agent.
    ///
    /// # Errors
    /// `ACP_AGENT_NOT_ALLOWED`: unknown, not on the list, or not installed; the text says which.
    pub(crate) fn profile(&self, name: &AgentName) -> Result<Profile, Failure> {
        let refuse = |why: String| Err(Failure::new(Code::AgentNotAllowed, why).origin("gateway"));
        if !self.is_known(name) {
            let how = "`acp-gateway agents --all` lists those that are known; others go into the configuration as \
                       [agents.NAME].";
            return refuse(format!("There is no agent {name}.{} {how}", self.nearest(name)));
        }
        let policy = self.policy(name);
        policy.may_use(name)?;
        let loaded = self.live.now();
        let (agent, preset) = self.settings(name);
        let Some(found) = self.find(name) else {
            let program = self.command(name).first().cloned().unwrap_or_default();
            if agent.command.is_some() {
                return refuse(format!(
                    "{program} (agents.{name}.command) is not there, or is not executable by the gateway's user."
                ));
            }
            let how = if preset.install.is_empty() { "" } else { " Install it: " };
            return refuse(format!("{program} is not installed here.{how}{}", preset.install));
        };
        let graces = Graces {
            eof_ms: policy.agent.eof_ms.value,
            term_ms: policy.agent.term_ms.value,
            kill_ms: policy.agent.kill_ms.value,
        };
        let mut options: BTreeMap<String, String> =
            preset.config.iter().map(|&(id, value)| (id.to_owned(), value.to_owned())).collect();
        options.extend(agent.config.clone());
        Ok(Profile {
            argv: found.argv,
            env: self.environment(&agent, &preset, &policy.env_allow.value),
            graces,
            init_ms: policy.agent.init_ms.value,
            mode: agent.mode.clone().or_else(|| preset.asking_mode.map(str::to_owned)),
            asks: agent.asks.unwrap_or(preset.asks || name.as_str() == DEMO),
            options: options.into_iter().collect(),
            mcp_servers: mcp::merged([loaded.config.mcp_servers.as_slice(), agent.mcp_servers.as_slice()]),
            additional_directories: configured_directories(&loaded.config, &agent),
            client_fs: agent.client_fs.unwrap_or(preset.client_fs),
            offer_terminal: true,
            permission: policy.permission.mode.value,
            non_interactive: policy.permission.non_interactive.value,
            refused: None,
        })
    }

    /// The agent to take when none was named.
    ///
    /// # Errors
    /// `ACP_AGENT_NOT_ALLOWED` when there is no default.
    pub(crate) fn default_agent(&self) -> Result<AgentName, Failure> {
        self.live.now().config.acp.default_agent.clone().ok_or_else(|| {
            let why = "No agent was named, and acp.default_agent is not set: name one with --agent (`acp-gateway \
                       agents` lists them).";
            Failure::new(Code::AgentNotAllowed, why).origin("gateway")
        })
    }

    /// The working directory to use for an agent, canonical; `None` takes the configured default, or else the
    /// home directory.
    ///
    /// # Errors
    /// `ACP_CWD_NOT_ALLOWED` when it does not exist, is no absolute path, or lies outside of the roots of the gateway
    /// or of the agent.
    pub(crate) fn cwd(&self, agent: &AgentName, asked: Option<&str>) -> Result<String, Failure> {
        let policy = self.policy(agent);
        let configured = policy.default_cwd.value.clone();
        let home = || self.var("HOME").map(PathBuf::from);
        let Some(asked) = asked.map(PathBuf::from).or(configured).or_else(home) else {
            let text = "No working directory was named.";
            return Err(Failure::new(Code::CwdNotAllowed, text).origin("gateway"));
        };
        allowed_directory(&policy, "working directory", &asked)
    }

    /// An additional directory of a session, canonical.
    ///
    /// # Errors
    /// As [`Agents::cwd`].
    pub(crate) fn directory(&self, agent: &AgentName, asked: &str) -> Result<String, Failure> {
        allowed_directory(&self.policy(agent), "additional directory", Path::new(asked))
    }

    fn policy(&self, agent: &AgentName) -> Policy {
        self.live.policy(&Scope::default().with_agent(agent))
    }

    /// Every agent, configured ones and the demo first.
    pub(crate) fn list(&self) -> Vec<AgentView> {
        let loaded = self.live.now();
        let configured = loaded.config.agents.keys().cloned();
        let built_in = [DEMO].into_iter().chain(PRESETS.iter().map(|preset| preset.name));
        let mut names: Vec<AgentName> = configured.collect();
        for name in built_in.filter_map(|name| AgentName::parse(name).ok()) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names.iter().map(|name| self.view(name)).collect()
    }

    fn view(&self, name: &AgentName) -> AgentView {
        let (_, preset) = self.settings(name);
        let found = self.find(name);
        let fetched = found.as_ref().is_some_and(|found| found.fetched);
        let installed = found.is_some() && !fetched;
        let note = match &found {
            None if preset.install.is_empty() => Some("not installed here".to_owned()),
            None => Some(format!("install: {}", preset.install)),
            Some(_) if fetched => Some("not installed; fetched when it is first used".to_owned()),
            Some(_) if name.as_str() == DEMO => Some("needs no credentials; say help to it".to_owned()),
            Some(_) => (!preset.resume_note.is_empty()).then(|| preset.resume_note.to_owned()),
        };
        let loaded = self.live.now();
        let configured = loaded.config.agents.contains_key(name);
        let title = match find(name.as_str()) {
            Some(preset) => preset.title.to_owned(),
            None if name.as_str() == DEMO => "Demo agent".to_owned(),
            None => name.to_string(),
        };
        AgentView {
            title,
            name: name.clone(),
            origin: if configured { "configured" } else { "built-in" }.to_owned(),
            command: found.as_ref().map_or_else(|| self.command(name), |found| found.argv.clone()),
            path: found.and_then(|found| found.argv.into_iter().next()),
            installed,
            allowed: self.policy(name).may_use(name).is_ok(),
            default: loaded.config.acp.default_agent.as_ref() == Some(name),
            note,
        }
    }

    fn settings(&self, name: &AgentName) -> (Agent, Preset) {
        let agent = self.live.now().config.agents.get(name).cloned().unwrap_or_default();
        (agent, find(name.as_str()).copied().unwrap_or(DEFAULT))
    }

    fn is_known(&self, name: &AgentName) -> bool {
        let loaded = self.live.now();
        let configured = loaded.config.agents.get(name).is_some_and(|agent| agent.command.is_some());
        configured || name.as_str() == DEMO || find(name.as_str()).is_some()
    }

    fn nearest(&self, name: &AgentName) -> String {
        let names = self.list();
        let nearest = names
            .iter()
            .map(|view| (strsim::jaro_winkler(name.as_str(), view.name.as_str()), &view.name))
            .filter(|(score, _)| *score > 0.7)
            .max_by(|a, b| a.0.total_cmp(&b.0));
        nearest.map_or_else(String::new, |(_, name)| format!(" Did you mean {name}?"))
    }

    /// The ways to start an agent, best first.
    fn commands(&self, name: &AgentName) -> Vec<Vec<String>> {
        let loaded = self.live.now();
        if let Some(command) = loaded.config.agents.get(name).and_then(|agent| agent.command.clone()) {
            return vec![command];
        }
        if name.as_str() == DEMO {
            return vec![self.demo.clone()];
        }
        let owned = |words: &&[&str]| words.iter().map(|&word| word.to_owned()).collect();
        find(name.as_str()).map(|preset| preset.commands.iter().map(owned).collect()).unwrap_or_default()
    }

    /// The best way to start an agent, whether or not it is there.
    fn command(&self, name: &AgentName) -> Vec<String> {
        self.commands(name).into_iter().next().unwrap_or_default()
    }

    /// The first way to start an agent whose program is there, the program as an absolute path.
    fn find(&self, name: &AgentName) -> Option<Found> {
        let commands = self.commands(name);
        let several = commands.len() > 1;
        commands.into_iter().find_map(|mut argv| {
            let program = argv.first_mut()?;
            let fetched = several && FETCHERS.contains(&program.as_str());
            *program = self.program(program)?;
            Some(Found { argv, fetched })
        })
    }

    /// The file of a program, looked up on PATH unless it is an absolute path.
    fn program(&self, program: &str) -> Option<String> {
        let runnable = |path: &Path| {
            std::fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
        };
        let path = Path::new(program);
        if path.is_absolute() {
            return runnable(path).then(|| program.to_owned());
        }
        if program.contains('/') {
            return None;
        }
        let dirs = std::env::split_paths(OsStr::new(self.var("PATH")?));
        let mut files = dirs.filter(|dir| dir.is_absolute()).map(|dir| dir.join(program));
        files.find(|file| runnable(file))?.to_str().map(str::to_owned)
    }

    fn var(&self, name: &str) -> Option<&str> {
        self.env.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    fn environment(&self, agent: &Agent, preset: &Preset, allow: &[String]) -> Vec<(String, String)> {
        let patterns: Vec<&str> = ENV_ALLOWED.into_iter().chain(allow.iter().map(String::as_str)).collect();
        let allowed = |name: &str| {
            patterns.iter().any(|pattern| match pattern.strip_suffix('*') {
                Some(head) => name.starts_with(head),
                None => name == *pattern,
            })
        };
        let mut env: BTreeMap<String, String> =
            self.env.iter().filter(|(name, _)| allowed(name)).cloned().collect();
        env.extend(preset.env.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())));
        env.extend(agent.env.clone());
        env.retain(|name, _| !RESERVED_ENV.contains(&name.as_str()));
        env.into_iter().collect()
    }
}

/// The canonical path of a directory that lies within the roots of the gateway and of the agent.
fn allowed_directory(policy: &Policy, what: &str, asked: &Path) -> Result<String, Failure> {
    let refuse = |why: String| Failure::new(Code::CwdNotAllowed, why).origin("gateway");
    let shown = asked.display();
    if !asked.is_absolute() {
        return Err(refuse(format!("The {what} {shown} is not an absolute path.")));
    }
    let real = std::fs::canonicalize(asked)
        .map_err(|error| refuse(format!("The {what} {shown} cannot be used: {error}.")))?;
    if !real.is_dir() {
        return Err(refuse(format!("The {what} {shown} is not a directory.")));
    }
    // A root that is not there lets nothing through: a list is never taken for an empty one.
    let beneath = |root: &PathBuf| std::fs::canonicalize(root).is_ok_and(|root| real.starts_with(root));
    for roots in [&policy.workspace_roots, &policy.cwd_roots] {
        if !roots.value.is_empty() && !roots.value.iter().any(beneath) {
            let list: Vec<String> = roots.value.iter().map(|root| root.display().to_string()).collect();
            return Err(refuse(format!(
                "The {what} {shown} lies outside of {} ({}; set by {}). Choose one beneath it.",
                roots.key,
                list.join(", "),
                roots.source
            )));
        }
    }
    let text = real.to_str().map(str::to_owned);
    text.ok_or_else(|| refuse(format!("The {what} {shown} is not UTF-8.")))
}

/// Directories that configuration gives every session of an agent; one that is no text is left out.
fn configured_directories(config: &Config, agent: &Agent) -> Vec<String> {
    let all = config.acp.additional_directories.iter().chain(&agent.additional_directories);
    all.filter_map(|path| path.to_str().map(str::to_owned)).collect()
}

impl crate::session_task::Profiles for Agents {
    fn profile(&self, agent: &AgentName) -> Result<Profile, Failure> {
        Self::profile(self, agent)
    }

    fn default_agent(&self) -> Result<AgentName, Failure> {
        Self::default_agent(self)
    }

    fn cwd(&self, agent: &AgentName, asked: Option<&str>) -> Result<String, Failure> {
        Self::cwd(self, agent, asked)
    }

    fn directory(&self, agent: &AgentName, asked: &str) -> Result<String, Failure> {
        Self::directory(self, agent, asked)
    }

    fn limits(&self, agent: &AgentName) -> Limits {
        self.live.limits(agent)
    }
}

#[cfg(test)]
#[path = "agents_tests.rs"]
mod tests;
