//! Keeps the connections to the store by heartbeats.
//!
//! Each server of the store gets heartbeats: they show its time, whether it answers, and whether it
//! has lost what it knew. One of them also has what all gateways have in common: which ones run,
//! and what was reset or boosted.
//!
//! Not here: when heartbeats are sent (`operations::background`), the connection itself
//! (`shared::servers::connection`), when a server is asked again (`shared::servers::availability`).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::super::boost::Boosts;
use super::super::memory::MemoryStore;
use super::SharedStore;
use super::heartbeat::{self, Heartbeat};
use super::servers::availability::Answered;
use super::servers::connection::StoreConnection;
use super::servers::errors::{CONNECT_TIMEOUT, CallError, ConnectError};
use super::servers::join;
use super::servers::node::{Over, StoreNode};
use super::servers::nodes::NodeSet;

/// How often [`SharedStore::beat`] must be called.
pub const BEAT_EVERY: Duration = heartbeat::EVERY;

/// How long a connection to one server may take while others are used.
const BESIDE_OTHERS: Duration = Duration::from_millis(400);

/// What a heartbeat has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Beat {
    /// The server answers, as before.
    Steady,
    /// It answers again, after it had been away, and is asked from now on.
    Recovered,
    /// It answers again, and is not asked yet: gateways tell it what they have admitted alone.
    Recovering,
    /// It does not answer any more.
    Lost(ConnectError),
    /// It does not answer, as before.
    Away(ConnectError),
}

impl SharedStore {
    /// Sends a heartbeat to each server, over a new connection where there is none. Applies what
    /// other gateways have changed to `own`, where it is given. Returns what has become of each
    /// server, and of the slots of a Cluster that have or had none.
    pub async fn beat(&self, own: Option<(&MemoryStore, &Boosts)>) -> Vec<(String, Beat)> {
        let mut known = self.nodes.known();
        let (had_gap, mut refreshed) = (known.gap().is_some(), None);
        if known.nodes.is_empty() {
            refreshed = Some(self.nodes.refresh().await);
            known = self.nodes.known();
        }
        let beats = join::all(known.nodes.iter().map(|node| self.beat_node(&known, node, own)));
        let (beats, unfound) = match refreshed {
            Some(refreshed) => (beats.await, refreshed.err()),
            None => {
                let (beats, refreshed) = tokio::join!(beats, self.nodes.refresh());
                (beats, refreshed.err())
            }
        };
        let named = known.nodes.iter().map(|node| node.address.to_string());
        let mut all: Vec<(String, Beat)> = named.zip(beats).collect();
        if let Some(why) = unfound.filter(|_| all.is_empty()) {
            all.push((self.name(), Beat::Away(why)));
        }
        let gap = self.nodes.known().gap().map(Beat::Away);
        let beat = gap.or(had_gap.then_some(Beat::Recovered));
        all.extend(beat.map(|beat| (self.name(), beat)));
        all
    }

    async fn beat_node(
        &self,
        known: &NodeSet,
        node: &Arc<StoreNode>,
        own: Option<(&MemoryStore, &Boosts)>,
    ) -> Beat {
        let (availability, is_kept) = (&node.availability, node.known_connection().is_some());
        let (mut beaten, mut lost) = (self.beat_once(known, node, own).await, None);
        if is_kept && let Err(error @ ConnectError::Unreachable(_)) = &beaten {
            // The server may have started again since: then it is told all with this heartbeat.
            lost = self.lose(known, node).then(|| error.clone());
            beaten = self.beat_once(known, node, own).await;
        }
        let beat = match beaten {
            Ok(took) => {
                match availability.beaten(self.clock.now().tick, took <= self.config.timeout) {
                    Answered::Steady => Beat::Steady,
                    Answered::Recovered => Beat::Recovered,
                    Answered::Recovering => Beat::Recovering,
                    Answered::TooLate => Beat::Away(ConnectError::TooLate),
                }
            }
            Err(ConnectError::Silent) if availability.is_late_once() => Beat::Steady,
            Err(error) if self.lose(known, node) => Beat::Lost(error),
            Err(error) => Beat::Away(error),
        };
        lost.map_or(beat, Beat::Lost)
    }

    async fn beat_once(
        &self,
        known: &NodeSet,
        node: &Arc<StoreNode>,
        own: Option<(&MemoryStore, &Boosts)>,
    ) -> Result<Duration, ConnectError> {
        let connection = self.connect(known, node).await?;
        let over = Over { node, connection: &connection };
        let beaten = self.beat_over(known, over, own);
        match tokio::join!(beaten, self.nodes.is_replaced(&connection)) {
            (beaten, None) => beaten,
            (_, Some(now)) => {
                Err(ConnectError::Unreachable(format!("the primary is {} now", now.address)))
            }
        }
    }

    /// Drops the connection to a server. True where it was available until now.
    fn lose(&self, known: &NodeSet, node: &Arc<StoreNode>) -> bool {
        node.set_connection(None);
        // Resets of other gateways are missed until the registry is back. Until then each heartbeat
        // forgets all refusals.
        if known.is_registry(node) {
            self.sync_states.forget_refusals();
        }
        node.availability.lost()
    }

    /// Applies what other gateways have changed, where the store is reached.
    pub async fn catch_up(&self, own: (&MemoryStore, &Boosts)) {
        if self.nodes.known().reaches_registry() {
            self.beat_and_log(own).await;
        }
    }

    /// Sends a heartbeat to each server, and logs which are lost or back.
    pub async fn beat_and_log(&self, own: (&MemoryStore, &Boosts)) {
        let beats = self.beat(Some(own)).await;
        self.losses.retain(|server| beats.iter().any(|(own, _)| own == server));
        for (server, beat) in beats {
            match beat {
                Beat::Steady | Beat::Recovering => {}
                Beat::Recovered => self.losses.back(&server),
                // That it cannot be reached is known; why it refuses us is not.
                Beat::Away(why) if why.is_silence() => {}
                Beat::Lost(why) | Beat::Away(why) => self.losses.lost(&server, why.to_string()),
            }
        }
    }

    /// Connects to each server as a gateway does, and leaves nothing there. Returns what fails.
    pub async fn try_servers(&self) -> Vec<(String, ConnectError)> {
        if let Err(why) = self.nodes.refresh().await {
            return vec![(self.name(), why)];
        }
        let known = self.nodes.known();
        let tried = known.nodes.iter().map(async |node| {
            let opened = self.nodes.open(node, 0, self.config.timeout);
            let opened = tokio::time::timeout(CONNECT_TIMEOUT, opened).await;
            let opened = opened.unwrap_or(Err(ConnectError::Silent))?;
            if let Some(tag) = known.tag_on(node) {
                opened.check_rights(tag).await?;
            }
            match known.is_registry(node) {
                true => opened.compare_fingerprint(&self.config.fingerprint).await,
                false => Ok(()),
            }
        });
        let tried = join::all(tried).await.into_iter().zip(&known.nodes);
        let failed =
            tried.filter_map(|(tried, node)| Some((node.address.to_string(), tried.err()?)));
        failed.chain(known.gap().map(|why| (self.name(), why))).collect()
    }

    /// Tells the others that this gateway ends.
    pub async fn end(&self) {
        let known = self.nodes.known();
        for node in &known.nodes {
            if let Some((connection, tag)) = node.connection().zip(known.tag_on(node)) {
                // Where this fails, they notice by themselves, and leases end.
                let over = Over { node, connection: &connection };
                let _ = self.return_leases(&known, over, true).await;
                let _ = self.renew_slots(&known, over, None).await;
                let (keys, arguments) = heartbeat::call(&self.config.id, Duration::ZERO, tag);
                let call = self.heartbeat.call(&keys, &arguments);
                let _ = connection.evaluate(&self.heartbeat, &call).await;
            }
        }
    }

    async fn connect(
        &self,
        known: &NodeSet,
        node: &Arc<StoreNode>,
    ) -> Result<StoreConnection, ConnectError> {
        if let Some(connection) = node.known_connection() {
            return Ok(connection);
        }
        let number = self.connections.fetch_add(1, Ordering::Relaxed) + 1;
        // While other servers answer, their heartbeats do not wait longer for this one.
        let wait = match known.nodes.iter().any(|own| own.availability.is_available()) {
            true => BESIDE_OTHERS,
            false => CONNECT_TIMEOUT,
        };
        let opened = self.nodes.open(node, number, self.config.timeout);
        let opened = tokio::time::timeout(wait, opened).await;
        let late = |_| ConnectError::Unreachable(format!("no answer in {wait:?}"));
        let opened = opened.map_err(late)??;
        if known.is_registry(node) {
            opened.check_fingerprint(&self.config.fingerprint).await?;
        }
        // It may be another server than before, or the same without its data.
        self.owe_node(known, node);
        node.set_connection(Some(opened.clone()));
        Ok(opened)
    }

    /// Returns how long the heartbeat took.
    async fn beat_over(
        &self,
        known: &NodeSet,
        over: Over<'_>,
        own: Option<(&MemoryStore, &Boosts)>,
    ) -> Result<Duration, ConnectError> {
        let Over { node, connection } = over;
        let unreachable = |why: String| ConnectError::Unreachable(why);
        // One without slots has nothing to know.
        let Some(tag) = known.tag_on(node) else {
            return ping(connection).await.map(|()| Duration::ZERO);
        };
        let (keys, arguments) = heartbeat::call(&self.config.id, heartbeat::LASTS, tag);
        let call = self.heartbeat.call(&keys, &arguments);
        let sent = self.clock.now().tick;
        // A store that is as slow as requests may wait for is still used.
        let wait = heartbeat::EVERY.max(self.config.timeout);
        let reply = tokio::time::timeout(wait, connection.evaluate(&self.heartbeat, &call)).await;
        let reply = reply.map_err(|_| ConnectError::Silent)?;
        let replied = self.clock.now().tick;
        let took = replied.since(sent);
        let is_registry = known.is_registry(node);
        if let Some(reply) = self.unless_moving(is_registry, reply)? {
            let texts: Vec<String> = redis::from_redis_value(reply).unwrap_or_default();
            let heard = Heartbeat::read(&texts, &self.config.id, self.config.gateways_min);
            let wrong = || unreachable("its answer to a heartbeat has another form".to_owned());
            let heard = heard.ok_or_else(wrong)?;
            let guessed = connection.time.guessed(replied);
            self.learn_time(connection, heard.time, (sent, replied));
            if let Some((guessed, (store, _))) = guessed.zip(own) {
                self.bring_back(known, node, store, [guessed, replied]);
            }
            if heard.is_new {
                // A store that has lost its data has no fingerprint either, nor what was admitted.
                if is_registry {
                    connection.check_fingerprint(&self.config.fingerprint).await?;
                }
                self.owe_node(known, node);
            }
            if is_registry {
                self.settle_place(&heard, replied);
            }
            if let Some(own) = own.filter(|_| is_registry) {
                let followed = self.follow(connection, own, heard.changes).await;
                self.unless_moving(is_registry, followed)?;
            }
        }
        let Some(own) = own else { return Ok(took) };
        let renewed = self.renew_slots(known, over, Some(own.0)).await;
        renewed.map_err(|error| unreachable(error.to_string()))?;
        // Without the registry nothing is known of resets.
        if self.changes.has_followed() || !known.reaches_registry() {
            let told = self.replay(known, over, own.0).await;
            told.map_err(|error| unreachable(error.to_string()))?;
        }
        let returned = self.return_leases(known, over, false).await;
        returned.map(|()| took).map_err(|error| unreachable(error.to_string()))
    }

    /// What a server replied; none where the slot that was asked for moves: the server answers, and
    /// the next view of the Cluster says where to ask.
    fn unless_moving<T>(
        &self,
        is_registry: bool,
        asked: Result<T, CallError>,
    ) -> Result<Option<T>, ConnectError> {
        match asked {
            Ok(reply) => Ok(Some(reply)),
            Err(CallError::Moved { .. } | CallError::Asked(_) | CallError::Moving) => {
                // Until then resets of other gateways are missed.
                if is_registry {
                    self.sync_states.forget_refusals();
                }
                Ok(None)
            }
            Err(error) => Err(ConnectError::Unreachable(error.to_string())),
        }
    }

    /// Records that a server may have lost all.
    fn owe_node(&self, known: &NodeSet, node: &Arc<StoreNode>) {
        if known.is_registry(node) {
            self.changes.may_lack_changes.store(true, Ordering::Relaxed);
            self.known_since.store(self.clock.now().tick.0, Ordering::Relaxed);
        }
        self.sync_states.owe_all(|check| is_on(known, node, check.slot));
        // Without its data it may admit what it refused before.
        self.sync_states.forget_refusals();
        self.leases.forget_all();
        self.slots.forget_all();
    }
}

/// Whether a server has the keys of a slot of checks.
pub(super) fn is_on(known: &NodeSet, node: &Arc<StoreNode>, slot: u64) -> bool {
    known.of_slot(slot).is_some_and(|own| Arc::ptr_eq(own, node))
}

async fn ping(connection: &StoreConnection) -> Result<(), ConnectError> {
    let answered = connection.command::<Vec<String>>(&[b"TIME"]);
    let answered = tokio::time::timeout(heartbeat::EVERY, answered).await;
    let answered = answered.map_err(|_| ConnectError::Silent)?;
    answered.map(drop).map_err(|error| ConnectError::Unreachable(error.to_string()))
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Mutex;

    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
    use weir_common::limit::calendar::{Calendar, CalendarQuota, CalendarUnit, parse_zone};
    use weir_common::limit::rolling::RollingQuota;
    use weir_common::limit::token_bucket::{BucketQuota, Rate};
    use weir_common::time::{Clock, Moment, Tick, UnixTime};

    use super::super::super::key::{Key, LimitTag};
    use super::super::super::{LimitCheck, Quota};
    use super::super::SharedConfig;
    use super::super::servers::address::{ServerAddress, StoreAddress, StoreLogin, Topology};
    use super::super::servers::login::{Dial, Dialled, Session};
    use super::super::share::FleetPosition;
    use super::*;

    const INFO: &str = "redis_mode:standalone\r\nrole:master\r\nmaxmemory:0\r\n\
        maxmemory_policy:noeviction\r\n";

    /// A reply to a heartbeat of the gateway `0`.
    const HEARD: &str = "*5\r\n$1\r\n7\r\n$1\r\n0\r\n$1\r\n0\r\n$1\r\n0\r\n$1\r\n0\r\n";

    /// A server that gives this reply to scripts.
    struct Server(Mutex<&'static str>);

    impl Server {
        async fn answer(self: Arc<Self>, mut stream: DuplexStream) -> io::Result<()> {
            let mut bytes = [0; 4_096];
            loop {
                let count = stream.read(&mut bytes).await?;
                let command = String::from_utf8_lossy(&bytes[..count]).into_owned();
                let reply = match &*command {
                    "" => return Ok(()),
                    own if own.contains("INFO") => format!("${}\r\n{INFO}\r\n", INFO.len()),
                    own if own.contains("EVALSHA") => (*self.0.lock().unwrap()).to_owned(),
                    _ => "$1\r\nf\r\n".to_owned(),
                };
                stream.write_all(reply.as_bytes()).await?;
            }
        }
    }

    struct Way(Arc<Server>);

    impl Dial for Way {
        #[expect(clippy::disallowed_methods, reason = "they end with the runtime of the test")]
        fn dial<'d>(&'d self, _: &'d StoreLogin, _: &'d ServerAddress) -> Dialled<'d> {
            Box::pin(async {
                let (stream, far) = tokio::io::duplex(4_096);
                tokio::spawn(self.0.clone().answer(far));
                Session::over(stream, &StoreLogin::default()).await
            })
        }
    }

    fn store_on(server: &Arc<Server>, clock: &Clock) -> SharedStore {
        let config = SharedConfig {
            address: StoreAddress {
                topology: Topology::Single,
                servers: vec![ServerAddress { host: "store".to_owned(), port: 1 }],
                login: StoreLogin::default(),
                sentinel_password_file: None,
                acknowledge: 0,
            },
            timeout: Duration::from_secs(1),
            gateways_min: 1,
            fingerprint: "f".to_owned(),
            id: "0".to_owned(),
        };
        SharedStore::new(config, clock.clone(), Arc::new(Way(server.clone())))
    }

    #[tokio::test]
    async fn a_store_that_has_lost_the_others_makes_no_share_larger_before_they_can_be_back() {
        let server = Arc::new(Server(Mutex::new(HEARD)));
        let clock = Clock::manual(UnixTime(1_000_000_000));
        let shared = store_on(&server, &clock);
        let place = async |reply, millis| {
            *server.0.lock().unwrap() = reply;
            clock.advance(Duration::from_millis(millis));
            shared.beat(None).await;
            shared.place()
        };
        let both = "*6\r\n$1\r\n7\r\n$1\r\n0\r\n$1\r\n0\r\n$1\r\n0\r\n$1\r\n0\r\n$1\r\n1\r\n";
        let half = FleetPosition { nth: 0, of: 2 };
        assert_eq!(place(both, 0).await, half);
        assert_eq!(place(HEARD, 250).await, half, "the connection is new");
        assert_eq!(place(HEARD, 3_000).await, FleetPosition::ALONE, "the other one has ended");
        assert_eq!(place(both, 250).await, half);
        let anew = "*5\r\n$1\r\n7\r\n$1\r\n0\r\n$1\r\n0\r\n$1\r\n1\r\n$1\r\n0\r\n";
        assert_eq!(place(anew, 250).await, half, "it has lost its data");
        assert_eq!(place(HEARD, 2_750).await, half);
        assert_eq!(place(HEARD, 250).await, FleetPosition::ALONE);
    }

    #[tokio::test]
    async fn what_was_admitted_by_a_clock_that_was_ahead_counts_for_its_window_and_no_longer() {
        // A day and an hour ahead of the server's.
        let clock = Clock::manual(UnixTime(90_007_000_000));
        let shared = store_on(&Arc::new(Server(Mutex::new(HEARD))), &clock);
        let store = MemoryStore::new(16);
        let rolling =
            |requests| Quota::Rolling(RollingQuota { requests, window: Duration::from_secs(5) });
        let rate = Rate::per_second(2);
        let calendar = Calendar { unit: CalendarUnit::Day, zone: parse_zone("UTC").unwrap() };
        let quotas = [
            (rolling(30), 12),
            (rolling(100_000), 12),
            (Quota::Bucket(BucketQuota { rate, burst: 30 }), 9),
            (Quota::Calendar(CalendarQuota::new(30, calendar)), 86_400),
        ];
        let at = |seconds: u64| Moment {
            tick: Tick(seconds * 1_000_000),
            unix: UnixTime(seconds * 1_000_000),
        };
        let check = |nth: u128, now: Moment| {
            let (quota, _) = quotas[usize::try_from(nth).unwrap()];
            let key = Key::from_bits(nth << 96 | nth);
            LimitCheck::new(key, LimitTag::from_bits(nth), quota.at(now))
        };
        for nth in 0..4 {
            let checks = [check(nth, shared.moment(clock.now()))];
            for _ in 0..5 {
                assert!(shared.check(&store, &checks, true).await.unwrap().is_admitted());
            }
        }
        shared.beat(Some((&store, &Boosts::default()))).await;
        for (nth, (quota, until)) in (0..4).zip(quotas) {
            let usage = |now| store.usage(&check(nth, now), now.tick).unwrap();
            assert_eq!(usage(at(7)).remaining, quota.limit() - 5, "{quota:?}");
            let full_at = usage(at(7)).full_at;
            assert!(full_at < at(until).tick.plus(Duration::from_millis(700)), "{full_at:?}");
            assert_eq!(usage(at(until + 1)).remaining, quota.limit(), "{quota:?}");
        }
    }

    #[tokio::test]
    async fn a_server_from_which_the_slot_of_heartbeats_moves_is_not_away() {
        let server = Arc::new(Server(Mutex::new(HEARD)));
        let clock = Clock::manual(UnixTime(1_000_000_000));
        let shared = store_on(&server, &clock);
        let beat = async |reply| {
            *server.0.lock().unwrap() = reply;
            shared.beat(None).await.remove(0).1
        };
        assert_eq!(beat(HEARD).await, Beat::Recovered);
        for reply in ["-MOVED 7 store:2\r\n", "-ASK 7 store:2\r\n", "-TRYAGAIN it\r\n"] {
            let forgotten = shared.sync_states.forgotten();
            assert_eq!((beat(reply).await, shared.servers()), (Beat::Steady, [1, 1, 0]), "{reply}");
            assert!(shared.sync_states.forgotten() > forgotten, "resets of others are missed");
        }
        let number = shared.registry().map(|connection| connection.number);
        assert_eq!(number, Some(1), "it has the same connection");
        assert!(matches!(beat("-LOADING it\r\n").await, Beat::Lost(_)));
    }
}
