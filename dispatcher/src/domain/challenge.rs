//! A challenge: whether the receiver at a URL expects deliveries. (core)
//!
//! The receiver repeats a random value of the request as a member of its answer. An answer that
//! repeats the request as a whole, as test servers do, has the value elsewhere.
//!
//! Not here: who sends it (`api::url_checks`), its envelope (`ingest::event`).

use serde_json::Value;

/// Bytes of randomness in a challenge.
pub const CHALLENGE_BYTES: usize = 16;

/// The longest answer that is read: a JSON object with one member, and room for a few others.
pub const ECHO_BYTES_MAX: usize = 4 * 1024;

/// The member with the value: of `data` in the request, and of the answer itself.
pub const MEMBER: &str = "challenge";

/// Whether a whole body is a JSON object whose `challenge` is this value.
#[must_use]
pub fn is_echoed(challenge: &str, body: &[u8]) -> bool {
    let answer: Option<Value> = serde_json::from_slice(body).ok();
    answer.is_some_and(|answer| answer.get(MEMBER).is_some_and(|echo| echo == challenge))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_has_the_value_as_a_member_of_its_own() {
        for (body, echoed) in [
            (r#"{"challenge":"c7"}"#, true),
            (" { \"ok\": true, \"challenge\": \"c7\" }\n", true),
            (r#"{"challenge":"c8"}"#, false),
            (r#"{"challenge":["c7"]}"#, false),
            (r#"{"type":"webhook.challenge","data":{"challenge":"c7"}}"#, false),
            (r#"["c7"]"#, false),
            ("c7", false),
            (r#"{"challenge":"c7"}{}"#, false),
            ("", false),
        ] {
            assert_eq!(is_echoed("c7", body.as_bytes()), echoed, "{body}");
        }
    }
}
