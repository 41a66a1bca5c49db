//! Worker of one helper queue: serves requests one by one, starts the helper on demand, and ends it when it
//! is idle or does not respond.

use super::helper::{Helper, HelperStartError, wait_until_gone};
use super::{FilesJob, HelperJob, HelperKey, HelperSetting, IdleHelpers, QueueScope, RunningHelpers};
use crate::config::Config;
use crate::context::Context;
use acp_shared::files::{FilesError, FilesOp, FilesReply};
use acp_shared::protocol::{RefusalCode, Reply};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

/// Idle time after which a helper without a lease ends: a spawn and the start of its agent look up several sets
/// of names one after the other.
const LOOKUP_IDLE: Duration = Duration::from_secs(1);
/// Maximum time of a look-up without a lease once its helper is ready, in milliseconds: shorter than a gateway
/// waits for it.
const LOOKUP_MS: u64 = 4_000;
/// Maximum wait of a request for the end of an earlier helper.
const ENDING: Duration = Duration::from_secs(2);

type FilesResult = Result<FilesReply, FilesError>;

/// The helper of a queue.
enum HelperSlot {
    Empty,
    Starting(JoinHandle<Result<Helper, HelperStartError>>),
    Ready(Box<Helper>),
}

/// Returns the maximum times until the helper of a request is ready, and until it answers, in milliseconds.
/// The latter counts from the request; for a look-up from the moment its helper is ready, because the start of
/// a helper takes long on a loaded machine.
fn time_limits_ms(scope: QueueScope, config: &Config) -> (u64, u64) {
    match scope {
        QueueScope::Lease(_) => (config.files_request_ms, config.files_request_ms),
        QueueScope::LookUp(_) => (config.spawn_ms, config.files_request_ms.min(LOOKUP_MS)),
    }
}

/// Server of one queue.
pub(super) struct Worker {
    context: Arc<Context>,
    key: HelperKey,
    slot: HelperSlot,
    /// Setting of the helper in `slot`, or of the one that this queue offers to others.
    setting: Option<HelperSetting>,
    /// Killed helpers that may still be running. The last write of such a helper may still be completed.
    ending: Vec<JoinHandle<()>>,
    /// Helpers of all leases.
    running: RunningHelpers,
    /// Idle helpers of all look-ups.
    idle: IdleHelpers,
}

impl Worker {
    /// Creates the worker of a queue. An upgrade may have left a helper of this queue behind.
    pub(super) fn new(
        context: Arc<Context>,
        key: HelperKey,
        running: RunningHelpers,
        idle: IdleHelpers,
    ) -> Self {
        let mut worker =
            Self { context, key, slot: HelperSlot::Empty, setting: None, ending: Vec::new(), running, idle };
        let left = worker.running.lock().get(&key).copied();
        if let Some(left) = left {
            let context = Arc::clone(&worker.context);
            worker.ending.push(tokio::spawn(async move { wait_until_gone(&context, left).await }));
        }
        worker
    }

    /// Serves the queue until it was idle for long enough and its helper is gone, or `end` is cancelled. `stop` is
    /// cancelled when all helpers of the supervisor end.
    pub(super) async fn run(
        mut self,
        mut jobs: mpsc::Receiver<FilesJob>,
        end: CancellationToken,
        stop: CancellationToken,
    ) {
        let idle = match self.key.scope {
            QueueScope::Lease(_) => Duration::from_millis(self.context.config.files_idle_ms),
            QueueScope::LookUp(_) => LOOKUP_IDLE,
        };
        // A queue is created for a request, which may arrive after the end of an earlier helper.
        let mut is_used = false;
        loop {
            let job = tokio::select! {
                biased;
                () = end.cancelled() => break,
                job = jobs.recv() => job,
                // The queue is closed only now that no helper is left, because a closed queue may get a new
                // worker. A request received in the meantime is still served.
                () = self.end_when_idle(idle), if is_used => {
                    jobs.close();
                    continue;
                }
            };
            let Some(job) = job else { break };
            is_used = true;
            self.serve(job, &end).await;
        }
        jobs.close();
        while let Ok(job) = jobs.try_recv() {
            if stop.is_cancelled() {
                let why = "the supervisor is ending its file helpers; try again";
                job.to.refuse(RefusalCode::ShuttingDown, why);
            } else {
                job.to.refuse(RefusalCode::LeaseEnded, "the lease is ending");
            }
        }
        self.dismiss();
        self.wait_for_ending().await;
    }

    /// Ends the helper after the idle time. Returns when no helper is left. Cancel-safe.
    async fn end_when_idle(&mut self, idle: Duration) {
        if self.ending.is_empty() || !matches!(self.slot, HelperSlot::Empty) {
            sleep(idle).await;
            self.dismiss();
        }
        self.wait_for_ending().await;
    }

    async fn serve(&mut self, job: FilesJob, end: &CancellationToken) {
        let FilesJob { setting, op, to, _bytes } = job;
        // The client has disconnected and may have settled the request already: do not start it.
        if to.link().end().is_cancelled() {
            return;
        }
        if self.setting.as_ref() != Some(&setting) {
            self.dismiss();
            self.setting = Some(setting.clone());
        }
        let answer = tokio::select! {
            biased;
            answer = self.answer(setting, op) => answer,
            () = end.cancelled() => {
                // The helper may still answer the interrupted request, so it serves no other one.
                self.dismiss();
                Err(FilesError::Interrupted)
            }
        };
        self.offer();
        to.answer(Ok(Reply::Files(answer)));
    }

    async fn answer(&mut self, setting: HelperSetting, op: FilesOp) -> FilesResult {
        let (start_ms, within_ms) = time_limits_ms(self.key.scope, &self.context.config);
        let begun = Instant::now();
        let is_lookup = self.key.scope.is_lookup();
        loop {
            match &mut self.slot {
                HelperSlot::Empty => {
                    if !self.has_room().await {
                        let message = "an earlier helper does not end: its file system does not answer";
                        return Err(FilesError::NoHelper { message: message.to_owned() });
                    }
                    if let Some(helper) = self.take_idle(&setting) {
                        self.slot = HelperSlot::Ready(helper);
                        continue;
                    }
                    let start = Helper::start(Arc::clone(&self.context), setting.clone());
                    self.slot = HelperSlot::Starting(tokio::spawn(start));
                }
                HelperSlot::Starting(starting) => {
                    let Ok(started) = timeout_at(begun + Duration::from_millis(start_ms), starting).await
                    else {
                        let message = format!("it is not ready after {start_ms} ms");
                        return Err(FilesError::NoHelper { message });
                    };
                    self.slot = HelperSlot::Empty;
                    match started {
                        Ok(Ok(helper)) => self.take(helper),
                        Ok(Err(HelperStartError { error, left })) => {
                            left.into_iter().for_each(|helper| self.end(*helper));
                            return Err(error);
                        }
                        Err(panic) => return Err(FilesError::NoHelper { message: panic.to_string() }),
                    }
                }
                HelperSlot::Ready(helper) => {
                    let job = HelperJob { roots: setting.roots, op };
                    let pid = helper.process().map(|process| process.pid);
                    let from = if is_lookup { Instant::now() } else { begun };
                    let until = from + Duration::from_millis(within_ms);
                    let answer = match timeout_at(until, helper.exchange(&job)).await {
                        Ok(Ok(answer)) => return answer,
                        Ok(Err(error)) => {
                            tracing::warn!(pid, %error, "file helper ended unexpectedly");
                            Err(FilesError::Interrupted)
                        }
                        Err(_) => {
                            tracing::warn!(pid, within_ms, ?job, "file helper did not answer");
                            Err(FilesError::TimedOut { within_ms })
                        }
                    };
                    self.dismiss();
                    return answer;
                }
            }
        }
    }

    fn take(&mut self, helper: Helper) {
        if let Some(process) = helper.process().filter(|_| !self.key.scope.is_lookup()) {
            self.running.lock().insert(self.key, process);
        }
        self.slot = HelperSlot::Ready(Box::new(helper));
    }

    /// Lets the other look-ups use the helper of this one until this queue ends it.
    fn offer(&mut self) {
        if !self.key.scope.is_lookup() {
            return;
        }
        match (std::mem::replace(&mut self.slot, HelperSlot::Empty), &self.setting) {
            (HelperSlot::Ready(helper), Some(setting)) => {
                self.idle.lock().insert(self.key, (setting.clone(), helper));
            }
            (slot, _) => self.slot = slot,
        }
    }

    /// Takes the idle helper of this queue, or one of another queue with the same gateway, user and directories.
    fn take_idle(&self, setting: &HelperSetting) -> Option<Box<Helper>> {
        if !self.key.scope.is_lookup() {
            return None;
        }
        let mut idle = self.idle.lock();
        let same = |key: &HelperKey| idle.get(key).is_some_and(|(other, _)| other == setting);
        let other = || idle.keys().copied().find(same);
        let key = Some(self.key).filter(same).or_else(other)?;
        idle.remove(&key).map(|(_, helper)| helper)
    }

    /// Waits briefly until a helper may be started. A queue has only one helper at a time, so that inspection
    /// sees all writes, and a directory that hangs has only one.
    async fn has_room(&mut self) -> bool {
        timeout(ENDING, self.wait_for_ending()).await.is_ok()
    }

    /// Starts to end the helper.
    fn dismiss(&mut self) {
        let idle = self.idle.lock().remove(&self.key);
        if let Some((_, helper)) = idle {
            self.end(*helper);
        }
        match std::mem::replace(&mut self.slot, HelperSlot::Empty) {
            HelperSlot::Empty => {}
            HelperSlot::Starting(starting) => {
                let context = Arc::clone(&self.context);
                self.ending.push(tokio::spawn(async move {
                    let helper = match starting.await {
                        Ok(Ok(helper)) => Some(Box::new(helper)),
                        Ok(Err(HelperStartError { left, .. })) => left,
                        Err(_) => None,
                    };
                    if let Some(helper) = helper {
                        helper.end(context).await;
                    }
                }));
            }
            HelperSlot::Ready(helper) => self.end(*helper),
        }
    }

    fn end(&mut self, helper: Helper) {
        self.ending.push(tokio::spawn(helper.end(Arc::clone(&self.context))));
    }

    /// Waits until no killed helper is left. Cancel-safe.
    async fn wait_for_ending(&mut self) {
        while let Some(last) = self.ending.last_mut() {
            // A panic is already logged.
            drop(last.await);
            self.ending.pop();
        }
        if matches!(self.slot, HelperSlot::Empty) {
            self.running.lock().remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use acp_shared::ids::LeaseId;

    #[test]
    fn helper_of_lookup_has_the_time_of_a_spawn_to_start() {
        let config = Config { spawn_ms: 9_000, files_request_ms: 7_000, ..Config::default() };
        assert_eq!(time_limits_ms(QueueScope::LookUp(1), &config), (9_000, LOOKUP_MS));
        assert_eq!(time_limits_ms(QueueScope::Lease(LeaseId::mint()), &config), (7_000, 7_000));
    }
}
