//! Runs blocking work on tokio's blocking pool.

use std::cell::Cell;
use tokio::task::JoinError;

thread_local! {
    static INLINE: Cell<bool> = const { Cell::new(false) };
}

/// Makes [`run`] execute the work on the calling thread, for all later calls of this thread. For simulations: a
/// second thread would make the order of events nondeterministic.
pub fn run_inline_on_this_thread() {
    INLINE.set(true);
}

/// Runs `work` on the blocking pool. Dropping the returned future does not stop it.
///
/// # Errors
/// The work panicked, or the runtime is shutting down.
pub async fn run<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, JoinError> {
    if INLINE.get() {
        return Ok(work());
    }
    tokio::task::spawn_blocking(work).await
}
