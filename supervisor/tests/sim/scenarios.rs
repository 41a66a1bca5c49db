//! Common scenarios: a lease left by an earlier supervisor, a running agent, and the end of a tree.

use crate::kernel::Kernel;
use crate::simulation::{Sim, Tree};
use crate::wrapper::Behavior;
use acp_shared::ids::LeaseId;
use acp_shared::protocol::LeaseState;

impl Sim {
    /// Machine with all abilities and a lease left behind with its whole tree by a dead supervisor.
    pub(crate) async fn with_orphan(state: LeaseState) -> (Self, Tree) {
        Self::with_orphan_on(state, |_| {}).await
    }

    /// Prepares the machine before the supervisor starts.
    pub(crate) async fn with_orphan_on(state: LeaseState, prepare: impl FnOnce(&mut Kernel)) -> (Self, Tree) {
        let mut sim = Self::with_kernel(prepare).await;
        let tree = sim.orphan(state).await;
        (sim, tree)
    }

    /// The orphaned tree ignores SIGTERM.
    pub(crate) async fn with_unresponsive_orphan() -> (Self, Tree) {
        let (sim, tree) = Self::with_orphan(LeaseState::Open).await;
        sim.ignore_sigterm(&tree);
        (sim, tree)
    }

    /// Machine with all abilities and an agent started by this supervisor, with a tool below it.
    pub(crate) async fn with_agent() -> (Self, LeaseId, Tree) {
        Self::with_agent_under(Behavior::default()).await
    }

    /// The agent's wrapper behaves as specified.
    pub(crate) async fn with_agent_under(wrapper: Behavior) -> (Self, LeaseId, Tree) {
        let mut sim = Self::new().await;
        *sim.sys.wrapper.lock().unwrap() = wrapper;
        let id = sim.spawn().await;
        let tree = sim.with_tool(id);
        (sim, id, tree)
    }

    /// Asserts that the lease of a tree is closed and no process of it runs.
    #[track_caller]
    pub(crate) fn assert_ended(&self, tree: &Tree) {
        let found = (self.state(tree), self.kernel().alive(tree.lease));
        assert_eq!(found, (LeaseState::Closed, vec![]), "{:?}", self.lease(tree));
    }

    /// Asserts that the lease of a tree is open and the whole tree runs.
    #[track_caller]
    pub(crate) fn assert_left_open(&self, tree: &Tree) {
        let found = (self.state(tree), self.is_untouched(tree));
        assert_eq!(found, (LeaseState::Open, true), "{:?}", self.lease(tree));
    }

    /// Reaps all leases and asserts that the tree and its lease are untouched.
    pub(crate) async fn assert_reap_spares(&mut self, tree: &Tree) {
        self.reap().await;
        self.assert_left_open(tree);
    }

    /// Reaps all leases and asserts that the tree and its lease have ended.
    pub(crate) async fn assert_reap_ends(&mut self, tree: &Tree) {
        self.reap().await;
        self.assert_ended(tree);
    }

    /// Closes a lease and waits until it is closed.
    pub(crate) async fn close_and_wait(&mut self, id: LeaseId) {
        self.close(id).await;
        self.await_closed(id).await;
    }

    /// Waits until a lease is closed; then no process of its tree runs.
    pub(crate) async fn await_closed(&mut self, id: LeaseId) {
        self.await_state(id, LeaseState::Closed).await;
        assert_eq!(self.kernel().alive(id), [0; 0]);
    }
}
