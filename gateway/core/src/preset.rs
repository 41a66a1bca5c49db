//! Presets of known agents, as data: start command, asking mode, timeouts. One table; the code that uses the
//! table has no branch on an agent's name.

use crate::agent_settings::boolean;
use crate::config::ClientFs;

/// Preset of one agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Preset {
    /// Name in commands and configuration.
    pub name: &'static str,
    /// Name for people.
    pub title: &'static str,
    /// Start commands, best first. The first one with an installed program is used.
    pub commands: &'static [&'static [&'static str]],
    /// Additional environment variables.
    pub env: &'static [(&'static str, &'static str)],
    /// Session mode in which the agent asks before acting.
    pub asking_mode: Option<&'static str>,
    /// True if the agent asks without an asking mode, because of `env` or of the start command. See
    /// [`Preset::asks_with`].
    pub asks: bool,
    /// Session modes in which the agent approves tool calls without asking.
    pub self_approving_modes: &'static [&'static str],
    /// Config options, id and value, with which the agent approves tool calls without asking.
    pub self_approving_options: &'static [(&'static str, &'static str)],
    /// Config options to set when a session opens: id and value.
    pub config: &'static [(&'static str, &'static str)],
    /// File requests offered to the agent.
    pub client_fs: ClientFs,
    /// Time to exit after end of file on stdin, in milliseconds.
    pub eof_ms: u64,
    /// Time to exit after SIGTERM, in milliseconds.
    pub term_ms: u64,
    /// Time from process start to an open session, in milliseconds.
    pub init_ms: u64,
    /// True if some releases accept steers; each process must still advertise the capability.
    pub steer: bool,
    /// Note for people about a lost process; empty if none.
    pub resume_note: &'static str,
    /// Install instructions.
    pub install: &'static str,
}

impl Preset {
    /// True if the agent asks without an asking mode when it is started in this way. A command of the
    /// configuration may have arguments that end the questions, or start another program; a variable may replace
    /// the one that makes the agent ask. The directory of the program does not matter.
    pub fn asks_with(&self, command: Option<&[String]>, env: &[(String, String)]) -> bool {
        let has = |&(name, value): &(&str, &str)| env.iter().any(|pair| pair.0 == name && pair.1 == value);
        let is_preset = |words: &[String]| {
            let program = words.first().and_then(|path| path.rsplit('/').next());
            let is = |known: &&[&str]| {
                known.first().copied() == program && known.iter().skip(1).eq(words.iter().skip(1))
            };
            self.commands.iter().any(is)
        };
        self.asks && command.is_none_or(is_preset) && self.env.iter().all(has)
    }
}

/// Defaults for an unknown agent.
pub const DEFAULT: Preset = Preset {
    name: "agent",
    title: "Agent",
    commands: &[],
    env: &[],
    asking_mode: None,
    asks: false,
    self_approving_modes: &[],
    self_approving_options: &[],
    config: &[],
    client_fs: ClientFs::Both,
    eof_ms: 2_000,
    term_ms: 3_000,
    init_ms: 60_000,
    steer: false,
    resume_note: "",
    install: "",
};

/// Returns the preset of an agent without peculiarities.
const fn plain(
    name: &'static str,
    title: &'static str,
    commands: &'static [&'static [&'static str]],
    install: &'static str,
) -> Preset {
    Preset { name, title, commands, install, ..DEFAULT }
}

const NO_RESUME: &str =
    "A conversation cannot be resumed after its process ended: you will be asked to start a new one.";
const VENDOR: &str = "see the vendor's page";

/// Names of session modes that approve without asking, for any agent.
const UNMISTAKABLE: &[&str] = &[
    "accept-edits",
    "acceptEdits",
    "auto-approve",
    "auto",
    "auto-edit",
    "autoEdit",
    "auto_edit",
    "bypassPermissions",
    "dontAsk",
    "full-access",
    "agent-full-access",
    "yolo",
];

/// All known agents.
pub const PRESETS: &[Preset] = &[
    Preset {
        name: "claude",
        title: "Claude Code",
        commands: &[&["claude-agent-acp"], &["npx", "-y", "@agentclientprotocol/claude-agent-acp"]],
        asking_mode: Some("default"),
        self_approving_modes: &["acceptEdits", "bypassPermissions", "dontAsk", "auto"],
        eof_ms: 10_000,
        steer: true,
        install: "npm install -g @agentclientprotocol/claude-agent-acp",
        ..DEFAULT
    },
    Preset {
        name: "codex",
        title: "Codex",
        commands: &[&["codex-acp"], &["npx", "-y", "@agentclientprotocol/codex-acp"]],
        asking_mode: Some("read-only"),
        self_approving_modes: &["agent", "auto", "full-access", "agent-full-access"],
        eof_ms: 2_500,
        steer: true,
        install: "npm install -g @agentclientprotocol/codex-acp",
        ..DEFAULT
    },
    Preset {
        name: "gemini",
        title: "Gemini CLI",
        commands: &[&["gemini", "--acp"], &["npx", "-y", "@google/gemini-cli", "--acp"]],
        // Without the launcher: half the memory, one process less to fail.
        env: &[("GEMINI_CLI_NO_RELAUNCH", "true")],
        asking_mode: Some("default"),
        self_approving_modes: &["autoEdit", "auto_edit", "yolo"],
        // Reads a file before each write, and aborts the write if `fs/read_text_file` reports a missing file.
        client_fs: ClientFs::Write,
        // Ignores SIGTERM while idle, so a long timeout is useless.
        eof_ms: 2_000,
        term_ms: 1_000,
        resume_note: "Some releases cannot find sessions that they created.",
        install: "npm install -g @google/gemini-cli",
        ..DEFAULT
    },
    Preset {
        name: "qwen",
        title: "Qwen Code",
        commands: &[&["qwen", "--acp"], &["npx", "-y", "@qwen-code/qwen-code", "--acp"]],
        env: &[("QWEN_CODE_NO_RELAUNCH", "true")],
        asking_mode: Some("default"),
        self_approving_modes: &["auto", "auto-edit", "yolo"],
        eof_ms: 5_000,
        install: "npm install -g @qwen-code/qwen-code (Node 22 or newer)",
        ..DEFAULT
    },
    Preset {
        name: "opencode",
        title: "OpenCode",
        commands: &[&["opencode", "acp"], &["npx", "-y", "opencode-ai", "acp"]],
        // Edits and runs commands without asking by default.
        env: &[("OPENCODE_PERMISSION", r#"{"edit":"ask","bash":"ask","webfetch":"ask"}"#)],
        asks: true,
        install: "npm install -g opencode-ai",
        ..DEFAULT
    },
    Preset {
        name: "goose",
        title: "goose",
        commands: &[&["goose", "acp"]],
        env: &[("GOOSE_MODE", "approve")],
        asking_mode: Some("approve"),
        self_approving_modes: &["auto", "smart_approve"],
        install: "npm install -g @aaif/goose-acp",
        ..DEFAULT
    },
    Preset {
        name: "kimi",
        title: "Kimi Code",
        commands: &[&["kimi", "acp"]],
        asking_mode: Some("default"),
        self_approving_modes: &["auto", "yolo"],
        install: "npm install -g @moonshot-ai/kimi-code (Node 22.19 or newer)",
        ..DEFAULT
    },
    plain(
        "copilot",
        "GitHub Copilot CLI",
        &[&["copilot", "--acp", "--stdio"], &["npx", "-y", "@github/copilot", "--acp", "--stdio"]],
        "npm install -g @github/copilot",
    ),
    Preset {
        name: "cline",
        title: "Cline",
        commands: &[&["cline", "--acp"], &["npx", "-y", "cline", "--acp"]],
        // The config option `auto_approve` is off without `--auto-approve true` or `--yolo` (3.0.65).
        asks: true,
        self_approving_options: &[("auto_approve", "true")],
        install: "npm install -g cline",
        ..DEFAULT
    },
    plain(
        "kilo",
        "Kilo Code",
        &[&["kilo", "acp"], &["npx", "-y", "@kilocode/cli", "acp"]],
        "npm install -g @kilocode/cli",
    ),
    Preset {
        name: "auggie",
        title: "Auggie",
        commands: &[&["auggie", "--acp"], &["npx", "-y", "@augmentcode/auggie", "--acp"]],
        // Modes: `default` acts without asking, `ask` does not act at all.
        self_approving_modes: &["default"],
        install: "npm install -g @augmentcode/auggie",
        ..DEFAULT
    },
    Preset {
        name: "qoder",
        title: "Qoder CLI",
        commands: &[&["qodercli", "--acp"], &["npx", "-y", "@qoder-ai/qodercli", "--acp"]],
        asking_mode: Some("default"),
        self_approving_modes: &["acceptEdits", "auto", "yolo"],
        install: "npm install -g @qoder-ai/qodercli",
        ..DEFAULT
    },
    plain(
        "droid",
        "Factory Droid",
        &[
            &["droid", "exec", "--output-format", "acp"],
            &["npx", "-y", "droid", "exec", "--output-format", "acp"],
        ],
        "npm install -g droid",
    ),
    plain(
        "pi",
        "pi",
        &[&["pi-acp"], &["npx", "-y", "pi-acp"]],
        "npm install -g pi-acp (pi itself has to be on PATH too)",
    ),
    plain("cursor", "Cursor", &[&["cursor-agent", "acp"]], VENDOR),
    Preset {
        name: "vibe",
        title: "Mistral Vibe",
        commands: &[&["vibe-acp"], &["uvx", "--from", "mistral-vibe", "vibe-acp"]],
        // Edits files without asking by default.
        asking_mode: Some("ask"),
        self_approving_modes: &["accept-edits", "smart-approve", "auto-approve"],
        install: "uv tool install mistral-vibe (Python 3.12 or newer)",
        ..DEFAULT
    },
    plain(
        "fast-agent",
        "fast-agent",
        &[&["fast-agent-acp", "-x"], &["uvx", "fast-agent-acp", "-x"]],
        "uv tool install fast-agent-acp (Python 3.12 or newer)",
    ),
    plain("grok", "Grok Build", &[&["grok", "agent", "stdio"]], VENDOR),
    plain("junie", "Junie", &[&["junie", "--acp=true"]], VENDOR),
    plain("devin", "Devin", &[&["devin", "acp"]], VENDOR),
    plain("kiro", "Kiro CLI", &[&["kiro-cli-chat", "acp"]], VENDOR),
    plain("poolside", "Poolside", &[&["pool", "acp"]], VENDOR),
    plain("openclaw", "OpenClaw", &[&["openclaw", "acp"]], VENDOR),
    plain("trae", "Trae", &[&["traecli", "acp", "serve"]], VENDOR),
    plain("fx", "fx", &[&["fx", "acp"]], VENDOR),
    Preset {
        name: "amp",
        title: "Amp",
        commands: &[&["amp-acp"]],
        resume_note: NO_RESUME,
        install: VENDOR,
        ..DEFAULT
    },
];

/// Returns the preset of an agent.
pub fn find(name: &str) -> Option<&'static Preset> {
    PRESETS.iter().find(|preset| preset.name == name)
}

/// True if an agent approves tool calls without asking in this session mode. `agent` is the name in
/// `agentInfo`, which contains the product's name or is empty.
pub fn approves_by_itself(agent: &str, mode: &str) -> bool {
    let agent = agent.to_ascii_lowercase();
    let of_agent =
        |preset: &&Preset| agent.split(|c: char| !c.is_ascii_alphanumeric()).any(|w| w == preset.name);
    let known = PRESETS.iter().find(of_agent);
    known.is_some_and(|preset| preset.self_approving_modes.contains(&mode)) || UNMISTAKABLE.contains(&mode)
}

/// True if a config option belongs to those with which some agent approves tool calls without asking. Such names
/// are unmistakable, so the agent does not matter.
pub fn is_self_approving_option(id: &str) -> bool {
    PRESETS.iter().any(|preset| preset.self_approving_options.iter().any(|(known, _)| *known == id))
}

/// True if an agent approves tool calls without asking while a config option has this value.
pub fn option_approves_by_itself(id: &str, value: &str) -> bool {
    let is = |want: &str| value == want || boolean(value).is_some_and(|is_on| boolean(want) == Some(is_on));
    PRESETS.iter().any(|it| it.self_approving_options.iter().any(|(known, want)| *known == id && is(want)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use acp_shared::ids::AgentName;

    #[test]
    fn presets_are_complete() {
        for (i, preset) in PRESETS.iter().enumerate() {
            let name = preset.name;
            assert!(AgentName::parse(name).is_ok(), "{name}");
            assert!(PRESETS.iter().skip(i + 1).all(|other| other.name != name), "{name} is listed twice");
            assert_eq!(find(name), Some(preset));
            assert!(!preset.title.is_empty() && !preset.install.is_empty(), "{name}");
            assert!(!preset.commands.is_empty(), "{name}");
            for command in preset.commands {
                assert!(command.first().is_some_and(|program| !program.is_empty()), "{name}");
                assert!(command.iter().all(|word| !word.contains(' ')), "{name}: words, not a shell line");
            }
            for (variable, _) in preset.env {
                let is_name = |b: u8| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_';
                assert!(variable.bytes().all(is_name), "{name}");
            }
            assert!(preset.asking_mode.is_none_or(|mode| !approves_by_itself(name, mode)), "{name}");
            for mode in preset.self_approving_modes {
                assert!(approves_by_itself(name, mode), "{name} {mode}");
            }
            for (id, value) in preset.self_approving_options {
                assert!(option_approves_by_itself(id, value) && is_self_approving_option(id), "{name} {id}");
            }
            // Cold starts under load took close to ten seconds for some agents.
            assert!(preset.init_ms >= 30_000 && preset.init_ms <= 300_000, "{name}");
            let graces = [preset.eof_ms, preset.term_ms];
            assert!(graces.iter().all(|ms| (500..=30_000).contains(ms)), "{name}");
        }
    }

    #[test]
    fn json_environment_values_are_valid() {
        for preset in PRESETS {
            for (name, value) in preset.env.iter().filter(|(_, value)| value.starts_with('{')) {
                assert!(serde_json::from_str::<serde_json::Value>(value).is_ok(), "{} {name}", preset.name);
            }
        }
    }

    #[test]
    fn measured_agents_have_expected_presets() {
        for (name, mode, eof_ms, env) in [
            ("qwen", Some("default"), 5_000, Some(("QWEN_CODE_NO_RELAUNCH", "true"))),
            ("gemini", Some("default"), 2_000, Some(("GEMINI_CLI_NO_RELAUNCH", "true"))),
            ("codex", Some("read-only"), 2_500, None),
            ("claude", Some("default"), 10_000, None),
            ("goose", Some("approve"), 2_000, Some(("GOOSE_MODE", "approve"))),
            ("vibe", Some("ask"), 2_000, None),
            ("kimi", Some("default"), 2_000, None),
            ("qoder", Some("default"), 2_000, None),
            ("cline", None, 2_000, None),
        ] {
            let preset = find(name).copied().unwrap_or(DEFAULT);
            assert_eq!(preset.asks, name == "cline", "{name}");
            let got = (preset.asking_mode, preset.eof_ms, preset.env.first().copied());
            assert_eq!(got, (mode, eof_ms, env), "{name}");
        }
    }

    #[test]
    fn self_approving_options_are_known() {
        for (id, value, want) in [
            ("auto_approve", "true", true),
            ("auto_approve", "on", true),
            ("auto_approve", "false", false),
            ("auto_approve", "", false),
            ("model", "true", false),
        ] {
            assert_eq!(option_approves_by_itself(id, value), want, "{id} {value}");
        }
    }

    #[test]
    fn self_approving_modes_are_known() {
        for (agent, mode, want) in [
            ("codex-acp", "agent", true),
            ("@agentclientprotocol/codex-acp", "agent", true),
            ("cursor-agent", "agent", false),
            ("", "yolo", true),
            ("", "default", false),
            ("Goose", "smart_approve", true),
            ("goose", "approve", false),
            ("vibe", "accept-edits", true),
            ("mistral-vibe", "smart-approve", true),
            ("vibe", "ask", false),
            ("kimi-code", "default", false),
            ("auggie", "default", true),
        ] {
            assert_eq!(approves_by_itself(agent, mode), want, "{agent} {mode}");
        }
    }
}
