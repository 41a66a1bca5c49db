//! Listeners besides the socket in the state directory: TCP, and the socket of a trusted proxy. They follow the live
//! configuration: a reload opens new ones, closes removed ones, and reads the TLS files again. `acp-gateway console` has one
//! on loopback while it runs. A gateway that stands by has those of TCP, and hands their sockets over when it serves.

use crate::api::connection_slots::{ConnectionSlot, ConnectionSlots};
use crate::api::http::HttpServer;
use crate::api::socket::{accept_until, bind_unix, remove_socket};
use crate::api::tls;
use crate::api::tokens::TokenRegistry;
use crate::api::web_gate::{Identification, WebGate};
use crate::config::LiveConfig;
use crate::metrics::{Metrics, OpenCount};
use acp_core::api::ListenerView;
use acp_core::config::load::LoadedConfig;
use acp_core::config::{NorthboundConfig, ProxyConfig};
use acp_core::failure::Failure;
use acp_shared::codes::Code;
use acp_shared::log_limit::RefusalLog;
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener as StdTcpListener};
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Name of TCP listeners in metrics and logs.
const TCP: &str = "tcp";
/// Name of the proxy's socket there.
const PROXY: &str = "proxy";

/// States of the listeners, for `GET /v1/status`. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct ListenerStates {
    all: Arc<Mutex<BTreeMap<String, ListenerView>>>,
}

impl ListenerStates {
    /// Returns all states, by address.
    pub(crate) fn views(&self) -> Vec<ListenerView> {
        self.all.lock().values().cloned().collect()
    }

    fn set(&self, address: &str, ok: bool, plaintext: bool, details: String) {
        let view = ListenerView { address: address.to_owned(), ok, plaintext, details };
        self.all.lock().insert(address.to_owned(), view);
    }

    fn keep_only(&self, wanted: &BTreeMap<String, Wanted>) {
        self.all.lock().retain(|address, _| wanted.contains_key(address));
    }
}

/// A listener of the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Wanted {
    /// TCP; true with TLS.
    Tcp(SocketAddr, bool),
    /// Socket of the proxy.
    Proxy(PathBuf, ProxyConfig),
}

/// Request for an address at which a console can be reached.
pub(crate) struct ConsoleListener {
    /// Loopback address; `None` for one of the configuration, or a free port.
    pub(crate) at: Option<SocketAddr>,
    /// Cancelled to close the listener of this console.
    pub(crate) stop: CancellationToken,
    /// The address, or the reason why there is none.
    pub(crate) reply: oneshot::Sender<Result<SocketAddr, String>>,
}

/// TCP sockets opened on standby, by the address in the configuration.
pub(crate) type BoundSockets = BTreeMap<SocketAddr, StdTcpListener>;

struct ActiveListener {
    wanted: Wanted,
    /// Address of TCP, with the port that was taken.
    bound: Option<SocketAddr>,
    /// Socket to hand over; `None` of a gateway that serves.
    socket: Option<StdTcpListener>,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

/// What all listeners share.
#[derive(Clone)]
struct Shared {
    server: HttpServer,
    live: LiveConfig,
    /// `None` while the gateway does not serve: then nobody is identified.
    tokens: Option<TokenRegistry>,
    metrics: Metrics,
    slots: ConnectionSlots,
    log: RefusalLog,
    /// Present TLS files; `None` without TLS.
    tls: Arc<RwLock<Option<Arc<ServerConfig>>>>,
    /// Ends the connections of the listener that are left after its drain, upgraded ones included.
    end: CancellationToken,
}

/// The listeners.
pub(crate) struct Listeners {
    shared: Shared,
    changes: watch::Receiver<Arc<LoadedConfig>>,
    states: ListenerStates,
    active: BTreeMap<String, ActiveListener>,
    /// Sockets that were opened before.
    sockets: BoundSockets,
    asked: mpsc::Receiver<ConsoleListener>,
    consoles: TaskTracker,
}

impl Listeners {
    /// Opens the listeners of the configuration, with the sockets of TCP that are open already.
    ///
    /// # Errors
    /// `CONFIG_INVALID` if a TLS file cannot be used, or the proxy is the gateway's own user; `RUNTIME` if an address
    /// cannot be bound.
    pub(crate) async fn open(
        server: HttpServer,
        live: LiveConfig,
        tokens: TokenRegistry,
        (metrics, states): (Metrics, ListenerStates),
        sockets: BoundSockets,
        asked: mpsc::Receiver<ConsoleListener>,
    ) -> Result<Self, Failure> {
        let mut listeners = Self::new(server, live, Some(tokens), (metrics, states), asked);
        listeners.sockets = sockets;
        let failed = listeners.follow().await.into_iter().next();
        listeners.sockets.clear();
        match failed {
            None => Ok(listeners),
            Some(failure) => {
                listeners.close().await;
                Err(failure)
            }
        }
    }

    /// Opens the TCP listeners of a gateway that does not serve: `server` answers every sender. An address that another process
    /// uses stays closed; the socket of the proxy, too, because the gateway that serves may be on this machine.
    ///
    /// # Errors
    /// `CONFIG_INVALID` if a TLS file cannot be used.
    pub(crate) async fn open_standby(server: HttpServer, live: LiveConfig) -> Result<Self, Failure> {
        let (_, asked) = mpsc::channel(1);
        let mut listeners = Self::new(server, live, None, Default::default(), asked);
        for failure in listeners.follow().await {
            if failure.code == Code::ConfigInvalid {
                listeners.close().await;
                return Err(failure);
            }
            tracing::warn!(%failure, "listener not opened while the gateway stands by");
        }
        Ok(listeners)
    }

    fn new(
        server: HttpServer,
        live: LiveConfig,
        tokens: Option<TokenRegistry>,
        (metrics, states): (Metrics, ListenerStates),
        asked: mpsc::Receiver<ConsoleListener>,
    ) -> Self {
        let slots = ConnectionSlots::new(server.limits.connections_max);
        let (log, tls) = (RefusalLog::default(), Arc::default());
        let end = CancellationToken::new();
        let shared = Shared { server, live, tokens, metrics, slots, log, tls, end };
        // Subscribed first: a reload while the listeners are opened is followed afterwards.
        let changes = shared.live.changes();
        let (active, sockets, consoles) = (BTreeMap::new(), BoundSockets::new(), TaskTracker::new());
        Self { shared, changes, states, active, sockets, asked, consoles }
    }

    /// Returns the TCP addresses, with the ports that were taken.
    pub(crate) fn addresses(&self) -> Vec<String> {
        self.active.values().filter_map(|active| Some(active.bound?.to_string())).collect()
    }

    /// Ends the answers of a gateway that stood by, and returns the sockets: connections wait there for the next listener.
    pub(crate) fn into_sockets(mut self) -> BoundSockets {
        let active = std::mem::take(&mut self.active).into_values();
        active
            .filter_map(|active| {
                active.stop.cancel();
                let Wanted::Tcp(at, _) = active.wanted else { return None };
                Some((at, active.socket?))
            })
            .collect()
    }

    /// Follows the configuration until `ending` is cancelled, then closes all listeners.
    pub(crate) async fn run(mut self, ending: CancellationToken) {
        loop {
            tokio::select! {
                () = ending.cancelled() => break,
                changed = self.changes.changed() => if changed.is_err() { break },
                Some(asked) = self.asked.recv() => {
                    self.open_console(asked).await;
                    continue;
                }
            }
            for failure in self.follow().await {
                tracing::error!(%failure, "listener not opened; others are served");
            }
        }
        self.close().await;
        self.shared.log.flush();
    }

    /// Brings the listeners to the live configuration. Returns what failed.
    async fn follow(&mut self) -> Vec<Failure> {
        let loaded = self.shared.live.now();
        let config = &loaded.config.northbound;
        let mut failures = Vec::new();
        if let Err(why) = self.load_tls(config) {
            failures.push(Failure::new(Code::ConfigInvalid, why).origin("gateway"));
        }
        let has_tls = self.shared.tls.read().is_some();
        // Without its certificate, an address that must have TLS is not served at all.
        let is_usable = config.tls.cert.is_some() == has_tls;
        let mut wanted: BTreeMap<String, Wanted> =
            config.addresses().into_iter().map(|at| (at.to_string(), Wanted::Tcp(at, has_tls))).collect();
        if let Some(socket) = &config.proxy.socket
            && self.shared.tokens.is_some()
        {
            wanted.insert(socket.display().to_string(), Wanted::Proxy(socket.clone(), config.proxy.clone()));
        }
        self.states.keep_only(&wanted);
        let stays = |address: &String, active: &ActiveListener| {
            wanted.get(address) == Some(&active.wanted)
                && (is_usable || !matches!(active.wanted, Wanted::Tcp(..)))
        };
        let ended: Vec<String> = self
            .active
            .iter()
            .filter(|(address, active)| !stays(address, active))
            .map(|(it, _)| it.clone())
            .collect();
        for address in ended {
            self.end(&address).await;
        }
        for (address, wanted) in wanted {
            if self.active.contains_key(&address) {
                continue;
            }
            let opened = match (&wanted, is_usable) {
                (Wanted::Tcp(..), false) => Err("its TLS files cannot be used".to_owned()),
                _ => self.start(&address, wanted).await,
            };
            if let Err(why) = opened {
                self.states.set(&address, false, false, why.clone());
                let text = format!("Cannot listen at {address} (northbound): {why}");
                failures.push(Failure::new(Code::Runtime, text).origin("gateway"));
            }
        }
        failures
    }

    /// Reads the TLS files. If that fails, the files read before stay in use.
    fn load_tls(&self, config: &NorthboundConfig) -> Result<(), String> {
        let loaded = tls::load(&config.tls)?;
        *self.shared.tls.write() = loaded;
        Ok(())
    }

    async fn start(&mut self, address: &str, wanted: Wanted) -> Result<(), String> {
        let stop = CancellationToken::new();
        let end = CancellationToken::new();
        let shared = Shared { slots: self.shared.slots.under(&end), end, ..self.shared.clone() };
        let (mut plaintext, mut bound, mut kept) = (false, None, None);
        let (task, details) = match &wanted {
            Wanted::Tcp(at, has_tls) => {
                let listener = match self.sockets.remove(at) {
                    Some(socket) => TcpListener::from_std(socket),
                    None => TcpListener::bind(at).await,
                };
                let listener = listener.map_err(|error| error.to_string())?;
                if self.shared.tokens.is_none() {
                    kept = Some(duplicate(&listener).map_err(|error| error.to_string())?);
                }
                let port = listener.local_addr().map_err(|error| error.to_string())?;
                bound = Some(port);
                plaintext = !has_tls && !at.ip().to_canonical().is_loopback();
                let details = match (has_tls, plaintext) {
                    (true, _) => "TLS",
                    (false, false) => "without TLS, on loopback",
                    (false, true) => "without TLS: tokens and prompts can be read on the way",
                };
                (
                    tokio::spawn(shared.serve_tcp(listener, *has_tls, stop.clone())),
                    format!("{port}: {details}"),
                )
            }
            Wanted::Proxy(socket, proxy) => {
                if proxy.uids.contains(&rustix::process::geteuid().as_raw()) {
                    return Err("northbound.proxy.uids contains the gateway's own user".to_owned());
                }
                let listener = bind_unix(socket, 0o666).map_err(|error| error.to_string())?;
                let serving = shared.serve_proxy(listener, socket.clone(), stop.clone());
                (tokio::spawn(serving), format!("proxy of uids {:?}", proxy.uids))
            }
        };
        tracing::info!(address, details, "listener opened");
        self.states.set(address, true, plaintext, details);
        self.active.insert(address.to_owned(), ActiveListener { wanted, bound, socket: kept, stop, task });
        Ok(())
    }

    /// Serves a console at a listener of the configuration, or at one of its own until it is stopped.
    async fn open_console(&mut self, asked: ConsoleListener) {
        let configured = self.active.values().find_map(ActiveListener::console_address);
        let found = match (asked.at, configured) {
            (None, Some(at)) => Ok(at),
            (at, _) => self.listen_for_console(at, asked.stop).await.map_err(|error| error.to_string()),
        };
        // The command may be gone already; then its listener is stopped.
        let _ = asked.reply.send(found);
    }

    async fn listen_for_console(
        &self,
        at: Option<SocketAddr>,
        stop: CancellationToken,
    ) -> std::io::Result<SocketAddr> {
        let at = at.unwrap_or_else(|| SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0));
        let listener = TcpListener::bind(at).await?;
        let bound = listener.local_addr()?;
        let end = CancellationToken::new();
        let shared = Shared { slots: self.shared.slots.under(&end), end, ..self.shared.clone() };
        tracing::info!(address = %bound, "console listener opened");
        drop(self.consoles.spawn(async move {
            shared.serve_tcp(listener, false, stop).await;
            tracing::info!(address = %bound, "console listener closed");
        }));
        Ok(bound)
    }

    async fn end(&mut self, address: &str) {
        let Some(active) = self.active.remove(address) else { return };
        active.stop.cancel();
        if active.task.await.is_err() {
            tracing::warn!(address, "listener panicked");
        }
        tracing::info!(address, "listener closed");
    }

    async fn close(&mut self) {
        self.active.values().for_each(|active| active.stop.cancel());
        while let Some(address) = self.active.keys().next().cloned() {
            self.end(&address).await;
        }
        self.consoles.close();
        self.consoles.wait().await;
    }
}

/// Duplicates a listening socket: it stays open when the original is closed.
fn duplicate(listener: &TcpListener) -> std::io::Result<StdTcpListener> {
    Ok(listener.as_fd().try_clone_to_owned()?.into())
}

impl ActiveListener {
    /// Returns the address if a browser on this machine can use it without a certificate.
    fn console_address(&self) -> Option<SocketAddr> {
        let is_plain = matches!(self.wanted, Wanted::Tcp(_, false));
        self.bound.filter(|bound| is_plain && bound.ip().to_canonical().is_loopback())
    }
}

impl Shared {
    async fn serve_tcp(self, listener: TcpListener, has_tls: bool, stop: CancellationToken) {
        let (log, ending) = (self.log.clone(), stop.clone());
        let accept = move |cx: &mut std::task::Context<'_>| listener.poll_accept(cx);
        accept_until(accept, &log, &ending, |(stream, peer), tasks| {
            let (shared, stop) = (self.clone(), stop.clone());
            drop(tasks.spawn(async move { shared.serve_stream(stream, peer, has_tls, &stop).await }));
        })
        .await;
        self.end.cancel();
    }

    async fn serve_stream(
        self,
        stream: TcpStream,
        peer: SocketAddr,
        has_tls: bool,
        ending: &CancellationToken,
    ) {
        let (slot, _open) = self.take_slot(TCP, Some(peer.ip()));
        // Small frames of a stream go out at once. A socket that refuses the option works without it.
        let _ = stream.set_nodelay(true);
        let is_local = peer.ip().to_canonical().is_loopback();
        let identification = match &self.tokens {
            Some(tokens) => Identification::Token(tokens.clone(), is_local),
            None => Identification::Nobody,
        };
        let gate = self.gate(TCP, identification, &peer.to_string());
        let gate = Arc::new(WebGate { bound: stream.local_addr().ok(), ..gate });
        let never = std::future::pending();
        if !has_tls {
            return self.server.serve(stream, gate, slot, false, never, ending).await;
        }
        let Some(config) = self.tls.read().clone() else { return };
        let limit = Duration::from_millis(self.server.limits.head_ms);
        let handshake = tokio::time::timeout(limit, TlsAcceptor::from(config).accept(stream));
        let accepted = tokio::select! {
            accepted = handshake => accepted,
            () = slot.end().cancelled() => return,
            () = ending.cancelled() => return,
        };
        match accepted {
            Ok(Ok(stream)) => self.server.serve(stream, gate, slot, false, never, ending).await,
            Ok(Err(error)) => {
                self.metrics.api_refused(TCP, "tls");
                tracing::debug!(%peer, %error, "TLS handshake failed");
            }
            Err(_) => self.metrics.api_refused(TCP, "tls"),
        }
    }

    async fn serve_proxy(self, listener: UnixListener, path: PathBuf, stop: CancellationToken) {
        let (log, ending) = (self.log.clone(), stop.clone());
        let accept = move |cx: &mut std::task::Context<'_>| listener.poll_accept(cx);
        accept_until(accept, &log, &ending, |(stream, _), tasks| {
            let Some(uid) = self.admit_proxy(&stream) else { return };
            let (shared, stop) = (self.clone(), stop.clone());
            drop(tasks.spawn(async move {
                let (slot, _open) = shared.take_slot(PROXY, None);
                let gate = Arc::new(shared.gate(PROXY, Identification::Proxy, &format!("uid {uid}")));
                shared.server.serve(stream, gate, slot, false, std::future::pending(), &stop).await;
            }));
        })
        .await;
        self.end.cancel();
        remove_socket(&path);
    }

    /// Admits the configured users, except root and the gateway's own.
    fn admit_proxy(&self, stream: &UnixStream) -> Option<u32> {
        let uid = stream.peer_cred().ok()?.uid();
        let own = rustix::process::geteuid().as_raw();
        if uid != 0 && uid != own && self.live.now().config.northbound.proxy.uids.contains(&uid) {
            return Some(uid);
        }
        const REASON: &str = "not the proxy";
        self.metrics.api_refused(PROXY, "foreign_user");
        if self.log.may_log(uid, REASON) {
            tracing::warn!(uid, reason = REASON, "connection refused");
        }
        None
    }

    fn take_slot(&self, listener: &'static str, address: Option<IpAddr>) -> (Arc<ConnectionSlot>, OpenCount) {
        let (slot, displaced) = self.slots.take(address);
        if displaced {
            self.metrics.api_refused(listener, "too_many_connections");
            if self.log.may_log(rustix::process::geteuid().as_raw(), "too many connections") {
                let connections_max = self.server.limits.connections_max;
                tracing::warn!(listener, connections_max, "too many connections; least active one closed");
            }
        }
        (slot, self.metrics.api_connection(listener))
    }

    fn gate(&self, listener: &'static str, identification: Identification, peer: &str) -> WebGate {
        WebGate {
            live: self.live.clone(),
            identification,
            bound: None,
            listener,
            peer: peer.to_owned(),
            metrics: self.metrics.clone(),
            log: self.log.clone(),
        }
    }
}
