//! WebSocket: the upgrade, and frames that are not as they should be.

use crate::{path, socket};
use acp_tests::house::House;
use serde_json::json;
use std::os::unix::net::UnixStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::{self, Message, WebSocket};

type Response = tungstenite::handshake::client::Response;

fn connect(house: &House, protocols: Option<&str>) -> (WebSocket<UnixStream>, Response) {
    let stream = UnixStream::connect(socket(house)).unwrap();
    let mut request = format!("ws://gateway{}", path()).into_client_request().unwrap();
    if let Some(protocols) = protocols {
        request.headers_mut().insert("sec-websocket-protocol", protocols.parse().unwrap());
    }
    tungstenite::client(request, stream).unwrap_or_else(|e| panic!("no upgrade: {e}"))
}

/// Reads to the close frame and returns its code.
fn close_code(mut ws: WebSocket<UnixStream>) -> Option<CloseCode> {
    loop {
        match ws.read() {
            Ok(Message::Close(frame)) => return frame.map(|frame| frame.code),
            Ok(_) => {}
            Err(error) => panic!("no close frame: {error}"),
        }
    }
}

fn initialize(ws: &mut WebSocket<UnixStream>) {
    let first = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {"protocolVersion": 1}});
    ws.send(Message::Text(first.to_string())).unwrap();
    let answer: serde_json::Value = serde_json::from_str(&ws.read().unwrap().into_text().unwrap()).unwrap();
    assert_eq!(answer["result"]["protocolVersion"], 1);
}

#[test]
fn upgrade_names_the_connection_and_echoes_only_an_offered_subprotocol() {
    let house = House::new(&[]);
    let (_, response) = connect(&house, None);
    assert_eq!(response.headers()["acp-connection-id"].len(), 32);
    assert!(response.headers().get("sec-websocket-protocol").is_none());
    let (mut ws, response) = connect(&house, Some("other, acp"));
    assert_eq!(response.headers()["sec-websocket-protocol"], "acp");
    initialize(&mut ws);
    house.end();
}

#[test]
fn first_frame_that_is_not_initialize_closes_with_a_protocol_error() {
    let house = House::new(&[]);
    for first in [r#"{"jsonrpc":"2.0","id":1,"method":"session/list"}"#, "{", "[]"] {
        let (mut ws, _) = connect(&house, None);
        ws.send(Message::Text(first.to_owned())).unwrap();
        assert_eq!(close_code(ws), Some(CloseCode::Protocol), "{first}");
    }
    house.end();
}

#[test]
fn frame_over_the_limit_closes_with_its_code() {
    let house = House::new(&[]);
    let (mut ws, _) = connect(&house, None);
    initialize(&mut ws);
    // The server may close before it has read all of the frame.
    let _ = ws.send(Message::Text("x".repeat(16 * 1024 * 1024 + 1)));
    assert_eq!(close_code(ws), Some(CloseCode::Size));
    house.end();
}

#[test]
fn binary_frames_are_ignored_and_bad_text_is_answered() {
    let house = House::new(&[]);
    let (mut ws, _) = connect(&house, None);
    initialize(&mut ws);
    ws.send(Message::Binary(vec![1, 2, 3])).unwrap();
    ws.send(Message::Text("{".to_owned())).unwrap();
    let error: serde_json::Value = serde_json::from_str(&ws.read().unwrap().into_text().unwrap()).unwrap();
    assert_eq!(error["error"]["code"], -32700);
    ws.send(Message::Text(r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}"#.to_owned()))
        .unwrap();
    let error: serde_json::Value = serde_json::from_str(&ws.read().unwrap().into_text().unwrap()).unwrap();
    assert_eq!(error["error"]["code"], -32600, "once is enough");
    house.end();
}
