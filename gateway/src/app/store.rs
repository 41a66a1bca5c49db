//! Opening of the store at start: the database file of the state directory, or a cell of a PostgreSQL server.

use crate::app::group_bounds;
use crate::app::signals::ServiceSignals;
use crate::app::standby::Standby;
use crate::config::LiveConfig;
use crate::util::private_file::read_private;
use acp_core::api::SOCKET;
use acp_core::config::{Config, PostgresStore, StoreKind};
use acp_core::failure::Failure;
use acp_shared::clock::Clock;
use acp_shared::codes::Code;
use acp_store::lock::StateLock;
use acp_store::{PgAddress, Store, StoreError};
use parking_lot::Mutex;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// Retry interval of a start that waits for disk space, for the server or for its cell, in milliseconds.
const RETRY_MS: u64 = 500;
/// Maximum length of an address file.
const ADDRESS_BYTES_MAX: u64 = 16 * 1024;
/// Maximum length of a file with authorities.
const AUTHORITIES_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// Cell of a PostgreSQL server, as configured.
#[derive(Debug, Clone)]
pub(crate) struct Cell {
    /// Server and name.
    pub(crate) address: PgAddress,
    /// Accepts a server without a synchronous standby.
    pub(crate) allow_loss: bool,
}

/// Lock of the state directory, from the first attempt to open a cell until the store has it.
type HeldLock = Arc<Mutex<Option<StateLock>>>;

/// Store of a gateway at the begin of service.
pub(super) struct OpenedStore {
    /// The store.
    pub(super) store: Store,
    /// Answers of a gateway with a cell, until it serves.
    pub(super) standby: Option<Standby>,
}

/// Reads the files of the configured cell. Blocks for a moment.
///
/// # Errors
/// `CONFIG_INVALID`: the key, the file and what is wrong with it.
pub(crate) fn read_cell(settings: &PostgresStore) -> Result<Cell, Failure> {
    let wrong = |key: &str, path: &Path, why: &dyn Display| {
        let text = format!("acp.control_plane.postgres.{key} = {}: {why}", path.display());
        Failure::new(Code::ConfigInvalid, text).origin("client")
    };
    let Some(file) = &settings.address_file else {
        let text = "acp.control_plane.postgres.address_file is not set: it names a file of mode 0600 with the server's \
            connection URL";
        return Err(Failure::new(Code::ConfigInvalid, text).origin("client"));
    };
    let text = read_private(file, ADDRESS_BYTES_MAX).map_err(|why| wrong("address_file", file, &why))?;
    let parsed = PgAddress::parse(&text, &settings.cell);
    let mut address = parsed.map_err(|error| wrong("address_file", file, &error))?;
    if let Some(file) = &settings.ca_file {
        let meta = std::fs::metadata(file).map_err(|error| wrong("ca_file", file, &error))?;
        if meta.len() > AUTHORITIES_BYTES_MAX {
            return Err(wrong("ca_file", file, &"too large"));
        }
        let pem = std::fs::read(file).map_err(|error| wrong("ca_file", file, &error))?;
        address = address.with_authorities(&pem).map_err(|error| wrong("ca_file", file, &error))?;
    }
    Ok(Cell { address, allow_loss: settings.allow_loss })
}

/// Opens the store. Waits while the disk is full, because a start has to write the index of the log and its epoch, by which
/// the supervisor tells this start from earlier ones; while the database server cannot be reached; and while another gateway
/// serves the cell, to take its place. `None` if a signal arrives first.
pub(super) async fn wait_for_store(
    state_dir: &Path,
    live: &LiveConfig,
    signals: &mut ServiceSignals,
) -> Result<Option<OpenedStore>, Failure> {
    let config = live.at_start();
    let plane = &config.acp.control_plane;
    // Held while the gateway stands by, and released after the local socket is removed: that is in the directory.
    let lock = HeldLock::default();
    let (mut cell, mut standby) = (None, None);
    if plane.store == StoreKind::Postgres {
        let Cell { address, allow_loss } = read_cell(&plane.postgres)?;
        let opened = Standby::open(live, address.cell(), state_dir.join(SOCKET)).await?;
        cell = Some(Cell { address: address.served_at(opened.addresses()), allow_loss });
        standby = Some(opened);
    }
    let mut told = None;
    loop {
        let opening = open_store(state_dir.to_owned(), cell.clone(), Arc::clone(&lock), config);
        let opened = tokio::select! {
            biased;
            // The thread that waits for the server ends with the process.
            () = signals.next(), if cell.is_some() => return Ok(None),
            opened = opening => opened,
        };
        let error = match opened {
            Ok(store) => return Ok(Some(OpenedStore { store, standby })),
            Err(error) => error,
        };
        if !error.is_passing_at_start() {
            return Err(open_failure(error, state_dir, cell.is_none()));
        }
        if let Some(standby) = &mut standby {
            standby.note(&error);
        }
        let kind = std::mem::discriminant(&error);
        if told.replace(kind) != Some(kind) {
            log_wait(&error, state_dir);
        }
        if matches!(error, StoreError::CellTaken { .. }) {
            // The next attempt waits for the end of the other gateway.
            let wait = Duration::from_millis(RETRY_MS);
            cell = cell.map(|Cell { address, allow_loss }| Cell {
                address: address.with_lock_wait(wait),
                allow_loss,
            });
            continue;
        }
        tokio::select! {
            biased;
            () = signals.next() => return Ok(None),
            () = tokio::time::sleep(Duration::from_millis(RETRY_MS)) => {}
        }
    }
}

fn log_wait(error: &StoreError, state_dir: &Path) {
    match error {
        StoreError::Full => tracing::error!(
            state_dir = %state_dir.display(),
            hint = "free disk space; the gateway then starts automatically",
            "disk full; startup waits for space"
        ),
        StoreError::CellTaken { cell, holder, .. } => {
            tracing::info!(cell, holder, "another gateway serves the cell; this one stands by");
        }
        error => tracing::warn!(%error, "database server out of reach; startup waits for it"),
    }
}

/// Opens the store on a thread that nothing waits for when the process ends.
async fn open_store(
    dir: PathBuf,
    cell: Option<Cell>,
    lock: HeldLock,
    config: &Config,
) -> Result<Store, StoreError> {
    let (durability, bounds) = (config.acp.control_plane.durability, group_bounds(config));
    let state_dir = dir.clone();
    let open = move || {
        #[expect(clippy::disallowed_methods, reason = "the clock of this process starts here")]
        let clock = Clock::start();
        match cell {
            None => Store::open_with(&dir, durability, bounds, clock),
            Some(cell) => {
                let mut held = lock.lock();
                if held.is_none() {
                    *held = Some(StateLock::take(&dir)?);
                }
                Store::open_locked_cell(&mut held, &dir, &cell.address, cell.allow_loss, bounds, clock)
            }
        }
    };
    let (sender, opened) = oneshot::channel();
    let thread = std::thread::Builder::new().name("store-open".to_owned());
    // Nobody listens after a signal.
    let spawned = thread.spawn(move || drop(sender.send(open())));
    spawned.map_err(|error| StoreError::file("start the thread that opens", state_dir, error))?;
    opened.await.unwrap_or(Err(StoreError::Panicked { name: "open" }))
}

/// Error for a state directory that cannot be opened. Shown to the person who starts the gateway, not only
/// logged.
fn open_failure(error: StoreError, state_dir: &Path, is_file: bool) -> Failure {
    let dir = state_dir.display().to_string();
    let mut failure = Failure::from(error.clone());
    if failure.detail_code.is_some() {
        if !failure.message.contains(&dir) {
            failure.message = format!("The control plane in {dir} cannot be opened: {}", failure.message);
        }
        return failure;
    }
    let next = if is_file {
        "`acp-gateway store check` checks it; `acp-gateway store restore FILE` restores a backup."
    } else {
        "`acp-gateway doctor` checks the database server."
    };
    let what = format!(
        "The control plane in {dir} cannot be opened: {}. Nothing was changed. {next}",
        error.whole()
    );
    Failure::new(Code::StoreUnavailable, what).origin("gateway")
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn cell_is_read_from_private_files_that_are_named_in_errors() {
        let dir = tempfile::tempdir().unwrap();
        let (file, authorities) = (dir.path().join("address"), dir.path().join("ca.pem"));
        std::fs::write(&authorities, "none").unwrap();
        let read = |text: &str, mode: u32, ca_file: Option<PathBuf>| {
            std::fs::write(&file, text).unwrap();
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
            let cell = "second".to_owned();
            let settings =
                PostgresStore { address_file: Some(file.clone()), cell, ca_file, allow_loss: true };
            let cell = read_cell(&settings).map(|cell| cell.address.to_string());
            std::fs::remove_file(&file).unwrap();
            cell.map_err(|failure| failure.message)
        };
        let url = "postgres://u:hunter22@localhost/acp\n";
        for mode in [0o600, 0o400] {
            assert_eq!(read(url, mode, None).unwrap(), "localhost:5432/acp cell second");
        }
        for (text, mode, ca_file, want) in [
            (url, 0o640, None, "address_file = "),
            (url, 0o604, None, "chmod 600"),
            ("port=none hunter22", 0o600, None, "address_file = "),
            (url, 0o600, Some(authorities.clone()), "ca_file = "),
            (url, 0o600, Some(dir.path().join("missing")), "ca_file = "),
        ] {
            let why = read(text, mode, ca_file).unwrap_err();
            assert!(why.contains(want) && !why.contains("hunter22"), "{why}");
        }
        assert!(
            read_cell(&PostgresStore::default()).unwrap_err().message.contains("address_file is not set")
        );
    }
}
