//! The body of a response that refuses a request: `application/problem+json` (RFC 9457).

use serde_json::Value;

use crate::log::line::Line;

/// The media type of [`Problem::body`].
pub const MEDIA_TYPE: &str = "application/problem+json";

/// The prefix of a problem's type; its kind follows.
const TYPES: &str = "urn:weir:problem:";

/// What went wrong with one request, for the client that sent it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The HTTP status.
    pub status: u16,
    /// The last part of the type URI, in kebab-case: programs compare it.
    pub kind: &'static str,
    /// A short summary that is the same for every problem of this kind.
    pub title: &'static str,
    /// The details of this one, and what to do about it.
    pub detail: String,
    /// Extension members, for programs.
    pub members: Vec<(&'static str, Value)>,
}

impl Problem {
    /// The JSON text.
    #[must_use]
    pub fn body(&self) -> Vec<u8> {
        let mut object = Line::new();
        object.parts("type", &[TYPES, self.kind]);
        object.text("title", self.title);
        object.number("status", self.status.into());
        object.text("detail", &self.detail);
        for (name, value) in &self.members {
            match value {
                Value::String(text) => object.text(name, text),
                value => match value.as_u64() {
                    Some(number) => object.number(name, number),
                    None => object.raw(name, &value.to_string()),
                },
            }
        }
        object.object()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_has_the_members_of_rfc_9457_and_its_own() {
        let problem = Problem {
            status: 429,
            kind: "rate-limited",
            title: "Too many requests",
            detail: "Come back later.".to_owned(),
            members: vec![("retry_after", Value::from(7))],
        };
        let body: Value = serde_json::from_slice(&problem.body()).expect("it is JSON");
        assert_eq!(body["type"], "urn:weir:problem:rate-limited");
        assert_eq!(body["title"], "Too many requests");
        assert_eq!(body["status"], 429);
        assert_eq!(body["detail"], "Come back later.");
        assert_eq!(body["retry_after"], 7);
    }
}
