use super::load::{ConfigError, Inputs, LoadedConfig, load};
use super::source::{Source, schema, shown};
use super::{Config, Durability, NonInteractive, PermissionMode};
use crate::rows::ConversationRef;
use acp_shared::ids::AgentName;
use proptest::prelude::*;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

const FILE: &str = "/etc/gateway.toml";

fn file(text: &str) -> Result<LoadedConfig, ConfigError> {
    load(Inputs { file: Some((Path::new(FILE), text)), ..Inputs::default() })
}

fn env(name: &str, value: &str) -> Result<LoadedConfig, ConfigError> {
    load(Inputs { env: &[(name.to_owned(), value.to_owned())], ..Inputs::default() })
}

fn message(result: Result<LoadedConfig, ConfigError>) -> String {
    result.map(|_| ()).unwrap_err().to_string()
}

#[test]
fn empty_configuration_has_defaults() {
    assert_eq!(load(Inputs::default()).unwrap(), LoadedConfig::default());
    assert_eq!(file("").unwrap().config, Config::default());
    let config = Config::default();
    assert!(config.acp.enabled && config.acp.dispatch.enabled);
    assert_eq!(config.acp.backend, "direct");
}

#[test]
fn keys_are_read_from_file() {
    let text = r#"
        [acp]
        enabled = false
        default_agent = "mine"
        allowed_agents = ["mine", "demo"]
        [acp.control_plane]
        durability = "normal"
        [agents.mine]
        command = ["/opt/mine", "--acp"]
        env = { TOKEN = "t" }
        env_allow = ["MINE_*"]
        cwd_roots = ["/srv"]
        permission = "approve-reads"
        non_interactive_permissions = "fail"
        mode = "default"
        config = { model = "m" }
        eof_ms = 1
        term_ms = 2
        kill_ms = 300
        init_ms = 4000
    "#;
    let config = file(text).unwrap().config;
    let name = AgentName::parse("mine").unwrap();
    assert_eq!(config.acp.default_agent, Some(name.clone()));
    assert_eq!(config.acp.control_plane.durability, Durability::Normal);
    let agent = config.agents.get(&name).unwrap();
    assert_eq!(agent.permission, Some(PermissionMode::ApproveReads));
    assert_eq!(agent.non_interactive_permissions, Some(NonInteractive::Fail));
    assert_eq!(agent.command.as_deref().unwrap(), ["/opt/mine", "--acp"]);
    assert_eq!(agent.init_ms, Some(4_000));
}

#[test]
fn serialized_defaults_parse_to_defaults() {
    let text = toml::to_string(&Config::default()).unwrap();
    assert_eq!(file(&text).unwrap().config, Config::default());
}

/// The example file equals the defaults; with every key uncommented it has every key.
#[test]
fn example_file_has_every_key() {
    const EXAMPLE: &str = include_str!("../../../../packaging/gateway.example.toml");
    let loaded = file(EXAMPLE).unwrap();
    assert_eq!(loaded.config, Config::default());
    let is_key = |line: &str| {
        line.split_once(" = ").is_some_and(|(key, _)| !key.contains(' ')) || line.starts_with('[')
    };
    let uncommented = EXAMPLE.lines().map(|line| match line.strip_prefix("# ") {
        Some(rest) if is_key(rest) => rest,
        _ => line,
    });
    let whole = file(&uncommented.collect::<Vec<_>>().join("\n")).unwrap();
    let named: Vec<String> = whole.sources.keys().map(|key| key.join(".")).collect();
    let agent = serde_json::to_value(super::AgentConfig::default()).unwrap();
    let of_agent = agent
        .as_object()
        .unwrap()
        .keys()
        .map(|key| vec!["agents".to_owned(), "mine".to_owned(), key.clone()]);
    let keys: Vec<Vec<String>> =
        schema().unwrap().leaves().into_iter().map(|(key, _)| key).chain(of_agent).collect();
    let account = serde_json::to_value(super::channels::Account::default()).unwrap();
    let account = account.as_object().unwrap().keys().filter(|key| *key != "thread_bindings").cloned();
    let bindings = serde_json::to_value(super::channels::ThreadBindings::default()).unwrap();
    let bindings = bindings.as_object().unwrap().keys().map(|key| format!("thread_bindings.{key}"));
    let below: Vec<String> = account.chain(bindings).collect();
    let of_account = super::Channels::NAMES.into_iter().flat_map(|channel| {
        below.iter().map(move |key| vec![format!("channels.{channel}.accounts.main.{key}")])
    });
    let binding = serde_json::to_value(super::Binding::default()).unwrap();
    let of_binding = binding.as_object().unwrap().keys().map(|key| vec![format!("bindings.0.{key}")]);
    let server = serde_json::to_value(super::McpServer::default()).unwrap();
    let of_server = ["", "agents.mine."].into_iter().flat_map(|above| {
        let keys = server.as_object().unwrap().keys();
        // A program in one entry, a remote server in the next.
        keys.map(move |key| {
            let remote = ["type", "url", "headers"].contains(&key.as_str());
            vec![format!("{above}mcp_servers.{}.{key}", u8::from(remote))]
        })
    });
    let target = serde_json::to_value(super::NotifyTarget::default()).unwrap();
    let of_target = target.as_object().unwrap().keys().map(|key| vec![format!("notify.0.{key}")]);
    let project = serde_json::to_value(super::channels::Project::default()).unwrap();
    let of_project =
        project.as_object().unwrap().keys().map(|key| vec![format!("channels.discord.projects.0.{key}")]);
    let of_account = of_account.chain(of_project);
    let keys: Vec<Vec<String>> =
        keys.into_iter().chain(of_account).chain(of_binding).chain(of_server).chain(of_target).collect();
    assert!(keys.len() > 75, "{keys:?}");
    for key in keys {
        let key = key.join(".");
        let beneath = format!("{key}.");
        assert!(named.iter().any(|it| *it == key || it.starts_with(&beneath)), "{key} is not in the example");
    }
}

/// A channel has one project, no static binding besides, and one bot.
#[test]
fn conflicting_projects_are_refused() {
    const ONE: &str = "[channels.discord.accounts.a]\n";
    let project = |more: &str| format!("[[channels.discord.projects]]\n{more}\n");
    let bound = "[[bindings]]\nchannel = \"discord\"\nconversation = \"7\"\nagent = \"demo\"\n";
    let seven = project("channel = \"7\"");
    for (text, want) in [
        (
            format!("{ONE}{}", project("channel = \"general\"")),
            "channels.discord.projects.0.channel: \"general\" is not an id",
        ),
        (format!("{ONE}{}", project("")), "projects.0.channel: \"\" is not an id"),
        (format!("{ONE}{seven}{seven}"), "projects.1.channel: channels.discord.projects.0 is for the same"),
        (format!("{ONE}{seven}{bound}"), "projects.0.channel: bindings.0 binds the same channel"),
        (format!("{ONE}{}", project("channel = \"7\"\naccount = \"b\"")), "projects.0.account: there is no"),
        (format!("{ONE}[channels.discord.accounts.b]\n{seven}"), "projects.0.account: is required"),
        (
            format!("{ONE}{}", project("channel = \"7\"\ncwd = \"x\"")),
            "projects.0.cwd: must be an absolute path",
        ),
        (
            format!("[acp]\nallowed_agents = [\"x\"]\n{ONE}{}", project("channel = \"7\"\nagent = \"demo\"")),
            "demo is not in",
        ),
    ] {
        let error = file(&text).unwrap_err().to_string();
        assert!(error.contains(want), "{want}: {error}");
    }
    let both = format!("{ONE}{seven}{}", bound.replace("\"7\"", "\"8\""));
    let discord = file(&both).unwrap().config.channels.discord;
    let at = |id: &str, parent: Option<&str>| ConversationRef {
        parent_conversation_id: parent.map(str::to_owned),
        ..ConversationRef::new("discord", "a", id)
    };
    assert!(
        discord.project_of(&at("7", None)).is_some() && discord.project_of(&at("9", Some("7"))).is_some()
    );
    assert!(discord.project_of(&at("9", None)).is_none());
    assert!(discord.project_of(&ConversationRef::new("discord", "b", "7")).is_none());
}

#[test]
fn errors_name_line_and_nearest_key() {
    for (text, wants) in [
        (
            "[acp]\nbackend = \"x\"\nenabeld = true\n",
            vec![":3: ", "unknown key `acp.enabeld`", "`acp.enabled`?"],
        ),
        ("[acpp]\nx = 1\n", vec![":1: ", "unknown key `acpp`; did you mean `acp`?"]),
        ("zzz = 1\n", vec![":1: ", "unknown key `zzz`"]),
        ("[agents.a]\ncomand = [\"x\"]\n", vec![":2: ", "`agents.a.comand`", "`agents.a.command`?"]),
        ("[acp.stream]\nmax_chunk_chars = \"x\"\n", vec![":2: ", "invalid type"]),
        ("[[mcp_servers]]\nname = \"n\"\nargs = \"--hidden\"\n", vec![":3: ", "string, expected a sequence"]),
        ("[acp\n", vec![":1: "]),
        ("[acp.stream]\n\nmax_chunk_chars = 5\n", vec![":3: ", "5 is out of bounds; allowed: 50 to 4000"]),
        ("[agents.a]\neof_ms = 99999999\n", vec![":2: ", "agents.a.eof_ms"]),
        ("[agents.a]\ncommand = []\n", vec!["must name a program"]),
        ("[agents.a]\ncommand = [\"./x\"]\n", vec!["absolute path"]),
        ("[agents.a]\nenv = { OPENCLAW_ACPX_LEASE_ID = \"x\" }\n", vec!["reserved: the supervisor sets it"]),
        ("[agents.a]\ncwd_roots = [\"rel\"]\n", vec!["agents.a.cwd_roots: must be an absolute path"]),
        ("[agents.\"no name\"]\n", vec!["agent name may contain"]),
        (
            "[agents.a]\nenv_allow = [\"A*B\"]\n",
            vec![":2: ", "neither the name of a variable nor a prefix NAME*"],
        ),
        ("[acp]\nenv_allow = [\"\"]\n", vec![":2: ", "acp.env_allow"]),
        (
            "[acp]\nworkspace_roots = [\"rel\"]\n",
            vec![":2: ", "acp.workspace_roots: must be an absolute path"],
        ),
        ("[acp.control_plane]\nstore = \"mysql\"\n", vec![":2: ", "sqlite", "postgres"]),
        ("[acp.control_plane]\nstore = \"postgres\"\n", vec!["postgres.address_file: is required"]),
        (
            "[acp.control_plane]\nstore = \"postgres\"\nstore_path = \"/db\"\npostgres.address_file = \"/a\"\n",
            vec![":3: ", "acp.control_plane.store_path: has no meaning"],
        ),
        ("[acp.control_plane.postgres]\ncell = \"A b\"\n", vec![":2: ", "is not the name of a cell"]),
        ("[acp.control_plane.postgres]\nca_file = \"a\"\n", vec![":2: ", "must be an absolute path"]),
        ("[acp.stream]\ntag_visibility = { \"Tool Call\" = true }\n", vec![":2: ", "agent_message_chunk"]),
        ("[backends.acpx]\nterm_ms = 1\n", vec![":2: ", "unknown key `backends.acpx.term_ms`"]),
        ("[backends.direct]\nkill_ms = 1\n", vec![":2: ", "backends.direct.kill_ms: 1 is out of bounds"]),
        ("[agents.a]\nqueue_runs_max = 0\n", vec![":2: ", "agents.a.queue_runs_max"]),
        (
            "[channels.discord.accounts.main]\nmax_concurent_sessions = 1\n",
            vec![":2: ", "max_concurrent_sessions`?"],
        ),
        (
            "[channels.discord.accounts.main.thread_bindings]\nidle_hours = 9000\n",
            vec![":2: ", "accounts.main.thread_bindings.idle_hours: 9000 is out of bounds"],
        ),
        ("[session.thread_bindings]\nidle_hours = -1\n", vec![":2: ", "invalid value"]),
        ("[channels.telegram]\n", vec![":1: ", "unknown key `channels.telegram`"]),
        ("[acp]\ndefault_agent=\"a\"\nallowed_agents=[\"b\"]\n", vec![":2: ", "not in acp.allowed_agents"]),
        ("[log]\nlevel = \"a=b=c\"\n", vec![":2: ", "log.level"]),
        ("[permission]\nmode = \"yes\"\n", vec![":2: ", "approve-all"]),
    ] {
        let message = message(file(text));
        for want in wants {
            assert!(message.contains(want), "{want:?} is not in {message:?} for {text:?}");
        }
    }
}

/// Replaced keys are refused at every level and in both spellings, with the new keys.
#[test]
fn replaced_ttl_key_is_refused_with_new_keys() {
    for (above, old) in [
        ("session.thread_bindings", "ttl_hours"),
        ("session.thread_bindings", "ttlHours"),
        ("channels.discord.thread_bindings", "ttlHours"),
        ("channels.discord.accounts.main.thread_bindings", "ttl_hours"),
    ] {
        let message = message(file(&format!("[{above}]\n{old} = 24\n")));
        for want in [
            format!("{FILE}:2: the key `{above}.{old}` was replaced"),
            format!("{above}.idle_hours"),
            format!("{above}.max_age_hours"),
        ] {
            assert!(message.contains(&want), "{want:?} is not in {message:?}");
        }
    }
}

#[test]
fn variables_set_keys_without_default() {
    const ABOVE: &str = "ACP_HOST_CHANNELS__DISCORD__THREAD_BINDINGS__";
    let bindings = |name: &str, value: &str| {
        env(&format!("{ABOVE}{name}"), value).map(|loaded| loaded.config.channels.discord.thread_bindings)
    };
    assert_eq!(bindings("IDLE_HOURS", "5").unwrap().idle_hours, Some(5));
    assert_eq!(bindings("SPAWN_ACP_SESSIONS", "true").unwrap().spawn_acp_sessions, Some(true));
    let refused = message(env(&format!("{ABOVE}IDLE_HOURS"), "soon"));
    assert!(refused.contains("IDLE_HOURS: \"soon\" is not a valid value"), "{refused}");
    // A key of type string keeps a number as text.
    let command = env("ACP_HOST_ACP__RUNTIME__INSTALL_COMMAND", "5").unwrap().config.acp.runtime;
    assert_eq!(command.install_command.as_deref(), Some("5"));
    let separator = env("ACP_HOST_ACP__STREAM__HIDDEN_BOUNDARY_SEPARATOR", "newline").unwrap();
    assert_eq!(separator.config.acp.stream.hidden_boundary_separator, Some(super::Separator::Newline));
}

#[test]
fn variables_set_scalar_keys() {
    let loaded = env("ACP_HOST_ACP__DISPATCH__ENABLED", "false").unwrap();
    assert!(!loaded.config.acp.dispatch.enabled);
    let agent = env("ACP_HOST_ACP__DEFAULT_AGENT", "demo").unwrap().config.acp.default_agent;
    assert_eq!(agent.unwrap().as_str(), "demo");
    assert_eq!(env("ACP_HOST_LIMITS__QUEUE_RUNS_MAX", "3").unwrap().config.limits.queue_runs_max, 3);
    assert_eq!(env("ACP_HOST_BIN", "x").unwrap().config, Config::default());
    assert_eq!(env("OTHER__THING", "x").unwrap().config, Config::default());
    for (name, value, want) in [
        ("ACP_HOST_ACP__ENABELD", "1", "did you mean `ACP_HOST_ACP__ENABLED`?"),
        ("ACP_HOST_ACP__ENABLED", "yes", "is not a valid value"),
        ("ACP_HOST_ACP__ENABLED", "1", "is not a valid value"),
        (
            "ACP_HOST_LIMITS__QUEUE_RUNS_MAX",
            "0",
            "ACP_HOST_LIMITS__QUEUE_RUNS_MAX: limits.queue_runs_max: 0 is out",
        ),
        ("ACP_HOST_LIMITS__QUEUE_RUNS_MAX", "1\nx=2", "is not a valid value"),
    ] {
        let message = message(env(name, value));
        assert!(message.contains(want), "{want:?} is not in {message:?}");
    }
}

#[test]
fn last_source_of_a_value_wins() {
    let text = "[acp]\nbackend = \"direct\"\n\n[acp.stream]\ncoalesce_idle_ms = 100\n[agents.a]\ncommand = [\"a\"]\nenv = { KEY = \"secret\" }\n[supervisor]\nsocket = \"/a\"\n";
    let loaded = load(Inputs {
        file: Some((Path::new(FILE), text)),
        env: &[("ACP_HOST_ACP__STREAM__COALESCE_IDLE_MS".to_owned(), "200".to_owned())],
        flags: &[(&["supervisor", "socket"], "--supervisor-socket", "/b".to_owned())],
    })
    .unwrap();
    assert_eq!(loaded.config.acp.stream.coalesce_idle_ms, 200);
    assert_eq!(loaded.config.supervisor.socket.as_deref(), Some(Path::new("/b")));
    let rows = shown(&loaded.config, &loaded.sources).unwrap();
    let row = |key: &str| {
        let row = rows.iter().find(|row| row.key == key).unwrap_or_else(|| panic!("no {key}"));
        (row.value.clone(), row.source.clone())
    };
    let line = |line| Source::File { path: PathBuf::from(FILE), line };
    assert_eq!(row("acp.backend"), (json!("direct"), line(2)));
    assert_eq!(row("acp.enabled"), (json!(true), Source::Default));
    assert_eq!(row("agents.a.command"), (json!(["a"]), line(7)));
    assert_eq!(row("agents.a.env.KEY"), (json!("***"), line(8)));
    assert_eq!(row("agents.a.mode"), (Value::Null, Source::Default));
    let name = "ACP_HOST_ACP__STREAM__COALESCE_IDLE_MS".to_owned();
    assert_eq!(row("acp.stream.coalesce_idle_ms"), (json!(200), Source::Env { name }));
    let name = "--supervisor-socket".to_owned();
    assert_eq!(row("supervisor.socket"), (json!("/b"), Source::Flag { name }));
}

#[test]
fn numbers_are_bounded() {
    let schema = schema().unwrap();
    for (key, default) in schema.leaves() {
        if !default.is_number() {
            continue;
        }
        let mut text = String::new();
        let (last, above) = key.split_last().unwrap();
        text.push_str(&format!("[{}]\n{last} = {}\n", above.join("."), i64::MAX));
        let message = message(file(&text));
        assert!(message.contains("is out of bounds"), "{}: {message}", key.join("."));
    }
}

proptest! {
    #[test]
    fn any_text_is_parsed_or_refused(text in "[a-z_.\\[\\]=\"0-9\n {}]{0,80}") {
        let _ = file(&text);
    }
}

const BOUND: &str = "[[bindings]]\nchannel = \"console\"\nconversation = \"c\"\nagent = \"demo\"\n";

#[test]
fn binding_errors_name_their_line() {
    let after = |text: &str| format!("{BOUND}\n{BOUND}{text}");
    let cases = [
        (
            BOUND.replace("conversation", "conversaton"),
            3,
            "unknown key `bindings.0.conversaton`; did you mean `bindings.0.conversation`?",
        ),
        (format!("{BOUND}cwd = \"work\"\n"), 5, "bindings.0.cwd: must be an absolute path"),
        (format!("{BOUND}mode = \"forever\"\n"), 5, "unknown variant `forever`"),
        (format!("{BOUND}label = \"front\"\n"), 5, "bindings.0.label: requires an account by name"),
        (format!("{BOUND}account = \"\"\n"), 5, "bindings.0.account: is required"),
        (format!("{BOUND}backend = \"\"\n"), 5, "bindings.0.backend: must not be empty"),
        (
            "[[bindings]]\nchannel = \"console\"\nagent = \"demo\"\n".to_owned(),
            1,
            "bindings.0.conversation: is required",
        ),
        (BOUND.replace("agent = \"demo\"\n", ""), 1, "bindings.0.agent: is required: the agent"),
        (BOUND.replace("\"c\"", "\" c\""), 3, "without leading or trailing whitespace"),
        (after(""), 8, "bindings.1.conversation: bindings.0 is for the same conversation"),
        (after("account = \"main\"\nlabel = \"\"\n"), 11, "bindings.1.label: must not be empty"),
        (
            format!("{BOUND}account = \"a\"\nlabel = \"l\"\n{BOUND}account = \"b\"\nlabel = \"l\"\n"),
            12,
            "bindings.1.label: bindings.0 already has this label",
        ),
        (
            format!("{BOUND}[acp]\nallowed_agents = [\"other\"]\n"),
            4,
            "bindings.0.agent: demo is not in acp.allowed_agents",
        ),
        ("[bindings]\nchannel = \"console\"\n".to_owned(), 1, "expected a sequence"),
        ("bindings = [1]\n".to_owned(), 1, "expected struct Binding"),
    ];
    for (text, line, want) in cases {
        let error = message(file(&text));
        assert!(error.contains(&format!("{FILE}:{line}: ")) && error.contains(want), "{text}: {error}");
    }
    let got = file(&after("account = \"main\"\n")).unwrap().config.bindings.len();
    assert_eq!(got, 2, "different accounts may have the same conversation");
}

#[test]
fn bindings_are_listed_with_lines() {
    let loaded = file(&format!("\n{BOUND}")).unwrap();
    let rows = shown(&loaded.config, &loaded.sources).unwrap();
    let of = |key: &str| rows.iter().find(|row| row.key == key).unwrap();
    assert_eq!(of("bindings.0.agent").value, json!("demo"));
    assert_eq!(of("bindings.0.agent").source, Source::File { path: FILE.into(), line: 5 });
    assert_eq!(
        (&of("bindings.0.account").value, &of("bindings.0.account").source),
        (&json!("*"), &Source::Default)
    );
}

#[test]
fn configuration_views_hide_mcp_secrets() {
    let text = r#"
        [[mcp_servers]]
        name = "one"
        command = "mcp"
        args = ["hidden-arg"]
        env = { TOKEN = "hidden-env" }
        [[agents.mine.mcp_servers]]
        name = "two"
        type = "http"
        url = "https://h/hidden-path"
        headers = { Authorization = "hidden-header" }
    "#;
    let loaded = file(text).unwrap();
    let rows = shown(&loaded.config, &loaded.sources).unwrap();
    let printed = format!("{loaded:?} {}", serde_json::to_string(&rows).unwrap());
    assert!(!printed.contains("hidden-"), "{printed}");
    for key in ["mcp_servers.0.command", "mcp_servers.0.env.TOKEN", "agents.mine.mcp_servers.0.url"] {
        let row = rows.iter().find(|row| row.key == key).unwrap_or_else(|| panic!("{key}: {rows:?}"));
        assert!(matches!(row.source, Source::File { .. }), "{row:?}");
    }
}
