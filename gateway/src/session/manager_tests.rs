//! Policy and limits of a manager over a real store, without a supervisor: agents wait.
#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use super::*;
use crate::config::LiveConfig;
use crate::runtime::agents::Agents;
use crate::supervisor::simulated::local_lookup_supervisor;
use crate::tests::{
    binding_row, column, conversation, deps, eventually, lease_row, loaded, prompt_request, session_row,
    spawn, spawn_request,
};
use acp_core::request::StaticSessionParams;
use acp_core::rows::{LeaseStatus, SessionRow};
use acp_core::runtime::Registry;
use acp_core::runtime::direct::DirectRuntime;
use acp_core::session::SessionState;
use acp_core::writes::Write;
use acp_store::{Durability, Store, bindings};
use futures_util::future::join_all;
use std::path::Path;
use std::sync::Arc;
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

struct World {
    dir: TempDir,
    store: Store,
    live: LiveConfig,
    registry: Arc<Registry>,
    manager: Manager,
    stop: CancellationToken,
}

fn world(text: &str) -> World {
    world_in(tempfile::tempdir().unwrap(), text)
}

fn world_in(dir: TempDir, text: &str) -> World {
    let store = Store::open(dir.path(), Durability::Normal).unwrap();
    let live = LiveConfig::new(loaded(text));
    let env = vec![("HOME".to_owned(), "/".to_owned())];
    let agents = Agents::new(live.clone(), env, Path::new("/bin/sh"), dir.path());
    let deps = Deps { live: live.clone(), ..deps(&store, local_lookup_supervisor(), Arc::new(agents)) };
    let (registry, stop) = (Arc::clone(&deps.host.registry), deps.stop.clone());
    World { dir, store, live, registry, manager: Manager::new(deps, GatewayInstanceId::mint()), stop }
}

fn at(account: &str, id: &str) -> ConversationRef {
    ConversationRef { account_id: account.to_owned(), ..conversation(id) }
}

impl World {
    async fn spawn(&self, bind: Option<ConversationRef>) -> Result<SpawnResult, Failure> {
        self.manager.spawn(spawn_request(bind, None), IdempotencyKey::mint()).await
    }

    async fn prompt(&self, key: &SessionKey) -> Result<PromptAccepted, Failure> {
        self.manager.prompt(key, prompt_request("hello"), IdempotencyKey::mint()).await
    }

    /// Inserts a session that exists before the manager.
    async fn existing_session(&self, name: &str, state: SessionState) -> SessionKey {
        self.existing_session_in(&std::fs::canonicalize(self.dir.path()).unwrap(), name, state).await
    }

    async fn existing_session_in(&self, cwd: &Path, name: &str, state: SessionState) -> SessionKey {
        let key = SessionKey::parse(&format!("agent:demo:acp:{name}")).unwrap();
        let cwd = cwd.to_str().unwrap().to_owned();
        spawn(&self.store, SessionRow { state, cwd, ..session_row(&key) }, None).await;
        key
    }

    async fn close(&self, key: &SessionKey) {
        self.manager.close(key, CloseRequest::new("enough"), IdempotencyKey::mint()).await.unwrap();
    }

    fn reload(&self, text: &str) {
        self.live.replace(loaded(text)).unwrap();
    }

    async fn end(self) -> TempDir {
        self.stop.cancel();
        self.manager.stopped().await;
        self.store.close().await;
        self.dir
    }
}

fn assert_refused<T: std::fmt::Debug>(result: Result<T, Failure>, code: Code, wants: &[&str]) {
    let failure = result.unwrap_err();
    assert_eq!(failure.code, code, "{failure}");
    for want in wants {
        assert!(failure.message.contains(want), "{want:?} is not in {:?}", failure.message);
    }
}

const FIVE: &str = "[acp]\nmax_concurrent_sessions = 5\n";

#[tokio::test]
async fn session_limit_holds_for_concurrent_spawns_and_after_restart() {
    let world = world(FIVE);
    let done = join_all((0..20).map(|_| world.spawn(None))).await;
    let (created, rejected): (Vec<_>, Vec<_>) = done.into_iter().partition(Result::is_ok);
    assert_eq!((created.len(), rejected.len()), (5, 15));
    let expected = ["5 sessions are in use", "acp.max_concurrent_sessions = 5 (/g.toml:2)", "Close one"];
    for result in rejected {
        assert_eq!(result.as_ref().unwrap_err().detail_code.as_deref(), Some("SESSIONS_MAX"));
        assert_refused(result, Code::LimitReached, &expected);
    }
    let world = world_in(world.end().await, FIVE);
    assert_refused(world.spawn(None).await, Code::LimitReached, &["5 sessions are in use"]);
    world.close(&created[0].as_ref().unwrap().session_key).await;
    world.spawn(None).await.unwrap();
    assert_refused(world.spawn(None).await, Code::LimitReached, &["5 sessions are in use"]);
    world.reload("[acp]\nmax_concurrent_sessions = 6\n");
    world.spawn(None).await.unwrap();
    drop(world.end().await);
}

const TWO_EACH: &str = "[acp]\nmax_concurrent_sessions_per_account = 2\n[channels.console.accounts.vip]\nmax_concurrent_sessions = 3\n";

#[tokio::test]
async fn account_has_separate_session_limit() {
    let world = world(TWO_EACH);
    let rooms = (0..8).map(|n| world.spawn(Some(at("a", &format!("room{n}")))));
    let done = join_all(rooms).await;
    let created: Vec<SessionKey> =
        done.iter().filter_map(|result| Some(result.as_ref().ok()?.session_key.clone())).collect();
    assert_eq!(created.len(), 2, "{done:?}");
    let again = world.spawn(Some(at("a", "again"))).await;
    assert_eq!(again.as_ref().unwrap_err().detail_code.as_deref(), Some("ACCOUNT_SESSIONS_MAX"));
    assert_refused(again, Code::LimitReached, &["acp.max_concurrent_sessions_per_account = 2 (/g.toml:2)"]);
    // Other accounts, and sessions without an account, have separate limits.
    for room in 0..3 {
        world.spawn(Some(at("vip", &format!("room{room}")))).await.unwrap();
        world.spawn(None).await.unwrap();
    }
    let key = "channels.console.accounts.vip.max_concurrent_sessions = 3 (/g.toml:4)";
    assert_refused(world.spawn(Some(at("vip", "room"))).await, Code::LimitReached, &[key]);
    // A session counts for its account even if it is unbound or bound elsewhere.
    let first = created[0].clone();
    let moved = move |tx: &acp_store::Tx<'_>| {
        bindings::end_all(tx, &first, "moved")?;
        bindings::bind(tx, &binding_row(&first, &at("b", "elsewhere")))
    };
    world.store.write("move", moved).await.unwrap();
    assert_refused(
        world.spawn(Some(at("a", "again"))).await,
        Code::LimitReached,
        &["2 sessions of this account"],
    );
    world.close(&created[0]).await;
    world.spawn(Some(at("a", "again"))).await.unwrap();
    let world = world_in(world.end().await, TWO_EACH);
    assert_refused(
        world.spawn(Some(at("a", "more"))).await,
        Code::LimitReached,
        &["2 sessions of this account"],
    );
    drop(world.end().await);
}

#[tokio::test]
async fn policy_switches_apply_at_once() {
    let world = world("");
    let spawned = world.spawn(None).await.unwrap().session_key;
    world.prompt(&spawned).await.unwrap();
    world.reload("[acp.dispatch]\nenabled = false\n");
    let expected = ["ACP dispatch is disabled by policy: acp.dispatch.enabled = false (/g.toml:2)"];
    assert_refused(world.prompt(&spawned).await, Code::DispatchDisabled, &expected);
    let with_prompt = world.manager.spawn(spawn_request(None, Some("hi")), IdempotencyKey::mint()).await;
    assert_refused(with_prompt, Code::DispatchDisabled, &expected);
    // Sessions can be created and bound.
    world.spawn(Some(at("a", "room"))).await.unwrap();
    world.manager.may_focus(&at("a", "room")).unwrap();
    assert!(!world.manager.dispatch_enabled());

    world.reload("[acp]\nenabled = false\n");
    let expected = ["ACP is disabled by policy: acp.enabled = false (/g.toml:2)"];
    assert_refused(world.prompt(&spawned).await, Code::Disabled, &expected);
    assert_refused(world.spawn(None).await, Code::Disabled, &expected);
    assert_refused(world.manager.may_focus(&at("a", "room")), Code::Disabled, &expected);
    // Running sessions can be stopped.
    world.manager.cancel(&spawned, None, IdempotencyKey::mint()).await.unwrap();
    world.close(&spawned).await;
    world.reload("");
    world.spawn(None).await.unwrap();
    drop(world.end().await);
}

#[tokio::test]
async fn spawn_policy_is_checked_before_creation() {
    let text = "[channels.console.accounts.guests.thread_bindings]\nspawn_acp_sessions = false\n";
    let world = world(text);
    let key = "channels.console.accounts.guests.thread_bindings.spawn_acp_sessions = false (/g.toml:2)";
    assert_refused(world.spawn(Some(at("guests", "room"))).await, Code::Disabled, &[key]);
    world.manager.may_focus(&at("guests", "room")).unwrap();
    world.spawn(Some(at("a", "room"))).await.unwrap();
    drop(world.end().await);
}

#[tokio::test]
async fn bindings_get_timeouts_of_their_account() {
    let text = "[session.thread_bindings]\nidle_hours = 3\nmax_age_hours = 0\n[channels.console.accounts.a.thread_bindings]\nmax_age_hours = 2\n";
    let world = world(text);
    for (account, want) in
        [("a", (Some(3 * 3_600_000), Some(2 * 3_600_000))), ("b", (Some(3 * 3_600_000), None))]
    {
        let to = at(account, "room");
        world.spawn(Some(to.clone())).await.unwrap();
        let asked = to.clone();
        let row = world.store.read("binding", move |db| bindings::of_conversation(db, &asked)).await;
        let row = row.unwrap().unwrap();
        assert_eq!((row.idle_ms, row.max_age_ms), want, "{account}");
        let windows = world.manager.may_focus(&to).unwrap();
        assert_eq!((windows.idle_ms, windows.max_age_ms), want, "{account}");
    }
    drop(world.end().await);
}

#[tokio::test]
async fn start_resumes_configured_number_of_resting_sessions() {
    for (eager, created) in [("eager_actors = 0", 0), ("eager_actors = 2", 2), ("", 3)] {
        let world = world(&format!("[acp.control_plane.recovery]\n{eager}\n"));
        for name in ["a", "b", "c"] {
            world.existing_session(name, SessionState::Idle).await;
        }
        assert_eq!(world.manager.resume().await.unwrap(), 0, "no actor has work");
        assert_eq!(world.manager.actors.lock().len(), created, "{eager}");
        world.end().await;
    }
}

#[tokio::test]
async fn running_session_applies_reloaded_limits() {
    let world = world("[limits]\nqueue_runs_max = 2\n");
    let key = world.spawn(None).await.unwrap().session_key;
    world.prompt(&key).await.unwrap();
    world.prompt(&key).await.unwrap();
    assert_refused(world.prompt(&key).await, Code::LimitReached, &[]);
    world.reload("[agents.demo]\nqueue_runs_max = 3\n");
    eventually("a longer queue", async || world.prompt(&key).await.ok()).await;
    assert_refused(world.prompt(&key).await, Code::LimitReached, &[]);
    drop(world.end().await);
}

/// A resting session is checked again before its agent starts: directories and roots may have changed.
#[tokio::test]
async fn agent_is_not_started_outside_current_roots() {
    let world = world("");
    let real = std::fs::canonicalize(world.dir.path()).unwrap();
    let (work, other) = (real.join("work"), real.join("other"));
    std::fs::create_dir(&work).unwrap();
    std::fs::create_dir(&other).unwrap();
    let first = world.existing_session_in(&work, "first", SessionState::Idle).await;
    world.reload(&format!("[acp]\nworkspace_roots = [\"{}\"]\n", other.display()));
    assert_refused(world.prompt(&first).await, Code::CwdNotAllowed, &["outside of acp.workspace_roots"]);
    world.reload("");
    eventually("an accepted prompt", async || world.prompt(&first).await.ok()).await;

    let second = world.existing_session_in(&work, "second", SessionState::Idle).await;
    std::fs::remove_dir(&work).unwrap();
    std::os::unix::fs::symlink(&other, &work).unwrap();
    let expected = ["now resolves to", "other. Start a new session"];
    assert_refused(world.prompt(&second).await, Code::CwdNotAllowed, &expected);
    drop(world.end().await);
}

/// B9: closed, dead and resting sessions do not count; a resting session counts once it wakes.
#[tokio::test]
async fn resting_dead_and_closed_sessions_are_not_in_use() {
    let world = world(FIVE);
    let resting = world.existing_session("resting", SessionState::Idle).await;
    for number in 0..4 {
        world.existing_session(&format!("idle-{number}"), SessionState::Idle).await;
        world.existing_session(&format!("dead-{number}"), SessionState::Error).await;
        let closed = world.existing_session(&format!("closed-{number}"), SessionState::Idle).await;
        world.close(&closed).await;
    }
    let mut created = Vec::new();
    for _ in 0..5 {
        created.push(world.spawn(None).await.unwrap().session_key);
    }
    assert_refused(world.spawn(None).await, Code::LimitReached, &["5 sessions are in use"]);
    let expected = ["5 sessions are in use", "wait until one is idle"];
    assert_refused(world.prompt(&resting).await, Code::LimitReached, &expected);
    world.prompt(&created[1]).await.unwrap();
    world.close(&created[0]).await;
    eventually("room", async || world.prompt(&resting).await.ok()).await;
    assert_refused(world.spawn(None).await, Code::LimitReached, &["5 sessions are in use"]);
    world.prompt(&resting).await.unwrap();
    drop(world.end().await);
}

/// B16: each reason for a missing agent has its code, key and next step, and creates nothing.
#[tokio::test]
async fn each_reason_for_no_agent_has_code_and_next_step() {
    let world = world("");
    let table: [(&str, Code, &[&str]); 6] = [
        (
            "[acp]\nbackend = \"none\"\n[acp.runtime]\ninstall_command = \"npm i acpx\"\n",
            Code::BackendMissing,
            // The command of the configuration installs nothing that this gateway could use.
            &[
                "acp.backend = none (/g.toml:2). This gateway has only the backend acpx, direct: set acp.backend = \"direct\".",
            ],
        ),
        ("", Code::BackendUnavailable, &["currently unavailable", "Try again in a moment", "acp.backend"]),
        ("[acp]\nenabled = false\n", Code::Disabled, &["acp.enabled = false (/g.toml:2)", "reload"]),
        (
            "[acp.dispatch]\nenabled = false\n",
            Code::DispatchDisabled,
            &["acp.dispatch.enabled = false (/g.toml:2)"],
        ),
        (
            "[acp]\nallowed_agents = [\"goose\"]\n",
            Code::AgentNotAllowed,
            &["demo is not in acp.allowed_agents (goose; set by /g.toml:2)"],
        ),
        ("[acp]\nworkspace_roots = [\"/nowhere\"]\n", Code::CwdNotAllowed, &["acp.workspace_roots"]),
    ];
    for (text, code, wants) in table {
        world.reload(text);
        let outage = (code == Code::BackendUnavailable).then(|| "/secret/path is gone".to_owned());
        world.registry.register(Arc::new(DirectRuntime::new(move || outage.clone())));
        let spawned = world.manager.spawn(spawn_request(None, Some("hi")), IdempotencyKey::mint()).await;
        assert!(!format!("{spawned:?}").contains("/secret"), "details belong in the log");
        assert_refused(spawned, code, wants);
    }
    world.reload("");
    assert_eq!(world.manager.resume().await.unwrap(), 0, "no session was created");
    world.spawn(None).await.unwrap();
    drop(world.end().await);
}

/// B16: a session without its backend refuses prompts with a reason, and can be cancelled and closed.
#[tokio::test]
async fn session_without_backend_can_be_closed() {
    let world = world("");
    let key = world.existing_session("one", SessionState::Idle).await;
    world.registry.unregister("direct");
    assert_refused(world.prompt(&key).await, Code::BackendMissing, &["not configured"]);
    world.manager.cancel(&key, None, IdempotencyKey::mint()).await.unwrap();
    world.close(&key).await;
    let kept = world.existing_session("two", SessionState::Idle).await;
    assert_refused(world.prompt(&kept).await, Code::BackendMissing, &[]);
    world.registry.register(Arc::new(DirectRuntime::default()));
    eventually("an accepted prompt", async || world.prompt(&kept).await.ok()).await;
    drop(world.end().await);
}

/// B17: a session keeps its backend after a configuration change; there is no fallback.
#[tokio::test]
async fn session_keeps_its_backend() {
    let world = world("");
    let key = world.spawn(None).await.unwrap().session_key;
    world.reload("[acp]\nbackend = \"acpx\"\n");
    assert_refused(world.spawn(None).await, Code::BackendMissing, &[]);
    world.prompt(&key).await.unwrap();
    assert_eq!(world.store.session(key).await.unwrap().unwrap().backend, "direct");
    drop(world.end().await);
}

/// B7: a repeated command gets its first response, even if a new one would be refused.
#[tokio::test]
async fn repeated_command_gets_first_response_despite_changes() {
    let world = world("");
    let session = world.spawn(None).await.unwrap().session_key;
    let dir = std::fs::canonicalize(world.dir.path()).unwrap().join("work");
    std::fs::create_dir(&dir).unwrap();
    let cwd = || Setting::Cwd(dir.to_str().unwrap().to_owned());
    let keys: Vec<IdempotencyKey> = (0..2).map(|_| IdempotencyKey::mint()).collect();
    let set = world.manager.set(&session, cwd(), keys[0].clone()).await.unwrap();
    let accepted = world.manager.prompt(&session, prompt_request("hello"), keys[1].clone()).await.unwrap();
    std::fs::remove_dir(&dir).unwrap();
    world.reload("[acp.dispatch]\nenabled = false\n");
    assert_eq!(world.manager.set(&session, cwd(), keys[0].clone()).await.unwrap(), set);
    assert_refused(
        world.manager.set(&session, cwd(), IdempotencyKey::mint()).await,
        Code::CwdNotAllowed,
        &[],
    );
    assert_eq!(
        world.manager.prompt(&session, prompt_request("hello"), keys[1].clone()).await.unwrap(),
        accepted
    );
    let other = world.manager.prompt(&session, prompt_request("other"), keys[1].clone()).await;
    assert_refused(other, Code::IdempotencyConflict, &[]);
    assert_refused(world.prompt(&session).await, Code::DispatchDisabled, &[]);
    drop(world.end().await);
}

/// A name may belong to another session when a client repeats its prompt.
#[tokio::test]
async fn repeated_prompt_by_name_has_no_effect_in_another_session() {
    let world = world("");
    let first = world.spawn(None).await.unwrap().session_key;
    let other = world.spawn(None).await.unwrap().session_key;
    let once = IdempotencyKey::mint();
    let named = |name: &str| PromptRequest { found_by: Some(name.to_owned()), ..prompt_request("hello") };
    let accepted = world.manager.prompt(&first, named("a"), once.clone()).await.unwrap();
    let repeated = world.manager.prompt(&first, named("a"), once.clone()).await.unwrap();
    assert_eq!(repeated.run_id, accepted.run_id);
    let moved = world.manager.prompt(&other, named("a"), once.clone()).await;
    assert_refused(moved, Code::IdempotencyConflict, &[]);
    let runs = async |key: SessionKey| {
        world.store.read("runs", move |db| acp_store::runs::unfinished(db, &key)).await.unwrap().len()
    };
    assert_eq!((runs(first.clone()).await, runs(other.clone()).await), (1, 0));
    // The same key for another name is another prompt.
    world.manager.prompt(&other, named("b"), once).await.unwrap();
    assert_eq!((runs(first).await, runs(other).await), (1, 1));
    drop(world.end().await);
}

/// The agent of a host that the operator has removed counts as lost: the session is moved without it, once.
#[tokio::test]
async fn session_of_a_removed_host_moves_without_its_agent() {
    let world = world("");
    let key = SessionKey::parse("agent:demo:acp:away").unwrap();
    let mut row = session_row(&key);
    row.options.host = Some("gone".to_owned());
    spawn(&world.store, row, None).await;
    let (snapshot, fence) = world.store.claim(key.clone()).await.unwrap();
    let lease = lease_row(&key, LeaseStatus::Ready);
    let session = SessionRow { lease_id: Some(lease.lease_id), ..snapshot.session };
    let writes = vec![Write::NewLease(Box::new(lease)), Write::Session(Box::new(session))];
    world.store.commit(fence, writes).await.unwrap();
    let once = IdempotencyKey::mint();
    let moved = world.manager.set(&key, Setting::Host("local".to_owned()), once.clone()).await.unwrap();
    let row = world.store.session(key.clone()).await.unwrap().unwrap();
    assert_eq!((row.options.host, row.lease_id), (None, None));
    let again = world.manager.set(&key, Setting::Host("local".to_owned()), once).await.unwrap();
    assert_eq!(again, moved);
    let unknown = world.manager.set(&key, Setting::Host("gone".to_owned()), IdempotencyKey::mint()).await;
    assert_refused(unknown, Code::Usage, &["There is no host \"gone\"", "local"]);
    world.prompt(&key).await.unwrap();
    drop(world.end().await);
}

/// B7: concurrent requests with one key make one session and one run.
#[tokio::test]
async fn concurrent_requests_with_one_key_have_one_effect() {
    let world = world("");
    let key = IdempotencyKey::mint();
    let spawns = (0..8).map(|_| world.manager.spawn(spawn_request(None, None), key.clone()));
    let spawned: Vec<SpawnResult> = join_all(spawns).await.into_iter().map(Result::unwrap).collect();
    assert!(spawned.iter().all(|result| *result == spawned[0]), "{spawned:?}");
    let session = &spawned[0].session_key;
    let prompts = (0..8).map(|_| world.manager.prompt(session, prompt_request("hello"), key.clone()));
    let accepted: Vec<PromptAccepted> = join_all(prompts).await.into_iter().map(Result::unwrap).collect();
    assert!(accepted.iter().all(|result| *result == accepted[0]), "{accepted:?}");
    let count = "SELECT count(*) FROM acp_sessions UNION ALL SELECT count(*) FROM acp_runs";
    assert_eq!(column::<u32>(&world.store, count).await, [1, 1]);
    drop(world.end().await);
}

/// D2: a timeout and a prompt at the same moment: either the prompt is accepted and the session stays, or the
/// session is closed and the prompt refused.
#[tokio::test]
async fn timeout_and_concurrent_prompt_are_consistent() {
    let world = world("");
    for round in 0..20 {
        let key = world.existing_session(&format!("round-{round}"), SessionState::Idle).await;
        let seen_ms = world.store.session(key.clone()).await.unwrap().unwrap().last_activity_at_ms;
        let source = acp_core::timeouts::TimeoutKind::Session;
        let expiry = Expiry { at_ms: seen_ms, source, window_ms: 1, binding_id: None };
        let expire = world.manager.expire(&key, expiry, seen_ms, true);
        let (prompted, expired) = if round % 2 == 0 {
            tokio::join!(world.prompt(&key), expire)
        } else {
            let (expired, prompted) = tokio::join!(expire, world.prompt(&key));
            (prompted, expired)
        };
        expired.unwrap();
        let closed = world.store.session(key).await.unwrap().unwrap().state == SessionState::Closed;
        match prompted {
            Ok(_) => assert!(!closed, "an accepted prompt is not lost by a close"),
            Err(failure) => assert_eq!((failure.code, closed), (Code::SessionClosed, true)),
        }
    }
    drop(world.end().await);
}

fn static_spawn(at: ConversationRef, key: &str, backend: Option<&str>) -> SpawnRequest {
    let created = "{\"configured\":{\"home\":\"c\",\"agent\":\"demo\",\"mode\":\"persistent\",\"backend\":null,\"cwd\":null}}";
    let session_key = SessionKey::parse(key).unwrap();
    let backend = backend.map(str::to_owned);
    let params = Some(StaticSessionParams { session_key, metadata: created.to_owned(), backend });
    SpawnRequest { configured: params, ..spawn_request(Some(at), None) }
}

#[tokio::test]
async fn static_session_uses_its_own_backend() {
    let world = world("[[bindings]]\nchannel = \"console\"\nconversation = \"c\"\nagent = \"demo\"\n");
    let request = static_spawn(at("a", "c"), "agent:demo:acp:binding:1", Some("acpx"));
    let refusal = world.manager.spawn(request, IdempotencyKey::mint()).await;
    assert_refused(refusal, Code::BackendMissing, &["backend of [[bindings]] = acpx (/g.toml:1)"]);
    drop(world.end().await);
}

/// A static session has its configured key and no timeouts, and needs no spawn permission. A reset keeps
/// session and binding, a close does not.
#[tokio::test]
async fn reset_of_static_session_keeps_its_binding() {
    let world = world("[channels.console.thread_bindings]\nspawn_acp_sessions = false\nidle_hours = 1\n");
    let request = static_spawn(at("a", "c"), "agent:demo:acp:binding:1", None);
    let key = world.manager.spawn(request, IdempotencyKey::mint()).await.unwrap().session_key;
    assert_eq!(key.as_str(), "agent:demo:acp:binding:1");
    let binding = async || {
        let of = key.clone();
        world.store.read("bindings", move |db| bindings::of_session(db, &of)).await.unwrap().pop()
    };
    let bound = binding().await.unwrap();
    assert_eq!((bound.idle_ms, bound.max_age_ms), (None, None));
    let close = |ending| CloseRequest { ending, ..CloseRequest::new("enough") };
    let once = IdempotencyKey::mint();
    for _ in 0..2 {
        let now = world.manager.close(&key, close(Ending::Reset), once.clone()).await.unwrap();
        assert_ne!(now.state, SessionState::Closed);
    }
    assert_eq!(binding().await.unwrap().binding_id, bound.binding_id);
    let count = "SELECT count(*) FROM acp_events WHERE payload_json LIKE '%new_conversation%'";
    assert_eq!(column::<u64>(&world.store, count).await, [1], "only once per key");
    let now = world.manager.close(&key, close(Ending::Closed), IdempotencyKey::mint()).await.unwrap();
    assert_eq!((now.state, binding().await), (SessionState::Closed, None));
    drop(world.end().await);
}

/// Sessions woken concurrently share the limit, which is checked again in the commit.
#[tokio::test]
async fn concurrent_wakeups_respect_the_session_limit() {
    const THREE: &str =
        "[acp]\nmax_concurrent_sessions = 3\n[channels.console.accounts.a]\nmax_concurrent_sessions = 2\n";
    for account in [None, Some("a")] {
        let world = world(THREE);
        let mut resting = Vec::new();
        for number in 0..8 {
            let key = world.existing_session(&format!("rest-{number}"), SessionState::Idle).await;
            if let Some(account) = account {
                let binding = binding_row(&key, &at(account, &format!("room{number}")));
                world.store.write("bind", move |tx| bindings::bind(tx, &binding)).await.unwrap();
            }
            resting.push(key);
        }
        let done = join_all(resting.iter().map(|key| world.prompt(key))).await;
        let (woken, rejected): (Vec<_>, Vec<_>) = done.into_iter().partition(Result::is_ok);
        let (max, detail) = if account.is_some() { (2, "ACCOUNT_SESSIONS_MAX") } else { (3, "SESSIONS_MAX") };
        assert_eq!(woken.len(), max, "{account:?}");
        for result in rejected {
            assert_eq!(result.as_ref().unwrap_err().detail_code.as_deref(), Some(detail));
            assert_refused(result, Code::LimitReached, &["which is the maximum", "(/g.toml:"]);
        }
        // Refused sessions are unchanged, and can wake once another one closes.
        let is_awake = async |key: &SessionKey| {
            world.store.session(key.clone()).await.unwrap().unwrap().last_session_seq > 0
        };
        let mut asleep = Vec::new();
        for key in resting {
            if is_awake(&key).await { world.close(&key).await } else { asleep.push(key) }
        }
        world.prompt(&asleep[0]).await.unwrap();
        drop(world.end().await);
    }
}
