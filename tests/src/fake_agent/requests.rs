//! The agent's own requests, and the client's answers to them.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// An answer of the client.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Answer {
    Result(Value),
    /// The error's code.
    Error(i64),
}

#[derive(Debug)]
struct OpenRequest {
    session: String,
    method: String,
    /// The turn no longer waits for the answer.
    abandoned: bool,
    answer: Option<Answer>,
}

/// Requests by their id, as JSON text.
#[derive(Debug)]
pub(crate) struct Requests {
    string_ids: bool,
    next: u64,
    open: BTreeMap<String, OpenRequest>,
    closed: BTreeSet<String>,
}

impl Requests {
    pub(crate) const fn new(string_ids: bool) -> Self {
        Self { string_ids, next: 0, open: BTreeMap::new(), closed: BTreeSet::new() }
    }

    /// Registers a new request and returns its id.
    pub(crate) fn begin(&mut self, session: &str, method: &str) -> Value {
        let id = if self.string_ids { uuid::Uuid::new_v4().to_string().into() } else { self.next.into() };
        self.next += 1;
        let open = OpenRequest {
            session: session.to_owned(),
            method: method.to_owned(),
            abandoned: false,
            answer: None,
        };
        self.open.insert(key(&id), open);
        id
    }

    /// Accepts an answer of the client; the error describes an invalid one.
    pub(crate) fn accept_answer(&mut self, id: &Value, answer: Answer) -> Result<(), String> {
        let key = key(id);
        match self.open.get_mut(&key) {
            Some(open) if open.answer.is_none() => {
                open.answer = Some(answer);
                if open.abandoned {
                    self.open.remove(&key);
                    self.closed.insert(key);
                }
                Ok(())
            }
            Some(_) => Err(format!("a second reply to {key}")),
            None if self.closed.contains(&key) => Err(format!("a second reply to {key}")),
            None => Err(format!("a reply to {key}, which was never asked")),
        }
    }

    /// Returns the answer, if it has arrived.
    pub(crate) fn take(&mut self, id: &Value) -> Option<Answer> {
        let key = key(id);
        let answer = self.open.get_mut(&key)?.answer.take()?;
        self.open.remove(&key);
        self.closed.insert(key);
        Some(answer)
    }

    /// Marks a request whose turn no longer waits for the answer; it may still arrive.
    pub(crate) fn abandon(&mut self, id: &Value) {
        if let Some(open) = self.open.get_mut(&key(id)) {
            open.abandoned = true;
        }
    }

    /// Number of unanswered permission requests and elicitations of a session.
    pub(crate) fn unanswered_permissions(&self, session: &str) -> usize {
        let is_question =
            |method: &str| matches!(method, "session/request_permission" | "elicitation/create");
        let owed = |open: &&OpenRequest| open.session == session && is_question(&open.method);
        self.open.values().filter(owed).count()
    }
}

fn key(id: &Value) -> String {
    id.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn one_answer_each() {
        let mut requests = Requests::new(false);
        let answer = || Answer::Result(json!({}));
        let first = requests.begin("s", "session/request_permission");
        let second = requests.begin("s", "x");
        assert_eq!((&first, &second), (&json!(0), &json!(1)));
        assert_eq!(requests.take(&first), None);
        assert!(requests.accept_answer(&json!("0"), answer()).is_err(), "a string is not the number");
        assert!(requests.accept_answer(&json!(2), answer()).is_err());
        assert_eq!(requests.unanswered_permissions("s"), 1);
        assert_eq!(requests.accept_answer(&first, answer()), Ok(()));
        assert!(requests.accept_answer(&first, answer()).is_err());
        assert_eq!(requests.take(&first), Some(answer()));
        assert!(requests.accept_answer(&first, answer()).is_err());
        requests.abandon(&second);
        assert_eq!(requests.accept_answer(&second, answer()), Ok(()));
        assert!(requests.accept_answer(&second, answer()).is_err());
        assert_eq!(requests.unanswered_permissions("s"), 0);
    }
}
