//! Simulated users: ten rooms, each bound to its own session, and an unbound lobby.

use acp_tests::fake_channel::service::ChatService;
use acp_tests::house::AGENT;
use acp_tests::seed::Seed;
use acp_tests::wait::{LONG, until};
use acp_tests::world::World;
use std::path::PathBuf;

/// Number of rooms.
pub(crate) const ROOMS: usize = 10;
/// The conversation that is bound to nothing.
pub(crate) const LOBBY: &str = "lobby";
/// Maximum number of messages per room that the gateway has not accepted.
const WAITING_MAX: usize = 2;

/// Prefix of messages that steer a running turn.
pub(crate) const STEER: &str = "/acp steer ";

/// Name of the room with that number.
pub(crate) fn room(number: usize) -> String {
    format!("room-{number}")
}

/// The simulated users.
#[derive(Debug)]
pub(crate) struct People {
    seed: Seed,
    dirs: Vec<PathBuf>,
    said: u64,
    next_room: usize,
}

/// True if people answer the questions in a room.
const fn is_looked_at(room: usize) -> bool {
    !room.is_multiple_of(3)
}

impl People {
    pub(crate) fn new(world: &World, seed: Seed) -> Self {
        let dirs = (0..ROOMS).map(|number| world.dir(&format!("work/{}", room(number)))).collect();
        Self { seed, dirs, said: 0, next_room: 0 }
    }

    /// Starts a session in each room.
    pub(crate) fn begin(&self, service: &ChatService) {
        for (number, dir) in self.dirs.iter().enumerate() {
            // Every other room asks for permissions.
            let mode = if number % 2 == 1 { "ask" } else { "approve-all" };
            let text = format!("/acp spawn {AGENT} --permission {mode} --cwd {}", dir.display());
            service.say(&room(number), "ada", &text);
        }
        until(LONG, "every room has its session", || {
            (0..ROOMS).all(|number| service.count_pending(&room(number)) == 0)
        });
    }

    /// Posts messages in random rooms and answers pending permission requests.
    pub(crate) fn talk(&mut self, service: &ChatService) {
        for number in 0..ROOMS {
            let (feels_like_it, mut said) = (self.seed.below(100) < 30, self.words(number));
            let verdict = if self.seed.below(3) == 0 { "/acp deny" } else { "/acp allow" };
            let is_looked_at = is_looked_at(number);
            let is_pending = service.last_kind(&room(number)).is_some_and(|kind| kind == "permission");
            // More messages than turns would fill the queue of the session.
            if is_pending && !is_looked_at {
                continue;
            }
            if is_pending {
                said = vec![verdict.to_owned()];
            }
            if (feels_like_it || is_pending) && service.count_pending(&room(number)) < WAITING_MAX {
                for text in said {
                    service.say(&room(number), "ada", &text);
                }
            }
        }
        if self.seed.below(10) == 0 {
            service.say(LOBBY, "eve", "is anybody there?");
        }
    }

    /// Posts a message that is answered soon.
    pub(crate) fn ask_for_an_answer(&mut self, service: &ChatService) {
        for _ in 0..ROOMS {
            self.next_room = (self.next_room + 1) % ROOMS;
            let name = self.name(self.next_room);
            if service.count_pending(&room(self.next_room)) < WAITING_MAX {
                service.say(&room(self.next_room), "ada", &format!("say {name} is here"));
                return;
            }
        }
    }

    /// Unique token for one message and its answer.
    fn name(&mut self, room: usize) -> String {
        self.said += 1;
        format!("tok-{room}-{}", self.said)
    }

    /// Random messages for a room, in order.
    fn words(&mut self, room: usize) -> Vec<String> {
        let name = self.name(room);
        let (count, pace, size) = (1 + self.seed.below(30), self.seed.below(40), 16 + self.seed.below(100));
        // Rooms without answers ask more often: a request must stay pending until its deadline despite all kills.
        let choice = if !is_looked_at(room) && self.seed.below(2) == 0 { 20 } else { self.seed.below(26) };
        let one = match choice {
            0..8 => format!("say {name} begins\nchunks {count} pace_ms={pace} size={size}\nsay {name} ends"),
            8..11 => format!("say {name} begins\nsleep {}\nsay {name} ends", count * 20),
            11..13 => format!("say {name}\ntool run true\nsay {name} ends"),
            13..17 => format!("tell me about {name}"),
            17..19 => "/acp status".to_owned(),
            19 => "/acp cancel".to_owned(),
            20..23 => format!("say {name} begins\npermission {name}\nsay {name} ends"),
            // Steers a turn that is running or not started yet.
            23..25 => {
                let turn = format!("say {name} begins\nsleep {}\nsay {name} ends", 300 + count * 20);
                return vec![turn, format!("{STEER}{} is news", self.name(room))];
            }
            _ => "/acp allow".to_owned(),
        };
        vec![one]
    }
}
