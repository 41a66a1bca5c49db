//! Replies of an earlier supervisor connection are ignored. The test drives store and connection, so that a
//! reply arrives while the actor waits for a commit.
#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use super::tests::{NoAgents, insert_leased_session};
use super::*;
use crate::sim::store::{SimStore, SimWriter};
use crate::supervisor::simulated::SimSupervisorConnection;
use crate::tests::{deps, prompt_request};
use acp_core::actor::ActorCommand;
use acp_core::rows::LeaseStatus;
use acp_shared::clock::Clock;
use acp_shared::ids::{AgentName, IdempotencyKey, RunId};
use acp_shared::protocol::{Refusal, RefusalCode, Reply, Request};
use acp_store::Store;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// Number of yields in which all ready tasks finish.
const YIELDS: usize = 200;

struct Fixture {
    store: Store,
    writer: SimWriter,
    wire: SimSupervisorConnection,
    lease_id: LeaseId,
    mailbox: mpsc::Sender<ActorRequest>,
    /// Held so that the channel stays open.
    _urgent: mpsc::Sender<ActorRequest>,
    stop: CancellationToken,
}

/// Runs all tasks that need no commit.
async fn yield_all() {
    for _ in 0..YIELDS {
        tokio::task::yield_now().await;
    }
}

/// Runs work that needs the store, and commits its transactions.
async fn run_committed<T: Send + 'static>(
    writer: &mut SimWriter,
    work: impl Future<Output = T> + Send + 'static,
) -> T {
    let work = tokio::spawn(work);
    while !work.is_finished() {
        yield_all().await;
        let count = writer.waiting().count();
        writer.commit(count);
    }
    work.await.unwrap()
}

impl Fixture {
    /// Starts an actor whose process is not requested yet, with the supervisor disconnected.
    async fn new(sim_store: &mut SimStore) -> Self {
        let clock = Clock::at(1_700_000_000_000);
        let (store, mut writer) = sim_store.start(clock);
        let (supervisor, wire) = SimSupervisorConnection::new();
        let key = SessionKey::mint(&AgentName::parse("demo").unwrap());
        let (of, target) = (key.clone(), store.clone());
        // State after a crash between commit and request.
        let intended = async move { insert_leased_session(&target, &of, LeaseStatus::Intended).await };
        let lease_id = run_committed(&mut writer, intended).await;
        let deps = Deps { clock, ..deps(&store, supervisor, Arc::new(NoAgents)) };
        let stop = deps.stop.clone();
        let (mailbox, mailbox_commands) = mpsc::channel(4);
        let (urgent, urgent_commands) = mpsc::channel(4);
        let queues = CommandQueues { mailbox: mailbox_commands, urgent: urgent_commands };
        tokio::spawn(run(deps, key, queues, LoadRetry::Once, FreshSession::default()));
        let mut fixture = Self { store, writer, wire, lease_id, mailbox, _urgent: urgent, stop };
        fixture.settle().await;
        fixture
    }

    /// Commits until no transaction waits.
    async fn settle(&mut self) {
        yield_all().await;
        while self.writer.waiting().next().is_some() {
            self.writer.commit(1);
            yield_all().await;
        }
    }

    fn take_spawn_request(&mut self) -> u64 {
        let requests: Vec<(u64, Request)> = std::iter::from_fn(|| self.wire.take()).collect();
        let [(id, Request::Spawn(spawn))] = requests.as_slice() else { panic!("{requests:?}") };
        assert_eq!(spawn.lease_id, self.lease_id);
        *id
    }

    async fn start_waiting_commit(&mut self) {
        let request = prompt_request("hello");
        let (reply, _) = tokio::sync::oneshot::channel();
        let (run_id, key) = (RunId::mint(), IdempotencyKey::mint());
        let command = ActorCommand::Prompt { run_id, request, key, caps: None };
        self.mailbox.try_send(ActorRequest { command, keyed: None, reply }).ok().unwrap();
        yield_all().await;
        assert_eq!(self.writer.waiting().count(), 1, "the actor waits for its commit");
    }
}

/// I8: a spawn is refused on a connection that breaks before the actor handles the refusal, and is repeated
/// on the next one. The old refusal must not end the new process.
#[tokio::test(start_paused = true)]
async fn reply_of_earlier_connection_is_ignored() {
    let dir = tempfile::tempdir().unwrap();
    let mut sim_store = SimStore::new(dir.path().to_owned());
    let mut fixture = Fixture::new(&mut sim_store).await;
    fixture.wire.up("supervisor");
    fixture.settle().await;
    let first = fixture.take_spawn_request();

    fixture.start_waiting_commit().await;
    fixture.wire.reply(first, Err(Refusal::new(RefusalCode::SpawnFailed, "no such program")));
    fixture.wire.down();
    fixture.wire.up("supervisor");
    fixture.settle().await;

    let second = fixture.take_spawn_request();
    fixture.wire.reply(second, Ok(Reply::Done));
    fixture.settle().await;
    let (_, request) = fixture.wire.take().unwrap();
    assert!(matches!(request, Request::Attach { .. }), "the started process is used: {request:?}");
    let lease_id = fixture.lease_id;
    let used = fixture.store.leases_in_use().await.unwrap();
    assert_eq!(used.iter().map(|row| row.lease_id).collect::<Vec<_>>(), [lease_id]);
    fixture.stop.cancel();
}
