//! Registration of commands: the whole set at once.

use super::Machine;
use super::check::commands as check;
use super::error::{ApiError, FormErrors};
use super::model::{Command, Id};
use super::render;
use super::rest::{Ctx, Reply};
use super::settings::Rule;
use serde_json::Value;

impl Machine {
    /// The application and guild of a path; the application must be the bot's.
    fn scope(&self, ctx: &Ctx<'_>) -> Result<(Id, Option<Id>), ApiError> {
        let application_id = ctx.id(0)?;
        if ctx.bot()?.application_id != application_id {
            return Err(ApiError::missing_access());
        }
        let guild_id = if ctx.args.len() > 1 { Some(ctx.id(1)?) } else { None };
        if let Some(guild_id) = guild_id {
            let guild = self.world.guild(guild_id).map_err(|_| ApiError::missing_access())?;
            if !guild.members.contains_key(&ctx.bot()?.user_id) {
                return Err(ApiError::missing_access());
            }
        }
        Ok((application_id, guild_id))
    }

    fn commands_of(&self, scope: (Id, Option<Id>)) -> impl Iterator<Item = &Command> {
        self.world.commands.iter().filter(move |command| (command.application_id, command.guild_id) == scope)
    }

    /// `PUT /applications/{}/commands`, `PUT /applications/{}/guilds/{}/commands`.
    pub(super) fn put_commands(&mut self, ctx: &Ctx<'_>) -> Result<Reply, ApiError> {
        let scope = self.scope(ctx)?;
        if ctx.call.body.broken {
            return Err(ApiError::invalid_json());
        }
        let mut errors = FormErrors::default();
        let wanted = ctx.call.body.json.as_ref().and_then(Value::as_array).cloned();
        let Some(wanted) = wanted else {
            errors.add("_errors", "LIST_TYPE_CONVERT", "Only iterables may be used in a ListType");
            errors.finish()?;
            return Err(ApiError::server_error());
        };
        if self.holds(Rule::CommandLimits) {
            check::check_all(&wanted, &mut errors);
        }
        errors.finish()?;
        let before: Vec<Command> = self.commands_of(scope).cloned().collect();
        for command in &before {
            self.world.commands.remove(command.id);
        }
        let (application_id, guild_id) = scope;
        for body in wanted {
            let known = before.iter().find(|command| same(&command.body, &body));
            let id = known.map_or_else(|| self.world.mint(ctx.now), |known| known.id);
            let version = match known {
                Some(known) if known.body == body => known.version,
                _ => self.world.mint(ctx.now),
            };
            self.world.commands.put(id, Command { id, application_id, guild_id, version, body });
        }
        Ok(Reply::Ok(self.commands_of(scope).map(render::command).collect()))
    }

    /// The command of an application with a name that people in a guild see; guild commands take precedence.
    #[must_use]
    pub fn command_named(&self, application_id: Id, guild_id: Id, name: &str) -> Option<&Command> {
        let named = |command: &&Command| command.body.get("name").and_then(Value::as_str) == Some(name);
        let of_guild = self.commands_of((application_id, Some(guild_id))).find(named);
        of_guild.or_else(|| self.commands_of((application_id, None)).find(named))
    }
}

/// Whether two bodies are of the same command: type and name.
fn same(one: &Value, other: &Value) -> bool {
    let key = |body: &Value| {
        let kind = body.get("type").and_then(Value::as_u64).unwrap_or(1);
        (kind, body.get("name").cloned())
    };
    key(one) == key(other)
}
