//! The identity set ACPX-01 to ACPX-10 of OpenClaw's process tests, on orphans of an earlier supervisor whose tree
//! ignores SIGTERM.

use crate::kernel::Kernel;
use crate::stage::{REAP_TERM_MS, Stage, Tree};
use acp_shared::ids::GatewayInstanceId;
use acp_shared::launch::ExitStatus;
use acp_shared::protocol::LeaseState::Reserved;
use acp_supervisor::sys::Signal::{self, Cont, Kill, Term};

struct Row {
    name: &'static str,
    /// Before the first look.
    before: fn(&mut Kernel, Tree),
    /// Between SIGTERM and SIGKILL.
    between: fn(&mut Kernel, Tree),
    wrapper: &'static [Signal],
    child: &'static [Signal],
}

const WHOLE: &[Signal] = &[Term, Cont, Kill];
/// A member of a group is reached with its leader, and once more by itself if that was not enough.
const ASKED: &[Signal] = &[Term, Cont];
/// Nothing happens, and both are asked to end.
const ROW: Row = Row { name: "", before: |_, _| {}, between: |_, _| {}, wrapper: ASKED, child: ASKED };

/// The tree ends, and strangers get the numbers of two of its processes.
fn replace_by_strangers(k: &mut Kernel, tree: Tree) {
    k.vanish(tree.lease);
    k.place(tree.wrapper, 1, "stranger");
    k.place(tree.child, 1, "stranger");
}

const ROWS: [Row; 9] = [
    Row {
        name: "ACPX-01: another start before SIGTERM",
        before: replace_by_strangers,
        wrapper: &[],
        child: &[],
        ..ROW
    },
    Row { name: "ACPX-02: another start after SIGTERM", between: replace_by_strangers, ..ROW },
    Row { name: "ACPX-03: ended after SIGTERM", between: |k, tree| k.vanish(tree.lease), ..ROW },
    Row { name: "ACPX-04: the same", wrapper: WHOLE, child: WHOLE, ..ROW },
    Row {
        name: "ACPX-05: no list before SIGTERM",
        before: |k, _| k.list_fails = true,
        wrapper: &[],
        child: &[],
        ..ROW
    },
    Row { name: "ACPX-06: no list before SIGKILL", between: |k, _| k.list_fails = true, ..ROW },
    Row {
        name: "ACPX-07: the same command under the same number, another start",
        between: |k, tree| {
            let of = k.task(tree.wrapper).clone();
            k.vanish(tree.lease);
            k.place(tree.wrapper, 1, "acp-wrapper");
            k.edit(tree.wrapper, |t| (t.start_ticks, t.exe) = (of.start_ticks, of.exe));
        },
        ..ROW
    },
    Row {
        name: "ACPX-08: a changed child is left out",
        between: |k, tree| k.give_away(tree.child),
        wrapper: WHOLE,
        ..ROW
    },
    Row {
        name: "ACPX-09: only those that are the same get SIGKILL",
        between: |k, tree| {
            for pid in [tree.adapter, tree.child] {
                k.setsid(pid);
                k.edit(pid, |t| t.dies_with_parent = false);
            }
            k.exit(tree.wrapper, ExitStatus::Exited(0));
            k.place(tree.wrapper, 1, "stranger");
        },
        child: WHOLE,
        ..ROW
    },
];

#[tokio::test(start_paused = true)]
async fn acpx_01_to_09() {
    for row in ROWS {
        let (mut s, tree) = Stage::with_stubborn_orphan().await;
        (row.before)(&mut s.kernel(), tree);
        s.kernel().in_ms(REAP_TERM_MS / 2, move |k| (row.between)(k, tree));
        let _ = s.try_reap().await;
        s.pass(REAP_TERM_MS).await;
        let seen = |pid| {
            let mut signals = s.sent_to(pid);
            signals.dedup();
            signals
        };
        assert_eq!(
            (seen(tree.wrapper).as_slice(), seen(tree.child).as_slice()),
            (row.wrapper, row.child),
            "{}",
            row.name
        );
    }
}

#[tokio::test(start_paused = true)]
async fn acpx_10_a_pending_lease_of_another_gateway_signals_nobody() {
    let (mut s, tree) = Stage::with_orphan(Reserved).await;
    // The tree says that it is of this lease, and of another gateway.
    let foreign = crate::kernel::environ(tree.lease, GatewayInstanceId::mint());
    s.edit_all(&tree, |t| t.environ.clone_from(&foreign));
    s.kernel().ours.clear();
    s.reap().await;
    assert!(s.untouched(&tree));
}
