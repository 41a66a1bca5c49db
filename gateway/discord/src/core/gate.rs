//! Rate limiter for all requests. Combines the token's validity, the refusal count, the global limit, the
//! limit on edits of old messages, and the buckets.

use crate::core::buckets::{Buckets, Major, Permit, Ready, RouteName};
use crate::core::budget::{Global, Invalid};
use crate::core::headers::{Said, Scope};
use std::collections::HashMap;
use std::time::Duration;

/// Age in milliseconds from which edits of a message have a separate limit: one hour.
pub const OLD_MS: u64 = 60 * 60 * 1000;
/// Discord's error code for that limit.
pub const OLD_EDITS: u32 = 30046;
/// Window in which Discord counts refusals.
const INVALID_WINDOW: Duration = Duration::from_secs(600);

/// Properties of a request that decide which limits apply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counted {
    /// Route name.
    pub route: RouteName,
    /// Major parameter.
    pub major: Major,
    /// True if the global limit of the bot applies; requests to interactions are exempt.
    pub global: bool,
    /// True if the request carries the bot's token.
    pub bot: bool,
    /// True if the request edits a message older than an hour.
    pub old_edit: bool,
}

/// Answer of the rate limiter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Asked {
    /// Send the request.
    Go(Pass),
    /// Wait until this time; `None`: until the next response.
    Wait(Option<Duration>),
    /// Discord refused the token: nothing is sent until it is replaced.
    Unauthorized,
}

/// Admitted request. Its outcome must be reported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pass {
    permit: Permit,
    counted: Counted,
    /// Generation of the token at admission.
    token: u64,
}

/// Outcome of an admitted request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Became {
    /// Discord responded.
    Answered(Said),
    /// The outcome is unknown.
    Lost,
    /// The request never left this machine.
    Unused,
}

/// Rate limiter for all requests.
#[derive(Debug)]
pub struct Gate {
    buckets: Buckets,
    global: Global,
    invalid: Invalid,
    unauthorized: bool,
    /// Generation of the token: the number of replacements so far.
    token: u64,
    /// Time until which Discord's edge refuses requests from this IP address.
    shut_until: Duration,
    /// Time until which edits of old messages wait, by channel.
    old_edits: HashMap<Major, Duration>,
}

impl Gate {
    /// Creates a limiter of this many requests per second, and this many refusals in ten minutes.
    #[must_use]
    pub fn new(per_second: u32, invalid: usize) -> Self {
        Self {
            buckets: Buckets::default(),
            global: Global::new(per_second, Duration::from_secs(1)),
            invalid: Invalid::new(invalid, INVALID_WINDOW),
            unauthorized: false,
            token: 0,
            shut_until: Duration::ZERO,
            old_edits: HashMap::new(),
        }
    }

    /// Admits a request or says how long to wait.
    pub fn ask(&mut self, now: Duration, counted: &Counted) -> Asked {
        if self.unauthorized && counted.bot {
            return Asked::Unauthorized;
        }
        if let Some(until) = self.shut_until(now) {
            return Asked::Wait(Some(until));
        }
        if counted.old_edit {
            self.old_edits.retain(|_, until| *until > now);
            if let Some(until) = self.old_edits.get(&counted.major) {
                return Asked::Wait(Some(*until));
            }
        }
        match self.buckets.ready(now, counted.route, &counted.major) {
            Ready::Now => {}
            Ready::At(until) => return Asked::Wait(Some(until)),
            Ready::AfterAnswer => return Asked::Wait(None),
        }
        if counted.global {
            if let Some(wait) = self.global.ready(now) {
                return Asked::Wait(wait);
            }
            self.global.take();
        }
        let permit = self.buckets.take(now, counted.route, &counted.major);
        Asked::Go(Pass { permit, counted: counted.clone(), token: self.token })
    }

    /// Reports the outcome of an admitted request.
    pub fn tell(&mut self, now: Duration, pass: &Pass, became: &Became) {
        let Pass { permit, counted, .. } = pass;
        if counted.global {
            match became {
                Became::Answered(_) | Became::Lost => self.global.landed(now),
                Became::Unused => self.global.unused(),
            }
        }
        match became {
            Became::Lost => self.buckets.lost(now, permit),
            Became::Unused => self.buckets.unused(permit),
            Became::Answered(said) => self.answered(now, pass, said),
        }
    }

    fn answered(&mut self, now: Duration, pass: &Pass, said: &Said) {
        let Pass { permit, counted, token } = pass;
        let shared = said.too_many.is_some_and(|limit| limit.scope == Scope::Shared);
        if matches!(said.status, 401 | 403 | 429) && !shared {
            self.invalid.count(now);
        }
        // A refusal of the previous token does not concern the current one.
        if said.status == 401 && counted.bot && *token == self.token {
            self.unauthorized = true;
        }
        let budget = said.budget.as_ref();
        let Some(limit) = said.too_many else {
            let success = (200..300).contains(&said.status);
            return self.buckets.answered(now, permit, budget, success);
        };
        match limit.scope {
            // The limit on old edits is separate from the bucket: other edits continue.
            Scope::User | Scope::Shared if limit.code == Some(OLD_EDITS) => {
                self.old_edits.insert(counted.major.clone(), now + limit.retry_after);
                self.buckets.answered(now, permit, budget, false);
            }
            Scope::User | Scope::Shared => self.buckets.refused(now, permit, budget, limit.retry_after),
            Scope::Global => {
                self.global.close(now + limit.retry_after);
                self.buckets.answered(now, permit, budget, false);
            }
            Scope::Address => {
                self.shut_until = self.shut_until.max(now + limit.retry_after);
                self.buckets.answered(now, permit, budget, false);
            }
        }
    }

    /// Returns the time until which no request is sent at all, if any: Discord's edge asked for it, or so
    /// many refusals occurred that Discord would soon block this IP address.
    pub fn shut_until(&mut self, now: Duration) -> Option<Duration> {
        let shut = Some(self.shut_until).filter(|until| *until > now);
        shut.or_else(|| self.invalid.ready(now))
    }

    /// Records that the token was replaced.
    pub const fn authorize(&mut self) {
        self.unauthorized = false;
        self.token += 1;
    }

    /// True if Discord refused the token.
    #[must_use]
    pub const fn is_unauthorized(&self) -> bool {
        self.unauthorized
    }
}

#[cfg(test)]
mod tests {
    use super::{Asked, Became, Counted, Gate, Pass};
    use crate::core::buckets::Major;
    use crate::core::headers::{Said, Scope, TooMany};
    use std::time::Duration;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn counted(route: &'static str, channel: u64) -> Counted {
        Counted { route, major: Major::Channel(channel), global: true, bot: true, old_edit: false }
    }

    fn go(gate: &mut Gate, now: Duration, counted: &Counted) -> Pass {
        match gate.ask(now, counted) {
            Asked::Go(pass) => pass,
            other => panic!("{counted:?}: {other:?}"),
        }
    }

    fn said(status: u16, too_many: Option<TooMany>) -> Became {
        Became::Answered(Said { status, budget: None, too_many })
    }

    fn limit(scope: Scope, seconds: u64, code: Option<u32>) -> Became {
        said(429, Some(TooMany { scope, retry_after: Duration::from_secs(seconds), code }))
    }

    #[test]
    fn d07_a_refused_token_stops_all_that_carries_it_until_there_is_another() {
        let mut gate = Gate::new(40, 500);
        let pass = go(&mut gate, ms(0), &counted("a", 1));
        gate.tell(ms(1), &pass, &said(401, None));
        assert_eq!(gate.ask(ms(2), &counted("b", 2)), Asked::Unauthorized);
        let webhook = Counted { bot: false, ..counted("c", 3) };
        let pass = go(&mut gate, ms(2), &webhook);
        gate.tell(ms(3), &pass, &said(401, None));
        gate.authorize();
        assert!(!gate.is_unauthorized());
        go(&mut gate, ms(4), &counted("b", 2));
        // A refused webhook token does not concern the bot's token.
        let pass = go(&mut gate, ms(5), &webhook);
        gate.tell(ms(6), &pass, &said(401, None));
        assert!(!gate.is_unauthorized());
    }

    #[test]
    fn each_limit_holds_back_what_it_is_about() {
        let other = |route, channel| (counted(route, channel), false);
        let same = |route, channel| (counted(route, channel), true);
        let interaction = Counted { global: false, bot: false, ..counted("i", 9) };
        for (became, rows) in [
            (limit(Scope::User, 5, None), vec![same("a", 1), other("a", 2), other("b", 1)]),
            (limit(Scope::Shared, 5, None), vec![same("a", 1), other("a", 2)]),
            (limit(Scope::Global, 5, None), vec![same("a", 1), same("a", 2), (interaction.clone(), false)]),
            (limit(Scope::Address, 5, None), vec![same("a", 1), same("b", 2), (interaction, true)]),
            (limit(Scope::User, 5, Some(30046)), vec![other("a", 1), other("a", 2)]),
        ] {
            for (counted_then, held) in rows {
                let mut gate = Gate::new(40, 500);
                let pass = go(&mut gate, ms(0), &counted("a", 1));
                gate.tell(ms(100), &pass, &became);
                let asked = gate.ask(ms(200), &counted_then);
                let expected = Asked::Wait(Some(ms(5100)));
                assert_eq!(asked == expected, held, "{became:?} {counted_then:?} {asked:?}");
                if held {
                    go(&mut gate, ms(5100), &counted_then);
                }
            }
        }
    }

    #[test]
    fn edits_of_old_messages_wait_by_themselves() {
        let mut gate = Gate::new(40, 500);
        let old = |channel| Counted { old_edit: true, ..counted("edit", channel) };
        let pass = go(&mut gate, ms(0), &old(1));
        gate.tell(ms(10), &pass, &limit(Scope::User, 20, Some(30046)));
        assert_eq!(gate.ask(ms(20), &old(1)), Asked::Wait(Some(ms(20_010))));
        let pass = go(&mut gate, ms(20), &counted("edit", 1));
        gate.tell(ms(30), &pass, &said(200, None));
        go(&mut gate, ms(30), &old(2));
        go(&mut gate, ms(20_010), &old(1));
    }

    #[test]
    fn refusals_are_counted_but_for_those_that_others_caused() {
        for (became, stops) in [
            (said(403, None), true),
            (said(404, None), false),
            (said(500, None), false),
            (limit(Scope::User, 0, None), true),
            (limit(Scope::Shared, 0, None), false),
            (Became::Lost, false),
            (Became::Unused, false),
        ] {
            let mut gate = Gate::new(40, 2);
            for n in 0..2 {
                let pass = go(&mut gate, ms(n), &counted("a", n));
                gate.tell(ms(n), &pass, &became);
            }
            let asked = gate.ask(ms(10), &counted("a", 10));
            assert_eq!(gate.shut_until(ms(10)), stops.then_some(ms(600_000)), "{became:?}");
            assert_eq!(asked == Asked::Wait(Some(ms(600_000))), stops, "{became:?} {asked:?}");
        }
    }
}
