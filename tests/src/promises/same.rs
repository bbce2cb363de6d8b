//! Checks that a value never changes: an event has the same id and bytes at every arrival.

use std::collections::BTreeMap;
use std::fmt::Debug;

use super::{Broken, Promise, broken};

/// The known value of each `K`.
#[derive(Debug)]
pub struct Same<K, V>(BTreeMap<K, V>);

impl<K, V> Default for Same<K, V> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Ord + Clone + Debug, V: PartialEq + Clone> Same<K, V> {
    /// Records the value of a key the first time; later checks that it is the same.
    pub fn is(&mut self, key: &K, value: &V) -> Result<(), Broken> {
        match self.0.get(key) {
            Some(known) if known != value => {
                broken(Promise::Same, format!("{key:?} differs from what it was before"))
            }
            Some(_) => Ok(()),
            None => {
                self.0.insert(key.clone(), value.clone());
                Ok(())
            }
        }
    }

    /// The known value of a key.
    pub fn of(&self, key: &K) -> Option<&V> {
        self.0.get(key)
    }
}
