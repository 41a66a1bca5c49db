//! The service as a pure machine: inputs and the time go in, changes and outputs come out.

pub mod check;
pub mod error;
pub mod faults;
pub mod gateway;
pub mod limits;
pub mod model;
pub mod openapi;
pub mod permissions;
pub mod render;
pub mod rest;
pub mod settings;
pub mod stage;
pub mod tally;
pub mod underway;
pub mod world;

mod commands;
mod interactions;
mod membership;
mod messages;
mod reactions;
mod threads;
mod webhooks;

use faults::Faults;
use gateway::Gateway;
use limits::Limits;
use model::{Attachment, Id, Ms};
use settings::{Rule, Settings};
use tally::Tally;
use underway::Underway;
use world::World;

/// The state of the service.
#[derive(Debug)]
pub struct Machine {
    /// Persistent state.
    pub world: World,
    /// Settings of the test.
    pub settings: Settings,
    /// Injected faults.
    pub faults: Faults,
    /// Connections and sessions.
    pub gateway: Gateway,
    /// Counters.
    pub tally: Tally,
    /// Operations in progress.
    pub underway: Underway,
    limits: Limits,
    /// `127.0.0.1:PORT`, for generated URLs.
    address: String,
}

impl Machine {
    /// Creates a machine from stored state.
    #[must_use]
    pub fn new(world: World, settings: Settings, address: String) -> Self {
        let faults = Faults::new(settings.seed);
        Self {
            world,
            settings,
            faults,
            gateway: Gateway::default(),
            tally: Tally::default(),
            underway: Underway::default(),
            limits: Limits::default(),
            address,
        }
    }

    /// Whether a rule is in effect.
    #[must_use]
    pub fn holds(&self, rule: Rule) -> bool {
        self.settings.holds(rule)
    }

    /// Converts the host's time to the fake's time.
    #[must_use]
    pub fn time(&self, machine_ms: Ms) -> Ms {
        machine_ms + self.settings.clock_ahead_ms
    }

    /// URL of the gateway.
    #[must_use]
    pub fn gateway_url(&self) -> String {
        format!("ws://{}", self.address)
    }

    /// Temporary URL of a file.
    #[must_use]
    pub fn cdn_url(&self, channel_id: Id, file: &Attachment, now: Ms) -> String {
        let name = render::percent_encoded(&file.filename);
        let expires = (now + self.settings.cdn_life_ms) / 1000;
        let issued = now / 1000;
        format!(
            "http://{}/attachments/{channel_id}/{}/{name}?ex={expires:x}&is={issued:x}&hm={:016x}&",
            self.address,
            file.id,
            signature(file.id, expires)
        )
    }

    /// Whether the URL of a file has expired. `expires` is in seconds.
    #[must_use]
    pub fn cdn_expired(&self, expires: u64, now: Ms) -> bool {
        now / 1000 >= expires && self.holds(Rule::CdnExpiry)
    }

    /// Handles timers.
    pub fn tick(&mut self, now: Ms) {
        self.gateway_tick(now);
        self.archive_idle_threads(now);
    }
}

/// Signature that protects the expiry of a CDN URL.
#[must_use]
pub fn signature(file_id: Id, expires: u64) -> u64 {
    let mut seed = crate::seed::Seed::from_number(file_id ^ expires.rotate_left(32));
    seed.number()
}
