//! What a gateway tells the others through the store, and hears from them. (core)
//!
//! Not here: when heartbeats are sent (`limit::shared`).

use std::time::Duration;

use weir_common::time::UnixTime;

use super::share::FleetPosition;

/// The script, which returns what [`Heartbeat::read`] reads.
pub(super) const SCRIPT: &str = include_str!("heartbeat.lua");

/// How often a gateway is heard of.
pub(super) const EVERY: Duration = Duration::from_millis(250);

/// For how long a gateway counts after its last heartbeat.
pub(super) const LASTS: Duration = Duration::from_secs(3);

/// The gateways, and until when each counts.
pub(super) const GATEWAYS: &str = "weir1:{gateways}";

/// The number of the newest reset or boost.
pub(super) const CHANGES: &str = "weir1:{gateways}changes";

/// What the store answered to a heartbeat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Heartbeat {
    /// The store's time.
    pub time: UnixTime,
    /// The number of the newest reset or boost.
    pub changes: u64,
    /// Whether the store did not know this gateway: it is new, or the store has lost its data.
    pub is_new: bool,
    /// The gateways that run.
    pub gateways: u32,
    /// This gateway among those that run.
    pub place: FleetPosition,
}

/// The keys and arguments of a heartbeat to the server of keys with this tag; `lasts` of 0 ends the
/// gateway.
pub(super) fn call(id: &str, lasts: Duration, tag: &str) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
    let lasts = lasts.as_millis().to_string();
    let keys = ["", "changes"].map(|name| format!("weir1:{{{tag}}}{name}").into_bytes());
    (keys.to_vec(), vec![id.as_bytes().to_vec(), lasts.into_bytes()])
}

impl Heartbeat {
    /// Reads a reply to the gateway `id`. There are at least `gateways_min` gateways.
    pub(super) fn read(reply: &[String], id: &str, gateways_min: u32) -> Option<Self> {
        let [seconds, micros, changes, fresh, ids @ ..] = reply else { return None };
        let (seconds, micros): (u64, u64) = (seconds.parse().ok()?, micros.parse().ok()?);
        let time = UnixTime(seconds.checked_mul(1_000_000)?.checked_add(micros)?);
        let mut ids: Vec<&str> = ids.iter().map(String::as_str).collect();
        ids.sort_unstable();
        let nth = u32::try_from(ids.iter().position(|other| *other == id)?).ok()?;
        let gateways = u32::try_from(ids.len()).ok()?;
        let place = FleetPosition { nth, of: gateways.max(gateways_min) };
        let (changes, is_new) = (changes.parse().ok()?, fresh == "1");
        Some(Self { time, changes, is_new, gateways, place })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    #[test]
    fn gateways_are_numbered_by_their_ids() {
        let heard = reply(&["17", "5", "3", "1", "c", "a", "b"]);
        let place = |id: &str| Heartbeat::read(&heard, id, 1).map(|heard| heard.place.nth);
        assert_eq!(["a", "b", "c", "d"].map(place), [Some(0), Some(1), Some(2), None]);
        let read = Heartbeat::read(&heard, "a", 5).unwrap();
        assert_eq!((read.time, read.changes, read.is_new), (UnixTime(17_000_005), 3, true));
        assert_eq!((read.gateways, read.place.of), (3, 5), "two have not started yet");
    }

    #[test]
    fn a_reply_of_another_form_is_none() {
        for wrong in [&["1", "2"][..], &["x", "2", "0", "0", "a"], &["1", "2", "y", "0", "a"], &[]]
        {
            assert_eq!(Heartbeat::read(&reply(wrong), "a", 1), None, "{wrong:?}");
        }
    }
}
