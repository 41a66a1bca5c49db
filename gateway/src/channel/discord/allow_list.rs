//! Authorization: allow-lists of people who may speak to agents and of people who may answer agents'
//! requests; no I/O.
//!
//! An agent acts on the machine, so empty allow-lists admit nobody.

use crate::channel::ApprovalScope;
use acp_core::shards::ShardRange;
use acp_discord::core::event::Member;
use acp_discord::core::ids::Snowflake;
use std::collections::BTreeSet;

/// Maximum number of entries listed in a message.
const NAMED_MAX: usize = 4;

/// Users and roles.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Principals {
    /// Users.
    pub(crate) users: BTreeSet<Snowflake>,
    /// Roles of a server.
    pub(crate) roles: BTreeSet<Snowflake>,
}

impl Principals {
    /// True if neither users nor roles are listed.
    pub(crate) fn is_empty(&self) -> bool {
        self.users.is_empty() && self.roles.is_empty()
    }

    /// Returns users and roles as Discord mentions; `None` if none are listed.
    pub(crate) fn mentions(&self) -> Option<String> {
        let users = self.users.iter().map(|id| format!("<@{id}>"));
        let roles = self.roles.iter().map(|id| format!("<@&{id}>"));
        let mut names: Vec<String> = roles.chain(users).take(NAMED_MAX).collect();
        let others = (self.users.len() + self.roles.len()).saturating_sub(NAMED_MAX);
        if others > 0 {
            names.push(format!("{others} more"));
        }
        let last = names.pop()?;
        Some(if names.is_empty() { last } else { format!("{} or {last}", names.join(", ")) })
    }

    fn has(&self, who: &Member) -> bool {
        self.users.contains(&who.user.id) || who.roles.iter().any(|role| self.roles.contains(role))
    }
}

/// Authorization rules of one account.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct AccessRules {
    /// Shards of this gateway; `None` for all. Servers of other shards are served by other gateways.
    pub(crate) shards: Option<ShardRange>,
    /// Served servers; empty for all servers of the bot.
    pub(crate) guilds: BTreeSet<Snowflake>,
    /// Served channels, with their threads; empty for all.
    pub(crate) channels: BTreeSet<Snowflake>,
    /// People who may speak to agents.
    pub(crate) allowed: Principals,
    /// People who may answer the requests of any agent; if empty, each person answers those of their own
    /// agents.
    pub(crate) approvers: Principals,
}

impl AccessRules {
    /// True if the rules depend on roles.
    pub(crate) fn uses_roles(&self) -> bool {
        !self.allowed.roles.is_empty() || !self.approvers.roles.is_empty()
    }

    /// Returns the reason if a server, or direct messages (`None`), belong to a shard of another gateway.
    pub(crate) fn shard_refusal(&self, guild: Option<Snowflake>) -> Option<String> {
        self.shards?.refusal(guild.map(|guild| guild.0))
    }

    /// True if a server is served. `None` for direct messages.
    pub(crate) fn is_guild_allowed(&self, guild: Option<Snowflake>) -> bool {
        self.shard_refusal(guild).is_none()
            && (self.guilds.is_empty() || guild.is_none_or(|guild| self.guilds.contains(&guild)))
    }

    /// True if a channel, or a thread below a parent channel, is served.
    pub(crate) fn is_channel_allowed(&self, channel: Snowflake, parent: Option<Snowflake>) -> bool {
        let is_listed = |id: Snowflake| self.channels.contains(&id);
        self.channels.is_empty() || is_listed(channel) || parent.is_some_and(is_listed)
    }

    /// True if a member may speak to agents; approvers always may.
    pub(crate) fn is_allowed(&self, who: &Member) -> bool {
        self.allowed.has(who) || self.approvers.has(who)
    }

    /// Returns the scope of agents' requests that a member may answer.
    pub(crate) fn approval_scope(&self, who: &Member) -> ApprovalScope {
        match (self.approvers.is_empty(), self.approvers.has(who)) {
            (true, _) => ApprovalScope::Own,
            (false, true) => ApprovalScope::All,
            (false, false) => ApprovalScope::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use acp_discord::core::event::User;

    fn member(id: u64, roles: &[u64]) -> Member {
        let user = User { id: Snowflake(id), name: "n".to_owned(), display_name: None, bot: false };
        Member { user, roles: roles.iter().map(|role| Snowflake(*role)).collect() }
    }

    fn people(users: &[u64], roles: &[u64]) -> Principals {
        let set = |ids: &[u64]| ids.iter().map(|id| Snowflake(*id)).collect();
        Principals { users: set(users), roles: set(roles) }
    }

    /// Roles are listed first, since they are fewer.
    #[test]
    fn principals_are_shown_as_mentions() {
        for (people, want) in [
            (Principals::default(), None),
            (people(&[7], &[]), Some("<@7>")),
            (people(&[7, 8], &[9]), Some("<@&9>, <@7> or <@8>")),
            (people(&[1, 2, 3, 4, 5], &[9]), Some("<@&9>, <@1>, <@2>, <@3> or 2 more")),
        ] {
            assert_eq!(people.mentions().as_deref(), want);
        }
    }

    #[test]
    fn empty_allow_list_admits_nobody() {
        let closed = AccessRules::default();
        assert!(!closed.is_allowed(&member(1, &[2])));
        let rules = AccessRules {
            allowed: people(&[1], &[20]),
            approvers: people(&[3], &[30]),
            ..AccessRules::default()
        };
        for (author, admitted, approves) in [
            (member(1, &[]), true, ApprovalScope::Nothing),
            (member(2, &[20]), true, ApprovalScope::Nothing),
            (member(2, &[21]), false, ApprovalScope::Nothing),
            (member(3, &[]), true, ApprovalScope::All),
            (member(1, &[30]), true, ApprovalScope::All),
        ] {
            assert_eq!(
                (rules.is_allowed(&author), rules.approval_scope(&author)),
                (admitted, approves),
                "{author:?}"
            );
        }
        let own = AccessRules { allowed: people(&[1], &[]), ..AccessRules::default() };
        assert_eq!(own.approval_scope(&member(1, &[])), ApprovalScope::Own);
    }

    #[test]
    fn unlisted_server_is_not_served() {
        let some = AccessRules { guilds: [Snowflake(1)].into(), ..AccessRules::default() };
        assert!(some.is_guild_allowed(Some(Snowflake(1))) && !some.is_guild_allowed(Some(Snowflake(2))));
        assert!(AccessRules::default().is_guild_allowed(Some(Snowflake(2))));
    }

    /// Both the range of shards and the list must have a server.
    #[test]
    fn server_of_another_shard_is_not_served() {
        let guild = |shard: u64| Some(Snowflake((8 + shard) << 22));
        let shards = Some(ShardRange { from: 1, to: 3, of: 4 });
        let all = AccessRules { shards, ..AccessRules::default() };
        let listed = AccessRules { guilds: [Snowflake(10 << 22), Snowflake(11 << 22)].into(), ..all.clone() };
        let served = |rules: &AccessRules| {
            (0..4).map(|shard| rules.is_guild_allowed(guild(shard))).collect::<Vec<_>>()
        };
        assert_eq!(served(&all), [false, true, true, false]);
        assert_eq!(served(&listed), [false, false, true, false]);
        assert!(
            !all.is_guild_allowed(None) && AccessRules::default().is_guild_allowed(None),
            "direct messages"
        );
        assert!(
            all.shard_refusal(guild(3))
                .is_some_and(|why| why.contains("shard 3") && why.contains("1 to 2 of 4"))
        );
    }
}
