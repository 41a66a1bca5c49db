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
    /// Creating a private directory, and allowing writes in it.
    PrivateHome,
    /// Enforcing the Landlock ruleset.
    Landlock,
    /// Executing one of the candidate programs.
    Exec,
}

impl ExecStep {
    /// All stages, in the order of their bytes, with their names in `ExecFailed`.
    const ALL: [(Self, &'static str); 11] = [
        (Self::OomScore, "oom_score_adj"),
        (Self::Limits, "setrlimit"),
        (Self::Groups, "setgroups"),
        (Self::Group, "setresgid"),
        (Self::User, "setresuid"),
        (Self::Capabilities, "capset"),
        (Self::NoNewPrivs, "no_new_privs"),
        (Self::Chdir, "chdir"),
        (Self::PrivateHome, "private_home"),
        (Self::Landlock, "landlock"),
        (Self::Exec, "exec"),
    ];

    /// Returns the name of the stage with this byte.
    pub(crate) fn name_of(byte: u8) -> &'static str {
        Self::ALL.get(usize::from(byte)).map_or("unknown", |(_, name)| name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_map_to_step_names() {
        for (byte, (stage, name)) in (0u8..).zip(ExecStep::ALL) {
            assert_eq!((stage as u8, ExecStep::name_of(byte)), (byte, name), "{stage:?}");
        }
        assert_eq!(ExecStep::name_of(u8::try_from(ExecStep::ALL.len()).unwrap_or(u8::MAX)), "unknown");
    }
}
