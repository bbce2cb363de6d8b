//! What stays the same wherever and whenever an event arrives: its id, its bytes.

use std::collections::BTreeMap;
use std::fmt::Debug;

use super::{Broken, Promise, broken};

/// What is known of each `K`.
#[derive(Debug)]
pub struct Same<K, V>(BTreeMap<K, V>);

impl<K, V> Default for Same<K, V> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Ord + Clone + Debug, V: PartialEq + Clone> Same<K, V> {
    /// It was found to be so: the first time, or as it was before.
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

    /// What it is.
    pub fn of(&self, key: &K) -> Option<&V> {
        self.0.get(key)
    }
}
