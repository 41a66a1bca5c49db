//! Clients that speak ACP to the gateway: real processes, several clients on one session.

mod bridge;
mod chaos;
mod foreign;
mod http;
mod lifecycle;
mod permissions;
mod questions;
mod resume;
mod retention;
mod turns;
mod websocket;

use acp_tests::house::{AGENT, House};
use acp_tests::northbound::Client;
use std::path::PathBuf;

/// Socket of the gateway of a house.
fn socket(house: &House) -> PathBuf {
    house.gateway().socket()
}

/// Path of the scripted agent.
fn path() -> String {
    format!("/acp/{AGENT}")
}

/// A client over HTTP.
fn client(house: &House) -> Client {
    Client::http(&socket(house), &path())
}

/// A client over a WebSocket.
fn websocket(house: &House) -> Client {
    Client::websocket(&socket(house), &path())
}

/// Working directory of sessions, which exists.
fn cwd(house: &House) -> PathBuf {
    house.world.dir("work/project")
}
