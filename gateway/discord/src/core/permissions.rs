//! Permissions that the bot needs, and the URL that requests them (documentation, "Permissions" and
//! "OAuth2").

use super::ids::Snowflake;

/// Required permissions: the name in Discord's user interface, and the bit.
pub const REQUIRED_PERMISSIONS: [(&str, u64); 8] = [
    ("Add Reactions", 1 << 6),
    ("View Channel", 1 << 10),
    ("Send Messages", 1 << 11),
    ("Embed Links", 1 << 14),
    ("Attach Files", 1 << 15),
    ("Read Message History", 1 << 16),
    ("Create Public Threads", 1 << 35),
    ("Send Messages in Threads", 1 << 38),
];

/// All bits of [`REQUIRED_PERMISSIONS`].
#[must_use]
pub fn required_bits() -> u64 {
    REQUIRED_PERMISSIONS.iter().fold(0, |all, (_, bit)| all | bit)
}

/// Returns the URL at which a manager of a guild adds the bot, or grants missing permissions.
#[must_use]
pub fn invite_url(application: Snowflake) -> String {
    let bits = required_bits();
    format!(
        "https://discord.com/oauth2/authorize?client_id={application}&scope=bot+applications.commands&permissions={bits}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn example_configuration_lists_required_permissions() {
        let example = include_str!("../../../../packaging/gateway.example.toml");
        let words = example.replace("\n# ", " ");
        let list = words.split("in its channels: ").nth(1).and_then(|rest| rest.split('.').next());
        let mut named: Vec<&str> = list.unwrap_or_default().split(", ").collect();
        named.sort_unstable();
        let mut needed = REQUIRED_PERMISSIONS.map(|(name, _)| name);
        needed.sort_unstable();
        assert_eq!(named, needed);
    }

    #[test]
    fn manual_lists_required_permissions() {
        let manual = include_str!("../../../../docs/manual/discord.md");
        let address = invite_url(Snowflake(0)).replace("client_id=0", "client_id=APPLICATION_ID");
        assert!(manual.contains(&address), "{address}");
        let words: String = manual.split_whitespace().collect::<Vec<_>>().join(" ");
        for (name, bit) in REQUIRED_PERMISSIONS {
            assert!(words.contains(&format!("*{name}*")), "{name}");
            assert!(bit.is_power_of_two() && required_bits() & bit != 0, "{name}");
        }
        let more = required_bits() | 1 << 29 | 1 << 34;
        assert!(
            words.contains(&format!("`{more}` asks for *Manage Threads* and *Manage Webhooks*")),
            "{more}"
        );
    }
}
