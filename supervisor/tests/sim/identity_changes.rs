//! Identity changes around SIGTERM and SIGKILL, on orphans that ignore SIGTERM. The rows are OpenClaw's cases
//! ACPX-01 to ACPX-09, in order.

use crate::kernel::Kernel;
use crate::simulation::{REAP_TERM_MS, Sim, Tree};
use acp_shared::ids::GatewayInstanceId;
use acp_shared::launch::ExitStatus;
use acp_shared::protocol::LeaseState::Reserved;
use acp_supervisor::sys::Signal::{self, Cont, Kill, Term};

struct Case {
    name: &'static str,
    /// Change before verification.
    before: fn(&mut Kernel, Tree),
    /// Change between SIGTERM and SIGKILL.
    between: fn(&mut Kernel, Tree),
    wrapper: &'static [Signal],
    child: &'static [Signal],
}

const WITH_KILL: &[Signal] = &[Term, Cont, Kill];
/// Signals of a process that ends after SIGTERM.
const TERM_ONLY: &[Signal] = &[Term, Cont];
const CASE: Case =
    Case { name: "", before: |_, _| {}, between: |_, _| {}, wrapper: TERM_ONLY, child: TERM_ONLY };

/// Ends the tree and reuses two of its pids.
fn reuse_pids(k: &mut Kernel, tree: Tree) {
    k.exit_tree(tree.lease);
    k.create(tree.wrapper, 1, "foreign");
    k.create(tree.child, 1, "foreign");
}

const CASES: [Case; 9] = [
    Case { name: "restarted before SIGTERM", before: reuse_pids, wrapper: &[], child: &[], ..CASE },
    Case { name: "restarted after SIGTERM", between: reuse_pids, ..CASE },
    Case { name: "ended after SIGTERM", between: |k, tree| k.exit_tree(tree.lease), ..CASE },
    Case { name: "unchanged", wrapper: WITH_KILL, child: WITH_KILL, ..CASE },
    Case {
        name: "no process list before SIGTERM",
        before: |k, _| k.list_fails = true,
        wrapper: &[],
        child: &[],
        ..CASE
    },
    Case { name: "no process list before SIGKILL", between: |k, _| k.list_fails = true, ..CASE },
    Case {
        name: "same command and pid, other start time",
        between: |k, tree| {
            let of = k.task(tree.wrapper).clone();
            k.exit_tree(tree.lease);
            k.create(tree.wrapper, 1, "acp-wrapper");
            k.edit(tree.wrapper, |t| (t.start_ticks, t.exe) = (of.start_ticks, of.exe));
        },
        ..CASE
    },
    Case {
        name: "changed child",
        between: |k, tree| k.replace_with_foreign(tree.child),
        wrapper: WITH_KILL,
        ..CASE
    },
    Case {
        name: "changed wrapper",
        between: |k, tree| {
            for pid in [tree.adapter, tree.child] {
                k.setsid(pid);
                k.edit(pid, |t| t.dies_with_parent = false);
            }
            k.exit(tree.wrapper, ExitStatus::Exited(0));
            k.create(tree.wrapper, 1, "foreign");
        },
        child: WITH_KILL,
        ..CASE
    },
];

#[tokio::test(start_paused = true)]
async fn signals_need_unchanged_identity() {
    for case in CASES {
        let (mut s, tree) = Sim::with_unresponsive_orphan().await;
        (case.before)(&mut s.kernel(), tree);
        s.kernel().schedule(REAP_TERM_MS / 2, move |k| (case.between)(k, tree));
        let _ = s.try_reap().await;
        s.advance(REAP_TERM_MS).await;
        let signals = |pid| {
            let mut signals = s.signals_to(pid);
            signals.dedup();
            signals
        };
        assert_eq!(
            (signals(tree.wrapper).as_slice(), signals(tree.child).as_slice()),
            (case.wrapper, case.child),
            "{}",
            case.name
        );
    }
}

#[tokio::test(start_paused = true)]
async fn pending_lease_of_another_gateway_signals_nothing() {
    let (mut s, tree) = Sim::with_orphan(Reserved).await;
    // The markers name this lease and another gateway.
    let foreign = crate::kernel::environ(tree.lease, GatewayInstanceId::mint());
    s.edit_all(&tree, |t| t.environ.clone_from(&foreign));
    s.kernel().owned.clear();
    s.reap().await;
    assert!(s.is_untouched(&tree));
}
