//! Footer line of an answer, if the channel wants one: agent, model, duration, tool calls, tokens, context use
//! and cost. Contains only facts from the agent and from the gateway itself. Source: `discord.md` §4 "UX
//! defaults".

use crate::sanitize::line as one_line;
use crate::timeouts::format_duration;
use crate::usage::Tokens;
use serde_json::Value;

/// Maximum length of a name, in characters.
const NAME_CHARS_MAX: usize = 60;

/// Facts about a run in addition to its output.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Footer {
    /// Name of the agent.
    agent: String,
    /// Start of the turn, milliseconds since the Unix epoch.
    started_at_ms: Option<u64>,
    model: Option<String>,
    context: Option<(u64, u64)>,
    cost: Option<String>,
}

impl Footer {
    /// Creates the footer of a run from the agent's name and the start of the turn.
    pub(super) fn of(agent: String, started_at_ms: Option<u64>) -> Self {
        Self { agent, started_at_ms, ..Self::default() }
    }

    /// Reads an update of the agent that is neither text nor a tool call.
    pub(super) fn add(&mut self, update: &Value) {
        match update["sessionUpdate"].as_str() {
            Some("usage_update") => {
                self.context = update["used"].as_u64().zip(update["size"].as_u64().filter(|size| *size > 0));
                self.cost = cost(&update["cost"]).or_else(|| self.cost.take());
            }
            Some("config_option_update") => {
                let options = update["configOptions"].as_array().map(Vec::as_slice).unwrap_or_default();
                let is_model = |option: &&Value| option["id"] == "model" || option["category"] == "model";
                let model = options.iter().find(is_model).and_then(|option| option["currentValue"].as_str());
                self.model = model.map(|model| one_line(model, NAME_CHARS_MAX)).or_else(|| self.model.take());
            }
            _ => {}
        }
    }

    /// Formats the line for a run that ended at this time with this many tool calls and tokens.
    pub(super) fn line(&self, ended_at_ms: u64, tools: usize, tokens: Option<Tokens>) -> String {
        let took = self.started_at_ms.map(|at| ended_at_ms.saturating_sub(at));
        // Whole seconds are precise enough.
        let took =
            took.map(|ms| if ms < 1_000 { "<1s".to_owned() } else { format_duration(ms / 1_000 * 1_000) });
        let tools = match tools {
            0 => None,
            1 => Some("1 tool".to_owned()),
            count => Some(format!("{count} tools")),
        };
        let context =
            self.context.map(|(used, size)| format!("ctx {}%", u128::from(used) * 100 / u128::from(size)));
        let agent = Some(one_line(&self.agent, NAME_CHARS_MAX)).filter(|agent| !agent.is_empty());
        let tokens = tokens.map(Tokens::text);
        let parts = [agent, self.model.clone(), took, tools, tokens, context, self.cost.clone()];
        parts.into_iter().flatten().collect::<Vec<_>>().join(" · ")
    }
}

/// Formats an amount of money from the agent.
fn cost(cost: &Value) -> Option<String> {
    let amount = cost["amount"].as_f64().filter(|amount| amount.is_finite() && *amount >= 0.0)?;
    let digits = if amount > 0.0 && amount < 0.1 { 4 } else { 2 };
    Some(match cost["currency"].as_str() {
        Some("USD") | None => format!("${amount:.digits$}"),
        Some(currency) => format!("{amount:.digits$} {}", one_line(currency, 8)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn footer_omits_unknown_values() {
        let known = |agent: &str, updates: &[Value]| {
            let mut footer = Footer::of(agent.to_owned(), Some(1_000));
            updates.iter().for_each(|update| footer.add(update));
            footer
        };
        let model = json!({"sessionUpdate": "config_option_update",
            "configOptions": [{"id": "x", "currentValue": "y"}, {"id": "model", "currentValue": "big"}]});
        let usage = |used: u64, cost: Value| json!({"sessionUpdate": "usage_update", "used": used, "size": 200, "cost": cost});
        let empty = json!({"sessionUpdate": "usage_update", "used": 1, "size": 0});
        let euro = json!({"amount": 0.012, "currency": "EUR"});
        let usd = json!({"amount": 0.2051, "currency": "USD"});
        for (footer, ended, tools, want) in [
            (known("demo", &[]), 73_900, 0, "demo · 1m12s"),
            (known("demo", &[]), 1_999, 1, "demo · <1s · 1 tool"),
            (known("demo", &[model]), 3_000, 14, "demo · big · 2s · 14 tools"),
            (known("", &[usage(77, json!(null))]), 3_000, 0, "2s · ctx 38%"),
            (known("a", &[usage(77, usd), usage(100, json!(null))]), 3_000, 0, "a · 2s · ctx 50% · $0.21"),
            (known("a", &[usage(0, euro)]), 3_000, 0, "a · 2s · ctx 0% · 0.0120 EUR"),
            (known("a", &[usage(0, json!({"amount": -1}))]), 3_000, 0, "a · 2s · ctx 0%"),
            (known("a", &[empty]), 3_000, 0, "a · 2s"),
            (Footer::of("a".to_owned(), None), 3_000, 0, "a"),
        ] {
            assert_eq!(footer.line(ended, tools, None), want);
        }
        let tokens = Tokens { input: 12_000, output: 345, total: 12_345 };
        let line = known("a", &[]).line(3_000, 1, Some(tokens));
        assert_eq!(line, "a · 2s · 1 tool · 12.3k tokens (12k in, 345 out)");
    }
}
