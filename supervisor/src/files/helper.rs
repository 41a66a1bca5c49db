//! Helper process: this program under the wrapper, with requests and replies over its standard streams.

use super::roots::RootsError;
use super::{FRAMES_VERSION, HelperJob, HelperSetting};
use crate::context::Context;
use crate::core::lease::ProcessRecord;
use crate::core::tenant::SpawnDirectories;
use crate::core::verify::ProcessState;
use crate::lease::confine::{self, confine};
use crate::lease::spawn::{RunningWrapper, SpawnError, fork, release, start_wrapper};
use crate::sys::child::{Child, Control};
use crate::sys::program;
use crate::sys::{OpenError, OpenProcess, Sys};
use acp_shared::files::{FilesError, FilesOp, FilesReply};
use acp_shared::ids::{GatewayInstanceId, LeaseId};
use acp_shared::launch::{LAUNCH_VERSION, Launch, STAGE_OPEN_ROOT};
use acp_shared::protocol::FRAME_BYTES_MAX;
use acp_shared::wire::{Decoder, encode_frame};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe;

/// Time for which the wrapper of a killed helper waits for its end: a process in an uninterruptible wait ends
/// only when its file system responds.
const SWEEP_MS: u64 = 3_600_000;
/// Time after which an overdue end of a helper is logged.
const OVERDUE: Duration = Duration::from_secs(5);
/// Interval of checks for a helper process still running after its wrapper.
const GONE_POLL: Duration = Duration::from_millis(500);
/// Maximum size of a helper's reply, in bytes: [`acp_shared::files::READ_BYTES_MAX`] of text, or paths.
const ANSWER_BYTES_MAX: usize = 11 * 1024 * 1024;
/// Subcommand of this program that runs a helper.
pub(super) const VERB: &str = "files-helper";

/// Running helper.
#[derive(Debug)]
pub(super) struct Helper {
    /// Name of its launch directory; not the id of any lease.
    id: LeaseId,
    gateway: GatewayInstanceId,
    /// Process below the wrapper, once it runs.
    process: Option<ProcessRecord>,
    child: Child,
    control: Control,
    to: pipe::Sender,
    from: pipe::Receiver,
}

/// Helper that could not be started.
#[derive(Debug)]
pub(super) struct HelperStartError {
    /// Reason of the failure.
    pub(super) error: FilesError,
    /// Processes that were started and still have to be ended.
    pub(super) left: Option<Box<Helper>>,
}

impl Helper {
    /// Starts a helper with the user and the restrictions of the tenant.
    ///
    /// # Errors
    /// The reason, and the processes that still have to be ended.
    pub(super) async fn start(
        context: Arc<Context>,
        setting: HelperSetting,
    ) -> Result<Self, HelperStartError> {
        let (id, gateway) = (LeaseId::mint(), setting.requester.gateway);
        let (error, left) = match Self::try_start(&context, id, setting).await {
            Ok((helper, None)) => return Ok(helper),
            Ok((helper, Some(error))) => (error, Some(Box::new(helper))),
            Err(error) => {
                remove(&context, gateway, id).await;
                (error, None)
            }
        };
        let error = match error {
            SpawnError::Setup { stage, error } if stage == STAGE_OPEN_ROOT => RootsError::from(error).0,
            SpawnError::Exec { program, stage, error } => FilesError::NoHelper {
                message: format!(
                    "{program} ({stage}: {error}); the user that agents run as must be able to execute it"
                ),
            },
            error => FilesError::NoHelper { message: error.refusal().message },
        };
        Err(HelperStartError { error, left })
    }

    /// Starts a helper. If it returns an error together with the helper, the caller must end the helper.
    async fn try_start(
        context: &Arc<Context>,
        id: LeaseId,
        HelperSetting { requester, roots }: HelperSetting,
    ) -> Result<(Self, Option<SpawnError>), SpawnError> {
        let directories = SpawnDirectories { cwd: None, roots, private: Vec::new() };
        let confined =
            confine(context, requester.clone(), confine::ConfinementInput { env: Vec::new(), directories })
                .await?;
        let program = program::own().to_string_lossy().into_owned();
        let launch = Launch {
            version: LAUNCH_VERSION,
            lease_id: id,
            gateway_instance_id: requester.gateway,
            argv: vec![program.clone(), VERB.to_owned(), FRAMES_VERSION.to_string()],
            env: Vec::new(),
            cwd: "/".to_owned(),
            term_grace_ms: 0,
            sweep_ms: SWEEP_MS,
            confine: confined.confine,
        };
        let cannot = |source| SpawnError::Io { what: "create the pipes of a file helper", source };
        let (stdio, to, from) = streams().map_err(cannot)?;
        let root = context.wrapper_root.helpers();
        let RunningWrapper { child, control, .. } = start_wrapper(context, root, launch, None).await?;
        let within = Duration::from_millis(context.config.spawn_ms);
        let steps = async {
            let bound = fork(context, &child, &control, &stdio).await?;
            context.add_root(bound.wrapper.pid);
            release(context, &child, &control, &program).await?;
            Ok(bound.adapter)
        };
        let bound = tokio::time::timeout(within, steps).await.unwrap_or(Err(SpawnError::Timeout));
        let (process, failed) = match bound {
            Ok(process) => (Some(process), None),
            Err(error) => (None, Some(error)),
        };
        let helper = Self { id, gateway: requester.gateway, process, child, control, to, from };
        Ok((helper, failed))
    }

    /// Returns the helper process; `None` if it was never released and has not touched any file.
    pub(super) const fn process(&self) -> Option<ProcessRecord> {
        self.process
    }

    /// Sends a job and waits for the reply. Not cancel-safe: the helper is unusable after a cancellation.
    ///
    /// # Errors
    /// The helper has ended, has another version, or another process writes into its pipe.
    pub(super) async fn exchange(&mut self, job: &HelperJob) -> io::Result<Result<FilesReply, FilesError>> {
        let frame = encode_frame(job, FRAME_BYTES_MAX).map_err(io::Error::other)?;
        let mut block = vec![0; 64 * 1024];
        match self.from.try_read(&mut block) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => return Err(unexpected_reply()),
            Err(error) => return Err(error),
        }
        self.to.write_all(&frame).await?;
        let mut decoder = Decoder::new(ANSWER_BYTES_MAX);
        loop {
            let count = self.from.read(&mut block).await?;
            if count == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            if let Some(answer) = take_reply(&mut decoder, block.get(..count).unwrap_or_default(), &job.op)? {
                return Ok(answer);
            }
        }
    }

    /// Ends the helper: its pipes and control socket are closed, upon which the wrapper kills it. Returns
    /// when the process itself is gone, which may be later than the end of its wrapper.
    pub(super) async fn end(self, context: Arc<Context>) {
        let Self { id, gateway, process, mut child, control, to, from } = self;
        drop((control, to, from));
        let wrapper = child.handle().pid();
        if tokio::time::timeout(OVERDUE, child.ended()).await.is_err() {
            let pid = process.map(|process| process.pid);
            tracing::error!(pid, wrapper, "file helper does not end; its file system does not respond");
            child.ended().await;
        }
        context.release_child(wrapper);
        context.remove_root(wrapper);
        remove(&context, gateway, id).await;
        if let Some(process) = process {
            wait_until_gone(&context, process).await;
        }
    }
}

fn unexpected_reply() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "unexpected answer")
}

/// Appends received bytes, and returns the reply once it is complete: exactly one, of the kind of the
/// operation.
fn take_reply(
    decoder: &mut Decoder,
    bytes: &[u8],
    op: &FilesOp,
) -> io::Result<Option<Result<FilesReply, FilesError>>> {
    decoder.push(bytes);
    let answer: Option<Result<FilesReply, FilesError>> = decoder.pop().map_err(io::Error::other)?;
    match &answer {
        Some(_) if !decoder.is_empty() => Err(unexpected_reply()),
        Some(Ok(reply)) if !reply.fits(op) => Err(unexpected_reply()),
        Some(_) | None => Ok(answer),
    }
}

/// Waits until a process has ended. A process that cannot be inspected counts as running.
pub(super) async fn wait_until_gone(context: &Context, process: ProcessRecord) {
    let is_there = || match context.sys.open(process.pid) {
        Err(OpenError::Gone) => false,
        Err(OpenError::Io(_)) => true,
        Ok(handle) => {
            let life = context.sys.kernel_evidence(&handle).life;
            let ended = matches!(life, ProcessState::Zombie | ProcessState::Gone);
            !ended && handle.record().is_none_or(|record| record == process)
        }
    };
    while is_there() {
        tokio::time::sleep(GONE_POLL).await;
    }
}

/// Removes the launch directory.
async fn remove(context: &Context, gateway: GatewayInstanceId, id: LeaseId) {
    let root = context.wrapper_root.helpers();
    let removed = context.wrapper_root.disk().run(move || root.remove(gateway, id)).await;
    if let Err(error) = removed {
        tracing::debug!(%error, "cannot remove launch directory of file helper; kept until the next start");
    }
}

/// Creates the standard streams of a helper, and the supervisor's ends of stdin and stdout.
fn streams() -> io::Result<([OwnedFd; 3], pipe::Sender, pipe::Receiver)> {
    let pair = || rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).map_err(io::Error::from);
    let ((in_read, in_write), (out_read, out_write)) = (pair()?, pair()?);
    let nothing = OwnedFd::from(std::fs::OpenOptions::new().write(true).open("/dev/null")?);
    let (to, from) = (pipe::Sender::from_owned_fd(in_write)?, pipe::Receiver::from_owned_fd(out_read)?);
    Ok(([in_read, out_write, nothing], to, from))
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;
    use acp_shared::files::READ_BYTES_MAX;

    /// An agent of the same user may write into the pipe; its text reaches no gateway.
    #[test]
    fn mismatched_reply_breaks_helper() {
        let read = FilesOp::Read { path: "/a".into(), line: None, limit: None, bytes_max: 9 };
        let frame = |reply: FilesReply| encode_frame(&Ok::<_, FilesError>(reply), FRAME_BYTES_MAX).unwrap();
        let take = |bytes: &[u8]| take_reply(&mut Decoder::new(ANSWER_BYTES_MAX), bytes, &read);
        let good = frame(FilesReply::Text("x".into()));
        assert_eq!(take(&good).unwrap(), Some(Ok(FilesReply::Text("x".into()))));
        assert_eq!(take(&good[..good.len() - 1]).unwrap(), None);
        let largest = FilesReply::Text("x".repeat(crate::config::size(READ_BYTES_MAX)));
        assert_eq!(take(&frame(largest.clone())).unwrap(), Some(Ok(largest)));
        assert!(take(&frame(FilesReply::Written)).is_err(), "reply of another kind");
        assert!(take(&[good.as_slice(), &[0]].concat()).is_err(), "trailing bytes");
        assert!(take(&33_000_000_u32.to_be_bytes()).is_err(), "too large");
    }
}
