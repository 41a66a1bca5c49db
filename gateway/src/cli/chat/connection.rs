//! Tasks of a chat at a terminal that talk to the gateway: one sends messages, one reads the session's events. Both retry
//! until the gateway answers again.

use crate::api::client::{EventSelection, GatewayClient, encode};
use crate::api::console::{ConsoleMessageBody, ConsoleMessageResponse};
use crate::cli::chat::state::{OUTGOING_MAX, OutgoingMessage};
use acp_core::api::CancelBody;
use acp_core::failure::Failure;
use acp_core::request::CancelResult;
use acp_shared::codes::Code;
use acp_shared::ids::{IdempotencyKey, RunId, SessionKey};
use acp_store::inbox::Outcome;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// Pause between two attempts to reach a gateway that does not answer.
const PAUSE: Duration = Duration::from_millis(300);
/// Capacity of the queue of events; the reader waits while it is full.
const EVENTS_QUEUED_MAX: usize = 256;

/// Report of a task.
#[derive(Debug)]
pub(crate) enum GatewayReport {
    /// Answer to a message.
    Answered(IdempotencyKey, Result<Outcome, Failure>),
    /// Event line of the followed session, by the number of the reader.
    Event(u64, String),
    /// End of the events of the followed session: it is closed, or cannot be read.
    Ended(u64, Option<Failure>),
    /// True if the gateway answers.
    Connected(bool),
}

/// True for a gateway that may come back.
fn is_away(failure: &Failure) -> bool {
    failure.code == Code::GatewayUnavailable
}

/// Starts the task that sends the messages of a conversation, one after the other.
pub(crate) fn send_messages(
    client: GatewayClient,
    conversation: &str,
    reports: mpsc::Sender<GatewayReport>,
) -> mpsc::Sender<OutgoingMessage> {
    let path = format!("/v1/console/conversations/{}/messages", encode(conversation));
    let (sender, mut messages) = mpsc::channel::<OutgoingMessage>(OUTGOING_MAX + 1);
    tokio::spawn(async move {
        while let Some(message) = messages.recv().await {
            let body = ConsoleMessageBody {
                text: message.text,
                message_id: Some(message.key.as_str().to_owned()),
                author: None,
            };
            let answer = loop {
                let sent: Result<ConsoleMessageResponse, Failure> =
                    client.try_post(&path, &body, &message.key).await;
                match sent {
                    Err(failure) if is_away(&failure) => {
                        if reports.send(GatewayReport::Connected(false)).await.is_err() {
                            return;
                        }
                        tokio::time::sleep(PAUSE).await;
                    }
                    other => break other.map(|said| said.outcome),
                }
            };
            let report = GatewayReport::Answered(message.key, answer);
            if reports.send(GatewayReport::Connected(true)).await.is_err()
                || reports.send(report).await.is_err()
            {
                return;
            }
        }
    });
    sender
}

/// Starts a task that cancels the turn that the person sees; another one that runs by then is left alone. A failure is not
/// reported: the turn stays visible.
pub(crate) fn cancel_turn(client: &GatewayClient, session: &SessionKey, run_id: Option<RunId>) {
    let (client, path) = (client.clone(), format!("/v1/sessions/{}/cancel", encode(session.as_str())));
    tokio::spawn(async move {
        let body = CancelBody { run_id };
        let _: Result<CancelResult, Failure> = client.post(&path, &body, &IdempotencyKey::mint()).await;
    });
}

/// Reader of the events of a session. Ends when dropped.
#[derive(Debug)]
pub(crate) struct SessionReader {
    /// Session.
    pub(crate) key: SessionKey,
    /// Number of the reader, in its reports.
    pub(crate) number: u64,
    task: JoinHandle<()>,
}

impl Drop for SessionReader {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl SessionReader {
    /// Starts to read the events after `after`.
    pub(crate) fn start(
        client: &GatewayClient,
        key: SessionKey,
        after: u64,
        number: u64,
        reports: mpsc::Sender<GatewayReport>,
    ) -> Self {
        let selection =
            EventSelection { session: key.clone(), after, run: None, replay: false, follow: true };
        let mut events = client.events(selection);
        let mut connection = events.watch_connection();
        let (lines, mut queued) = mpsc::channel(EVENTS_QUEUED_MAX);
        let reading = async move {
            loop {
                match events.next().await {
                    Err(failure) if is_away(&failure) => tokio::time::sleep(PAUSE).await,
                    Ok(Some(line)) => {
                        if lines.send(GatewayReport::Event(number, line)).await.is_err() {
                            return;
                        }
                    }
                    Ok(None) => {
                        let _ = lines.send(GatewayReport::Ended(number, None)).await;
                        return;
                    }
                    Err(failure) => {
                        let _ = lines.send(GatewayReport::Ended(number, Some(failure))).await;
                        return;
                    }
                }
            }
        };
        let reporting = async move {
            loop {
                let report = tokio::select! {
                    line = queued.recv() => line,
                    changed = connection.changed() => match changed {
                        Ok(()) => Some(GatewayReport::Connected(*connection.borrow_and_update())),
                        Err(_) => queued.recv().await,
                    },
                };
                let Some(report) = report else { return };
                if reports.send(report).await.is_err() {
                    return;
                }
            }
        };
        let task = tokio::spawn(async move {
            tokio::join!(reading, reporting);
        });
        Self { key, number, task }
    }
}
