//! A gateway that does not serve its cell yet: another gateway does, or the database server is out of reach. It answers at its
//! listeners who serves, for balancers and people, and hands their sockets over when it serves itself.

use crate::api::extract::ApiError;
use crate::api::http::HttpServer;
use crate::api::listeners::{BoundSockets, Listeners};
use crate::api::sessions;
use crate::api::socket::{ApiListener, remove_socket};
use crate::app::api_limits;
use crate::config::LiveConfig;
use acp_core::api::{CellOwnerView, OwnerView, STANDING_BY};
use acp_core::failure::Failure;
use acp_core::time_format::format_utc;
use acp_shared::codes::Code;
use acp_store::StoreError;
use axum::Router;
use axum::extract::State;
use axum::response::Response;
use axum::routing::get;
use parking_lot::RwLock;
use std::path::PathBuf;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// Reason of the standby, and the owner of the cell. Cheap to clone.
#[derive(Debug, Clone)]
struct Situation(Arc<RwLock<(OwnerView, Failure)>>);

/// Answers of a gateway that does not serve yet.
pub(crate) struct Standby {
    cell: String,
    situation: Situation,
    server: HttpServer,
    listeners: Listeners,
    socket: PathBuf,
    /// Answers at the local socket.
    local: Option<LocalAnswers>,
    /// True once the local socket was opened, or cannot be.
    has_tried_local: bool,
}

/// Answers at the local socket. The socket file is removed with them.
struct LocalAnswers {
    socket: PathBuf,
    ending: CancellationToken,
    is_released: bool,
}

impl Drop for LocalAnswers {
    fn drop(&mut self) {
        self.ending.cancel();
        if !self.is_released {
            remove_socket(&self.socket);
        }
    }
}

impl Standby {
    /// Opens the TCP listeners of the configuration. The local socket is opened once another gateway is known to serve the cell:
    /// the caller holds the lock of its directory then.
    ///
    /// # Errors
    /// As [`Listeners::open_standby`].
    pub(crate) async fn open(live: &LiveConfig, cell: &str, socket: PathBuf) -> Result<Self, Failure> {
        let view = OwnerView { serves: false, cell: Some(cell.to_owned()), owner: None };
        let starts =
            failure(format!("This gateway starts: it takes the cell {cell} if no other one serves it."));
        let situation = Situation(Arc::new(RwLock::new((view, starts))));
        let router = Router::new()
            .route("/health", get(sessions::liveness))
            .route("/v1/owner", get(owner))
            .fallback(refuse)
            .with_state(situation.clone());
        let server = HttpServer { router, limits: api_limits(live.at_start()) };
        let listeners = Listeners::open_standby(server.clone(), live.clone()).await?;
        Ok(Self {
            cell: cell.to_owned(),
            situation,
            server,
            listeners,
            socket,
            local: None,
            has_tried_local: false,
        })
    }

    /// Returns the TCP addresses.
    pub(crate) fn addresses(&self) -> Vec<String> {
        self.listeners.addresses()
    }

    /// Answers from now on with the reason why the store cannot be opened.
    pub(crate) fn note(&mut self, error: &StoreError) {
        let cell = &self.cell;
        let (owner, text) = match error {
            StoreError::CellTaken { owner, .. } => {
                let owner = owner.as_deref().cloned();
                let shown = owner.as_ref().map_or_else(|| "another process".to_owned(), describe);
                let text = format!(
                    "This gateway stands by for the cell {cell}: {shown} serves it. Use that gateway; this one takes over when it ends."
                );
                (owner, text)
            }
            // The address of the server is for those who read the log.
            _ => (
                None,
                format!(
                    "This gateway waits for the database server of the cell {cell}: its log has the reason."
                ),
            ),
        };
        self.tell(owner, text);
        if matches!(error, StoreError::CellTaken { .. })
            && !std::mem::replace(&mut self.has_tried_local, true)
        {
            self.answer_locally();
        }
    }

    fn tell(&self, owner: Option<CellOwnerView>, text: String) {
        let view = OwnerView { serves: false, cell: Some(self.cell.clone()), owner };
        *self.situation.0.write() = (view, failure(text));
    }

    fn answer_locally(&mut self) {
        let listener = match ApiListener::bind(&self.socket) {
            Ok(listener) => listener,
            Err(error) => {
                tracing::warn!(%error, socket = %self.socket.display(), "local socket not opened while the gateway stands by");
                return;
            }
        };
        let ending = CancellationToken::new();
        let HttpServer { router, limits } = self.server.clone();
        tokio::spawn(listener.answer(router, limits, ending.clone()));
        self.local = Some(LocalAnswers { socket: self.socket.clone(), ending, is_released: false });
    }

    /// Notes that the gateway has the cell, and ends the answers at the local socket. Its file stays for the next listener.
    pub(crate) fn release_local(&mut self) {
        self.tell(None, format!("This gateway has taken the cell {} and starts.", self.cell));
        if let Some(mut local) = self.local.take() {
            local.is_released = true;
        }
    }

    /// Ends the answers, and returns the sockets of TCP.
    pub(crate) fn into_sockets(self) -> BoundSockets {
        self.listeners.into_sockets()
    }
}

fn failure(text: String) -> Failure {
    Failure::new(Code::StoreUnavailable, text).detail(STANDING_BY).origin("gateway").retryable()
}

/// Describes an owner to people.
fn describe(owner: &CellOwnerView) -> String {
    let CellOwnerView { epoch, since_ms, host, pid, addresses } = owner;
    let at = match addresses.as_slice() {
        [] => String::new(),
        addresses => format!(" at {}", addresses.join(", ")),
    };
    format!("the gateway on {host}{at} (pid {pid}, epoch {epoch}, since {})", format_utc(*since_ms))
}

/// `GET /v1/owner`
async fn owner(State(situation): State<Situation>) -> Response {
    let (view, failure) = situation.0.read().clone();
    sessions::not_the_owner(view, failure)
}

async fn refuse(State(situation): State<Situation>) -> ApiError {
    ApiError::from(situation.0.read().1.clone())
}
