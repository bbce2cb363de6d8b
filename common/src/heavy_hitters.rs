//! Counts the most frequent of any number of keys, in bounded memory. (core)
//!
//! A space-saving sketch (Metwally, Agrawal, El Abbadi, 2005): a new key replaces the key with the
//! lowest count and inherits that count. A count may be too high by the inherited part, never too
//! low; a key with more than one in [`PLACES`] of all counts is in the sketch.
//!
//! Not here: what is counted, and when counts fade (each program).

/// How many keys a sketch has.
const PLACES: usize = 128;

/// A bounded count of the most frequent keys, each with a label.
#[derive(Debug)]
pub struct Sketch<K, L> {
    keys: Vec<K>,
    seen: Vec<(L, u64)>,
}

impl<K, L> Default for Sketch<K, L> {
    fn default() -> Self {
        Self { keys: Vec::new(), seen: Vec::new() }
    }
}

impl<K: PartialEq, L: Clone> Sketch<K, L> {
    /// Adds `times` to the count of a key; `label` makes its label if it is new.
    pub fn count(&mut self, key: K, times: u64, label: impl FnOnce() -> L) {
        let known = self.keys.iter().position(|known| *known == key);
        if let Some((_, count)) = known.and_then(|at| self.seen.get_mut(at)) {
            *count += times;
            return;
        }
        if self.keys.len() < PLACES {
            self.keys.push(key);
            self.seen.push((label(), times));
            return;
        }
        let least =
            self.seen.iter().enumerate().min_by_key(|(_, (_, count))| *count).map(|(at, _)| at);
        let Some(at) = least else { return };
        if let (Some(slot), Some(seen)) = (self.keys.get_mut(at), self.seen.get_mut(at)) {
            *slot = key;
            *seen = (label(), seen.1 + times);
        }
    }

    /// Halves all counts, so that keys that are no longer frequent leave the sketch.
    pub fn fade(&mut self) {
        for (_, count) in &mut self.seen {
            *count /= 2;
        }
    }

    /// The labels of the most frequent, with their counts; the most frequent first.
    #[must_use]
    pub fn most(&self, places: usize) -> Vec<(L, u64)> {
        let mut all: Vec<_> = self.seen.iter().filter(|(_, count)| *count > 0).cloned().collect();
        all.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        all.truncate(places);
        all
    }

    /// The label of a key, if it is frequent.
    #[must_use]
    pub fn label(&self, key: &K) -> Option<&L> {
        let at = self.keys.iter().position(|known| known == key)?;
        self.seen.get(at).map(|(label, _)| label)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(sketch: &mut Sketch<String, String>, name: &str) {
        sketch.count(name.to_owned(), 1, || name.to_owned());
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
        let most = sketch.most(1);
        assert_eq!(most[0].0, "heavy");
        assert!(most[0].1 >= 10_000, "never too low");
        assert_eq!(sketch.most(1_000).len(), PLACES);
        assert_eq!(sketch.label(&"heavy".to_owned()), Some(&"heavy".to_owned()));
    }

    #[test]
    fn the_most_frequent_are_first_and_decay() {
        let mut sketch = Sketch::default();
        for name in ["a", "b", "b", "c", "b", "c"] {
            count(&mut sketch, name);
        }
        assert_eq!(sketch.most(2), [("b".to_owned(), 3), ("c".to_owned(), 2)]);
        sketch.fade();
        assert_eq!(sketch.most(9).len(), 2, "a key that came once is forgotten");
    }
}
