//! Home directory of an OpenClaw with records in every form: 50 sessions, 30 bindings, 10 leases, 5 broken files.

use crate::world::World;
use rusqlite::Connection;
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};

/// Token of the webhooks, which must not be printed or stored.
pub const WEBHOOK_TOKEN: &str = "the-webhook-token-of-openclaw";
/// Token of the bot, which must not be printed or stored.
pub const BOT_TOKEN: &str = "the-bot-token-of-openclaw";
/// Number of records of each kind.
pub const SESSIONS: usize = 50;
/// Number of bindings.
pub const BINDINGS: usize = 30;
/// Number of leases.
pub const LEASES: usize = 10;
/// Number of broken files.
pub const BROKEN: usize = 5;

const HOUR: u64 = 3_600_000;

/// Fixture home in the world's home directory.
#[derive(Debug)]
pub struct OpenclawHome {
    dir: PathBuf,
    cwd: String,
    now_ms: u64,
}

impl OpenclawHome {
    /// State directory of OpenClaw.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Creates the whole home directory.
    #[must_use]
    pub fn whole(world: &World, now_ms: u64) -> Self {
        let home = Self::empty(world, now_ms);
        home.write_database();
        home.write_plugin_database();
        home.write_sessions();
        home.write_bindings();
        home.write_leases();
        home.write_acpx(world);
        home.write_config();
        home.write_broken(world);
        home
    }

    /// Creates a home directory with a database of a few sessions and bindings.
    #[must_use]
    pub fn small(world: &World, now_ms: u64) -> Self {
        let home = Self::empty(world, now_ms);
        let sessions: Vec<Row> = (1..=4).map(|n| Row { fence: None, ..Row::new(n, &home.cwd) }).collect();
        let entries = (1..=4).map(|n| home.thread_entry(n, &key(n))).collect();
        home.build_database("state/openclaw.sqlite", &sessions, &[], entries);
        home.write("agents/codex/sessions/sessions.json", &json!({}));
        home
    }

    /// Creates a home directory with one session, whose conversation has this id at the agent and can be resumed.
    #[must_use]
    pub fn of_conversation(world: &World, now_ms: u64, id: &str) -> Self {
        let home = Self::empty(world, now_ms);
        let entry = json!({ "sessionId": "e1", "acp": home.meta(1, "codex") });
        home.write("agents/codex/sessions/sessions.json", &json!({ key(1): entry }));
        let record = json!({
            "schema": "acpx.session.v1", "acpx_record_id": "r1", "acp_session_id": id, "closed": false,
            "agent_capabilities": { "loadSession": true },
        });
        world.write("home/.acpx/sessions/r1.json", &record.to_string());
        home
    }

    fn empty(world: &World, now_ms: u64) -> Self {
        let dir = world.dir("home/.openclaw");
        let cwd = world.dir("work/project").to_string_lossy().into_owned();
        Self { dir, cwd, now_ms }
    }

    fn write(&self, name: &str, value: &Value) {
        self.write_text(name, &format!("{value:#}"));
    }

    fn write_text(&self, name: &str, text: &str) {
        let path = self.dir.join(name);
        fs::create_dir_all(path.parent().unwrap_or(&self.dir)).unwrap_or_else(|e| panic!("{e}"));
        fs::write(&path, text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    }

    /// Builds a database whose last rows are in its log only, as after a crash.
    fn build_database(&self, name: &str, sessions: &[Row], bindings: &[Value], plugin: Vec<PluginEntry>) {
        let scratch = tempfile::tempdir().unwrap_or_else(|e| panic!("{e}"));
        let file = scratch.path().join("db.sqlite");
        let db = open(&file);
        let run = |sql: &str| db.execute_batch(sql).unwrap_or_else(|e| panic!("{sql}: {e}"));
        run(SCHEMA);
        run("PRAGMA journal_mode = WAL; PRAGMA wal_autocheckpoint = 0;");
        for row in sessions {
            row.insert(&db);
        }
        for binding in bindings {
            insert(&db, "current_conversation_bindings", binding);
        }
        for (plugin_id, namespace, entry_key, value) in plugin {
            let row = json!({
                "plugin_id": plugin_id, "namespace": namespace, "entry_key": entry_key, "value_json": value.to_string(),
            });
            insert(&db, "plugin_state_entries", &row);
        }
        for suffix in ["", "-wal"] {
            let to = self.dir.join(format!("{name}{suffix}"));
            fs::create_dir_all(to.parent().unwrap_or(&self.dir)).unwrap_or_else(|e| panic!("{e}"));
            let from = scratch.path().join(format!("db.sqlite{suffix}"));
            fs::copy(from, &to).unwrap_or_else(|e| panic!("{}: {e}", to.display()));
        }
    }

    /// Sessions 1 to 20, and bindings 1 to 14.
    fn write_database(&self) {
        let mut sessions: Vec<Row> = (1..=20).map(|n| Row::new(n, &self.cwd)).collect();
        sessions[12].state = "running";
        sessions[13].state = "error";
        sessions[13].last_error = Some(format!("request failed with {BOT_TOKEN}"));
        sessions[14].fence = Some("closed:e15".to_owned());
        sessions[15].fence = Some("another-conversation".to_owned());
        sessions[16].backend = "other";
        sessions[17].agent = "unheard-of";
        sessions[18].mode = "oneshot";
        sessions[19].cwd = format!("{}/missing", self.cwd);
        let conversation = |n: usize, channel: &str, id: &str, status: &str, kind: &str| {
            json!({
                "binding_key": format!("b{n}"), "target_session_key": key(n), "channel": channel, "account_id": "default",
                "conversation_kind": "thread", "parent_conversation_id": "1000000000000000001", "conversation_id": id,
                "target_kind": kind, "status": status, "bound_at": self.now_ms - HOUR,
                "metadata_json": json!({ "boundBy": "1000000000000000009", "webhookToken": WEBHOOK_TOKEN }).to_string(),
            })
        };
        let bindings = [
            conversation(1, "discord", &thread(1), "active", "session"),
            conversation(2, "discord", &format!("channel:{}", thread(2)), "active", "session"),
            conversation(3, "telegram", "555", "active", "session"),
            conversation(4, "discord", &thread(4), "ended", "session"),
            conversation(5, "discord", &thread(5), "active", "subagent"),
            conversation(16, "discord", &thread(6), "active", "session"),
        ];
        let mut plugin: Vec<PluginEntry> = (7..=14).map(|n| self.thread_entry(n, &key(n))).collect();
        plugin[1].3["maxAgeMs"] = json!(48 * HOUR);
        plugin[2].3["idleTimeoutMs"] = json!(1);
        plugin[3].3["endedAt"] = json!(self.now_ms);
        plugin[4].3["accountId"] = json!("work");
        plugin[4].2 = format!("work:{}", thread(11));
        plugin[5].3["targetSessionKey"] = json!("agent:codex:acp:never-there");
        for n in 1..=4 {
            plugin.push(("acpx", "process-leases", format!("lease-{n}"), lease(n)));
        }
        self.build_database("state/openclaw.sqlite", &sessions, &bindings, plugin);
    }

    /// Bindings 15 to 18; 18 is also in the database.
    fn write_plugin_database(&self) {
        let mut plugin: Vec<PluginEntry> = (15..=17).map(|n| self.thread_entry(n, &key(n + 6))).collect();
        plugin.push(self.thread_entry(7, &key(7)));
        self.build_database("plugin-state/state.sqlite", &[], &[], plugin);
    }

    fn thread_entry(&self, n: usize, session: &str) -> PluginEntry {
        ("discord", "thread-bindings", format!("default:{}", thread(n)), self.thread_record(n, session))
    }

    fn thread_record(&self, n: usize, session: &str) -> Value {
        json!({
            "accountId": "default", "channelId": "1000000000000000001", "threadId": thread(n), "targetKind": "acp",
            "targetSessionKey": session, "agentId": "codex", "webhookId": "42", "webhookToken": WEBHOOK_TOKEN,
            "boundBy": "1000000000000000009", "boundAt": self.now_ms - HOUR, "lastActivityAt": self.now_ms - HOUR,
        })
    }

    /// Entries of sessions 1 to 20, and sessions 21 to 50.
    fn write_sessions(&self) {
        let mut codex = json!({ "agent:main:main": { "sessionId": "main", "updatedAt": self.now_ms } });
        for n in 1..=20 {
            codex[key(n)] = json!({ "sessionId": format!("e{n}"), "label": format!("label {n}") });
        }
        for n in 21..=40 {
            codex[key(n)] = json!({ "sessionId": format!("e{n}"), "acp": self.meta(n, "codex") });
        }
        codex[key(21)]["spawnedBy"] = json!("agent:main:main");
        codex[key(22)]["acp"]["runtimeSessionName"] = json!(handle(1, n_name(22), &self.cwd));
        codex[key(23)]["acp"]["runtimeSessionName"] = json!(handle(2, n_name(23), &self.cwd));
        codex[key(24)]["acp"]["runtimeOptions"] = json!({
            "model": "m", "runtimeMode": "plan", "timeoutSeconds": 600, "permissionProfile": "approve-all",
            "thinking": "high", "backendExtras": { "effort": "low" },
        });
        codex[key(25)]["acp"]["identity"] = json!({ "state": "pending" });
        codex[key(35)]["archivedAt"] = json!(self.now_ms);
        codex[key(36)]["acp"]["state"] = json!("closed");
        codex[key(37)]["acp"]["mode"] = json!("oneshot");
        let twin = codex[key(38)].clone();
        codex.as_object_mut().into_iter().for_each(|map| drop(map.remove(&key(39))));
        codex[key(38).replace("codex", "CODEX")] = twin;
        codex[key(40)]["acp"]["state"] = json!("thinking");
        self.write("agents/codex/sessions/sessions.json", &codex);
        let mut claude = json!({});
        for n in 41..=50 {
            claude[key(n)] = json!({ "sessionId": format!("e{n}"), "acp": self.meta(n, "claude") });
        }
        self.write("agents/claude/sessions/sessions.json", &claude);
    }

    fn meta(&self, n: usize, agent: &str) -> Value {
        json!({
            "backend": "acpx", "agent": agent, "runtimeSessionName": n_name(n), "mode": "persistent", "cwd": self.cwd,
            "state": "idle", "lastActivityAt": self.now_ms - HOUR,
            "identity": { "state": "resolved", "acpxRecordId": format!("r{n}"), "acpxSessionId": format!("s{n}"),
                "agentSessionId": "inner", "source": "ensure" },
        })
    }

    /// Bindings 19 to 26 of the file of threads, 27 to 30 of the file of all channels.
    fn write_bindings(&self) {
        let mut bindings = json!({});
        for n in 19..=26 {
            bindings[format!("default:{}", thread(n))] = self.thread_record(n, &key(n + 8));
        }
        let of = |n: usize| format!("default:{}", thread(n));
        let mut old = bindings[of(19)].take();
        old["sessionKey"] = old["targetSessionKey"].take();
        old["expiresAt"] = json!(0);
        old["threadId"] = Value::Null;
        bindings[thread(19)] = old;
        bindings[of(20)]["expiresAt"] = json!(self.now_ms + 1_000 * HOUR);
        bindings[of(21)]["expiresAt"] = json!(self.now_ms - HOUR / 2);
        bindings[of(22)]["channelId"] = Value::Null;
        bindings[of(23)]["boundAt"] = json!("yesterday");
        bindings[of(24)]["targetSessionKey"] = json!(key(36));
        bindings[of(25)]["targetSessionKey"] = json!(key(40));
        bindings.as_object_mut().into_iter().for_each(|map| drop(map.remove(&of(19))));
        self.write("discord/thread-bindings.json", &json!({ "version": 1, "bindings": bindings }));
        let record = |n: usize, channel: &str, id: String| {
            json!({
                "bindingId": format!("generic:{n}"), "targetSessionKey": key(n + 14), "targetKind": "session",
                "conversation": { "channel": channel, "accountId": "default", "conversationId": id },
                "status": "active", "boundAt": self.now_ms - HOUR, "metadata": {},
            })
        };
        let records = [
            record(27, "slack", "C1".to_owned()),
            record(28, "discord", thread(28)),
            record(29, "discord", thread(26)),
            record(30, "discord", "not-a-number".to_owned()),
        ];
        self.write("bindings/current-conversations.json", &json!({ "version": 1, "bindings": records }));
    }

    fn write_leases(&self) {
        let leases: Vec<Value> = (5..=10).map(lease).collect();
        self.write("acpx/process-leases.json", &json!({ "version": 1, "leases": leases }));
        self.write_text("gateway-instance-id", "0b8f\n");
    }

    fn write_acpx(&self, world: &World) {
        for n in (21_usize..=50).filter(|n| *n != 25) {
            let record = if n.is_multiple_of(2) {
                json!({
                    "schema": "acpx.session.v1", "acpx_record_id": format!("r{n}"), "acp_session_id": format!("live-{n}"),
                    "closed": false, "agent_capabilities": { "loadSession": !n.is_multiple_of(3) }, "messages": [],
                })
            } else {
                json!({
                    "schema": "openclaw.acpx.session.v1", "acpxRecordId": format!("r{n}"),
                    "acpSessionId": format!("live-{n}"), "closed": false,
                    "agentCapabilities": { "sessionCapabilities": { "resume": {} } },
                })
            };
            world.write(&format!("home/.acpx/sessions/r{n}.json"), &record.to_string());
        }
    }

    fn write_config(&self) {
        let config = json!({
            "acp": { "backend": "acpx", "defaultAgent": "codex", "maxConcurrentSessions": 8,
                "stream": { "deliveryMode": "live" } },
            "session": { "threadBindings": { "ttlHours": 36 } },
            "channels": { "discord": { "token": BOT_TOKEN, "threadBindings": { "spawnSessions": true },
                "accounts": { "default": { "token": BOT_TOKEN }, "work": { "token": BOT_TOKEN } } } },
            "plugins": { "entries": { "acpx": { "config": { "permissionMode": "approve-reads", "agents": {
                "my-codex": { "command": "codex-acp", "args": ["--api-key", BOT_TOKEN] } } } } } },
        });
        // OpenClaw reads JSON5.
        let config = config.to_string();
        let members = config.strip_prefix('{').and_then(|text| text.strip_suffix('}')).unwrap_or_default();
        self.write_text("openclaw.json", &format!("{{ // settings\nother: 'text', {members}, /* end */ }}"));
    }

    /// Five files that cannot be read, and one that OpenClaw has migrated.
    fn write_broken(&self, world: &World) {
        self.write_text("agents/broken/sessions/sessions.json", "{ \"agent:broken:acp:1\": ");
        self.write("agents/newer/sessions/sessions.json", &json!({ "version": 7, "sessions": [] }));
        self.write_text("agents/huge/sessions/sessions.json", "");
        let huge =
            fs::OpenOptions::new().write(true).open(self.dir.join("agents/huge/sessions/sessions.json"));
        huge.and_then(|file| file.set_len(64 * 1024 * 1024 + 1)).unwrap_or_else(|e| panic!("{e}"));
        self.write_text("agents/odd/sessions/sessions.json/kept", "a directory in place of a file");
        world.write("home/.acpx/sessions/other.json", r#"{"schema":"acpx.session.v9"}"#);
        self.write_text("discord/model-picker-preferences.json.migrated", "{}");
    }
}

type PluginEntry = (&'static str, &'static str, String, Value);

const SCHEMA: &str = "CREATE TABLE acp_sessions (session_key TEXT PRIMARY KEY, session_id TEXT, backend TEXT, agent TEXT,
      runtime_session_name TEXT, identity_json TEXT, mode TEXT, runtime_options_json TEXT, cwd TEXT, state TEXT,
      last_activity_at INTEGER, last_error TEXT, updated_at INTEGER);
    CREATE TABLE current_conversation_bindings (binding_key TEXT PRIMARY KEY, target_session_key TEXT, channel TEXT,
      account_id TEXT, conversation_kind TEXT, parent_conversation_id TEXT, conversation_id TEXT, target_kind TEXT,
      status TEXT, bound_at INTEGER, expires_at INTEGER, metadata_json TEXT, record_json TEXT);
    CREATE TABLE plugin_state_entries (plugin_id TEXT, namespace TEXT, entry_key TEXT, value_json TEXT,
      expires_at INTEGER, PRIMARY KEY (plugin_id, namespace, entry_key));";

/// Row of `acp_sessions`.
struct Row {
    n: usize,
    fence: Option<String>,
    backend: &'static str,
    agent: &'static str,
    mode: &'static str,
    state: &'static str,
    cwd: String,
    last_error: Option<String>,
}

impl Row {
    fn new(n: usize, cwd: &str) -> Self {
        let fence = n.is_multiple_of(3).then(|| format!("e{n}"));
        let cwd = cwd.to_owned();
        Self {
            n,
            fence,
            backend: "acpx",
            agent: "codex",
            mode: "persistent",
            state: "idle",
            cwd,
            last_error: None,
        }
    }

    fn insert(&self, db: &Connection) {
        let n = self.n;
        let stored = match n % 3 {
            0 => key(n),
            1 => format!("@acp:v1:{}", base64url(json!(["codex", key(n)]).to_string().as_bytes())),
            _ => format!("@agent:codex:{}", key(n)),
        };
        let row = json!({
            "session_key": stored, "session_id": self.fence, "backend": self.backend, "agent": self.agent,
            "runtime_session_name": n_name(n), "mode": self.mode, "cwd": self.cwd, "state": self.state,
            "identity_json": json!({ "acpxSessionId": format!("s{n}") }).to_string(), "last_activity_at": 1_700_000_000_000_u64,
            "last_error": self.last_error,
        });
        insert(db, "acp_sessions", &row);
    }
}

/// Session key number `n`.
#[must_use]
pub fn key(n: usize) -> String {
    let agent = if n > 40 { "claude" } else { "codex" };
    format!("agent:{agent}:acp:{n:04}")
}

fn n_name(n: usize) -> String {
    format!("openclaw-{n}")
}

fn thread(n: usize) -> String {
    format!("{}", 1_100_000_000_000_000_000_u64 + n as u64)
}

fn lease(n: usize) -> Value {
    let state = ["open", "open", "closing", "closed", "lost"][n % 5];
    json!({
        "leaseId": format!("lease-{n}"), "gatewayInstanceId": "0b8f", "sessionKey": key(n), "wrapperRoot": "/x",
        "wrapperPath": "/x/wrapper.mjs", "rootPid": if n.is_multiple_of(2) { 0 } else { 4_000_000 + n }, "commandHash": "h",
        "startedAt": 1, "state": state,
    })
}

fn handle(version: u8, name: String, cwd: &str) -> String {
    let json =
        json!({ "name": name, "agent": "codex", "cwd": cwd, "mode": "persistent", "acpxRecordId": "r" });
    format!("acpx:v{version}:{}", base64url(json.to_string().as_bytes()))
}

fn base64url(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut text = String::new();
    for three in bytes.chunks(3) {
        let number =
            three.iter().chain(&[0; 2]).take(3).fold(0_usize, |all, byte| all << 8 | usize::from(*byte));
        for place in 0..=three.len() {
            text.push(char::from(LETTERS[(number >> (18 - 6 * place)) & 63]));
        }
    }
    text
}

#[expect(clippy::disallowed_methods, reason = "a database of another program")]
fn open(path: &Path) -> Connection {
    Connection::open(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Inserts the members of an object into the columns of their names.
fn insert(db: &Connection, table: &str, row: &Value) {
    let members = row.as_object().unwrap_or_else(|| panic!("no object: {row}"));
    let names: Vec<&str> = members.keys().map(String::as_str).collect();
    let values: Vec<String> =
        (1..=names.len()).map(|n| format!("json_extract(?1, '$.{}')", names[n - 1])).collect();
    let sql = format!("INSERT INTO {table} ({}) SELECT {}", names.join(", "), values.join(", "));
    db.execute(&sql, [row.to_string()]).unwrap_or_else(|e| panic!("{sql}: {e}"));
}
