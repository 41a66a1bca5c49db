//! One run of the model.

use super::station::{Agenda, Station, exponential, share};
use super::{Answers, Chat, Costs, Load, Machines, Period, number};
use crate::seed::Seed;
use std::collections::VecDeque;

/// Index of a session, of a cell, of an application.
type Index = usize;

/// Commits of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Commit {
    /// Before the agent is asked, with the number of those that follow.
    Accept(u32),
    /// With a chunk.
    Chunk,
    /// After the last chunk, with the number of those that follow.
    End(u32),
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A person prompts a session.
    Prompt(Index),
    /// The agent of a session writes a chunk.
    Chunk(Index),
    /// The gateway has something to commit.
    Ready(Index, Commit),
    /// The group of a cell is committed.
    Committed(Index),
    /// The agent of a session may be idle for long.
    Idle(Index),
    /// The status card of a session may be edited again.
    Edit(Index),
    /// An application may send a request.
    Slot(Index),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Without a process.
    Resting,
    /// With a process that has nothing to do.
    Idle,
    /// With a turn that is queued or under way.
    Busy,
}

#[derive(Debug, Clone)]
struct Session {
    state: State,
    /// Time of the prompt, until its first chunk is committed.
    prompted: Option<f64>,
    /// True if the turn starts the agent.
    starts: bool,
    /// Chunks that the agent has still to write, and that are not committed.
    unwritten: u32,
    uncommitted: u32,
    /// Time at which an idle agent is ended.
    idle_end: f64,
    /// Time of the last edit in this turn.
    edited: Option<f64>,
    /// True if an edit is due or waits for the budget.
    is_edit_due: bool,
}

/// Writer of a cell: one group of commits at a time, which takes what is queued.
#[derive(Debug, Default)]
struct Writer {
    queued: VecDeque<(Index, Commit)>,
    group: Vec<(Index, Commit)>,
    busy: f64,
}

/// Application at the chat service.
#[derive(Debug, Default)]
struct Application {
    /// Requests that are never left out: the session, and the time of the end of its turn with the last one.
    answers: VecDeque<(Index, Option<f64>)>,
    edits: VecDeque<Index>,
    /// Time of the next request.
    next: f64,
    is_waiting: bool,
}

struct Run<'a> {
    load: &'a Load,
    costs: &'a Costs,
    machines: &'a Machines,
    seed: Seed,
    agenda: Agenda<Event>,
    sessions: Vec<Session>,
    in_use: Vec<usize>,
    gateways: Vec<Station>,
    writers: Vec<Writer>,
    server: Station,
    applications: Vec<Application>,
    /// Begin of the measured time, and counts in it.
    from: f64,
    turns: usize,
    chunks: usize,
    groups: usize,
    starts: usize,
    requests: usize,
    answers: Answers,
}

/// Simulates all cells for a period. The same arguments give the same answers.
#[must_use]
pub fn simulate(load: &Load, costs: &Costs, machines: &Machines, period: Period, seed: u64) -> Answers {
    let from = period.warm_up;
    let applications = machines.chat.as_ref().map_or(0, |chat| chat.applications.max(1));
    let mut run = Run {
        load,
        costs,
        machines,
        seed: Seed::from_number(seed),
        agenda: Agenda::new(),
        sessions: Vec::new(),
        in_use: vec![0; machines.cells],
        gateways: (0..machines.cells).map(|_| Station::new(machines.gateway_cores, from)).collect(),
        writers: (0..machines.cells).map(|_| Writer::default()).collect(),
        server: Station::new(machines.server_cores, from),
        applications: (0..applications).map(|_| Application::default()).collect(),
        from,
        turns: 0,
        chunks: 0,
        groups: 0,
        starts: 0,
        requests: 0,
        answers: Answers::default(),
    };
    for index in 0..load.sessions * machines.cells {
        run.begin(index);
    }
    let end = from + period.measured;
    while let Some(event) = run.agenda.next(end) {
        run.handle(event);
    }
    run.finish(end)
}

impl Run<'_> {
    const fn cell(&self, index: Index) -> Index {
        index / self.load.sessions
    }

    const fn now(&self) -> f64 {
        self.agenda.now()
    }

    fn is_measured(&self) -> bool {
        self.now() >= self.from
    }

    /// Adds a session as it is found after a long time. Exponential times do not remember how long they have lasted.
    fn begin(&mut self, index: Index) {
        let Load { away, prompts, think, answer, chunks, pace, .. } = *self.load;
        let streaming = f64::from(chunks - 1) * pace;
        let (thinking, in_turn) = ((prompts - 1.0) * think, prompts * (answer + streaming));
        let drawn = share(&mut self.seed) * (in_turn + thinking + away);
        let mut session = Session {
            state: State::Busy,
            prompted: None,
            starts: false,
            unwritten: chunks,
            uncommitted: chunks,
            idle_end: 0.0,
            edited: None,
            is_edit_due: false,
        };
        if drawn < in_turn {
            let mut mean = answer;
            if drawn >= prompts * answer {
                mean = pace;
                let left = u64::from(chunks - 1);
                session.unwritten = u32::try_from(1 + self.seed.below(left)).unwrap_or(1);
                session.uncommitted = session.unwritten;
            }
            self.answers.prompts += 1;
            let at = exponential(&mut self.seed, mean);
            self.agenda.add(at, Event::Chunk(index));
        } else {
            let mean = if drawn < in_turn + thinking { think } else { away };
            let at = exponential(&mut self.seed, mean);
            self.agenda.add(at, Event::Prompt(index));
            session.idle_end = self.machines.idle - exponential(&mut self.seed, mean);
            session.state = if session.idle_end > 0.0 { State::Idle } else { State::Resting };
            if session.state == State::Idle {
                self.agenda.add(session.idle_end, Event::Idle(index));
            }
        }
        let cell = self.cell(index);
        self.in_use[cell] += usize::from(session.state != State::Resting);
        self.sessions.push(session);
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Prompt(index) => self.prompt(index),
            Event::Chunk(index) => self.write_chunk(index),
            Event::Ready(index, commit) => self.queue_commit(index, commit),
            Event::Committed(cell) => {
                for (index, commit) in std::mem::take(&mut self.writers[cell].group) {
                    self.after_commit(index, commit);
                }
                self.start_group(cell);
            }
            Event::Idle(index) => {
                let (now, cell) = (self.now(), self.cell(index));
                let session = &mut self.sessions[index];
                if session.state == State::Idle && session.idle_end <= now {
                    session.state = State::Resting;
                    self.in_use[cell] -= 1;
                }
            }
            Event::Edit(index) => {
                let application = self.application(index);
                self.applications[application].edits.push_back(index);
                self.wake(application);
            }
            Event::Slot(application) => self.send(application),
        }
    }

    fn cost(&mut self, mean: f64) -> f64 {
        if self.costs.is_exponential { exponential(&mut self.seed, mean) } else { mean }
    }

    fn prompt(&mut self, index: Index) {
        let (now, cell) = (self.now(), self.cell(index));
        let starts = self.sessions[index].state == State::Resting;
        if starts && self.in_use[cell] >= self.machines.in_use_max {
            self.answers.refused += 1;
            let at = now + exponential(&mut self.seed, self.load.think);
            return self.agenda.add(at, Event::Prompt(index));
        }
        let mut cost = self.cost(self.costs.turn);
        if starts {
            self.in_use[cell] += 1;
            self.starts += usize::from(self.is_measured());
            cost += self.costs.start;
        }
        self.answers.prompts += 1;
        let chunks = self.load.chunks;
        let session = &mut self.sessions[index];
        session.state = State::Busy;
        (session.prompted, session.starts, session.edited) = (Some(now), starts, None);
        (session.unwritten, session.uncommitted) = (chunks, chunks);
        let done = self.gateways[cell].serve(now, cost);
        self.agenda.add(done, Event::Ready(index, Commit::Accept(self.costs.commits[0])));
    }

    /// The agent writes a chunk, whether or not the gateway keeps up.
    fn write_chunk(&mut self, index: Index) {
        let (now, cell) = (self.now(), self.cell(index));
        let session = &mut self.sessions[index];
        session.unwritten -= 1;
        if session.unwritten > 0 {
            let at = now + exponential(&mut self.seed, self.load.pace);
            self.agenda.add(at, Event::Chunk(index));
        }
        let cost = self.cost(self.costs.chunk);
        let done = self.gateways[cell].serve(now, cost);
        self.agenda.add(done, Event::Ready(index, Commit::Chunk));
    }

    fn queue_commit(&mut self, index: Index, commit: Commit) {
        let cell = self.cell(index);
        match commit {
            // No commit is left.
            Commit::Accept(0) => self.ask_agent(index),
            Commit::End(0) => self.end_turn(index),
            Commit::Accept(_) | Commit::Chunk | Commit::End(_) => {
                self.writers[cell].queued.push_back((index, commit));
                if self.writers[cell].group.is_empty() {
                    self.start_group(cell);
                }
            }
        }
    }

    /// Commits what is queued as one group.
    fn start_group(&mut self, cell: Index) {
        let (now, writer, costs) = (self.now(), &mut self.writers[cell], self.costs);
        let mut rows = 0.0;
        while rows < f64::from(self.machines.group_max)
            && let Some((index, commit)) = writer.queued.pop_front()
        {
            rows += if commit == Commit::Chunk { 1.0 } else { costs.rows };
            writer.group.push((index, commit));
        }
        if writer.group.is_empty() {
            return;
        }
        let of_gateway = self.gateways[cell].serve(now, costs.group) - costs.group;
        let of_server = costs.server[0] + costs.server[1] * rows;
        let waited = self.server.serve(now, of_server) - of_server - now;
        let end = of_gateway.max(now) + waited + costs.sync + costs.row * rows;
        writer.busy += (end - now.max(self.from)).max(0.0);
        self.groups += usize::from(self.is_measured());
        self.agenda.add(end, Event::Committed(cell));
    }

    fn after_commit(&mut self, index: Index, commit: Commit) {
        match commit {
            Commit::Accept(left) => self.queue_commit(index, Commit::Accept(left - 1)),
            Commit::End(left) => self.queue_commit(index, Commit::End(left - 1)),
            Commit::Chunk => self.after_chunk(index),
        }
    }

    fn ask_agent(&mut self, index: Index) {
        let starting = if self.sessions[index].starts { self.costs.starting } else { 0.0 };
        let answer = exponential(&mut self.seed, self.load.answer);
        self.agenda.add(self.now() + self.costs.hop + starting + answer, Event::Chunk(index));
        self.request(index, 1, None);
    }

    fn after_chunk(&mut self, index: Index) {
        let (now, is_measured) = (self.now(), self.is_measured());
        let session = &mut self.sessions[index];
        session.uncommitted -= 1;
        let is_last = session.uncommitted == 0;
        if let Some(prompted) = session.prompted.take().filter(|_| is_measured) {
            self.answers.first.0.push(now - prompted);
        }
        self.chunks += usize::from(is_measured);
        if is_last {
            return self.queue_commit(index, Commit::End(self.costs.commits[1]));
        }
        if let Some(Chat { spacing, .. }) = self.machines.chat
            && !session.is_edit_due
        {
            session.is_edit_due = true;
            let at = session.edited.map_or(now, |edited| edited + spacing);
            self.agenda.add(at, Event::Edit(index));
        }
    }

    fn end_turn(&mut self, index: Index) {
        let now = self.now();
        self.answers.ended += 1;
        self.turns += usize::from(self.is_measured());
        let idle_end = now + self.machines.idle;
        let session = &mut self.sessions[index];
        (session.state, session.idle_end) = (State::Idle, idle_end);
        self.agenda.add(idle_end, Event::Idle(index));
        let is_over = share(&mut self.seed) * self.load.prompts < 1.0;
        let pause = exponential(&mut self.seed, if is_over { self.load.away } else { self.load.think });
        self.agenda.add(now + pause, Event::Prompt(index));
        if let Some(chat) = &self.machines.chat {
            self.request(index, chat.of_turn.saturating_sub(1), Some(now));
        }
    }

    const fn application(&self, index: Index) -> Index {
        self.cell(index) % self.applications.len()
    }

    /// Queues requests that are never left out.
    fn request(&mut self, index: Index, count: u32, ended: Option<f64>) {
        if self.machines.chat.is_none() {
            return;
        }
        let application = self.application(index);
        for left in (0..count).rev() {
            self.applications[application].answers.push_back((index, ended.filter(|_| left == 0)));
        }
        self.wake(application);
    }

    fn wake(&mut self, application: Index) {
        let waiting = &mut self.applications[application];
        if !std::mem::replace(&mut waiting.is_waiting, true) {
            self.agenda.add(waiting.next, Event::Slot(application));
        }
    }

    /// Sends one request: an answer, or the edit that was requested first. An edit shows all chunks until then.
    fn send(&mut self, application: Index) {
        let (now, is_measured) = (self.now(), self.is_measured());
        let Some(chat) = &self.machines.chat else { return };
        let of = &mut self.applications[application];
        of.is_waiting = false;
        let sent = if let Some((index, ended)) = of.answers.pop_front() {
            self.answers.shown.0.extend(ended.filter(|_| is_measured).map(|ended| now - ended));
            index
        } else {
            loop {
                let Some(index) = of.edits.pop_front() else { return };
                let session = &mut self.sessions[index];
                session.is_edit_due = false;
                if session.state == State::Busy {
                    let last = session.edited.replace(now);
                    self.answers.edits.0.extend(last.filter(|_| is_measured).map(|last| now - last));
                    break index;
                }
            }
        };
        of.next = now + 1.0 / chat.per_second;
        self.requests += usize::from(is_measured);
        let cell = self.cell(sent);
        let _ = self.gateways[cell].serve(now, self.costs.request);
        let of = &self.applications[application];
        if !of.answers.is_empty() || !of.edits.is_empty() {
            self.wake(application);
        }
    }

    fn finish(mut self, end: f64) -> Answers {
        let time = end - self.from;
        let mean = |shares: Vec<f64>| shares.iter().sum::<f64>() / number(shares.len());
        let rate = |count: usize| number(count) / time;
        let is_busy = |session: &&Session| session.state == State::Busy;
        let open = self.sessions.iter().filter(is_busy).count();
        let answers = &mut self.answers;
        answers.open = u64::try_from(open).unwrap_or(u64::MAX);
        (answers.turn_rate, answers.chunk_rate) = (rate(self.turns), rate(self.chunks));
        (answers.group_rate, answers.start_rate) = (rate(self.groups), rate(self.starts));
        answers.gateway = mean(self.gateways.iter().map(|station| station.used(end)).collect());
        answers.writer = mean(self.writers.iter().map(|writer| writer.busy / time).collect());
        answers.server = self.server.used(end);
        if let Some(chat) = &self.machines.chat {
            answers.chat = rate(self.requests) / (chat.per_second * number(self.applications.len()));
        }
        answers.chat_waiting = self.applications.iter().map(|application| application.answers.len()).sum();
        answers.in_use = self.in_use.iter().sum();
        self.answers
    }
}
