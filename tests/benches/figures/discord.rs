//! Cost of a busy service: many bound threads on the strict fake Discord, some of which stream at the same
//! time, with the real gateway, supervisor and scripted agents. Issue "Discord", "What must be shown" 4.
//!
//! The last word of an agent's output is a timestamp, and the fake records the time at which it accepted each
//! message; the difference is the latency that people see. The fake's rate limits are enabled.

use crate::proc::{Private, cpu_ms};
use crate::report::{Limit, Report};
use crate::stats::{Sample, count};
use acp_tests::fake_agent::now_ns;
use acp_tests::fake_discord::FakeDiscord;
use acp_tests::fake_discord::client::BotHandle;
use acp_tests::fake_discord::core::model::{Id, Message};
use acp_tests::house::{AGENT, GATEWAY};
use acp_tests::service::Service;
use acp_tests::wait::{LONG, SOON, until};
use acp_tests::world::{Agent, World, bin};
use serde_json::json;
use std::collections::BTreeMap;
use std::time::Duration;

/// Channels, and threads in each of them: a channel accepts five messages in five seconds, and each starts a
/// thread.
const CHANNELS: usize = 20;
const THREADS_EACH: usize = 10;
/// Threads that stream at the same time, and number of rounds with different threads.
const STREAMING: usize = 50;
const ROUNDS: usize = 4;
/// Sentences of a turn, and milliseconds between them: each may cause an edit of the status card.
const SENTENCES: usize = 24;
const PACE_MS: usize = 500;
const FINAL_MS_MAX: f64 = 2_000.0;
const LIMITED_SHARE_MAX: f64 = 0.01;
/// Requests per second that Discord accepts from a bot; the gateway's own limit.
const PER_SECOND_MAX: f64 = 50.0;
const SETTLE_MS: u64 = 3_000;
const TOKEN: &str = "discord-token";
const FOOTER: &str = " · ";

/// The running services and the fake Discord.
struct Ground {
    gateway: Service,
    supervisor: Service,
    fake: FakeDiscord,
    ann: Id,
    bot: BotHandle,
    channels: Vec<Id>,
    world: World,
}

/// Measures memory, latency, requests and CPU of the threads.
pub(crate) fn measure(report: &mut Report) {
    let threads = CHANNELS * THREADS_EACH;
    report.part(
        "discord",
        &format!(
            "{threads} bound threads with live cards, {STREAMING} of them streaming {SENTENCES} sentences {PACE_MS} ms \
             apart, all ending at once, {ROUNDS} rounds"
        ),
    );
    let ground = Ground::build();
    std::thread::sleep(Duration::from_millis(SETTLE_MS));
    let before = Private::of(ground.gateway.pid()).dirty_kib;
    let threads = ground.spawn();
    std::thread::sleep(Duration::from_millis(SETTLE_MS));
    let bound = Private::of(ground.gateway.pid()).dirty_kib;
    report.figure("gateway, a bound thread whose agent runs", (bound - before) / count(threads.len()), "KiB");
    let streamed = ground.stream(&threads);
    report.figure("last word to the answer, p50", streamed.late.percentile(50), "ms");
    let limit = Limit::AtMost(FINAL_MS_MAX);
    report.limited("last word to the answer, p99", streamed.late.percentile(99), "ms", limit);
    report.limited("requests", streamed.requests / streamed.seconds, "1/s", Limit::AtMost(PER_SECOND_MAX));
    let share = streamed.limited / streamed.requests;
    report.limited("share of 429s", share, "times", Limit::AtMost(LIMITED_SHARE_MAX));
    let edits = streamed.edits / streamed.seconds / count(STREAMING);
    report.figure("edits of a streaming thread", edits, "1/s");
    report.figure("CPU of the gateway for a second of it", streamed.cpu_ms / streamed.seconds, "ms");
    report.figure("gateway, private memory after it", Private::of(ground.gateway.pid()).dirty_kib, "KiB");
    ground.end();
}

/// Totals of all rounds.
#[derive(Default)]
struct Streamed {
    late: Sample,
    requests: f64,
    limited: f64,
    edits: f64,
    seconds: f64,
    cpu_ms: f64,
}

impl Ground {
    fn build() -> Self {
        let world = World::new();
        let fake = FakeDiscord::start(&world.dir("discord"));
        let guild = fake.add_guild("guild");
        let channels = (0..CHANNELS).map(|no| fake.add_channel(guild, &format!("channel-{no}"))).collect();
        let ann = fake.add_user(guild, "ann");
        let bot = fake.add_bot(guild, "bot", TOKEN);
        let token = world.path("token");
        std::fs::write(&token, TOKEN).unwrap_or_else(|e| panic!("{}: {e}", token.display()));
        let program = bin("fake-agent").to_string_lossy().into_owned();
        let state = world.path("agent-state").to_string_lossy().into_owned();
        let mut agent = Agent::new(&[&program, "--state", &state]);
        agent.permission = "approve-all";
        let toml = format!(
            "[limits]\nconnections_max = 1000\n[channels.discord.thread_bindings]\nspawn_acp_sessions = true\n\
             [channels.discord.accounts.main]\ntoken_file = \"{}\"\nbase_url = \"{}\"\nallowed_users = [\"{ann}\"]\n\
             [acp]\nmax_concurrent_sessions = 1000\nmax_concurrent_sessions_per_account = 1000\n\
             stream = {{ delivery_mode = \"live\" }}\n",
            token.display(),
            fake.url()
        );
        world.configure(GATEWAY, &toml, &BTreeMap::from([(AGENT, agent)]));
        let supervisor = world.supervisor();
        let gateway = world.gateway(GATEWAY, &supervisor.socket());
        until(LONG, "the bot is connected and its commands are registered", || {
            fake.is_connected(bot.user) && !fake.commands().is_empty()
        });
        Self { gateway, supervisor, fake, ann, bot, channels, world }
    }

    /// Starts `THREADS_EACH` sessions in new threads of each channel and returns the threads.
    fn spawn(&self) -> Vec<Id> {
        let cwd = self.world.dir("work/discord").display().to_string();
        let options = [("agent", json!(AGENT)), ("cwd", json!(cwd)), ("thread", json!("auto"))];
        for round in 1..=THREADS_EACH {
            for channel in &self.channels {
                let used = self.fake.command(self.ann, *channel, &self.bot, "acp spawn", &options);
                drop(used.unwrap_or_else(|e| panic!("/acp spawn: {e}")));
            }
            until(LONG, "the threads exist", || {
                self.channels.iter().all(|channel| self.fake.threads_of(*channel).len() == round)
            });
        }
        let of = |channel: &Id| self.fake.threads_of(*channel).into_iter().map(|thread| thread.id);
        let threads: Vec<Id> = self.channels.iter().flat_map(of).collect();
        // A first turn warms everything up.
        self.turn(&threads, "say hello", 1);
        threads
    }

    /// Posts a prompt in each thread and waits until each has at least `turns` answers.
    fn turn(&self, threads: &[Id], text: &str, turns: usize) {
        for thread in threads {
            let _ = self.fake.post(self.ann, *thread, text);
        }
        until(LONG, "every thread has its answer", || {
            threads.iter().all(|thread| self.answers(*thread).len() >= turns)
        });
    }

    fn stream(&self, threads: &[Id]) -> Streamed {
        let mut streamed = Streamed::default();
        let sentence = |no| format!("say Step {no} of the work is done.\\n\nsleep {PACE_MS}\n");
        let text: String = (1..=SENTENCES).map(sentence).chain(["stamps 1 0".to_owned()]).collect();
        for round in 0..ROUNDS {
            // The threads of a round are spread over all channels.
            let some: Vec<Id> =
                threads.iter().skip(round).step_by(threads.len() / STREAMING).copied().collect();
            let (before, began) = (self.fake.tally(), self.fake.now());
            let cpu = cpu_ms(self.gateway.pid());
            self.turn(&some, &text, 2);
            let after = self.fake.tally();
            streamed.cpu_ms += cpu_ms(self.gateway.pid()) - cpu;
            streamed.seconds += ms(self.fake.now() - began) / 1_000.0;
            streamed.requests += ms(after.all_requests() - before.all_requests());
            streamed.limited += ms(after.rate_limited - before.rate_limited);
            let edits = |route: &str| after.requests_to(route) - before.requests_to(route);
            streamed.edits += ms(edits("PATCH /channels/{}/messages/{}"));
            let clocks = self.clocks_ms();
            streamed.late.extend(some.iter().map(|thread| self.late_ms(*thread, clocks)));
        }
        assert_eq!(streamed.late.len(), ROUNDS * STREAMING, "answers are missing");
        streamed
    }

    /// Difference of the fake's clock to the agents' clock, in milliseconds.
    fn clocks_ms(&self) -> f64 {
        let before = now_ns();
        let there = self.fake.now();
        let here = u64::midpoint(before, now_ns());
        ms(there) - ms(here) / 1_000_000.0
    }

    /// Time from the last word of the agent to the complete last answer in a thread, in milliseconds.
    fn late_ms(&self, thread: Id, clocks_ms: f64) -> f64 {
        let Some(last) = self.answers(thread).pop() else { return f64::NAN };
        let said = last.content.split(FOOTER).next().unwrap_or_default();
        let word = said.split_whitespace().rev().find_map(|word| word.parse::<u64>().ok());
        let stamp = word.unwrap_or_else(|| panic!("no timestamp: {said}"));
        ms(last.created_ms) - (ms(stamp) / 1_000_000.0 + clocks_ms)
    }

    /// Final answers of turns in a thread, in order: messages with a footer.
    fn answers(&self, thread: Id) -> Vec<Message> {
        let footer = format!("{AGENT}{FOOTER}");
        let all = self.fake.transcript(thread).into_iter();
        all.filter(|it| it.author_id == self.bot.user && it.content.contains(&footer)).collect()
    }

    fn end(self) {
        let _ = self.gateway.terminate(LONG);
        let _ = self.supervisor.terminate(LONG.max(SOON));
    }
}

/// Converts a count, usually of milliseconds.
#[expect(clippy::cast_precision_loss, reason = "numbers of this size lose no relevant precision")]
fn ms(number: u64) -> f64 {
    number as f64
}
