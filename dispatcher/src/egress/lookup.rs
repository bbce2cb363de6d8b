//! Finds the addresses of a name: by the system, or from a table that a test wrote.
//!
//! Not here: which of them may be called (`address`), and how long to wait (`egress`, `deliver`).

use std::fmt;
use std::io;
use std::net::{IpAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// Lookups at one time. Each is a thread of the runtime until the system's resolver gives up,
/// and a name whose servers are silent takes it half a minute.
const LOOKUPS_MAX: usize = 64;

/// How long a lookup waits for a place among them. It is no fault of the name's.
const PLACE_WAIT_MAX: Duration = Duration::from_secs(2);

/// Where addresses come from.
#[async_trait]
pub trait Lookup: fmt::Debug + Send + Sync + 'static {
    /// The addresses of a name, in the order in which they are to be tried.
    async fn addresses(&self, name: &str) -> io::Result<Vec<IpAddr>>;
}

/// The system's resolver: its hosts file, its name servers, its order.
#[derive(Debug)]
pub struct System {
    free: Arc<Semaphore>,
}

impl Default for System {
    fn default() -> Self {
        Self { free: Arc::new(Semaphore::new(LOOKUPS_MAX)) }
    }
}

#[async_trait]
impl Lookup for System {
    async fn addresses(&self, name: &str) -> io::Result<Vec<IpAddr>> {
        let place = timeout(PLACE_WAIT_MAX, self.free.clone().acquire_owned()).await;
        // Where all are taken, the machine has run out of something: `WouldBlock`.
        let place = place.map_err(|_| io::ErrorKind::WouldBlock)?.map_err(io::Error::other)?;
        let name = name.to_owned();
        // Whoever waits may leave, the thread stays: so it, not the waiting, holds the place.
        let looking = tokio::task::spawn_blocking(move || {
            let _place = place;
            let found = (name.as_str(), 0).to_socket_addrs()?;
            Ok(found.map(|socket| socket.ip()).collect())
        });
        looking.await.map_err(io::Error::other)?
    }
}

/// Answers by the script of a test: each lookup of a name takes the next answer, the last stays.
#[cfg(test)]
#[derive(Debug, Default)]
pub(crate) struct Scripted {
    answers: std::sync::Mutex<std::collections::HashMap<String, Vec<Answer>>>,
}

/// One answer of a script.
#[cfg(test)]
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    /// These addresses; none: there is no such name.
    Is(Vec<IpAddr>),
    /// Never comes.
    Silence,
    /// The machine has run out of something.
    Error(i32),
}

#[cfg(test)]
impl Scripted {
    /// A table of names and, parted by `then`, what each lookup of them finds.
    pub(crate) fn table(names: &[(&str, &str)]) -> Arc<Self> {
        let answer = |text: &str| match text.trim() {
            "silence" => Answer::Silence,
            "no-files" => Answer::Error(24),
            text => Answer::Is(
                text.split_whitespace().map(|ip| ip.parse().expect("an address")).collect(),
            ),
        };
        let row = |(name, script): &(&str, &str)| {
            let mut script: Vec<Answer> = script.split("then").map(answer).collect();
            // Kept backwards, so that the next answer is at the end.
            script.reverse();
            ((*name).to_owned(), script)
        };
        Arc::new(Self { answers: std::sync::Mutex::new(names.iter().map(row).collect()) })
    }

    fn next(&self, name: &str) -> Option<Answer> {
        let mut answers = self.answers.lock().expect("no test panics here");
        let script = answers.get_mut(name)?;
        if script.len() > 1 { script.pop() } else { script.last().cloned() }
    }
}

#[cfg(test)]
#[async_trait]
impl Lookup for Scripted {
    async fn addresses(&self, name: &str) -> io::Result<Vec<IpAddr>> {
        match self.next(name) {
            None => Err(io::Error::other("no such name")),
            Some(Answer::Is(addresses)) => Ok(addresses),
            Some(Answer::Silence) => std::future::pending().await,
            Some(Answer::Error(code)) => Err(io::Error::from_raw_os_error(code)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_system_knows_addresses_by_their_own_names() {
        let found = System::default().addresses("127.0.0.1").await.expect("it is one");
        assert_eq!(found, [IpAddr::from([127, 0, 0, 1])]);
    }

    #[tokio::test]
    async fn a_name_without_sense_is_an_error_and_gives_its_place_back() {
        let system = System::default();
        system.addresses("not a name").await.expect_err("it has spaces");
        assert_eq!(system.free.available_permits(), LOOKUPS_MAX);
    }
}
