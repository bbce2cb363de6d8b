//! Reads `[store]`: where the counters of limits are, and how to reach a store that gateways share.

use std::time::Duration;

use reqwest::Url;
use weir_common::config::document::Spanned;
use weir_common::config::document::table::Table;

use crate::limit::shared::address::StoreAddress;
use crate::settings::values::{plain, small};

/// The port of a Redis or Valkey server whose URL has none.
const REDIS_PORT: u16 = 6379;

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
    let url = table.text("url", "redis: its URL, as rediss://user@host:6379/0 (TLS) or redis://….");
    let doc = "redis: a file whose first line is the password; read at each connection.";
    let password_file = table.text("password_file", doc);
    let doc = "redis: a PEM file of the root that signed its certificate; none: the system's.";
    let ca = table.text("ca", doc);
    let doc = "redis: a file whose first line is a secret of 32 characters or more, the same for \
               all gateways. Keys are derived from it.";
    let secret_file = table.text("secret_file", doc);
    let range = Duration::from_millis(1)..=Duration::from_secs(1);
    let doc = "redis: how long a request waits for it, before on_store_failure decides.";
    let timeout = table.span_or("timeout", range, Duration::from_millis(20), doc);
    let doc = "redis: how many gateways there are at least. While it is away, each admits its \
               share of an allowance; those that are known to run are counted by themselves.";
    let gateways = table.number_or("gateways", 1..=1_000, 1, doc);
    let given = [
        ("url", url.is_some()),
        ("password_file", password_file.is_some()),
        ("ca", ca.is_some()),
        ("secret_file", secret_file.is_some()),
        ("timeout", table.has("timeout")),
        ("gateways", table.has("gateways")),
    ];
    for (key, _) in given.into_iter().filter(|(_, given)| *given && !is_shared) {
        table.fault_in(key, format!("`{key}` needs kind = \"redis\""));
    }
    if is_shared {
        table.need("url");
        table.need("secret_file");
    }
    let mut address = url.and_then(|url| located(table, &url)).unwrap_or_else(nowhere);
    if ca.is_some() && !address.tls && is_shared {
        table.fault_in("ca", "`ca` needs a `url` that starts with rediss://".to_owned());
    }
    (address.password_file, address.ca) = (plain(password_file), plain(ca));
    let secret_file = plain(secret_file).unwrap_or_default();
    RedisSettings { address, secret_file, timeout, gateways: small(gateways) }
}

/// The address of a file that has none.
fn nowhere() -> StoreAddress {
    StoreAddress {
        host: "localhost".to_owned(),
        port: REDIS_PORT,
        tls: false,
        database: 0,
        user: None,
        password_file: None,
        ca: None,
    }
}

/// Where a URL leads; reports what is wrong with it.
fn located(table: &Table<'_>, url: &Spanned<String>) -> Option<StoreAddress> {
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
    let path = parsed.path().trim_start_matches('/');
    let database = if path.is_empty() { Some(0) } else { path.parse().ok() };
    if database.is_none_or(|number: i64| !(0..=65_535).contains(&number)) {
        fault("has a path that is not the number of a database, such as /0");
    }
    if parsed.query().is_some() || parsed.fragment().is_some() {
        fault("must not have a query or a fragment: other settings have their own names");
    }
    let user = percent_encoding::percent_decode_str(parsed.username()).decode_utf8_lossy();
    let host = parsed.host_str().unwrap_or_default().trim_matches(['[', ']']).to_owned();
    Some(StoreAddress {
        host,
        port: parsed.port().unwrap_or(REDIS_PORT),
        tls,
        database: database.unwrap_or_default(),
        user: (!user.is_empty()).then(|| user.into_owned()),
        ..nowhere()
    })
}
