//! Counts the keys with the most requests and the most refusals, in bounded memory.
//!
//! A space-saving sketch (Metwally, Agrawal, El Abbadi, 2005): a new key replaces the key with the
//! lowest count and inherits that count. A count may be too high by the inherited part, never too
//! low; a key with more than one in [`PLACES`] of the requests is in the sketch.
//!
//! Not here: exact counts, which the limits have.

use std::sync::Arc;
use std::sync::{Mutex, PoisonError};

use super::key::Key;

/// How many keys a sketch has.
const PLACES: usize = 128;

/// One in this many admitted requests is counted, with this weight: most requests are admitted.
const SAMPLE: u64 = 8;

/// A frequent key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The limit, by its name: indexes change with a reload.
    pub limit: Arc<str>,
    /// The owner of the allowance.
    pub name: Arc<str>,
    /// The estimated number of requests; old requests count less ([`Sketch::fade`]).
    pub count: u64,
}

/// A bounded count of the most frequent keys.
#[derive(Debug, Default)]
pub struct Sketch {
    keys: Vec<Key>,
    seen: Vec<Seen>,
}

impl Sketch {
    /// Adds `times` to the count of a key.
    pub fn count(&mut self, key: Key, limit: &Arc<str>, name: &Arc<str>, times: u64) {
        let known = self.keys.iter().position(|known| *known == key);
        if let Some(seen) = known.and_then(|at| self.seen.get_mut(at)) {
            seen.count += times;
            return;
        }
        let new = Seen { limit: limit.clone(), name: name.clone(), count: times };
        if self.keys.len() < PLACES {
            self.keys.push(key);
            self.seen.push(new);
            return;
        }
        let least =
            self.seen.iter().enumerate().min_by_key(|(_, seen)| seen.count).map(|(at, _)| at);
        let Some(at) = least else { return };
        if let (Some(slot), Some(seen)) = (self.keys.get_mut(at), self.seen.get_mut(at)) {
            *slot = key;
            *seen = Seen { count: seen.count + times, ..new };
        }
    }

    /// Halves all counts, so that keys that are no longer busy leave the sketch.
    pub fn fade(&mut self) {
        for seen in &mut self.seen {
            seen.count /= 2;
        }
    }

    /// The most frequent first.
    #[must_use]
    pub fn most(&self, places: usize) -> Vec<Seen> {
        let mut all: Vec<Seen> = self.seen.iter().filter(|seen| seen.count > 0).cloned().collect();
        all.sort_by_key(|seen| std::cmp::Reverse(seen.count));
        all.truncate(places);
        all
    }
}

/// Both sketches. A request that finds one locked is not counted: the counts are estimates.
#[derive(Debug, Default)]
pub struct HeavyHitters {
    busiest: Mutex<Sketch>,
    refused: Mutex<Sketch>,
}

impl HeavyHitters {
    /// Counts an admitted request; `sample` is any number that differs between requests.
    pub fn admitted(&self, key: Key, limit: &Arc<str>, name: &Arc<str>, sample: u64) {
        if sample.is_multiple_of(SAMPLE)
            && let Ok(mut sketch) = self.busiest.try_lock()
        {
            sketch.count(key, limit, name, SAMPLE);
        }
    }

    /// Counts a refused request.
    pub fn refused(&self, key: Key, limit: &Arc<str>, name: &Arc<str>) {
        if let Ok(mut sketch) = self.refused.try_lock() {
            sketch.count(key, limit, name, 1);
        }
    }

    /// The keys with the most admitted requests, and those with the most refused ones.
    #[must_use]
    pub fn most(&self, places: usize) -> [Vec<Seen>; 2] {
        [&self.busiest, &self.refused]
            .map(|sketch| sketch.lock().unwrap_or_else(PoisonError::into_inner).most(places))
    }

    /// Halves all counts.
    pub fn fade(&self) {
        for sketch in [&self.busiest, &self.refused] {
            sketch.lock().unwrap_or_else(PoisonError::into_inner).fade();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::key::{Scope, Seed};
    use super::*;

    fn count(sketch: &mut Sketch, name: &str) {
        let seed = Seed::new([1; 16]);
        let key = Key::new(seed.owner(Scope::Workspace, name.as_bytes()), seed.limit("w"));
        sketch.count(key, &"w".into(), &name.into(), 1);
    }

    #[test]
    fn a_heavy_hitter_is_found_among_many() {
        let mut sketch = Sketch::default();
        for n in 0..100_000 {
            count(&mut sketch, &format!("stranger{n}"));
            if n % 10 == 0 {
                count(&mut sketch, "heavy");
            }
        }
        assert_eq!(&*sketch.most(1)[0].name, "heavy");
        assert!(sketch.most(1)[0].count >= 10_000, "never too low");
        assert_eq!(sketch.most(1_000).len(), PLACES);
    }

    #[test]
    fn the_most_frequent_are_first_and_decay() {
        let mut sketch = Sketch::default();
        for name in ["a", "b", "b", "c", "b", "c"] {
            count(&mut sketch, name);
        }
        let names: Vec<_> =
            sketch.most(2).into_iter().map(|seen| (seen.name.to_string(), seen.count)).collect();
        assert_eq!(names, [("b".to_owned(), 3), ("c".to_owned(), 2)]);
        sketch.fade();
        assert_eq!(sketch.most(9).len(), 2, "a key that came once is forgotten");
    }
}
