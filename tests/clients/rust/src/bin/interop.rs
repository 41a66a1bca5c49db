//! Does everything that a client of the gateway does, with the official crates and three connections. The argument is
//! JSON that says how to connect and what to prompt; one JSON line for each step says what was seen. The test judges.

use agent_client_protocol::schema::ProtocolVersion;
use agent_client_protocol::v1::ConnectionTo;
use agent_client_protocol::v1::schema::{
    CancelNotification, ClientCapabilities, CloseSessionRequest, ContentBlock, DeleteSessionRequest,
    FileSystemCapabilities, Implementation, InitializeRequest, InitializeResponse, ListSessionsRequest,
    LoadSessionRequest, NewSessionRequest, PermissionOptionKind, PromptRequest, ReadTextFileRequest,
    ReadTextFileResponse, RequestPermissionOutcome, RequestPermissionRequest, RequestPermissionResponse,
    ResumeSessionRequest, SelectedPermissionOutcome, SessionId, SessionNotification, SessionUpdate,
    SetSessionModeRequest, WriteTextFileRequest, WriteTextFileResponse,
};
use agent_client_protocol::{AcpAgent, Agent, Client, ConnectTo, Error, JsonRpcRequest};
use agent_client_protocol_http::HttpClient;
use serde_json::{Value, json};
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::{Notify, oneshot};

/// Texts that a client received: those of the agent, and prompts of people.
#[derive(Default)]
struct Seen {
    agent: Vec<String>,
    people: Vec<String>,
    asked: usize,
    withdrawn: usize,
    file_requests: usize,
    /// True for a client that leaves questions open; others answer "allow once".
    is_silent: bool,
}

/// Handlers of a connection and what they received.
#[derive(Clone, Default)]
struct Inbox {
    seen: Arc<Mutex<Seen>>,
    changed: Arc<Notify>,
}

impl Inbox {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().expect("no handler panics")
    }

    fn note(&self, change: impl FnOnce(&mut Seen)) {
        change(&mut self.seen());
        self.changed.notify_one();
    }

    /// Waits for a state; the test's own limit ends a wait that is in vain.
    async fn until(&self, is: impl Fn(&Seen) -> bool) {
        while !is(&self.seen()) {
            self.changed.notified().await;
        }
    }

    fn update(&self, update: SessionUpdate) {
        self.note(|seen| match update {
            SessionUpdate::AgentMessageChunk(chunk) => seen.agent.extend(text(chunk.content)),
            SessionUpdate::UserMessageChunk(chunk) => seen.people.extend(text(chunk.content)),
            _ => {}
        });
    }

    /// Runs a connection until `over`; hands it out when it is there.
    async fn run(
        self,
        transport: impl ConnectTo<Client>,
        out: oneshot::Sender<ConnectionTo<Agent>>,
        over: oneshot::Receiver<()>,
    ) -> Result<(), Error> {
        let (asked, read, written) = (self.clone(), self.clone(), self.clone());
        Client
            .v1()
            .on_receive_notification(
                async move |notification: SessionNotification, _| {
                    self.update(notification.update);
                    Ok(())
                },
                agent_client_protocol::on_receive_notification!(),
            )
            .on_receive_request(
                async move |request: RequestPermissionRequest, responder, _| {
                    asked.note(|seen| seen.asked += 1);
                    if asked.seen().is_silent {
                        let inbox = asked.clone();
                        tokio::spawn(async move {
                            responder.cancellation().cancelled().await;
                            inbox.note(|seen| seen.withdrawn += 1);
                            responder
                                .respond(RequestPermissionResponse::new(RequestPermissionOutcome::Cancelled))
                        });
                        return Ok(());
                    }
                    let mut options = request.options.into_iter();
                    let once = options.find(|option| option.kind == PermissionOptionKind::AllowOnce);
                    let outcome = once.map_or(RequestPermissionOutcome::Cancelled, |option| {
                        RequestPermissionOutcome::Selected(SelectedPermissionOutcome::new(option.option_id))
                    });
                    responder.respond(RequestPermissionResponse::new(outcome))
                },
                agent_client_protocol::on_receive_request!(),
            )
            .on_receive_request(
                async move |_: ReadTextFileRequest, responder, _| {
                    read.note(|seen| seen.file_requests += 1);
                    responder.respond(ReadTextFileResponse::new(""))
                },
                agent_client_protocol::on_receive_request!(),
            )
            .on_receive_request(
                async move |_: WriteTextFileRequest, responder, _| {
                    written.note(|seen| seen.file_requests += 1);
                    responder.respond(WriteTextFileResponse::new())
                },
                agent_client_protocol::on_receive_request!(),
            )
            .connect_with(transport, async move |connection: ConnectionTo<Agent>| {
                let _ = out.send(connection);
                let _ = over.await;
                Ok(())
            })
            .await
    }
}

fn text(content: ContentBlock) -> Option<String> {
    match content {
        ContentBlock::Text(text) => Some(text.text),
        _ => None,
    }
}

/// One connection to the gateway.
struct Peer {
    agent: ConnectionTo<Agent>,
    inbox: Inbox,
    over: oneshot::Sender<()>,
    running: tokio::task::JoinHandle<Result<(), Error>>,
}

impl Peer {
    async fn connect(plan: &Value) -> Self {
        let word = |name: &str| plan[name].as_str().expect("a text").to_owned();
        let inbox = Inbox::default();
        let (out, connection) = oneshot::channel();
        let (over, is_over) = oneshot::channel();
        let running = if plan["transport"] == "stdio" {
            let words = plan["command"].as_array().expect("a command").iter();
            let agent = AcpAgent::from_args(words.map(|word| word.as_str().expect("a text")));
            tokio::spawn(inbox.clone().run(agent.expect("a command"), out, is_over))
        } else {
            let scheme = if plan["transport"] == "websocket" { "ws:" } else { "http:" };
            let token = format!("Bearer {}", word("token")).parse().expect("a header");
            let headers = [(reqwest::header::AUTHORIZATION, token)].into_iter().collect();
            let client = HttpClient::builder_with_endpoint(word("url").replace("http:", scheme))
                .configure_http(|http| http.default_headers(headers))
                .build();
            tokio::spawn(inbox.clone().run(client.expect("a URL"), out, is_over))
        };
        let agent = connection.await.expect("a connection");
        Self { agent, inbox, over, running }
    }

    async fn ask<R: JsonRpcRequest>(&self, request: R) -> Result<R::Response, Error> {
        self.agent.send_request(request).block_task().await
    }

    async fn initialize(&self) -> Result<InitializeResponse, Error> {
        let fs = FileSystemCapabilities::new().read_text_file(true).write_text_file(true);
        let request = InitializeRequest::new(ProtocolVersion::V1)
            .client_capabilities(ClientCapabilities::new().fs(fs))
            .client_info(Implementation::new("interop", "1"));
        self.ask(request).await
    }

    /// Sends a prompt and returns the stop reason.
    async fn prompt(&self, session: &SessionId, plan: &Value, name: &str) -> Result<Value, Error> {
        let text = plan["prompts"][name].as_str().expect("a prompt");
        let answer = self.ask(PromptRequest::new(session.clone(), vec![ContentBlock::from(text)])).await?;
        Ok(json!(answer.stop_reason))
    }

    /// Number of texts of the agent so far.
    fn mark(&self) -> usize {
        self.inbox.seen().agent.len()
    }

    fn text(&self, from: usize) -> String {
        self.inbox.seen().agent[from..].concat()
    }

    async fn close(self) -> Result<(), Error> {
        let _ = self.over.send(());
        self.running.await.expect("no panic")
    }
}

fn report(step: &str, mut seen: Value) {
    seen["step"] = json!(step);
    println!("{seen}");
}

fn code<T>(result: Result<T, Error>) -> i32 {
    result.map_or_else(|error| error.code.into(), |_| 0)
}

/// Three connections and the session that they share.
struct Table {
    plan: Value,
    cwd: String,
    session: SessionId,
    first: Peer,
    second: Peer,
    third: Peer,
}

impl Table {
    /// Connects, and opens the session on the first connection.
    async fn open(plan: Value) -> Result<Self, Error> {
        let cwd = plan["cwd"].as_str().expect("a directory").to_owned();
        let first = Peer::connect(&plan).await;
        let (second, third) = (Peer::connect(&plan).await, Peer::connect(&plan).await);
        let info = first.initialize().await?;
        let created = first.ask(NewSessionRequest::new(cwd.clone())).await?;
        let session = created.session_id;
        let modes = created.modes.map(|modes| modes.available_modes).unwrap_or_default();
        let modes: Vec<String> = modes.iter().map(|mode| mode.id.to_string()).collect();
        let (version, agent) = (info.protocol_version, info.agent_info.map(|info| info.name));
        report("new", json!({"session": session, "version": version, "agent": agent, "modes": modes}));
        Ok(Self { plan, cwd, session, first, second, third })
    }

    async fn prompt(&self, peer: &Peer, name: &str) -> Result<Value, Error> {
        peer.prompt(&self.session, &self.plan, name).await
    }

    fn asked(&self) -> usize {
        [&self.first, &self.second, &self.third].map(|peer| peer.inbox.seen().asked).iter().sum()
    }

    async fn stream_and_ask(&self) -> Result<(), Error> {
        let (first, from) = (&self.first, self.first.mark());
        let stop = self.prompt(first, "stream").await?;
        report("prompt", json!({"stop": stop, "text": first.text(from), "pieces": first.mark() - from}));
        let from = first.mark();
        let stop = self.prompt(first, "write").await?;
        report("permission", json!({"stop": stop, "text": first.text(from), "asked": self.asked()}));
        Ok(())
    }

    /// The second client joins in the middle of the turn and answers the question that both are asked.
    async fn join(&self) -> Result<(), Error> {
        let (first, second, from) = (&self.first, &self.second, self.first.mark());
        first.inbox.seen().is_silent = true;
        let join = async {
            first.inbox.until(|seen| seen.agent.len() > from + 3).await;
            second.initialize().await?;
            second.ask(LoadSessionRequest::new(self.session.clone(), self.cwd.clone())).await?;
            Ok::<_, Error>(second.text(0).len())
        };
        let (stop, replayed) = tokio::try_join!(self.prompt(first, "shared"), join)?;
        let (text, all) = (first.text(from), first.text(0));
        second.inbox.until(|seen| seen.agent.concat().len() >= all.len()).await;
        first.inbox.until(|seen| seen.withdrawn > 0).await;
        let seen = json!({
            "stop": stop,
            "text": text,
            "whole": second.text(0) == all,
            "joined": replayed > 0 && replayed < all.len(),
            "prompts": second.inbox.seen().people.clone(),
            "echoes": first.inbox.seen().people.len(),
            "asked": [first.inbox.seen().asked, second.inbox.seen().asked],
            "withdrawn": first.inbox.seen().withdrawn,
        });
        report("load", seen);
        Ok(())
    }

    async fn cancel(&self) -> Result<(), Error> {
        let (first, from) = (&self.first, self.first.mark());
        let cancel = async {
            first.inbox.until(|seen| !seen.agent[from..].concat().is_empty()).await;
            first.agent.send_notification(CancelNotification::new(self.session.clone()))
        };
        let (stop, ()) = tokio::try_join!(self.prompt(first, "long"), cancel)?;
        report("cancel", json!({"stop": stop}));
        Ok(())
    }

    async fn resume(&self) -> Result<(), Error> {
        let (second, third) = (&self.second, &self.third);
        third.initialize().await?;
        third.ask(ResumeSessionRequest::new(self.session.clone(), self.cwd.clone())).await?;
        let (history, from, people) = (third.mark(), second.mark(), second.inbox.seen().people.len());
        let stop = self.prompt(third, "resumed").await?;
        let text = third.text(0);
        second.inbox.until(|seen| seen.agent[from..].concat().len() >= text.len()).await;
        let prompts = second.inbox.seen().people[people..].to_vec();
        let observed = second.text(from);
        let seen =
            json!({"stop": stop, "history": history, "text": text, "observed": observed, "prompts": prompts});
        report("resume", seen);
        Ok(())
    }

    async fn set_mode(&self) -> Result<(), Error> {
        let (first, before) = (&self.first, self.asked());
        first.inbox.seen().is_silent = false;
        let mode = self.plan["mode"].as_str().expect("a mode").to_owned();
        first.ask(SetSessionModeRequest::new(self.session.clone(), mode)).await?;
        let from = first.mark();
        let stop = self.prompt(first, "mode").await?;
        report("mode", json!({"stop": stop, "text": first.text(from), "asked": self.asked() - before}));
        Ok(())
    }

    async fn is_listed(&self) -> Result<bool, Error> {
        let found = self.second.ask(ListSessionsRequest::new()).await?;
        Ok(found.sessions.iter().any(|found| found.session_id == self.session))
    }

    async fn close(self) -> Result<(), Error> {
        let session = &self.session;
        self.third.ask(CloseSessionRequest::new(session.clone())).await?;
        let closed = code(self.prompt(&self.third, "resumed").await);
        let mut listed = vec![self.is_listed().await?];
        self.second.ask(DeleteSessionRequest::new(session.clone())).await?;
        listed.push(self.is_listed().await?);
        let gone = code(self.first.ask(LoadSessionRequest::new(session.clone(), self.cwd.clone())).await);
        report("close", json!({"closed": closed, "gone": gone, "listed": listed}));
        let peers = [self.first, self.second, self.third];
        let files: usize = peers.iter().map(|peer| peer.inbox.seen().file_requests).sum();
        for peer in peers {
            peer.close().await?;
        }
        // The crate ends the bridge itself and does not tell its exit code.
        report("end", json!({"files": files, "codes": [(), (), ()]}));
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let plan = std::env::args().nth(1).expect("an argument");
    let table = Table::open(serde_json::from_str(&plan).expect("JSON")).await?;
    table.stream_and_ask().await?;
    table.join().await?;
    table.cancel().await?;
    table.resume().await?;
    table.set_mode().await?;
    table.close().await
}
