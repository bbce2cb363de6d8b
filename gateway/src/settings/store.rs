//! Reads `[store]`: where the counters of limits are, and how to reach a store that gateways share.

use std::time::Duration;

use reqwest::Url;
use weir_common::config::document::Spanned;
use weir_common::config::document::table::Table;

use crate::limit::shared::servers::address::{ServerAddress, StoreAddress, StoreLogin, Topology};
use crate::settings::values::{plain, small};

/// The port of a Redis or Valkey server whose URL has none.
const REDIS_PORT: u16 = 6379;

/// The port of a Sentinel whose URL has none.
const SENTINEL_PORT: u16 = 26379;

/// The settings that need `kind = "redis"`.
const NEEDS_REDIS: [&str; 10] = [
    "url",
    "servers",
    "sentinel",
    "sentinel_password_file",
    "password_file",
    "ca",
    "secret_file",
    "timeout",
    "gateways",
    "acknowledge",
];

/// `[store]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreSettings {
    /// Most entries of keys that the directory does not know.
    pub max_keys: u64,
    /// The file that has the counters while the process is not running.
    pub snapshot: Option<String>,
    /// The store that several gateways share; none where counters are in this process alone.
    pub redis: Option<Box<RedisSettings>>,
}

/// `[store]` with `kind = "redis"`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisSettings {
    /// How to reach it.
    pub address: StoreAddress,
    /// A file whose first line is the secret that all gateways share.
    pub secret_file: String,
    /// How long a request waits for the store.
    pub timeout: Duration,
    /// How many gateways there are at least: the shares of an allowance while the store is away.
    pub gateways: u32,
}

pub(super) fn store(table: &mut Table<'_>) -> StoreSettings {
    let kinds = [("memory", false), ("redis", true)];
    let doc = "memory: in this process. redis: in a Redis or Valkey server, which several gateways \
               share.";
    let is_shared = table.choice("kind", &kinds, doc);
    let max_keys = table.number_or(
        "max_keys",
        1_000..=1_000_000_000,
        1_000_000,
        "Entries of keys that the directory does not know; further keys share a few.",
    );
    let doc = "The file that keeps counters across a restart; \"\": none.";
    let snapshot = plain(table.text("snapshot", doc)).filter(|path| !path.is_empty());
    let redis = redis(table, is_shared);
    StoreSettings { max_keys, snapshot, redis: is_shared.then_some(Box::new(redis)) }
}

fn redis(table: &mut Table<'_>, is_shared: bool) -> RedisSettings {
    let address = address(table, is_shared);
    let doc = "redis: a file whose first line is a secret of 32 characters or more, the same for \
               all gateways. Keys are derived from it.";
    let secret_file = plain(table.text("secret_file", doc)).unwrap_or_default();
    let range = Duration::from_millis(1)..=Duration::from_secs(1);
    let doc = "redis: how long a call may take, before on_store_failure decides.";
    let timeout = table.span_or("timeout", range, Duration::from_millis(20), doc);
    let doc = "redis: how many gateways there are at least. While it is away, each admits its \
               share of an allowance; those that are known to run are counted by themselves.";
    let gateways = table.number_or("gateways", 1..=1_000, 1, doc);
    if is_shared {
        table.need("url");
        table.need("secret_file");
    }
    for key in NEEDS_REDIS.into_iter().filter(|key| !is_shared && table.has(key)) {
        table.fault_in(key, format!("`{key}` needs kind = \"redis\""));
    }
    if !is_shared && table.has("cluster") {
        table.fault_in("cluster", "`cluster` needs kind = \"redis\"".to_owned());
    }
    RedisSettings { address, secret_file, timeout, gateways: small(gateways) }
}

/// Where the servers are, and how to log in to them.
fn address(table: &mut Table<'_>, is_shared: bool) -> StoreAddress {
    let doc = "redis: its URL, as rediss://user@host:6379/0 (TLS) or redis://….";
    let url = table.text("url", doc);
    let doc = "redis: more Sentinels, or more nodes of the Cluster, as host:port.";
    let more = table.texts("servers", doc);
    let doc = "redis: the name of the primary that the Sentinels at `url` and `servers` watch.";
    let sentinel = table.text("sentinel", doc);
    let doc = "redis: whether `url` and `servers` are nodes of a Cluster; a few are enough.";
    let is_cluster = table.flag("cluster", false, doc);
    let doc = "redis: a file whose first line is the password; read at each connection.";
    let password_file = table.text("password_file", doc);
    let doc = "redis: a file whose first line is the password of the Sentinels.";
    let sentinel_password_file = table.text("sentinel_password_file", doc);
    let doc = "redis: a PEM file of the root that signed its certificate; none: the system's.";
    let ca = table.text("ca", doc);
    let doc = "redis: how many replicas must have a charge before its request is admitted.";
    let acknowledge = table.number_or("acknowledge", 0..=10, 0, doc);
    let port = if sentinel.is_some() { SENTINEL_PORT } else { REDIS_PORT };
    let (first, mut login) =
        url.and_then(|url| located(table, &url, port)).unwrap_or_else(|| nowhere(port));
    if ca.is_some() && !login.tls && is_shared {
        table.fault_in("ca", "`ca` needs a `url` that starts with rediss://".to_owned());
    }
    let mut servers = vec![first];
    for text in &more {
        match listed(&text.value) {
            Some(server) => servers.push(server),
            // Its text may contain a password.
            None => table.fault_at(
                text.at,
                format!("a server is host:port, such as \"10.0.0.1:{port}\" or \"[::1]:{port}\""),
            ),
        }
    }
    let topology = match plain(sentinel) {
        Some(name) if !is_cluster => Topology::Sentinel(name),
        Some(_) => {
            let text = "Sentinels watch no Cluster: remove `sentinel`, or `cluster`";
            table.fault_in("sentinel", text.to_owned());
            Topology::Cluster
        }
        None if is_cluster => Topology::Cluster,
        None => Topology::Single,
    };
    if topology == Topology::Single && !more.is_empty() {
        let text = "`servers` needs `sentinel` or `cluster`: one server has a `url` alone";
        table.fault_in("servers", text.to_owned());
    }
    if sentinel_password_file.is_some() && !matches!(topology, Topology::Sentinel(_)) {
        let text = "`sentinel_password_file` needs `sentinel`";
        table.fault_in("sentinel_password_file", text.to_owned());
    }
    if topology == Topology::Cluster && login.database != 0 {
        table.fault_in("url", "`url` has a database: a Cluster has one alone".to_owned());
    }
    if login.user.is_some() && password_file.is_none() && is_shared {
        let text = "`url` has a user, which needs a `password_file`";
        table.fault_in("url", text.to_owned());
    }
    (login.password_file, login.ca) = (plain(password_file), plain(ca));
    let sentinel_password_file = plain(sentinel_password_file);
    StoreAddress {
        topology,
        servers,
        login,
        sentinel_password_file,
        acknowledge: small(acknowledge),
    }
}

/// The address of a file that has none.
fn nowhere(port: u16) -> (ServerAddress, StoreLogin) {
    let server = ServerAddress { host: "localhost".to_owned(), port };
    let login = StoreLogin::default();
    (server, login)
}

/// Where a URL leads; reports what is wrong with it.
fn located(
    table: &Table<'_>,
    url: &Spanned<String>,
    port: u16,
) -> Option<(ServerAddress, StoreLogin)> {
    let fault = |why: &str| table.fault_at(url.at, format!("`url` {why}"));
    let Some(parsed) = Url::parse(&url.value).ok().filter(Url::has_host) else {
        fault("must be a URL with a host, such as redis://127.0.0.1:6379");
        return None;
    };
    let tls = match parsed.scheme() {
        "rediss" => true,
        "redis" => false,
        other => {
            fault(&format!("must start with redis:// or rediss:// (TLS), not {other}://"));
            return None;
        }
    };
    if parsed.password().is_some() {
        fault("must not contain a password: write it into a file, and name that in password_file");
    }
    let database = match parsed.path() {
        "" | "/" => Some(0),
        path => path.strip_prefix('/').and_then(|path| path.parse().ok()),
    };
    if database.is_none_or(|number: i64| !(0..=65_535).contains(&number)) {
        fault("has a path that is not the number of a database, such as /0");
    }
    if parsed.query().is_some() || parsed.fragment().is_some() {
        fault("must not have a query or a fragment: other settings have their own names");
    }
    let Some(server) = server_of(&parsed, Some(port)) else {
        fault("must have a host, and no port 0, where no server can be");
        return None;
    };
    let user = percent_encoding::percent_decode_str(parsed.username()).decode_utf8_lossy();
    let mut login = StoreLogin::default();
    (login.tls, login.database) = (tls, database.unwrap_or_default());
    login.user = (!user.is_empty()).then(|| user.into_owned());
    Some((server, login))
}

/// The server of `host:port`, which are what `url` may have of both.
fn listed(text: &str) -> Option<ServerAddress> {
    if text.contains(['@', '/', '?', '#']) {
        return None;
    }
    server_of(&Url::parse(&format!("redis://{text}")).ok()?, None)
}

/// The server that a URL names, which is at `port` where the URL has none.
fn server_of(url: &Url, port: Option<u16>) -> Option<ServerAddress> {
    let host = url.host_str()?.trim_matches(['[', ']']).to_owned();
    let port = url.port().or(port).filter(|port| *port > 0)?;
    (!host.is_empty()).then_some(ServerAddress { host, port })
}

#[cfg(test)]
mod tests {
    use weir_common::config::document::Document;

    use super::*;

    /// The servers of a Cluster with these lines, and the problems in them.
    fn read(lines: &str) -> (Vec<String>, Vec<String>) {
        let text = format!("kind = \"redis\"\nsecret_file = \"s\"\ncluster = true\n{lines}");
        let document = Document::new("g", &text);
        let made = document.read(store).made;
        let servers = made.redis.unwrap().address.servers;
        let found = document.diagnostics().into_iter().map(|found| found.message).collect();
        (servers.iter().map(ToString::to_string).collect(), found)
    }

    #[test]
    fn further_servers_are_read_as_url_is() {
        for server in ["redis_1:6379", "redis.internal:1", "10.0.0.1:65535", "[2001:db8::1]:6379"] {
            let (servers, found) =
                read(&format!("url = \"redis://{server}\"\nservers = [\"{server}\"]"));
            assert_eq!((servers, found), (vec![server.to_owned(); 2], Vec::new()));
        }
        for server in [
            "",
            "a",
            "a:",
            ":1",
            "a:0",
            "a:65536",
            "a:redis",
            "a:1/0",
            "a/0:1",
            "a b c:1",
            "redis://127.0.0.1:21031",
            "http://x/y:80",
            "u:open-sesame@a:1",
            "@a:1",
            "[::1:6379",
            "::1:6379",
            "a:1?b",
            "a:1#b",
        ] {
            let (_, found) =
                read(&format!("url = \"redis://a\"\nservers = [\"b:1\", \"{server}\"]"));
            let problem = "a server is host:port, such as \"10.0.0.1:6379\" or \"[::1]:6379\"";
            assert_eq!(found, [problem], "{server}");
        }
        for url in ["redis://:1", "redis://a:0", "redis:///0"] {
            let (_, found) = read(&format!("url = \"{url}\""));
            assert!(found[0].starts_with("`url` must"), "{url}: {found:?}");
        }
    }

    #[test]
    fn a_user_needs_a_password_file() {
        let found = |lines: &str| read(lines).1;
        let user = "url = \"redis://weir@a\"";
        assert_eq!(found(user), ["`url` has a user, which needs a `password_file`"]);
        assert_eq!(found(&format!("{user}\npassword_file = \"p\"")), [""; 0]);
        assert_eq!(found("url = \"redis://a\""), [""; 0]);
    }
}
