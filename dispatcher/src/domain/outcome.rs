//! The outcome of an attempt, and whether the receiver or the dispatcher failed. (core)
//!
//! Not here: when the delivery is retried (`retry`), what the outcome means for the webhook
//! (`health`).

use std::fmt;

/// The outcome of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A 2xx before the deadline.
    Delivered {
        /// 200 to 299.
        status: u16,
    },
    /// A failure of the receiver: counts in the schedule and in health.
    Failed(Failure),
    /// A fault of the dispatcher: retried soon, counts nowhere.
    Internal(Fault),
}

/// How a receiver failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// A status that is not 2xx; redirects are among them.
    Status(u16),
    /// The host name does not resolve, or resolves to no allowed address.
    Dns,
    /// The connection was refused, or no route exists.
    Refused,
    /// The connection broke, or the response was not HTTP.
    Connection,
    /// The TLS handshake failed, or the certificate is invalid.
    Tls,
    /// No response headers within the deadline.
    Timeout,
    /// The URL, or the address in it, is not allowed.
    BlockedAddress,
}

/// A fault of the dispatcher or its machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Out of file descriptors, memory or ports, before the request was sent.
    Resources,
    /// The name lookup got no reply: the resolver is down, or cannot reach the name's servers.
    Resolver,
    /// The operator's proxy cannot be used.
    Proxy,
    /// A bug in this program.
    Broken,
    /// The receiver's reply is unknown: the process or the machine was suspended past the deadline,
    /// or had no memory to send the request or to read the reply.
    Stalled,
    /// A reused connection closed before the first byte of a response: the receiver may have
    /// closed it while the request was sent.
    StaleConnection,
}

impl Fault {
    /// Every fault.
    pub const ALL: [Self; 6] = [
        Self::Resources,
        Self::Resolver,
        Self::Proxy,
        Self::Broken,
        Self::Stalled,
        Self::StaleConnection,
    ];
}

/// The name in the store, the API and logs.
impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Delivered { status } => write!(f, "status_{status}"),
            Self::Failed(failure) => failure.fmt(f),
            Self::Internal(_) => f.write_str(self.class()),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status(status) => write!(f, "status_{status}"),
            other => f.write_str(other.class()),
        }
    }
}

impl Failure {
    fn class(self) -> &'static str {
        match self {
            Self::Status(status) => match status / 100 {
                1 => "status_1xx",
                3 => "status_3xx",
                4 => "status_4xx",
                5 => "status_5xx",
                _ => "status_other",
            },
            Self::Dns => "dns",
            Self::Refused => "refused",
            Self::Connection => "connection",
            Self::Tls => "tls",
            Self::Timeout => "timeout",
            Self::BlockedAddress => "blocked_address",
        }
    }
}

/// A class of outcomes for which an owner may look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutcomeClass(&'static str);

impl OutcomeClass {
    /// All classes; faults of the dispatcher are its operator's concern.
    pub const ALL: [Self; 12] = [
        Self("status_1xx"),
        Self("status_2xx"),
        Self("status_3xx"),
        Self("status_4xx"),
        Self("status_5xx"),
        Self("status_other"),
        Self("timeout"),
        Self("refused"),
        Self("connection"),
        Self("tls"),
        Self("dns"),
        Self("blocked_address"),
    ];

    /// The name in the store and the API.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.0
    }

    /// Parses the name of a class.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|class| class.0 == name)
    }
}

impl Outcome {
    /// The name with only the first digit of a status: the label in metrics, where receivers must
    /// not add time series.
    #[must_use]
    pub fn class(&self) -> &'static str {
        match self {
            Self::Delivered { .. } => "status_2xx",
            Self::Failed(failure) => failure.class(),
            Self::Internal(Fault::Resources) => "internal_resources",
            Self::Internal(Fault::Resolver) => "internal_resolver",
            Self::Internal(Fault::Proxy) => "internal_proxy",
            Self::Internal(Fault::Broken) => "internal_broken",
            Self::Internal(Fault::Stalled) => "internal_stalled",
            Self::Internal(Fault::StaleConnection) => "internal_stale_connection",
        }
    }

    /// Parses the name of an outcome.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Self> {
        let status = name.strip_prefix("status_").and_then(|digits| digits.parse().ok());
        Some(match (name, status) {
            (_, Some(status @ 200..=299)) => Self::Delivered { status },
            (_, Some(status)) => Self::Failed(Failure::Status(status)),
            ("dns", _) => Self::Failed(Failure::Dns),
            ("refused", _) => Self::Failed(Failure::Refused),
            ("connection", _) => Self::Failed(Failure::Connection),
            ("tls", _) => Self::Failed(Failure::Tls),
            ("timeout", _) => Self::Failed(Failure::Timeout),
            ("blocked_address", _) => Self::Failed(Failure::BlockedAddress),
            ("internal_resources", _) => Self::Internal(Fault::Resources),
            ("internal_resolver", _) => Self::Internal(Fault::Resolver),
            ("internal_proxy", _) => Self::Internal(Fault::Proxy),
            ("internal_broken", _) => Self::Internal(Fault::Broken),
            ("internal_stalled", _) => Self::Internal(Fault::Stalled),
            ("internal_stale_connection", _) => Self::Internal(Fault::StaleConnection),
            _ => return None,
        })
    }

    /// The outcome of a response with this status.
    #[must_use]
    pub fn of_status(status: u16) -> Self {
        if (200..300).contains(&status) {
            Self::Delivered { status }
        } else {
            Self::Failed(Failure::Status(status))
        }
    }

    /// The outcome in words, to follow `Last attempt:` or `failed:`.
    #[must_use]
    pub fn in_words(&self) -> String {
        let failure = match self {
            Self::Delivered { status } => return format!("answered {status}"),
            Self::Internal(Fault::Proxy) => {
                return "not made: the platform's proxy cannot be used".to_owned();
            }
            Self::Internal(_) => return "not made, for a fault on our side".to_owned(),
            Self::Failed(failure) => failure,
        };
        match failure {
            Failure::Status(status @ (301..=303 | 307 | 308)) => {
                return format!("answered {status}, a redirect, which is not followed");
            }
            Failure::Status(status) => return format!("answered {status}, which is not 2xx"),
            Failure::Dns => "the host's name resolves to no public address",
            Failure::Refused => "the connection was refused",
            Failure::Connection => "the connection broke, or the answer was no HTTP",
            Failure::Tls => "no TLS handshake, or an invalid certificate",
            Failure::Timeout => "no answer in time",
            Failure::BlockedAddress => "the platform does not permit calls to this host",
        }
        .to_owned()
    }

    /// Whether the attempt certainly sent no request, for a fault of the dispatcher's.
    #[must_use]
    pub fn is_unsent(&self) -> bool {
        match self {
            Self::Internal(fault) => match fault {
                Fault::Resources | Fault::Resolver | Fault::Proxy => true,
                Fault::Broken | Fault::Stalled | Fault::StaleConnection => false,
            },
            Self::Delivered { .. } | Self::Failed(_) => false,
        }
    }

    /// The status, if the receiver answered.
    #[must_use]
    pub fn status(&self) -> Option<u16> {
        match self {
            Self::Delivered { status } | Self::Failed(Failure::Status(status)) => Some(*status),
            Self::Failed(_) | Self::Internal(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_outcome_is_parsed_back_from_its_name() {
        let failures = [
            Failure::Status(302),
            Failure::Status(503),
            Failure::Dns,
            Failure::Refused,
            Failure::Connection,
            Failure::Tls,
            Failure::Timeout,
            Failure::BlockedAddress,
        ];
        let faults = [
            Fault::Resources,
            Fault::Resolver,
            Fault::Proxy,
            Fault::Broken,
            Fault::Stalled,
            Fault::StaleConnection,
        ];
        let all = failures.map(Outcome::Failed).into_iter();
        let all = all.chain(faults.map(Outcome::Internal)).chain([Outcome::of_status(204)]);
        for outcome in all {
            assert_eq!(Outcome::of_name(&outcome.to_string()), Some(outcome.clone()));
            let class = OutcomeClass::of_name(outcome.class());
            assert_eq!(class.is_none(), matches!(outcome, Outcome::Internal(_)), "{outcome}");
        }
        assert_eq!(Outcome::of_name("unknown"), None);
    }

    #[test]
    fn a_blocked_address_may_be_public_for_a_proxy_refuses_hosts_as_well() {
        let words = Outcome::Failed(Failure::BlockedAddress).in_words();
        assert_eq!(words, "the platform does not permit calls to this host");
    }

    #[test]
    fn nothing_but_a_2xx_is_a_success() {
        for status in [100, 199, 300, 301, 304, 400, 410, 500] {
            assert_eq!(Outcome::of_status(status), Outcome::Failed(Failure::Status(status)));
        }
        assert_eq!(Outcome::of_status(299), Outcome::Delivered { status: 299 });
    }
}
