//! The newest resets of all gateways, as the store has them and each gateway knows them.
//!
//! # Invariants
//!
//! 1. A reset has the store's time of it in milliseconds as its number, or a higher one where a
//!    change before it has that. So a store that has lost its data gives resets higher numbers than
//!    before, and a gateway that comes back misses none.
//! 2. A store that may have lost resets gets them again from each gateway that knows them, with
//!    their numbers: a gateway that has applied them does not apply them again.
//! 3. Of each key only the newest reset is kept, here as in the store.
//!
//! # Not here
//!
//! When resets are read and applied (`shared::changes`).

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Keys that were reset, by the number of the change.
pub(super) const RESETS: &str = "weir1:{gateways}resets";

/// The resets that a gateway knows, at most: those that the script keeps.
const KNOWN_MAX: usize = 10_000;

/// Adds resets: `KEYS` are the number of changes and the resets, `ARGV` a number that the next
/// change is above, and of each reset the key and the number. A single key without a number is
/// reset now. No window and no period is longer than 31 days.
pub(super) const ADD_RESETS: &str = "local number = redis.call('GET', KEYS[1]) or '0'
number = math.max(tonumber(number), tonumber(ARGV[1])) + 1
if not ARGV[3] then
  local clock = redis.call('TIME')
  number = math.max(number, clock[1] * 1000 + math.floor(clock[2] / 1000))
end
local added = 0
for at = 2, #ARGV, 2 do
  added = added + redis.call('ZADD', KEYS[2], 'GT', 'CH', ARGV[at + 1] or number, ARGV[at])
end
redis.call('ZREMRANGEBYRANK', KEYS[2], 0, -10001)
redis.call('PEXPIRE', KEYS[2], 2678400000)
if added > 0 then
  redis.call('SET', KEYS[1], number)
end
return number";

/// The newest resets.
#[derive(Debug, Default)]
pub(super) struct KnownResets(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    /// The digits of their keys.
    by_number: BTreeMap<u64, String>,
    /// Their numbers.
    by_digits: HashMap<String, u64>,
}

impl Known {
    fn add(&mut self, number: u64, digits: &str) {
        if self.by_digits.get(digits).is_some_and(|known| *known >= number) {
            return;
        }
        if let Some(earlier) = self.by_digits.insert(digits.to_owned(), number) {
            self.by_number.remove(&earlier);
        }
        self.by_number.insert(number, digits.to_owned());
        if self.by_number.len() > KNOWN_MAX
            && let Some((_, digits)) = self.by_number.pop_first()
        {
            self.by_digits.remove(&digits);
        }
    }
}

impl KnownResets {
    fn all(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of the newest one; 0 if none is known.
    pub(super) fn newest(&self) -> u64 {
        self.all().by_number.last_key_value().map_or(0, |(number, _)| *number)
    }

    /// Adds resets that were read: of each the digits of the key, and the number.
    pub(super) fn add(&self, read: &[[String; 2]]) {
        let mut all = self.all();
        let parsed = read.iter().filter_map(|[digits, nth]| Some((nth.parse().ok()?, digits)));
        parsed.for_each(|(number, digits)| all.add(number, digits));
    }

    /// Those after a number, oldest first: their numbers, and the digits of their keys.
    pub(super) fn after(&self, number: u64) -> Vec<(u64, String)> {
        let all = self.all();
        let later = all.by_number.range((Bound::Excluded(number), Bound::Unbounded));
        later.map(|(number, digits)| (*number, digits.clone())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gateway_knows_the_newest_reset_of_each_of_ten_thousand_keys() {
        let known = KnownResets::default();
        let read = |digits: usize, number: usize| [digits.to_string(), number.to_string()];
        for key in 0..KNOWN_MAX {
            known.add(&[read(key, 2 * key + 1)]);
            known.add(&[read(key, 2 * key + 2)]);
        }
        // What was read before is read again.
        known.add(&[read(7, 15)]);
        let all = known.after(0);
        assert_eq!((all.len(), &all[0]), (KNOWN_MAX, &(2, "0".to_owned())));
        known.add(&[read(KNOWN_MAX, 2 * KNOWN_MAX + 1)]);
        let all = known.after(0);
        assert_eq!((all.len(), &all[0]), (KNOWN_MAX, &(4, "1".to_owned())));
        assert_eq!(known.newest(), 2 * KNOWN_MAX as u64 + 1);
    }
}
