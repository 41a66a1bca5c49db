//! Reaping of orphans: descendants of dead wrappers, which are reparented to this process as their nearest
//! subreaper. Other unknown children cannot exist: this process starts only wrappers, and had no child when
//! it became subreaper. So a child that is not registered belongs to a tree without root: it is killed if it
//! runs, and reaped when it is dead. If this process is not a subreaper, an unregistered child may belong to
//! an earlier program of this process: then it is only reaped.

use crate::context::Context;
use crate::core::verify::{Membership, Verdict, verify_member};
use crate::lease::tree_kill;
use crate::relay::wait_if_some;
use crate::sys::{Signal, Sys};
use acp_shared::ids::{GatewayInstanceId, LeaseId};
use std::sync::Arc;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

/// Interval of checks without SIGCHLD, while there are children: several SIGCHLD may be merged into one.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);
/// Pause after each check, so that a burst of exits causes only one.
const PAUSE: Duration = Duration::from_millis(50);

/// Checks for orphans for as long as the program runs.
pub(crate) async fn watch_orphans<S: Sys>(context: Arc<Context<S>>) {
    let children = signal(SignalKind::child());
    let polls =
        |error: &std::io::Error| tracing::warn!(%error, "cannot receive SIGCHLD; polling for orphans");
    let mut children = children.inspect_err(polls).ok();
    loop {
        let told = wait_if_some(children.as_mut().map(|children| children.recv()));
        let check = context.has_children().then(|| tokio::time::sleep(CHECK_INTERVAL));
        let now_and_then = wait_if_some(check);
        tokio::select! {
            _ = told => {}
            () = now_and_then => {}
        }
        let at = Arc::clone(&context);
        let looked = context.blocking(move |sys| {
            reap_orphans(&at, sys);
            Ok(())
        });
        if let Err(error) = looked.await {
            tracing::warn!(%error, "orphan search failed");
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Checks for orphans once.
pub fn reap_orphans<S: Sys>(context: &Context<S>, sys: &S) {
    for pid in context.orphans() {
        match sys.reap_orphan(pid) {
            Ok(true) => {
                tracing::debug!(pid, "orphan reaped");
                continue;
            }
            Ok(false) => {}
            Err(error) => {
                tracing::debug!(pid, %error, "process is not a reapable orphan");
                continue;
            }
        }
        if !context.abilities.subreaper {
            continue;
        }
        let (handle, evidence) = tree_kill::read_kernel_evidence(sys, pid);
        let guard = context.guard(None);
        // The lease is no longer known, but the parent (this process) proves that there was one.
        let verdict = verify_member(
            LeaseId::mint(),
            GatewayInstanceId::mint(),
            Membership::ChildOf(context.me.pid),
            &evidence,
            &guard,
        );
        if let (Verdict::Owned(proof), Some(handle)) = (verdict, handle) {
            tracing::warn!(pid, exe = evidence.exe, "killing orphan of a dead wrapper");
            if let Err(error) = sys.signal(&handle, &proof, Signal::Kill) {
                tracing::warn!(pid, %error, "cannot kill orphan");
            }
        }
    }
}
