//! How most tests begin and end: a lease of an earlier supervisor or an agent of this one, and their trees gone.

use crate::kernel::Kernel;
use crate::stage::{Stage, Tree};
use crate::wrapper::Wrapper;
use acp_shared::ids::LeaseId;
use acp_shared::protocol::LeaseState;

impl Stage {
    /// A machine with every ability, and a lease that a dead supervisor left behind with its whole tree.
    pub(crate) async fn with_orphan(state: LeaseState) -> (Self, Tree) {
        Self::with_orphan_on(state, |_| {}).await
    }

    /// The same on a machine that is prepared before the supervisor starts.
    pub(crate) async fn with_orphan_on(state: LeaseState, prepare: impl FnOnce(&mut Kernel)) -> (Self, Tree) {
        let mut stage = Self::on(prepare).await;
        let tree = stage.orphan(state).await;
        (stage, tree)
    }

    /// The same on a machine with every ability, with a tree that ignores SIGTERM.
    pub(crate) async fn with_stubborn_orphan() -> (Self, Tree) {
        let (stage, tree) = Self::with_orphan(LeaseState::Open).await;
        stage.harden(&tree);
        (stage, tree)
    }

    /// A machine with every ability, and an agent that this supervisor started, with a tool below it.
    pub(crate) async fn with_agent() -> (Self, LeaseId, Tree) {
        Self::with_agent_under(Wrapper::default()).await
    }

    /// The same under a wrapper that behaves so.
    pub(crate) async fn with_agent_under(wrapper: Wrapper) -> (Self, LeaseId, Tree) {
        let mut stage = Self::new().await;
        *stage.sys.wrapper.lock().unwrap() = wrapper;
        let id = stage.spawn().await;
        let tree = stage.grow(id);
        (stage, id, tree)
    }

    /// The lease of a tree is closed, and nothing of the tree runs.
    #[track_caller]
    pub(crate) fn assert_ended(&self, tree: &Tree) {
        let found = (self.state(tree), self.kernel().alive(tree.lease));
        assert_eq!(found, (LeaseState::Closed, vec![]), "{:?}", self.lease(tree));
    }

    /// The lease of a tree is open, and the whole tree runs.
    #[track_caller]
    pub(crate) fn assert_left_open(&self, tree: &Tree) {
        let found = (self.state(tree), self.untouched(tree));
        assert_eq!(found, (LeaseState::Open, true), "{:?}", self.lease(tree));
    }

    /// Reaps all leases; a tree is left alone with its lease by that.
    pub(crate) async fn reap_nothing_of(&mut self, tree: &Tree) {
        self.reap().await;
        self.assert_left_open(tree);
    }

    /// Reaps all leases; a tree is ended with its lease by that.
    pub(crate) async fn reap_all_of(&mut self, tree: &Tree) {
        self.reap().await;
        self.assert_ended(tree);
    }

    /// Asks for the end of a lease, and waits for it.
    pub(crate) async fn close_to_end(&mut self, id: LeaseId) {
        self.close(id).await;
        self.ends(id).await;
    }

    /// Waits until a lease is closed; nothing of its tree runs then.
    pub(crate) async fn ends(&mut self, id: LeaseId) {
        self.reaches(id, LeaseState::Closed).await;
        assert_eq!(self.kernel().alive(id), [0; 0]);
    }
}
