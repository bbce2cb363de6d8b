//! Reads deliveries in the order of lists: by the time when they were accepted, then by number.
//!
//! Invariant: each key costs one index lookup, however many deliveries this webhook or others have.

use std::collections::BinaryHeap;

use rusqlite::Connection;

use crate::store::sqlite::rows;

/// A delivery's position in the order: when it was accepted, and its number.
pub(super) type RowKey = (i64, i64);

/// Keys of one webhook that are read ahead, at most.
const AHEAD_MAX: usize = 512;

/// Which deliveries of a webhook, and in which direction they are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Read {
    /// All, newest first.
    Older,
    /// Those that failed permanently, newest first.
    OlderFailed,
    /// All, oldest first.
    Newer,
    /// Those that failed permanently, oldest first.
    NewerFailed,
}

macro_rules! keys {
    ($rest:literal) => {
        concat!("SELECT created_at, id FROM deliveries WHERE webhook = ?1 AND ", $rest)
    };
}

impl Read {
    /// Two queries: deliveries accepted at the same time, then those beyond it. By a comparison of
    /// pairs, SQLite would not use the index within equal times; a batch of events has one time.
    fn statements(self) -> [&'static str; 2] {
        match self {
            Self::Older => [
                keys!("created_at = ?2 AND id < ?3 ORDER BY id DESC LIMIT ?4"),
                keys!(
                    "created_at < ?2 AND created_at >= ?3 \
                     ORDER BY created_at DESC, id DESC LIMIT ?4"
                ),
            ],
            Self::OlderFailed => [
                keys!("created_at = ?2 AND id < ?3 AND state = 2 ORDER BY id DESC LIMIT ?4"),
                keys!(
                    "created_at < ?2 AND created_at >= ?3 AND state = 2 \
                     ORDER BY created_at DESC, id DESC LIMIT ?4"
                ),
            ],
            Self::Newer => [
                keys!("created_at = ?2 AND id > ?3 ORDER BY id LIMIT ?4"),
                keys!("created_at > ?2 AND created_at <= ?3 ORDER BY created_at, id LIMIT ?4"),
            ],
            Self::NewerFailed => [
                keys!("created_at = ?2 AND id > ?3 AND state = 2 ORDER BY id LIMIT ?4"),
                keys!(
                    "created_at > ?2 AND created_at <= ?3 AND state = 2 \
                     ORDER BY created_at, id LIMIT ?4"
                ),
            ],
        }
    }
}

/// Deliveries of a webhook after `after`, accepted up to the time `last`, in reading direction.
#[derive(Clone, Copy)]
pub(super) struct Stretch {
    pub(super) webhook: i64,
    pub(super) after: RowKey,
    pub(super) last: i64,
}

/// The next deliveries of a stretch.
pub(super) fn run(
    conn: &Connection,
    read: Read,
    stretch: Stretch,
    limit: usize,
) -> rusqlite::Result<Vec<RowKey>> {
    let Stretch { webhook, after: (time, id), last } = stretch;
    let [same, beyond] = read.statements();
    let mut keys = Vec::new();
    for (sql, bound) in [(same, id), (beyond, last)] {
        let left = rows::count(limit - keys.len());
        let mut query = conn.prepare_cached(sql)?;
        let found =
            query.query_map((webhook, time, bound, left), |row| Ok((row.get(0)?, row.get(1)?)))?;
        for key in found {
            keys.push(key?);
        }
        if keys.len() == limit {
            break;
        }
    }
    Ok(keys)
}

/// The deliveries of several webhooks as one list, newest first.
pub(super) struct Newest<'c> {
    conn: &'c Connection,
    read: Read,
    oldest: i64,
    parts: Vec<Part>,
    /// The next key of each part, with the part's index.
    first: BinaryHeap<(RowKey, usize)>,
}

/// Keys of one webhook that were read ahead, the next one last.
struct Part {
    webhook: i64,
    keys: Vec<RowKey>,
    reach: RowKey,
    size: usize,
    more: bool,
}

impl<'c> Newest<'c> {
    /// The list of these webhooks, after `after` and no older than `oldest`; expects `limit` reads.
    pub(super) fn of(
        conn: &'c Connection,
        read: Read,
        webhooks: &[i64],
        (after, oldest): (RowKey, i64),
        limit: usize,
    ) -> rusqlite::Result<Self> {
        let size = (limit / webhooks.len().max(1) + 2).min(AHEAD_MAX);
        let part = |webhook: &i64| Part {
            webhook: *webhook,
            keys: Vec::new(),
            reach: after,
            size,
            more: after.0 >= oldest,
        };
        let parts = webhooks.iter().map(part).collect();
        let mut newest = Self { conn, read, oldest, parts, first: BinaryHeap::new() };
        for nth in 0..webhooks.len() {
            newest.advance(nth)?;
        }
        Ok(newest)
    }

    /// The next key of all webhooks.
    pub(super) fn next(&mut self) -> rusqlite::Result<Option<RowKey>> {
        let Some((key, nth)) = self.first.pop() else { return Ok(None) };
        self.advance(nth)?;
        Ok(Some(key))
    }

    /// Adds the next key of a part to `first`.
    fn advance(&mut self, nth: usize) -> rusqlite::Result<()> {
        let Some(part) = self.parts.get_mut(nth) else { return Ok(()) };
        if part.keys.is_empty() && part.more {
            let Part { webhook, reach, size, .. } = *part;
            let stretch = Stretch { webhook, after: reach, last: self.oldest };
            part.keys = run(self.conn, self.read, stretch, size)?;
            part.more = part.keys.len() == size;
            part.reach = part.keys.last().copied().unwrap_or(reach);
            part.keys.reverse();
            part.size = (size * 2).min(AHEAD_MAX);
        }
        self.first.extend(part.keys.pop().map(|key| (key, nth)));
        Ok(())
    }
}
