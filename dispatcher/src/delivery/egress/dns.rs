//! Resolves a name to addresses with the system's resolver, or from a test's table.
//!
//! Not here: which addresses may be called (`address`), limits of lookups (`resolver`), how long an
//! attempt waits (`egress`).

use std::fmt;
use std::io;
use std::net::IpAddr;

use async_trait::async_trait;
use dns_lookup::{AddrInfoHints, LookupErrorKind, SockType};

/// Why a lookup found no addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LookupError {
    /// The name servers answered: no such name, or no address.
    #[error("the name does not resolve")]
    NoSuchName,
    /// No answer: no name server replied, or it failed.
    #[error("the lookup got no reply")]
    Unanswered,
    /// A shortage of this machine.
    #[error("no resources to look up a name")]
    Shortage,
}

/// A resolver.
#[async_trait]
pub trait Lookup: fmt::Debug + Send + Sync + 'static {
    /// The addresses of a name, in the order to try them.
    async fn addresses(&self, name: &str) -> Result<Vec<IpAddr>, LookupError>;
}

/// The system's resolver: its hosts file, its name servers, its order.
#[derive(Debug)]
pub struct System;

#[async_trait]
impl Lookup for System {
    async fn addresses(&self, name: &str) -> Result<Vec<IpAddr>, LookupError> {
        let name = name.to_owned();
        let looking = tokio::task::spawn_blocking(move || look(&name));
        looking.await.unwrap_or(Err(LookupError::Shortage))
    }
}

fn look(name: &str) -> Result<Vec<IpAddr>, LookupError> {
    // RFC 6761: no such name exists, so no query is needed.
    if name.ends_with(".invalid") {
        return Err(LookupError::NoSuchName);
    }
    // Without the hint, each address is returned once per socket type.
    let hints = AddrInfoHints { socktype: SockType::Stream.into(), ..AddrInfoHints::default() };
    let found = dns_lookup::getaddrinfo(Some(name), None, Some(hints)).map_err(|error| {
        let kind = error.kind();
        meaning(kind, &io::Error::from(error))
    })?;
    Ok(found.filter_map(Result::ok).map(|one| one.sockaddr.ip()).collect())
}

/// Classifies an error of the system's resolver.
fn meaning(kind: LookupErrorKind, error: &io::Error) -> LookupError {
    match kind {
        LookupErrorKind::NoName | LookupErrorKind::NoData => LookupError::NoSuchName,
        LookupErrorKind::Memory => LookupError::Shortage,
        _ if is_shortage(error) => LookupError::Shortage,
        _ => LookupError::Unanswered,
    }
}

/// Whether an error is a shortage of this machine.
pub(crate) fn is_shortage(error: &io::Error) -> bool {
    use io::ErrorKind::{AddrInUse, AddrNotAvailable, OutOfMemory, WouldBlock};
    /// Too many open files, system-wide and per process: `io::ErrorKind` has no variants for
    /// them; the numbers are the same on Linux, macOS and the BSDs.
    const NO_FILES: [i32; 2] = [23, 24];
    /// No buffer space for a socket.
    const NO_BUFFERS: i32 = if cfg!(target_os = "linux") { 105 } else { 55 };
    let by_number = error.raw_os_error().is_some_and(|n| NO_FILES.contains(&n) || n == NO_BUFFERS);
    // No memory; no free local port, of any source or of `egress.source`; no thread.
    let by_kind = matches!(error.kind(), OutOfMemory | AddrNotAvailable | AddrInUse | WouldBlock);
    by_number || by_kind
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::HashMap;
    use std::sync::{Arc, Mutex};

    use super::*;

    /// A resolver with scripted replies: each lookup of a name returns the next one; the last one
    /// repeats.
    #[derive(Debug, Default)]
    pub(crate) struct Scripted {
        answers: Mutex<HashMap<String, Vec<Answer>>>,
    }

    /// One answer of a script.
    #[derive(Clone, Debug)]
    enum Answer {
        /// These addresses; none: there is no such name.
        Is(Vec<IpAddr>),
        /// No answer, ever.
        Silence,
        /// An error.
        Fails(LookupError),
    }

    impl Scripted {
        /// A table of names, and the answers to their lookups in order, separated by `then`.
        pub(crate) fn table(names: &[(&str, &str)]) -> Arc<Self> {
            let answer = |text: &str| match text.trim() {
                "silence" => Answer::Silence,
                "no-files" => Answer::Fails(LookupError::Shortage),
                "again" => Answer::Fails(LookupError::Unanswered),
                text => Answer::Is(
                    text.split_whitespace().map(|ip| ip.parse().expect("an address")).collect(),
                ),
            };
            let row = |(name, script): &(&str, &str)| {
                let mut script: Vec<Answer> = script.split("then").map(answer).collect();
                // Reversed, so that `pop` returns the next answer.
                script.reverse();
                ((*name).to_owned(), script)
            };
            Arc::new(Self { answers: Mutex::new(names.iter().map(row).collect()) })
        }

        fn next(&self, name: &str) -> Option<Answer> {
            let mut answers = self.answers.lock().expect("no test panics here");
            let script = answers.get_mut(name)?;
            if script.len() > 1 { script.pop() } else { script.last().cloned() }
        }
    }

    #[async_trait]
    impl Lookup for Scripted {
        async fn addresses(&self, name: &str) -> Result<Vec<IpAddr>, LookupError> {
            match self.next(name) {
                None => Err(LookupError::NoSuchName),
                Some(Answer::Is(addresses)) => Ok(addresses),
                Some(Answer::Silence) => std::future::pending().await,
                Some(Answer::Fails(error)) => Err(error),
            }
        }
    }

    #[tokio::test]
    async fn the_system_knows_addresses_by_their_own_names() {
        let found = System.addresses("127.0.0.1").await.expect("it is one");
        assert_eq!(found, [IpAddr::from([127, 0, 0, 1])]);
    }

    #[tokio::test]
    async fn an_invalid_or_reserved_name_does_not_resolve() {
        for name in ["not a name", "unknown.invalid"] {
            assert_eq!(System.addresses(name).await, Err(LookupError::NoSuchName), "{name}");
        }
    }

    #[test]
    fn what_is_temporary_is_no_fault_of_the_names() {
        use LookupErrorKind as Kind;
        let plain = || io::Error::other("it failed");
        for kind in [Kind::NoName, Kind::NoData] {
            assert_eq!(meaning(kind, &plain()), LookupError::NoSuchName, "{kind:?}");
        }
        for kind in [Kind::Again, Kind::Fail, Kind::System, Kind::IO, Kind::Unknown] {
            assert_eq!(meaning(kind, &plain()), LookupError::Unanswered, "{kind:?}");
        }
        let no_files = io::Error::from_raw_os_error(24);
        assert_eq!(meaning(Kind::System, &no_files), LookupError::Shortage);
        assert_eq!(meaning(Kind::Memory, &plain()), LookupError::Shortage);
    }
}
