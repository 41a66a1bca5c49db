//! Request errors, classified by the outcome as far as known.

use crate::core::errors::RejectionKind;
use crate::core::headers::Refusal;
use crate::core::payload_limits::ValidationError;
use std::fmt;
use std::time::Duration;

/// Request error, classified by the outcome as far as known. Holds neither a token nor an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RestError {
    /// The request was certainly not executed, except with [`RejectionKind::SentAndDeleted`].
    Rejected(Rejection),
    /// The request was certainly not executed: a retry is possible after this time.
    Limited {
        /// Time from now.
        retry_after: Duration,
    },
    /// The outcome is unknown: the response was lost or could not be read.
    Uncertain {
        /// Reason, for the log.
        why: String,
    },
    /// The request was certainly not executed: a newer change of the same message made it pointless.
    Superseded,
}

/// Reason why a request was certainly not executed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejection {
    /// Route name of the request.
    pub route: &'static str,
    /// HTTP status; `None` if the request was not sent.
    pub status: Option<u16>,
    /// Discord's error code.
    pub code: Option<u32>,
    /// Kind of the refusal.
    pub kind: RejectionKind,
    /// Reason, for the log.
    pub why: String,
}

impl Rejection {
    /// True if the same request may succeed later.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        self.kind.is_retryable()
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

impl fmt::Display for RestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rejected(rejection) => rejection.fmt(f),
            Self::Limited { retry_after } => {
                write!(f, "rate limited for {} ms", retry_after.as_millis())
            }
            Self::Uncertain { why } => write!(f, "outcome unknown: {why}"),
            Self::Superseded => f.write_str("superseded by a newer change of the same message"),
        }
    }
}

impl std::error::Error for RestError {}

impl RestError {
    /// Creates the error of a request that exceeds Discord's limits and was not sent. A retry is pointless.
    pub(crate) fn invalid(route: &'static str, refused: &ValidationError) -> Self {
        Self::not_sent(route, RejectionKind::Invalid, refused.to_string())
    }

    pub(crate) const fn not_sent(route: &'static str, kind: RejectionKind, why: String) -> Self {
        Self::Rejected(Rejection { route, status: None, code: None, kind, why })
    }

    pub(crate) fn refused(route: &'static str, status: u16, refusal: Refusal, kind: RejectionKind) -> Self {
        let Refusal { code, why } = refusal;
        let why = if why.is_empty() { "no reason given".to_owned() } else { why };
        Self::Rejected(Rejection { route, status: Some(status), code, kind, why })
    }

    /// Returns the kind of a rejection, or `None` for the other errors.
    #[must_use]
    pub const fn rejection_kind(&self) -> Option<RejectionKind> {
        match self {
            Self::Rejected(rejection) => Some(rejection.kind),
            Self::Limited { .. } | Self::Uncertain { .. } | Self::Superseded => None,
        }
    }

    /// Name in metrics.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Rejected(rejection) => rejection.kind.as_str(),
            Self::Limited { .. } => "limited",
            Self::Uncertain { .. } => "uncertain",
            Self::Superseded => "superseded",
        }
    }
}
