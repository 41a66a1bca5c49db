//! The other side of a control socket: a wrapper that exists in the faked kernel alone and speaks the real protocol
//! over a real socket, as honest as its script.

use crate::kernel::{Kernel, OnTerm, State, lock};
use acp_shared::ids::LeaseId;
use acp_shared::launch::{CONTROL_BYTES_MAX, ENV_LEASE_ID, ExitStatus, FromWrapper};
use acp_shared::wire;
use std::io;
use std::os::fd::OwnedFd;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::UnixDatagram;

/// How often it looks around.
const LOOK: Duration = Duration::from_millis(10);
/// Between its SIGTERM and its SIGKILL.
const TERM_GRACE: Duration = Duration::from_millis(100);

/// What it says in its first message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Hello {
    #[default]
    Honest,
    /// It names this process as its adapter.
    Adapter(i32),
    /// It names this process as itself.
    Wrapper(i32),
    /// It says nothing.
    Silent,
    /// It ends before it says anything.
    Ends,
    /// It says the truth after a while, so that something can happen before.
    Later,
}

/// How wrappers behave.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Wrapper {
    /// It cannot be forked.
    pub(crate) cannot_fork: bool,
    /// It cannot be opened once it is forked: the supervisor is out of descriptors.
    pub(crate) no_descriptors: bool,
    /// What it says.
    pub(crate) hello: Hello,
    /// It does nothing when it is told to end, nor when its adapter ends.
    pub(crate) deaf: bool,
    /// Its adapter ignores SIGTERM.
    pub(crate) stubborn_adapter: bool,
}

struct Running {
    kernel: Arc<Mutex<Kernel>>,
    script: Wrapper,
    pid: i32,
    lease: LeaseId,
    socket: UnixDatagram,
    adapter: i32,
    adapter_status: Option<ExitStatus>,
}

/// Forks a wrapper for a lease, and lets it run.
pub(crate) fn start(
    kernel: &Arc<Mutex<Kernel>>,
    script: Wrapper,
    command: &Command,
    control: &OwnedFd,
) -> io::Result<i32> {
    if script.cannot_fork {
        return Err(io::Error::from_raw_os_error(rustix::io::Errno::AGAIN.raw_os_error()));
    }
    let mut environ = Vec::new();
    let mut lease = None;
    for (name, value) in command.get_envs() {
        let (name, value) = (name.to_string_lossy(), value.unwrap_or_default().to_string_lossy());
        environ.extend_from_slice(format!("{name}={value}\0").as_bytes());
        if name == ENV_LEASE_ID {
            lease = LeaseId::parse(&value).ok();
        }
    }
    let lease = lease.ok_or(io::ErrorKind::InvalidInput)?;
    let socket = std::os::unix::net::UnixDatagram::from(control.try_clone()?);
    socket.set_nonblocking(true)?;
    let socket = UnixDatagram::from_std(socket)?;
    let mut table = lock(kernel);
    let pid = table.fork(crate::kernel::ME, "acp-wrapper");
    table.setsid(pid);
    table.edit(pid, |t| {
        (t.on_term, t.subreaper, t.reaps) = (OnTerm::Caught, true, false);
        (t.environ, t.tree) = (environ, Some(lease));
        t.exe = command.get_program().to_string_lossy().into_owned();
    });
    table.ours.insert(lease);
    drop(table);
    let kernel = Arc::clone(kernel);
    let wrapper = Running { kernel, script, pid, lease, socket, adapter: 0, adapter_status: None };
    tokio::spawn(wrapper.run());
    Ok(pid)
}

impl Running {
    /// Ends with its process, or after its last word. The socket is closed with it.
    async fn run(mut self) {
        if self.start().await.is_none() {
            let mut kernel = lock(&self.kernel);
            for pid in kernel.alive(self.lease) {
                kernel.exit(pid, ExitStatus::Signaled(9));
            }
            return;
        }
        while self.is_there() {
            self.collect();
            let told = lock(&self.kernel).task(self.pid).caught > 0 || self.is_alone();
            if (told || self.adapter_status.is_some()) && !self.script.deaf {
                return self.clean_up().await;
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// As far as a running adapter; `None` when it gives up, or was killed.
    async fn start(&mut self) -> Option<()> {
        self.hear().await?;
        let (pid, mut adapter) = (self.pid, 0);
        {
            let mut kernel = lock(&self.kernel);
            if !kernel.runs(pid) || self.script.hello == Hello::Ends {
                return None;
            }
            adapter += kernel.fork(pid, "acp-wrapper");
            kernel.setpgid(adapter);
            kernel.edit(adapter, |t| t.dies_with_parent = true);
        }
        self.adapter = adapter;
        let hello = |wrapper_pid, adapter_pid| FromWrapper::Hello { wrapper_pid, adapter_pid };
        match self.script.hello {
            Hello::Honest | Hello::Ends => self.say(&hello(pid, adapter)).await?,
            Hello::Later => {
                tokio::time::sleep(TERM_GRACE).await;
                self.say(&hello(pid, adapter)).await?;
            }
            Hello::Adapter(other) => self.say(&hello(pid, other)).await?,
            Hello::Wrapper(other) => self.say(&hello(other, adapter)).await?,
            Hello::Silent => {}
        }
        self.hear().await?;
        let stubborn = self.script.stubborn_adapter;
        {
            let mut kernel = lock(&self.kernel);
            if !kernel.runs(pid) {
                return None;
            }
            kernel.edit(adapter, |t| {
                (t.name, t.exe) = ("agent".into(), "/usr/bin/agent".into());
                t.on_term = if stubborn { OnTerm::Ignores } else { OnTerm::Dies };
            });
            kernel.execs += 1;
        }
        self.say(&FromWrapper::Running).await
    }

    fn is_there(&self) -> bool {
        lock(&self.kernel).runs(self.pid)
    }

    /// Whether the supervisor has closed its end.
    fn is_alone(&self) -> bool {
        matches!(self.socket.try_recv(&mut [0; 16]), Ok(0))
    }

    async fn hear(&self) -> Option<()> {
        let mut packet = vec![0; CONTROL_BYTES_MAX];
        tokio::select! {
            got = self.socket.recv(&mut packet) => got.ok().filter(|count| *count > 0).map(|_| ()),
            () = self.killed() => None,
        }
    }

    async fn killed(&self) {
        while self.is_there() {
            tokio::time::sleep(LOOK).await;
        }
    }

    async fn say(&self, message: &FromWrapper) -> Option<()> {
        let packet = wire::encode(message, CONTROL_BYTES_MAX).ok()?;
        self.socket.send(&packet).await.ok().map(|_| ())
    }

    /// Collects its dead children.
    fn collect(&mut self) {
        let mut kernel = lock(&self.kernel);
        let dead = |t: &&crate::kernel::Task| t.ppid == self.pid && t.state == State::Zombie && !t.traced;
        let dead: Vec<(i32, ExitStatus)> = kernel.tasks().filter(dead).map(|t| (t.pid, t.status)).collect();
        for (pid, status) in dead {
            kernel.reap(pid);
            if pid == self.adapter {
                self.adapter_status = Some(status);
            }
        }
    }

    async fn clean_up(mut self) {
        if let Some(status) = self.adapter_status {
            self.say(&FromWrapper::AdapterExited { status }).await;
        }
        for signal in [acp_supervisor::sys::Signal::Term, acp_supervisor::sys::Signal::Kill] {
            {
                let mut kernel = lock(&self.kernel);
                for pid in kernel.alive(self.lease).into_iter().filter(|pid| *pid != self.pid) {
                    kernel.deliver(pid, signal);
                }
            }
            tokio::time::sleep(TERM_GRACE).await;
            if !self.is_there() {
                return;
            }
            self.collect();
        }
        let mut survivors = lock(&self.kernel).alive(self.lease);
        survivors.retain(|pid| *pid != self.pid);
        let status = self.adapter_status.unwrap_or(ExitStatus::Unknown);
        self.say(&FromWrapper::Done { status, survivors }).await;
        lock(&self.kernel).exit(self.pid, ExitStatus::Exited(0));
    }
}
