//! Asks Sentinels which server is the primary.
//!
//! Invariant: a primary of an older epoch than one that was known is never used again: a Sentinel
//! that was cut off still names it.
//!
//! Not here: whether that server takes itself for a primary (`shared::connection`).

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redis::cmd;

use super::address::{ServerAddress, StoreAddress, StoreLogin};
use super::errors::{ConnectError, unreachable_for};
use super::join;
use super::login::{Dial, Session};

/// How long a Sentinel may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(500);

/// How often a Sentinel that did not answer is left out.
const PAUSE: u32 = 20;

/// The Sentinels of one primary.
pub(super) struct Sentinels {
    dial: Arc<dyn Dial>,
    primary: String,
    login: StoreLogin,
    servers: Vec<Sentinel>,
    /// The highest epoch that any of them has named.
    epoch: AtomicU64,
}

struct Sentinel {
    address: ServerAddress,
    connection: Mutex<Option<Session>>,
    /// How often it is left out from now on.
    pause: AtomicU32,
}

/// The primary that Sentinels name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NamedPrimary {
    /// Where it is.
    pub address: ServerAddress,
    /// Since which epoch it is the primary.
    pub epoch: u64,
}

impl Sentinels {
    /// Those at the servers of `address`, which know the primary of this name.
    pub(super) fn new(address: &StoreAddress, primary: &str, dial: Arc<dyn Dial>) -> Self {
        let password_file = address.sentinel_password_file.clone();
        let own = address.login.clone();
        Self {
            dial,
            primary: primary.to_owned(),
            login: StoreLogin { database: 0, user: None, password_file, ..own },
            servers: address.servers.iter().map(Sentinel::new).collect(),
            epoch: AtomicU64::new(0),
        }
    }

    /// The primary that the Sentinels of the highest epoch name. All of them are asked if
    /// `thorough`, and else those that answer.
    pub(super) async fn find(&self, thorough: bool) -> Result<NamedPrimary, ConnectError> {
        let asked: Vec<&Sentinel> =
            self.servers.iter().filter(|own| thorough || !own.is_paused()).collect();
        let answers = join::all(asked.iter().map(|own| self.query(own))).await;
        let (mut named, mut failures) = (None, Vec::new());
        for (answer, own) in answers.into_iter().zip(asked) {
            match answer {
                Ok(found) => named = newest(named, found),
                Err(why) => failures.push(format!("{}: {why}", own.address)),
            }
        }
        let Some(named) = named else {
            let all = failures.join("; ");
            return Err(ConnectError::Unreachable(format!("no Sentinel answers: {all}")));
        };
        let known = self.epoch.fetch_max(named.epoch, Ordering::Relaxed);
        if named.epoch < known {
            return Err(ConnectError::Rejected(format!(
                "the Sentinels that answer name {}, the primary of epoch {}, but epoch {known} is \
                 known",
                named.address, named.epoch
            )));
        }
        Ok(named)
    }

    async fn query(&self, own: &Sentinel) -> Result<NamedPrimary, ConnectError> {
        let asked = tokio::time::timeout(ANSWER_TIMEOUT, self.fetch(own)).await;
        let answer = asked.unwrap_or(Err(ConnectError::Silent));
        if answer.is_err() {
            own.pause.store(PAUSE, Ordering::Relaxed);
            own.set(None);
        }
        answer
    }

    async fn fetch(&self, own: &Sentinel) -> Result<NamedPrimary, ConnectError> {
        let open = own.connection.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let connection = match open {
            Some(connection) => connection,
            None => self.dial.dial(&self.login, &own.address).await?,
        };
        let mut question = cmd("SENTINEL");
        question.arg("MASTER").arg(&self.primary);
        let reply = connection.send(&question).await;
        let reply = reply.map_err(|error| unreachable_for(&error))?;
        own.set(Some(connection));
        let fields: HashMap<String, String> = redis::from_redis_value(reply).unwrap_or_default();
        named(&fields).ok_or_else(|| {
            ConnectError::Rejected(format!("it does not know where `{}` is", self.primary))
        })
    }
}

impl Sentinel {
    fn new(address: &ServerAddress) -> Self {
        let (address, connection) = (address.clone(), Mutex::default());
        Self { address, connection, pause: AtomicU32::new(0) }
    }

    fn is_paused(&self) -> bool {
        let less = |pause: u32| pause.checked_sub(1);
        self.pause.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }

    fn set(&self, connection: Option<Session>) {
        *self.connection.lock().unwrap_or_else(PoisonError::into_inner) = connection;
    }
}

fn named(fields: &HashMap<String, String>) -> Option<NamedPrimary> {
    let (host, port) = (fields.get("ip")?, fields.get("port")?);
    let host = host.strip_prefix('[').unwrap_or(host);
    let address = ServerAddress::read(&format!("{}:{port}", host.trim_end_matches(']')))?;
    Some(NamedPrimary { address, epoch: fields.get("config-epoch")?.parse().ok()? })
}

fn newest(one: Option<NamedPrimary>, other: NamedPrimary) -> Option<NamedPrimary> {
    match one {
        Some(one) if one.epoch >= other.epoch => Some(one),
        _ => Some(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn primary(port: u16, epoch: u64) -> NamedPrimary {
        let address = ServerAddress { host: "10.0.0.1".to_owned(), port };
        NamedPrimary { address, epoch }
    }

    #[test]
    fn the_primary_of_the_highest_epoch_is_used() {
        let of = |all: &[NamedPrimary]| all.iter().cloned().fold(None, newest);
        assert_eq!(of(&[primary(1, 3), primary(2, 4), primary(1, 3)]), Some(primary(2, 4)));
        assert_eq!(of(&[]), None);
    }

    #[test]
    fn an_answer_names_an_address_and_an_epoch() {
        let answer = |fields: &[(&str, &str)]| {
            named(&fields.iter().map(|(name, own)| ((*name).into(), (*own).into())).collect())
        };
        let (ip, port, epoch) = (("ip", "10.0.0.1"), ("port", "6379"), ("config-epoch", "7"));
        assert_eq!(answer(&[ip, port, epoch]), Some(primary(6_379, 7)));
        assert_eq!(answer(&[("ip", "::1"), port, epoch]).unwrap().address.host, "::1");
        for missing in [[ip, port], [ip, epoch], [port, epoch]] {
            assert_eq!(answer(&missing), None);
        }
        assert_eq!(answer(&[ip, ("port", "0"), epoch]), None);
    }
}
