//! Executes the orders of tests: set-up, actions of people, faults and queries.

mod ground;
mod order;
mod people;

pub use order::{Order, PersonFile, SocketAct};

use super::Machine;
use super::error::{ApiError, form_error};
use super::gateway::ToSocket;
use super::model::{Id, Message, Ms};
use super::settings::Settings;
use serde_json::{Value, json};

/// Result of an order.
pub type Outcome = Result<Value, ApiError>;

fn id(id: Id) -> Value {
    json!(id)
}

fn as_json<T: serde::Serialize>(value: T) -> Outcome {
    serde_json::to_value(value).map_err(|_| ApiError::server_error())
}

impl Machine {
    /// Executes an order.
    ///
    /// # Errors
    /// The error that the service would return to a person, or an error of the order itself.
    pub fn order(&mut self, now: Ms, order: Order) -> Outcome {
        match order {
            Order::Configure { settings } => return self.configure(settings),
            Order::Settings => return as_json(&self.settings),
            Order::Advance { ms } => {
                self.settings.clock_ahead_ms += ms;
                let later = now + ms;
                self.gateway.shift_deadlines(ms);
                self.tick(later);
                return Ok(json!(later));
            }
            Order::Now => return Ok(json!(now)),
            Order::RestFault { fault } => self.faults.rest.push(fault),
            Order::EventFault { fault } => self.faults.events.push(fault),
            Order::ClearFaults => {
                let dice = self.faults.dice.clone();
                self.faults = super::faults::Faults { dice, ..super::faults::Faults::new(0) };
            }
            Order::HoldAnswer { on } => self.hold_answer(on),
            Order::WithholdAcks { on } => self.faults.acks_withheld = on,
            Order::Away { on } => {
                self.faults.away = on;
                if on {
                    self.act_on_sockets(None, SocketAct::Reset);
                }
            }
            Order::InvalidSessions { count } => self.faults.invalid_sessions = count,
            Order::WithholdHellos { count } => self.faults.hellos_withheld = count,
            Order::Unanswered { count } => self.faults.unanswered = count,
            Order::Sockets { bot, act } => return Ok(json!(self.act_on_sockets(bot, act))),
            Order::Transcript { .. }
            | Order::Channels
            | Order::Interactions
            | Order::Commands
            | Order::Webhooks
            | Order::Bots
            | Order::Tally
            | Order::Underway => return self.query(order),
            other => return self.execute_person_order(now, other),
        }
        Ok(Value::Null)
    }

    fn configure(&mut self, change: Value) -> Outcome {
        let mut settings = as_json(&self.settings)?;
        let seed = self.settings.seed;
        if let (Some(all), Value::Object(change)) = (settings.as_object_mut(), change) {
            // Members of `buckets` are added to the existing ones.
            for (key, value) in change {
                match (all.get_mut(&key).and_then(Value::as_object_mut), value) {
                    (Some(inner), Value::Object(more)) if key == "buckets" => inner.extend(more),
                    (_, value) => {
                        all.insert(key, value);
                    }
                }
            }
        }
        let settings: Settings = serde_json::from_value(settings)
            .map_err(|error| form_error("settings", "UNKNOWN_SETTING", &error.to_string()))?;
        if settings.seed != seed {
            self.faults.dice = crate::seed::Seed::from_number(settings.seed);
        }
        self.settings = settings;
        Ok(Value::Null)
    }

    fn act_on_sockets(&mut self, bot: Option<Id>, act: SocketAct) -> usize {
        let sockets = match bot {
            None => self.gateway.all_sockets(),
            Some(_) => self.gateway.sockets_of(bot),
        };
        let payload =
            |op: u64, d: Value| ToSocket::Text(json!({"op": op, "d": d, "s": null, "t": null}).to_string());
        let order = match act {
            SocketAct::Reset => ToSocket::Reset,
            SocketAct::Cut => ToSocket::Cut,
            SocketAct::Close(code) => ToSocket::Close(code, "A test wants it."),
            SocketAct::Reconnect => payload(7, Value::Null),
            SocketAct::InvalidSession { resumable } => {
                if !resumable {
                    self.gateway.forget_sessions(bot);
                }
                payload(9, json!(resumable))
            }
        };
        self.gateway.order(&sockets, &order);
        sockets.len()
    }

    fn query(&self, order: Order) -> Outcome {
        match order {
            Order::Transcript { channel } => {
                let of = |message: &&Message| channel.is_none_or(|channel| message.channel_id == channel);
                as_json(self.world.messages.iter().filter(of).collect::<Vec<_>>())
            }
            Order::Channels => as_json(self.world.channels.iter().collect::<Vec<_>>()),
            Order::Interactions => as_json(self.world.interactions.iter().collect::<Vec<_>>()),
            Order::Commands => as_json(self.world.commands.iter().collect::<Vec<_>>()),
            Order::Webhooks => as_json(self.world.webhooks.iter().collect::<Vec<_>>()),
            Order::Bots => {
                let bots = self.world.bots.iter().map(|bot| {
                    let connected = self.gateway.is_connected(bot.user_id);
                    Ok(json!({"bot": as_json(bot)?, "connected": connected}))
                });
                Ok(Value::Array(bots.collect::<Result<_, ApiError>>()?))
            }
            Order::Underway => as_json(&self.underway),
            _ => as_json(&self.tally),
        }
    }

    fn execute_person_order(&mut self, now: Ms, order: Order) -> Outcome {
        match order {
            Order::Post { .. } | Order::Edit { .. } | Order::Delete { .. } => {
                return self.person_writes(now, order);
            }
            Order::Click { .. } | Order::Submit { .. } | Order::Use { .. } => {
                return self.person_acts(now, order);
            }
            Order::MakeThread { user, channel, name, message } => {
                return Ok(id(self.make_thread_by_force(now, channel, user, &name, message)?.id));
            }
            Order::Change { channel, form } => self.change_thread_by_force(now, channel, &form)?,
            Order::DeleteChannel { channel } => self.delete_by_force(now, channel),
            Order::DeleteWebhook { webhook } => self.delete_webhook_by_force(webhook),
            Order::RotateWebhook { webhook } => self.rotate_webhook_by_force(webhook),
            other => return self.set_up(now, other),
        }
        Ok(Value::Null)
    }
}
