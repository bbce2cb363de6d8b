//! A connection to a Redis or Valkey server that gateways share: checked, and one link or more.
//!
//! Invariant: a server that could drop counters, that is a replica, or whose counters have other
//! keys is never used.
//!
//! Not here: how bytes travel (`servers::link`), over which link (`servers::thread_links`), when a
//! connection is replaced (`shared::connecting`), how it is made (`servers::login`), which server
//! has a key (`servers::nodes`).

use std::fmt;
use std::sync::Arc;

use redis::{Cmd, Value, cmd};
use weir_common::time::Tick;

use super::address::Topology;
use super::errors::{CallError, ConnectError, is_forbidden, is_unknown, unreachable_for};
use super::link::{Link, Script};
use super::sentinel::NamedPrimary;
use super::store_time::StoreTime;
use super::thread_links::{self, Destination, ThreadLinks};

/// The key whose value is the fingerprint of the secret that keys are derived from.
const FINGERPRINT_KEY: &str = "weir1:{gateways}fingerprint";

/// A connection, which is checked.
#[derive(Clone)]
pub struct StoreConnection {
    links: Arc<ThreadLinks>,
    /// Differs from those of other connections of this process.
    pub number: u64,
    /// The clock of its server.
    pub(in super::super) time: Arc<StoreTime>,
    /// What Sentinels named when it was made.
    pub(super) primary: Option<NamedPrimary>,
}

impl fmt::Debug for StoreConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreConnection").field("number", &self.number).finish_non_exhaustive()
    }
}

impl StoreConnection {
    /// Connects, and checks that the server can be used. `own` is the connection's number, and the
    /// clock of its server.
    pub(in super::super) async fn open(
        to: Destination,
        topology: &Topology,
        (number, time): (u64, Arc<StoreTime>),
    ) -> Result<Self, ConnectError> {
        let first = to.open().await?;
        let server = first.info("server").await?;
        check_mode(&server, topology)?;
        check_role(&first.info("replication").await?)?;
        check_eviction(&first.info("memory").await?)?;
        let links = ThreadLinks::new(first, to, thread_links::process(&server));
        Ok(Self { links, number, time, primary: None })
    }

    /// Runs a script, which the server may not know yet.
    pub(in super::super) async fn evaluate(
        &self,
        script: &Script,
        call: &Cmd,
    ) -> Result<Value, CallError> {
        let link = self.links.of_this_thread();
        self.kept(&link, link.evaluate(script, call).await)
    }

    /// Runs a script for a key that is moving to this server.
    pub(super) async fn evaluate_early(
        &self,
        script: &Script,
        call: &Cmd,
    ) -> Result<Value, CallError> {
        let link = self.links.of_this_thread();
        self.kept(&link, link.evaluate_early(script, call).await)
    }

    fn kept(&self, link: &Arc<Link>, ran: Result<Value, CallError>) -> Result<Value, CallError> {
        match ran {
            Err(CallError::Lost(why)) if self.links.give_up(link) => Err(CallError::Cut(why)),
            ran => ran,
        }
    }

    /// A call of this thread has no reply, and was sent at `sent`.
    pub(in super::super) fn missed_reply(&self, sent: Tick) {
        self.links.give_up_silent(sent);
    }

    /// Sends one command.
    pub(in super::super) async fn command<T: redis::FromRedisValue>(
        &self,
        words: &[&[u8]],
    ) -> Result<T, CallError> {
        self.links.first().command(words).await
    }

    /// Checks that the keys in the store are derived from the secret of this fingerprint, which is
    /// stored if there is none yet.
    pub async fn check_fingerprint(&self, own: &str) -> Result<(), ConnectError> {
        let mut set = cmd("SET");
        set.arg(FINGERPRINT_KEY).arg(own).arg("NX");
        self.links.first().send(&set).await.map_err(|error| unreachable_for(&error))?;
        self.compare_fingerprint(own).await
    }

    /// Checks that the user may run what the scripts call, on a key with this text between its
    /// braces. Leaves nothing there.
    pub(in super::super) async fn check_rights(&self, tag: &str) -> Result<(), ConnectError> {
        let script = Script::new(include_str!("rights.lua"));
        let call = script.call(&[format!("weir1:{{{tag}}}rights")], &[]);
        let tried = self.evaluate(&script, &call).await;
        let tried = tried.map_err(|error| ConnectError::Rejected(error.to_string()))?;
        lacking(&redis::from_redis_value::<Vec<String>>(tried).unwrap_or_default())
    }

    /// Checks the same, and changes nothing.
    pub(in super::super) async fn compare_fingerprint(
        &self,
        own: &str,
    ) -> Result<(), ConnectError> {
        let mut get = cmd("GET");
        get.arg(FINGERPRINT_KEY);
        let found = self.links.first().send(&get).await.map_err(|error| unreachable_for(&error))?;
        let found: Option<String> = redis::from_redis_value(found).unwrap_or_default();
        check_secret(found.as_deref(), own)
    }
}

/// What is missing, of the names of commands and the errors that they ended with: rights of the
/// user, or commands that the server has not.
fn lacking(tried: &[String]) -> Result<(), ConnectError> {
    let those = |is_missing: fn(&str) -> bool, sign: &str| {
        let pairs = tried.as_chunks::<2>().0.iter();
        let missing = pairs.filter(|[_, error]| is_missing(error));
        missing.map(|[command, _]| format!("{sign}{command}")).collect::<Vec<_>>().join(" ")
    };
    let why = match (those(is_forbidden, "+"), those(is_unknown, "")) {
        (rights, _) if !rights.is_empty() => {
            format!("its user lacks rights that docs/scaling.md lists: {rights}")
        }
        (_, commands) if !commands.is_empty() => {
            format!("it has no command of these names, as after `rename-command`: {commands}")
        }
        _ => return Ok(()),
    };
    Err(ConnectError::Rejected(why))
}

/// A store without a fingerprint takes that of the first gateway.
fn check_secret(found: Option<&str>, own: &str) -> Result<(), ConnectError> {
    match found {
        Some(found) if found != own => Err(ConnectError::Unfit(format!(
            "its keys are of another secret: give all gateways the same secret_file, or stop those \
             with the other one, and then DEL '{FINGERPRINT_KEY}'"
        ))),
        _ => Ok(()),
    }
}

fn check_mode(info: &str, topology: &Topology) -> Result<(), ConnectError> {
    let is = |mode: &str| {
        info.contains(&format!("redis_mode:{mode}"))
            || info.contains(&format!("server_mode:{mode}"))
    };
    let wrong = match topology {
        Topology::Cluster if is("cluster") => return Ok(()),
        Topology::Cluster => "it is no node of a Cluster: remove `cluster`",
        _ if is("cluster") => "it is a node of a Cluster: set `cluster = true`",
        _ if is("sentinel") => "it is a Sentinel: set `sentinel` to the name of the primary",
        _ => return Ok(()),
    };
    Err(ConnectError::Unfit(wrong.to_owned()))
}

fn check_role(info: &str) -> Result<(), ConnectError> {
    match info.contains("role:master") {
        true => Ok(()),
        false => Err(ConnectError::Rejected("it is a replica, not a primary".to_owned())),
    }
}

/// Counters expire: any policy but `noeviction` may drop them before.
fn check_eviction(info: &str) -> Result<(), ConnectError> {
    let of = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let (policy, memory) = (of("maxmemory_policy:"), of("maxmemory:"));
    if policy == Some("noeviction") || (policy.is_some() && memory == Some("0")) {
        return Ok(());
    }
    let policy = policy.unwrap_or("unknown");
    Err(ConnectError::Unfit(format!(
        "its maxmemory-policy is {policy}, which drops counters when memory is full: set \
         `maxmemory-policy noeviction`"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_that_a_server_has_not_are_named() {
        let unknown = "ERR Unknown Redis command called from script script: 1f, on @user_script:6.";
        let tried = |error: &str| lacking(&["time", "", "hgetall", error].map(str::to_owned));
        assert_eq!(tried(""), Ok(()));
        assert_eq!(tried("WRONGTYPE it"), Ok(()), "of the key, which is another's");
        for (error, words) in [
            (unknown, "`rename-command`: hgetall"),
            ("ERR Unknown command called from script", "`rename-command`: hgetall"),
            ("NOPERM no permissions", "lists: +hgetall"),
        ] {
            let why = tried(error).unwrap_err().to_string();
            assert!(why.ends_with(words), "{why}");
        }
    }

    #[test]
    fn a_store_of_another_secret_is_refused_with_the_way_to_take_it_back() {
        assert_eq!([None, Some("a")].map(|found| check_secret(found, "a")), [Ok(()), Ok(())]);
        let why = check_secret(Some("b"), "a").unwrap_err().to_string();
        assert!(why.contains("give all gateways the same secret_file"), "{why}");
        assert!(why.ends_with("DEL 'weir1:{gateways}fingerprint'"), "{why}");
    }
}
