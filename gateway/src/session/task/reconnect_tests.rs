//! What an earlier connection to the supervisor answered is no news any more once there is another one. The store and
//! the connection are moved by hand here, so that an answer comes exactly while the actor waits for a commit.
#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use super::tests::{NoAgents, leased};
use super::*;
use crate::sim::store::{SimStore, SimWriter};
use crate::supervisor::simulated::SimSupervisorConnection;
use crate::tests::{deps, said};
use acp_core::actor::ActorCommand;
use acp_core::rows::LeaseStatus;
use acp_shared::clock::Clock;
use acp_shared::ids::{AgentName, IdempotencyKey, RunId};
use acp_shared::protocol::{Refusal, RefusalCode, Reply, Request};
use acp_store::Store;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// So many turns of the runtime are enough for whatever can go on by itself.
const TURNS: usize = 200;

struct Stage {
    store: Store,
    pump: SimWriter,
    wire: SimSupervisorConnection,
    lease_id: LeaseId,
    mailbox: mpsc::Sender<ActorRequest>,
    /// Kept, so that the way stays open.
    _urgent: mpsc::Sender<ActorRequest>,
    stop: CancellationToken,
}

/// Lets everybody do what they can without a commit.
async fn turns() {
    for _ in 0..TURNS {
        tokio::task::yield_now().await;
    }
}

/// Does what needs the store, and commits whatever is wanted meanwhile.
async fn committed<T: Send + 'static>(
    pump: &mut SimWriter,
    work: impl Future<Output = T> + Send + 'static,
) -> T {
    let work = tokio::spawn(work);
    while !work.is_finished() {
        turns().await;
        let count = pump.waiting().count();
        pump.commit(count);
    }
    work.await.unwrap()
}

impl Stage {
    /// An actor whose session wants a process that was not asked for yet; the supervisor is away.
    async fn new(hand: &mut SimStore) -> Self {
        let clock = Clock::at(1_700_000_000_000);
        let (store, mut pump) = hand.start(clock);
        let (supervisor, wire) = SimSupervisorConnection::new();
        let key = SessionKey::mint(&AgentName::parse("demo").unwrap());
        let (of, wanted) = (key.clone(), store.clone());
        // As a crash between the commit and the request leaves it.
        let intended = async move { leased(&wanted, &of, LeaseStatus::Intended).await };
        let lease_id = committed(&mut pump, intended).await;
        let deps = Deps { clock, ..deps(&store, supervisor, Arc::new(NoAgents)) };
        let stop = deps.stop.clone();
        let (mailbox, waits) = mpsc::channel(4);
        let (urgent, hurries) = mpsc::channel(4);
        let queues = CommandQueues { mailbox: waits, urgent: hurries };
        tokio::spawn(run(deps, key, queues, LoadRetry::Once));
        let mut stage = Self { store, pump, wire, lease_id, mailbox, _urgent: urgent, stop };
        stage.goes_on().await;
        stage
    }

    /// Lets everything go on until no commit waits.
    async fn goes_on(&mut self) {
        turns().await;
        while self.pump.waiting().next().is_some() {
            self.pump.commit(1);
            turns().await;
        }
    }

    /// The one request that the supervisor has now, which asks for the process.
    fn asked_to_spawn(&mut self) -> u64 {
        let asked: Vec<(u64, Request)> = std::iter::from_fn(|| self.wire.take()).collect();
        let [(id, Request::Spawn(spawn))] = asked.as_slice() else { panic!("{asked:?}") };
        assert_eq!(spawn.lease_id, self.lease_id);
        *id
    }

    /// Something is wanted of the actor that it must commit, and that waits.
    async fn commit_waits(&mut self) {
        let request = said("hello");
        let (reply, _) = tokio::sync::oneshot::channel();
        let (run_id, key) = (RunId::mint(), IdempotencyKey::mint());
        let command = ActorCommand::Prompt { run_id, request, key, caps: None };
        self.mailbox.try_send(ActorRequest { command, keyed: None, reply }).ok().unwrap();
        turns().await;
        assert_eq!(self.pump.waiting().count(), 1, "the actor waits for its commit");
    }
}

/// I8: a start is refused, and the actor has not heard of it when the connection is made anew: it asks again there. If
/// it then took the refusal for the answer to that, the process that starts now would be nobody's.
#[tokio::test(start_paused = true)]
async fn what_an_earlier_connection_answered_is_no_news() {
    let dir = tempfile::tempdir().unwrap();
    let mut hand = SimStore::new(dir.path().to_owned());
    let mut stage = Stage::new(&mut hand).await;
    stage.wire.up("supervisor");
    stage.goes_on().await;
    let first = stage.asked_to_spawn();

    stage.commit_waits().await;
    stage.wire.reply(first, Err(Refusal::new(RefusalCode::SpawnFailed, "no such program")));
    stage.wire.down();
    stage.wire.up("supervisor");
    stage.goes_on().await;

    let second = stage.asked_to_spawn();
    stage.wire.reply(second, Ok(Reply::Done));
    stage.goes_on().await;
    let (_, request) = stage.wire.take().unwrap();
    assert!(matches!(request, Request::Attach { .. }), "the started process is used: {request:?}");
    let lease_id = stage.lease_id;
    let used = stage.store.leases_in_use().await.unwrap();
    assert_eq!(used.iter().map(|row| row.lease_id).collect::<Vec<_>>(), [lease_id]);
    stage.stop.cancel();
}
