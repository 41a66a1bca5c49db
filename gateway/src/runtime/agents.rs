//! Known agents and how to start them: configuration over the built-in presets over defaults. The environment
//! is an argument, so that the variables an agent receives are decided in one place and testable. No I/O
//! happens here: [`Profiles::lookup`] names the paths to look up, and decisions take the [`LookupResults`].

use crate::config::LiveConfig;
use crate::runtime::lookup::{LookupRequest, LookupResults};
use crate::runtime::profiles::Profiles;
use acp_core::actor::{ActorLimits, AgentProfile, PACKAGE_RUNNERS, SessionTools};
use acp_core::api::AgentView;
use acp_core::config::check::RESERVED_ENV;
use acp_core::config::{AgentConfig, Config};
use acp_core::failure::Failure;
use acp_core::mcp;
use acp_core::policy::{EffectivePolicy, PolicyScope};
use acp_core::preset::{DEFAULT, PRESETS, Preset, find};
use acp_core::session_tools::AGENTS_SOCKET;
use acp_shared::codes::Code;
use acp_shared::files::FilesError;
use acp_shared::ids::AgentName;
use acp_shared::protocol::Graces;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Name of the built-in demo agent.
pub(crate) const DEMO: &str = "demo";
/// Variables of the gateway that every agent receives; `NAME*` is a prefix match. Secrets of the gateway are
/// not in the list; they pass only through the `env_allow` of `acp`, of the backend or of the agent.
const ENV_ALLOWED: [&str; 11] =
    ["HOME", "PATH", "USER", "LOGNAME", "SHELL", "LANG", "LC_*", "TERM", "TMPDIR", "TZ", "XDG_*"];

/// Agents of this gateway.
#[derive(Debug, Clone)]
pub(crate) struct Agents {
    live: LiveConfig,
    env: Vec<(String, String)>,
    demo: Vec<String>,
    /// `None` on another host: its agents cannot connect to the socket.
    session_tools: Option<SessionTools>,
    /// Working directory of a spawn without one, on another host.
    default_cwd: Option<PathBuf>,
}

/// Resolved command line of an agent on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ResolvedArgv {
    argv: Vec<String>,
    /// True if the program is a fetcher that downloads the agent.
    fetched: bool,
}

/// True if a variable has the name of the pattern, or begins with the part before its `*`.
fn is_match(pattern: &str, name: &str) -> bool {
    pattern.strip_suffix('*').map_or(name == pattern, |head| name.starts_with(head))
}

/// Returns the name that is most similar to a mistyped one.
pub(crate) fn nearest_name<'a>(typed: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let scored = names.map(|name| (strsim::jaro_winkler(typed, name), name));
    scored.filter(|(score, _)| *score > 0.7).max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, name)| name)
}

impl Agents {
    /// Creates the agents of a configuration. `env` is the environment of the gateway, `exe` the path of this
    /// program, `state_dir` the gateway's state directory.
    pub(crate) fn new(live: LiveConfig, env: Vec<(String, String)>, exe: &Path, state_dir: &Path) -> Self {
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let demo = vec![text(exe), "demo-agent".to_owned(), "--state-dir".to_owned(), text(state_dir)];
        let socket = live.at_start().northbound.agents_socket.clone();
        let socket = socket.unwrap_or_else(|| state_dir.join(AGENTS_SOCKET));
        let session_tools = SessionTools { command: text(exe), socket: text(&socket) };
        Self { live, env, demo, session_tools: Some(session_tools), default_cwd: None }
    }

    /// Returns the agents as they are started on another host: with nothing of this machine in their environment but what
    /// the configuration names.
    pub(crate) fn on_host(&self, name: &str) -> Self {
        let host = self.live.at_start().remote.hosts.get(name).cloned().unwrap_or_default();
        let of_machine =
            |(name, _): &&(String, String)| !ENV_ALLOWED.iter().any(|pattern| is_match(pattern, name));
        let mut env: Vec<(String, String)> = self.env.iter().filter(of_machine).cloned().collect();
        env.extend([("PATH".to_owned(), host.path), ("LANG".to_owned(), "C.UTF-8".to_owned())]);
        let demo = vec!["acp-gateway".to_owned(), "demo-agent".to_owned()];
        Self { live: self.live.clone(), env, demo, session_tools: None, default_cwd: host.default_cwd }
    }

    /// Returns the socket of the session tools.
    pub(crate) fn agents_socket(&self) -> &Path {
        Path::new(self.session_tools.as_ref().map_or("", |tools| &tools.socket))
    }

    /// Returns the programs to look up for [`Agents::list`].
    pub(crate) fn lookup_all(&self) -> LookupRequest {
        self.lookup_programs(&self.names())
    }

    fn lookup_programs<'a>(&self, names: impl IntoIterator<Item = &'a AgentName>) -> LookupRequest {
        let commands = names.into_iter().flat_map(|name| self.commands(name));
        LookupRequest {
            programs: commands.filter_map(|command| command.into_iter().next()).collect(),
            search: self.var("PATH").unwrap_or_default().to_owned(),
            ..LookupRequest::default()
        }
    }

    fn requested_cwd(&self, policy: &EffectivePolicy, asked: Option<&str>) -> Option<PathBuf> {
        let configured = || self.default_cwd.clone().or_else(|| policy.default_cwd.value.clone());
        let home = || self.var("HOME").map(PathBuf::from);
        asked.map(PathBuf::from).or_else(configured).or_else(home)
    }

    fn policy(&self, agent: &AgentName) -> Arc<EffectivePolicy> {
        self.live.policy(&PolicyScope::default().with_agent(agent))
    }

    /// Returns every agent, configured ones and the demo first.
    pub(crate) fn directories(&self, name: &AgentName) -> Vec<String> {
        configured_directories(&self.live.now().config, &self.settings(name).0)
    }

    /// Returns all agents.
    pub(crate) fn list(&self, found: &LookupResults) -> Vec<AgentView> {
        self.names().iter().map(|name| self.view(name, found)).collect()
    }

    fn names(&self) -> Vec<AgentName> {
        names(&self.live.now().config)
    }

    fn view(&self, name: &AgentName, found: &LookupResults) -> AgentView {
        let (_, preset) = self.settings(name);
        let found = self.find(name, found);
        let fetched = found.as_ref().is_some_and(|found| found.fetched);
        let installed = found.is_some() && !fetched;
        let note = match &found {
            None if preset.install.is_empty() => Some("not installed here".to_owned()),
            None => Some(format!("install: {}", preset.install)),
            Some(_) if fetched => Some("not installed; downloaded on first use".to_owned()),
            Some(_) if name.as_str() == DEMO => Some("needs no credentials; send it `help`".to_owned()),
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

    fn settings(&self, name: &AgentName) -> (AgentConfig, Preset) {
        let agent = self.live.now().config.agents.get(name).cloned().unwrap_or_default();
        (agent, find(name.as_str()).copied().unwrap_or(DEFAULT))
    }

    fn is_known(&self, name: &AgentName) -> bool {
        let loaded = self.live.now();
        let configured = loaded.config.agents.get(name).is_some_and(|agent| agent.command.is_some());
        configured || name.as_str() == DEMO || find(name.as_str()).is_some()
    }

    fn nearest(&self, name: &AgentName) -> String {
        nearest_name(name.as_str(), self.names().iter().map(AgentName::as_str))
            .map_or_else(String::new, |name| format!(" Did you mean {name}?"))
    }

    /// Returns the command lines that can start an agent, best first.
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

    /// Returns the best command line of an agent, installed or not.
    fn command(&self, name: &AgentName) -> Vec<String> {
        self.commands(name).into_iter().next().unwrap_or_default()
    }

    /// Returns the first command line whose program exists, with the program as an absolute path.
    fn find(&self, name: &AgentName, found: &LookupResults) -> Option<ResolvedArgv> {
        let commands = self.commands(name);
        let several = commands.len() > 1;
        commands.into_iter().find_map(|mut argv| {
            let program = argv.first_mut()?;
            let fetched = several && PACKAGE_RUNNERS.contains(&program.as_str());
            program.clone_from(found.programs.get(program)?);
            Some(ResolvedArgv { argv, fetched })
        })
    }

    /// Describes the absence of an agent's program.
    fn missing_text(&self, name: &AgentName, program: &str) -> String {
        let (agent, preset) = self.settings(name);
        if agent.command.is_some() {
            return format!(
                "{program} (agents.{name}.command) does not exist, or is not executable by the user that \
                 agents run as."
            );
        }
        let how = if preset.install.is_empty() { "" } else { " Install it: " };
        format!("{program} is not installed here.{how}{}", preset.install)
    }

    /// Profile of an agent whose program was not looked up.
    fn profile_of(&self, name: &AgentName, argv: Vec<String>) -> AgentProfile {
        let policy = self.policy(name);
        let loaded = self.live.now();
        let (agent, preset) = self.settings(name);
        let graces = Graces {
            eof_ms: policy.agent.eof_ms.value,
            term_ms: policy.agent.term_ms.value,
            kill_ms: policy.agent.kill_ms.value,
        };
        let mut options: BTreeMap<String, String> =
            preset.config.iter().map(|&(id, value)| (id.to_owned(), value.to_owned())).collect();
        options.extend(agent.config.clone());
        let env = self.environment(&agent, &preset, &policy.env_allow.value);
        let asks = match &agent.command {
            None if name.as_str() == DEMO => true,
            command => preset.asks_with(command.as_deref(), &env),
        };
        AgentProfile {
            argv,
            is_looked_up: false,
            env,
            graces,
            init_ms: policy.agent.init_ms.value,
            may_fetch: false,
            auth_method: agent.auth_method.clone(),
            mode: agent.mode.clone().or_else(|| preset.asking_mode.map(str::to_owned)),
            asks: agent.asks.unwrap_or(asks),
            options: options.into_iter().collect(),
            mcp_servers: mcp::merge_servers([
                loaded.config.mcp_servers.as_slice(),
                agent.mcp_servers.as_slice(),
            ]),
            additional_directories: configured_directories(&loaded.config, &agent),
            private_home: None,
            client_fs: agent.client_fs.unwrap_or(preset.client_fs),
            offer_terminal: true,
            permission: policy.permission.mode.value,
            non_interactive: policy.permission.non_interactive.value,
            session_tools: self.session_tools.clone().filter(|_| agent.session_tools),
            refused: None,
        }
    }

    fn var(&self, name: &str) -> Option<&str> {
        self.env.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    fn environment(&self, agent: &AgentConfig, preset: &Preset, allow: &[String]) -> Vec<(String, String)> {
        let patterns: Vec<&str> = ENV_ALLOWED.into_iter().chain(allow.iter().map(String::as_str)).collect();
        let allowed = |name: &str| patterns.iter().any(|pattern| is_match(pattern, name));
        let mut env: BTreeMap<String, String> =
            self.env.iter().filter(|(name, _)| allowed(name)).cloned().collect();
        env.extend(preset.env.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())));
        env.extend(agent.env.clone());
        env.retain(|name, _| !RESERVED_ENV.contains(&name.as_str()));
        env.into_iter().collect()
    }
}

/// Returns the names of all agents of a configuration, configured ones and the demo first.
pub(crate) fn names(config: &Config) -> Vec<AgentName> {
    let built_in = [DEMO].into_iter().chain(PRESETS.iter().map(|preset| preset.name));
    let mut names: Vec<AgentName> = config.agents.keys().cloned().collect();
    for name in built_in.filter_map(|name| AgentName::parse(name).ok()) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

/// Returns the canonical path of a directory that lies within the roots of the gateway and of the agent.
fn allowed_directory(
    policy: &EffectivePolicy,
    what: &str,
    asked: &Path,
    found: &LookupResults,
) -> Result<String, Failure> {
    let named = format!("{what} {}", asked.display());
    let refuse = |text: String, shown: String| {
        Failure::new(Code::CwdNotAllowed, text).for_conversations(shown).origin("gateway")
    };
    let is = |problem: &str| {
        refuse(format!("The {named} {problem}."), format!("The {what} of the request {problem}."))
    };
    if !asked.is_absolute() {
        return Err(is("is not an absolute path"));
    }
    let real = |path: &Path| found.directories.get(path.to_str()?).cloned();
    let canonical = real(asked).unwrap_or(Err(FilesError::NotFound)).map_err(|error| match error {
        FilesError::NotFound => is("cannot be used: it does not exist"),
        FilesError::NotDirectory => is("is not a directory"),
        FilesError::BadPath => is("is not UTF-8"),
        error => refuse(
            format!("The {named} cannot be used: {error}."),
            format!("The {what} of the request cannot be used."),
        ),
    })?;
    // A missing root matches no path; a list of missing roots is not treated as an empty list.
    let beneath = |root: &PathBuf| {
        real(root).is_some_and(|root| root.is_ok_and(|root| Path::new(&canonical).starts_with(root)))
    };
    for roots in [&policy.workspace_roots, &policy.cwd_roots] {
        if !roots.value.is_empty() && !roots.value.iter().any(beneath) {
            let (key, source) = (&roots.key, &roots.source);
            let list: Vec<String> = roots.value.iter().map(|root| root.display().to_string()).collect();
            let list = list.join(", ");
            return Err(refuse(
                format!(
                    "The {named} lies outside of {key} ({list}; set by {source}). Choose one beneath it."
                ),
                format!("The {what} of the request lies outside of {key}. Choose one beneath it."),
            ));
        }
    }
    Ok(canonical)
}

/// Returns the additional directories that the configuration gives every session of an agent, without
/// non-UTF-8 ones.
fn configured_directories(config: &Config, agent: &AgentConfig) -> Vec<String> {
    let all = config.acp.additional_directories.iter().chain(&agent.additional_directories);
    all.filter_map(|path| path.to_str().map(str::to_owned)).collect()
}

impl Profiles for Agents {
    fn lookup(&self, name: &AgentName, cwd: Option<&str>, directories: &[String]) -> LookupRequest {
        let policy = self.policy(name);
        let roots = policy.workspace_roots.value.iter().chain(&policy.cwd_roots.value);
        let cwd = self.requested_cwd(&policy, cwd);
        let paths =
            roots.chain(&cwd).filter_map(|path| path.to_str()).chain(directories.iter().map(String::as_str));
        let directories = paths.filter(|path| path.starts_with('/')).map(str::to_owned).collect();
        LookupRequest { directories, ..self.lookup_programs([name]) }
    }

    fn configured(&self, name: &AgentName) -> Result<AgentProfile, Failure> {
        if !self.is_known(name) {
            let how =
                "`acp-gateway agents --all` lists the known agents; configure another one as [agents.NAME].";
            let why = format!("Unknown agent {name}.{} {how}", self.nearest(name));
            return Err(Failure::new(Code::AgentNotAllowed, why).origin("gateway"));
        }
        self.policy(name).may_use(name)?;
        Ok(self.profile_of(name, self.command(name)))
    }

    fn profile(&self, name: &AgentName, found: &LookupResults) -> Result<AgentProfile, Failure> {
        let profile = self.configured(name)?;
        let Some(command) = self.find(name, found) else {
            let program = self.command(name).first().cloned().unwrap_or_default();
            let (text, shown) = (
                self.missing_text(name, &program),
                self.missing_text(name, &format!("The program of {name}")),
            );
            let failure = Failure::new(Code::AgentNotAllowed, text).for_conversations(shown);
            return Err(failure.origin("gateway"));
        };
        Ok(AgentProfile { may_fetch: command.fetched, argv: command.argv, is_looked_up: true, ..profile })
    }

    fn of_command(
        &self,
        name: &AgentName,
        command: &[String],
        found: Option<&LookupResults>,
    ) -> Result<AgentProfile, Failure> {
        let refuse = |why: String| Failure::new(Code::AgentNotAllowed, why).origin("gateway");
        if !self.live.now().config.acpx.allow_commands {
            let why = "The agent is a command of the caller, and acpx.allow_commands is not set: add the command to \
                       [agents] and name it, or set acpx.allow_commands = true.";
            let failure = Failure::new(Code::Usage, why).detail("AGENT_COMMAND_NOT_ALLOWED");
            return Err(failure.origin("gateway"));
        }
        let mut profile = self.profile_of(name, command.to_vec());
        if let (Some(found), Some(program)) = (found, profile.argv.first_mut()) {
            let Some(path) = found.programs.get(program) else {
                let what = "does not exist, or is not executable by the user that agents run as.";
                let shown = format!("The program of {name} {what}");
                return Err(refuse(format!("{program} {what}")).for_conversations(shown));
            };
            program.clone_from(path);
            profile.is_looked_up = true;
        }
        Ok(profile)
    }

    fn default_agent(&self) -> Result<AgentName, Failure> {
        self.live.now().config.acp.default_agent.clone().ok_or_else(|| {
            let why = "No agent was named, and acp.default_agent is not set: name one, as in `--agent demo` \
                       (`acp-gateway agents` lists them).";
            Failure::new(Code::AgentNotAllowed, why).origin("gateway")
        })
    }

    fn cwd(&self, agent: &AgentName, asked: Option<&str>, found: &LookupResults) -> Result<String, Failure> {
        let policy = self.policy(agent);
        let Some(asked) = self.requested_cwd(&policy, asked) else {
            let text = "No working directory was named.";
            return Err(Failure::new(Code::CwdNotAllowed, text).origin("gateway"));
        };
        allowed_directory(&policy, "working directory", &asked, found)
    }

    fn directory(&self, agent: &AgentName, asked: &str, found: &LookupResults) -> Result<String, Failure> {
        allowed_directory(&self.policy(agent), "additional directory", Path::new(asked), found)
    }

    fn limits(&self, agent: &AgentName) -> ActorLimits {
        self.live.limits(agent)
    }
}

#[cfg(test)]
#[path = "agents_tests.rs"]
mod tests;
