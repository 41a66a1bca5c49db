//! Checks beyond types: bounds of numbers and consistency between values.

use super::channels::{FilesConfig, Project, ThreadBindings};
use super::{
    AcpxBackend, AgentConfig, Backend, Channels, Config, ControlPlane, PostgresStore, StoreKind, bindings,
    mcp, northbound, notify, remote,
};
use crate::shards::ShardRange;
use std::ops::RangeInclusive;
use std::path::Path;

/// Maximum of duration settings: 7 days.
const LONG_MS: u64 = 7 * 24 * 3_600_000;
/// Maximum timeout of a binding: a year.
const LONG_HOURS: u64 = 24 * 365;
/// Bounds of settings of agents and backends.
const GRACE_MS: RangeInclusive<u64> = 0..=600_000;
const KILL_MS: RangeInclusive<u64> = 100..=600_000;
const INIT_MS: RangeInclusive<u64> = 1_000..=3_600_000;
const QUEUE_RUNS: RangeInclusive<u64> = 1..=1_000;
/// Bounds of file attachments: more messages are not readable, and Discord does not accept larger files.
const LONG_PARTS: RangeInclusive<u64> = 0..=100;
const FILE_BYTES: RangeInclusive<u64> = 64 * 1024..=10 * 1024 * 1024;

/// Environment variables that identify the gateway's processes; set by the supervisor.
pub const RESERVED_ENV: [&str; 2] = ["OPENCLAW_ACPX_LEASE_ID", "OPENCLAW_GATEWAY_INSTANCE_ID"];

pub(super) type KeyProblems = Vec<(Vec<String>, String)>;

pub(super) fn key(path: &str) -> Vec<String> {
    path.split('.').map(str::to_owned).collect()
}

/// Returns all mistakes, as key and message.
pub fn check(config: &Config) -> KeyProblems {
    let mut found = KeyProblems::new();
    for (path, value, min, max) in numbers(config) {
        bounded(&mut found, key(path), value, min..=max);
    }
    let acp = &config.acp;
    if let Some(agent) = &acp.default_agent
        && !acp.allowed_agents.is_empty()
        && !acp.allowed_agents.contains(agent)
    {
        found.push((key("acp.default_agent"), format!("{agent} is not in acp.allowed_agents")));
    }
    if acp.backend.is_empty() {
        found.push((key("acp.backend"), "must not be empty".to_owned()));
    }
    for (path, value) in [
        ("acp.default_cwd", &acp.default_cwd),
        ("acp.control_plane.store_path", &acp.control_plane.store_path),
        ("acp.control_plane.postgres.address_file", &acp.control_plane.postgres.address_file),
        ("acp.control_plane.postgres.ca_file", &acp.control_plane.postgres.ca_file),
        ("supervisor.socket", &config.supervisor.socket),
        ("supervisor.secret_file", &config.supervisor.secret_file),
    ] {
        absolute(&mut found, key(path), value.as_deref());
    }
    if config.metrics.listen.is_some_and(|at| !at.ip().is_loopback()) {
        let text = "must be a loopback address, such as 127.0.0.1:9464: scrapes are not authenticated";
        found.push((key("metrics.listen"), text.to_owned()));
    }
    if let Err(e) = tracing_subscriber::EnvFilter::try_new(&config.log.level) {
        found.push((key("log.level"), e.to_string()));
    }
    for root in &acp.workspace_roots {
        absolute(&mut found, key("acp.workspace_roots"), Some(root));
    }
    for dir in &acp.additional_directories {
        absolute(&mut found, key("acp.additional_directories"), Some(dir));
    }
    allow_list(&mut found, key("acp.env_allow"), &acp.env_allow);
    check_store(&mut found, &acp.control_plane);
    check_stream(&mut found, config);
    check_backend(&mut found, config);
    bindings::check(&mut found, config);
    mcp::check(&mut found, config);
    northbound::check(&mut found, config);
    notify::check(&mut found, config);
    remote::check(&mut found, config);
    for name in Channels::NAMES {
        if let Some(channel) = config.channels.get(name) {
            check_bindings(&mut found, &["channels", name], channel.thread_bindings);
            for (id, sessions_max, bindings) in channel.accounts {
                check_account(&mut found, &["channels", name, "accounts", id], sessions_max, bindings);
            }
        }
    }
    check_files(&mut found, &["channels", "discord"], &config.channels.discord.files);
    check_projects(&mut found, config);
    for (id, account) in &config.channels.discord.accounts {
        check_files(&mut found, &["channels", "discord", "accounts", id], &account.files);
        if let Some(problem) = account.shards.and_then(|shards| shards_problem(&shards, &acp.control_plane)) {
            found.push((owned(&["channels", "discord", "accounts", id], &["shards"]), problem));
        }
    }
    for (name, agent) in &config.agents {
        check_agent(&mut found, &["agents".to_owned(), name.to_string()], agent);
    }
    found
}

pub(super) fn owned(above: &[&str], rest: &[&str]) -> Vec<String> {
    above.iter().chain(rest).map(|&segment| segment.to_owned()).collect()
}

fn optional(found: &mut KeyProblems, key: Vec<String>, value: Option<u64>, bounds: RangeInclusive<u64>) {
    if let Some(value) = value {
        bounded(found, key, value, bounds);
    }
}

fn check_account(
    found: &mut KeyProblems,
    above: &[&str],
    sessions_max: Option<u64>,
    bindings: &ThreadBindings,
) {
    if above.last().is_some_and(|id| id.is_empty()) {
        found.push((owned(above, &[]), "the name of an account must not be empty".to_owned()));
    }
    optional(found, owned(above, &["max_concurrent_sessions"]), sessions_max, 0..=10_000);
    check_bindings(found, above, bindings);
}

fn check_bindings(found: &mut KeyProblems, above: &[&str], bindings: &ThreadBindings) {
    for (name, value) in [("idle_hours", bindings.idle_hours), ("max_age_hours", bindings.max_age_hours)] {
        optional(found, owned(above, &["thread_bindings", name]), value, 0..=LONG_HOURS);
    }
}

fn check_files(found: &mut KeyProblems, above: &[&str], files: &FilesConfig) {
    for (name, value, bounds) in
        [("long_final_parts", files.long_final_parts, LONG_PARTS), ("bytes_max", files.bytes_max, FILE_BYTES)]
    {
        optional(found, owned(above, &["files", name]), value, bounds);
    }
}

/// Returns the error message of a range of shards. A part of the shards needs PostgreSQL, where the gateways of an application
/// coordinate IDENTIFY.
fn shards_problem(shards: &ShardRange, plane: &ControlPlane) -> Option<String> {
    let needs_plane = !shards.is_whole() && plane.store != StoreKind::Postgres;
    shards.problem().or_else(|| {
        needs_plane.then(|| {
            format!(
                "{shards} are a part: the gateways with the other shards coordinate IDENTIFY with this one in PostgreSQL. \
                 Set acp.control_plane.store = \"postgres\", or remove the key to serve all shards"
            )
        })
    })
}

/// Checks `[[channels.discord.projects]]`: one entry a channel, one bot an entry, and no static binding of the
/// same channel.
fn check_projects(found: &mut KeyProblems, config: &Config) {
    let discord = &config.channels.discord;
    for (number, project) in discord.projects.iter().enumerate() {
        let index = number.to_string();
        let at = |key: &str| owned(&["channels", "discord", "projects", &index], &[key]);
        if project.channel.is_empty() || !project.channel.bytes().all(|c| c.is_ascii_digit()) {
            let text = format!(
                "{:?} is not an id: right-click the channel in Discord, Copy Channel ID",
                project.channel
            );
            found.push((at("channel"), text));
        }
        let is_same = |it: &Project| it.channel == project.channel;
        if let Some(other) = discord.projects.iter().take(number).position(is_same) {
            let text =
                format!("channels.discord.projects.{other} is for the same channel: remove one of them");
            found.push((at("channel"), text));
        }
        let is_bound = |it: &bindings::Binding| it.channel == "discord" && it.conversation == project.channel;
        if let Some(other) = config.bindings.iter().position(is_bound) {
            let text = format!(
                "bindings.{other} binds the same channel to one session, and a project opens a session for each \
                 message: remove one of them"
            );
            found.push((at("channel"), text));
        }
        match &project.account {
            Some(name) if !discord.accounts.contains_key(name) => {
                found.push((at("account"), format!("there is no [channels.discord.accounts.{name}]")));
            }
            None if discord.accounts.len() > 1 => {
                let names: Vec<&str> = discord.accounts.keys().map(String::as_str).collect();
                let text = format!("is required with several accounts: one of {}", names.join(", "));
                found.push((at("account"), text));
            }
            Some(_) | None => {}
        }
        if let Some(agent) = &project.agent
            && !config.acp.allowed_agents.is_empty()
            && !config.acp.allowed_agents.contains(agent)
        {
            found.push((at("agent"), format!("{agent} is not in acp.allowed_agents")));
        }
        absolute(found, at("cwd"), project.cwd.as_deref());
    }
}

fn check_stream(found: &mut KeyProblems, config: &Config) {
    for kind in config.acp.stream.tag_visibility.keys() {
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        if kind.is_empty() || !kind.chars().all(plain) {
            let message = "must be a kind of update in lower case, such as agent_message_chunk".to_owned();
            found.push((owned(&["acp", "stream", "tag_visibility", kind], &[]), message));
        }
    }
}

fn check_backend(found: &mut KeyProblems, config: &Config) {
    let direct = &config.backends.direct;
    let at = |name: &str| owned(&["backends", "direct"], &[name]);
    allow_list(found, at("env_allow"), &direct.env_allow);
    let Backend { init_ms, eof_ms, term_ms, kill_ms, queue_runs_max, .. } = *direct;
    check_limits(found, at, [init_ms, eof_ms, term_ms, kill_ms, queue_runs_max]);
    let AcpxBackend { command, versions, init_ms, eof_ms, .. } = &config.backends.acpx;
    let at = |name: &str| owned(&["backends", "acpx"], &[name]);
    if command.iter().any(String::is_empty) || command.is_empty() {
        found.push((at("command"), "must name a program; its words must not be empty".to_owned()));
    }
    if let Err(error) = semver::VersionReq::parse(versions) {
        found.push((at("versions"), format!("must be like \">=0.19.1, <0.20\": {error}")));
    }
    check_limits(found, at, [*init_ms, *eof_ms, None, None, None]);
}

/// Checks the limits that agents and backends have in common.
fn check_limits(found: &mut KeyProblems, at: impl Fn(&str) -> Vec<String>, values: [Option<u64>; 5]) {
    let names = ["init_ms", "eof_ms", "term_ms", "kill_ms", "queue_runs_max"];
    let bounds = [INIT_MS, GRACE_MS, GRACE_MS, KILL_MS, QUEUE_RUNS];
    for ((name, value), bounds) in names.into_iter().zip(values).zip(bounds) {
        optional(found, at(name), value, bounds);
    }
}

/// Checks what a PostgreSQL store needs, and refuses settings without a meaning there.
fn check_store(found: &mut KeyProblems, plane: &ControlPlane) {
    let postgres = &plane.postgres;
    if !PostgresStore::is_cell(&postgres.cell) {
        let text = format!(
            "{:?} is not the name of a cell: use at most {} lower-case letters, digits and _",
            postgres.cell,
            PostgresStore::CELL_BYTES_MAX
        );
        found.push((key("acp.control_plane.postgres.cell"), text));
    }
    if plane.store == StoreKind::Sqlite {
        return;
    }
    if postgres.address_file.is_none() {
        let text = "is required by store = \"postgres\": the path of a file of mode 0600 with the connection URL, \
            postgres://USER:PASSWORD@HOST:PORT/DATABASE";
        found.push((key("acp.control_plane.postgres.address_file"), text.to_owned()));
    }
    if plane.store_path.is_some() {
        let text = "has no meaning with store = \"postgres\", which has no file: remove the key";
        found.push((key("acp.control_plane.store_path"), text.to_owned()));
    }
}

/// Checks names of variables or prefixes `NAME*`.
fn allow_list(found: &mut KeyProblems, key: Vec<String>, patterns: &[String]) {
    for pattern in patterns {
        let name = pattern.strip_suffix('*').unwrap_or(pattern);
        if pattern.is_empty() || name.contains(['*', '=', '\0']) {
            let message = format!("{pattern:?} is neither the name of a variable nor a prefix NAME*");
            found.push((key.clone(), message));
        }
    }
}

fn numbers(config: &Config) -> [(&'static str, u64, u64, u64); 26] {
    let (acp, plane, limits) = (&config.acp, &config.acp.control_plane, &config.limits);
    let bindings = &config.session.thread_bindings;
    [
        ("acp.max_concurrent_sessions", acp.max_concurrent_sessions, 1, 10_000),
        ("acp.max_concurrent_sessions_per_account", acp.max_concurrent_sessions_per_account, 0, 10_000),
        ("session.ttl_minutes", config.session.ttl_minutes, 0, LONG_HOURS * 60),
        ("session.thread_bindings.idle_hours", bindings.idle_hours, 0, LONG_HOURS),
        ("session.thread_bindings.max_age_hours", bindings.max_age_hours, 0, LONG_HOURS),
        ("acp.stream.min_interval_ms", acp.stream.min_interval_ms, 0, 60_000),
        ("acp.stream.max_output_chars", acp.stream.max_output_chars, 1, 500_000),
        ("acp.stream.max_session_update_chars", acp.stream.max_session_update_chars, 64, 8_000),
        ("acp.stream.coalesce_idle_ms", acp.stream.coalesce_idle_ms, 0, 5_000),
        ("acp.stream.max_chunk_chars", acp.stream.max_chunk_chars, 50, 4_000),
        ("acp.runtime.ttl_minutes", acp.runtime.ttl_minutes, 0, 30 * 24 * 60),
        ("acp.control_plane.recovery.eager_actors", plane.recovery.eager_actors, 0, 10_000),
        (
            "acp.control_plane.recovery.reconcile_running_after_ms",
            plane.recovery.reconcile_running_after_ms,
            1_000,
            LONG_MS,
        ),
        ("acp.control_plane.checkpoint.flush_every_events", plane.checkpoint.flush_every_events, 1, 10_000),
        ("acp.control_plane.checkpoint.flush_every_ms", plane.checkpoint.flush_every_ms, 1, 60_000),
        ("acp.idempotency.ttl_hours", acp.idempotency.ttl_hours, 1, 24 * 365),
        ("journal.retention_days", config.journal.retention_days, 0, 36_500),
        ("journal.keep_turns", config.journal.keep_turns, 1, 10_000),
        ("permission.timeout_ms", config.permission.timeout_ms, 0, LONG_MS),
        ("limits.queue_runs_max", limits.queue_runs_max, 1, 1_000),
        ("limits.prompt_bytes_max", limits.prompt_bytes_max, 1_024, 16 * 1024 * 1024),
        ("limits.turn_ms", limits.turn_ms, 1_000, LONG_MS),
        ("limits.turn_silent_ms", limits.turn_silent_ms, 1_000, LONG_MS),
        ("limits.cancel_stuck_ms", limits.cancel_stuck_ms, 1_000, LONG_MS),
        ("limits.connections_max", limits.connections_max, 4, 10_000),
        ("northbound.detach_grace_ms", config.northbound.detach_grace_ms, 1, 24 * 3_600_000),
    ]
}

pub(super) fn bounded(found: &mut KeyProblems, key: Vec<String>, value: u64, bounds: RangeInclusive<u64>) {
    if !bounds.contains(&value) {
        let (min, max) = bounds.into_inner();
        found.push((key, format!("{value} is out of bounds; allowed: {min} to {max}")));
    }
}

pub(super) fn absolute(found: &mut KeyProblems, key: Vec<String>, path: Option<&Path>) {
    if path.is_some_and(|path| !path.is_absolute()) {
        found.push((key, "must be an absolute path".to_owned()));
    }
}

fn check_agent(found: &mut KeyProblems, above: &[String], agent: &AgentConfig) {
    let at = |name: &str| above.iter().cloned().chain([name.to_owned()]).collect::<Vec<_>>();
    if let Some(command) = &agent.command {
        if command.first().is_none_or(String::is_empty) {
            found.push((at("command"), "must name a program".to_owned()));
        }
        if command.first().is_some_and(|program| program.contains('/') && !program.starts_with('/')) {
            let text = "must name a program by an absolute path, or by its name on PATH";
            found.push((at("command"), text.to_owned()));
        }
        if command.iter().any(|part| part.contains('\0')) {
            found.push((at("command"), "must not contain a NUL byte".to_owned()));
        }
    }
    for (name, value) in &agent.env {
        if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
            found
                .push((at("env"), format!("{name:?} or its value is not valid for an environment variable")));
        }
        if RESERVED_ENV.contains(&name.as_str()) {
            found.push((at("env"), format!("{name} is reserved: the supervisor sets it")));
        }
    }
    for root in &agent.cwd_roots {
        absolute(found, at("cwd_roots"), Some(root));
    }
    for dir in &agent.additional_directories {
        absolute(found, at("additional_directories"), Some(dir));
    }
    allow_list(found, at("env_allow"), &agent.env_allow);
    let AgentConfig { init_ms, eof_ms, term_ms, kill_ms, queue_runs_max, .. } = *agent;
    check_limits(found, at, [init_ms, eof_ms, term_ms, kill_ms, queue_runs_max]);
}
