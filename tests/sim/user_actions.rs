//! The next requests of users, their repetitions, and the responses.

use crate::channel::ConversationEvent;
use crate::sim::gateway::{OTHER_HOSTS, SimGateway, SimPorts};
use crate::sim::invariants::{self, violated};
use crate::sim::log_capture;
use crate::sim::scheduler::{ROOMS, SimScheduler, Violation};
use crate::sim::users;
use crate::sim::users::{SubmittedRequest, UserRequest};
use acp_core::config::remote::LOCAL;
use acp_core::session::Ending;

/// Number of remaining wishes from which missing sessions are spawned first.
const LATE_WISHES: usize = 10;

/// Verbosities that users choose.
const VERBOSITY: [&str; 6] = ["none", "none", "full", "full", "compact", "default"];

impl SimScheduler<'_> {
    pub(super) fn hear_answer(&mut self, ports: &SimPorts) -> Result<(), Violation> {
        let mut answers = ports.answers.lock();
        let at = self.chance.below(answers.len());
        let (no, answer) = answers.remove(at);
        drop(answers);
        log_capture::note(|| format!("  wish {no}: {answer:?}"));
        let Some(wish) = self.wishes.get_mut(no) else { return Ok(()) };
        wish.waits = false;
        if answer.is_ok() {
            invariants::of_answer(no, wish, self.hand.db())?;
        }
        match answer {
            Ok(text) => match &wish.answer {
                Some(first) if *first != text => {
                    violated!("I5: request {no} {:?} was answered {first} and then {text}", wish.want);
                }
                _ => wish.answer = Some(text),
            },
            Err(failure) => invariants::of_refusal(wish, &failure)?,
        }
        Ok(())
    }

    /// Sends a prompt to a superseded actor, which must not accept it. Before it is superseded it may.
    pub(super) fn tell_left_behind(&mut self) {
        let at = self.chance.below(self.left.len());
        let text = format!("to one left behind {}", self.steps);
        users::ask_directly(&self.left.swap_remove(at), text);
    }

    pub(super) fn wish(&mut self, gateway: &SimGateway) {
        // A conversation is unarchived only if no archive request is in progress.
        let waits = self.wishes.iter().any(|it| it.waits && it.want.puts_away());
        let may = |it: &SubmittedRequest| !(it.waits || waits && it.want.takes_out());
        let open: Vec<usize> = (0..self.wishes.len())
            .filter(|no| self.wishes.get(*no).is_some_and(|it| it.answer.is_none() && !it.refused && may(it)))
            .collect();
        let again = self.chance.pick(&open).copied().filter(|_| self.calm || self.chance.one_in(2));
        let old = self.chance.below(self.wishes.len().max(1));
        let repeat = !self.calm && !self.wishes.is_empty() && self.chance.one_in(5);
        let no = if let Some(no) = again {
            no
        } else if repeat {
            old
        } else if self.wishes_left > 0 && !self.calm {
            self.wishes_left -= 1;
            let want = self.new_want();
            self.wishes.push(SubmittedRequest::new(want));
            self.wishes.len() - 1
        } else {
            return;
        };
        if let Some(wish) = self.wishes.get_mut(no) {
            wish.waits = true;
            wish.asked = self.serving;
            log_capture::note(|| format!("  wish {no}: {:?}", wish.want));
            gateway.door.ask(no, wish.want.clone());
        }
    }

    /// Unarchives all conversations at the end.
    pub(super) fn take_all_out(&mut self) {
        for wish in self.wishes.iter_mut().filter(|wish| wish.want.puts_away() && wish.answer.is_none()) {
            wish.refused = true;
        }
        let out = |room: &&str| UserRequest::Changed {
            conversation: (*room).to_owned(),
            change: ConversationEvent::Unarchived,
        };
        let wishes = ROOMS.iter().map(out).map(SubmittedRequest::new);
        self.wishes.extend(wishes);
    }

    fn new_want(&mut self) -> UserRequest {
        let no = self.wishes.len();
        if let Some(room) = ROOMS.get(no) {
            return UserRequest::Say { conversation: (*room).to_owned(), text: "/acp spawn demo".to_owned() };
        }
        let room = self.chance.pick(&ROOMS).copied().unwrap_or("a").to_owned();
        let say = |text: String| UserRequest::Say { conversation: room.clone(), text };
        let all = invariants::sessions(self.hand.db(), false);
        // Until every room has a session, nobody uses another room's.
        let some = self.chance.pick(&all).filter(|_| all.len() >= ROOMS.len()).cloned();
        let asked = invariants::pending_permission(self.hand.db());
        let queued = invariants::queued_run(self.hand.db());
        let Some(session) = some else {
            // A spawn without a supervisor is refused, and is repeated; without pause towards the end.
            let is_late = self.wishes_left < LATE_WISHES;
            let spawn = all.len() < ROOMS.len() && (is_late || self.chance.one_in(2));
            return say(if spawn { "/acp spawn demo".to_owned() } else { format!("do {no}") });
        };
        if self.chance.one_in(self.moves) {
            let hosts = [LOCAL, OTHER_HOSTS[0]];
            let to = self.away.map_or_else(|| self.chance.below(hosts.len()), |away| 1 - away);
            return UserRequest::Move { session, to: hosts[to] };
        }
        let text = format!("do {no}");
        let message = self.chance.below(no);
        match self.chance.below(50) {
            0..=9 => say(text),
            10..=12 => say(format!("/acp verbosity {}", VERBOSITY[self.chance.below(VERBOSITY.len())])),
            13..=15 => say(format!("/acp steer {text}")),
            16 | 17 => say("/acp cancel".to_owned()),
            18 => say(["/acp close", "/acp close --discard"][usize::from(self.chance.one_in(2))].to_owned()),
            19 => say("/acp new".to_owned()),
            20 | 21 => say(format!("/focus {session}")),
            22 => say("/unfocus".to_owned()),
            23 | 24 => say("/acp spawn demo".to_owned()),
            25 => say("/acp set model big".to_owned()),
            26 => say(["/acp status", "/acp sessions"][self.chance.below(2)].to_owned()),
            27 => say("/session idle 90m".to_owned()),
            28 => UserRequest::Oneshot { text },
            29 => UserRequest::Cancel { session },
            30 => UserRequest::Close { session, ending: Ending::Closed, discard: self.chance.one_in(2) },
            31 => UserRequest::Renew { session },
            32 | 33 => match asked {
                Some((session, permission)) => {
                    let option = ["yes", "no"][self.chance.below(2)].to_owned();
                    UserRequest::Answer { session, permission, option }
                }
                None => say("/acp allow".to_owned()),
            },
            n @ (34 | 35) => say(["/acp allow", "/acp deny"][n - 34].to_owned()),
            40..=42 => match self.wishes.get(message).map(|wish| &wish.want) {
                Some(UserRequest::Say { conversation, .. }) => {
                    let text = if self.chance.one_in(3) { None } else { Some(format!("rather do {no}")) };
                    UserRequest::Edited { conversation: conversation.clone(), message, text }
                }
                _ => say(text),
            },
            number @ 43..=46 => {
                let change = match number {
                    43 => ConversationEvent::Archived { by_person: true },
                    46 => ConversationEvent::Gone { why: "deleted".to_owned() },
                    _ => ConversationEvent::Unarchived,
                };
                UserRequest::Changed { conversation: room, change }
            }
            47 => UserRequest::CaughtUp { conversation: room, through: message },
            48 | 49 => match queued {
                Some(run) if self.chance.one_in(2) => say(format!("/acp steer --run {run}")),
                Some(run) => say(format!("/acp drop {run}")),
                None => say(text),
            },
            n => UserRequest::Prompt { session, text, steer: n == 36, anew: n == 37 },
        }
    }
}
