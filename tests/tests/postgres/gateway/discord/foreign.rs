//! Owners that are killed while people write in threads, and gateways that take over from them. Judged by the messages that
//! Discord keeps, and by what agents received. `ACP_TAKE_OVERS` says how many owners are killed.

use super::super::{agents, configuration, configure};
use crate::stage::Stage;
use acp_testkit::postgres::Postgres;
use acp_tests::fake_discord::core::model::Id;
use acp_tests::house::{AGENT, GATEWAY, Plan};
use acp_tests::service::Service;
use acp_tests::wait::{SOON, until};
use acp_tests::world::World;
use std::collections::BTreeSet;
use std::ops::Range;

const SECOND: &str = "second";
/// Kills of one run.
const TAKE_OVERS: usize = 1;
const TAKE_OVERS_ENV: &str = "ACP_TAKE_OVERS";
/// Messages of a round in the thread without a long turn: before the kill, and after it.
const BEFORE: usize = 4;
const AFTER: usize = 3;

/// Script of a turn that lasts longer than the owner.
fn long(round: usize) -> String {
    format!("say begun {round}\nsleep 1000\nsay -ended")
}

/// Posts messages of short turns in a thread, and returns their texts.
fn say_quick(stage: &Stage, thread: Id, round: usize, numbers: Range<usize>) -> Vec<String> {
    let texts: Vec<String> = numbers.map(|number| format!("say quick {round}.{number}")).collect();
    for text in &texts {
        stage.fake.post(stage.ann, thread, text);
    }
    texts
}

/// Services whose gateway serves a bot, and the configuration of a second one.
fn stage(server: &Postgres) -> Stage {
    let world = World::new();
    let cell = configuration(&world, &server.create_database("discord"), true);
    let build = |toml: &str| {
        let toml = format!("{toml}\n{cell}");
        configure(&world, SECOND, &toml);
        let agents = agents(&world);
        Plan::default().gateway(&toml).build_in(world, &agents)
    };
    Stage::of(AGENT, |_| String::new(), build)
}

#[test]
#[ignore = "needs a PostgreSQL server: make test-postgres"]
fn messages_are_answered_once_across_take_overs() {
    let Some(server) = Postgres::start() else { return };
    let mut stage = stage(&server);
    let (busy, quick) = (stage.spawn(), stage.spawn());
    let mut owner: Option<Service> = None;
    let (mut of_busy, mut of_quick) = (Vec::new(), Vec::new());
    let mut prompts = Vec::new();
    let rounds = std::env::var(TAKE_OVERS_ENV).map_or(TAKE_OVERS, |text| text.parse().unwrap());
    for round in 0..rounds {
        let standing = [SECOND, GATEWAY][round % 2];
        let standby = stage.house.world.standby(standing, stage.house.socket());
        let turn = long(round);
        stage.fake.post(stage.ann, busy, &turn);
        until(SOON, "the turn runs", || stage.house.prompts_received(&turn) == 1);
        prompts.extend(say_quick(&stage, quick, round, 0..BEFORE));
        // Another moment in each round: some, all or none are answered.
        let before = of_quick.len();
        until(SOON, "some are answered", || stage.finals(quick).len() >= before + 2 * (round + 1) % 6);
        match owner.replace(standby) {
            None => stage.house.kill_gateway(),
            Some(owner) => owner.kill9(),
        }
        prompts.extend(say_quick(&stage, quick, round, BEFORE..BEFORE + AFTER));
        let after = format!("say after {round}");
        stage.fake.post(stage.ann, busy, &after);
        of_busy.extend([format!("begun {round}-ended"), format!("after {round}")]);
        of_quick.extend((0..BEFORE + AFTER).map(|number| format!("quick {round}.{number}")));
        prompts.extend([turn, after]);
        for (thread, want) in [(busy, &of_busy), (quick, &of_quick)] {
            let want: Vec<&str> = want.iter().map(String::as_str).collect();
            stage.answers(thread, &want);
        }
    }
    for text in prompts {
        assert_eq!(stage.house.prompts_received(&text), 1, "{text}");
    }
    let sent: Vec<_> = stage.fake.whole_transcript().into_iter().filter_map(|it| it.nonce).collect();
    let nonces: BTreeSet<String> = sent.iter().map(ToString::to_string).collect();
    assert_eq!(nonces.len(), sent.len(), "no message was sent twice");
    assert_eq!(owner.and_then(|owner| owner.terminate(SOON)), Some(0));
}
