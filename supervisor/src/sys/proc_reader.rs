//! Reads that may hang. The kernel reads environment and arguments from the memory of a process and waits
//! while that memory is locked: forever if one of its threads is blocked on a dead disk. Such a read runs on
//! a thread that can be abandoned. Its process counts as unreadable and is not read again until the thread
//! has returned.

use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

/// Time limit of one read. Long enough for a busy machine; a hanging process costs this time once.
const PATIENCE: Duration = Duration::from_secs(1);
/// Maximum number of abandoned threads. At the maximum, no reads are done until a thread returns.
const HANGING_MAX: usize = 32;
/// Maximum number of queued answers.
const ANSWERS_MAX: usize = 64;

/// Read of one process.
pub(super) struct ProcessRead<T> {
    /// Process id.
    pub(super) pid: i32,
    /// Function that reads.
    pub(super) read: Box<dyn FnOnce() -> T + Send>,
}

/// Executor of reads.
#[derive(Debug)]
pub(super) struct ProcessReader {
    patience: Duration,
    hanging_max: usize,
    /// Processes with a hanging read, each with a flag that is set when the thread has returned.
    hanging: Mutex<HashMap<i32, Arc<AtomicBool>>>,
}

impl Default for ProcessReader {
    fn default() -> Self {
        Self { patience: PATIENCE, hanging_max: HANGING_MAX, hanging: Mutex::default() }
    }
}

type ReadQueue<T> = Arc<Mutex<VecDeque<(usize, ProcessRead<T>)>>>;

impl ProcessReader {
    /// Runs the reads in order. Returns `None` for each read that hangs, or whose process still has a hanging
    /// read.
    pub(super) fn run_all<T: Send + 'static>(&self, reads: Vec<ProcessRead<T>>) -> Vec<Option<T>> {
        let mut answers: Vec<Option<T>> = reads.iter().map(|_| None).collect();
        let pids: Vec<i32> = reads.iter().map(|read| read.pid).collect();
        let mut rest: VecDeque<_> = reads.into_iter().enumerate().collect();
        while !rest.is_empty() {
            {
                let mut hanging = self.hanging.lock();
                hanging.retain(|_, back| !back.load(Ordering::Acquire));
                rest.retain(|(_, read)| !hanging.contains_key(&read.pid));
                if hanging.len() >= self.hanging_max {
                    tracing::warn!(unread = rest.len(), "too many process reads hang");
                    break;
                }
            }
            let queue: ReadQueue<T> = Arc::new(Mutex::new(std::mem::take(&mut rest)));
            let Some((at, back)) = self.run(&queue, &mut answers) else { break };
            rest = std::mem::take(&mut *queue.lock());
            if let Some(pid) = pids.get(at) {
                tracing::warn!(pid, "process read hangs; process counts as unread");
                self.hanging.lock().insert(*pid, back);
            }
        }
        answers
    }

    /// Runs a single read.
    pub(super) fn run_one<T: Send + 'static>(
        &self,
        pid: i32,
        read: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        self.run_all(vec![ProcessRead { pid, read: Box::new(read) }]).pop().flatten()
    }

    /// Runs a queue on a new thread. Returns the index of a hanging read, if any; the queue then contains the
    /// rest.
    fn run<T: Send + 'static>(
        &self,
        queue: &ReadQueue<T>,
        answers: &mut [Option<T>],
    ) -> Option<(usize, Arc<AtomicBool>)> {
        // Carries the index of each read at the start, and the answer at the end.
        let (say, said) = sync_channel(ANSWERS_MAX);
        let back = Arc::new(AtomicBool::new(false));
        let (theirs, flag) = (Arc::clone(queue), Arc::clone(&back));
        let work = move || {
            run_reads(&theirs, &say);
            flag.store(true, Ordering::Release);
        };
        if let Err(error) = std::thread::Builder::new().name("acp-reads".into()).spawn(work) {
            tracing::warn!(%error, "cannot start thread for process reads");
            queue.lock().clear();
            return None;
        }
        let mut begun = None;
        loop {
            match said.recv_timeout(self.patience) {
                Ok(ReadProgress::Begins(at)) => begun = Some(at),
                Ok(ReadProgress::Read(at, answer)) => {
                    begun = None;
                    if let Some(place) = answers.get_mut(at) {
                        *place = Some(answer);
                    }
                }
                Err(RecvTimeoutError::Disconnected) => return None,
                // No read has begun: the thread has not been scheduled yet.
                Err(RecvTimeoutError::Timeout) => {
                    if let Some(at) = begun {
                        return Some((at, back));
                    }
                }
            }
        }
    }
}

enum ReadProgress<T> {
    Begins(usize),
    Read(usize, T),
}

fn run_reads<T>(queue: &ReadQueue<T>, say: &SyncSender<ReadProgress<T>>) {
    loop {
        let Some((at, next)) = queue.lock().pop_front() else { return };
        // The receiver is gone: the rest of the queue was taken back.
        if say.send(ReadProgress::Begins(at)).is_err()
            || say.send(ReadProgress::Read(at, (next.read)())).is_err()
        {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::Receiver;

    fn reader(hanging_max: usize) -> ProcessReader {
        ProcessReader { patience: Duration::from_millis(50), hanging_max, hanging: Mutex::default() }
    }

    fn answering_read(pid: i32) -> ProcessRead<i32> {
        ProcessRead { pid, read: Box::new(move || pid * 10) }
    }

    /// A read that hangs until its sender is dropped.
    fn hanging_read(pid: i32) -> (SyncSender<()>, ProcessRead<i32>) {
        let (release, wait): (_, Receiver<()>) = sync_channel(0);
        let read = Box::new(move || if wait.recv().is_ok() { 0 } else { -1 });
        (release, ProcessRead { pid, read })
    }

    #[test]
    fn hanging_read_blocks_no_other_and_is_not_retried() {
        let reader = reader(8);
        let (release, stuck) = hanging_read(2);
        assert_eq!(
            reader.run_all(vec![answering_read(1), stuck, answering_read(3)]),
            [Some(10), None, Some(30)]
        );
        let began = std::time::Instant::now();
        for _ in 0..20 {
            assert_eq!(
                reader.run_all(vec![answering_read(1), answering_read(2), answering_read(3)]),
                [Some(10), None, Some(30)]
            );
        }
        assert!(began.elapsed() < Duration::from_millis(900), "each read waited: {:?}", began.elapsed());
        drop(release);
        let until = std::time::Instant::now() + Duration::from_secs(20);
        while reader.run_one(2, || 7) != Some(7) {
            assert!(std::time::Instant::now() < until, "timeout: pid 2 is not read");
            std::thread::yield_now();
        }
    }

    #[test]
    fn hanging_read_threads_are_bounded() {
        let reader = reader(2);
        let (releases, stuck): (Vec<_>, Vec<_>) = (1..=3).map(hanging_read).unzip();
        assert_eq!(reader.run_all(stuck), [None, None, None]);
        assert_eq!(reader.hanging.lock().len(), 2);
        assert_eq!(reader.run_one(9, || 1), None, "a read beyond the limit");
        drop(releases);
        let until = std::time::Instant::now() + Duration::from_secs(20);
        while reader.run_one(9, || 1).is_none() {
            assert!(std::time::Instant::now() < until, "timeout: no read");
            std::thread::yield_now();
        }
    }

    #[test]
    fn many_reads_run_in_one_batch() {
        let all: Vec<i32> = (1..=1000).collect();
        let read = reader(2).run_all(all.iter().copied().map(answering_read).collect());
        assert_eq!(read, all.iter().map(|pid| Some(pid * 10)).collect::<Vec<_>>());
        let none: Vec<Option<i32>> = reader(2).run_all(Vec::new());
        assert_eq!(none, Vec::<Option<i32>>::new());
    }
}
