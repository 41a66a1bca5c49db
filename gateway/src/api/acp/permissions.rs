//! Answers of clients to permission requests. The first valid answer of all surfaces wins in the session's actor; the
//! journal then tells every client.

use super::attach::question;
use super::calls::Caller;
use acp_core::actor::QuestionAnswer;
use acp_core::elicitation;
use acp_core::failure::Failure;
use acp_core::northbound::PERMISSION_ID_PREFIX;
use acp_core::northbound::projection::permission_request;
use acp_core::northbound::session_view::PendingQuestion;
use acp_core::northbound::voting::{QuestionKind, VoteStep, parse_vote};
use acp_core::permission::{NOT_A_VOTER, NOT_PENDING, UNKNOWN_OPTION, Voter};
use acp_core::principal::Scope;
use acp_shared::ids::{IdempotencyKey, SessionKey};

impl Caller {
    /// True if a person can be asked in a turn of this connection: here, on another connection, or in a conversation.
    pub(super) async fn can_be_asked(&self, session: &SessionKey) -> Result<bool, Failure> {
        let voting = self.server.service.session(session).await?.options.voting;
        let voters = voting.voters(&self.connection.principal().id);
        let may_answer = self.connection.principal().may(Scope::Approve) && voters.admit(&self.voter());
        let kind = QuestionKind::Permission;
        Ok(may_answer
            || self.server.has_other_voter(session, "", kind, &voters, &self.connection)
            || (voters.is_anyone() && self.is_bound(session).await))
    }

    /// Returns the client as one who answers with this message.
    pub(super) fn voter(&self) -> Voter {
        Voter { is_local: self.is_local, ..self.connection.principal().voter() }
    }

    /// True if a conversation is bound to the session.
    pub(super) async fn is_bound(&self, session: &SessionKey) -> bool {
        match self.server.service.session_activity(vec![session.clone()]).await {
            Ok(activity) => activity.bindings.contains_key(session),
            Err(failure) => {
                tracing::warn!(session_key = %session, %failure, "bindings cannot be read");
                true
            }
        }
    }

    /// Handles a response of the client. One that answers nothing is dropped.
    pub(super) async fn on_response(&self, id: Option<&str>, outcome: Result<&str, &str>) {
        let id = id.and_then(acp_core::jsonrpc::string);
        let Some(permission_id) = id.as_deref().and_then(|id| id.strip_prefix(PERMISSION_ID_PREFIX)) else {
            tracing::debug!("acp response dropped: unknown id");
            return;
        };
        let vote = parse_vote(outcome);
        let Some((session, step)) = self.connection.vote(permission_id, vote) else {
            tracing::debug!(permission_id, "acp response dropped: the request is settled");
            return;
        };
        self.take_step(&session, permission_id, step).await;
    }

    async fn take_step(&self, session: &SessionKey, permission_id: &str, step: VoteStep) {
        match step {
            VoteStep::Submit(answer) => {
                let next = self.submit(session, permission_id, answer).await;
                match next {
                    VoteStep::AskAgain => self.ask_again(session, permission_id).await,
                    VoteStep::Abstain => self.abstain(session, permission_id).await,
                    VoteStep::Submit(_) | VoteStep::Ignore => {}
                }
            }
            VoteStep::AskAgain => self.ask_again(session, permission_id).await,
            VoteStep::Abstain => self.abstain(session, permission_id).await,
            VoteStep::Ignore => {}
        }
    }

    /// Submits an answer. Returns what follows from a refusal.
    async fn submit(&self, session: &SessionKey, permission_id: &str, answer: QuestionAnswer) -> VoteStep {
        let (by, key) = (self.voter(), IdempotencyKey::mint());
        let answered = self.server.service.answer_question(session, permission_id, answer, by, key).await;
        let Err(failure) = answered else { return VoteStep::Ignore };
        let mut state = self.connection.state();
        let Some(view) = state.session(session) else { return VoteStep::Ignore };
        match failure.detail_code.as_deref() {
            // Another answer was first; its row withdraws the question.
            Some(NOT_PENDING) => VoteStep::Ignore,
            Some(UNKNOWN_OPTION | elicitation::INVALID) => view.ballot().invalid_answer(permission_id),
            // Not from this machine: the question stays open for others.
            Some(NOT_A_VOTER) => {
                view.ballot().reopen(permission_id);
                VoteStep::Ignore
            }
            _ => {
                tracing::warn!(session_key = %session, permission_id, %failure, "acp vote failed");
                view.ballot().reopen(permission_id);
                VoteStep::AskAgain
            }
        }
    }

    /// Sends a question again, with the same id.
    async fn ask_again(&self, session: &SessionKey, permission_id: &str) {
        if let Some(asked) = self.pending(session, permission_id).await {
            self.connection.push(Some(session), permission_request(session, &asked));
        }
    }

    /// Returns a question that is not settled.
    async fn pending(&self, session: &SessionKey, permission_id: &str) -> Option<PendingQuestion> {
        match self.server.service.pending_permissions(session).await {
            Ok(rows) => rows.iter().map(question).find(|found| found.permission_id == permission_id),
            Err(failure) => {
                tracing::warn!(session_key = %session, permission_id, %failure, "acp question cannot be read");
                None
            }
        }
    }

    /// Settles a request as cancelled if nobody else can answer it.
    pub(super) async fn abstain(&self, session: &SessionKey, permission_id: &str) {
        let Some(asked) = self.pending(session, permission_id).await else { return };
        let PendingQuestion { kind, voters, .. } = asked;
        if self.server.has_other_voter(session, permission_id, kind, &voters, &self.connection)
            || (voters.is_anyone() && self.is_bound(session).await)
        {
            return;
        }
        let by = self.voter();
        let (service, key) = (&self.server.service, IdempotencyKey::mint());
        let dismissed =
            service.answer_question(session, permission_id, QuestionAnswer::Dismissed, by, key).await;
        let is_late = |failure: &Failure| failure.detail_code.as_deref() == Some(NOT_PENDING);
        if let Err(failure) = dismissed
            && !is_late(&failure)
        {
            tracing::warn!(session_key = %session, permission_id, %failure, "acp question not dismissed");
        }
    }
}
