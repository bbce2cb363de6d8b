//! Asks Sentinels which server is the primary.
//!
//! Invariant: a primary of an older epoch than one that was known is never used again: a Sentinel
//! that was cut off still names it.
//!
//! Not here: whether that server takes itself for a primary (`servers::connection`).

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
    /// Its open connection, or else why it did not answer last.
    last: Mutex<Option<Result<Session, ConnectError>>>,
    /// How often it is left out from now on.
    pause: AtomicU32,
}

/// The primary that Sentinels name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct NamedPrimary {
    /// Where it is.
    pub address: ServerAddress,
    /// Since which epoch it is the primary.
    pub epoch: u64,
}

impl Sentinels {
    /// Those at the servers of `address`, which know the primary of this name.
    pub(in super::super) fn new(
        address: &StoreAddress,
        primary: &str,
        dial: Arc<dyn Dial>,
    ) -> Self {
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
        let Some(named) = answers.into_iter().flatten().reduce(newest) else {
            return Err(self.why_none_answers());
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

    /// Those that refuse us are named alone: this stays the same while others come and go.
    fn why_none_answers(&self) -> ConnectError {
        let texts = |is_silent: bool| -> String {
            let text = |own: &Sentinel| {
                let why = own.failure().filter(|why| why.is_silence() == is_silent)?;
                Some(format!("{}: {why}", own.address))
            };
            self.servers.iter().filter_map(text).collect::<Vec<_>>().join("; ")
        };
        match texts(false) {
            refusals if refusals.is_empty() => {
                ConnectError::Unreachable(format!("no Sentinel answers: {}", texts(true)))
            }
            refusals => ConnectError::Rejected(format!("no Sentinel helps: {refusals}")),
        }
    }

    async fn query(&self, own: &Sentinel) -> Result<NamedPrimary, ConnectError> {
        let asked = tokio::time::timeout(ANSWER_TIMEOUT, self.fetch(own)).await;
        let answer = asked.unwrap_or(Err(ConnectError::Silent));
        if let Err(why) = &answer {
            own.pause.store(PAUSE, Ordering::Relaxed);
            own.set(Err(why.clone()));
        }
        answer
    }

    async fn fetch(&self, own: &Sentinel) -> Result<NamedPrimary, ConnectError> {
        let connection = match own.last() {
            Some(Ok(connection)) => connection,
            _ => self.dial.dial(&self.login, &own.address).await?,
        };
        let ask = async |what| {
            let mut question = cmd("SENTINEL");
            question.arg(what).arg(&self.primary);
            connection.send(&question).await.map_err(|error| unreachable_for(&error))
        };
        // While a Sentinel leads a failover, `MASTER` has the new epoch and the old address. The
        // address is asked last: that of an earlier moment must not get the epoch of a later one.
        let (state, place) = (ask("MASTER").await?, ask("GET-MASTER-ADDR-BY-NAME").await?);
        own.set(Ok(connection.clone()));
        let fields: HashMap<String, String> = redis::from_redis_value(state).unwrap_or_default();
        let place: Option<(String, String)> = redis::from_redis_value(place).unwrap_or_default();
        place.and_then(|place| named(&place, fields.get("config-epoch")?)).ok_or_else(|| {
            ConnectError::Rejected(format!("it does not know where `{}` is", self.primary))
        })
    }
}

impl Sentinel {
    fn new(address: &ServerAddress) -> Self {
        Self { address: address.clone(), last: Mutex::default(), pause: AtomicU32::new(0) }
    }

    fn is_paused(&self) -> bool {
        let less = |pause: u32| pause.checked_sub(1);
        self.pause.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }

    fn last(&self) -> Option<Result<Session, ConnectError>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn failure(&self) -> Option<ConnectError> {
        self.last()?.err()
    }

    fn set(&self, last: Result<Session, ConnectError>) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(last);
    }
}

fn named((host, port): &(String, String), epoch: &str) -> Option<NamedPrimary> {
    let host = host.strip_prefix('[').unwrap_or(host);
    let address = ServerAddress::read(&format!("{}:{port}", host.trim_end_matches(']')))?;
    Some(NamedPrimary { address, epoch: epoch.parse().ok()? })
}

fn newest(one: NamedPrimary, other: NamedPrimary) -> NamedPrimary {
    if one.epoch >= other.epoch { one } else { other }
}

#[cfg(test)]
mod tests {
    use super::super::address::Topology;
    use super::super::login::Dialled;
    use super::*;

    /// A network in which each server fails in its way.
    struct Failing;

    impl Dial for Failing {
        fn dial<'d>(&'d self, _: &'d StoreLogin, server: &'d ServerAddress) -> Dialled<'d> {
            let why = match server.port {
                1 => ConnectError::Rejected("WRONGPASS".to_owned()),
                _ => ConnectError::Unreachable("connection refused".to_owned()),
            };
            Box::pin(async { Err(why) })
        }
    }

    #[tokio::test]
    async fn why_a_sentinel_refuses_is_named_while_it_is_left_out_too() {
        let failures = async |ports: [u16; 2]| {
            let server = |port| ServerAddress { host: "a".to_owned(), port };
            let address = StoreAddress {
                topology: Topology::Sentinel("main".to_owned()),
                servers: ports.map(server).to_vec(),
                login: StoreLogin::default(),
                sentinel_password_file: None,
                acknowledge: 0,
            };
            let sentinels = Sentinels::new(&address, "main", Arc::new(Failing));
            let found = [sentinels.find(true).await, sentinels.find(false).await];
            found.map(Result::unwrap_err)
        };
        let refused = ConnectError::Rejected("no Sentinel helps: a:1: WRONGPASS".to_owned());
        assert_eq!(failures([1, 2]).await, [refused.clone(), refused]);
        let silent = "no Sentinel answers: a:2: connection refused; a:3: connection refused";
        let silent = ConnectError::Unreachable(silent.to_owned());
        assert_eq!(failures([2, 3]).await, [silent.clone(), silent]);
    }

    fn primary(port: u16, epoch: u64) -> NamedPrimary {
        let address = ServerAddress { host: "10.0.0.1".to_owned(), port };
        NamedPrimary { address, epoch }
    }

    #[test]
    fn the_primary_of_the_highest_epoch_is_used() {
        let of = |all: &[NamedPrimary]| all.iter().cloned().reduce(newest);
        assert_eq!(of(&[primary(1, 3), primary(2, 4), primary(1, 3)]), Some(primary(2, 4)));
        assert_eq!(of(&[]), None);
    }

    #[test]
    fn an_answer_names_an_address_and_an_epoch() {
        let answer = |host: &str, port: &str, epoch| named(&(host.into(), port.into()), epoch);
        assert_eq!(answer("10.0.0.1", "6379", "7"), Some(primary(6_379, 7)));
        for host in ["::1", "[::1]"] {
            assert_eq!(answer(host, "6379", "7").unwrap().address.host, "::1");
        }
        assert_eq!(answer("10.0.0.1", "0", "7"), None);
        assert_eq!(answer("10.0.0.1", "6379", "new"), None);
    }
}
