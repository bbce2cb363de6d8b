//! Reads the state that earlier processes stored, and records that a process runs.

use log::Level;
use rusqlite::{Connection, OptionalExtension};
use weir_common::log::events;
use weir_common::time::{Clock, UnixTime};

use crate::domain::public_id::PublicIds;
use crate::store::encryption::{NONCE_BYTES, Sealer};
use crate::store::sqlite::open::key::{CHECKED, KEY_CHECK};
use crate::store::sqlite::steady_clock::{Origin, SetAhead, Steady};
use crate::store::sqlite::wal::owner;
use crate::store::sqlite::writer::counters::Counters;
use crate::store::sqlite::{id_sequence, rows, schema};

/// The name of a `meta` value: the times of starts after an unclean shutdown, eight bytes each,
/// oldest first. After each of them unrecorded attempts may still count in a rate limit.
const UNCLEAN_SHUTDOWNS: &str = "unclean_shutdowns";

/// The name of a `meta` value: where steady time began in the process that wrote last.
const STEADY_ORIGIN: &str = "steady_origin";

/// Times that are kept, at most; fewer already use up the rate limit of any endpoint.
const UNCLEAN_MAX: usize = 1_024;

/// The name of a `meta` value: the key of public identifiers.
pub(in crate::store::sqlite) const PUBLIC_ID_KEY: &str = "public_id_key";

/// The state that a process starts with.
pub(super) struct Began {
    pub(super) ids: PublicIds,
    pub(super) clean_shutdown: bool,
    pub(super) unclean_shutdowns: Vec<UnixTime>,
    pub(super) counters: Counters,
    pub(super) steady: Steady,
    pub(super) set_ahead: SetAhead,
}

/// Creates the values that a new database lacks, and records that a process has it open.
pub(super) fn begin(conn: &Connection, sealer: &Sealer, clock: &Clock) -> rusqlite::Result<Began> {
    let now = clock.now().unix;
    let change = conn.unchecked_transaction()?;
    let mut counters = read_counters(&change)?;
    let seen = last_seen(&change, &counters)?;
    let steady = Steady::from(clock.clone(), seen);
    counters.steady = (steady.now(), now);
    let origin = schema::meta(&change, STEADY_ORIGIN)?.and_then(|kept| Origin::of_stored(&kept));
    let known = seen.zip(origin);
    let set_ahead = known.map(|(seen, origin)| SetAhead::since(seen, origin, clock.now()));
    let set_ahead = set_ahead.unwrap_or_default();
    schema::set_meta(&change, STEADY_ORIGIN, &steady.origin().stored())?;
    let key = match schema::meta(&change, PUBLIC_ID_KEY)?.map(<[u8; 32]>::try_from) {
        Some(Ok(key)) => key,
        Some(Err(_)) => return Err(rusqlite::Error::InvalidQuery),
        None => {
            let key = random()?;
            schema::set_meta(&change, PUBLIC_ID_KEY, &key)?;
            key
        }
    };
    if schema::meta(&change, KEY_CHECK)?.is_none() {
        let nonce: [u8; NONCE_BYTES] = random()?;
        schema::set_meta(&change, KEY_CHECK, &sealer.seal(CHECKED.0, CHECKED.1, nonce))?;
    } else {
        id_sequence::jump(&change, &mut counters, now, i64::from_le_bytes(random()?))?;
    }
    schema::set_meta(&change, owner::MARK, &random::<{ owner::MARK_BYTES }>()?)?;
    // A new database had no earlier process that could have left attempts unrecorded.
    let clean_shutdown =
        schema::meta(&change, schema::CLEAN_SHUTDOWN)?.is_none_or(|value| value == [1]);
    let mut unclean_shutdowns =
        times(&schema::meta(&change, UNCLEAN_SHUTDOWNS)?.unwrap_or_default());
    unclean_shutdowns.iter_mut().for_each(|at| *at = set_ahead.done(*at));
    if !clean_shutdown {
        unclean_shutdowns.push(now);
        unclean_shutdowns.drain(..unclean_shutdowns.len().saturating_sub(UNCLEAN_MAX));
    }
    let bytes: Vec<u8> = unclean_shutdowns.iter().flat_map(|at| at.0.to_le_bytes()).collect();
    schema::set_meta(&change, UNCLEAN_SHUTDOWNS, &bytes)?;
    schema::set_meta(&change, schema::CLEAN_SHUTDOWN, &[0])?;
    let lost = "UPDATE mails SET state = 4, over_at = ?1 WHERE state = 1";
    let lost = change.execute(lost, [rows::at(steady.now())])?;
    counters.write(&change)?;
    change.commit()?;
    if lost > 0 {
        // They may have been sent, and no mail is sent twice.
        events::event(Level::Warn, "mails lost", &[("count", lost.into())]);
    }
    let ids = PublicIds::new(key);
    Ok(Began { ids, clean_shutdown, unclean_shutdowns, counters, steady, set_ahead })
}

/// The last stored steady time, with the wall-clock time at that moment. A database of a version
/// that stored none has the newest time of its rows instead.
fn last_seen(
    conn: &Connection,
    counters: &Counters,
) -> rusqlite::Result<Option<(UnixTime, UnixTime)>> {
    if counters.steady.0 > UnixTime(0) {
        return Ok(Some(counters.steady));
    }
    let mut newest = None;
    for sql in [
        "SELECT created_at FROM events WHERE id > 0 ORDER BY id DESC LIMIT 1",
        "SELECT started_at FROM attempts WHERE id > 0 ORDER BY id DESC LIMIT 1",
        "SELECT created_at FROM webhooks WHERE id > 0 ORDER BY id DESC LIMIT 1",
    ] {
        let time = conn.query_row(sql, [], |row| rows::unsigned(row, 0)).optional()?;
        newest = newest.max(time);
    }
    Ok(newest.map(|time| (UnixTime(time), UnixTime(time))))
}

fn times(bytes: &[u8]) -> Vec<UnixTime> {
    let time =
        |chunk: &[u8]| chunk.try_into().ok().map(|bytes| UnixTime(u64::from_le_bytes(bytes)));
    bytes.chunks(8).filter_map(time).collect()
}

fn random<const N: usize>() -> rusqlite::Result<[u8; N]> {
    let mut bytes = [0; N];
    let failed = |error| rusqlite::Error::ToSqlConversionFailure(Box::new(error));
    getrandom::fill(&mut bytes).map_err(failed)?;
    Ok(bytes)
}

fn read_counters(conn: &Connection) -> rusqlite::Result<Counters> {
    let sql = "SELECT waiting, webhooks, deliveries_made, webhooks_made, steady, steady_at \
        FROM counters";
    conn.query_row(sql, [], |row| {
        Ok(Counters {
            waiting: rows::unsigned(row, 0)?,
            webhooks: rows::unsigned(row, 1)?,
            deliveries_made: row.get(2)?,
            webhooks_made: row.get(3)?,
            steady: (UnixTime(rows::unsigned(row, 4)?), UnixTime(rows::unsigned(row, 5)?)),
        })
    })
}
