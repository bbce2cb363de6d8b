//! A client's view of a response, with the assertions that many tests share.

use serde_json::Value;

use crate::http1::Head;

/// One whole response, with the interim responses before it.
#[derive(Clone, Debug, Default)]
pub struct Response {
    /// The status code.
    pub status: u16,
    /// The status line and the fields.
    pub head: Head,
    /// The body, without its framing.
    pub body: Vec<u8>,
    /// The 1xx heads that came first.
    pub interim: Vec<Head>,
    /// The trailers of an HTTP/2 response.
    pub trailers: Head,
}

/// The `X-RateLimit-*` values of a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allowance {
    /// The limit's name in the configuration.
    pub resource: String,
    /// The allowance.
    pub limit: u64,
    /// The remaining part of it.
    pub remaining: u64,
    /// The Unix second at which the whole allowance is available again.
    pub reset: u64,
}

/// The names of the fields in [`Allowance`].
pub const ALLOWANCE_FIELDS: [&str; 4] =
    ["X-RateLimit-Resource", "X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset"];

impl Response {
    /// The first value of a field.
    pub fn field(&self, name: &str) -> Option<&str> {
        self.head.field(name)
    }

    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The body as JSON.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("no JSON ({error}) in {:?}", self.text()))
    }

    /// Checks the status.
    #[track_caller]
    pub fn expect(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{}\n{}", self.head_text(), self.text());
        self
    }

    /// Checks that this is a refusal of the gateway's own, in the form of RFC 9457.
    #[track_caller]
    pub fn expect_problem(self, status: u16) -> Value {
        let answer = self.expect(status);
        let kind = answer.field("content-type").unwrap_or_default().to_owned();
        assert!(kind.starts_with("application/problem+json"), "{kind:?}: {}", answer.text());
        let problem = answer.json();
        for member in ["type", "title", "detail"] {
            assert!(problem[member].is_string(), "no {member} in {problem}");
        }
        assert_eq!(problem["status"], status, "{problem}");
        assert_eq!(answer.head.field("server"), None, "a refusal names no server");
        if status == 429 {
            answer.check_too_many(&problem);
        }
        problem
    }

    /// The values of the rate limit headers; each must occur exactly once.
    #[track_caller]
    pub fn allowance(&self) -> Allowance {
        let [resource, limit, remaining, reset] = ALLOWANCE_FIELDS.map(|name| {
            let values = self.head.all(name);
            let [value] = values.as_slice() else {
                panic!("expected {name} once, in\n{}", self.head_text())
            };
            (*value).to_owned()
        });
        let [limit, remaining, reset] = [limit, remaining, reset].map(|number| {
            number.parse().unwrap_or_else(|_| panic!("{number:?} is not a whole number"))
        });
        Allowance { resource, limit, remaining, reset }
    }

    /// Checks that the response has no rate limit header.
    #[track_caller]
    pub fn assert_no_allowance(&self) {
        let is_limit_header = |(name, _): &&(String, String)| {
            let name = name.to_ascii_lowercase();
            name.starts_with("x-ratelimit") || name == "retry-after"
        };
        let found = self.head.fields.iter().find(is_limit_header);
        assert_eq!(found, None, "no limit governs this call\n{}", self.head_text());
    }

    /// The seconds of `Retry-After`.
    #[track_caller]
    pub fn retry_after(&self) -> u64 {
        let text = self.field("retry-after").unwrap_or_else(|| panic!("{}", self.head_text()));
        let seconds = text.parse().unwrap_or_else(|_| panic!("{text:?} is not whole seconds"));
        assert!(seconds >= 1, "Retry-After must be at least 1");
        seconds
    }

    /// The head as text, for messages.
    pub fn head_text(&self) -> String {
        String::from_utf8_lossy(&self.head.raw).into_owned()
    }

    #[track_caller]
    fn check_too_many(&self, problem: &Value) {
        let allowance = self.allowance();
        assert_eq!(allowance.remaining, 0, "refused, so nothing is left");
        assert_eq!(problem["resource"], allowance.resource.as_str(), "{problem}");
        assert_eq!(problem["limit"], allowance.limit, "{problem}");
        assert_eq!(problem["retry_after"], self.retry_after(), "{problem}");
    }
}
