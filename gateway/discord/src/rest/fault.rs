//! What became of a request that did not come to its end.

use crate::core::errors::Meaning;
use crate::core::headers::Refusal;
use crate::core::units::Refused;
use std::fmt;
use std::time::Duration;

/// What is known of a request that did not come to its end. None of it holds a token or an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// It was provably not carried out.
    Rejected(Rejection),
    /// It was provably not carried out: it may be tried again after this time.
    Limited {
        /// From now.
        retry_after: Duration,
    },
    /// Nobody knows: the answer was lost.
    Uncertain {
        /// Why, for the log.
        why: String,
    },
    /// It was provably not carried out: a newer change of the same message makes it pointless.
    Superseded,
}

/// Why a request was provably not carried out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejection {
    /// Which kind of request.
    pub route: &'static str,
    /// The status of HTTP; none: Discord was not asked.
    pub status: Option<u16>,
    /// Discord's own code.
    pub code: Option<u32>,
    /// What that means for us.
    pub meaning: Meaning,
    /// Why, for the log.
    pub why: String,
}

impl Rejection {
    /// Whether the very same request may be taken later.
    #[must_use]
    pub const fn again(&self) -> bool {
        self.meaning.again()
    }
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.status {
            Some(status) => write!(f, "Discord refused {}: {} (status {status}", self.route, self.why)?,
            None => return write!(f, "{} was not sent: {}", self.route, self.why),
        }
        match self.code {
            Some(code) => write!(f, ", code {code})"),
            None => f.write_str(")"),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rejected(rejection) => rejection.fmt(f),
            Self::Limited { retry_after } => {
                write!(f, "Discord takes no more of these for {} ms", retry_after.as_millis())
            }
            Self::Uncertain { why } => write!(f, "nobody knows what became of it: {why}"),
            Self::Superseded => f.write_str("a newer change of the same message took its place"),
        }
    }
}

impl std::error::Error for Fault {}

impl Fault {
    /// A request that was not made, and would not be taken later either.
    pub(crate) fn invalid(route: &'static str, refused: &Refused) -> Self {
        Self::not_sent(route, Meaning::Invalid, refused.to_string())
    }

    pub(crate) const fn not_sent(route: &'static str, meaning: Meaning, why: String) -> Self {
        Self::Rejected(Rejection { route, status: None, code: None, meaning, why })
    }

    pub(crate) fn refused(route: &'static str, status: u16, refusal: Refusal, meaning: Meaning) -> Self {
        let Refusal { code, why } = refusal;
        let why = if why.is_empty() { "no reason given".to_owned() } else { why };
        Self::Rejected(Rejection { route, status: Some(status), code, meaning, why })
    }

    /// What it means, if it was refused.
    #[must_use]
    pub const fn meaning(&self) -> Option<Meaning> {
        match self {
            Self::Rejected(rejection) => Some(rejection.meaning),
            Self::Limited { .. } | Self::Uncertain { .. } | Self::Superseded => None,
        }
    }

    /// The word in metrics.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Rejected(rejection) => rejection.meaning.as_str(),
            Self::Limited { .. } => "limited",
            Self::Uncertain { .. } => "uncertain",
            Self::Superseded => "superseded",
        }
    }
}
