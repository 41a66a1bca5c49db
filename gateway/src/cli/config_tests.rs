//! Every configuration key has an effect or is documented as unused. A key of the schema without a row fails,
//! and so does a row without an effect.
#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

#[path = "config_rendering_tests.rs"]
mod rendering;

use super::ConfigArgs;
use crate::app;
use crate::cli::serve::supervisor_of;
use crate::config::LiveConfig;
use crate::conversation::bindings;
use crate::ops::retention;
use crate::runtime::agents::Agents;
use crate::runtime::local_lookup;
use crate::runtime::profiles::Profiles;
use crate::tests::session_row;
use acp_core::config::load::{Inputs, LoadedConfig, load};
use acp_core::config::source::{Shape, schema};
use acp_core::failure::Failure;
use acp_core::mcp;
use acp_core::policy::{BindOrigin, EffectivePolicy, PolicyScope, effective_policy};
use acp_core::rows::ConversationRef;
use acp_core::runtime::acpx::AcpxRuntime;
use acp_core::runtime::direct::DirectRuntime;
use acp_core::runtime::{BackendHealth, Registry, Runtime as _};
use acp_core::static_binding::{StaticSessionSpec, find_entry, first_key};
use acp_core::visibility::AgentRequester;
use acp_shared::codes::Code;
use acp_shared::ids::{AgentName, SessionKey};
use rendering::{cards, files, final_texts};
use serde_json::json;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

/// Evidence that a key has an effect: state derived from the configuration, which differs if the key alone differs.
#[derive(Clone, Copy)]
struct Seen(fn(&LoadedConfig) -> String);

/// Keys (`*` is a name, `{a,b}` each of its parts), a value that differs from [`BASE`], and the proof.
type Row = (&'static str, &'static str, Seen);

const BASE: &str = "[agents.mine]\ncommand = [\"/bin/sh\", \"-c\", \"true\"]\n";
const PROJECT: &str = "[channels.discord.accounts.main]\n[channels.discord.accounts.second]\n\
    [[channels.discord.projects]]\nchannel = \"1\"\naccount = \"main\"\n";
const BOUND: &str =
    "[[bindings]]\nchannel = \"console\"\naccount = \"main\"\nconversation = \"c\"\nagent = \"mine\"\n";
const MANAGER: &str = "gateway/src/session/manager_tests.rs";
const CARDS: &str = "gateway/src/conversation/delivery/tests/live.rs";
const PROJECTION: &str = "gateway/core/src/render/tests/projection.rs";
const FILES: &str = "gateway/core/src/render/tests/files.rs";
const SETTINGS: &str = "gateway/src/channel/discord/settings.rs";
const LIFECYCLE: &str = "tests/tests/lives.rs";
const AUTHORITY: &str = "gateway/src/cli/hosts/authority/tests.rs";
const SHARED: &str = "tests/tests/hosts/shared.rs";
const HOSTS: &str = "tests/tests/hosts/gateway.rs";
const PROJECTS: &str = "tests/tests/discord/projects.rs";
const BINDINGS: &str = "tests/tests/bindings.rs";
const GROUPS: &str = "gateway/store/src/tests/groups.rs";
const OPENING: &str = "gateway/store/src/tests/opening.rs";
const CELL: &str = "gateway/src/app/store.rs";
const POSTGRES: &str = "tests/tests/postgres/gateway/foreign.rs";
const LOADING: &str = "gateway/core/src/config/tests.rs";
const THIS_FILE: &str = "gateway/src/cli/config_tests.rs";
const METRICS: &str = "tests/tests/metrics.rs";
const NOTIFY: &str = "gateway/src/ops/notify/tests.rs";
const NOTIFY_KEYS: &str = "gateway/core/src/config/notify.rs";
const RELOAD: &str = "tests/tests/reload.rs";
const NETWORK: &str = "gateway/src/api/tests/network.rs";
const ENCRYPTED: &str = "gateway/src/api/tests/encrypted.rs";
const HOSTILE: &str = "gateway/src/api/tests/hostile.rs";
const NORTHBOUND: &str = "gateway/core/src/config/northbound.rs";
const ACP_HTTP: &str = "tests/tests/northbound/http.rs";
const SESSION_TOOLS: &str = "tests/tests/session_tools/main.rs";
const PROGRAMS: &str = "tests/tests/acpx_backend/programs.rs";
const ACP_RESUME: &str = "tests/tests/northbound/resume.rs";

fn mine() -> AgentName {
    AgentName::parse("mine").unwrap()
}

fn agents(loaded: &LoadedConfig) -> Agents {
    let env = [("HOME", "/"), ("PATH", "/usr/bin:/bin"), ("SECRET", "s")];
    let env = env.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
    Agents::new(LiveConfig::new(loaded.clone()), env, Path::new("/bin/sh"), Path::new("/"))
}

fn profile(loaded: &LoadedConfig) -> String {
    let agents = agents(loaded);
    let found = local_lookup::look_up(&agents.lookup(&mine(), None, &[]));
    format!("{:?}", agents.profile(&mine(), &found))
}

fn servers(loaded: &LoadedConfig) -> String {
    let profile = agents(loaded).configured(&mine()).unwrap();
    json!(profile.mcp_servers.iter().map(mcp::server_param).collect::<Vec<_>>()).to_string()
}

fn cwd(loaded: &LoadedConfig) -> String {
    let agents = agents(loaded);
    let found = local_lookup::look_up(&agents.lookup(&mine(), None, &[]));
    format!("{:?}", agents.cwd(&mine(), None, &found))
}

fn command(loaded: &LoadedConfig) -> String {
    format!("{:?}", agents(loaded).of_command(&mine(), &["/bin/true".to_owned()], None))
}

fn default_agent(loaded: &LoadedConfig) -> String {
    format!("{:?}", agents(loaded).default_agent())
}

fn limits(loaded: &LoadedConfig) -> String {
    format!("{:?}", LiveConfig::new(loaded.clone()).limits(&mine()))
}

fn windows(loaded: &LoadedConfig) -> String {
    format!("{:?}", LiveConfig::new(loaded.clone()).windows())
}

fn api(loaded: &LoadedConfig) -> String {
    format!("{:?}", app::api_limits(&loaded.config))
}

fn commits(loaded: &LoadedConfig) -> String {
    format!("{:?} {:?}", loaded.config.acp.control_plane.durability, app::group_bounds(&loaded.config))
}

fn answers(loaded: &LoadedConfig) -> String {
    retention::results_expire_before(&LiveConfig::new(loaded.clone()), 1 << 40).to_string()
}

fn pruned(loaded: &LoadedConfig) -> String {
    // Turns are kept only while rows are pruned.
    let mut config = loaded.config.clone();
    let days = format!("{:?}", retention::prune_rule(&config, 1 << 40).map(|rule| rule.policy.before_ms));
    config.journal.retention_days = 1;
    let turns = retention::prune_rule(&config, 1 << 40).map(|rule| rule.policy.keep_turns);
    format!("{days} {turns:?}")
}

fn supervisor(loaded: &LoadedConfig) -> String {
    format!("{:?}", supervisor_of(&loaded.config, Path::new("/state")))
}

fn policy(loaded: &LoadedConfig, channel: &str) -> EffectivePolicy {
    let scope = PolicyScope {
        channel: Some(channel.to_owned()),
        account: Some("main".to_owned()),
        agent: Some(mine()),
    };
    effective_policy(loaded, &scope)
}

fn decisions(loaded: &LoadedConfig, channel: &str) -> String {
    let policy = policy(loaded, channel);
    let binds =
        [BindOrigin::Focus, BindOrigin::Spawn, BindOrigin::AgentSpawn].map(|who| policy.may_bind(who));
    format!("{:?} {binds:?}", policy.may_prompt())
}

fn console(loaded: &LoadedConfig) -> String {
    decisions(loaded, "console")
}

/// What the agent sees of other sessions, as configured and in a sandbox.
fn sight(loaded: &LoadedConfig) -> String {
    let mut config = loaded.config.clone();
    let instance = session_row(&SessionKey::parse("s").unwrap()).gateway_instance_id;
    let configured = AgentRequester::of_agent(mine(), instance, &config);
    config.agents.get_mut(&mine()).unwrap().sandboxed = true;
    format!("{configured:?} {:?}", AgentRequester::of_agent(mine(), instance, &config))
}

fn personas(loaded: &LoadedConfig) -> String {
    let discord = &loaded.config.channels.discord;
    format!("{} {}", discord.personas_of("main"), discord.personas_of("another"))
}

fn project(loaded: &LoadedConfig) -> String {
    let at = ConversationRef::new("discord", "main", "1");
    format!("{:?}", loaded.config.channels.discord.project_of(&at))
}

fn discord(loaded: &LoadedConfig) -> String {
    decisions(loaded, "discord")
}

fn removes_stale(loaded: &LoadedConfig) -> String {
    ["console", "discord"].map(|channel| policy(loaded, channel).may_unbind_stale().to_string()).join(" ")
}

fn caps(loaded: &LoadedConfig) -> String {
    let policy = policy(loaded, "discord");
    format!("{:?} {:?}", policy.at_sessions_max(), policy.account_sessions_max)
}

fn console_caps(loaded: &LoadedConfig) -> String {
    format!("{:?}", policy(loaded, "console").account_sessions_max)
}

fn backend(loaded: &LoadedConfig) -> String {
    let registry = Registry::default();
    registry.register(Arc::new(DirectRuntime::default()));
    let policy = policy(loaded, "console");
    let found = registry.require(&policy.backend.value).map(|runtime| runtime.id());
    format!("{found:?} {}", policy.explain_missing_backend(Failure::of(Code::BackendMissing)))
}

/// Profile of an agent behind acpx, if the backend is registered.
fn acpx(loaded: &LoadedConfig) -> String {
    let settings = loaded.config.backends.acpx.clone();
    let (is_enabled, copy) = (settings.enabled, settings.clone());
    let health = BackendHealth { ok: true, details: String::new() };
    let runtime =
        AcpxRuntime::new("/bridge".to_owned(), move || copy.clone(), |_| None, move || health.clone());
    let found = runtime.programs().into_iter().map(|name| (name.clone(), format!("/found/{name}"))).collect();
    let profile = agents(loaded).configured(&mine()).unwrap();
    let key = SessionKey::parse("agent:mine:acp:1").unwrap();
    let launched = runtime.launch(profile, &session_row(&key), &found);
    format!("{is_enabled} {launched:?}")
}

fn configured(loaded: &LoadedConfig) -> String {
    let at = ConversationRef::new("console", "main", "c");
    let Some(found) = find_entry(&loaded.config.bindings, &at) else { return "nothing".to_owned() };
    let spec = StaticSessionSpec::of(found.entry).unwrap();
    let key = first_key(&spec.agent, "console", "main", "c").unwrap();
    format!("{:?}", bindings::static_bindings::request(&at, found.entry.clone(), key, spec.metadata(None)))
}

const ROWS: &[Row] = &[
    ("acp.{enabled,dispatch.enabled}", "false", Seen(console)),
    ("acp.backend", "\"acpx\"", Seen(backend)),
    ("acp.default_agent", "\"mine\"", Seen(default_agent)),
    ("acp.allowed_agents", "[\"demo\"]", Seen(profile)),
    ("acp.default_cwd", "\"/usr\"", Seen(cwd)),
    ("{acp.workspace_roots,agents.*.cwd_roots}", "[\"/usr\"]", Seen(cwd)),
    ("{acp,agents.*}.env_allow", "[\"SECRET\"]", Seen(profile)),
    ("{acp,agents.*}.additional_directories", "[\"/usr\"]", Seen(profile)),
    ("acp.max_concurrent_sessions{,_per_account}", "3", Seen(caps)),
    ("acp.stream.coalesce_idle_ms", "1", Seen(cards)),
    ("acp.stream.hidden_boundary_separator", "\"none\"", Seen(final_texts)),
    ("acp.stream.{max_chunk_chars,max_output_chars,max_session_update_chars}", "100", Seen(final_texts)),
    ("acp.stream.{max_chunk_chars,min_interval_ms}", "100", Seen(cards)),
    ("acp.stream.repeat_suppression", "false", Seen(final_texts)),
    ("acp.stream.tag_visibility", "{ plan = true }", Seen(final_texts)),
    ("acp.runtime.ttl_minutes", "1", Seen(limits)),
    ("acp.runtime.install_command", "\"make\"", Seen(backend)),
    ("acp.control_plane.durability", "\"normal\"", Seen(commits)),
    ("acp.control_plane.recovery.reconcile_running_after_ms", "1000", Seen(limits)),
    ("acp.control_plane.checkpoint.flush_every_{events,ms}", "1", Seen(commits)),
    ("acp.idempotency.ttl_hours", "1", Seen(answers)),
    ("journal.{retention_days,keep_turns}", "1", Seen(pruned)),
    ("session.ttl_minutes", "1", Seen(windows)),
    (
        "{session,channels.console,channels.console.accounts.*}.thread_bindings.enabled",
        "false",
        Seen(console),
    ),
    (
        "{session,channels.console,channels.console.accounts.*}.thread_bindings.{idle_hours,max_age_hours}",
        "1",
        Seen(console),
    ),
    ("session.thread_bindings.auto_unbind_stale", "true", Seen(removes_stale)),
    (
        "channels.{console,discord}.{,accounts.*.}thread_bindings.auto_unbind_stale",
        "true",
        Seen(removes_stale),
    ),
    ("channels.console.{,accounts.*.}thread_bindings.spawn_acp_sessions", "false", Seen(console)),
    ("channels.console.{,accounts.*.}thread_bindings.spawn_subagent_sessions", "false", Seen(console)),
    ("channels.console.accounts.*.max_concurrent_sessions", "1", Seen(console_caps)),
    ("channels.discord.{,accounts.*.}thread_bindings.enabled", "false", Seen(discord)),
    ("channels.discord.{,accounts.*.}thread_bindings.{idle_hours,max_age_hours}", "1", Seen(discord)),
    ("channels.discord.{,accounts.*.}thread_bindings.spawn_acp_sessions", "true", Seen(discord)),
    ("channels.discord.{,accounts.*.}thread_bindings.spawn_subagent_sessions", "true", Seen(discord)),
    ("channels.discord.accounts.*.max_concurrent_sessions", "1", Seen(caps)),
    ("channels.discord.{,accounts.*.}files.long_final_parts", "1", Seen(files)),
    ("channels.discord.{,accounts.*.}files.bytes_max", "65536", Seen(files)),
    ("channels.discord.{,accounts.*.}files.turn_diff", "false", Seen(files)),
    ("channels.discord.{,accounts.*.}personas", "true", Seen(personas)),
    ("channels.discord.projects.*.channel", "\"2\"", Seen(project)),
    ("channels.discord.projects.*.account", "\"second\"", Seen(project)),
    ("channels.discord.projects.*.agent", "\"demo\"", Seen(project)),
    ("channels.discord.projects.*.cwd", "\"/usr\"", Seen(project)),
    ("channels.discord.projects.*.permission", "\"deny-all\"", Seen(project)),
    ("channels.discord.projects.*.require_mention", "true", Seen(project)),
    ("bindings.*.channel", "\"party\"", Seen(configured)),
    ("bindings.*.account", "\"second\"", Seen(configured)),
    ("bindings.*.conversation", "\"d\"", Seen(configured)),
    ("bindings.*.agent", "\"demo\"", Seen(configured)),
    ("bindings.*.label", "\"front\"", Seen(configured)),
    ("bindings.*.mode", "\"oneshot\"", Seen(configured)),
    ("bindings.*.cwd", "\"/usr\"", Seen(configured)),
    ("bindings.*.backend", "\"acpx\"", Seen(configured)),
    ("bindings.*.permission", "\"deny-all\"", Seen(configured)),
    ("bindings.*.non_interactive_permissions", "\"fail\"", Seen(configured)),
    ("backends.direct.env_allow", "[\"SEC*\"]", Seen(profile)),
    ("acpx.allow_commands", "true", Seen(command)),
    ("backends.acpx.enabled", "false", Seen(acpx)),
    ("backends.acpx.command", "[\"node\", \"acpx.js\"]", Seen(acpx)),
    ("backends.acpx.{init_ms,eof_ms}", "300000", Seen(acpx)),
    ("agents.*.backend", "\"acpx\"", Seen(backend)),
    ("{backends.direct,agents.*}.{init_ms,eof_ms,term_ms,kill_ms}", "1234", Seen(profile)),
    ("{backends.direct,agents.*,limits}.queue_runs_max", "2", Seen(limits)),
    ("agents.*.command", "[\"/bin/true\"]", Seen(profile)),
    ("agents.*.env", "{ K = \"v\" }", Seen(profile)),
    ("{agents.*.permission,permission.mode}", "\"deny-all\"", Seen(profile)),
    ("{agents.*,permission}.non_interactive_permissions", "\"fail\"", Seen(profile)),
    ("agents.*.mode", "\"plan\"", Seen(profile)),
    ("agents.*.asks", "true", Seen(profile)),
    ("agents.*.auth_method", "\"key\"", Seen(profile)),
    ("{tools.sessions.visibility,sandbox.session_visibility}", "\"self\"", Seen(sight)),
    ("{agents.*.sandboxed,tools.agent_to_agent.enabled,tools.agent_to_agent.send}", "true", Seen(sight)),
    ("tools.agent_to_agent.allow", "[\"*\"]", Seen(sight)),
    ("agents.*.session_tools", "true", Seen(profile)),
    ("agents.*.config", "{ model = \"m\" }", Seen(profile)),
    ("agents.*.client_fs", "\"read\"", Seen(profile)),
    ("{agents.*.,}mcp_servers.*.{name,command}", "\"other\"", Seen(servers)),
    ("{agents.*.,}mcp_servers.*.type", "\"sse\"", Seen(servers)),
    ("{agents.*.,}mcp_servers.*.args", "[\"-v\"]", Seen(servers)),
    ("{agents.*.,}mcp_servers.*.{env,headers}", "{ K = \"v\" }", Seen(servers)),
    ("{agents.*.,}mcp_servers.*.url", "\"http://other\"", Seen(servers)),
    ("permission.timeout_ms", "1", Seen(limits)),
    ("limits.prompt_bytes_max", "2048", Seen(api)),
    ("limits.prompt_bytes_max", "2048", Seen(limits)),
    ("limits.{turn_ms,turn_silent_ms,cancel_stuck_ms}", "1234", Seen(limits)),
    ("limits.connections_max", "5", Seen(api)),
    ("supervisor.{socket,secret_file}", "\"/s\"", Seen(supervisor)),
];

/// Keys tested elsewhere: the keys as in [`ROWS`], the file and the test.
const TESTED: &[(&str, &str, &str)] = &[
    ("acp.{enabled,dispatch.enabled}", MANAGER, "policy_switches_apply_at_once"),
    ("acp.max_concurrent_sessions", MANAGER, "session_limit_holds_for_concurrent_spawns_and_after_restart"),
    ("acp.max_concurrent_sessions_per_account", MANAGER, "account_has_separate_session_limit"),
    ("acp.stream.delivery_mode", CARDS, "console_has_cards_in_live_mode_only"),
    ("acp.stream.repeat_suppression", PROJECTION, "tool_call_is_shown_at_start_and_end"),
    ("acp.runtime.ttl_minutes", LIFECYCLE, "idle_agent_ends_after_ttl_and_resumes_with_next_prompt"),
    ("acp.control_plane.store", LOADING, "errors_name_line_and_nearest_key"),
    ("acp.control_plane.store_path", THIS_FILE, "custom_database_path_is_refused_with_reason"),
    (
        "acp.control_plane.postgres.{address_file,ca_file,cell}",
        CELL,
        "cell_is_read_from_private_files_that_are_named_in_errors",
    ),
    (
        "acp.control_plane.postgres.allow_loss",
        POSTGRES,
        "server_without_standby_is_refused_unless_its_loss_is_allowed",
    ),
    ("acp.control_plane.durability", OPENING, "durability_sets_synchronous_pragma"),
    (
        "acp.control_plane.recovery.eager_actors",
        MANAGER,
        "start_resumes_configured_number_of_resting_sessions",
    ),
    (
        "acp.control_plane.recovery.reconcile_running_after_ms",
        LIFECYCLE,
        "turn_ends_in_bounded_time_without_supervisor",
    ),
    ("acp.control_plane.checkpoint.flush_every_events", GROUPS, "journal_events_count_towards_group_limit"),
    ("acp.control_plane.checkpoint.flush_every_ms", GROUPS, "commit_group_closes_at_time_limit"),
    ("session.ttl_minutes", LIFECYCLE, "unused_session_is_closed_after_ttl"),
    ("session.thread_bindings.idle_hours", MANAGER, "bindings_get_timeouts_of_their_account"),
    (
        "session.thread_bindings.auto_unbind_stale",
        BINDINGS,
        "stale_binding_is_reported_and_removed_only_if_allowed",
    ),
    ("channels.discord.files.long_final_parts", FILES, "long_answer_is_its_beginning_and_a_file"),
    (
        "channels.discord.accounts.*.token_{file,env}",
        SETTINGS,
        "token_is_read_from_file_or_environment_and_not_shown",
    ),
    ("channels.discord.accounts.*.base_url", SETTINGS, "base_url_selects_another_service"),
    ("channels.discord.accounts.*.shards", SETTINGS, "shards_limit_servers_and_requests"),
    (
        "channels.discord.accounts.*.{guilds,allowed_channels,allowed_users,allowed_roles,approver_users,approver_roles}",
        SETTINGS,
        "users_roles_and_servers_must_be_ids",
    ),
    (
        "channels.discord.projects.*.{channel,agent,cwd,permission}",
        PROJECTS,
        "message_in_project_opens_thread_with_its_own_session",
    ),
    ("channels.discord.projects.*.require_mention", PROJECTS, "only_mentions_open_threads_where_required"),
    (
        "channels.discord.accounts.*.require_mention",
        PROJECTS,
        "account_may_require_mentions_and_be_limited_to_channels",
    ),
    ("bindings.*.cwd", BINDINGS, "static_binding_starts_session_with_first_message"),
    ("bindings.*.backend", MANAGER, "static_session_uses_its_own_backend"),
    ("backends.acpx.versions", PROGRAMS, "configured_versions_are_accepted_and_shown"),
    ("limits.queue_runs_max", MANAGER, "running_session_applies_reloaded_limits"),
    ("limits.turn_ms", LIFECYCLE, "turn_above_configured_limit_is_stopped"),
    (
        "notify.*.{name,url,secret_file,timeout_ms}",
        NOTIFY,
        "events_are_delivered_in_order_after_failures_and_a_restart",
    ),
    ("notify.*.events", NOTIFY, "target_that_is_gone_delays_no_other"),
    ("notify.*.insecure", NOTIFY_KEYS, "http_is_for_loopback_or_insecure_targets"),
    ("northbound.acp", ACP_HTTP, "switched_off_server_does_not_exist"),
    ("northbound.detach_grace_ms", ACP_RESUME, "connection_without_streams_ends_and_its_turn_does_not"),
    ("metrics.listen", METRICS, "metrics_address_serves_metrics_only"),
    ("agents.*.spawn_agents", SESSION_TOOLS, "agent_spawns_another_agent_and_uses_its_answer"),
    ("northbound.agents_socket", SESSION_TOOLS, "socket_can_be_elsewhere"),
    ("northbound.listen", NETWORK, "reload_opens_and_closes_listeners"),
    ("northbound.allowed_hosts", NETWORK, "foreign_host_and_origin_are_refused_on_every_verb"),
    ("northbound.allowed_origins", NETWORK, "pages_of_allowed_origins_may_use_and_read"),
    ("northbound.insecure_plaintext", NORTHBOUND, "listeners_off_loopback_need_tls_or_an_explicit_exception"),
    ("northbound.tls.{cert,key}", ENCRYPTED, "tls_serves_both_protocols_and_no_plain_text"),
    ("northbound.tls.client_ca", ENCRYPTED, "client_certificates_are_required_where_configured"),
    ("northbound.proxy.{socket,uids,header,scope}", HOSTILE, "proxy_names_people_from_its_own_user_only"),
    ("remote.shared_roots", SHARED, "heavy_shared_session_goes_on_elsewhere_after_the_promise"),
    ("remote.ca_key", AUTHORITY, "files_of_the_configuration_are_used"),
    ("remote.{cert,key,ca}", HOSTS, "session_runs_on_a_host_and_survives_the_gateway"),
    (
        "remote.hosts.*.{address,identity,path,default_cwd}",
        HOSTS,
        "session_runs_on_a_host_and_survives_the_gateway",
    ),
    ("remote.hosts.*.labels", HOSTS, "labels_choose_the_host"),
    ("agents.*.host_labels", HOSTS, "labels_choose_the_host"),
    ("supervisor.enabled", HOSTS, "gateway_without_own_supervisor_uses_hosts"),
    ("log.level", RELOAD, "sighup_reloads_configuration"),
    ("log.format", RELOAD, "sighup_reloads_configuration"),
];

fn expand(keys: &str) -> Vec<String> {
    let Some((before, rest)) = keys.split_once('{') else { return vec![keys.to_owned()] };
    let (parts, after) = rest.split_once('}').unwrap();
    parts.split(',').flat_map(|part| expand(&format!("{before}{part}{after}"))).collect()
}

fn read(text: &str) -> LoadedConfig {
    let inputs = Inputs { file: Some((Path::new("/g.toml"), text)), ..Inputs::default() };
    load(inputs).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn base(key: &str) -> String {
    let remote = [".type", ".url", ".headers"].iter().any(|end| key.ends_with(end));
    let server = if remote { "type = \"http\"\nurl = \"http://h\"" } else { "command = \"mcp\"" };
    match key.split_once("mcp_servers.") {
        Some((above, _)) => {
            let above = above.replace('*', "mine");
            format!("{BASE}[[{above}mcp_servers]]\nname = \"first\"\n{server}\n")
        }
        None if key.contains(".projects.") => format!("{BASE}{PROJECT}"),
        None if key.starts_with("bindings.") => format!("{BASE}{BOUND}"),
        None => BASE.to_owned(),
    }
}

fn with(key: &str, value: &str) -> LoadedConfig {
    let mut root: toml::Table = base(key).parse().unwrap();
    let mut set: toml::Table = format!("value = {value}").parse().unwrap();
    let name = if key.starts_with("agents.") { "mine" } else { "main" };
    let key = key.replace("bindings.*", "bindings").replace("mcp_servers.*", "mcp_servers");
    let key = key.replace("projects.*", "projects");
    let path: Vec<&str> = key.split('.').map(|segment| if segment == "*" { name } else { segment }).collect();
    let (last, above) = path.split_last().unwrap();
    let mut table = &mut root;
    for segment in above {
        let entry = table.entry(*segment).or_insert_with(|| toml::Value::Table(toml::Table::new()));
        table = match entry {
            toml::Value::Array(list) => list[0].as_table_mut().unwrap(),
            section => section.as_table_mut().unwrap(),
        };
    }
    table.insert((*last).to_owned(), set.remove("value").unwrap());
    read(&toml::to_string(&root).unwrap())
}

/// Collects all keys of the schema, names as `*`.
fn keys(shape: &Shape, path: &mut Vec<String>, found: &mut BTreeSet<String>) {
    let mut inner = |name: &str, shape: &Shape, found: &mut BTreeSet<String>| {
        path.push(name.to_owned());
        keys(shape, path, found);
        path.pop();
    };
    match shape {
        Shape::Section(section) => section.iter().for_each(|(name, shape)| inner(name, shape, found)),
        Shape::Named(each) | Shape::List(each) => inner("*", each, found),
        Shape::Leaf(_) => {
            found.insert(path.join("."));
        }
    }
}

#[test]
fn every_key_has_an_effect() {
    let mut wanted = BTreeSet::new();
    keys(&schema().unwrap(), &mut Vec::new(), &mut wanted);
    assert!(wanted.len() > 70, "{}", wanted.len());
    let keys = ROWS.iter().map(|row| row.0).chain(TESTED.iter().map(|row| row.0));
    let shown: BTreeSet<String> = keys.flat_map(expand).collect();
    let missing: Vec<&String> = wanted.difference(&shown).collect();
    assert!(missing.is_empty(), "keys without a row in ROWS: {missing:?}");
    let unknown: Vec<&String> = shown.difference(&wanted).collect();
    assert!(unknown.is_empty(), "rows in ROWS without a key: {unknown:?}");

    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    for (keys, file, name) in TESTED {
        let text = std::fs::read_to_string(root.join(file)).unwrap();
        assert!(text.contains(&format!("fn {name}()")), "{keys}: there is no test {name} in {file}");
    }
    let rows = ROWS.iter().flat_map(|row| expand(row.0).into_iter().map(move |key| (key, row.1, row.2)));
    for (key, value, proof) in rows {
        let (base, changed) = (read(&base(&key)), with(&key, value));
        let Seen(derive) = proof;
        assert_ne!(derive(&base), derive(&changed), "{key} = {value} changes nothing");
    }
}

#[test]
fn custom_database_path_is_refused_with_reason() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("gateway.toml");
    let args = ConfigArgs { config: Some(file.clone()) };
    let set = |path: &Path| {
        std::fs::write(&file, format!("[acp.control_plane]\nstore_path = \"{}\"\n", path.display())).unwrap();
        super::read(dir.path(), &args, None)
    };
    assert!(set(&dir.path().join("gateway.db")).is_ok(), "the actual path is accepted");
    let refused = set(&dir.path().join("elsewhere.db")).unwrap_err();
    assert_eq!(refused.code, Code::ConfigInvalid);
    for want in
        ["gateway.toml:2", "acp.control_plane.store_path", "elsewhere.db", "gateway.db", "--state-dir"]
    {
        assert!(refused.message.contains(want), "{want:?} is not in {:?}", refused.message);
    }
}
