//! Event types, which are known by their names, and sets of them. (core)
//!
//! Invariant: two types are equal exactly if their names are.
//!
//! Not here: which types backends may send and webhooks subscribe to (`catalogue`).

use std::fmt;
use std::sync::{Arc, OnceLock};

/// The longest name, in bytes: names are in every delivery, and in lists that people read.
pub const NAME_BYTES_MAX: usize = 64;

/// Different names in the life of a process, at most: many times as many as a catalogue has, so
/// that reloads may rename types. They are never freed.
const NAMES_MAX: usize = 4_096;

/// The names that were interned: a hash table with open addressing.
static NAMES: [OnceLock<&'static str>; NAMES_MAX] = [const { OnceLock::new() }; NAMES_MAX];

/// The type of an event: what happened, or a test of a webhook.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventType(&'static str);

impl EventType {
    /// A test that the webhook's owner requested; no webhook subscribes to it.
    pub const PING: Self = Self("webhook.ping");

    /// Asks the receiver of a webhook to create to prove that it expects deliveries; never stored.
    pub const CHALLENGE: Self = Self("webhook.challenge");

    /// A webhook is failing.
    pub const FAILING: Self = Self("endpoint.failing");
    /// A webhook was paused.
    pub const PAUSED: Self = Self("endpoint.paused");
    /// A webhook that was failing or paused is healthy again.
    pub const RECOVERED: Self = Self("endpoint.recovered");
    /// A delivery failed permanently.
    pub const EXHAUSTED: Self = Self("delivery.exhausted");

    /// The types of events for operators, which no backend sends and no owner subscribes to.
    pub const OPERATORS: [Self; 4] =
        [Self::FAILING, Self::PAUSED, Self::RECOVERED, Self::EXHAUSTED];

    /// The type with a name that is known when this is compiled.
    #[must_use]
    pub const fn new(name: &'static str) -> Self {
        Self(name)
    }

    /// The type with this name, from the configuration or the store; `None` beyond [`NAMES_MAX`]
    /// names. Not for names from requests, of which there is no end: see [`EventType::known`].
    #[must_use]
    pub fn intern(name: &str) -> Option<Self> {
        let leaked = || -> &'static str { Box::leak(Box::from(name)) };
        slots(name).map(|slot| *slot.get_or_init(leaked)).find(|found| *found == name).map(Self)
    }

    /// The type with this name, if it was interned; pings included.
    #[must_use]
    pub fn known(name: &str) -> Option<Self> {
        if name == Self::PING.0 {
            return Some(Self::PING);
        }
        let mut found = slots(name).map_while(|slot| slot.get().copied());
        found.find(|found| *found == name).map(Self)
    }

    /// The name in envelopes.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.0
    }
}

/// The slots in which a name may be, in the order of search (FNV-1a).
fn slots(name: &str) -> impl Iterator<Item = &'static OnceLock<&'static str>> {
    let mix = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    let first = name.bytes().fold(0x811c_9dc5, mix) as usize % NAMES_MAX;
    NAMES.iter().cycle().skip(first).take(NAMES_MAX)
}

/// Whether a type may have this name: lower-case words, joined by dots, of [`NAME_BYTES_MAX`] bytes
/// at most.
#[must_use]
pub fn is_name(text: &str) -> bool {
    let in_word = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_');
    let is_word = |word: &str| !word.is_empty() && word.bytes().all(in_word);
    text.len() <= NAME_BYTES_MAX && text.split('.').all(is_word)
}

/// The event types that a webhook subscribes to.
#[derive(Clone, Debug, Default)]
pub struct EventSet(Arc<[EventType]>);

impl EventSet {
    /// The set of these types.
    #[must_use]
    pub fn of(types: impl IntoIterator<Item = EventType>) -> Self {
        let mut set = Vec::new();
        for one in types {
            if !set.contains(&one) {
                set.push(one);
            }
        }
        Self(set.into())
    }

    /// The set from its names, separated by spaces; `None` beyond [`NAMES_MAX`] names.
    #[must_use]
    pub fn of_names(names: &str) -> Option<Self> {
        names
            .split_ascii_whitespace()
            .map(EventType::intern)
            .collect::<Option<Vec<_>>>()
            .map(Self::of)
    }

    /// Whether the set contains `one`.
    #[must_use]
    pub fn has(&self, one: EventType) -> bool {
        self.0.contains(&one)
    }

    /// The types in the set, in the order in which they were given.
    pub fn types(&self) -> impl Iterator<Item = EventType> {
        self.0.iter().copied()
    }
}

impl PartialEq for EventSet {
    fn eq(&self, other: &Self) -> bool {
        self.0.len() == other.0.len() && self.types().all(|one| other.has(one))
    }
}

impl Eq for EventSet {}

/// The names, separated by spaces.
impl fmt::Display for EventSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.types().map(EventType::name).collect();
        f.write_str(&names.join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_type_however_often_and_wherever_it_is_interned() {
        assert_eq!(EventType::known("never.interned"), None);
        let names: Vec<String> = (0..200).map(|nth| format!("order.paid_{nth}")).collect();
        let intern = |name: &String| EventType::intern(name).expect("there is room");
        let threads: Vec<Vec<EventType>> = std::thread::scope(|scope| {
            let each = || names.iter().map(intern).collect();
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(each)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        for types in threads {
            for (name, one) in names.iter().zip(types) {
                assert_eq!(one.name(), name);
                assert_eq!(EventType::known(name), Some(one));
                let kept = EventType::known(name).unwrap().name();
                assert!(std::ptr::eq(kept, one.name()), "{name} is kept twice");
            }
        }
        assert_eq!(EventType::known("webhook.ping"), Some(EventType::PING));
    }

    #[test]
    fn a_name_is_dotted_lower_case_words() {
        for name in ["order.paid", "signups_blocked", "a", "a.b2.c_d", &"x".repeat(64)] {
            assert!(is_name(name), "{name}");
        }
        for name in ["", ".", "a.", ".a", "a..b", "Order.paid", "a b", "a-b", "ä", &"x".repeat(65)]
        {
            assert!(!is_name(name), "{name}");
        }
    }

    #[test]
    fn a_set_has_each_type_once_in_any_order() {
        let set = EventSet::of_names("b a b").expect("there is room");
        assert_eq!(set.to_string(), "b a");
        assert_eq!(Some(set.clone()), EventSet::of_names("a b"));
        assert_ne!(Some(set.clone()), EventSet::of_names("a c"));
        assert_ne!(Some(set.clone()), EventSet::of_names("a"));
        assert!(set.has(EventType::new("a")) && !set.has(EventType::new("c")));
        assert_eq!(EventSet::of_names(""), Some(EventSet::default()));
    }
}
