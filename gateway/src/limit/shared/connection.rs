//! A connection to a Redis or Valkey server that gateways share.
//!
//! Calls of all requests travel over it, each at once: none waits for another's reply.
//!
//! # Invariants
//!
//! 1. Nothing is sent twice that the server may have executed.
//! 2. A server that could drop counters, that is a replica, or whose counters have other keys is
//!    never used.
//!
//! # Not here
//!
//! What calls mean (`shared::call`), when a connection is replaced (`shared::connecting`), how it
//! is made (`shared::login`), which server has a key (`shared::nodes`).

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisError, Value, cmd};

use super::acknowledged::Acknowledging;
use super::address::{StoreAddress, Topology};
use super::errors::{CallError, ConnectError, failed, unreachable_for};
use super::sentinel::NamedPrimary;
use super::store_time::StoreTime;

/// The key whose value is the fingerprint of the secret that keys are derived from.
const FINGERPRINT_KEY: &str = "weir1:{gateways}fingerprint";

/// A connection, which is checked.
#[derive(Clone)]
pub struct StoreConnection {
    inner: MultiplexedConnection,
    /// Differs from those of other connections of this process.
    pub number: u64,
    /// The clock of its server.
    pub(super) time: Arc<StoreTime>,
    /// What Sentinels named when it was made.
    pub(super) primary: Option<NamedPrimary>,
    acknowledging: Option<Arc<Acknowledging>>,
}

impl fmt::Debug for StoreConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreConnection").field("number", &self.number).finish_non_exhaustive()
    }
}

/// A script, and the digest that names it in the server.
pub struct Script {
    text: &'static str,
    digest: String,
}

impl Script {
    /// A script of this text.
    #[must_use]
    pub fn new(text: &'static str) -> Self {
        let digest = ring::digest::digest(&ring::digest::SHA1_FOR_LEGACY_USE_ONLY, text.as_bytes());
        let digits = digest.as_ref().iter().map(|byte| format!("{byte:02x}"));
        Self { text, digest: digits.collect() }
    }

    /// The call that runs it.
    pub(super) fn call(&self, keys: &[Vec<u8>], arguments: &[Vec<u8>]) -> Cmd {
        let mut call = cmd("EVALSHA");
        call.arg(&self.digest).arg(keys.len()).arg(keys).arg(arguments);
        call
    }
}

impl StoreConnection {
    /// Checks that the server of a new connection can be used. `own` is the connection's number,
    /// and the clock of its server.
    pub(super) async fn open(
        address: &StoreAddress,
        inner: MultiplexedConnection,
        (number, time): (u64, Arc<StoreTime>),
        timeout: Duration,
    ) -> Result<Self, ConnectError> {
        let acknowledging = Acknowledging::new(address.acknowledge, timeout).map(Arc::new);
        let own = Self { inner, number, time, primary: None, acknowledging };
        own.check_mode(&address.topology).await?;
        own.check_role().await?;
        own.check_eviction().await?;
        Ok(own)
    }

    /// Runs a script, which the server may not know yet.
    pub(super) async fn evaluate(&self, script: &Script, call: &Cmd) -> Result<Value, CallError> {
        let run = async || match &self.acknowledging {
            None => self.send(call).await.map_err(|error| failed(&error)),
            Some(acknowledging) => acknowledging.send(&self.inner, call).await,
        };
        match run().await {
            Err(CallError::UnknownScript) => {
                self.load(script).await?;
                run().await
            }
            ran => ran,
        }
    }

    /// Runs a script for a key that is moving to this server.
    pub(super) async fn evaluate_early(
        &self,
        script: &Script,
        call: &Cmd,
    ) -> Result<Value, CallError> {
        // Known before: a script that is missing would end what ASKING allows.
        self.load(script).await?;
        let mut both = redis::Pipeline::with_capacity(2);
        both.add_command(cmd("ASKING")).add_command(call.clone());
        let replies = self.inner.clone().send_packed_commands(&both, 0, 2).await;
        let replies = replies.map_err(|error| failed(&error))?;
        let last = replies.into_iter().next_back().unwrap_or(Value::Nil);
        last.extract_error().map_err(|error| failed(&error))
    }

    async fn load(&self, script: &Script) -> Result<(), CallError> {
        let mut load = cmd("SCRIPT");
        load.arg("LOAD").arg(script.text);
        self.send(&load).await.map(drop).map_err(|error| failed(&error))
    }

    /// Sends one command.
    pub async fn command<T: redis::FromRedisValue>(&self, words: &[&[u8]]) -> Result<T, CallError> {
        let mut command = Cmd::new();
        words.iter().for_each(|word| {
            command.arg(word);
        });
        let reply = self.send(&command).await.map_err(|error| failed(&error))?;
        redis::from_redis_value(reply).map_err(|why| CallError::Refused(why.to_string()))
    }

    async fn send(&self, command: &Cmd) -> Result<Value, RedisError> {
        self.inner.clone().send_packed_command(command).await.and_then(Value::extract_error)
    }

    async fn check_mode(&self, topology: &Topology) -> Result<(), ConnectError> {
        let info = self.info("server").await?;
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

    async fn check_role(&self) -> Result<(), ConnectError> {
        let info = self.info("replication").await?;
        match info.contains("role:master") {
            true => Ok(()),
            false => Err(ConnectError::Rejected("it is a replica, not a primary".to_owned())),
        }
    }

    /// Counters expire: any policy but `noeviction` may drop them before.
    async fn check_eviction(&self) -> Result<(), ConnectError> {
        let info = self.info("memory").await?;
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

    /// Checks that the keys in the store are derived from the secret of this fingerprint, which is
    /// stored if there is none yet.
    pub async fn check_fingerprint(&self, own: &str) -> Result<(), ConnectError> {
        let mut set = cmd("SET");
        set.arg(FINGERPRINT_KEY).arg(own).arg("NX");
        self.send(&set).await.map_err(|error| unreachable_for(&error))?;
        self.compare_fingerprint(own).await
    }

    /// Checks the same, and changes nothing.
    pub(super) async fn compare_fingerprint(&self, own: &str) -> Result<(), ConnectError> {
        let mut get = cmd("GET");
        get.arg(FINGERPRINT_KEY);
        let found = self.send(&get).await.map_err(|error| unreachable_for(&error))?;
        let found: Option<String> = redis::from_redis_value(found).unwrap_or_default();
        match found {
            Some(found) if found != own => Err(ConnectError::Unfit(
                "other gateways use it with another secret: give all gateways the same secret_file"
                    .to_owned(),
            )),
            _ => Ok(()),
        }
    }

    async fn info(&self, section: &str) -> Result<String, ConnectError> {
        let mut info = cmd("INFO");
        info.arg(section);
        let reply = self.send(&info).await.map_err(|error| unreachable_for(&error))?;
        redis::from_redis_value(reply)
            .map_err(|why| ConnectError::Unreachable(format!("INFO {section}: {why}")))
    }
}
