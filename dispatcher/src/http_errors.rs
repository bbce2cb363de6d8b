//! Refusals of what a body or query says, and of what the store cannot do.
//!
//! A refused body or query names each thing that is wrong with it, at once: a [`Flaw`] each.

use log::Level;
use serde_json::{Value, json};
use weir_common::log::events;
use weir_common::problem::Problem;

use crate::http_server::{Reply, problems};
use crate::store::StoreError;

/// Flaws that are listed; nobody mends more from one answer.
const FLAWS_MAX: usize = 100;

/// One thing wrong with what was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Flaw {
    place: Place,
    /// What is wrong, and what would be right.
    detail: String,
    /// Which event of several it is of.
    index: Option<usize>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    /// A JSON pointer into the body (RFC 6901).
    Pointer(String),
    /// A parameter of the query.
    Parameter(String),
}

impl Flaw {
    /// Of a value in the body.
    pub(crate) fn at(pointer: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { place: Place::Pointer(pointer.into()), detail: detail.into(), index: None }
    }

    /// Of a parameter of the query.
    pub(crate) fn of_parameter(name: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { place: Place::Parameter(name.into()), detail: detail.into(), index: None }
    }

    fn shown(&self) -> Value {
        match (&self.place, self.index) {
            (Place::Pointer(pointer), None) => json!({"pointer": pointer, "detail": self.detail}),
            (Place::Pointer(pointer), Some(index)) => {
                json!({"index": index, "pointer": pointer, "detail": self.detail})
            }
            (Place::Parameter(name), _) => json!({"parameter": name, "detail": self.detail}),
        }
    }
}

impl std::fmt::Display for Flaw {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.place {
            Place::Pointer(place) if place.is_empty() => write!(f, "the body {}", self.detail),
            Place::Pointer(place) | Place::Parameter(place) => {
                write!(f, "{place}: {}", self.detail)
            }
        }
    }
}

/// Everything that is wrong with one request: the first of it listed, all of it counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Flaws {
    listed: Vec<Flaw>,
    count: usize,
    index: Option<usize>,
}

impl Flaws {
    /// One more; made only where it is still listed.
    pub(crate) fn add(&mut self, make: impl FnOnce() -> Flaw) {
        self.count += 1;
        if self.listed.len() < FLAWS_MAX {
            self.listed.push(Flaw { index: self.index, ..make() });
        }
    }

    /// What is added from here on is of this event of several.
    pub(crate) fn go_to(&mut self, index: Option<usize>) {
        self.index = index;
    }

    /// One more, of a value in the body.
    pub(crate) fn at(&mut self, pointer: impl Into<String>, detail: impl Into<String>) {
        self.add(|| Flaw::at(pointer, detail));
    }

    /// Where each of those listed is.
    #[cfg(test)]
    pub(crate) fn pointers(&self) -> Vec<String> {
        let place = |flaw: &Flaw| match &flaw.place {
            Place::Pointer(place) | Place::Parameter(place) => place.clone(),
        };
        self.listed.iter().map(place).collect()
    }

    /// Whether nothing is wrong.
    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// How much is wrong.
    pub(crate) fn count(&self) -> usize {
        self.count
    }
}

impl From<Flaw> for Flaws {
    fn from(flaw: Flaw) -> Self {
        Self { listed: vec![flaw], count: 1, index: None }
    }
}

impl std::fmt::Display for Flaws {
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

/// A name as one step of a JSON pointer.
pub(crate) fn step(name: &str) -> String {
    format!("/{}", name.replace('~', "~0").replace('/', "~1"))
}

/// What is wrong, all of it: `errors` lists the first of very many, `errors_count` counts.
pub(crate) fn flawed(status: u16, kind: &'static str, title: &'static str, flaws: &Flaws) -> Reply {
    let errors = flaws.listed.iter().map(Flaw::shown).collect::<Vec<_>>();
    let members = vec![("errors", errors.into()), ("errors_count", flaws.count.into())];
    Reply::problem(&Problem { status, kind, title, detail: flaws.to_string(), members })
}

/// A body that is JSON and does not say what it should.
pub(crate) fn unprocessable(flaws: &Flaws) -> Reply {
    flawed(422, "invalid-body", "The body does not fit", flaws)
}

/// What a store that could not do as it was asked means for the client.
pub(crate) fn store(error: &StoreError) -> Reply {
    match error {
        StoreError::Busy => {
            problems::busy("Too many writes are waiting for the disk; send the call again.")
        }
        // It was written down when it began; every call that comes meanwhile would say it again.
        StoreError::Unavailable(_) => {
            problems::busy("The database cannot be written at the moment; send the call again.")
        }
        StoreError::Damaged(_) => {
            let fields = [("error", error.to_string().into())];
            events::event(Level::Error, "the store is damaged", &fields);
            problems::broken()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flaw_is_listed_up_to_a_bound_and_all_are_counted() {
        let mut flaws = Flaws::default();
        for n in 0..250 {
            flaws.go_to((n >= 50).then_some(n));
            flaws.at(format!("/{n}"), "is wrong");
        }
        let body: Value =
            serde_json::from_slice(&unprocessable(&flaws).body).expect("a problem is JSON");
        assert_eq!(body["errors"].as_array().map(Vec::len), Some(FLAWS_MAX));
        assert_eq!(body["errors"][7], json!({"pointer": "/7", "detail": "is wrong"}));
        let later = json!({"index": 50, "pointer": "/50", "detail": "is wrong"});
        assert_eq!(body["errors"][50], later);
        assert_eq!(body["errors_count"], 250);
        assert_eq!(body["detail"], "/0: is wrong (and 249 more, see `errors`)");
    }

    #[test]
    fn what_is_wrong_with_the_whole_body_is_said_of_the_body() {
        let flaws = Flaws::from(Flaw::at("", "has 300083 bytes; at most 262144 may be"));
        assert_eq!(flaws.to_string(), "the body has 300083 bytes; at most 262144 may be");
        assert_eq!(Flaws::from(Flaw::at("/a", "is missing")).to_string(), "/a: is missing");
    }

    #[test]
    fn a_step_of_a_pointer_is_escaped() {
        assert_eq!(step("a/b~c"), "/a~1b~0c");
    }

    #[test]
    fn a_store_that_is_busy_is_asked_again_and_one_that_is_damaged_is_not() {
        let busy = store(&StoreError::Busy);
        assert_eq!(busy.status, 503);
        assert!(busy.headers.contains(&("retry-after", "1".to_owned())));
        assert_eq!(store(&StoreError::Unavailable("full".into())).status, 503);
        assert_eq!(store(&StoreError::Damaged("no".into())).status, 500);
    }
}
