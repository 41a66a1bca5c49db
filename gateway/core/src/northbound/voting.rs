//! Votes of clients on permission requests. Several connections are asked at once; the first valid answer wins.

use crate::actor::QuestionAnswer;
use crate::elicitation::ElicitationAnswer;
use crate::jsonrpc::ObjectMembers;
use serde_json::Map;
use std::collections::HashMap;

/// Maximum number of malformed answers of a connection, after which it is no longer asked.
pub const MALFORMED_MAX: u32 = 3;

/// Kind of a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QuestionKind {
    /// Permission request.
    Permission,
    /// Elicitation with a form.
    Form,
    /// Elicitation with a page to open.
    Page,
}

/// Answer of a client to a question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Vote {
    /// An answer.
    Answer(QuestionAnswer),
    /// No answer: the client's person dismissed the question.
    Cancelled,
    /// The client cannot ask.
    Error,
    /// Not an answer of the protocol.
    Malformed,
}

/// Reads the outcome of a response to `session/request_permission` or `elicitation/create`.
pub fn parse_vote(outcome: Result<&str, &str>) -> Vote {
    let Ok(result) = outcome else { return Vote::Error };
    let parsed = || {
        let result = ObjectMembers::parse(result).ok()?;
        if let Some(action) = result.string("action") {
            return elicitation_vote(&action, result.get("content"));
        }
        let outcome = ObjectMembers::parse(result.get("outcome")?).ok()?;
        match outcome.string("outcome")?.as_ref() {
            "selected" => {
                Some(Vote::Answer(QuestionAnswer::Option(outcome.string("optionId")?.into_owned())))
            }
            "cancelled" => Some(Vote::Cancelled),
            _ => None,
        }
    };
    parsed().unwrap_or(Vote::Malformed)
}

fn elicitation_vote(action: &str, content: Option<&str>) -> Option<Vote> {
    let answer = match action {
        "accept" => {
            let content = content.filter(|raw| *raw != "null");
            let content = content.map_or_else(|| Ok(Map::new()), serde_json::from_str).ok()?;
            ElicitationAnswer::Accept { content }
        }
        "decline" => ElicitationAnswer::Decline,
        "cancel" => return Some(Vote::Cancelled),
        _ => return None,
    };
    Some(Vote::Answer(QuestionAnswer::Elicitation(answer)))
}

/// State of one question on one connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Question {
    /// Sent, no answer yet; with the row that gave the question, if a row did.
    Open(Option<u64>),
    /// Answered; the journal tells whether it won.
    Answered,
    /// Dismissed, or refused by the client: it has no vote on this question.
    Abstained,
}

/// Questions of one session on one connection.
#[derive(Debug, Clone, Default)]
pub struct Ballot {
    questions: HashMap<String, Question>,
    malformed: u32,
}

/// Consequence of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VoteStep {
    /// Submit the answer.
    Submit(QuestionAnswer),
    /// Settle the request as cancelled if nobody else can answer it.
    Abstain,
    /// Ask again with the same id.
    AskAgain,
    /// Nothing: the answer is late, or counts no more.
    Ignore,
}

impl Ballot {
    /// True if the connection still has a vote in this session.
    pub const fn is_voter(&self) -> bool {
        self.malformed < MALFORMED_MAX
    }

    /// True if the connection may still answer this question.
    pub fn has_vote(&self, permission_id: &str) -> bool {
        self.is_voter() && self.questions.get(permission_id) != Some(&Question::Abstained)
    }

    /// True if the question was sent and is not settled.
    pub fn has_question(&self, permission_id: &str) -> bool {
        self.questions.contains_key(permission_id)
    }

    /// Notes that a question is to be sent, with its row if it comes from one. Returns false if it was sent before, or if
    /// the connection has no vote.
    pub fn ask(&mut self, permission_id: &str, seq: Option<u64>) -> bool {
        if !self.is_voter() || self.questions.contains_key(permission_id) {
            return false;
        }
        self.questions.insert(permission_id.to_owned(), Question::Open(seq));
        true
    }

    /// Notes a question that the client cannot show. Returns false if it is known.
    pub fn skip(&mut self, permission_id: &str) -> bool {
        let is_new = !self.questions.contains_key(permission_id);
        if is_new {
            self.questions.insert(permission_id.to_owned(), Question::Abstained);
        }
        is_new
    }

    /// Forgets the questions that were sent, so that they are sent again, except those that were dismissed.
    pub fn ask_all_again(&mut self) {
        self.questions.retain(|_, question| *question == Question::Abstained);
    }

    /// Forgets the open questions of rows behind `seq`, which are sent again.
    pub fn rewind(&mut self, seq: u64) {
        self.questions.retain(|_, question| !matches!(question, Question::Open(Some(row)) if *row > seq));
    }

    /// Applies an answer.
    pub fn vote(&mut self, permission_id: &str, vote: Vote) -> VoteStep {
        let is_voter = self.is_voter();
        let Some(question) = self.questions.get_mut(permission_id) else { return VoteStep::Ignore };
        if !matches!(question, Question::Open(_)) || !is_voter {
            return VoteStep::Ignore;
        }
        match vote {
            Vote::Answer(answer) => {
                *question = Question::Answered;
                VoteStep::Submit(answer)
            }
            Vote::Cancelled | Vote::Error => {
                *question = Question::Abstained;
                VoteStep::Abstain
            }
            Vote::Malformed => self.malformed_answer(),
        }
    }

    /// Reopens a question whose answer was invalid.
    pub fn invalid_answer(&mut self, permission_id: &str) -> VoteStep {
        match self.questions.get_mut(permission_id) {
            Some(question) => *question = Question::Open(None),
            None => return VoteStep::Ignore,
        }
        self.malformed_answer()
    }

    /// Reopens a question whose answer could not be submitted.
    pub fn reopen(&mut self, permission_id: &str) {
        if let Some(question) = self.questions.get_mut(permission_id) {
            *question = Question::Open(None);
        }
    }

    fn malformed_answer(&mut self) -> VoteStep {
        self.malformed += 1;
        if self.is_voter() { VoteStep::AskAgain } else { VoteStep::Abstain }
    }

    /// Forgets a settled question. Returns true if the client still shows it.
    pub fn settle(&mut self, permission_id: &str) -> bool {
        matches!(self.questions.remove(permission_id), Some(Question::Open(_)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    fn option(id: &str) -> Vote {
        Vote::Answer(QuestionAnswer::Option(id.to_owned()))
    }

    #[test]
    fn outcomes_are_read_or_malformed() {
        let selected = |id: &str| option(id);
        let elicited = |answer| Vote::Answer(QuestionAnswer::Elicitation(answer));
        let accepted = |content: Value| {
            let Value::Object(content) = content else { panic!("no object") };
            elicited(ElicitationAnswer::Accept { content })
        };
        for (outcome, want) in [
            (Ok(r#"{"outcome":{"outcome":"selected","optionId":"a"}}"#), selected("a")),
            (Ok(r#"{"outcome":{"outcome":"cancelled"}}"#), Vote::Cancelled),
            (Ok(r#"{"outcome":{"outcome":"selected"}}"#), Vote::Malformed),
            (Ok(r#"{"outcome":{"outcome":"selected","optionId":7}}"#), Vote::Malformed),
            (Ok(r#"{"outcome":{"outcome":"maybe"}}"#), Vote::Malformed),
            (Ok(r#"{"outcome":"cancelled"}"#), Vote::Malformed),
            (Ok("null"), Vote::Malformed),
            (Ok(r#"{"action":"accept","content":{"n":1}}"#), accepted(json!({"n": 1}))),
            (Ok(r#"{"action":"accept"}"#), accepted(json!({}))),
            (Ok(r#"{"action":"accept","content":null}"#), accepted(json!({}))),
            (Ok(r#"{"action":"accept","content":[1]}"#), Vote::Malformed),
            (Ok(r#"{"action":"decline"}"#), elicited(ElicitationAnswer::Decline)),
            (Ok(r#"{"action":"cancel"}"#), Vote::Cancelled),
            (Ok(r#"{"action":"maybe"}"#), Vote::Malformed),
            (Err(r#"{"code":-32601}"#), Vote::Error),
        ] {
            assert_eq!(parse_vote(outcome), want, "{outcome:?}");
        }
    }

    #[test]
    fn question_is_sent_once_and_again_after_a_load() {
        let mut ballot = Ballot::default();
        assert!(ballot.ask("p", None));
        assert!(!ballot.ask("p", None), "once");
        ballot.ask_all_again();
        assert!(ballot.ask("p", None), "again after a load");
        assert_eq!(ballot.vote("p", Vote::Cancelled), VoteStep::Abstain);
        ballot.ask_all_again();
        assert!(!ballot.ask("p", None), "a dismissed question stays dismissed");
    }

    #[test]
    fn third_malformed_answer_ends_the_vote() {
        let mut ballot = Ballot::default();
        assert!(ballot.ask("p", None));
        assert_eq!(ballot.vote("p", Vote::Malformed), VoteStep::AskAgain);
        let no_such = QuestionAnswer::Option("no such".to_owned());
        assert_eq!(ballot.vote("p", option("no such")), VoteStep::Submit(no_such));
        assert_eq!(ballot.invalid_answer("p"), VoteStep::AskAgain);
        assert_eq!(ballot.vote("p", Vote::Malformed), VoteStep::Abstain);
        assert!(!ballot.is_voter() && !ballot.ask("q", None) && !ballot.has_vote("q"));
    }

    #[test]
    fn settled_question_is_withdrawn_only_where_it_is_open() {
        let mut ballot = Ballot::default();
        for id in ["open", "answered", "dismissed"] {
            assert!(ballot.ask(id, None));
        }
        ballot.vote("answered", option("a"));
        ballot.vote("dismissed", Vote::Cancelled);
        let withdrawn = ["open", "answered", "dismissed", "never asked"].map(|id| ballot.settle(id));
        assert_eq!(withdrawn, [true, false, false, false]);
        assert_eq!(ballot.vote("open", option("a")), VoteStep::Ignore, "late");
    }

    #[test]
    fn skipped_question_is_neither_asked_nor_answered() {
        let mut ballot = Ballot::default();
        assert!(ballot.skip("p") && !ballot.skip("p"), "once");
        assert!(!ballot.has_vote("p") && !ballot.ask("p", None));
        assert_eq!(ballot.vote("p", option("a")), VoteStep::Ignore);
        ballot.ask_all_again();
        assert!(!ballot.has_vote("p") && !ballot.settle("p"));
    }

    proptest! {
        /// Each question is submitted at most once while it is open.
        #[test]
        fn at_most_one_vote_counts(votes in proptest::collection::vec(0_u8..4, 0..12)) {
            let mut ballot = Ballot::default();
            ballot.ask("p", None);
            let mut counted = 0;
            for vote in votes {
                let vote = match vote {
                    0 => option("a"),
                    1 => Vote::Cancelled,
                    2 => Vote::Error,
                    _ => Vote::Malformed,
                };
                if matches!(ballot.vote("p", vote), VoteStep::Submit(_)) {
                    counted += 1;
                }
            }
            prop_assert!(counted <= 1);
        }
    }
}
