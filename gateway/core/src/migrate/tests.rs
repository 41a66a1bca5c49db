use super::acpx_record::acpx_record;
use super::config_review::config_review;
use super::leases::lease_file;
use super::plan::{AgentDefaults, ImportPlan, ImportSettings, SourceRecords, plan};
use super::source_bindings::{conversation_file, conversation_rows, plugin_entries, thread_binding_file};
use super::source_sessions::{acp_session_row, session_entries, unscoped_key};
use super::{MigrationAction, MigrationLine, MigrationTotals};
use crate::config::load::{Inputs, load};
use crate::config::{NonInteractive, PermissionMode};
use crate::policy::BindingTimeouts;
use crate::session::{Ending, SessionState};
use acp_shared::ids::{BindingId, GatewayInstanceId};
use data_encoding::BASE64URL_NOPAD;
use proptest::prelude::*;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;

const NOW: u64 = 1_780_000_000_000;
const HOUR: u64 = 3_600_000;
const SOURCE: &str = "FILE";

/// Change of a record.
type Change = fn(&mut Value);

fn meta(agent: &str) -> Value {
    json!({
        "backend": "acpx", "agent": agent, "mode": "persistent", "cwd": "/work", "state": "idle",
        "runtimeSessionName": "agent:codex:acp:1", "lastActivityAt": NOW - HOUR,
        "identity": { "state": "resolved", "acpxRecordId": "r1", "acpxSessionId": "s1", "agentSessionId": "inner" },
    })
}

fn entries(file: Value) -> SourceRecords {
    let (entries, lines) = session_entries(&file, SOURCE);
    SourceRecords { entries, lines, ..SourceRecords::default() }
}

fn planned_with(records: &SourceRecords, change: impl FnOnce(&mut ImportSettings<'_>)) -> ImportPlan {
    let check = |agent: &acp_shared::ids::AgentName, cwd: &str| {
        if agent.as_str() == "unknown" {
            return Err("Unknown agent unknown.".to_owned());
        }
        let (permission, non_interactive) = (PermissionMode::Ask, NonInteractive::Deny);
        Ok(AgentDefaults { cwd: cwd.to_owned(), permission, non_interactive })
    };
    let timeouts = |_: &str| BindingTimeouts { idle_ms: Some(24 * HOUR), max_age_ms: None };
    let mut settings = ImportSettings {
        sessions: true,
        bindings: true,
        include_closed: false,
        agents: BTreeMap::new(),
        accounts: BTreeMap::new(),
        now_ms: NOW,
        gateway_instance_id: GatewayInstanceId::mint(),
        check_agent: &check,
        timeouts: &timeouts,
        new_binding_id: &BindingId::mint,
    };
    change(&mut settings);
    plan(records, &settings)
}

fn planned(records: &SourceRecords) -> ImportPlan {
    planned_with(records, |_| {})
}

#[track_caller]
fn only_line(plan: &ImportPlan, action: MigrationAction, why: &str) {
    let [line] = &plan.lines[..] else { panic!("{:#?}", plan.lines) };
    assert!(line.action == action && line.why.contains(why), "{line:#?}");
}

#[test]
fn session_entry_becomes_idle_session_of_direct() {
    let mut entry =
        json!({ "sessionId": "e1", "label": "fix", "spawnedBy": "agent:main:main", "acp": meta("codex") });
    entry["acp"]["runtimeOptions"] = json!({
        "runtimeMode": "plan", "model": "m", "timeoutSeconds": 60, "permissionProfile": "approve-reads",
        "thinking": "high", "backendExtras": { "a.b": "c" },
    });
    let mut records = entries(json!({ "agent:Codex:acp:1": entry }));
    records.acpx.push(
        acpx_record(&json!({
            "schema": "acpx.session.v1", "acpx_record_id": "r1", "acp_session_id": "live", "closed": false,
            "agent_capabilities": { "loadSession": true },
        }))
        .unwrap(),
    );
    let plan = planned(&records);
    let [session] = &plan.sessions[..] else { panic!("{plan:#?}") };
    let row = &session.row;
    assert_eq!((row.session_key.as_str(), row.backend.as_str()), ("agent:Codex:acp:1", "direct"));
    assert_eq!((row.agent_session_id.as_deref(), row.resumable), (Some("live"), true));
    assert_eq!((row.state, row.label.as_deref()), (SessionState::Idle, Some("fix")));
    assert_eq!(row.owner_session_key.as_ref().map(|key| key.as_str()), Some("agent:main:main"));
    assert_eq!((row.options.mode_id.as_deref(), row.options.timeout_s), (Some("plan"), Some(60)));
    assert_eq!(row.options.permission, PermissionMode::ApproveReads);
    assert_eq!(row.options.config, [("a.b".to_owned(), "c".to_owned())]);
    assert!(session.why.contains("thinking"), "{}", session.why);
}

#[test]
fn unknown_conversation_cannot_be_resumed() {
    let mut entry = json!({ "acp": meta("codex") });
    entry["acp"]["identity"] = json!({ "state": "pending", "agentSessionId": "inner" });
    let plan = planned(&entries(json!({ "k": entry })));
    let row = &plan.sessions[0].row;
    assert_eq!((row.agent_session_id.as_deref(), row.resumable), (Some("unknown"), false));
}

#[test]
fn states_decide_about_import() {
    let case = |change: fn(&mut Value)| {
        let mut entry = json!({ "sessionId": "e1", "acp": meta("codex") });
        change(&mut entry);
        entries(json!({ "k": entry }))
    };
    use MigrationAction::{Refuse, Skip};
    let left_out: [(Change, MigrationAction, &str); 8] = [
        (|entry| entry["acp"]["mode"] = json!("oneshot"), Skip, "oneshot"),
        (|entry| entry["acp"]["state"] = json!("closed"), Skip, "--include-closed"),
        (|entry| entry["archivedAt"] = json!(1), Skip, "archived"),
        (|entry| entry["acp"]["agent"] = json!("unknown"), Refuse, "Unknown agent"),
        (|entry| entry["acp"]["backend"] = json!("other"), Refuse, "backend"),
        (|entry| entry["acp"]["cwd"] = json!(null), Refuse, "working directory"),
        (|entry| entry["acp"]["runtimeSessionName"] = json!("acpx:v9:x"), Refuse, "another version"),
        (|entry| entry["acp"]["state"] = json!("new"), Refuse, "`state`"),
    ];
    for (change, action, why) in left_out {
        only_line(&planned(&case(change)), action, why);
    }
    let failed = planned(&case(|entry| {
        entry["acp"]["state"] = json!("error");
        entry["acp"]["lastError"] = json!("secret-in-error");
    }));
    let row = &failed.sessions[0].row;
    assert!(row.state == SessionState::Error && !format!("{row:?}").contains("secret-in-error"), "{row:?}");
    let running = planned(&case(|entry| entry["acp"]["state"] = json!("running")));
    assert_eq!(running.sessions[0].row.state, SessionState::Idle);
    assert!(running.sessions[0].events[0].1.contains("was running"));
    let closed =
        planned_with(&case(|entry| entry["archivedAt"] = json!(1)), |with| with.include_closed = true);
    assert_eq!(closed.sessions[0].row.ending, Some(Ending::Archived));
    assert_eq!(closed.sessions[0].events.len(), 2);
}

fn row(key: &str, fence: Option<&str>) -> Value {
    json!({
        "session_key": key, "session_id": fence, "backend": "acpx", "agent": "codex", "mode": "persistent",
        "runtime_session_name": "agent:codex:acp:1", "identity_json": r#"{"acpxSessionId":"of-row"}"#,
        "runtime_options_json": null, "cwd": "/work", "state": "idle", "last_activity_at": 5, "last_error": null,
    })
}

#[test]
fn row_of_database_wins_over_entry() {
    let mut records = entries(json!({ "KEY": { "sessionId": "e1", "label": "l", "acp": meta("codex") } }));
    let scoped = format!("@acp:v1:{}", BASE64URL_NOPAD.encode(br#"["codex","Key"]"#));
    records.rows.push(acp_session_row(&row(&scoped, Some("e1")), "DB").unwrap());
    let plan = planned(&records);
    let [session] = &plan.sessions[..] else { panic!("{plan:#?}") };
    assert_eq!((session.row.session_key.as_str(), session.source.as_str()), ("Key", "DB"));
    assert_eq!(
        (session.row.agent_session_id.as_deref(), session.row.label.as_deref()),
        (Some("of-row"), Some("l"))
    );
}

#[test]
fn fence_decides_about_rows() {
    let of = |fence| {
        let mut records = entries(json!({ "k": { "sessionId": "e1", "lifecycleRevision": 7 } }));
        records.rows.push(acp_session_row(&row("@agent:codex:k", fence), "DB").unwrap());
        planned(&records)
    };
    for good in [None, Some("e1"), Some("7")] {
        assert_eq!(of(good).sessions.len(), 1, "{good:?}");
    }
    only_line(&of(Some("e0")), MigrationAction::Skip, "stale");
    only_line(&of(Some("closed:e1")), MigrationAction::Skip, "--include-closed");
}

/// A record that cannot be read may say that the session is closed, or that the conversation is bound elsewhere.
#[test]
fn older_records_are_refused_where_newer_ones_cannot_be_read() {
    let refuse = MigrationAction::Refuse;
    let entry = json!({ "k": { "sessionId": "e1", "acp": meta("codex") } });
    let mut records = entries(entry.clone());
    records.unread.rows = Some("DB".to_owned());
    only_line(&planned(&records), refuse, "DB, which wins");
    let mut records = SourceRecords::default();
    records.rows.push(acp_session_row(&row("k", None), "DB").unwrap());
    records.unread.entries = Some("F".to_owned());
    only_line(&planned(&records), refuse, "may be in F");
    let mut records = entries(entry);
    let mut bad = row("@agent:codex:K", None);
    bad["state"] = json!("new");
    records.lines.push(acp_session_row(&bad, "DB").unwrap_err());
    let plan = planned(&records);
    assert!(plan.sessions.is_empty() && MigrationTotals::of(&plan.lines).refuse == 2, "{plan:#?}");

    let file = |record: Value| json!({ "version": 1, "bindings": { "default:22": record } });
    let older = thread_binding_file(&file(thread(|_| {})), "B");
    let newer = thread_binding_file(&file(thread(|record| record["boundAt"] = json!("x"))), "A");
    let plan = planned(&with_bindings(vec![newer, older.clone()]));
    assert!(plan.bindings.is_empty() && MigrationTotals::of(&plan.lines).refuse == 2, "{plan:#?}");
    let mut records = with_bindings(vec![older]);
    records.unread.bindings = Some((0, "DB".to_owned()));
    only_line(&planned(&records), refuse, "DB, which wins");
}

#[test]
fn keys_that_differ_in_case_are_both_refused() {
    let entry = json!({ "acp": meta("codex") });
    let plan = planned(&entries(json!({ "k": entry, "K": entry })));
    assert!(plan.sessions.is_empty());
    assert_eq!(MigrationTotals::of(&plan.lines).refuse, 2);
}

#[test]
fn scopes_of_keys_are_read() {
    let scoped = |json: &str| format!("@acp:v1:{}", BASE64URL_NOPAD.encode(json.as_bytes()));
    for (text, want) in [
        (scoped("[null,\"a:b\"]"), Some("a:b")),
        (scoped("[\"x\",\"a\"]"), Some("a")),
        (scoped("[1,\"a\"]"), None),
        (scoped("[\"a\"]"), None),
        ("@acp:v2:AAAA".to_owned(), None),
        ("@agent:x:agent:x:acp:1".to_owned(), Some("agent:x:acp:1")),
        ("@agent:x".to_owned(), None),
        ("bare".to_owned(), Some("bare")),
    ] {
        assert_eq!(unscoped_key(&text).ok().as_deref(), want, "{text}");
    }
}

fn thread(change: impl FnOnce(&mut Value)) -> Value {
    let mut record = json!({
        "accountId": "default", "channelId": "channel:11", "threadId": "22", "targetKind": "acp",
        "targetSessionKey": "k", "boundBy": "33", "boundAt": NOW - HOUR, "lastActivityAt": NOW - HOUR / 2,
        "webhookId": "9", "webhookToken": "the-webhook-token",
    });
    change(&mut record);
    record
}

fn with_bindings(
    files: Vec<(Vec<super::source_bindings::SourceBinding>, Vec<MigrationLine>)>,
) -> SourceRecords {
    let mut records = entries(json!({ "k": { "acp": meta("codex") } }));
    for (bindings, lines) in files {
        records.bindings.push(bindings);
        records.lines.extend(lines);
    }
    records
}

#[test]
fn three_forms_of_a_binding_are_the_same() {
    let file = |key: &str, record: Value| {
        thread_binding_file(&json!({ "version": 1, "bindings": { key: record } }), "A")
    };
    let record = json!({
        "bindingId": "b", "targetSessionKey": "k", "targetKind": "session", "status": "active", "boundAt": NOW - HOUR,
        "conversation": { "channel": "discord", "accountId": "default", "conversationId": "channel:22", "parentConversationId": "11" },
        "metadata": { "boundBy": "33", "lastActivityAt": NOW - HOUR / 2, "webhookToken": "the-webhook-token" },
    });
    let row = json!({
        "binding_key": "b", "target_session_key": "k", "channel": "discord", "account_id": "default", "conversation_id": "22",
        "parent_conversation_id": "11", "target_kind": "session", "status": "active", "bound_at": NOW - HOUR,
        "metadata_json": format!(r#"{{"boundBy":"33","lastActivityAt":{}}}"#, NOW - HOUR / 2),
    });
    let mut old = thread(|_| {});
    old["sessionKey"] = old["targetSessionKey"].take();
    old["threadId"] = json!(22);
    old.as_object_mut().unwrap().remove("targetKind");
    let forms = [
        file("default:22", thread(|_| {})),
        file("22", thread(|record| drop(record.as_object_mut().unwrap().remove("threadId")))),
        file("22", old),
        conversation_file(&json!({ "version": 1, "bindings": [record] }), "A"),
        conversation_rows(&[row], "A"),
        plugin_entries([("default:22", &thread(|_| {}))].into_iter(), "A"),
    ];
    let mut seen = Vec::new();
    for (number, form) in forms.into_iter().enumerate() {
        let plan = planned(&with_bindings(vec![form]));
        let [binding] = &plan.bindings[..] else { panic!("{number}: {plan:#?}") };
        assert!(!format!("{plan:?}").contains("the-webhook-token"));
        seen.push(crate::rows::BindingRow { binding_id: seen_id(), ..binding.row.clone() });
    }
    let first = &seen[0];
    assert!(seen.iter().all(|row| row == first), "{seen:#?}");
    assert_eq!((first.idle_ms, first.max_age_ms), (Some(24 * HOUR), None));
    assert_eq!((first.bound_at_ms, first.bound_by.as_str()), (NOW - HOUR, "33"));
    assert_eq!(first.conversation.parent_conversation_id.as_deref(), Some("11"));
    // A Discord id of the time of the import.
    assert!(first.metadata.contains(&((NOW - 1_420_070_400_000) << 22).to_string()), "{}", first.metadata);
}

fn seen_id() -> BindingId {
    BindingId::parse("01890a5d-ac96-774b-bcce-b302099a8057").unwrap()
}

#[test]
fn old_expiry_becomes_timeouts() {
    let case = |change: fn(&mut Value)| {
        let file = json!({ "version": 1, "bindings": { "22": thread(change) } });
        planned(&with_bindings(vec![thread_binding_file(&file, "A")]))
    };
    let timeouts = |change| {
        let plan = case(change);
        let row = plan.bindings.first().unwrap_or_else(|| panic!("{plan:#?}")).row.clone();
        (row.idle_ms, row.max_age_ms)
    };
    assert_eq!(timeouts(|record| record["expiresAt"] = json!(0)), (None, None));
    assert_eq!(timeouts(|record| record["expiresAt"] = json!(-1)), (None, None));
    assert_eq!(timeouts(|record| record["expiresAt"] = json!(NOW + HOUR)), (None, Some(2 * HOUR)));
    assert_eq!(timeouts(|record| record["idleTimeoutMs"] = json!(0)), (None, None));
    assert_eq!(timeouts(|record| record["maxAgeMs"] = json!(3 * HOUR)), (Some(24 * HOUR), Some(3 * HOUR)));
    use MigrationAction::{Refuse, Skip};
    let left_out: [(Change, MigrationAction, &str); 7] = [
        (|record| record["expiresAt"] = json!(NOW - 1), Skip, "over"),
        (|record| record["idleTimeoutMs"] = json!(1), Skip, "over"),
        (|record| record["endedAt"] = json!(1), Skip, "ended"),
        (|record| record["targetKind"] = json!("subagent"), Skip, "subagent"),
        (|record| record["channelId"] = json!(null), Refuse, "`channelId`"),
        (|record| record["boundAt"] = json!("yesterday"), Refuse, "`boundAt`"),
        (|record| record["threadId"] = json!("../etc"), Refuse, "no id of Discord"),
    ];
    for (change, action, why) in left_out {
        only_line(&case(change), action, why);
    }
}

#[test]
fn binding_follows_its_session() {
    let file = json!({ "version": 1, "bindings": { "22": thread(|_| {}), "23": thread(|record| {
        record["threadId"] = json!("23");
        record["targetSessionKey"] = json!("K");
    }) } });
    let plan = planned(&with_bindings(vec![thread_binding_file(&file, "A")]));
    assert_eq!(plan.bindings.iter().filter(|binding| binding.row.session_key.as_str() == "k").count(), 2);
    let mut records = with_bindings(vec![thread_binding_file(&file, "A")]);
    records.entries[0].is_archived = true;
    let totals = MigrationTotals::of(&planned(&records).lines);
    assert_eq!((totals.skip, totals.refuse), (3, 0));
}

#[test]
fn first_source_of_a_conversation_wins() {
    let newer = thread(|record| record["boundBy"] = json!("newer"));
    let older = json!({ "version": 1, "bindings": { "22": thread(|_| {}) } });
    let files =
        vec![plugin_entries([("default:22", &newer)].into_iter(), "A"), thread_binding_file(&older, "B")];
    let plan = planned_with(&with_bindings(files), |with| {
        with.accounts.insert("default".to_owned(), "helper".to_owned());
    });
    let [binding] = &plan.bindings[..] else { panic!("{plan:#?}") };
    assert_eq!((binding.row.bound_by.as_str(), binding.source.as_str()), ("newer", "A"));
    assert_eq!(binding.row.conversation.account_id, "helper");
}

#[test]
fn files_of_other_versions_are_refused_by_name() {
    for (file, why) in [
        (json!({ "version": 2, "bindings": {} }), "version 2"),
        (json!({ "bindings": {} }), "no `version`"),
        (json!({ "version": 1 }), "`bindings`"),
        (json!([]), "not an object"),
    ] {
        for (_, lines) in [thread_binding_file(&file, "F"), conversation_file(&file, "F")] {
            assert!(lines.len() == 1 && lines[0].why.contains(why) && lines[0].key == "F", "{lines:?}");
        }
    }
    assert!(lease_file(&json!({ "version": 3, "leases": [] }), "F")[0].why.contains("version 3"));
    assert!(session_entries(&json!({ "version": 2 }), "F").1[0].why.contains("version 2"));
    assert!(acpx_record(&json!({ "schema": "acpx.session.v2" })).is_err());
}

#[test]
fn leases_are_listed() {
    let leases = json!([
        { "leaseId": "a", "state": "open", "rootPid": 5 }, { "leaseId": "b", "state": "open", "rootPid": 0 },
        { "leaseId": "c", "state": "closed" }, { "state": "open" },
    ]);
    let lines = lease_file(&json!({ "version": 1, "leases": leases }), "F");
    let totals = MigrationTotals::of(&lines);
    assert_eq!((totals.skip, totals.refuse), (3, 1));
    assert!(lines[0].why.contains("legacy check"), "{lines:?}");
}

#[test]
fn settings_to_review_are_a_valid_configuration_without_tokens() {
    let review = config_review(&json!({
        "acp": { "enabled": true, "backend": "acpx", "defaultAgent": "codex", "allowedAgents": ["codex"],
            "stream": { "deliveryMode": "live", "tagVisibility": { "plan": true } } },
        "session": { "threadBindings": { "ttlHours": 1.5 } },
        "channels": { "discord": { "token": "the-bot-token", "threadBindings": { "spawnSessions": true },
            "accounts": { "work": { "token": "the-bot-token" } } } },
        "plugins": { "entries": { "acpx": { "config": { "permissionMode": "approve-reads", "agents": {
            "codex": { "command": "codex-acp", "args": ["--api-key", "the-bot-token"] } } } } } },
    }));
    let toml = &review.toml;
    assert!(!format!("{review:?}").contains("the-bot-token"), "{review:?}");
    for wanted in ["idle_hours = 2", "default_agent = \"codex\"", "spawn_acp_sessions = true", "***"] {
        assert!(toml.contains(wanted), "{wanted}: {toml}");
    }
    let inputs = Inputs { file: Some((Path::new("gateway.toml"), toml)), env: &[], flags: &[] };
    assert!(load(inputs).is_ok(), "{toml}");
    assert!(review.notes.iter().any(|note| note.contains("work")), "{:?}", review.notes);
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "[a-z:@.\\-0-9\\x00-\\x7f]{0,12}".prop_map(Value::from),
        Just(json!(1)),
        Just(json!("acpx")),
    ];
    let names = prop_oneof![
        "(version|bindings|leases|acp|backend|agent|mode|state|cwd|identity|runtimeOptions|backendExtras|threadId)",
        "(channelId|targetSessionKey|boundAt|expiresAt|conversation|channel|conversationId|metadata|schema)",
        "[a-z]{0,4}",
    ];
    leaf.prop_recursive(4, 48, 8, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(names.clone(), inner, 0..8)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn parsers_answer_any_value(file in any_json(), second in any_json()) {
        let mut records = entries(file.clone());
        records.rows.extend(acp_session_row(&file, "A").ok());
        for (bindings, lines) in [
            thread_binding_file(&file, "A"),
            conversation_file(&second, "B"),
            conversation_rows(&[file.clone(), second.clone()], "C"),
            plugin_entries([("x", &second)].into_iter(), "D"),
        ] {
            records.bindings.push(bindings);
            records.lines.extend(lines);
        }
        records.lines.extend(lease_file(&file, "E"));
        records.acpx.extend(acpx_record(&second).ok());
        let _ = config_review(&file);
        let plan = planned(&records);
        prop_assert!(plan.sessions.iter().all(|session| session.row.cwd.starts_with('/') || !session.row.cwd.is_empty()));
    }
}
