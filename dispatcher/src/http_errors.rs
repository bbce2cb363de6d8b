//! Problem responses for invalid bodies and queries, and for errors of the store and of the
//! system's random source.
//!
//! Invariant: a response to an invalid body or query lists every error at once, up to bounds of
//! their number and of their bytes: clients that read no response keep it in memory.

use log::Level;
use serde_json::{Value, json};
use weir_common::config::document::suggestion;
use weir_common::http_server::problems;
use weir_common::http_server::reply::Reply;
use weir_common::log::events;
use weir_common::problem::Problem;

use crate::store::StoreError;

/// Errors listed in one response: more than a person corrects at a time.
const ERRORS_MAX: usize = 100;

/// The bytes of the pointers and details of one response.
const ERRORS_BYTES_MAX: usize = 32 * 1_024;

/// The bytes of one pointer, name or detail: those that are longer end in an ellipsis.
const TEXT_BYTES_MAX: usize = 1_024;

/// Errors of one response that name the words which are right: to find the nearest takes long.
const HINTS_MAX: usize = 10;

/// The longest word that gets a suggestion: the comparison takes quadratic time.
const MEANT_MAX: usize = 64;

/// One error in a body or query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ValidationError {
    place: ErrorLocation,
    detail: String,
    /// The event's index in a batch.
    index: Option<usize>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum ErrorLocation {
    /// A JSON pointer into the body (RFC 6901).
    Pointer(String),
    /// A parameter of the query.
    Parameter(String),
}

impl ValidationError {
    /// An error in the body, at a JSON pointer.
    pub(crate) fn at(pointer: impl Into<String>, detail: impl Into<String>) -> Self {
        let place = ErrorLocation::Pointer(shortened(pointer.into()));
        Self { place, detail: shortened(detail.into()), index: None }
    }

    /// An error in a query parameter.
    pub(crate) fn in_query(name: impl Into<String>, detail: impl Into<String>) -> Self {
        let place = ErrorLocation::Parameter(shortened(name.into()));
        Self { place, detail: shortened(detail.into()), index: None }
    }

    fn bytes(&self) -> usize {
        let (ErrorLocation::Pointer(place) | ErrorLocation::Parameter(place)) = &self.place;
        place.len() + self.detail.len()
    }

    fn shown(&self) -> Value {
        match (&self.place, self.index) {
            (ErrorLocation::Pointer(pointer), None) => {
                json!({"pointer": pointer, "detail": self.detail})
            }
            (ErrorLocation::Pointer(pointer), Some(index)) => {
                json!({"index": index, "pointer": pointer, "detail": self.detail})
            }
            (ErrorLocation::Parameter(name), _) => {
                json!({"parameter": name, "detail": self.detail})
            }
        }
    }
}

impl std::fmt::Display for ValidationError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.place {
            ErrorLocation::Pointer(place) if place.is_empty() => {
                write!(f, "the body {}", self.detail)
            }
            ErrorLocation::Pointer(place) | ErrorLocation::Parameter(place) => {
                write!(f, "{place}: {}", self.detail)
            }
        }
    }
}

/// The first [`TEXT_BYTES_MAX`] bytes of a text: clients write what it quotes.
fn shortened(mut text: String) -> String {
    if text.len() > TEXT_BYTES_MAX {
        text.truncate(text.floor_char_boundary(TEXT_BYTES_MAX));
        text.push('\u{2026}');
        text.shrink_to_fit();
    }
    text
}

/// The errors of one request: all are counted, the first ones are listed, and the first of these
/// have hints.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ValidationErrors {
    listed: Vec<ValidationError>,
    count: usize,
    /// Those of what is listed.
    bytes: usize,
    hints: usize,
    index: Option<usize>,
}

impl ValidationErrors {
    /// Errors that are counted, and not listed.
    pub(crate) fn unlisted() -> Self {
        Self { bytes: ERRORS_BYTES_MAX, ..Self::default() }
    }

    /// Adds an error; `make` runs only while errors are still listed.
    pub(crate) fn add(&mut self, make: impl FnOnce() -> ValidationError) {
        self.count += 1;
        if self.lists_more() {
            let made = make();
            self.bytes += made.bytes();
            self.listed.push(ValidationError { index: self.index, ..made });
        }
    }

    fn lists_more(&self) -> bool {
        self.listed.len() < ERRORS_MAX && self.bytes < ERRORS_BYTES_MAX
    }

    /// Adds the error that `word` is none of `known`: `make` has the hint to append to its detail,
    /// which is empty after the first ones.
    pub(crate) fn add_unknown<'k>(
        &mut self,
        word: &str,
        known: impl IntoIterator<Item = &'k str>,
        make: impl FnOnce(&str) -> ValidationError,
    ) {
        let mut hint = String::new();
        if self.hints < HINTS_MAX && self.lists_more() {
            self.hints += 1;
            hint = format!("; {}", suggested_or_all(word, &known.into_iter().collect::<Vec<_>>()));
        }
        self.add(|| make(&hint));
    }

    /// Sets the batch index of all errors added from here on.
    pub(crate) fn set_index(&mut self, index: Option<usize>) {
        self.index = index;
    }

    /// Adds an error in the body.
    pub(crate) fn at(&mut self, pointer: impl Into<String>, detail: impl Into<String>) {
        self.add(|| ValidationError::at(pointer, detail));
    }

    /// The errors that are listed.
    pub(crate) fn listed(&self) -> impl Iterator<Item = &ValidationError> {
        self.listed.iter()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// All errors, listed or not.
    pub(crate) fn count(&self) -> usize {
        self.count
    }
}

impl From<ValidationError> for ValidationErrors {
    fn from(error: ValidationError) -> Self {
        Self { bytes: error.bytes(), listed: vec![error], count: 1, ..Self::default() }
    }
}

impl std::fmt::Display for ValidationErrors {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(first) = self.listed.first() {
            write!(f, "{first}")?;
        }
        if self.count > 1 {
            write!(f, " (and {} more, see `errors`)", self.count - 1)?;
        }
        Ok(())
    }
}

/// A suggestion for a misspelt word, or else the known words.
fn suggested_or_all(word: &str, known: &[&str]) -> String {
    let meant = (word.len() <= MEANT_MAX).then(|| suggestion(word, known)).flatten();
    meant.unwrap_or_else(|| match known {
        [] => "no members are allowed here".to_owned(),
        known => format!("known: {}", known.join(", ")),
    })
}

/// Escapes a name as one step of a JSON pointer.
pub(crate) fn step(name: &str) -> String {
    format!("/{}", name.replace('~', "~0").replace('/', "~1"))
}

/// A problem with `errors` (those that are listed) and `errors_count`.
pub(crate) fn validation_problem(
    status: u16,
    kind: &'static str,
    title: &'static str,
    errors: &ValidationErrors,
) -> Reply {
    let listed = errors.listed.iter().map(ValidationError::shown).collect::<Vec<_>>();
    let members = vec![("errors", listed.into()), ("errors_count", errors.count.into())];
    Reply::problem(&Problem { status, kind, title, detail: errors.to_string(), members })
}

/// 422: the body is JSON and violates its schema.
pub(crate) fn unprocessable(errors: &ValidationErrors) -> Reply {
    validation_problem(422, "invalid-body", "Invalid body", errors)
}

/// The response to an error of the store.
pub(crate) fn store(error: &StoreError) -> Reply {
    match error {
        StoreError::Busy => {
            problems::busy("Too many writes are waiting for the disk; send the call again.")
        }
        // The store logged the cause when the outage began: one log line, not one for each call.
        StoreError::Unavailable(_) => {
            problems::busy("The database cannot be written at the moment; send the call again.")
        }
        StoreError::Damaged(_) => {
            let fields = [("error", error.to_string().into())];
            events::event(Level::Error, "store damaged", &fields);
            problems::broken()
        }
    }
}

/// Fills `bytes` from the system's random source, or 500.
pub(crate) fn fill_random(bytes: &mut [u8]) -> Result<(), Reply> {
    getrandom::fill(bytes).map_err(|error| {
        let fields = [("error", error.to_string().into())];
        events::event(Level::Error, "system random source failed", &fields);
        problems::broken()
    })
}

/// 404, both if there is no such object and if the token may not access it, so that a client
/// cannot distinguish the two.
pub(crate) fn not_found() -> Reply {
    let detail = "There is nothing at this path that this token may see.";
    problems::refusal(404, "not-found", "Not found", detail)
}

/// 415: the body's media type is not one of `wanted`.
pub(crate) fn media_type(wanted: &[&str]) -> Reply {
    let detail = format!("Send the body with `Content-Type: {}`.", wanted.join("`, or `"));
    problems::refusal(415, "unsupported-media-type", "Unsupported media type", detail)
}

/// 400: the body is not JSON; `detail` is the parser's error, or reports an empty body.
pub(crate) fn malformed(detail: impl Into<String>) -> Reply {
    problems::refusal(400, "malformed-body", "The body is not JSON", detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    impl ValidationErrors {
        /// The places of the listed errors.
        pub(crate) fn pointers(&self) -> Vec<String> {
            let place = |error: &ValidationError| match &error.place {
                ErrorLocation::Pointer(place) | ErrorLocation::Parameter(place) => place.clone(),
            };
            self.listed.iter().map(place).collect()
        }
    }

    #[test]
    fn errors_are_listed_up_to_a_bound_and_all_are_counted() {
        let mut errors = ValidationErrors::default();
        for n in 0..250 {
            errors.set_index((n >= 50).then_some(n));
            errors.at(format!("/{n}"), "is wrong");
        }
        let body: Value =
            serde_json::from_slice(&unprocessable(&errors).body).expect("a problem is JSON");
        assert_eq!(body["errors"].as_array().map(Vec::len), Some(ERRORS_MAX));
        assert_eq!(body["errors"][7], json!({"pointer": "/7", "detail": "is wrong"}));
        let later = json!({"index": 50, "pointer": "/50", "detail": "is wrong"});
        assert_eq!(body["errors"][50], later);
        assert_eq!(body["errors_count"], 250);
        assert_eq!(body["detail"], "/0: is wrong (and 249 more, see `errors`)");
    }

    #[test]
    fn errors_that_quote_long_names_are_cut_and_listed_up_to_a_bound_of_their_bytes() {
        let (mut errors, long) = (ValidationErrors::default(), "\u{e9}".repeat(60_000));
        (0..100).for_each(|nth| errors.at(format!("/{nth}{long}"), long.clone()));
        let refusal = unprocessable(&errors).body;
        assert!(refusal.len() < 2 * ERRORS_BYTES_MAX, "{}", refusal.len());
        let body: Value = serde_json::from_slice(&refusal).expect("a problem is JSON");
        assert_eq!(body["errors_count"], 100);
        let pointer = body["errors"][9]["pointer"].as_str().expect("ten are listed");
        assert!(pointer.starts_with("/9\u{e9}") && pointer.ends_with("\u{e9}\u{2026}"));
    }

    #[test]
    fn only_the_first_unknown_words_have_hints() {
        let mut errors = ValidationErrors::default();
        for (nth, word) in ["blu", "x", &"y".repeat(65)].into_iter().chain(["bleu"; 50]).enumerate()
        {
            errors.add_unknown(word, ["blue", "red"], |hint| {
                ValidationError::at(format!("/{nth}"), format!("is unknown{hint}"))
            });
        }
        let details: Vec<_> = errors.listed().map(|error| error.detail.as_str()).collect();
        assert_eq!(details[0], "is unknown; did you mean `blue`?");
        assert_eq!(details[1..3], ["is unknown; known: blue, red"; 2]);
        assert_eq!(details[9], "is unknown; did you mean `blue`?");
        assert_eq!(details[10..], ["is unknown"; 43]);
        let mut unlisted = ValidationErrors::unlisted();
        unlisted.add_unknown("bleu", ["blue"], |_| panic!("no error is listed"));
        assert_eq!((unlisted.count(), unlisted.hints), (1, 0));
    }

    #[test]
    fn an_error_of_the_whole_body_names_the_body() {
        let errors = ValidationErrors::from(ValidationError::at(
            "",
            "has 300083 bytes; at most 262144 may be",
        ));
        assert_eq!(errors.to_string(), "the body has 300083 bytes; at most 262144 may be");
        assert_eq!(
            ValidationErrors::from(ValidationError::at("/a", "is missing")).to_string(),
            "/a: is missing"
        );
    }

    #[test]
    fn a_step_of_a_pointer_is_escaped() {
        assert_eq!(step("a/b~c"), "/a~1b~0c");
    }

    #[test]
    fn a_busy_store_is_503_with_retry_after_and_a_damaged_one_is_500() {
        let busy = store(&StoreError::Busy);
        assert_eq!(busy.status, 503);
        assert!(busy.headers.contains(&("retry-after", "1".to_owned())));
        assert_eq!(store(&StoreError::Unavailable("full".into())).status, 503);
        assert_eq!(store(&StoreError::Damaged("no".into())).status, 500);
    }
}
