//! Turns in many threads while the gateway and Discord die, stall and refuse at random; judged from what Discord kept.

use crate::stage::Stage;
use acp_tests::fake_discord::core::faults::{EventFate, RestFate, Scope, When};
use acp_tests::fake_discord::core::model::Id;
use acp_tests::fake_discord::core::stage::SocketAct;
use acp_tests::seed::Seed;
use acp_tests::wait::{LONG, SOON, until};
use std::collections::BTreeMap;

const THREADS: usize = 10;
/// Turns of a run in CI; `ACP_DISCORD_TURNS` has another number.
const TURNS: u64 = 60;
const MORE: &str = "[acp]\nmax_concurrent_sessions = 20\nmax_concurrent_sessions_per_account = 20\n";
/// The worst moment for a kill.
const BETWEEN: &str = "the gateway is killed between a message and its receipt";
const CREATE: &str = "POST /channels/{}/messages";

/// One thing that goes wrong, or nothing.
fn trouble(stage: &mut Stage, seed: &mut Seed) -> &'static str {
    let create = |fate| stage.fake.rest_fault(CREATE, When::Next(1), fate);
    match seed.below(17) {
        0 | 1 => {
            stage.house.kill_gateway();
            stage.house.start_gateway();
            "the gateway is killed"
        }
        2 => {
            stage.fake.restart();
            "discord is killed"
        }
        3 => {
            stage.fake.sockets(None, SocketAct::Reset);
            "connections are reset"
        }
        4 => {
            stage.fake.sockets(None, SocketAct::InvalidSession { resumable: false });
            "the session is over"
        }
        5 | 6 => {
            create(RestFate::LostAfter);
            "an answer is lost"
        }
        7 => {
            create(RestFate::LostBefore);
            "a request is lost"
        }
        8 => {
            create(RestFate::ErrorAfter { status: 502 });
            "an error after it was done"
        }
        9 => {
            let scope = if seed.below(2) == 0 { Scope::User } else { Scope::Shared };
            create(RestFate::RateLimited { retry_after_ms: 100 + seed.below(900), scope });
            "a limit"
        }
        10 => {
            create(RestFate::StallAfter { ms: Some(seed.below(1_500)) });
            "a stall"
        }
        11 => {
            stage.fake.event_fault("MESSAGE_CREATE", When::Next(1), EventFate::Duplicate);
            "an event comes twice"
        }
        12 => {
            stage.fake.event_fault("MESSAGE_CREATE", When::Next(1), EventFate::ResetInstead);
            "a connection is reset before an event"
        }
        13 | 14 => {
            killed_after_send(stage);
            BETWEEN
        }
        _ => "nothing",
    }
}

/// Kills the gateway after Discord has kept a message and before the gateway hears of that.
fn killed_after_send(stage: &mut Stage) {
    let stalled =
        |stage: &Stage| stage.fake.tally().rest_faults.get("stall_after").copied().unwrap_or_default();
    let before = stalled(stage);
    stage.fake.rest_fault(CREATE, When::Next(1), RestFate::StallAfter { ms: Some(20_000) });
    until(SOON, "a message is kept", || stalled(stage) > before);
    stage.house.kill_gateway();
    stage.house.start_gateway();
}

/// Point 2 of what must be shown, small enough for every run.
#[test]
fn heavy_every_answer_is_there_once_whatever_dies() {
    let mut seed = Seed::new();
    let mut stage = Stage::new(&[], MORE);
    let threads: Vec<Id> = (0..THREADS).map(|_| stage.spawn()).collect();
    let mut want: BTreeMap<Id, Vec<String>> = threads.iter().map(|id| (*id, Vec::new())).collect();
    let mut story = Vec::new();
    let turns = std::env::var("ACP_DISCORD_TURNS").map_or(Ok(TURNS), |text| text.parse());
    let turns = turns.unwrap_or_else(|e| panic!("ACP_DISCORD_TURNS: {e}"));
    for turn in 0..turns {
        let thread = threads[usize::try_from(seed.below(THREADS as u64)).unwrap_or_default()];
        let text = format!("say begin-{turn}\nsleep {}\nsay -end-{turn}", seed.below(400));
        stage.fake.post(stage.ann, thread, &text);
        want.entry(thread).or_default().push(format!("begin-{turn}-end-{turn}"));
        story.push((text, trouble(&mut stage, &mut seed)));
    }
    stage.fake.clear_faults();
    let between = story.iter().filter(|(_, what)| *what == BETWEEN).count();
    let nothing = story.iter().filter(|(_, what)| *what == "nothing").count();
    println!("{between} kills between a message and its receipt; {nothing} of {turns} turns in peace");
    for (thread, want) in &want {
        until(LONG, "every answer", || stage.finals(*thread).len() >= want.len());
    }
    let got: BTreeMap<Id, Vec<String>> = threads.iter().map(|id| (*id, stage.finals(*id))).collect();
    assert_eq!(got, want, "{story:#?}");
    let parent = stage.told(stage.channel).into_iter().filter(|it| it.origin.is_none());
    assert!(parent.map(|message| message.id).eq(threads), "nothing but the starters is in the channel");
    for (text, _) in &story {
        assert_eq!(stage.house.prompts_received(text), 1, "{text}");
    }
    stage.end();
}
