//! Every answer that the gateway itself gives, in one enum. (core)
//!
//! Each is a problem (RFC 9457) that says what, where and what to do. Not here: the limit
//! headers that go with it (`report`), how it is written (`reply`), how clients of gRPC are told
//! (`grpc`).

use http::Method;
use serde_json::Value;
use weir_common::problem::{MEDIA_TYPE, Problem};
use weir_common::token::Flaw;

use crate::limit::report::RateLimitReport;
use crate::request::batch::Miscount;
use crate::request::target::Malformed;
use crate::response::reply::Reply;

/// Why a request gets an answer of our own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// A target, host or framing that two parsers could read differently.
    Malformed(Malformed),
    /// A request that is not HTTP: what Pingora's parser gives up on.
    NotHttp,
    /// A head larger than allowed.
    HeadTooLarge,
    /// A head that did not come in time.
    HeadTimeout,
    /// `CONNECT`, which nothing here serves.
    Connect,
    /// A host that no plane has.
    UnknownHost,
    /// A path that no route has.
    UnknownPath,
    /// A path whose routes do not take the method.
    MethodNotAllowed(Vec<Method>),
    /// A request without a token where one is needed, or with one that is not valid.
    Unauthenticated {
        /// What is wrong with the token, where there is one.
        flaw: Option<Flaw>,
    },
    /// A request with more than one `Authorization`.
    TwoTokens,
    /// A valid token of another workspace or organisation.
    ForeignToken(Foreign),
    /// A token that cannot be verified now.
    IdentityUnavailable,
    /// A tenant that the directory cannot be asked about now.
    DirectoryUnavailable,
    /// A request that cannot be decided: the process that has the counters is gone.
    LimitsUnavailable,
    /// An allowance that is used up.
    RateLimited {
        /// Which limit.
        resource: String,
        /// What was told in the headers too.
        report: RateLimitReport,
    },
    /// A batch body that is no array, or too long a one.
    Batch {
        /// What is wrong.
        miscount: Miscount,
        /// How many items a batch may have.
        items_max: u64,
    },
    /// A batch body in an encoding that cannot be counted.
    EncodedBatch,
    /// A batch body with too many bytes.
    BodyTooLarge {
        /// How many it may have.
        bytes_max: u64,
    },
    /// A body that did not come in time.
    BodyTimeout,
    /// No room to hold another batch body back.
    Busy,
    /// No server of the upstream is healthy.
    NoServer {
        /// In how many seconds the first may be.
        retry_after: u64,
    },
    /// A server that did not answer.
    BadGateway(UpstreamFailure),
    /// A server did not answer in time.
    GatewayTimeout,
    /// A fault of our own.
    Internal,
}

/// What of a request its valid token does not reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Foreign {
    /// Whatever it is: the token names neither a workspace nor an organisation.
    Everything,
    /// The workspace.
    Workspace,
    /// The organisation.
    Organisation,
    /// The instance, or the workspace that it belongs to.
    Instance,
}

impl Foreign {
    /// The word that the access log knows it by.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Everything => "no_tenant",
            Self::Workspace => "other_workspace",
            Self::Organisation => "other_organisation",
            Self::Instance => "other_instance",
        }
    }
}

/// Why there is no answer of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpstreamFailure {
    /// None let us connect, and none has seen the request.
    Unreachable,
    /// The connection, or the stream of HTTP/2, ended before the answer.
    BrokenOff,
    /// What came was no HTTP.
    Invalid,
}

impl Refusal {
    /// The word that metrics and logs know it by.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        self.words().1
    }

    /// The HTTP status.
    #[must_use]
    pub fn status(&self) -> u16 {
        self.words().0
    }

    /// Status, kind and title.
    fn words(&self) -> (u16, &'static str, &'static str) {
        match self {
            Self::Malformed(_) => (400, "malformed-request", "Malformed request"),
            Self::NotHttp => (400, "not-http", "Not a valid HTTP request"),
            Self::HeadTooLarge => (431, "head-too-large", "Request head too large"),
            Self::HeadTimeout => (408, "head-timeout", "Request head too slow"),
            Self::Connect => (405, "connect", "CONNECT is not served here"),
            Self::UnknownHost => (404, "unknown-host", "Unknown host"),
            Self::UnknownPath => (404, "unknown-path", "Unknown path"),
            Self::MethodNotAllowed(_) => (405, "method-not-allowed", "Method not allowed"),
            Self::Unauthenticated { .. } => (401, "unauthenticated", "A token is needed"),
            Self::TwoTokens => (400, "two-tokens", "More than one token"),
            Self::ForeignToken(_) => (403, "foreign-token", "The token is another tenant's"),
            Self::IdentityUnavailable => {
                (503, "identity-unavailable", "Tokens cannot be verified now")
            }
            Self::DirectoryUnavailable => {
                (503, "directory-unavailable", "Tenants cannot be looked up now")
            }
            Self::LimitsUnavailable => (503, "limits-unavailable", "Limits cannot be asked now"),
            Self::RateLimited { .. } => (429, "rate-limited", "Too many requests"),
            Self::Batch { miscount: Miscount::TooMany, .. } => {
                (422, "too-many-items", "Too many items in a batch")
            }
            Self::Batch { miscount: Miscount::NotAnArray(_), .. } => {
                (400, "not-an-array", "The batch is not a JSON array")
            }
            Self::EncodedBatch => (415, "encoded-batch", "The batch is in an encoding"),
            Self::BodyTooLarge { .. } => (413, "body-too-large", "Request body too large"),
            Self::BodyTimeout => (408, "body-timeout", "Request body too slow"),
            Self::Busy => (503, "busy", "Too busy to hold another batch"),
            Self::NoServer { .. } => (503, "no-server", "No server is available"),
            Self::BadGateway(_) => (502, "bad-gateway", "No valid answer from the server"),
            Self::GatewayTimeout => (504, "gateway-timeout", "The server did not answer in time"),
            Self::Internal => (500, "internal", "Internal error"),
        }
    }

    /// What this client is told, beside the title that all are.
    fn detail(&self) -> String {
        match self {
            Self::Malformed(why) => why.to_string(),
            Self::NotHttp => "The request could not be parsed.".to_owned(),
            Self::HeadTooLarge => "Send fewer or shorter headers.".to_owned(),
            Self::HeadTimeout => "The request head did not arrive in time.".to_owned(),
            Self::Connect => "Send the request itself.".to_owned(),
            Self::UnknownHost => "Nothing is served at this host.".to_owned(),
            Self::UnknownPath => "Nothing is served at this path.".to_owned(),
            Self::MethodNotAllowed(methods) => format!("This path takes {}.", list(methods)),
            Self::Unauthenticated { flaw: None } => {
                "Send a token, as Authorization: Bearer.".to_owned()
            }
            Self::Unauthenticated { flaw: Some(flaw) } => format!("{}.", flaw.message()),
            Self::TwoTokens => "Send Authorization once.".to_owned(),
            Self::ForeignToken(_) => "The token does not reach what the path names.".to_owned(),
            Self::IdentityUnavailable | Self::DirectoryUnavailable => {
                "Try again shortly.".to_owned()
            }
            Self::LimitsUnavailable => "Try again, on a new connection.".to_owned(),
            Self::RateLimited { resource, report } => format!(
                "The allowance `{resource}` of {} is used up. Try again in {} s.",
                report.limit,
                report.retry_after.unwrap_or(1),
            ),
            Self::Batch { miscount: Miscount::TooMany, items_max } => {
                format!("A batch has at most {items_max} items. Send the rest in another.")
            }
            Self::Batch { miscount: Miscount::NotAnArray(why), .. } => {
                format!("The body must be one JSON array: {why}.")
            }
            Self::EncodedBatch => "Send the batch without Content-Encoding.".to_owned(),
            Self::BodyTooLarge { bytes_max } => {
                format!("The body may have {bytes_max} bytes at most.")
            }
            Self::BodyTimeout => "The body did not arrive in time.".to_owned(),
            Self::Busy | Self::NoServer { .. } => "Try again shortly.".to_owned(),
            Self::BadGateway(UpstreamFailure::Unreachable) => {
                "The server could not be reached: the request was not carried out.".to_owned()
            }
            Self::BadGateway(UpstreamFailure::BrokenOff) => {
                "The server closed the connection before it answered. The request may have been \
                 carried out."
                    .to_owned()
            }
            Self::BadGateway(UpstreamFailure::Invalid) => {
                "The server's answer was not HTTP. The request may have been carried out."
                    .to_owned()
            }
            Self::GatewayTimeout => "The request may have been carried out.".to_owned(),
            Self::Internal => "The fault is ours.".to_owned(),
        }
    }

    /// The body.
    #[must_use]
    pub fn problem(&self) -> Problem {
        let (status, kind, title) = self.words();
        let members = match self {
            Self::RateLimited { resource, report } => vec![
                ("resource", Value::from(resource.as_str())),
                ("limit", Value::from(report.limit)),
                ("retry_after", Value::from(report.retry_after.unwrap_or(1))),
            ],
            Self::Batch { items_max, .. } => vec![("items_max", Value::from(*items_max))],
            Self::BodyTooLarge { bytes_max } => vec![("bytes_max", Value::from(*bytes_max))],
            _ => Vec::new(),
        };
        Problem { status, kind, title, detail: self.detail(), members }
    }

    /// The answer that says so, to all but clients of gRPC.
    #[must_use]
    pub fn reply(&self) -> Reply {
        let problem = self.problem();
        let mut reply = Reply::new(problem.status, problem.body());
        reply.push("Content-Type", MEDIA_TYPE);
        reply.push("Cache-Control", "no-store");
        if let Some((name, value)) = self.header() {
            reply.push(name, &value);
        }
        reply
    }

    /// After how many seconds the same request may pass, where time is all that it lacks.
    #[must_use]
    pub fn retry_after(&self) -> Option<u64> {
        match self {
            Self::RateLimited { report, .. } => report.retry_after,
            Self::NoServer { retry_after } => Some(*retry_after),
            Self::Busy
            | Self::LimitsUnavailable
            | Self::IdentityUnavailable
            | Self::DirectoryUnavailable => Some(1),
            _ => None,
        }
    }

    /// The word for what is wrong with the token, where that is the reason.
    #[must_use]
    pub fn token_error(&self) -> Option<&'static str> {
        match self {
            Self::Unauthenticated { flaw } => Some(flaw.map_or("missing", Flaw::word)),
            Self::ForeignToken(foreign) => Some(foreign.word()),
            _ => None,
        }
    }

    /// A header that belongs to this answer alone.
    #[must_use]
    pub fn header(&self) -> Option<(&'static str, String)> {
        match self {
            Self::MethodNotAllowed(methods) => Some(("Allow", list(methods))),
            Self::Connect => {
                Some(("Allow", "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS".to_owned()))
            }
            Self::EncodedBatch => Some(("Accept-Encoding", "identity".to_owned())),
            Self::Busy
            | Self::NoServer { .. }
            | Self::LimitsUnavailable
            | Self::IdentityUnavailable
            | Self::DirectoryUnavailable => {
                Some(("Retry-After", self.retry_after().unwrap_or(1).to_string()))
            }
            Self::Unauthenticated { flaw: None } => challenge("Bearer"),
            Self::Unauthenticated { flaw: Some(flaw) } => challenge(&format!(
                "Bearer error=\"invalid_token\", error_description=\"{}\"",
                flaw.message()
            )),
            Self::TwoTokens => challenge("Bearer error=\"invalid_request\""),
            Self::ForeignToken(_) => challenge("Bearer error=\"insufficient_scope\""),
            _ => None,
        }
    }

    /// Whether the connection must close after it: what follows on it cannot be trusted.
    #[must_use]
    pub fn closes(&self) -> bool {
        matches!(
            self,
            Self::Malformed(Malformed::Framing)
                | Self::Connect
                | Self::HeadTooLarge
                | Self::BodyTimeout
        )
    }
}

/// How a client proves who it is (RFC 6750, 3).
fn challenge(value: &str) -> Option<(&'static str, String)> {
    Some(("WWW-Authenticate", value.to_owned()))
}

fn list(methods: &[Method]) -> String {
    methods.iter().map(Method::as_str).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_limited_problem_has_the_limit_its_value_and_the_wait() {
        let report =
            RateLimitReport { binding: 0, limit: 60, remaining: 0, reset: 0, retry_after: Some(7) };
        let refusal = Refusal::RateLimited { resource: "workspace".to_owned(), report };
        let problem: Value = serde_json::from_slice(&refusal.problem().body()).unwrap();
        assert_eq!(problem["status"], 429);
        assert_eq!(problem["resource"], "workspace");
        assert_eq!(problem["limit"], 60);
        assert_eq!(problem["retry_after"], 7);
    }

    #[test]
    fn a_challenge_has_what_rfc_6750_defines_and_no_more() {
        for (refusal, status, value) in [
            (Refusal::Unauthenticated { flaw: None }, 401, "Bearer"),
            (
                Refusal::Unauthenticated { flaw: Some(Flaw::Expired) },
                401,
                "Bearer error=\"invalid_token\", error_description=\"The token has expired\"",
            ),
            (
                Refusal::Unauthenticated { flaw: Some(Flaw::Signature) },
                401,
                "Bearer error=\"invalid_token\", error_description=\"The token is not valid\"",
            ),
            (Refusal::TwoTokens, 400, "Bearer error=\"invalid_request\""),
            (Refusal::ForeignToken(Foreign::Workspace), 403, "Bearer error=\"insufficient_scope\""),
        ] {
            assert_eq!(refusal.status(), status);
            assert_eq!(refusal.header(), Some(("WWW-Authenticate", value.to_owned())));
        }
    }

    #[test]
    fn a_405_lists_the_methods_that_are_accepted() {
        let refusal = Refusal::MethodNotAllowed(vec![Method::GET, Method::HEAD]);
        assert_eq!(refusal.header(), Some(("Allow", "GET, HEAD".to_owned())));
    }
}
