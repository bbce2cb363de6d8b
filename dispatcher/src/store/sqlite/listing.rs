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
    /// Turns a key into one that is the greater the earlier it is read; and back.
    fn rank(self, (time, id): RowKey) -> RowKey {
        match self {
            Self::Older | Self::OlderFailed => (time, id),
            // The complement reverses the order of all numbers; a negation would overflow.
            Self::Newer | Self::NewerFailed => (!time, !id),
        }
    }

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

/// Deliveries after `after`, accepted up to the time `last`, in reading direction.
#[derive(Clone, Copy)]
pub(super) struct Span {
    pub(super) after: RowKey,
    pub(super) last: i64,
}

/// The next deliveries of a webhook.
pub(super) fn run(
    conn: &Connection,
    read: Read,
    webhook: i64,
    span: Span,
    limit: usize,
) -> rusqlite::Result<Vec<RowKey>> {
    let Span { after: (time, id), last } = span;
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

/// The deliveries of several webhooks as one list.
pub(super) struct Merged<'c> {
    conn: &'c Connection,
    read: Read,
    last: i64,
    parts: Vec<Part>,
    /// The next key of each part, ranked, with the part's index.
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

impl<'c> Merged<'c> {
    /// The list of these webhooks; expects `limit` reads.
    pub(super) fn of(
        conn: &'c Connection,
        read: Read,
        webhooks: &[i64],
        Span { after, last }: Span,
        limit: usize,
    ) -> rusqlite::Result<Self> {
        let size = (limit / webhooks.len().max(1) + 2).min(AHEAD_MAX);
        let part = |webhook: &i64| Part {
            webhook: *webhook,
            keys: Vec::new(),
            reach: after,
            size,
            more: read.rank((after.0, 0)) >= read.rank((last, 0)),
        };
        let parts = webhooks.iter().map(part).collect();
        let mut merged = Self { conn, read, last, parts, first: BinaryHeap::new() };
        for nth in 0..webhooks.len() {
            merged.advance(nth)?;
        }
        Ok(merged)
    }

    /// The next key of all webhooks.
    pub(super) fn next(&mut self) -> rusqlite::Result<Option<RowKey>> {
        let Some((rank, nth)) = self.first.pop() else { return Ok(None) };
        self.advance(nth)?;
        Ok(Some(self.read.rank(rank)))
    }

    /// Adds the next key of a part to `first`.
    fn advance(&mut self, nth: usize) -> rusqlite::Result<()> {
        let Some(part) = self.parts.get_mut(nth) else { return Ok(()) };
        if part.keys.is_empty() && part.more {
            let Part { webhook, reach, size, .. } = *part;
            let span = Span { after: reach, last: self.last };
            part.keys = run(self.conn, self.read, webhook, span, size)?;
            part.more = part.keys.len() == size;
            part.reach = part.keys.last().copied().unwrap_or(reach);
            part.keys.reverse();
            part.size = (size * 2).min(AHEAD_MAX);
        }
        self.first.extend(part.keys.pop().map(|key| (self.read.rank(key), nth)));
        Ok(())
    }
}
