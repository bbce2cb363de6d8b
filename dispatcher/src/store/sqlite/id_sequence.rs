//! Ensures that no number is assigned twice, also by a database that was restored from a copy.
//!
//! A copy does not contain numbers that were assigned after it was made. So the sequences jump at
//! each start to a number that depends on the clock: [`PER_SECOND`] for each second since 2026,
//! more than any process assigns. If the clock is behind the numbers, because it was set or the
//! last start was less than a second ago, they jump by a random amount, more than a run assigns.
//!
//! Invariant: numbers only grow.

use rusqlite::Connection;
use weir_common::time::UnixTime;

use crate::store::sqlite::writer::counters::Counters;

/// A hundred times what a machine can store.
const PER_SECOND: i64 = 1 << 20;

/// 2026-01-01, in seconds since 1970.
const FIRST_SECOND: u64 = 1_767_225_600;

/// Random jumps are from this to twice as much: more numbers than one run assigns.
const JUMP: i64 = 1 << 30;

/// A clock beyond this is wrong, and counts as this: the sequences never reach their maximum.
const SECONDS_MAX: u64 = 1 << 33;

/// Advances all sequences.
pub(super) fn jump(
    conn: &Connection,
    counters: &mut Counters,
    now: UnixTime,
    random: i64,
) -> rusqlite::Result<()> {
    for number in [&mut counters.deliveries_made, &mut counters.webhooks_made] {
        *number = after(*number, now, random);
    }
    let sql = "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'jobs'";
    let jobs: i64 = conn.query_row(sql, [], |row| row.get(0))?;
    conn.execute("DELETE FROM sqlite_sequence WHERE name = 'jobs'", [])?;
    let sql = "INSERT INTO sqlite_sequence (name, seq) VALUES ('jobs', ?1)";
    conn.execute(sql, [after(jobs, now, random)]).map(drop)
}

/// The number after which the next ones are assigned.
fn after(last: i64, now: UnixTime, random: i64) -> i64 {
    let seconds = (now.0 / 1_000_000).saturating_sub(FIRST_SECOND).min(SECONDS_MAX);
    let clocks = i64::try_from(seconds).unwrap_or(0) * PER_SECOND + random.rem_euclid(PER_SECOND);
    if clocks > last.saturating_add(PER_SECOND) {
        clocks
    } else {
        last.saturating_add(JUMP + random.rem_euclid(JUMP))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A time in seconds after the beginning of 2026.
    fn t(seconds: u64) -> UnixTime {
        UnixTime((FIRST_SECOND + seconds) * 1_000_000)
    }

    #[test]
    fn a_copy_that_begins_later_numbers_nothing_that_its_original_did() {
        let original = after(4_711, t(1_000), 77);
        // The original assigns as many as it can for a minute, after the copy was made.
        let most = original + 60 * 20_000;
        assert!(after(original, t(1_060), 3) > most);
        // Also if the copy is opened at once, or the clock was set.
        for now in [t(1_000), t(999), t(0), UnixTime(0)] {
            assert!(after(original, now, 3) > most, "{now:?}");
        }
    }

    #[test]
    fn numbers_only_grow_and_there_is_room_for_more() {
        let mut last = 0;
        for start in 0..100_000_u64 {
            let now = UnixTime(start.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            let next = after(last, now, start.wrapping_mul(0x2545_f491_4f6c_dd1d).cast_signed());
            assert!(next > last);
            last = next;
        }
        assert!(last < i64::MAX / 100, "{last}");
    }
}
