//! Runs blocking work on tokio's blocking pool.

use tokio::task::JoinError;

/// Runs `work` on the blocking pool. Dropping the returned future does not stop it.
///
/// # Errors
/// The work panicked, or the runtime is shutting down.
pub(crate) async fn run<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, JoinError> {
    #[cfg(test)]
    if by_hand::is_inline() {
        return Ok(work());
    }
    tokio::task::spawn_blocking(work).await
}

/// Inline execution for simulated time: a second thread would make the order of events nondeterministic.
#[cfg(test)]
pub(crate) mod by_hand {
    use std::cell::Cell;

    thread_local! {
        static HERE: Cell<bool> = const { Cell::new(false) };
    }

    pub(super) fn is_inline() -> bool {
        HERE.get()
    }

    /// Makes this thread run blocking work inline from now on.
    pub(crate) fn run_inline() {
        HERE.set(true);
    }
}
