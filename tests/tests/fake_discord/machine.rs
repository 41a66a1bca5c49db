//! The pure machine: times, windows, chance, and completeness of the stored rows.

use acp_tests::fake_discord::core::Machine;
use acp_tests::fake_discord::core::faults::{EventFate, EventFault, Faults, When};
use acp_tests::fake_discord::core::limits::Limits;
use acp_tests::fake_discord::core::model::{Id, Ms};
use acp_tests::fake_discord::core::render::{percent_decoded, percent_encoded, time};
use acp_tests::fake_discord::core::rest::{Body, Call};
use acp_tests::fake_discord::core::settings::{Budget, Rule, Settings};
use acp_tests::fake_discord::core::stage::Order;
use acp_tests::fake_discord::core::world::{Change, World};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::collections::BTreeMap;

const BEGIN_MS: Ms = 1_795_000_000_000;
const NONCE_WINDOW_MS: Ms = 180_000;

#[test]
fn timestamps_have_documented_format() {
    for (ms, text) in [
        (0, "1970-01-01T00:00:00.000000+00:00"),
        (951_827_696_789, "2000-02-29T12:34:56.789000+00:00"),
        (1_420_070_400_000, "2015-01-01T00:00:00.000000+00:00"),
        (1_709_251_199_999, "2024-02-29T23:59:59.999000+00:00"),
        (1_798_761_600_000, "2027-01-01T00:00:00.000000+00:00"),
    ] {
        assert_eq!(time(ms), text);
    }
}

#[test]
fn rate_limit_window_begins_with_first_request() {
    let mut limits = Limits::default();
    let budget = Budget { limit: 2, window_ms: 1000 };
    let mut take = |major: &str, now: Ms| {
        let standing = limits.route((1, "route".to_owned(), major.to_owned()), budget, now);
        (standing.remaining, standing.reset_after_ms, standing.exhausted)
    };
    assert_eq!(take("a", 100), (1, 1000, false));
    assert_eq!(take("a", 600), (0, 500, false));
    assert_eq!(take("a", 1099), (0, 1, true));
    assert_eq!(take("b", 1099), (1, 1000, false));
    assert_eq!(take("a", 1100), (1, 1000, false));
}

#[test]
fn faults_strike_as_often_as_configured() {
    let mut faults = Faults::new(1);
    let fault = |when| EventFault { event: "A".to_owned(), when, fate: EventFate::Drop };
    faults.events.push(fault(When::Next(2)));
    let fates: Vec<EventFate> = ["B", "A", "A", "A"].into_iter().map(|event| faults.event(event)).collect();
    assert_eq!(fates, [EventFate::Deliver, EventFate::Drop, EventFate::Drop, EventFate::Deliver]);
    assert!(faults.events.is_empty(), "it is spent");
    faults.events.push(fault(When::Chance(0.25)));
    let struck = (0..4000).filter(|_| faults.event("A") == EventFate::Drop).count();
    assert!((900..1100).contains(&struck), "{struck} of 4000");
}

/// Machine with a guild, and its stored rows.
struct Kept {
    machine: Machine,
    rows: BTreeMap<(&'static str, Id), String>,
    now: Ms,
    channel: Id,
    user: Id,
    threads: Vec<Id>,
    messages: Vec<Id>,
}

impl Kept {
    fn new() -> Self {
        let settings =
            Settings { rules_off: [Rule::RouteBuckets, Rule::GlobalLimit].into(), ..Settings::default() };
        let machine = Machine::new(World::default(), settings, "127.0.0.1:1".to_owned());
        let (rows, threads, messages) = (BTreeMap::new(), Vec::new(), Vec::new());
        let mut kept = Self { machine, rows, now: BEGIN_MS, channel: 0, user: 0, threads, messages };
        let guild = kept.id(Order::AddGuild { name: "g".to_owned() });
        kept.channel = kept.id(Order::AddChannel { guild, name: "c".to_owned() });
        kept.user = kept.id(Order::AddUser { guild, name: "u".to_owned() });
        kept.order(Order::AddBot {
            name: "b".into(),
            token: "T".into(),
            guilds: vec![guild],
            privileged_intents: 0,
        });
        kept
    }

    fn order(&mut self, order: Order) -> Value {
        let given = self.machine.order(self.now, order).unwrap_or_default();
        self.keep();
        given
    }

    fn id(&mut self, order: Order) -> Id {
        self.order(order).as_u64().unwrap_or_default()
    }

    fn keep(&mut self) {
        for change in self.machine.world.changes() {
            match change {
                Change::Row { kind, id, json } => {
                    self.rows.insert((kind, id), json);
                }
                Change::Gone { kind, id } => {
                    self.rows.remove(&(kind, id));
                }
                Change::File { .. } => {}
            }
        }
    }

    /// Posts a message of the bot with an enforced nonce and returns its id.
    fn say(&mut self, channel: Id, nonce: u8) -> Option<Id> {
        let call = Call {
            method: "POST".to_owned(),
            path: vec!["channels".to_owned(), channel.to_string(), "messages".to_owned()],
            authorization: Some("Bot T".to_owned()),
            user_agent: Some("t".to_owned()),
            body: Body {
                json: Some(json!({"content": "x", "nonce": nonce.to_string(), "enforce_nonce": true})),
                ..Body::default()
            },
            ..Call::default()
        };
        let answer = self.machine.call(self.now, &call);
        self.keep();
        let id = answer.body.as_ref().and_then(|body| body["id"].as_str()).and_then(|id| id.parse().ok());
        id.filter(|_| answer.status == 200)
    }

    fn place(&self, n: u8) -> Id {
        let threads = self.threads.len();
        if threads == 0 || n.is_multiple_of(3) {
            self.channel
        } else {
            self.threads[usize::from(n) % threads]
        }
    }

    fn step(&mut self, (what, n): (u8, u8), nonces: &mut BTreeMap<u8, (Id, Ms)>) {
        let (channel, user) = (self.place(n), self.user);
        let some = |of: &[Id]| of.get(usize::from(n) % of.len().max(1)).copied().unwrap_or_default();
        let (message, thread) = (some(&self.messages), some(&self.threads));
        match what % 8 {
            0 | 1 => {
                let id = self.id(Order::Post { user, channel, content: n.to_string(), files: Vec::new() });
                self.messages.push(id);
            }
            2 => {
                self.order(Order::Edit { message, content: "edited".to_owned() });
            }
            3 => {
                self.order(Order::Delete { message });
            }
            4 => {
                let (channel, name) = (self.channel, n.to_string());
                let id = self.id(Order::MakeThread { user, channel, name, message: None });
                self.threads.push(id);
            }
            5 => {
                let form = json!({"archived": n.is_multiple_of(2), "name": "other"});
                self.order(Order::Change { channel: thread, form });
            }
            6 => self.now += Ms::from(n) * 1000,
            _ => {
                let nonce = n % 4;
                let Some(id) = self.say(channel, nonce) else { return };
                let known = nonces.get(&nonce).filter(|(_, at)| self.now - at < NONCE_WINDOW_MS);
                match known {
                    Some((first, _)) => assert_eq!(id, *first, "the first message comes back"),
                    None => {
                        nonces.insert(nonce, (id, self.now));
                    }
                }
            }
        }
    }
}

proptest! {
    /// After any steps, a machine restored from the stored rows has the same state.
    #[test]
    fn stored_rows_restore_the_whole_machine(steps in prop::collection::vec(any::<(u8, u8)>(), 1..80)) {
        let mut kept = Kept::new();
        let mut nonces = BTreeMap::new();
        for step in steps {
            kept.step(step, &mut nonces);
        }
        let mut world = World::default();
        for ((kind, id), json) in &kept.rows {
            world.load(kind, *id, json).unwrap_or_else(|e| panic!("{kind} {id}: {e}"));
        }
        let mut again = Machine::new(world, kept.machine.settings.clone(), "127.0.0.1:1".to_owned());
        let mut look = |order: Order| {
            let before = kept.machine.order(kept.now, order.clone());
            let after = again.order(kept.now, order);
            (before, after)
        };
        let (before, after) = look(Order::Transcript { channel: None });
        prop_assert_eq!(before, after);
        let (before, after) = look(Order::Channels);
        prop_assert_eq!(before, after);
        let fresh = again.world.mint(BEGIN_MS);
        prop_assert!(kept.rows.keys().all(|(_, id)| *id < fresh), "ids go on upwards");
    }

    /// Percent-encoded names decode to the original.
    #[test]
    fn percent_encoding_round_trips(name in "\\PC{0,40}") {
        prop_assert_eq!(percent_decoded(&percent_encoded(&name)), name);
    }
}
