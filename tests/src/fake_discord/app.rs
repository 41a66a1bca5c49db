//! The machine in its process: one lock, one clock, one store. Changes are stored before their effects are
//! sent.

use super::core::Machine;
use super::core::gateway::{SocketId, ToSocket};
use super::core::model::{Id, Ms};
use super::store::{Store, StoreError};
use crate::seed::Seed;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::mpsc::Sender;

/// The machine with its store and its connections.
#[derive(Debug)]
pub struct App {
    shared: Mutex<Shared>,
    /// Maximum simulated network delay.
    lag: Duration,
    lags: Mutex<Seed>,
}

#[derive(Debug)]
struct Shared {
    machine: Machine,
    store: Store,
    sockets: HashMap<SocketId, Sender<ToSocket>>,
}

#[expect(clippy::disallowed_methods, reason = "a program of the tests has no other clock")]
fn machine_time() -> Ms {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Ms::try_from(since.as_millis()).unwrap_or(Ms::MAX)
}

impl App {
    /// Creates an application from the content of a store.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn new(store: Store, address: String, lag: Duration) -> Result<Self, StoreError> {
        let (world, settings) = store.load()?;
        let machine = Machine::new(world, settings, address);
        let lags = Mutex::new(Seed::from_number(machine_time()));
        Ok(Self { shared: Mutex::new(Shared { machine, store, sockets: HashMap::new() }), lag, lags })
    }

    /// Sleeps for a random network delay below the maximum.
    pub async fn delay(&self) {
        if self.lag.is_zero() {
            return;
        }
        let time = self.lags.lock().unwrap_or_else(PoisonError::into_inner).time_below(self.lag);
        tokio::time::sleep(time).await;
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `work` on the machine, stores the changes, then sends its output.
    pub fn act<T>(&self, work: impl FnOnce(&mut Machine, Ms) -> T) -> T {
        let mut shared = self.lock();
        let now = shared.machine.time(machine_time());
        let done = work(&mut shared.machine, now);
        shared.store_and_send();
        done
    }

    /// Like [`App::act`], and stores the settings as well.
    pub fn act_and_store_settings<T>(&self, work: impl FnOnce(&mut Machine, Ms) -> T) -> T {
        let done = self.act(work);
        let mut shared = self.lock();
        let settings = shared.machine.settings.clone();
        if let Err(error) = shared.store.store_settings(&settings) {
            fail(&error);
        }
        done
    }

    /// Registers a connection to the gateway.
    pub fn open_socket(&self, sender: Sender<ToSocket>) -> SocketId {
        let mut shared = self.lock();
        let now = shared.machine.time(machine_time());
        let id = shared.machine.socket_opened(now);
        shared.sockets.insert(id, sender);
        shared.store_and_send();
        id
    }

    /// Removes a connection.
    pub fn close_socket(&self, id: SocketId, code: Option<u16>) {
        let mut shared = self.lock();
        shared.sockets.remove(&id);
        let now = shared.machine.time(machine_time());
        shared.machine.socket_closed(now, id, code);
        shared.store_and_send();
    }

    /// The bytes of a file.
    #[must_use]
    pub fn file(&self, id: Id) -> Option<Vec<u8>> {
        self.lock().store.file(id).unwrap_or_else(|error| fail(&error))
    }
}

impl Shared {
    fn store_and_send(&mut self) {
        let changes = self.machine.world.changes();
        if let Err(error) = self.store.store_changes(&changes) {
            fail(&error);
        }
        for (id, what) in self.machine.gateway.take_outbox() {
            // A client that does not read loses its connection: RESUME delivers the missed events.
            if self.sockets.get(&id).is_some_and(|socket| socket.try_send(what).is_err()) {
                self.sockets.remove(&id);
            }
        }
    }
}

/// Aborts the process: without a working store every later result would be wrong.
#[expect(
    clippy::disallowed_methods,
    reason = "a panic would end one task, and the others would continue with wrong state"
)]
fn fail(error: &StoreError) -> ! {
    eprintln!("fake-discord: the store failed: {error}");
    std::process::abort()
}
