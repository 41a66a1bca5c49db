//! Precedence of configuration levels, as tables over whole values.

use super::*;
use crate::config::load::{Inputs, LoadedConfig, load};
use acp_shared::codes::Code;
use proptest::prelude::*;
use std::path::Path;

const HOUR_MS: u64 = 3_600_000;

fn loaded(text: &str) -> LoadedConfig {
    load(Inputs { file: Some((Path::new("/g.toml"), text)), ..Inputs::default() }).unwrap()
}

fn scope(channel: &str, account: &str, agent: &str) -> PolicyScope {
    let name = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    PolicyScope { channel: name(channel), account: name(account), agent: AgentName::parse(agent).ok() }
}

/// Formats one setting as `value | key | source`.
fn line(policy: &EffectivePolicy, setting: &str) -> String {
    let rows = list_settings(policy).unwrap();
    let row = rows.iter().find(|row| row.setting == setting).unwrap_or_else(|| panic!("no {setting}"));
    format!("{} | {} | {}", row.value, row.key, row.source)
}

/// Every level sets the value; then the narrowest level is removed, one after the other.
#[test]
fn narrower_level_overrides_wider_level() {
    let session = "[session.thread_bindings]\nidle_hours = 3\nmax_age_hours = 30\nenabled = false\n";
    let channel = "[channels.discord.thread_bindings]\nidle_hours = 2\nmax_age_hours = 20\nenabled = true\n";
    let account = "[channels.discord.accounts.main.thread_bindings]\nidle_hours = 1\nmax_age_hours = 10\nenabled = false\n";
    let at = scope("discord", "main", "");
    let mut table = String::new();
    for text in
        [[session, channel, account].concat(), [session, channel].concat(), session.to_owned(), String::new()]
    {
        let policy = effective_policy(&loaded(&text), &at);
        for setting in ["bindings.idle_ms", "bindings.max_age_ms", "bindings.enabled"] {
            table.push_str(&line(&policy, setting));
            table.push('\n');
        }
    }
    insta::assert_snapshot!(table, @r"
    3600000 | channels.discord.accounts.main.thread_bindings.idle_hours | /g.toml:10
    36000000 | channels.discord.accounts.main.thread_bindings.max_age_hours | /g.toml:11
    false | channels.discord.accounts.main.thread_bindings.enabled | /g.toml:12
    7200000 | channels.discord.thread_bindings.idle_hours | /g.toml:6
    72000000 | channels.discord.thread_bindings.max_age_hours | /g.toml:7
    true | channels.discord.thread_bindings.enabled | /g.toml:8
    10800000 | session.thread_bindings.idle_hours | /g.toml:2
    108000000 | session.thread_bindings.max_age_hours | /g.toml:3
    false | session.thread_bindings.enabled | /g.toml:4
    86400000 | session.thread_bindings.idle_hours | default
    null | session.thread_bindings.max_age_hours | default
    true | session.thread_bindings.enabled | default
    ");
    // Another account of the channel, another channel, and no scope.
    let all = loaded(&[session, channel, account].concat());
    for (at, hours) in [
        (scope("discord", "other", ""), 2),
        (scope("discord", "", ""), 2),
        (scope("console", "main", ""), 3),
        (scope("telegram", "main", ""), 3),
        (PolicyScope::default(), 3),
    ] {
        assert_eq!(effective_policy(&all, &at).bindings.idle_ms.value, Some(hours * HOUR_MS), "{at:?}");
    }
}

#[test]
fn zero_overrides_a_wider_level() {
    let text =
        "[session.thread_bindings]\nidle_hours = 3\n[channels.discord.thread_bindings]\nidle_hours = 0\n";
    assert_eq!(effective_policy(&loaded(text), &scope("discord", "a", "")).bindings.idle_ms.value, None);
}

#[test]
fn binding_policy_depends_on_origin_and_level() {
    let channel = "[channels.discord.thread_bindings]\nspawn_acp_sessions = true\n";
    let account = "[channels.discord.accounts.main.thread_bindings]\nspawn_acp_sessions = false\n";
    let both = [channel, account].concat();
    let agents = "[channels.discord.thread_bindings]\nspawn_subagent_sessions = true\n";
    let off = "[acp]\nenabled = false\n";
    let unbound = "[session.thread_bindings]\nenabled = false\n";
    use BindOrigin::{AgentSpawn, Focus, Spawn};
    let (main, console, spawns) = (("discord", "main"), ("console", ""), "spawn_acp_sessions");
    let key = format!("channels.discord.thread_bindings.{spawns}");
    for (text, at, origin, want) in [
        ("", console, Spawn, Ok(())),
        ("", main, Focus, Ok(())),
        ("", main, Spawn, Err(format!("{key} = false (default)"))),
        ("", main, Spawn, Err(format!("can set {key} = true in gateway.toml"))),
        (channel, main, Spawn, Ok(())),
        (
            both.as_str(),
            main,
            Spawn,
            Err(format!("accounts.main.thread_bindings.{spawns} = false (/g.toml:4)")),
        ),
        (both.as_str(), ("discord", "other"), Spawn, Ok(())),
        (channel, main, AgentSpawn, Err("spawn_subagent_sessions = false".to_owned())),
        (agents, main, AgentSpawn, Ok(())),
        (agents, main, Spawn, Err(format!("{key} = false (default)"))),
        ("", console, AgentSpawn, Ok(())),
        (off, console, Focus, Err("acp.enabled = false (/g.toml:2)".to_owned())),
        (unbound, console, Focus, Err("session.thread_bindings.enabled = false".to_owned())),
    ] {
        let got = effective_policy(&loaded(text), &scope(at.0, at.1, "")).may_bind(origin);
        match (&got, &want) {
            (Ok(_), Ok(())) => {}
            (Err(failure), Err(want)) => {
                assert_eq!(failure.code, Code::Disabled);
                assert!(failure.message.contains(want.as_str()), "{want:?} is not in {:?}", failure.message);
            }
            _ => panic!("{text:?} {at:?} {origin:?}: {got:?}, not {want:?}"),
        }
    }
}

#[test]
fn disabled_switch_names_key_and_source() {
    let (disabled, no_dispatch) = (Some(Code::Disabled), Some(Code::DispatchDisabled));
    for (text, prompt, spawn, spawn_with_prompt) in [
        ("", None, None, None),
        ("[acp]\nenabled = false\n", disabled, disabled, disabled),
        ("[acp.dispatch]\nenabled = false\n", no_dispatch, None, no_dispatch),
    ] {
        let policy = effective_policy(&loaded(text), &PolicyScope::default());
        let code = |result: Result<(), crate::failure::Failure>| {
            let failure = result.err()?;
            assert!(failure.message.contains("enabled = false (/g.toml:2)"), "{}", failure.message);
            Some(failure.code)
        };
        let got = (code(policy.may_prompt()), code(policy.may_spawn(false)), code(policy.may_spawn(true)));
        assert_eq!(got, (prompt, spawn, spawn_with_prompt), "{text:?}");
    }
}

/// The configuration file of these tests lies in the root directory, so that no pattern recognizes its path.
#[test]
fn refusals_in_conversations_show_the_key_without_the_files_directory() {
    let [off, one, few] = ["enabled = false", "allowed_agents = [\"goose\"]", "max_concurrent_sessions = 1"]
        .map(|line| effective_policy(&loaded(&format!("[acp]\n{line}\n")), &PolicyScope::default()));
    let spawn = effective_policy(&loaded(""), &scope("discord", "main", "")).may_bind(BindOrigin::Spawn);
    for (failure, want) in [
        (off.may_prompt().unwrap_err(), "acp.enabled = false (g.toml:2)"),
        (one.may_use(&AgentName::parse("demo").unwrap()).unwrap_err(), "(goose; set by g.toml:2)"),
        (few.at_sessions_max(), "acp.max_concurrent_sessions = 1 (g.toml:2)"),
        (spawn.unwrap_err(), "spawn_acp_sessions = false (default)"),
    ] {
        let shown = crate::error_messages::error_message(&failure);
        assert!(shown.contains(want) && !shown.contains("/g.toml"), "{want:?} is not in {shown:?}");
        assert!(!failure.message.contains("(g.toml"), "{}", failure.message);
    }
}

#[test]
fn agent_overrides_backend_preset_and_default() {
    let agent = "[agents.qwen]\neof_ms = 1\ninit_ms = 1001\nqueue_runs_max = 11\npermission = \"deny-all\"\n";
    let backend = "[backends.direct]\neof_ms = 2\nterm_ms = 22\ninit_ms = 1002\nqueue_runs_max = 12\n";
    let general = "[permission]\nmode = \"approve-all\"\n[limits]\nqueue_runs_max = 13\n";
    let mut table = String::new();
    for (text, name) in [
        ([agent, backend, general].concat(), "qwen"),
        ([backend, general].concat(), "qwen"),
        (general.to_owned(), "qwen"),
        (String::new(), "unheard-of"),
    ] {
        let policy = effective_policy(&loaded(&text), &scope("", "", name));
        for setting in ["agent.eof_ms", "agent.term_ms", "agent.init_ms", "queue_runs_max", "permission.mode"]
        {
            table.push_str(&line(&policy, setting));
            table.push('\n');
        }
    }
    insta::assert_snapshot!(table, @r#"
    1 | agents.qwen.eof_ms | /g.toml:2
    22 | backends.direct.term_ms | /g.toml:8
    1001 | agents.qwen.init_ms | /g.toml:3
    11 | agents.qwen.queue_runs_max | /g.toml:4
    "deny-all" | agents.qwen.permission | /g.toml:5
    2 | backends.direct.eof_ms | /g.toml:2
    22 | backends.direct.term_ms | /g.toml:3
    1002 | backends.direct.init_ms | /g.toml:4
    12 | backends.direct.queue_runs_max | /g.toml:5
    "approve-all" | permission.mode | /g.toml:7
    5000 | agents.qwen.eof_ms | table of built-in agents
    3000 | agents.qwen.term_ms | default
    60000 | agents.qwen.init_ms | default
    13 | limits.queue_runs_max | /g.toml:4
    "approve-all" | permission.mode | /g.toml:2
    2000 | agents.unheard-of.eof_ms | default
    3000 | agents.unheard-of.term_ms | default
    60000 | agents.unheard-of.init_ms | default
    16 | limits.queue_runs_max | default
    "ask" | permission.mode | default
    "#);
}

#[test]
fn env_allow_merges_all_levels() {
    let text = "[acp]\nenv_allow = [\"A\", \"B\"]\n[backends.direct]\nenv_allow = [\"C\"]\n[agents.demo]\nenv_allow = [\"A\", \"D\"]\n";
    let policy = effective_policy(&loaded(text), &scope("", "", "demo"));
    assert_eq!(line(&policy, "env_allow"), r#"["A","B","C","D"] | agents.demo.env_allow | /g.toml:6"#);
    let note = "merged from: agents.demo.env_allow, backends.direct.env_allow, acp.env_allow";
    assert_eq!(policy.env_allow.note.as_deref(), Some(note));
    assert_eq!(effective_policy(&loaded(text), &scope("", "", "goose")).env_allow.value, ["A", "B", "C"]);
    let unset = effective_policy(&loaded(""), &PolicyScope::default());
    assert_eq!(line(&unset, "env_allow"), "[] | acp.env_allow | default");
}

#[test]
fn account_session_limit_overrides_general_limit() {
    let general = "[acp]\nmax_concurrent_sessions = 8\nmax_concurrent_sessions_per_account = 4\n";
    let own = "[channels.discord.accounts.main]\nmax_concurrent_sessions = 9\n[channels.discord.accounts.free]\nmax_concurrent_sessions = 0\n";
    let text = [general, own].concat();
    for (text, channel, account, want) in [
        ("", "discord", "main", "null | acp.max_concurrent_sessions_per_account | default"),
        (general, "discord", "main", "4 | acp.max_concurrent_sessions_per_account | /g.toml:3"),
        (&text, "console", "main", "4 | acp.max_concurrent_sessions_per_account | /g.toml:3"),
        (&text, "discord", "main", "9 | channels.discord.accounts.main.max_concurrent_sessions | /g.toml:5"),
        (
            &text,
            "discord",
            "free",
            "null | channels.discord.accounts.free.max_concurrent_sessions | /g.toml:7",
        ),
    ] {
        let policy = effective_policy(&loaded(text), &scope(channel, account, ""));
        assert_eq!(line(&policy, "account_sessions_max"), want, "{channel} {account}");
    }
    let note = effective_policy(&loaded(&text), &scope("discord", "main", "")).account_sessions_max.note;
    assert_eq!(note.unwrap(), "acp.max_concurrent_sessions = 8 (/g.toml:2) is reached first");
}

#[test]
fn live_mode_adjustments_are_noted() {
    let live = "[acp.stream]\ndelivery_mode = \"live\"\n";
    let raised = Some("350 set; the minimum in live mode is 750");
    let newline = format!("{live}hidden_boundary_separator = \"newline\"\n");
    for (text, idle_ms, note, separator) in [
        (String::new(), 350, None, Separator::Paragraph),
        (live.to_owned(), 750, raised, Separator::Space),
        (format!("{live}coalesce_idle_ms = 800\n"), 800, None, Separator::Space),
        (newline, 750, raised, Separator::Newline),
    ] {
        let stream = effective_policy(&loaded(&text), &PolicyScope::default()).stream;
        let got = (stream.coalesce_idle_ms.value, stream.coalesce_idle_ms.note.as_deref());
        assert_eq!(got, (idle_ms, note), "{text}");
        assert_eq!(stream.hidden_boundary_separator.value, separator, "{text}");
    }
}

#[test]
fn tag_visibility_is_per_tag() {
    let text = "[acp.stream.tag_visibility]\ntool_call = true\nof_my_own = false\n";
    let tags = effective_policy(&loaded(text), &PolicyScope::default()).stream.tag_visibility;
    let seen = ["tool_call", "of_my_own", "agent_message_chunk", "plan", "unheard_of"]
        .map(|tag| tags.value.get(tag).copied());
    assert_eq!(seen, [Some(true), Some(false), Some(true), Some(false), None]);
    let source = Source::File { path: "/g.toml".into(), line: 3 };
    assert_eq!(tags.source, source, "source of the first tag by name");
}

/// Every value is listed with its key, and a configured one with its source.
#[test]
fn effective_values_are_listed_with_their_key() {
    let rows = list_settings(&effective_policy(&loaded(""), &scope("discord", "main", "demo"))).unwrap();
    assert!(rows.len() > 35, "{}", rows.len());
    for row in &rows {
        assert!(row.key.contains('.'), "{row:?}");
        assert!(["default", "table of built-in agents"].contains(&row.source.as_str()), "{row:?}");
    }
}

proptest! {
    /// The effective timeout is the minimum of the configured ones, with the key of that one.
    #[test]
    fn effective_ttl_is_the_minimum_of_configured_ones(
        session in prop::option::of(0_u64..3_000),
        binding in prop::option::of(0_u64..50),
        runtime in prop::option::of(0_u64..3_000),
        at_account in any::<bool>(),
    ) {
        let minutes = |at: &str, value: Option<u64>| {
            value.map(|value| format!("[{at}]\nttl_minutes = {value}\n")).unwrap_or_default()
        };
        let level = if at_account { "channels.discord.accounts.main" } else { "channels.discord" };
        let window = binding
            .map(|hours| format!("[{level}.thread_bindings]\nidle_hours = {hours}\n"))
            .unwrap_or_default();
        let text = format!("{}{}{window}", minutes("session", session), minutes("acp.runtime", runtime));
        let ttl = effective_policy(&loaded(&text), &scope("discord", "main", "")).ttl.effective_ms;
        let is_set = |value: Option<u64>| value.filter(|value| *value > 0);
        let want = [
            is_set(session).map(|minutes| (minutes * 60_000, "session.ttl_minutes".to_owned())),
            is_set(Some(binding.unwrap_or(24))).map(|hours| {
                let key = if binding.is_some() { format!("{level}.thread_bindings") } else { "session.thread_bindings".to_owned() };
                (hours * HOUR_MS, format!("{key}.idle_hours"))
            }),
            is_set(Some(runtime.unwrap_or(30))).map(|minutes| (minutes * 60_000, "acp.runtime.ttl_minutes".to_owned())),
        ];
        match want.into_iter().flatten().min_by_key(|(ms, _)| *ms) {
            None => prop_assert_eq!(ttl.value, None),
            Some((ms, key)) => prop_assert_eq!((ttl.value, ttl.key), (Some(ms), key)),
        }
    }
}
