//! Which URLs and addresses we may call; resolves names, checks, and connects to what it checked.
//!
//! # Invariants
//!
//! 1. No connection is opened to an address that was not checked, whatever DNS says (DESIGN
//!    invariant 11): the connection goes to an address that [`Rules::addresses`] gave, and that
//!    gives none that is forbidden. An address that stands in a URL never meets a resolver, so
//!    [`Rules::canonical`] judges it, before every attempt anew.
//! 2. The same rules hold when a URL is registered and when it is called.

pub mod address;
pub mod canonical;
pub mod lookup;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use url::Url;

use self::lookup::{Lookup, System};
use crate::settings::Egress;

/// Whoever registers a webhook waits no longer than this for a name to resolve.
const ADMIT_WAIT_MAX: Duration = Duration::from_secs(2);

/// What an operator allows.
#[derive(Clone, Debug)]
pub struct Rules {
    egress: Egress,
    lookup: Arc<dyn Lookup>,
}

/// Why a name has no address that we may call.
#[derive(Debug, thiserror::Error)]
pub enum AddressError {
    /// It has addresses, and we may call none of them.
    #[error("the host has no address that may be called")]
    Blocked,
    /// It does not resolve.
    #[error("the host does not resolve")]
    NoSuchName(#[source] io::Error),
}

impl Rules {
    /// As these settings have it; names are looked up there.
    #[must_use]
    pub fn new(egress: Egress, lookup: Arc<dyn Lookup>) -> Self {
        Self { egress, lookup }
    }

    /// As these settings have it; names are looked up as the system does.
    #[must_use]
    pub fn system(egress: Egress) -> Self {
        Self::new(egress, Arc::new(System::default()))
    }

    /// The canonical form of a URL that may be called, or why it may not.
    pub fn canonical(&self, text: &str) -> Result<Url, String> {
        canonical::canonical(text, &self.egress)
    }

    /// Why an address may not be called, or `None` where it may.
    #[must_use]
    pub fn forbidden(&self, address: IpAddr) -> Option<&'static str> {
        address::forbidden(address, &self.egress.allow_networks)
    }

    /// Refuses a canonical URL whose name resolves, now, to nothing that may be called. A name
    /// that does not resolve yet, or not soon, is taken: it is checked again at each connection.
    pub async fn admit(&self, url: &Url) -> Result<(), String> {
        self.admit_within(url, ADMIT_WAIT_MAX).await
    }

    async fn admit_within(&self, url: &Url, wait: Duration) -> Result<(), String> {
        self.canonical(url.as_str())?;
        let Some(name) = url.domain() else {
            return Ok(()); // An address, which is part of the canonical form.
        };
        match tokio::time::timeout(wait, self.addresses(name)).await {
            // Which addresses those are is not told: a stranger could map our network by it.
            Ok(Err(AddressError::Blocked)) => Err(format!(
                "The host {name} resolves to no public address; deliveries go to public ones only."
            )),
            Ok(Ok(_) | Err(AddressError::NoSuchName(_))) | Err(_) => Ok(()),
        }
    }

    /// The addresses of a name that may be called: never none.
    pub async fn addresses(&self, name: &str) -> Result<Vec<IpAddr>, AddressError> {
        let found = self.lookup.addresses(name).await.map_err(AddressError::NoSuchName)?;
        if found.is_empty() {
            return Err(AddressError::NoSuchName(io::ErrorKind::NotFound.into()));
        }
        let mut allowed = found;
        allowed.retain(|address| self.forbidden(*address).is_none());
        if allowed.is_empty() { Err(AddressError::Blocked) } else { Ok(allowed) }
    }
}

/// The rules as the HTTP client's only resolver: it learns of no address that they forbid.
#[derive(Clone, Debug)]
pub struct Resolver(pub Arc<Rules>);

impl Resolve for Resolver {
    fn resolve(&self, name: Name) -> Resolving {
        let rules = self.0.clone();
        Box::pin(async move {
            let found = rules.addresses(name.as_str()).await?;
            // The port 0 stands for the URL's.
            let sockets = found.into_iter().map(|address| SocketAddr::new(address, 0));
            Ok(Box::new(sockets) as Addrs)
        })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::egress::lookup::Scripted;

    /// The defaults, with these networks permitted.
    pub(crate) fn egress(networks: &[&str]) -> Egress {
        Egress {
            deadline: Duration::from_secs(10),
            requests: 100,
            window: Duration::from_secs(60),
            in_flight_max: 1_000,
            allow_http: false,
            allow_networks: networks.iter().map(|net| net.parse().expect("a network")).collect(),
            ports: vec![443, 8443],
            extra_ca: None,
        }
    }

    async fn admits(script: &str, text: &str) -> bool {
        let rules = Rules::new(egress(&[]), Scripted::table(&[("name.example", script)]));
        rules.admit(&Url::parse(text).expect("a URL")).await.is_ok()
    }

    #[tokio::test]
    async fn a_name_is_admitted_unless_all_it_resolves_to_is_forbidden() {
        assert!(admits("8.8.8.8", "https://name.example/").await);
        assert!(admits("10.0.0.1 8.8.8.8", "https://name.example/").await);
        assert!(admits("", "https://name.example/").await);
        assert!(admits("8.8.8.8", "https://unknown.example/").await);
        assert!(!admits("10.0.0.1", "https://name.example/").await);
        assert!(!admits("10.0.0.1 ::1 64:ff9b::7f00:1", "https://name.example/").await);
        assert!(!admits("", "https://127.0.0.1/").await);
        assert!(!admits("", "https://[::ffff:a00:1]/").await);
        assert!(admits("", "https://8.8.8.8/").await);
    }

    #[tokio::test]
    async fn a_name_that_resolves_slowly_is_admitted() {
        let rules = Rules::new(egress(&[]), Scripted::table(&[("name.example", "silence")]));
        let url = Url::parse("https://name.example/").expect("a URL");
        assert_eq!(rules.admit_within(&url, Duration::from_millis(1)).await, Ok(()));
    }

    #[tokio::test]
    async fn of_mixed_answers_only_the_public_addresses_are_used() {
        let script = "10.0.0.1 8.8.8.8 ::1 2606:4700::1111 ::ffff:127.0.0.1";
        let rules = Arc::new(Rules::new(egress(&[]), Scripted::table(&[("name.example", script)])));
        let name = "name.example".parse().expect("a name");
        let found = Resolver(rules).resolve(name).await.expect("some are public");
        let found: Vec<String> = found.map(|socket| socket.ip().to_string()).collect();
        assert_eq!(found, ["8.8.8.8", "2606:4700::1111"]);
    }
}
