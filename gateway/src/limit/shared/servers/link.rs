//! One connection to a server: sends commands, and runs scripts.
//!
//! All calls that use it travel at once: none waits for another's reply.
//!
//! Invariant: nothing is sent twice that the server may have executed.
//!
//! Not here: what is checked first (`servers::connection`), who uses which link
//! (`servers::thread_links`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use redis::{Cmd, RedisError, Value, cmd};
use weir_common::time::{Clock, Tick};

use super::acknowledged::Acknowledging;
use super::errors::{CallError, ConnectError, failed, unreachable_for};
use super::login::Session;

/// A connection to a server.
pub(in super::super) struct Link {
    inner: Session,
    acknowledging: Option<Arc<Acknowledging>>,
    clock: Clock,
    /// When the newest reply came, in ticks.
    replied: AtomicU64,
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
    pub(in super::super) fn call<K: AsRef<[u8]>>(&self, keys: &[K], arguments: &[Vec<u8>]) -> Cmd {
        let keys = keys.iter().map(AsRef::as_ref);
        let all = keys.clone().chain(arguments.iter().map(Vec::as_slice));
        let bytes = all.clone().map(<[u8]>::len).sum::<usize>();
        // With the name of the command, the digest and the count of the keys.
        let mut call = Cmd::with_capacity(3 + all.clone().count(), 64 + bytes);
        call.arg("EVALSHA").arg(&self.digest).arg(keys.len());
        for one in all {
            call.arg(one);
        }
        call
    }
}

impl Link {
    /// A link that was just opened. So many replicas must have its charges, which may take so long.
    pub(in super::super) fn new(
        inner: Session,
        (replicas, timeout): (u32, Duration),
        clock: Clock,
    ) -> Self {
        let acknowledging = Acknowledging::new(replicas, timeout);
        let replied = AtomicU64::new(clock.now().tick.0);
        Self { inner, acknowledging, clock, replied }
    }

    /// When the newest call over it ended; before the first one, when the link was opened.
    pub(super) fn replied(&self) -> Tick {
        Tick(self.replied.load(Ordering::Relaxed))
    }

    fn has_replied(&self) {
        self.replied.store(self.clock.now().tick.0, Ordering::Relaxed);
    }

    /// Runs a script, which the server may not know yet.
    pub(in super::super) async fn evaluate(
        &self,
        script: &Script,
        call: &Cmd,
    ) -> Result<Value, CallError> {
        let run = async || match &self.acknowledging {
            None => self.send(call).await.map_err(|error| failed(&error)),
            Some(acknowledging) => acknowledging.send(&self.inner, call).await,
        };
        let mut ran = run().await;
        if let Err(CallError::UnknownScript) = ran {
            self.load(script).await?;
            ran = run().await;
        }
        self.has_replied();
        ran
    }

    /// Runs a script for a key that is moving to this server.
    pub(super) async fn evaluate_early(
        &self,
        script: &Script,
        call: &Cmd,
    ) -> Result<Value, CallError> {
        // Known before: a script that is missing would end what ASKING allows.
        self.load(script).await?;
        let mut all = redis::Pipeline::with_capacity(3);
        all.add_command(cmd("ASKING")).add_command(call.clone());
        if let Some(acknowledging) = &self.acknowledging {
            all.add_command(acknowledging.wait_command());
        }
        let replies = self.inner.send_all(&all, all.len()).await;
        let mut replies = replies.map_err(|error| failed(&error))?.into_iter().skip(1);
        self.has_replied();
        let ran = replies.next().unwrap_or(Value::Nil);
        let ran = ran.extract_error().map_err(|error| failed(&error))?;
        match &self.acknowledging {
            None => Ok(ran),
            Some(acknowledging) => acknowledging.acknowledged(ran, replies.next().as_ref()),
        }
    }

    async fn load(&self, script: &Script) -> Result<(), CallError> {
        let mut load = cmd("SCRIPT");
        load.arg("LOAD").arg(script.text);
        self.send(&load).await.map(drop).map_err(|error| failed(&error))
    }

    /// Sends one command.
    pub(in super::super) async fn command<T: redis::FromRedisValue>(
        &self,
        words: &[&[u8]],
    ) -> Result<T, CallError> {
        let mut command = Cmd::new();
        words.iter().for_each(|word| {
            command.arg(word);
        });
        let reply = self.send(&command).await.map_err(|error| failed(&error))?;
        redis::from_redis_value(reply).map_err(|why| CallError::Refused(why.to_string()))
    }

    pub(super) async fn send(&self, command: &Cmd) -> Result<Value, RedisError> {
        self.inner.send(command).await
    }

    /// What the server tells of a section of its state.
    pub(super) async fn info(&self, section: &str) -> Result<String, ConnectError> {
        let mut info = cmd("INFO");
        info.arg(section);
        let reply = self.send(&info).await.map_err(|error| unreachable_for(&error))?;
        redis::from_redis_value(reply)
            .map_err(|why| ConnectError::Unreachable(format!("INFO {section}: {why}")))
    }
}
