//! The model against closed formulas of queueing theory.

use super::*;

/// Many sessions that are prompted seldom: a Poisson process of this rate. Each turn has one chunk, at once.
fn poisson(rate: f64) -> Load {
    const SESSIONS: usize = 10_000;
    let away = number(SESSIONS) / rate;
    Load { sessions: SESSIONS, away, prompts: 1.0, think: 1.0, answer: 0.0, chunks: 1, pace: 0.0 }
}

fn one_cell() -> Machines {
    Machines {
        cells: 1,
        gateway_cores: 1,
        server_cores: 1,
        group_max: 256,
        in_use_max: usize::MAX,
        idle: f64::INFINITY,
        chat: None,
    }
}

const LONG: Period = Period { warm_up: 1_000.0, measured: 60_000.0 };

const SHORT: Period = Period { warm_up: 100.0, measured: 10_000.0 };

#[track_caller]
fn assert_near(found: f64, formula: f64) {
    assert!((found / formula - 1.0).abs() < 0.05, "{found} instead of {formula}");
}

#[test]
fn gateway_with_exponential_costs_is_an_mm1_queue() {
    let costs = Costs { turn: 1.0, is_exponential: true, ..Costs::default() };
    let answers = simulate(&poisson(0.5), &costs, &one_cell(), LONG, 1);
    assert_near(answers.gateway, 0.5);
    assert_near(answers.turn_rate, 0.5);
    assert_near(answers.first.mean(), 1.0 / (1.0 - 0.5));
    assert_near(answers.first.percentile(50), 2.0_f64.ln() / (1.0 - 0.5));
    assert_near(answers.first.percentile(99), 100.0_f64.ln() / (1.0 - 0.5));
}

#[test]
fn gateway_with_two_processors_is_an_mm2_queue() {
    let costs = Costs { turn: 1.0, is_exponential: true, ..Costs::default() };
    let machines = Machines { gateway_cores: 2, ..one_cell() };
    let answers = simulate(&poisson(1.0), &costs, &machines, LONG, 2);
    assert_near(answers.gateway, 0.5);
    assert_near(answers.first.mean(), 1.0 / (1.0 - 0.5 * 0.5));
}

#[test]
fn gateway_and_writer_with_equal_costs_are_md1_queues() {
    let of_gateway = Costs { turn: 1.0, ..Costs::default() };
    let of_writer = Costs { sync: 1.0, ..Costs::default() };
    let machines = Machines { group_max: 1, ..one_cell() };
    for (costs, seed) in [(of_gateway, 3), (of_writer, 4)] {
        let answers = simulate(&poisson(0.5), &costs, &machines, LONG, seed);
        assert_near(answers.gateway.max(answers.writer), 0.5);
        assert_near(answers.first.mean(), 1.0 + 0.5 / (2.0 * (1.0 - 0.5)));
    }
}

#[test]
fn group_takes_what_is_queued() {
    // A writer that commits one row at a time keeps up with a fifth of this rate.
    let costs = Costs { sync: 1.0, ..Costs::default() };
    let answers = simulate(&poisson(5.0), &costs, &one_cell(), SHORT, 5);
    assert_near(answers.turn_rate, 5.0);
    assert_near(answers.group_rate, answers.writer);
    assert!(answers.first.percentile(100) < 2.001, "one group in service, one to wait for");
    // The server's processor is the bound with the same costs there.
    let costs = Costs { server: [0.0, 0.15], ..Costs::default() };
    assert_near(simulate(&poisson(5.0), &costs, &one_cell(), SHORT, 5).server, 0.75);
}

#[test]
fn sessions_are_in_use_until_their_agent_was_idle_for_long() {
    let load = Load { away: 10_000.0, think: 10_000.0, ..poisson(1.0) };
    let machines = Machines { idle: 5_000.0, ..one_cell() };
    let answers = simulate(&load, &Costs::default(), &machines, LONG, 6);
    assert_near(number(answers.in_use), number(load.sessions) * (1.0 - (-0.5_f64).exp()));
    assert_near(answers.start_rate, (-0.5_f64).exp());
    let capped = Machines { in_use_max: 2_000, ..machines };
    let answers = simulate(&load, &Costs::default(), &capped, LONG, 6);
    assert!(answers.in_use <= 2_000 && answers.refused > 0, "{} in use", answers.in_use);
}

/// A load with everything in it.
fn busy() -> (Load, Costs, Machines) {
    let load =
        Load { sessions: 500, away: 300.0, prompts: 4.0, think: 20.0, answer: 2.0, chunks: 30, pace: 0.2 };
    let costs = Costs {
        turn: 2e-3,
        chunk: 2e-4,
        group: 1e-4,
        request: 1e-3,
        start: 1e-2,
        commits: [2, 3],
        rows: 1.0,
        sync: 1e-3,
        row: 1e-5,
        server: [1e-4, 1e-5],
        hop: 1e-3,
        starting: 0.1,
        is_exponential: false,
    };
    let chat = Chat { per_second: 40.0, applications: 1, of_turn: 2, spacing: 1.0 };
    let machines = Machines { cells: 2, idle: 100.0, chat: Some(chat), ..one_cell() };
    (load, costs, machines)
}

#[test]
fn accepted_prompts_have_ended_or_are_open() {
    let (load, costs, machines) = busy();
    for measured in [0.5, 60.0, 200.0] {
        let answers = simulate(&load, &costs, &machines, Period { warm_up: 0.0, measured }, 7);
        assert_eq!(answers.prompts, answers.ended + answers.open, "after {measured} s");
        assert!(answers.prompts > 10, "{}", answers.prompts);
    }
}

#[test]
fn same_seed_gives_the_same_answers() {
    let (load, costs, machines) = busy();
    let run = |seed| simulate(&load, &costs, &machines, Period { warm_up: 10.0, measured: 60.0 }, seed);
    assert_eq!(run(8), run(8));
    assert_ne!(run(8), run(9));
}

#[test]
fn begin_is_as_after_a_long_time() {
    let (load, costs, machines) = busy();
    let run = |warm_up| simulate(&load, &costs, &machines, Period { warm_up, measured: 1_500.0 }, 10);
    let (early, late) = (run(0.0), run(200.0));
    assert_near(early.turn_rate, late.turn_rate);
    assert_near(early.start_rate, late.start_rate);
    // Mean time of a visit and of a rest, without queues.
    let cycle = 4.0 * (2.0 + 29.0 * 0.2) + 3.0 * 20.0 + 300.0;
    assert_near(late.turn_rate, 1_000.0 * 4.0 / cycle);
}

#[test]
fn edits_share_the_budget_and_answers_go_before_them() {
    // As measured against the fake Discord: 50 threads with an edit at each half second allow 0.61 edits a second of each.
    let load =
        Load { sessions: 65, away: 1e-3, prompts: 1.0, think: 1.0, answer: 0.0, chunks: 200_000, pace: 0.1 };
    let machines = Machines { chat: busy().2.chat, ..one_cell() };
    let period = Period { warm_up: 100.0, measured: 300.0 };
    let answers = simulate(&load, &Costs::default(), &machines, period, 11);
    assert_near(answers.edits.percentile(50), 65.0 / 40.0);
    assert_near(answers.chat, 1.0);
    // More turns than the budget has requests for: answers queue, edits are left out.
    let load = Load { sessions: 1_000, away: 30.0, chunks: 10, ..load };
    let answers = simulate(&load, &Costs::default(), &machines, period, 12);
    assert!(answers.chat_waiting > 5_000, "{} wait", answers.chat_waiting);
    assert!(answers.shown.percentile(50) > 60.0, "{}", answers.shown.percentile(50));
}

#[test]
fn hosts_are_counted_by_memory() {
    assert_near(hosts(10_000, 100.0, 65_536.0), (10_000.0_f64 / 573.0).ceil());
    assert_near(hosts(1, 500.0, 65_536.0), 1.0);
}

#[test]
fn costs_are_found_in_totals_and_are_not_negative() {
    let exact = |counts: [f64; 3]| (counts, counts[0] * 4.0 + counts[1] * 0.5 + counts[2] * 0.1);
    let runs = [[100.0, 100.0, 300.0], [50.0, 2_000.0, 1_500.0], [60.0, 12_000.0, 900.0]].map(exact);
    for (found, cost) in fit(&runs).into_iter().zip([4.0, 0.5, 0.1]) {
        assert_near(found, cost);
    }
    let [first, second] = fit(&[([1.0, 1.0], 2.0), ([1.0, 2.0], 1.0)]);
    assert!(first > 1.0 && second == 0.0, "{first} {second}");
}
