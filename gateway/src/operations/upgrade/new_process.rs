//! The new process's side of an upgrade: receives the predecessor's sockets and counters, and then
//! decides its checks.
//!
//! # Invariants
//!
//! 1. This process accepts nothing before it has everything, and needs nothing from the predecessor
//!    afterwards.
//! 2. What the predecessor has in flight is released when it says so, or when it ends.
//! 3. The predecessor's checks are decided like this process's own, with the predecessor's
//!    allowances. Where a limit now has another window or algorithm, this process's allowance is
//!    used: the state must not be converted back to the earlier one.
//!
//! # Not here
//!
//! The old process's side (`upgrade::old_process`), the messages (`upgrade::protocol`).

use std::collections::HashMap;
use std::io;
use std::net::TcpListener;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream as StdStream;
use std::sync::Arc;

use log::Level;
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;
use tokio::sync::watch;
use weir_common::log::events;
use weir_common::time::Tick;

use crate::config::shared::Shared;
use crate::edge::drain::wait_until_true;
use crate::limit::boost::Boost;
use crate::limit::key::Key;
use crate::limit::shared::sync_state::SyncedKeys;
use crate::limit::snapshot;
use crate::operations::upgrade::old_process::of_machine;
use crate::operations::upgrade::protocol::{
    self, Kind, Messages, NamedSocket, Offer, OtherStates, PROTOCOL,
};
use crate::operations::upgrade::{READY_WAIT, UpgradeError, broken, sockets};

/// The process that this one replaces.
pub struct Predecessor {
    pub(super) stream: StdStream,
    /// Its offer.
    pub offer: Offer,
    /// Its listening sockets.
    pub sockets: Vec<(NamedSocket, TcpListener)>,
    /// Its requests that are counted as in flight.
    pub(super) in_flight: InFlight,
}

/// The requests of the predecessor that are counted as in flight, by key.
pub(super) type InFlight = HashMap<Key, u32>;

impl Predecessor {
    /// Connects to it over standard input, and receives its sockets.
    pub fn connect() -> Result<Self, UpgradeError> {
        let connecting = "connecting to the earlier process";
        let stdin = io::stdin().as_fd().try_clone_to_owned().map_err(broken(connecting))?;
        let mut stream = StdStream::from(stdin);
        // Fails for anything but a socket.
        stream.set_read_timeout(Some(READY_WAIT)).map_err(|_| UpgradeError::NoSocket)?;
        protocol::write(&mut stream, Kind::Hello, &PROTOCOL.to_le_bytes())
            .map_err(broken(connecting))?;
        let passed = sockets::receive(&stream).map_err(broken("receiving sockets"))?;
        let (kind, offer) = protocol::read(&mut stream).map_err(broken("receiving sockets"))?;
        let offer: Offer = match serde_json::from_slice(&offer) {
            Ok(offer) if kind == Kind::Offer => offer,
            _ => return Err(UpgradeError::Unexpected("the names of its sockets")),
        };
        if offer.sockets.len() != passed.len() {
            return Err(UpgradeError::Unexpected("one name for each of its sockets"));
        }
        let sockets = offer.sockets.iter().cloned().zip(passed).collect();
        Ok(Self { stream, offer, sockets, in_flight: InFlight::new() })
    }

    /// Reports why this process cannot take over.
    pub fn fail(mut self, why: &str) {
        // An error means that it has ended too, and does not need this.
        let _ = protocol::write(&mut self.stream, Kind::Failed, why.as_bytes());
    }

    /// Reports readiness, and receives the counters. Returns how many states there were.
    pub fn receive_counters(&mut self, shared: &Shared) -> Result<usize, UpgradeError> {
        let receiving = "receiving the counters";
        protocol::write(&mut self.stream, Kind::Ready, &[]).map_err(broken(receiving))?;
        let mut count = 0;
        loop {
            let (kind, body) = protocol::read(&mut self.stream).map_err(broken(receiving))?;
            let damaged = || broken(receiving)(io::ErrorKind::InvalidData.into());
            match kind {
                Kind::States => {
                    let (store, now) = shared.limiter.own(shared.clock.now().tick);
                    let restored = snapshot::restore(&body, store, of_machine(now));
                    let (states, keys) = restored.map_err(|_| damaged())?;
                    shared.restore_synced(SyncedKeys { resets: 0, keys });
                    count += states;
                }
                Kind::Moved => {
                    let rest: OtherStates = serde_json::from_slice(&body).map_err(|_| damaged())?;
                    self.restore_rest(shared, rest).map_err(|_| damaged())?;
                    // This process accepts nothing yet: all of them are the predecessor's.
                    self.in_flight = shared.limiter.store.in_flight();
                    // An error means that it has ended; this process has everything already.
                    let _ = protocol::write(&mut self.stream, Kind::Received, &[]);
                    return Ok(count);
                }
                _ => return Err(UpgradeError::Unexpected("its counters")),
            }
        }
    }

    fn restore_rest(&self, shared: &Shared, rest: OtherStates) -> io::Result<()> {
        let now = shared.clock.now().tick;
        for (bits, raised, until) in rest.boosts {
            let raised = protocol::values_of(&raised)?;
            let boost = Boost { raised, until: Tick(until) };
            // Cannot fail: the predecessor has no more boosts than are allowed.
            let _ =
                shared.limiter.boosts.set(Key::from_bits(u128::from_le_bytes(bits)), boost, now);
        }
        shared.limiter.store.keep_until(Tick(rest.keep_until));
        let (store, counted) = shared.limiter.own(now);
        shared.restore_synced(SyncedKeys { resets: rest.resets, keys: Vec::new() });
        rest.memory.retain_in(store, &shared.active.load().rules, counted);
        Ok(())
    }

    /// Decides its checks until it ends. Sends it [`Kind::End`] when this process stops.
    pub async fn serve(self, shared: Arc<Shared>, ending: watch::Receiver<bool>) {
        let mut in_flight = self.in_flight;
        let served = serve(self.stream, &shared, ending, &mut in_flight).await;
        // It has ended, and all of its requests with it.
        for (key, count) in in_flight {
            (0..count).for_each(|_| shared.limiter.release(key));
        }
        if let Err(error) = served {
            let fields = [("error", json!(error.to_string()))];
            events::event(Level::Warn, "predecessor connection lost", &fields);
        }
    }
}

async fn serve(
    stream: StdStream,
    shared: &Shared,
    mut ending: watch::Receiver<bool>,
    in_flight: &mut InFlight,
) -> io::Result<()> {
    stream.set_read_timeout(None)?;
    stream.set_nonblocking(true)?;
    let (reader, mut writer) = UnixStream::from_std(stream)?.into_split();
    let mut frames = Messages::new(reader);
    let mut bytes = Vec::new();
    let mut end_sent = false;
    loop {
        let frame = tokio::select! {
            frame = frames.next() => frame?,
            () = wait_until_true(&mut ending), if !end_sent => {
                end_sent = true;
                protocol::put(&mut bytes, Kind::End, &[]);
                writer.write_all(&bytes).await?;
                bytes.clear();
                continue;
            }
        };
        let Some(mut frame) = frame else { return Ok(()) };
        loop {
            match frame {
                (Kind::Check, body) => put_answer(&mut bytes, &body, shared, in_flight).await?,
                (Kind::Released, body) => release(&body, shared, in_flight)?,
                _ => return Err(io::ErrorKind::InvalidData.into()),
            }
            match frames.ready()? {
                Some(next) => frame = next,
                None => break,
            }
        }
        writer.write_all(&bytes).await?;
        bytes.clear();
    }
}

async fn put_answer(
    bytes: &mut Vec<u8>,
    body: &[u8],
    shared: &Shared,
    in_flight: &mut InFlight,
) -> io::Result<()> {
    let now = shared.clock.now();
    let mut checks = protocol::read_checks(body, now)?;
    let active = shared.active.load_full();
    checks.iter_mut().for_each(|check| active.rules.adapt(check, now));
    let Ok(mut verdict) = shared.limiter.check_waiting(&mut checks).await else {
        // This request alone has none: others may need no store that is away.
        protocol::put(bytes, Kind::NoVerdict, &[]);
        return Ok(());
    };
    // The request is in flight there: its end is a message, or the end of that process.
    for key in verdict.held.take().into_iter().flat_map(|held| held.into_keys()) {
        *in_flight.entry(key).or_default() += 1;
    }
    let mut answer = Vec::with_capacity(256 * checks.len());
    protocol::put_answer(&mut answer, &verdict, &checks)?;
    protocol::put(bytes, Kind::Answer, &answer);
    Ok(())
}

/// Releases requests that have ended in the predecessor.
fn release(body: &[u8], shared: &Shared, in_flight: &mut InFlight) -> io::Result<()> {
    for key in protocol::read_released(body)? {
        // One that it does not hold is a fault of its own, and releases nothing.
        let Some(count) = in_flight.get_mut(&key) else { continue };
        *count = count.saturating_sub(1);
        if *count == 0 {
            in_flight.remove(&key);
        }
        shared.limiter.release(key);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use weir_common::limit::rolling::RollingQuota;
    use weir_common::limit::token_bucket::{BucketQuota, Rate};
    use weir_common::time::{Moment, UnixTime};

    use super::*;
    use crate::config::checked::Config;
    use crate::limit::key::Seed;
    use crate::limit::{LimitCheck, Quota};

    #[test]
    fn a_check_of_another_quota_is_made_as_the_limit_is_now() {
        let seed = Seed::new([4; 16]);
        let rules = Config::built_in().load(seed).unwrap().rules;
        let now = rules.limits.iter().find(|limit| &*limit.name == "workspace").unwrap().quota;
        let window = |requests, seconds| {
            let window = Duration::from_secs(seconds);
            Quota::Rolling(RollingQuota { requests, window })
        };
        let adapted = |name: &str, quota| {
            let (key, limit) = (Key::from_bits(1), seed.limit(name));
            let mut check = LimitCheck { known: true, ..LimitCheck::new(key, limit, quota) };
            let moment = Moment { tick: Tick(1), unix: UnixTime(1) };
            rules.adapt(&mut check, moment);
            assert_eq!(check.quota, check.lasting);
            check.quota
        };
        let own = window(600, now.window().as_secs());
        assert_eq!(adapted("workspace", own), own, "a tenant's own value stays");
        let bucket = Quota::Bucket(BucketQuota { rate: Rate::per_second(1), burst: 2 });
        for then in [window(600, 1), window(600, 7_200), bucket] {
            assert_eq!(adapted("workspace", then), now);
            assert_eq!(adapted("gone", then), then);
        }
    }
}
