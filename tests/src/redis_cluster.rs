//! A Redis Cluster of three primaries for one test, each with one replica or none.

use crate::redis::{Redis, Reply};
use crate::upstream::Upstream;
use crate::wait;

/// The slots of a Cluster.
const SLOTS: usize = 16_384;

/// The primaries.
const PRIMARIES: usize = 3;

/// The nodes of a Cluster: the primaries, and then their replicas in the same order.
pub struct RedisCluster {
    /// The nodes.
    pub nodes: Vec<Redis>,
    /// The ports over which nodes hear of each other stay reserved.
    _buses: Vec<Upstream>,
}

impl RedisCluster {
    /// Starts a Cluster with so many replicas of each primary, and these options of each node.
    #[track_caller]
    pub fn start(replicas: usize, options: &[&str]) -> Self {
        let count = PRIMARIES * (1 + replicas);
        let buses: Vec<Upstream> = (0..count).map(|_| Upstream::refusing()).collect();
        let node = |bus: &Upstream| {
            let address = bus.address();
            let bus = address.rsplit(':').next().unwrap_or_default();
            let own = ["--cluster-enabled", "yes", "--cluster-node-timeout", "2000"];
            let own = [&own[..], &["--cluster-port", bus], options].concat();
            Redis::start(&own)
        };
        let cluster = Self { nodes: buses.iter().map(node).collect(), _buses: buses };
        cluster.join();
        cluster
    }

    /// The URL of its first node.
    pub fn url(&self) -> String {
        self.nodes[0].url()
    }

    /// The node that has the keys with this text between their braces, as its number.
    #[track_caller]
    pub fn owner(&self, tag: &str) -> usize {
        let slot = self.slot(tag);
        let view = self.view();
        let has = |line: &&str| {
            let mut ranges = line.split(' ').skip(8).filter(|range| !range.starts_with('['));
            ranges.any(|range| {
                let (first, last) = range.split_once('-').unwrap_or((range, range));
                (first.parse().unwrap()..=last.parse().unwrap()).contains(&slot)
            })
        };
        let line = view.lines().find(has).unwrap_or_else(|| panic!("no owner: {view}"));
        let id = line.split(' ').next().unwrap();
        self.nodes.iter().position(|node| id_of(node) == id).unwrap()
    }

    /// The slot of the keys with this text between their braces.
    #[track_caller]
    pub fn slot(&self, tag: &str) -> usize {
        let node = self.nodes.iter().find(|node| node.try_run("PING").is_ok()).unwrap();
        match node.run(&format!("CLUSTER KEYSLOT {tag}")) {
            Reply::Number(slot) => usize::try_from(slot).unwrap(),
            other => panic!("{other:?}"),
        }
    }

    /// The tag of each key of a limit, with the node that has it.
    pub fn tags(&self) -> Vec<(String, usize)> {
        let mut all = Vec::new();
        for (nth, node) in self.nodes.iter().take(PRIMARIES).enumerate() {
            // One that was killed has none.
            let Ok(Reply::List(keys)) = node.try_run("KEYS weir1:*") else { continue };
            for key in keys {
                let Reply::Text(key) = key else { panic!("no text") };
                let tag = key.split(['{', '}']).nth(1).unwrap().to_owned();
                if tag.len() == 16 {
                    all.push((tag, nth));
                }
            }
        }
        all
    }

    /// What the first node that answers says of all.
    #[track_caller]
    pub fn view(&self) -> String {
        let mut answers = self.nodes.iter().filter_map(|node| node.try_run("CLUSTER NODES").ok());
        match answers.next() {
            Some(Reply::Text(view)) => view,
            other => panic!("{other:?}"),
        }
    }

    /// Moves a slot with its keys to another primary: `between` runs while neither has it alone.
    #[track_caller]
    pub fn migrate(&self, slot: usize, (from, to): (usize, usize), between: impl FnOnce()) {
        let [from, to] = [from, to].map(|nth| &self.nodes[nth]);
        to.run(&format!("CLUSTER SETSLOT {slot} IMPORTING {}", id_of(from)));
        from.run(&format!("CLUSTER SETSLOT {slot} MIGRATING {}", id_of(to)));
        between();
        loop {
            let Reply::List(keys) = from.run(&format!("CLUSTER GETKEYSINSLOT {slot} 100")) else {
                panic!("no list")
            };
            if keys.is_empty() {
                break;
            }
            let port = to.port();
            let mut migrate = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"];
            migrate.extend(keys.iter().map(|key| match key {
                Reply::Text(key) => &**key,
                other => panic!("{other:?}"),
            }));
            from.run_words(&migrate);
        }
        for node in [to, from] {
            node.run(&format!("CLUSTER SETSLOT {slot} NODE {}", id_of(to)));
        }
    }

    #[track_caller]
    fn join(&self) {
        for (nth, node) in self.nodes.iter().enumerate() {
            node.run(&format!("CLUSTER SET-CONFIG-EPOCH {}", nth + 1));
        }
        let first = &self.nodes[0];
        for node in &self.nodes[1..] {
            let bus = self.bus_of(node);
            first.run(&format!("CLUSTER MEET 127.0.0.1 {} {bus}", node.port()));
        }
        for (nth, node) in self.nodes.iter().take(PRIMARIES).enumerate() {
            let from = nth * SLOTS / PRIMARIES;
            let to = (nth + 1) * SLOTS / PRIMARIES - 1;
            node.run(&format!("CLUSTER ADDSLOTSRANGE {from} {to}"));
        }
        let all = self.nodes.len();
        let knows_all = |node: &Redis| match node.run("CLUSTER NODES") {
            Reply::Text(view) => {
                view.lines().filter(|line| !line.contains("handshake")).count() == all
            }
            _ => false,
        };
        wait::until("the nodes to know each other", || {
            self.nodes.iter().all(knows_all).then_some(())
        });
        for (nth, node) in self.nodes.iter().enumerate().skip(PRIMARIES) {
            node.run(&format!("CLUSTER REPLICATE {}", id_of(&self.nodes[nth % PRIMARIES])));
        }
        let is_linked = |node: &Redis| match node.run("INFO replication") {
            Reply::Text(info) => info.contains("master_link_status:up"),
            _ => false,
        };
        let is_well = |node: &Redis| match node.run("CLUSTER INFO") {
            Reply::Text(info) => info.contains("cluster_state:ok"),
            _ => false,
        };
        wait::until("the Cluster to be ready", || {
            let replicas = &self.nodes[PRIMARIES..];
            let ready = self.nodes.iter().all(is_well) && replicas.iter().all(is_linked);
            ready.then_some(())
        });
    }

    fn bus_of(&self, node: &Redis) -> String {
        let Reply::List(found) = node.run("CONFIG GET cluster-port") else { panic!("no list") };
        match found.get(1) {
            Some(Reply::Text(port)) => port.clone(),
            other => panic!("{other:?}"),
        }
    }
}

fn id_of(node: &Redis) -> String {
    match node.try_run("CLUSTER MYID") {
        Ok(Reply::Text(id)) => id,
        _ => String::new(),
    }
}
