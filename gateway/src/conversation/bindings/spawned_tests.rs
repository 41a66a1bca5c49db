//! Conversations of sessions that agents spawn: the manager's rows, which the binding service finishes.
#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use super::SessionBindingService;
use crate::channel::console::Console;
use crate::channel::{ChannelAdapter, Channels};
use crate::config::LiveConfig;
use crate::metrics::Metrics;
use crate::runtime::agents::Agents;
use crate::session::manager::{Manager, SpawnRequest};
use crate::session::task::Deps;
use crate::supervisor::simulated::local_lookup_supervisor;
use crate::tests::{binding_row, conversation, deps, loaded, open, session_row, spawn, spawn_request};
use acp_core::binding::is_of_agent_spawn;
use acp_core::rows::{BindingRow, BindingStatus, ConversationRef, SessionRow, TargetKind};
use acp_shared::ids::{GatewayInstanceId, IdempotencyKey, SessionKey};
use acp_store::bindings;
use std::path::Path;
use std::sync::Arc;

const OFF: &str = "[channels.console.thread_bindings]\nspawn_subagent_sessions = false\n";

/// A session that an agent spawns gets a conversation next to that of its parent, where the channel and the policy of that
/// account allow it.
#[tokio::test]
async fn spawned_session_gets_a_conversation_next_to_its_parents() {
    let (dir, store) = open();
    let live = LiveConfig::new(loaded(""));
    let env = vec![("HOME".to_owned(), "/".to_owned())];
    let agents = Agents::new(live.clone(), env, Path::new("/bin/sh"), dir.path());
    let channels = Channels::new([Arc::new(Console::new(store.clone())) as Arc<dyn ChannelAdapter>]);
    let deps = deps(&store, local_lookup_supervisor(), Arc::new(agents));
    let deps = Deps { live: live.clone(), channels: channels.clone(), ..deps };
    let stop = deps.stop.clone();
    let manager = Manager::new(deps, GatewayInstanceId::mint());
    let service = SessionBindingService::new(store.clone(), channels, Metrics::default());
    let opening = tokio::spawn(service.run_retries(stop.clone()));
    let cwd = std::fs::canonicalize(dir.path()).unwrap().to_str().unwrap().to_owned();
    let other = ConversationRef { account_id: "other".to_owned(), ..conversation("room") };
    let below = ConversationRef { parent_conversation_id: Some("room".to_owned()), ..conversation("thread") };
    for (name, parents, status, text, want) in [
        ("unbound", None, BindingStatus::Active, "", None),
        ("parked", Some(conversation("room")), BindingStatus::Parked, "", None),
        ("not-served", Some(other), BindingStatus::Active, "", None),
        ("off", Some(conversation("lobby")), BindingStatus::Active, OFF, None),
        ("in-room", Some(conversation("hall")), BindingStatus::Active, "", Some("hall")),
        ("in-thread", Some(below), BindingStatus::Active, "", Some("room")),
    ] {
        live.replace(loaded(text)).unwrap();
        let parent = SessionKey::parse(&format!("agent:demo:acp:{name}")).unwrap();
        let binding = parents.map(|at| BindingRow { status, ..binding_row(&parent, &at) });
        spawn(&store, SessionRow { cwd: cwd.clone(), ..session_row(&parent) }, binding).await;
        let request = SpawnRequest {
            spawned_by: Some(parent.clone()),
            by_agent: true,
            author: "agent demo".to_owned(),
            ..spawn_request(None, Some("work"))
        };
        let child = manager.spawn(request, IdempotencyKey::mint()).await.unwrap().session_key;
        let bound = store.read("bindings", move |db| bindings::of_session(db, &child)).await.unwrap();
        let above = |row: &BindingRow| row.conversation.parent_conversation_id.clone();
        assert_eq!(bound.iter().filter_map(above).collect::<Vec<_>>(), Vec::from_iter(want), "{name}");
        for row in bound {
            let found = (row.status, row.bound_by.as_str(), row.target_kind, row.idle_ms);
            let day_ms = 24 * 3_600_000;
            assert_eq!(found, (BindingStatus::Active, "ann", TargetKind::Subagent, Some(day_ms)), "{name}");
            assert!(is_of_agent_spawn(&row.metadata), "{row:?}");
        }
    }
    stop.cancel();
    manager.stopped().await;
    opening.await.unwrap();
    store.close().await;
}
