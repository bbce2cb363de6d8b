//! Finds the server that has a key, and follows where it moves.
//!
//! # Invariants
//!
//! 1. A call is sent on only where the server says that it has not executed it.
//! 2. A server that takes the place of another is asked only after the gateways have had the time
//!    to tell it what they admitted meanwhile.
//!
//! # Not here
//!
//! Heartbeats (`shared::connecting`), how views of a Cluster are merged (`servers::cluster`).

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use arrayvec::ArrayString;
use redis::{Cmd, Value};
use weir_common::time::Clock;

use super::super::super::key::hex;
use super::address::{ServerAddress, StoreAddress, Topology};
use super::cluster::{ClusterMap, SLOTS, slot_of};
use super::connection::StoreConnection;
use super::errors::{CONNECT_TIMEOUT, CallError, ConnectError, refused_view};
use super::join;
use super::link::Script;
use super::login::Dial;
use super::node::{Over, StoreNode};
use super::sentinel::{NamedPrimary, Sentinels};
use super::thread_links::Destination;

/// What is between the braces of the keys that all gateways have in common.
pub(in super::super) const REGISTRY_TAG: &str = "gateways";

/// How often a call follows a key that moves.
const REDIRECTS_MAX: usize = 5;

/// After which time a call is repeated whose keys are between two servers.
const MOVING_WAIT: Duration = Duration::from_millis(2);

/// How long servers may take to say who has which slots.
const VIEW_TIMEOUT: Duration = Duration::from_millis(250);

/// How many servers are asked for their view at once.
const VIEWS: usize = 3;

/// The servers of a store.
pub(in super::super) struct Nodes {
    address: StoreAddress,
    clock: Clock,
    dial: Arc<dyn Dial>,
    /// For how long a call is repeated whose keys are between two servers.
    moving_max: Duration,
    sentinels: Option<Sentinels>,
    known: RwLock<Arc<NodeSet>>,
    /// Which server is asked for its view next.
    turn: AtomicUsize,
}

/// The servers that are known at one time.
#[derive(Debug)]
pub(in super::super) struct NodeSet {
    /// The servers.
    pub nodes: Vec<Arc<StoreNode>>,
    /// Who has which slot; none where one server has all.
    cluster: Option<Slots>,
}

#[derive(Debug, Default)]
struct Slots {
    map: ClusterMap,
    /// The server of each slot, as its number in `nodes`: the map's, and what has moved since.
    owners: Vec<AtomicUsize>,
    /// Of each server, text that leads to a key on it.
    tags: Vec<Option<String>>,
}

impl Slots {
    fn of(map: ClusterMap) -> Self {
        let owner = |slot| AtomicUsize::new(map.owner(slot).unwrap_or(NOWHERE));
        let owners = (0..SLOTS).map(owner).collect();
        let tags = (0..map.primaries.len()).map(|nth| tag_on(&map, nth)).collect();
        Self { map, owners, tags }
    }
}

/// Text that leads to a key on a primary; none where it has no slot.
fn tag_on(map: &ClusterMap, primary: usize) -> Option<String> {
    map.slot_owned_by(primary)?;
    let is_own = |tag: &String| map.owner(slot_of(tag.as_bytes())) == Some(primary);
    // One of 16,384 slots is found after as many attempts on average.
    (0..200_000).map(|nth| format!("node{nth}")).find(is_own)
}

/// The number of no server.
const NOWHERE: usize = usize::MAX;

impl NodeSet {
    /// The server that has the keys with this text between their braces.
    pub(in super::super) fn of_tag(&self, tag: &str) -> Option<&Arc<StoreNode>> {
        match &self.cluster {
            None => self.nodes.first(),
            Some(slots) => {
                let owner = slots.owners.get(slot_of(tag.as_bytes()))?;
                self.nodes.get(owner.load(Ordering::Relaxed))
            }
        }
    }

    /// The server that has the keys of a slot of checks.
    pub(in super::super) fn of_slot(&self, slot: u64) -> Option<&Arc<StoreNode>> {
        match &self.cluster {
            None => self.nodes.first(),
            Some(_) => self.of_tag(&tag(slot)),
        }
    }

    /// Whether a server has the keys that all gateways have in common.
    pub(in super::super) fn is_registry(&self, node: &Arc<StoreNode>) -> bool {
        self.of_tag(REGISTRY_TAG).is_some_and(|own| Arc::ptr_eq(own, node))
    }

    /// Whether there is a connection to the server that has them.
    pub(in super::super) fn reaches_registry(&self) -> bool {
        self.of_tag(REGISTRY_TAG).is_some_and(|own| own.known_connection().is_some())
    }

    /// Text that leads to a key on this server; none where it has no slot.
    pub(in super::super) fn tag_on(&self, node: &Arc<StoreNode>) -> Option<&str> {
        if self.is_registry(node) {
            return Some(REGISTRY_TAG);
        }
        let nth = self.nodes.iter().position(|own| Arc::ptr_eq(own, node))?;
        self.cluster.as_ref()?.tags.get(nth)?.as_deref()
    }

    /// How many slots have no server: what has its keys there is decided alone.
    pub(in super::super) fn unserved(&self) -> usize {
        let owners = self.cluster.iter().flat_map(|slots| &slots.owners);
        owners.filter(|owner| owner.load(Ordering::Relaxed) == NOWHERE).count()
    }

    /// What is wrong where slots have no server.
    pub(in super::super) fn gap(&self) -> Option<ConnectError> {
        let unserved = Some(self.unserved()).filter(|count| *count > 0)?;
        Some(ConnectError::Rejected(format!(
            "{unserved} of {SLOTS} slots have no server: create the Cluster, or run `redis-cli \
             --cluster fix`"
        )))
    }

    fn at(&self, address: &str, from: &StoreNode) -> Option<(usize, &Arc<StoreNode>)> {
        // A server that does not know its address leaves it out.
        let read = match address.strip_prefix(':') {
            Some(port) => ServerAddress::read(&format!("{}:{port}", from.address.host)),
            None => ServerAddress::read(address),
        };
        let read = read?;
        self.nodes.iter().enumerate().find(|(_, own)| own.address == read)
    }

    fn moved(&self, slot: usize, to: usize) {
        let owner = self.cluster.as_ref().and_then(|slots| slots.owners.get(slot));
        if let Some(owner) = owner {
            owner.store(to, Ordering::Relaxed);
        }
    }
}

/// What is between the braces of the keys of a slot.
pub(in super::super) fn tag(slot: u64) -> ArrayString<32> {
    hex(slot.into(), 16)
}

impl Nodes {
    /// The servers of an address, none of them connected. Those of a Cluster are not known yet. A
    /// call may take `timeout`.
    pub(in super::super) fn new(
        (address, timeout): (StoreAddress, Duration),
        clock: Clock,
        dial: Arc<dyn Dial>,
    ) -> Self {
        let sentinels = match &address.topology {
            Topology::Sentinel(primary) => Some(Sentinels::new(&address, primary, dial.clone())),
            Topology::Single | Topology::Cluster => None,
        };
        let (mut nodes, mut cluster) = (Vec::new(), None);
        if address.topology == Topology::Cluster {
            cluster = Some(Slots::default());
        } else if let Some(first) = address.servers.first() {
            nodes.push(Arc::new(StoreNode::new(first.clone(), false, clock.now())));
        }
        let known = RwLock::new(Arc::new(NodeSet { nodes, cluster }));
        // What is left of its time is enough to know that the keys are still between them.
        let (moving_max, turn) = (timeout * 3 / 4, AtomicUsize::new(0));
        Self { address, clock, dial, moving_max, sentinels, known, turn }
    }

    /// The servers that are known now.
    pub(in super::super) fn known(&self) -> Arc<NodeSet> {
        self.known.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(in super::super) fn is_cluster(&self) -> bool {
        self.address.topology == Topology::Cluster
    }

    /// Connects to a server, and checks that it can be used.
    pub(in super::super) async fn open(
        &self,
        node: &StoreNode,
        number: u64,
        timeout: Duration,
    ) -> Result<StoreConnection, ConnectError> {
        let named = match &self.sentinels {
            None => None,
            Some(sentinels) => Some(sentinels.find(true).await?),
        };
        let at = named.as_ref().map_or(&node.address, |named| &named.address);
        let clock = (number, node.time.clone());
        let to = Destination {
            dial: self.dial.clone(),
            login: self.address.login.clone(),
            server: at.clone(),
            acknowledge: (self.address.acknowledge, timeout),
            clock: self.clock.clone(),
        };
        let opened = StoreConnection::open(to, &self.address.topology, clock).await;
        let Some(named) = named else { return opened };
        let mut opened = opened.map_err(|why| why.of_primary(&named.address))?;
        opened.primary = Some(named);
        Ok(opened)
    }

    /// Whether Sentinels name another primary than the one that a connection leads to.
    pub(in super::super) async fn is_replaced(
        &self,
        connection: &StoreConnection,
    ) -> Option<NamedPrimary> {
        let named = self.sentinels.as_ref()?.find(false).await.ok()?;
        (connection.primary.as_ref() != Some(&named)).then_some(named)
    }

    /// Finds the servers of a Cluster; of others they are known.
    pub(in super::super) async fn refresh(&self) -> Result<(), ConnectError> {
        if !self.is_cluster() {
            return Ok(());
        }
        let known = self.known();
        let mut views = self.views(&known).await;
        if views.is_empty() {
            let found = join::all(self.address.servers.iter().map(|at| self.first_view(at))).await;
            let mut failures = Vec::new();
            for view in found {
                match view {
                    Ok(view) => views.push(view),
                    Err(why) => failures.push(why),
                }
            }
            if views.is_empty() {
                let first = failures.into_iter().next().unwrap_or(ConnectError::Silent);
                return Err(first);
            }
        }
        let Some(slots) = &known.cluster else { return Ok(()) };
        let map = views.into_iter().fold(slots.map.clone(), ClusterMap::merged);
        if map != slots.map {
            *self.known.write().unwrap_or_else(PoisonError::into_inner) =
                Arc::new(self.arranged(&known, map));
        }
        Ok(())
    }

    /// The servers of a map; those that are known keep their connections.
    fn arranged(&self, known: &NodeSet, map: ClusterMap) -> NodeSet {
        let is_first = known.nodes.is_empty();
        let node = |address: &ServerAddress| {
            let own = known.nodes.iter().find(|own| own.address == *address).cloned();
            own.unwrap_or_else(|| {
                Arc::new(StoreNode::new(address.clone(), !is_first, self.clock.now()))
            })
        };
        let nodes = map.primaries.iter().map(|primary| node(&primary.address)).collect();
        NodeSet { nodes, cluster: Some(Slots::of(map)) }
    }

    /// What some connected servers say of the Cluster.
    async fn views(&self, known: &NodeSet) -> Vec<ClusterMap> {
        let connected: Vec<(&StoreNode, StoreConnection)> = known
            .nodes
            .iter()
            .filter_map(|node| Some((&**node, node.known_connection()?)))
            .collect();
        let from = self.turn.fetch_add(1, Ordering::Relaxed) % connected.len().max(1);
        let asked = connected.iter().cycle().skip(from).take(VIEWS.min(connected.len()));
        let views = asked.map(async |(node, connection)| {
            let view = connection.command::<String>(&[b"CLUSTER", b"NODES"]);
            let view = tokio::time::timeout(VIEW_TIMEOUT, view).await.ok()?.ok()?;
            Some(ClusterMap::read(&view, &node.address, self.address.login.tls))
        });
        let views = join::all(views).await.into_iter().flatten();
        views.filter(|view| !view.primaries.is_empty()).collect()
    }

    /// What a server says of the Cluster that no connection leads to.
    async fn first_view(&self, at: &ServerAddress) -> Result<ClusterMap, ConnectError> {
        let asked = async {
            let connection = self.dial.dial(&self.address.login, at).await?;
            let mut question = redis::cmd("CLUSTER");
            question.arg("NODES");
            let reply = connection.send(&question).await;
            let reply = reply.map_err(|error| refused_view(&error))?;
            let text: String = redis::from_redis_value(reply).unwrap_or_default();
            Ok(ClusterMap::read(&text, at, self.address.login.tls))
        };
        let wait = CONNECT_TIMEOUT;
        let view = tokio::time::timeout(wait, asked).await.unwrap_or(Err(ConnectError::Silent))?;
        match view.primaries.is_empty() {
            true => Err(ConnectError::Unreachable(format!("{at} knows no primary"))),
            false => Ok(view),
        }
    }

    /// Runs a script where its keys are. Returns the reply, and the connection it came over.
    pub(in super::super) async fn evaluate(
        &self,
        from: Over<'_>,
        script: &Script,
        call: &Cmd,
    ) -> Result<(Value, StoreConnection), CallError> {
        let (mut node, mut over) = (from.node.clone(), from.connection.clone());
        let mut is_asking = false;
        let (started_at, mut redirects) = (self.clock.now().tick, 0);
        while redirects < REDIRECTS_MAX {
            let ran = match is_asking {
                false => over.evaluate(script, call).await,
                true => over.evaluate_early(script, call).await,
            };
            let (to, slot) = match ran {
                Err(CallError::Moved { slot, to }) => (to, Some(slot)),
                Err(CallError::Asked(to)) => (to, None),
                Err(CallError::Moving)
                    if self.clock.now().tick.since(started_at) < self.moving_max =>
                {
                    tokio::time::sleep(MOVING_WAIT).await;
                    continue;
                }
                other => return other.map(|reply| (reply, over)),
            };
            let known = self.known();
            let Some((nth, next)) = known.at(&to, &node) else { return Err(CallError::Moving) };
            if let Some(slot) = slot {
                known.moved(slot, nth);
            }
            let Some(connection) = next.connection() else { return Err(CallError::Moving) };
            (node, over, is_asking) = (next.clone(), connection, slot.is_none());
            redirects += 1;
        }
        Err(CallError::Moving)
    }
}

#[path = "nodes/tests.rs"]
#[cfg(test)]
mod tests;
