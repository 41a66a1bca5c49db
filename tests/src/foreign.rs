//! Real agents, installed by `tests/foreign/install.sh` and `install-nightly.sh`, configured so that they
//! connect to the fake model only and make no calls outside of the conversation. Nothing here makes them ask
//! before they write: the gateway's presets do that.

use crate::world::{Agent, World, repository};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Directory in which the agents are installed.
///
/// # Panics
/// When they are not installed: a missing agent is a failure, never a skip.
#[must_use]
pub fn install_dir() -> PathBuf {
    find_install_dir().unwrap_or_else(|reason| panic!("{reason}"))
}

/// Directory in which the agents are installed.
///
/// # Errors
/// When they are not installed.
pub fn find_install_dir() -> Result<PathBuf, String> {
    let dir = std::env::var_os("ACP_FOREIGN_DIR").map(PathBuf::from);
    let dir = dir.ok_or("ACP_FOREIGN_DIR is not set: run `make test-foreign`")?;
    if dir.join("stamp").is_file() {
        Ok(dir)
    } else {
        Err(format!("no agents in {}: run `make test-foreign`", dir.display()))
    }
}

/// Command of an agent without the gateway, in the working directory `cwd`.
#[must_use]
pub fn command(world: &World, agent: &Agent, cwd: &Path) -> Command {
    let mut command = Command::new(&agent.command[0]);
    command.args(&agent.command[1..]).env_clear().envs(&agent.env).envs([world.env_mark()]).current_dir(cwd);
    command
}

/// Reason why an agent of the nightly run is not installed; `None` if it is installed.
///
/// # Panics
/// When the agents of the nightly run are not installed.
#[must_use]
pub fn missing_reason(name: &str) -> Option<String> {
    let dir = install_dir().join("nightly");
    assert!(dir.join("stamp").is_file(), "no agents in {}: run `make test-foreign-nightly`", dir.display());
    std::fs::read_to_string(dir.join(format!("{name}-missing"))).ok()
}

/// Configuration of the agent `name` (its name in presets and configuration) for a world, with the model at
/// `url`.
///
/// # Panics
/// When it is not installed, or the name is unknown.
#[must_use]
pub fn agent(world: &World, name: &str, url: &str) -> Agent {
    match name {
        "qwen" => qwen(world, url),
        "opencode" => opencode(world, url),
        "gemini" => gemini(world, url),
        "vibe" => vibe(world, url),
        _ => panic!("no foreign agent is called {name}"),
    }
}

/// Returns an installed agent; see [`with_own_home`].
fn installed(world: &World, name: &str, program: &str, args: &[&str]) -> Agent {
    let bin = if matches!(name, "gemini" | "vibe") { "nightly/bin" } else { "bin" };
    with_own_home(world, name, &install_dir().join(bin).join(program), args)
}

/// Returns the agent with its own home directory in the world, so that it finds no configuration of this
/// machine.
fn with_own_home(world: &World, name: &str, program: &Path, args: &[&str]) -> Agent {
    let bin = program.parent().unwrap_or(program);
    let home = world.dir(&format!("home-{name}"));
    let path = format!("{}:/usr/local/bin:/usr/bin:/bin", bin.display());
    // Only the presets make these agents ask for permission.
    let mut agent =
        Agent::new(&[&[&*program.to_string_lossy()], args].concat()).without_asks().env("PATH", &path);
    for (variable, below) in [
        ("HOME", ""),
        ("XDG_CONFIG_HOME", ".config"),
        ("XDG_DATA_HOME", ".local/share"),
        ("XDG_STATE_HOME", ".local/state"),
        ("XDG_CACHE_HOME", ".cache"),
    ] {
        agent = agent.env(variable, &home.join(below).to_string_lossy());
    }
    agent
}

fn qwen(world: &World, url: &str) -> Agent {
    // Memory and suggestions call the model after each turn; the other settings disable calls to other hosts.
    let settings = json!({
        "security": {"auth": {"selectedType": "openai"}},
        "memory": {"enableManagedAutoMemory": false},
        "ui": {"enableFollowupSuggestions": false},
        "telemetry": {"enabled": false},
        "privacy": {"usageStatisticsEnabled": false},
        "general": {"enableAutoUpdate": false},
    });
    world.write("home-qwen/.qwen/settings.json", &settings.to_string());
    installed(world, "qwen", "qwen", &["--acp"])
        .env("OPENAI_BASE_URL", url)
        .env("OPENAI_API_KEY", "none")
        .env("OPENAI_MODEL", "fake")
}

/// Qwen Code in the version that packages.txt pins, downloaded by npx into the empty directory `npm-cache` of the world, from
/// the registry of this user's npm and through a proxy. The download runs no script of a package.
///
/// # Panics
/// When the other agents or npm are not installed.
#[must_use]
pub fn qwen_by_npx(world: &World, url: &str, proxy: &str) -> Agent {
    let list = repository().join("tests/foreign/packages.txt");
    let list = std::fs::read_to_string(&list).unwrap_or_else(|e| panic!("{}: {e}", list.display()));
    let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let line = list.lines().map(words).find(|words| words[0] == "qwen");
    let line = line.unwrap_or_else(|| panic!("packages.txt has no qwen"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let npx = std::env::split_paths(&path).map(|dir| dir.join("npx")).find(|file| file.is_file());
    let npx = npx.unwrap_or_else(|| panic!("npx is missing: install npm"));
    let mut agent = qwen(world, url);
    let package = format!("{}@{}", line[1], line[2]);
    agent.command = vec![npx.to_string_lossy().into_owned(), "-y".to_owned(), package, "--acp".to_owned()];
    // Registry and certificates of the user; the agent has a home directory of its own.
    for key in ["userconfig", "globalconfig", "registry"] {
        agent = agent.env(&format!("npm_config_{key}"), &npm_setting(&npx, key));
    }
    if let Ok(certificates) = std::env::var("NODE_EXTRA_CA_CERTS") {
        agent = agent.env("NODE_EXTRA_CA_CERTS", &certificates);
    }
    agent
        .env("npm_config_cache", &world.dir("npm-cache").to_string_lossy())
        .env("npm_config_https_proxy", proxy)
        .env("npm_config_noproxy", "")
        .env("npm_config_ignore_scripts", "true")
        .env("npm_config_omit", "optional")
}

/// Value of a setting of this user's npm.
fn npm_setting(npx: &Path, key: &str) -> String {
    let output = Command::new(npx.with_file_name("npm")).args(["config", "get", key]).output();
    let output = output.unwrap_or_else(|e| panic!("npm does not run: {e}"));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

fn opencode(world: &World, url: &str) -> Agent {
    let model = json!({"name": "fake", "tool_call": true, "limit": {"context": 100_000, "output": 4_000}});
    let provider = json!({
        "npm": "@ai-sdk/openai-compatible", "name": "fake",
        "options": {"baseURL": url, "apiKey": "none"}, "models": {"fake": model},
    });
    let config = json!({
        "autoupdate": false,
        "share": "disabled",
        "model": "fake/fake",
        "small_model": "fake/fake",
        "provider": {"fake": provider},
    });
    let path = world.write("home-opencode/opencode.json", &config.to_string());
    installed(world, "opencode", "opencode", &["acp"])
        .env("OPENCODE_CONFIG", &path.to_string_lossy())
        .env("OPENCODE_DISABLE_AUTOUPDATE", "true")
        .env("OPENCODE_DISABLE_MODELS_FETCH", "true")
        .env("OPENCODE_DISABLE_LSP_DOWNLOAD", "true")
        .env("OPENCODE_DISABLE_DEFAULT_PLUGINS", "true")
}

/// goose, which only the benchmark runs: its program is fetched with the other peers.
#[must_use]
pub fn goose(world: &World, program: &Path, url: &str) -> Agent {
    with_own_home(world, "goose", program, &["acp"])
        .env("GOOSE_PROVIDER", "openai")
        .env("GOOSE_MODEL", "fake")
        .env("GOOSE_MODE", "approve")
        .env("GOOSE_DISABLE_KEYRING", "true")
        .env("GOOSE_TELEMETRY_OFF", "true")
        .env("OPENAI_HOST", url.trim_end_matches("/v1"))
        .env("OPENAI_API_KEY", "none")
}

fn gemini(world: &World, url: &str) -> Agent {
    let settings = json!({
        "security": {"auth": {"selectedType": "gemini-api-key"}},
        "model": {"name": "fake"},
        "privacy": {"usageStatisticsEnabled": false},
        "general": {"enableAutoUpdate": false, "enableAutoUpdateNotification": false},
    });
    world.write("home-gemini/.gemini/settings.json", &settings.to_string());
    installed(world, "gemini", "gemini", &["--acp"])
        .env("GOOGLE_GEMINI_BASE_URL", url.trim_end_matches("/v1"))
        .env("GEMINI_API_KEY", "none")
}

fn vibe(world: &World, url: &str) -> Agent {
    let config = format!(
        "active_model = \"fake\"\nenable_telemetry = false\nenable_update_checks = false\nenable_auto_update = false\n\
         [[providers]]\nname = \"fake\"\napi_base = \"{url}\"\napi_key_env_var = \"FAKE_API_KEY\"\n\
         [[models]]\nname = \"fake\"\nprovider = \"fake\"\nalias = \"fake\"\n"
    );
    let path = world.write("home-vibe/.vibe/config.toml", &config);
    let home = path.parent().unwrap_or(&path);
    installed(world, "vibe", "vibe-acp", &[])
        .env("VIBE_HOME", &home.to_string_lossy())
        .env("FAKE_API_KEY", "none")
}
