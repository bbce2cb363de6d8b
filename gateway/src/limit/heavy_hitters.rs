//! Counts the keys with the most requests and the most refusals, in bounded memory.
//!
//! Not here: how (`weir_common::heavy_hitters`), exact counts, which the limits have.

use std::sync::Arc;
use std::sync::{Mutex, PoisonError};

use weir_common::heavy_hitters::Sketch;

use super::key::Key;

/// One in this many admitted requests is counted, with this weight: most requests are admitted.
const SAMPLE: u64 = 8;

/// The limit, by its name because indexes change with a reload, and the owner of the allowance.
type Label = (Arc<str>, Arc<str>);

/// A frequent key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The limit.
    pub limit: Arc<str>,
    /// The owner of the allowance.
    pub name: Arc<str>,
    /// The estimated number of requests; old requests count less ([`HeavyHitters::fade`]).
    pub count: u64,
}

/// Both sketches. A request that finds one locked is not counted: the counts are estimates.
#[derive(Debug, Default)]
pub struct HeavyHitters {
    busiest: Mutex<Sketch<Key, Label>>,
    refused: Mutex<Sketch<Key, Label>>,
}

impl HeavyHitters {
    /// Counts an admitted request; `sample` is any number that differs between requests.
    pub fn admitted(&self, key: Key, limit: &Arc<str>, name: &Arc<str>, sample: u64) {
        if sample.is_multiple_of(SAMPLE)
            && let Ok(mut sketch) = self.busiest.try_lock()
        {
            sketch.count(key, SAMPLE, || (limit.clone(), name.clone()));
        }
    }

    /// Counts a refused request.
    pub fn refused(&self, key: Key, limit: &Arc<str>, name: &Arc<str>) {
        if let Ok(mut sketch) = self.refused.try_lock() {
            sketch.count(key, 1, || (limit.clone(), name.clone()));
        }
    }

    /// The keys with the most admitted requests, and those with the most refused ones.
    #[must_use]
    pub fn most(&self, places: usize) -> [Vec<Seen>; 2] {
        let seen = |((limit, name), count)| Seen { limit, name, count };
        [&self.busiest, &self.refused].map(|sketch| {
            let most = sketch.lock().unwrap_or_else(PoisonError::into_inner).most(places);
            most.into_iter().map(seen).collect()
        })
    }

    /// The limit and the owner of a key, if it is frequent.
    #[must_use]
    pub fn label(&self, key: Key) -> Option<(Arc<str>, Arc<str>)> {
        let of = |sketch: &Mutex<Sketch<Key, Label>>| {
            sketch.lock().unwrap_or_else(PoisonError::into_inner).label(&key).cloned()
        };
        of(&self.refused).or_else(|| of(&self.busiest))
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

    #[test]
    fn each_is_counted_by_limit_and_owner_and_admitted_ones_are_sampled() {
        let seed = Seed::new([1; 16]);
        let key = Key::new(seed.owner(Scope::Workspace, b"ws"), seed.limit("w"));
        let (limit, name): Label = ("w".into(), "ws".into());
        let top = HeavyHitters::default();
        (0..64).for_each(|nth| top.admitted(key, &limit, &name, nth));
        top.refused(key, &limit, &name);
        let seen = |count| vec![Seen { limit: limit.clone(), name: name.clone(), count }];
        assert_eq!(top.most(5), [seen(64), seen(1)]);
        assert_eq!(top.label(key), Some((limit.clone(), name.clone())));
        top.fade();
        assert_eq!(top.most(5), [seen(32), vec![]]);
    }
}
