//! A Redis primary, its replicas, and three Sentinels that watch them.

use crate::redis::{Redis, Reply};
use crate::wait;

/// The name of the primary.
pub const PRIMARY: &str = "main";

/// The servers of one test.
pub struct Sentinels {
    /// The primary at first, and its replicas.
    pub servers: Vec<Redis>,
    /// The Sentinels.
    pub sentinels: Vec<Redis>,
}

impl Sentinels {
    /// Starts all of them, with one replica; two Sentinels are enough for a failover.
    #[track_caller]
    pub fn start() -> Self {
        Self::with(1, 0)
    }

    /// The same with so many replicas, and so many seconds until one of them is sent the data.
    #[track_caller]
    pub fn with(replicas: usize, sync_delay: u64) -> Self {
        let start = |_| Redis::start(&["--repl-diskless-sync-delay", "0"]);
        let servers: Vec<Redis> = (0..=replicas).map(start).collect();
        for replica in &servers[1..] {
            replica.run(&format!("REPLICAOF 127.0.0.1 {}", servers[0].port()));
        }
        wait::until("the replicas to be linked", || {
            let is_linked = |replica: &Redis| {
                let Reply::Text(info) = replica.run("INFO replication") else { panic!("no text") };
                info.contains("master_link_status:up")
            };
            servers[1..].iter().all(is_linked).then_some(())
        });
        for server in &servers {
            server.run(&format!("CONFIG SET repl-diskless-sync-delay {sync_delay}"));
        }
        let sentinels: Vec<Redis> = (0..3).map(|_| Redis::start_sentinel()).collect();
        for sentinel in &sentinels {
            sentinel.run(&format!("SENTINEL MONITOR {PRIMARY} 127.0.0.1 {} 2", servers[0].port()));
            for (setting, value) in
                [("down-after-milliseconds", 2_000), ("failover-timeout", 3_000)]
            {
                sentinel.run(&format!("SENTINEL SET {PRIMARY} {setting} {value}"));
            }
        }
        let started = Self { servers, sentinels };
        wait::until("the Sentinels to know each other and the replica", || {
            let knows = |sentinel: &Redis| {
                let fields = fields(sentinel);
                let is = |name: &str, value: &str| {
                    fields.iter().any(|(own, given)| own == name && given == value)
                };
                is("num-other-sentinels", "2") && is("num-slaves", &replicas.to_string())
            };
            started.sentinels.iter().all(knows).then_some(())
        });
        started
    }

    /// The port of the primary that a Sentinel knows.
    #[track_caller]
    pub fn primary_of(&self, sentinel: usize) -> String {
        let port = fields(&self.sentinels[sentinel]).into_iter().find(|(name, _)| name == "port");
        port.expect("a port").1
    }

    /// Waits until all Sentinels that answer name this server as the primary.
    #[track_caller]
    pub fn wait_for_primary(&self, nth: usize) {
        let port = self.servers[nth].port();
        wait::until("the other primary", || {
            let names = |sentinel: &Redis| {
                fields(sentinel).iter().any(|(name, value)| name == "port" && *value == port)
            };
            self.sentinels.iter().all(names).then_some(())
        });
    }
}

fn fields(sentinel: &Redis) -> Vec<(String, String)> {
    let Ok(Reply::List(all)) = sentinel.try_run(&format!("SENTINEL MASTER {PRIMARY}")) else {
        return Vec::new();
    };
    let texts: Vec<String> = all
        .into_iter()
        .map(|reply| match reply {
            Reply::Text(text) => text,
            other => panic!("{other:?}"),
        })
        .collect();
    let (pairs, _) = texts.as_chunks::<2>();
    pairs.iter().map(|[name, value]| (name.clone(), value.clone())).collect()
}
