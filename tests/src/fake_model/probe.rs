//! The test's side of the fake model: its address and its log of requests.

use crate::service::Service;
use crate::wait::SOON;
use crate::world::World;
use serde_json::Value;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;

/// A running fake model.
#[derive(Debug)]
pub struct FakeModel {
    service: Service,
}

impl FakeModel {
    /// Starts one in a world.
    ///
    /// # Panics
    /// When it does not become ready.
    #[must_use]
    pub fn start(world: &World) -> Self {
        Self { service: world.start_service("fake-model", &[]) }
    }

    /// The base address for agents, `/v1` included.
    ///
    /// # Panics
    /// When its ready line has none.
    #[must_use]
    pub fn url(&self) -> &str {
        self.service.ready["url"].as_str().unwrap_or_else(|| panic!("no url in {}", self.service.ready))
    }

    /// The address without `/v1`: the base of Google's interface.
    ///
    /// # Panics
    /// When its ready line has none.
    #[must_use]
    pub fn root(&self) -> &str {
        self.url().trim_end_matches("/v1")
    }

    /// Its pid.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.service.pid()
    }

    /// Opens a connection and sends one request.
    ///
    /// # Panics
    /// When that fails.
    #[must_use]
    pub fn send(&self, method: &str, path: &str, body: &str) -> TcpStream {
        let address = self.root().trim_start_matches("http://");
        let mut stream = TcpStream::connect(address).unwrap_or_else(|e| panic!("{address}: {e}"));
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
        );
        let sent =
            stream.set_read_timeout(Some(SOON)).and_then(|()| stream.write_all((head + body).as_bytes()));
        sent.unwrap_or_else(|e| panic!("{address}: {e}"));
        stream
    }

    /// Sends one request and returns the status and the body of the answer.
    ///
    /// # Panics
    /// When there is no answer.
    #[must_use]
    pub fn ask(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        let mut text = String::new();
        let read = self.send(method, path, body).read_to_string(&mut text);
        read.unwrap_or_else(|e| panic!("{path}: {e}"));
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no HTTP: {text}"));
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
        (status.unwrap_or_else(|| panic!("no status: {head}")), body.to_owned())
    }

    /// Logged requests, without side calls (titles, summaries).
    ///
    /// # Panics
    /// When it does not answer.
    #[must_use]
    pub fn log(&self) -> Vec<Value> {
        let (_, body) = self.ask("GET", "/log", "");
        let lines: Vec<Value> = serde_json::from_str(&body).unwrap_or_else(|e| panic!("{e}: {body}"));
        lines.into_iter().filter(|line| line["side_call"] == false).collect()
    }

    /// The newest request with this script.
    #[must_use]
    pub fn request_with_script(&self, script: &str) -> Option<Value> {
        self.log().into_iter().rfind(|line| line["script"] == script)
    }
}
