//! What serenity says in its log alone: with which code the service closed, that numbers of events jumped, that a frame
//! could not be read, that a session begins. Its words are those of the one version that this package is built with;
//! the tests against a faked service fail when they change.

/// What was heard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Heard {
    /// A connection of this shard is being made, new or for a RESUME.
    Connecting(u32),
    /// A session is asked for (IDENTIFY).
    Identify,
    /// The service closed the connection with this code.
    Closed(u16),
    /// The connection broke.
    Broke,
    /// The service says that the session is over.
    Invalidated,
    /// The service did not answer a heartbeat in time.
    Silent,
    /// So many events are missing before the next one.
    Skipped(u64),
    /// A frame that was no event, or not to be read.
    Unread,
    /// A connection could not be made.
    NotConnected,
}

/// Lines that begin with the shard, by what follows; and codes of [`super::closes`] for those that stand for one.
const LINES: [(&str, Heard); 19] = [
    ("Identifying", Heard::Identify),
    ("Sent invalid opcode.", Heard::Closed(4001)),
    ("Sent invalid message.", Heard::Closed(4002)),
    ("Sent no authentication.", Heard::Closed(4003)),
    ("Sent invalid authentication, please check the token.", Heard::Closed(4004)),
    ("Already authenticated.", Heard::Closed(4005)),
    ("Sent invalid seq: ", Heard::Closed(4007)),
    ("Gateway ratelimited.", Heard::Closed(4008)),
    ("Invalid session.", Heard::Closed(4009)),
    ("Sent invalid shard data.", Heard::Closed(4010)),
    ("Shard has too many guilds.", Heard::Closed(4011)),
    ("Invalid gateway intents have been provided.", Heard::Closed(4013)),
    ("Disallowed gateway intents have been provided.", Heard::Closed(4014)),
    ("Websocket error: ", Heard::Broke),
    ("Received session invalidation", Heard::Invalidated),
    ("Last heartbeat not acknowledged", Heard::Silent),
    ("Err starting shard ", Heard::NotConnected),
    ("Failed to resume: ", Heard::NotConnected),
    ("Resume failed, reidentifying: ", Heard::NotConnected),
];

/// Understands a line of serenity's log; none for one that says nothing of use.
#[must_use]
pub fn heard(line: &str) -> Option<Heard> {
    if ["Err deserializing ", "Err decompressing "].iter().any(|start| line.starts_with(start)) {
        return Some(Heard::Unread);
    }
    if line == "Attempting to auto-reconnect" {
        return Some(Heard::Broke);
    }
    // `[ShardInfo { … }] said`, `[Shard Queuer] said`.
    let (shard, said) = line.strip_prefix('[').and_then(|rest| rest.split_once("] ")).unwrap_or(("", line));
    if said == "Attempting to resume" {
        return number(shard.split_once("ShardId(")?.1).map(Heard::Connecting);
    }
    if let Some(rest) = said.strip_prefix("Checked start for shard ") {
        return number(rest).map(Heard::Connecting);
    }
    if let Some(rest) = said.strip_prefix("Unknown unclean close ") {
        return rest.split(':').next()?.parse().ok().map(Heard::Closed);
    }
    if let Some(rest) = said.strip_prefix("Sequence off; them: ") {
        let (them, us) = rest.split_once(", us: ")?;
        let (them, us): (u64, u64) = (them.parse().ok()?, us.parse().ok()?);
        return Some(Heard::Skipped(them.saturating_sub(us).saturating_sub(1)));
    }
    LINES.iter().find(|(start, _)| said.starts_with(start)).map(|(_, heard)| heard.clone())
}

/// The number that a text begins with.
fn number(text: &str) -> Option<u32> {
    text.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_serenity_are_understood() {
        const SHARD: &str = "[ShardInfo { id: ShardId(0), total: 1 }]";
        for (said, expected) in [
            ("Identifying", Some(Heard::Identify)),
            ("Unknown unclean close 4012: Some(\"Invalid API version\")", Some(Heard::Closed(4012))),
            ("Unknown unclean close x", None),
            ("Sent invalid seq: 7.", Some(Heard::Closed(4007))),
            ("Disallowed gateway intents have been provided.", Some(Heard::Closed(4014))),
            ("Sequence off; them: 9, us: 6", Some(Heard::Skipped(2))),
            ("Sequence off; them: 9", None),
            ("Last heartbeat not acknowledged", Some(Heard::Silent)),
            ("Received session invalidation", Some(Heard::Invalidated)),
            ("Resumed", None),
            ("Attempting to resume", Some(Heard::Connecting(0))),
            ("Received a Hello; interval: 41250", None),
        ] {
            assert_eq!(heard(&format!("{SHARD} {said}")), expected, "{said}");
        }
        for (line, expected) in [
            ("Err deserializing text: Error(\"x\"); text: {}", Some(Heard::Unread)),
            ("Err decompressing bytes: x", Some(Heard::Unread)),
            ("[Shard Queuer] Err starting shard 0: Io", Some(Heard::NotConnected)),
            ("Failed to resume: x", Some(Heard::NotConnected)),
            ("Attempting to auto-reconnect", Some(Heard::Broke)),
            ("[Shard Queuer] Checked start for shard 12 out of 16", Some(Heard::Connecting(12))),
            ("[ShardInfo { id: ShardId(3), total: 16 }] Attempting to resume", Some(Heard::Connecting(3))),
            ("[x] Attempting to resume", None),
            ("[Shard Queuer] Checked start for shard x", None),
            ("Failing bytes: [1]", None),
            ("", None),
            ("[", None),
        ] {
            assert_eq!(heard(line), expected, "{line}");
        }
    }
}
