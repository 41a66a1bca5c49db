//! What types cannot say: bounds of numbers, and values that must fit each other.

use super::{Agent, Config};
use std::path::Path;

/// Longest time that any setting may name: 7 days.
const LONG_MS: u64 = 7 * 24 * 3_600_000;

/// The variables that name a process as ours; the supervisor sets them.
pub(crate) const RESERVED_ENV: [&str; 2] = ["OPENCLAW_ACPX_LEASE_ID", "OPENCLAW_GATEWAY_INSTANCE_ID"];

type Found = Vec<(Vec<String>, String)>;

fn key(path: &str) -> Vec<String> {
    path.split('.').map(str::to_owned).collect()
}

/// Every value that is out of bounds or does not fit: key and what is wrong.
pub(crate) fn check(config: &Config) -> Found {
    let mut found = Found::new();
    for (path, value, min, max) in numbers(config) {
        bounded(&mut found, key(path), value, min, max);
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
        ("supervisor.socket", &config.supervisor.socket),
        ("supervisor.secret_file", &config.supervisor.secret_file),
    ] {
        absolute(&mut found, key(path), value.as_deref());
    }
    if config.metrics.listen.is_some_and(|at| !at.ip().is_loopback()) {
        let text =
            "must be an address of this machine alone, such as 127.0.0.1:9464: nobody is asked who they are";
        found.push((key("metrics.listen"), text.to_owned()));
    }
    if let Err(e) = tracing_subscriber::EnvFilter::try_new(&config.log.level) {
        found.push((key("log.level"), e.to_string()));
    }
    for (name, agent) in &config.agents {
        check_agent(&mut found, &["agents".to_owned(), name.to_string()], agent);
    }
    found
}

fn numbers(config: &Config) -> [(&'static str, u64, u64, u64); 15] {
    let (acp, plane, limits) = (&config.acp, &config.acp.control_plane, &config.limits);
    [
        ("acp.max_concurrent_sessions", acp.max_concurrent_sessions, 1, 10_000),
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
        ("permission.timeout_ms", config.permission.timeout_ms, 0, LONG_MS),
        ("limits.queue_runs_max", limits.queue_runs_max, 1, 1_000),
        ("limits.prompt_bytes_max", limits.prompt_bytes_max, 1_024, 16 * 1024 * 1024),
        ("limits.turn_silent_ms", limits.turn_silent_ms, 1_000, LONG_MS),
        ("limits.cancel_stuck_ms", limits.cancel_stuck_ms, 1_000, LONG_MS),
        ("limits.connections_max", limits.connections_max, 4, 10_000),
    ]
}

fn bounded(found: &mut Found, key: Vec<String>, value: u64, min: u64, max: u64) {
    if !(min..=max).contains(&value) {
        found.push((key, format!("{value} is out of bounds, {min} to {max} is possible")));
    }
}

fn absolute(found: &mut Found, key: Vec<String>, path: Option<&Path>) {
    if path.is_some_and(|path| !path.is_absolute()) {
        found.push((key, "must be an absolute path".to_owned()));
    }
}

fn check_agent(found: &mut Found, above: &[String], agent: &Agent) {
    let at = |name: &str| above.iter().cloned().chain([name.to_owned()]).collect::<Vec<_>>();
    if let Some(command) = &agent.command {
        if command.first().is_none_or(String::is_empty) {
            found.push((at("command"), "must name a program".to_owned()));
        }
        if command.first().is_some_and(|program| program.contains('/') && !program.starts_with('/')) {
            found.push((
                at("command"),
                "must name a program by an absolute path, or to be found on PATH".to_owned(),
            ));
        }
        if command.iter().any(|part| part.contains('\0')) {
            found.push((at("command"), "must not hold a NUL".to_owned()));
        }
    }
    for (name, value) in &agent.env {
        if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
            found.push((at("env"), format!("{name:?} cannot be a variable with that value")));
        }
        if RESERVED_ENV.contains(&name.as_str()) {
            found.push((at("env"), format!("{name} is set by the supervisor alone")));
        }
    }
    for root in &agent.cwd_roots {
        absolute(found, at("cwd_roots"), Some(root));
    }
    for (name, value, min, max) in [
        ("eof_ms", agent.eof_ms, 0, 600_000),
        ("term_ms", agent.term_ms, 0, 600_000),
        ("kill_ms", agent.kill_ms, 100, 600_000),
        ("init_ms", agent.init_ms, 1_000, 3_600_000),
    ] {
        if let Some(value) = value {
            bounded(found, at(name), value, min, max);
        }
    }
}
