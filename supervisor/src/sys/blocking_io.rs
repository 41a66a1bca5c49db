//! Blocking file work with limited concurrency: a hanging disk can block only these threads. Work on
//! processes has separate threads.

use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinHandle;

/// Maximum number of concurrent jobs on one disk.
const SLOTS: u32 = 16;
/// Maximum wait for a disk that does not respond; the work itself is not cancelled.
pub const WAIT: Duration = Duration::from_secs(2);

/// Permit to work on a disk; released on drop.
pub type DiskPermit = OwnedSemaphorePermit;

/// Handle to one disk.
#[derive(Debug, Clone)]
pub struct Disk {
    slots: Arc<Semaphore>,
}

impl Default for Disk {
    fn default() -> Self {
        Self { slots: Arc::new(Semaphore::new(SLOTS as usize)) }
    }
}

impl Disk {
    /// Waits for a permit, in FIFO order.
    ///
    /// # Errors
    /// The disk was closed; does not happen.
    pub async fn slot(&self) -> io::Result<DiskPermit> {
        Arc::clone(&self.slots).acquire_owned().await.map_err(io::Error::other)
    }

    /// Returns a permit, if one is free now.
    #[must_use]
    pub fn try_slot(&self) -> Option<DiskPermit> {
        Arc::clone(&self.slots).try_acquire_owned().ok()
    }

    /// Runs blocking work when a permit is available.
    ///
    /// # Errors
    /// The program is ending and accepts no more work.
    pub async fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
        run(self.slot().await?, work).await
    }

    /// Waits for all work requested before, with a time limit for a hanging disk.
    pub async fn wait_idle(&self) {
        let all = tokio::time::timeout(WAIT, self.slots.acquire_many(SLOTS)).await;
        if all.is_err() {
            tracing::warn!("disk does not respond; pending disk work not awaited");
        }
    }
}

/// Runs blocking work with an acquired permit, so that its inputs can be created after the wait.
///
/// # Errors
/// Those of [`Disk::run`].
pub async fn run<T: Send + 'static>(
    slot: DiskPermit,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    let done = tokio::task::spawn_blocking(move || {
        let result = work();
        drop(slot);
        result
    });
    done.await.map_err(io::Error::other)
}

/// Waits for background jobs, with a time limit for a hanging disk.
pub async fn wait_for_jobs(works: Vec<JoinHandle<()>>) {
    let all = async {
        for work in works {
            // A panic is already logged.
            drop(work.await);
        }
    };
    if tokio::time::timeout(WAIT, all).await.is_err() {
        tracing::warn!("disk does not respond; cleanup postponed until it does");
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;
    use std::sync::mpsc;

    #[tokio::test]
    async fn hanging_disk_occupies_few_threads() {
        let disk = Disk::default();
        let (hang, hangs) = mpsc::sync_channel::<()>(0);
        let hangs = Arc::new(std::sync::Mutex::new(hangs));
        let begun = Arc::new(std::sync::atomic::AtomicU32::new(0));
        let mut works = Vec::new();
        for _ in 0..4 * SLOTS {
            let (disk, hangs, begun) = (disk.clone(), Arc::clone(&hangs), Arc::clone(&begun));
            works.push(tokio::spawn(async move {
                let work = move || {
                    begun.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    hangs.lock().unwrap().recv().unwrap_err();
                };
                disk.run(work).await
            }));
        }
        // Other disks and other blocking work have their own threads.
        assert_eq!(Disk::default().run(|| 7).await.unwrap(), 7);
        assert_eq!(tokio::task::spawn_blocking(|| 8).await.unwrap(), 8);
        let until = std::time::Instant::now() + Duration::from_secs(10);
        while begun.load(std::sync::atomic::Ordering::Relaxed) < SLOTS {
            assert!(std::time::Instant::now() < until);
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(disk.slots.available_permits(), 0);
        drop(hang);
        for work in works {
            work.await.unwrap().unwrap();
        }
        disk.wait_idle().await;
        assert_eq!(begun.load(std::sync::atomic::Ordering::Relaxed), 4 * SLOTS, "all work is done");
    }
}
