//! A proxy on loopback that lets a number of bytes pass and holds the rest: a download that is slow for as long as a test wants.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Maximum number of bytes that are read at once.
const PIECE: usize = 16 * 1024;

/// Bytes towards the client, over all connections.
#[derive(Debug, Default)]
struct Budget {
    passed: u64,
    allowed: u64,
    /// Connections that wait for more.
    held: usize,
}

#[derive(Debug, Default)]
struct Gate {
    budget: Mutex<Budget>,
    changed: Condvar,
}

impl Gate {
    fn budget(&self) -> MutexGuard<'_, Budget> {
        self.budget.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until these bytes may pass.
    fn pass(&self, bytes: u64) {
        let mut budget = self.budget();
        budget.held += 1;
        let closed = |budget: &mut Budget| budget.passed.saturating_add(bytes) > budget.allowed;
        let mut budget = self.changed.wait_while(budget, closed).unwrap_or_else(PoisonError::into_inner);
        budget.held -= 1;
        budget.passed += bytes;
    }

    fn allow(&self, bytes: u64) {
        self.budget().allowed = bytes;
        self.changed.notify_all();
    }
}

/// Proxy for HTTPS. Dropping it lets everything pass.
#[derive(Debug)]
pub struct HeldProxy {
    address: SocketAddr,
    gate: Arc<Gate>,
}

impl HeldProxy {
    /// Starts the proxy, which lets this many bytes pass to its clients.
    ///
    /// # Panics
    /// When it cannot listen.
    #[must_use]
    pub fn start(bytes: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap_or_else(|e| panic!("no proxy: {e}"));
        let address = listener.local_addr().unwrap_or_else(|e| panic!("no proxy: {e}"));
        let gate = Arc::new(Gate::default());
        gate.allow(bytes);
        let shared = Arc::clone(&gate);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let gate = Arc::clone(&shared);
                std::thread::spawn(move || serve(client, &gate));
            }
        });
        Self { address, gate }
    }

    /// Address for the client's configuration.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Lets everything pass.
    pub fn open(&self) {
        self.gate.allow(u64::MAX);
    }

    /// True if a client waits for bytes that are held.
    #[must_use]
    pub fn holds(&self) -> bool {
        let budget = self.gate.budget();
        budget.held > 0 && budget.allowed < u64::MAX
    }
}

impl Drop for HeldProxy {
    fn drop(&mut self) {
        self.open();
    }
}

/// Serves a client. A connection that fails ends it; the client reports that.
fn serve(client: TcpStream, gate: &Gate) {
    let Some((mut reader, server)) = connect(&client) else { return };
    let (Ok(mut to_server), Ok(mut to_client)) = (server.try_clone(), client.try_clone()) else { return };
    if to_client.write_all(b"HTTP/1.1 200 OK\r\n\r\n").is_err() {
        return;
    }
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut reader, &mut to_server);
        let _ = to_server.shutdown(Shutdown::Write);
    });
    let (mut server, mut piece) = (server, vec![0; PIECE]);
    while let Ok(read @ 1..) = server.read(&mut piece) {
        gate.pass(read as u64);
        if to_client.write_all(piece.get(..read).unwrap_or_default()).is_err() {
            break;
        }
    }
    let _ = client.shutdown(Shutdown::Both);
    let _ = server.shutdown(Shutdown::Both);
}

/// Reads the request `CONNECT HOST:PORT` and connects to that server.
fn connect(client: &TcpStream) -> Option<(BufReader<TcpStream>, TcpStream)> {
    let mut reader = BufReader::new(client.try_clone().ok()?);
    let mut request = String::new();
    reader.read_line(&mut request).ok()?;
    let target = request.strip_prefix("CONNECT ")?.split(' ').next()?.to_owned();
    let mut header = String::new();
    while reader.read_line(&mut header).ok()? > 2 {
        header.clear();
    }
    Some((reader, TcpStream::connect(target).ok()?))
}
