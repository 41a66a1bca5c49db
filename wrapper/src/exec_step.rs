//! Steps of the child after the fork that can fail, and their names in messages to the supervisor.

/// Step of the child after its release. Sent through the report pipe as a byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum ExecStep {
    /// Setting the score for the kernel's out-of-memory killer.
    OomScore,
    /// Setting a resource limit.
    Limits,
    /// Setting the supplementary groups.
    Groups,
    /// Setting the group.
    Group,
    /// Setting the user.
    User,
    /// Dropping capabilities.
    Capabilities,
    /// Setting `no_new_privs`.
    NoNewPrivs,
    /// Entering the working directory.
    Chdir,
    /// Enforcing the Landlock ruleset.
    Landlock,
    /// Executing one of the candidate programs.
    Exec,
}

impl ExecStep {
    /// All stages, in the order of their bytes.
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

    /// Returns the name, as used in `ExecFailed`, of the stage with this byte.
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
        for (byte, stage) in (0u8..).zip(ExecStep::ALL) {
            assert_eq!(stage as u8, byte, "{stage:?}");
            assert_eq!(ExecStep::name_of(byte), stage.name());
        }
        assert_eq!(ExecStep::name_of(u8::try_from(ExecStep::ALL.len()).unwrap_or(u8::MAX)), "unknown");
    }
}
