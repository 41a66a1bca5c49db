//! Payloads of the gateway as JSON text.

use crate::core::shard::{Frame, OutgoingPayload};
use acp_shared::redact::Secret;
use serde::Deserialize;
use serde_json::{Value, json};
use serenity::constants::{LARGE_THRESHOLD, Opcode};
use serenity::model::gateway::GatewayIntents;

/// Name of this program in IDENTIFY.
const PROGRAM: &str = "acp-host";

/// Events that the bot asks for.
const INTENTS: GatewayIntents =
    GatewayIntents::GUILDS.union(GatewayIntents::GUILD_MESSAGES).union(GatewayIntents::MESSAGE_CONTENT);

/// Properties of a shard that its payloads hold.
#[derive(Debug, Clone)]
pub(super) struct ShardIdentity {
    pub(super) token: Secret,
    pub(super) shard: u32,
    pub(super) shards: u32,
}

#[derive(Deserialize)]
struct Envelope {
    op: Opcode,
    s: Option<u64>,
    t: Option<String>,
    #[serde(default)]
    d: Value,
}

/// Reads a payload from the service.
pub(super) fn decode(text: &str) -> Frame {
    serde_json::from_str(text).ok().and_then(frame).unwrap_or(Frame::Unreadable)
}

fn frame(envelope: Envelope) -> Option<Frame> {
    let Envelope { op, s, t, d } = envelope;
    Some(match op {
        Opcode::Dispatch => Frame::Dispatch { seq: s, kind: t?, data: d },
        Opcode::Heartbeat => Frame::Heartbeat,
        Opcode::Reconnect => Frame::Reconnect,
        Opcode::InvalidSession => Frame::InvalidSession { resumable: d.as_bool().unwrap_or(false) },
        Opcode::Hello => Frame::Hello { interval_ms: d.get("heartbeat_interval")?.as_u64()? },
        Opcode::HeartbeatAck => Frame::Ack,
        _ => return None,
    })
}

impl ShardIdentity {
    /// Writes a payload to the service. The text of IDENTIFY and RESUME holds the token.
    pub(super) fn encode(&self, payload: &OutgoingPayload) -> String {
        let (op, data) = match payload {
            OutgoingPayload::Heartbeat(seq) => (Opcode::Heartbeat, json!(seq)),
            OutgoingPayload::Identify => (Opcode::Identify, self.identify()),
            OutgoingPayload::Resume { session, seq } => {
                let data = json!({ "token": self.token.expose(), "session_id": session, "seq": seq });
                (Opcode::Resume, data)
            }
        };
        json!({ "op": op, "d": data }).to_string()
    }

    fn identify(&self) -> Value {
        json!({
            "token": self.token.expose(),
            "intents": INTENTS,
            "shard": [self.shard, self.shards],
            "properties": { "os": std::env::consts::OS, "browser": PROGRAM, "device": PROGRAM },
            "compress": false,
            "large_threshold": LARGE_THRESHOLD,
            "presence": { "status": "online", "since": null, "activities": [], "afk": false },
        })
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::expect_used, reason = "a failed expectation is a failed test")]

    use super::*;

    fn identity() -> ShardIdentity {
        let token = Secret::new("hunter2".to_owned());
        ShardIdentity { token, shard: 1, shards: 2 }
    }

    fn encoded(payload: &OutgoingPayload) -> Value {
        serde_json::from_str(&identity().encode(payload)).expect("json")
    }

    #[test]
    fn outgoing_payloads_match_documentation() {
        assert_eq!(encoded(&OutgoingPayload::Heartbeat(None)), json!({ "op": 1, "d": null }));
        assert_eq!(encoded(&OutgoingPayload::Heartbeat(Some(7))), json!({ "op": 1, "d": 7 }));
        let resume = OutgoingPayload::Resume { session: "s".to_owned(), seq: 7 };
        let data = json!({ "token": "hunter2", "session_id": "s", "seq": 7 });
        assert_eq!(encoded(&resume), json!({ "op": 6, "d": data }));
        let identify = encoded(&OutgoingPayload::Identify);
        let intents: u64 = 1 | 1 << 9 | 1 << 15;
        assert_eq!((&identify["op"], &identify["d"]["intents"]), (&json!(2), &json!(intents)));
        assert_eq!((&identify["d"]["shard"], &identify["d"]["compress"]), (&json!([1, 2]), &json!(false)));
        assert_eq!(identify["d"]["presence"]["status"], "online");
        assert!(identify.to_string().len() < 4096);
        assert!(!format!("{:?}", identity()).contains("hunter2"));
    }

    #[test]
    fn incoming_payloads_are_decoded() {
        for (text, frame) in [
            (r#"{"op":10,"d":{"heartbeat_interval":41250}}"#, Frame::Hello { interval_ms: 41_250 }),
            (r#"{"op":10,"d":{}}"#, Frame::Unreadable),
            (r#"{"op":11}"#, Frame::Ack),
            (r#"{"op":1,"d":null}"#, Frame::Heartbeat),
            (r#"{"op":7,"d":null,"s":null,"t":null}"#, Frame::Reconnect),
            (r#"{"op":9,"d":true}"#, Frame::InvalidSession { resumable: true }),
            (r#"{"op":9,"d":false}"#, Frame::InvalidSession { resumable: false }),
            (r#"{"op":9}"#, Frame::InvalidSession { resumable: false }),
            (r#"{"op":0,"s":2,"d":{}}"#, Frame::Unreadable),
            (r#"{"op":99,"d":{}}"#, Frame::Unreadable),
            (r#"{"op":-1}"#, Frame::Unreadable),
            ("{ no json", Frame::Unreadable),
            ("[]", Frame::Unreadable),
        ] {
            assert_eq!(decode(text), frame, "{text}");
        }
        let event = Frame::Dispatch { seq: Some(2), kind: "X".to_owned(), data: json!({ "a": 1 }) };
        assert_eq!(decode(r#"{"op":0,"s":2,"t":"X","d":{"a":1}}"#), event);
    }
}
