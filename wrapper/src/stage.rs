//! The steps of the adapter's side of the fork that can fail, and what the supervisor is told of them.

/// A step after the adapter was let go. It crosses the fork as a byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Stage {
    /// Its score for the kernel's out-of-memory killer was not set.
    OomScore,
    /// A resource limit was not set.
    Limits,
    /// Its groups were not set.
    Groups,
    /// Its group was not set.
    Group,
    /// Its user was not set.
    User,
    /// Its capabilities were not dropped.
    Capabilities,
    /// It was not barred from gaining privileges.
    NoNewPrivs,
    /// The working directory was not entered.
    Chdir,
    /// The Landlock ruleset was not enforced.
    Landlock,
    /// No candidate was executed.
    Exec,
}

impl Stage {
    /// All of them, in the order of their bytes.
    const ALL: [Self; 10] = [
        Self::OomScore,
        Self::Limits,
        Self::Groups,
        Self::Group,
        Self::User,
        Self::Capabilities,
        Self::NoNewPrivs,
        Self::Chdir,
        Self::Landlock,
        Self::Exec,
    ];

    /// The name in `ExecFailed` of the stage with this byte.
    pub(crate) fn name_of(byte: u8) -> &'static str {
        Self::ALL.get(usize::from(byte)).map_or("unknown", |stage| stage.name())
    }

    const fn name(self) -> &'static str {
        match self {
            Self::OomScore => "oom_score_adj",
            Self::Limits => "setrlimit",
            Self::Groups => "setgroups",
            Self::Group => "setresgid",
            Self::User => "setresuid",
            Self::Capabilities => "capset",
            Self::NoNewPrivs => "no_new_privs",
            Self::Chdir => "chdir",
            Self::Landlock => "landlock",
            Self::Exec => "exec",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_its_name() {
        for (byte, stage) in (0u8..).zip(Stage::ALL) {
            assert_eq!(stage as u8, byte, "{stage:?}");
            assert_eq!(Stage::name_of(byte), stage.name());
        }
        assert_eq!(Stage::name_of(u8::try_from(Stage::ALL.len()).unwrap_or(u8::MAX)), "unknown");
    }
}
