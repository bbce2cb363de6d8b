//! A Redis primary, a replica, and three Sentinels that watch them.

use crate::redis::{Redis, Reply};
use crate::wait;

/// The name of the primary.
pub const PRIMARY: &str = "main";

/// The servers of one test.
pub struct Sentinels {
    /// The primary at first, and its replica.
    pub servers: [Redis; 2],
    /// The Sentinels.
    pub sentinels: Vec<Redis>,
}

impl Sentinels {
    /// Starts all of them; two Sentinels are enough for a failover.
    #[track_caller]
    pub fn start() -> Self {
        let servers = [(); 2].map(|()| Redis::start(&["--repl-diskless-sync-delay", "0"]));
        servers[1].run(&format!("REPLICAOF 127.0.0.1 {}", servers[0].port()));
        wait::until("the replica to be linked", || {
            let Reply::Text(info) = servers[1].run("INFO replication") else { panic!("no text") };
            info.contains("master_link_status:up").then_some(())
        });
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
                is("num-other-sentinels", "2") && is("num-slaves", "1")
            };
            started.sentinels.iter().all(knows).then_some(())
        });
        started
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
