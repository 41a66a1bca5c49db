//! One Discord application over two cells, each with a gateway and a shard. Judged by what Discord keeps, and by what agents
//! received.

use super::super::{agents, configuration, configure, verb};
use crate::stage::Stage;
use acp_testkit::postgres::Postgres;
use acp_tests::cli::run;
use acp_tests::fake_discord::core::model::{Command, Id};
use acp_tests::house::{AGENT, GATEWAY, House, Plan};
use acp_tests::wait::{LONG, SOON, eventually, until};
use acp_tests::world::World;
use rustix::process::Signal;
use serde_json::json;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

/// Gateway that stands by for the first cell.
const SECOND: &str = "second";
/// Time between two IDENTIFYs that Discord demands, in milliseconds.
const SPACING_MS: u64 = 5_000;
/// Code of an interaction that was answered before.
const ALREADY_ANSWERED: u32 = 40_060;
const OWN: &str = "shards = { from = 0, to = 1, of = 2 }";

/// Gateways of two cells: the stage's has shard 0 and a channel of its own, the other one has these shards. A project in a server of
/// shard 1 is in the configuration of both.
struct Pair {
    stage: Stage,
    other: House,
    project: Id,
}

fn pair(server: &Postgres, others: &str) -> Pair {
    let address = server.create_database("shards");
    let (guilds, project, other) = (Cell::new([0; 2]), Cell::new(0), RefCell::new(None));
    let ground = |ground: &crate::stage::Ground<'_>| {
        ground.fake.configure(json!({"shards": 2, "identify_spacing_ms": SPACING_MS}));
        // Ids contain their time: some of a few belong to each shard.
        let of_shard = |shard: Id| {
            eventually(SOON, "a server of the shard", || {
                Some(ground.fake.add_guild("server")).filter(|id| (id >> 22) % 2 == shard)
            })
        };
        guilds.set([of_shard(0), of_shard(1)]);
        project.set(ground.fake.add_channel(guilds.get()[1], "project"));
        OWN.to_owned()
    };
    let build = |toml: &str| {
        let house = |cell: &str, toml: &str| {
            let world = World::new();
            let plane = configuration(&world, &address, true);
            let cwd = world.dir("work/project").display().to_string();
            let entry = format!(
                "[[channels.discord.projects]]\nchannel = \"{}\"\nagent = \"{AGENT}\"\ncwd = \"{cwd}\"",
                project.get()
            );
            let toml = format!("{toml}\n{entry}\n{plane}\ncell = \"{cell}\"");
            configure(&world, SECOND, &toml);
            let agents = agents(&world);
            Plan::default().gateway(&toml).build_in(world, &agents)
        };
        other.replace(Some(house("b", &toml.replace(OWN, others))));
        house("a", toml)
    };
    let mut stage = Stage::of(AGENT, ground, build);
    let [own, far] = guilds.get();
    for (guild, user) in [(own, stage.ann), (own, stage.bot.user), (far, stage.ann), (far, stage.bot.user)] {
        stage.fake.add_member(guild, user);
    }
    stage.guild = own;
    stage.channel = stage.fake.add_channel(own, "general");
    Pair { stage, other: other.take().unwrap(), project: project.get() }
}

impl Pair {
    /// Numbers of the shards whose sessions began.
    fn identified(&self) -> Vec<u64> {
        self.stage.fake.tally().identified.iter().map(|session| session.0).collect()
    }

    /// Posts in the project and waits for the answer in the thread that the message opens, of which there is one.
    fn ask_project(&self, text: &str) -> Id {
        let message = self.stage.fake.post(self.stage.ann, self.project, &format!("say {text}"));
        self.project_answers(message, text);
        message
    }

    fn project_answers(&self, message: Id, text: &str) {
        let opened = || self.stage.fake.threads_of(self.project).iter().any(|it| it.id == message);
        until(LONG, "thread opened", opened);
        self.stage.answers(message, &[text]);
        let script = format!("say {text}");
        let counts = [&self.stage.house, &self.other].map(|house| house.prompts_received(&script));
        assert_eq!(counts, [0, 1], "{text}");
    }

    /// Slash commands, with the ids and versions that a change would renew.
    fn commands(&self) -> BTreeSet<String> {
        let is_own = |command: &Command| command.application_id == self.stage.bot.application;
        let all = self.stage.fake.commands().into_iter().filter(is_own);
        all.map(|it| format!("{:?} {} {}", it.guild_id, it.id, it.version)).collect()
    }

    /// No IDENTIFY came too early, and no interaction was answered twice.
    fn check(&self) {
        let tally = self.stage.fake.tally();
        assert_eq!(tally.early_identifies, 0, "{:?}", tally.identified);
        let times: Vec<u64> = tally.identified.iter().map(|session| session.2).collect();
        assert!(times.windows(2).all(|pair| pair[1] - pair[0] >= SPACING_MS), "{times:?}");
        assert_eq!(tally.refused_with(&[ALREADY_ANSWERED]), 0, "{tally:?}");
        let sent: Vec<_> = self.stage.fake.whole_transcript().into_iter().filter_map(|it| it.nonce).collect();
        let nonces: BTreeSet<String> = sent.iter().map(ToString::to_string).collect();
        assert_eq!(nonces.len(), sent.len(), "no message was sent twice");
    }
}

/// Part of `doctor` about the account.
fn account(house: &House) -> String {
    let checks = run(&mut verb(house, GATEWAY, &["doctor"]), LONG).lines().swap_remove(0);
    let all = checks.as_array().unwrap().iter().map(|check| check["detail"].to_string());
    all.filter(|detail| detail.contains("main: ")).collect()
}

#[test]
#[ignore = "needs a PostgreSQL server: make test-postgres"]
fn each_server_is_answered_by_the_cell_of_its_shard() {
    let Some(server) = Postgres::start() else { return };
    let mut pair = pair(&server, "shards = { from = 1, to = 2, of = 2 }");
    until(LONG, "both shards connected", || pair.identified().len() == 2);
    assert_eq!(pair.identified().into_iter().collect::<BTreeSet<_>>(), BTreeSet::from([0, 1]));
    until(SOON, "range shown", || account(&pair.stage.house).contains("shard 0 of 2, 1 connected"));
    until(SOON, "range shown", || account(&pair.other).contains("shard 1 of 2, 1 connected"));

    let thread = pair.stage.spawn();
    pair.stage.exchange(thread, "say near", &["near"]);
    assert_eq!(pair.other.prompts_received("say near"), 0);
    let far = pair.ask_project("far");
    // Direct messages belong to shard 0.
    let direct = pair.stage.fake.add_direct(pair.stage.ann, pair.stage.bot.user);
    let used = pair.stage.command(pair.stage.ann, direct, "acp help", &[]);
    assert!(pair.stage.answer(&used).contains("/acp"), "answered");
    let commands = pair.commands();
    assert!(!commands.is_empty());

    // The owner of the first cell is killed, and so is its successor while Discord does not answer its IDENTIFY.
    let standby = pair.stage.house.world.standby(SECOND, pair.stage.house.socket());
    let before = pair.stage.fake.tally().identifies;
    pair.stage.fake.withhold_answers(1);
    pair.stage.house.kill_gateway();
    pair.stage.fake.post(pair.stage.ann, thread, "say missed");
    until(LONG, "the successor identifies", || pair.stage.fake.tally().identifies > before);
    standby.kill9();
    // The other cell goes on, and its own take-over waits for the end of the identify slot that was not used.
    pair.stage.exchange(far, "say meanwhile", &["far", "meanwhile"]);
    pair.other.kill_gateway();
    pair.stage.fake.post(pair.stage.ann, far, "say missed far");
    let new = pair.stage.fake.post(pair.stage.ann, pair.project, "say new");
    pair.other.start_gateway();
    pair.stage.house.start_gateway();
    pair.stage.answers(thread, &["near", "missed"]);
    pair.stage.answers(far, &["far", "meanwhile", "missed far"]);
    pair.project_answers(new, "new");
    assert_eq!(pair.stage.house.prompts_received("say missed"), 1);
    assert_eq!(pair.other.prompts_received("say missed far"), 1);
    let used = pair.stage.command(pair.stage.ann, direct, "acp help", &[]);
    assert!(pair.stage.answer(&used).contains("/acp"), "answered");
    assert_eq!(pair.commands(), commands, "registered once");
    assert_eq!(pair.stage.fake.threads_of(pair.project).len(), 2);
    let rows = "SELECT count(*) FROM plane.discord_ranges";
    assert_eq!(server.query(&server.address_of("shards"), rows).unwrap(), "2");
    pair.check();
}

/// A cell whose range overlaps another's does not connect, and says so, until its range is corrected and reloaded.
#[test]
#[ignore = "needs a PostgreSQL server: make test-postgres"]
fn overlapping_range_connects_once_it_is_corrected() {
    let Some(server) = Postgres::start() else { return };
    const WRONG: &str = "shards = { from = 0, to = 2, of = 2 }";
    let pair = pair(&server, WRONG);
    // The one that was first has the shards.
    until(LONG, "one cell is refused", || {
        [&pair.stage.house, &pair.other]
            .iter()
            .any(|house| account(house).contains("two cells may not answer"))
    });
    let is_stage_refused = account(&pair.stage.house).contains("two cells may not answer");
    let refused = account(if is_stage_refused { &pair.stage.house } else { &pair.other });
    assert!(refused.contains("the cell ") && refused.contains("of 2"), "{refused}");
    let file = pair.other.world.path("gateway.toml");
    let text = std::fs::read_to_string(file).unwrap();
    pair.other.world.write("gateway.toml", &text.replace(WRONG, "shards = { from = 1, to = 2, of = 2 }"));
    assert!(pair.other.gateway().signal(Signal::HUP));
    until(2 * LONG, "both connected", || {
        account(&pair.stage.house).contains("shard 0 of 2, 1 connected")
            && account(&pair.other).contains("shard 1 of 2, 1 connected")
    });
    let thread = pair.stage.spawn();
    pair.stage.exchange(thread, "say near", &["near"]);
    assert_eq!(pair.other.prompts_received("say near"), 0);
    pair.ask_project("far");
    pair.check();
}
