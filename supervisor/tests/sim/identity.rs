//! Is it the same process? Cases 1 to 6.

use crate::stage::Stage;
use acp_shared::protocol::LeaseState::{Closed, Lost, Open};

#[tokio::test(start_paused = true)]
async fn c37_s_an_orphaned_tree_is_ended_children_first() {
    let mut s = Stage::new().await;
    let tree = s.orphan(Open).await;
    let lines = s.reap().await;
    assert_eq!(lines[0].pids, [tree.child, tree.adapter, tree.wrapper]);
    assert_eq!(s.state(&tree), Closed);
    assert!(s.kernel().alive(tree.lease).is_empty());
}

#[tokio::test(start_paused = true)]
async fn c01_s_a_number_that_a_stranger_has_now_is_left_alone() {
    let mut s = Stage::new().await;
    let tree = s.orphan(Open).await;
    s.kernel().vanish(tree.lease);
    s.kernel().place(tree.wrapper, 1, "stranger");
    s.reap().await;
    assert_eq!(s.state(&tree), Lost);
    assert_eq!(s.sent(), []);
}
