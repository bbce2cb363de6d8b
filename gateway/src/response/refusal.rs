//! Every refusal that the gateway itself sends, in one enum. (core)
//!
//! Each is a problem (RFC 9457) that states the error and what the client can do. Not here: the
//! limit headers (`limit::report`), how a response is written (`reply`), refusals for gRPC clients
//! (`grpc`).

use std::sync::Arc;

use http::Method;
use serde_json::Value;
use weir_common::problem::{MEDIA_TYPE, Problem};
use weir_common::token::Flaw;

use crate::request::batch::Miscount;
use crate::request::target::Malformed;
use crate::response::reply::Reply;

/// The reason of a refusal by a limit.
pub const RATE_LIMITED: &str = "rate-limited";

/// Why the gateway refuses a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// A target, host or framing that two parsers could read differently.
    Malformed(Malformed),
    /// What is not HTTP/1.
    NotHttp,
    /// A head larger than allowed.
    HeadTooLarge,
    /// A head that did not arrive in time.
    HeadTimeout,
    /// `CONNECT`, which the gateway does not support.
    Connect,
    /// A host that no plane has.
    UnknownHost,
    /// A path that no route has.
    UnknownPath,
    /// A path whose routes do not accept the method. The methods are those that they accept.
    MethodNotAllowed(Vec<Method>),
    /// A required token that is missing or invalid.
    Unauthenticated {
        /// What is wrong with the token; `None` if there is no token.
        flaw: Option<Flaw>,
    },
    /// A request with more than one `Authorization`.
    TwoTokens,
    /// A valid token that does not reach a tenant of the request.
    ForeignToken(Foreign),
    /// A token that cannot be verified now.
    IdentityUnavailable,
    /// A tenant that cannot be looked up in the directory now.
    DirectoryUnavailable,
    /// Limits that cannot be checked: the shared store is away, or the process that owned the
    /// counters is gone.
    LimitsUnavailable,
    /// A limit whose quota is used up.
    RateLimited {
        /// Which limit, and its allowance; none where it is not shown.
        resource: Option<(Arc<str>, u32)>,
        /// Seconds until the request would be admitted.
        retry_after: u64,
    },
    /// A request that costs more than a whole allowance: waiting does not help.
    TooCostly {
        /// Which limit, and its allowance; none where it is not shown.
        resource: Option<(Arc<str>, u32)>,
    },
    /// A batch body that is not an array, or has too many items.
    Batch {
        /// What is wrong.
        miscount: Miscount,
        /// Most items that a batch may have.
        items_max: u64,
    },
    /// A batch body with a content coding or charset whose items cannot be counted.
    EncodedBatch,
    /// A batch body with too many bytes.
    BodyTooLarge {
        /// Most bytes that it may have.
        bytes_max: u64,
    },
    /// A body that did not arrive in time.
    BodyTimeout,
    /// No memory left to buffer another batch body.
    Busy,
    /// No server of the upstream is healthy.
    NoServer {
        /// Seconds until a server may be healthy again.
        retry_after: u64,
    },
    /// A server without a valid response.
    BadGateway(UpstreamFailure),
    /// A server that did not respond in time.
    GatewayTimeout,
    /// An internal error of the gateway.
    Internal,
}

/// Which tenant of a request its valid token does not reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Foreign {
    /// Any tenant: the token names neither a workspace nor an organisation.
    Everything,
    /// The workspace.
    Workspace,
    /// The organisation.
    Organisation,
    /// The instance, or the workspace that it belongs to.
    Instance,
}

impl Foreign {
    /// Its name in the access log.
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

/// Why there is no valid response from a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpstreamFailure {
    /// No connection could be opened, so no server has seen the request.
    Unreachable,
    /// The connection or the HTTP/2 stream ended before the response.
    BrokenOff,
    /// The response was not valid HTTP.
    Invalid,
}

/// Every [`Refusal::reason`].
pub const REASONS: [&str; 26] = [
    "malformed-request",
    "not-http",
    "head-too-large",
    "head-timeout",
    "connect",
    "unknown-host",
    "unknown-path",
    "method-not-allowed",
    "unauthenticated",
    "two-tokens",
    "foreign-token",
    "identity-unavailable",
    "directory-unavailable",
    "limits-unavailable",
    RATE_LIMITED,
    "too-costly",
    "too-many-items",
    "not-an-array",
    "encoded-batch",
    "body-too-large",
    "body-timeout",
    "busy",
    "no-server",
    "bad-gateway",
    "gateway-timeout",
    "internal",
];

impl Refusal {
    /// Its name in metrics and logs.
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
            Self::LimitsUnavailable => (503, "limits-unavailable", "Limits cannot be checked now"),
            Self::RateLimited { .. } => (429, RATE_LIMITED, "Too many requests"),
            Self::TooCostly { .. } => (422, "too-costly", "The request costs too much"),
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

    /// The problem's `detail`: specific to this request, unlike the title.
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
            Self::LimitsUnavailable => {
                "Try again shortly; if that fails, on a new connection.".to_owned()
            }
            // Joined, not formatted: this is the refusal that a flood gets.
            Self::RateLimited { resource, retry_after } => {
                let (mut seconds, mut allowance) = (itoa::Buffer::new(), itoa::Buffer::new());
                let seconds = seconds.format(*retry_after);
                let [before, name, of, limit, after] = match resource {
                    Some((name, limit)) => {
                        let limit = allowance.format(*limit);
                        ["The allowance `", &**name, "` of ", limit, " is used up. "]
                    }
                    None => [""; 5],
                };
                [before, name, of, limit, after, "Try again in ", seconds, " s."].concat()
            }
            Self::TooCostly { resource: Some((name, limit)) } => {
                format!("It costs more than the whole allowance `{name}` of {limit}.")
            }
            Self::TooCostly { resource: None } => {
                "It costs more than a whole allowance.".to_owned()
            }
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

    /// The body of the response.
    #[must_use]
    pub fn problem(&self) -> Problem {
        let (status, kind, title) = self.words();
        let members = match self {
            Self::RateLimited { resource: Some((name, limit)), retry_after } => vec![
                ("resource", Value::from(&**name)),
                ("limit", Value::from(*limit)),
                ("retry_after", Value::from(*retry_after)),
            ],
            Self::RateLimited { resource: None, retry_after } => {
                vec![("retry_after", Value::from(*retry_after))]
            }
            Self::TooCostly { resource: Some((name, limit)) } => {
                vec![("resource", Value::from(&**name)), ("limit", Value::from(*limit))]
            }
            Self::Batch { items_max, .. } => vec![("items_max", Value::from(*items_max))],
            Self::BodyTooLarge { bytes_max } => vec![("bytes_max", Value::from(*bytes_max))],
            _ => Vec::new(),
        };
        Problem { status, kind, title, detail: self.detail(), members }
    }

    /// The response, for all clients but those of gRPC.
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

    /// Seconds after which the same request may succeed, if waiting alone can help.
    #[must_use]
    pub fn retry_after(&self) -> Option<u64> {
        match self {
            Self::RateLimited { retry_after, .. } | Self::NoServer { retry_after } => {
                Some(*retry_after)
            }
            Self::Busy
            | Self::LimitsUnavailable
            | Self::IdentityUnavailable
            | Self::DirectoryUnavailable => Some(1),
            _ => None,
        }
    }

    /// The name of the token's error, if the token is the reason.
    #[must_use]
    pub fn token_error(&self) -> Option<&'static str> {
        match self {
            Self::Unauthenticated { flaw } => Some(flaw.map_or("missing", Flaw::word)),
            Self::ForeignToken(foreign) => Some(foreign.word()),
            _ => None,
        }
    }

    /// The header that only this kind of refusal has.
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

    /// Whether the connection must close after it: later bytes on it may be misread as a request.
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

/// The `WWW-Authenticate` challenge (RFC 6750, 3).
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
        let resource = Some(("workspace".into(), 60));
        let refusal = Refusal::RateLimited { resource, retry_after: 7 };
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
