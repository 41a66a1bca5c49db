//! Work that may block goes aside, so that no worker of the runtime waits for a disk.

use tokio::task::JoinError;

/// Runs `work` where it may block. A caller that goes away does not stop it.
///
/// # Errors
/// It panicked, or the runtime is ending.
pub(crate) async fn run<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, JoinError> {
    #[cfg(test)]
    if by_hand::is_here() {
        return Ok(work());
    }
    tokio::task::spawn_blocking(work).await
}

/// For simulated time: with a second thread, the order of events would be the machine's.
#[cfg(test)]
pub(crate) mod by_hand {
    use std::cell::Cell;

    thread_local! {
        static HERE: Cell<bool> = const { Cell::new(false) };
    }

    pub(super) fn is_here() -> bool {
        HERE.get()
    }

    /// From now on this thread does such work itself, at once.
    pub(crate) fn stay_here() {
        HERE.set(true);
    }
}
