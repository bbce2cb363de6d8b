//! Which URLs and addresses we may call; resolves names, checks, and connects to what it checked.
//!
//! # Invariants
//!
//! 1. No connection is opened to an address that was not checked, whatever DNS says: the
//!    connection goes to an address that [`Rules::addresses`] gave, and that
//!    gives none that is forbidden. An address that stands in a URL never meets a resolver, so
//!    [`Rules::canonical`] judges it, before every attempt anew.
//! 2. The same rules hold when a URL is registered and when it is called. Names are looked up when
//!    they are called alone: a registration says nothing of what a name leads to, soon or late.
//! 3. No name tells its webhook's owner whether it leads to addresses that may not be called, or to
//!    none at all: a stranger could map our network by it.
//! 4. Lookups count in the share of the workspace that an attempt is made for ([`on_behalf_of`]).

pub mod address;
pub mod canonical_url;
pub mod dns;
pub mod resolver;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use url::Url;

use crate::config::settings::Egress;
use crate::delivery::egress::dns::LookupError;
use crate::delivery::egress::resolver::Names;

/// An attempt waits no longer than this for its host's name, nor for half of its deadline. What
/// takes longer costs it nothing: it is tried again in a moment, and joins the lookup.
const LOOKUP_WAIT_MAX: Duration = Duration::from_secs(2);

tokio::task_local! {
    /// The workspace that an attempt is made for.
    static WORKSPACE: Arc<str>;
}

/// Makes an attempt for a workspace: the names that it needs are looked up in its share.
pub async fn on_behalf_of<F: Future>(workspace: Arc<str>, attempt: F) -> F::Output {
    WORKSPACE.scope(workspace, attempt).await
}

/// What an operator allows.
#[derive(Clone, Debug)]
pub struct Rules {
    egress: Egress,
    names: Arc<Names>,
}

/// Why a name has no address that we may call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// It does not resolve, or to nothing that we may call.
    #[error("the host resolves to no address that may be called")]
    NoAddress,
    /// Nothing answered for it.
    #[error("nothing answered for the host's name")]
    Unanswered,
    /// This machine has run out of something.
    #[error("the host's name could not be looked up")]
    Shortage,
}

impl Rules {
    /// As these settings have it, over names that outlive them.
    #[must_use]
    pub fn new(egress: Egress, names: Arc<Names>) -> Self {
        Self { egress, names }
    }

    /// As these settings have it; names are looked up as the system does.
    #[must_use]
    pub fn system(egress: Egress) -> Self {
        Self::new(egress, Names::system())
    }

    /// The canonical form of a URL that may be called, or why it may not.
    pub fn canonical(&self, text: &str) -> Result<Url, String> {
        canonical_url::canonical(text, &self.egress)
    }

    /// Why an address may not be called, or `None` where it may.
    #[must_use]
    pub fn forbidden(&self, address: IpAddr) -> Option<&'static str> {
        address::forbidden(address, &self.egress.allow_networks)
    }

    /// The addresses of a name that may be called, looked up for the workspace that the attempt
    /// is made for.
    pub async fn addresses_for_attempt(&self, name: &str) -> Result<Vec<IpAddr>, AddressError> {
        self.addresses(WORKSPACE.try_with(Arc::clone).ok(), name).await
    }

    /// The addresses of a name that may be called: never none.
    pub async fn addresses(
        &self,
        workspace: Option<Arc<str>>,
        name: &str,
    ) -> Result<Vec<IpAddr>, AddressError> {
        let wait = LOOKUP_WAIT_MAX.min(self.egress.deadline / 2);
        let found = self.names.addresses(workspace, name, wait).await;
        let mut allowed = found.map_err(|error| match error {
            LookupError::NoSuchName => AddressError::NoAddress,
            LookupError::Unanswered => AddressError::Unanswered,
            LookupError::Shortage => AddressError::Shortage,
        })?;
        let many = allowed.len();
        allowed.retain(|address| self.forbidden(*address).is_none());
        if allowed.is_empty() {
            log::debug!("of the {many} addresses of `{name}` none may be called");
            return Err(AddressError::NoAddress);
        }
        Ok(allowed)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::delivery::client::DeliveryClient;
    use crate::delivery::connection::AttemptRequest;
    use crate::delivery::egress::dns::Lookup;
    use crate::delivery::egress::dns::tests::Scripted;
    use crate::domain::outcome::{Failure, Outcome};

    /// As these settings have it; each name is looked up there whenever it is called.
    pub(crate) fn rules(egress: Egress, lookup: Arc<dyn Lookup>) -> Rules {
        let names = Names::new(lookup, weir_common::time::Clock::system(), Duration::ZERO);
        Rules::new(egress, Arc::new(names))
    }

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

    #[tokio::test]
    async fn a_name_that_leads_to_forbidden_addresses_is_as_one_that_leads_nowhere() {
        let script = [
            ("public.example", "10.0.0.1 8.8.8.8"),
            ("private.example", "10.0.0.1 ::1 64:ff9b::7f00:1"),
            ("empty.example", ""),
            ("again.example", "again"),
            ("short.example", "no-files"),
        ];
        let rules = rules(egress(&[]), Scripted::table(&script));
        for (name, expected) in [
            ("public.example", Ok(1)),
            ("private.example", Err(AddressError::NoAddress)),
            ("empty.example", Err(AddressError::NoAddress)),
            ("unknown.example", Err(AddressError::NoAddress)),
            ("again.example", Err(AddressError::Unanswered)),
            ("short.example", Err(AddressError::Shortage)),
        ] {
            let found = rules.addresses(None, name).await.map(|found| found.len());
            assert_eq!(found, expected, "{name}");
            assert!(rules.canonical(&format!("https://{name}/")).is_ok(), "{name} is registered");
        }
    }

    #[tokio::test(start_paused = true)]
    #[expect(clippy::disallowed_methods, reason = "tokio's clock, which a test turns")]
    async fn an_attempt_waits_for_a_name_for_two_seconds_or_half_of_its_deadline() {
        for (deadline, expected) in [(10_000, 2_000), (1_000, 500)] {
            let egress = Egress { deadline: Duration::from_millis(deadline), ..egress(&[]) };
            let rules = rules(egress, Scripted::table(&[("name.example", "silence")]));
            let since = tokio::time::Instant::now();
            let found = rules.addresses(None, "name.example").await;
            assert_eq!(found, Err(AddressError::Unanswered));
            assert_eq!(since.elapsed().as_millis(), expected);
        }
    }

    #[tokio::test]
    async fn an_attempt_looks_names_up_in_the_share_of_its_workspace() {
        let table: Vec<(String, &str)> =
            (0..9).map(|nth| (format!("n{nth}.example"), "silence")).collect();
        let mut table: Vec<(&str, &str)> = table.iter().map(|(name, is)| (&**name, *is)).collect();
        table.push(("fine.example", "10.0.0.1"));
        let rules = Arc::new(rules(egress(&[]), Scripted::table(&table)));
        let client = DeliveryClient::new(&egress(&[]), rules, weir_common::time::Clock::system());
        let client = Arc::new(client.expect("it builds"));
        let sent = |host: String, workspace: &str| {
            let client = client.clone();
            let url = Url::parse(&format!("https://{host}/")).expect("a URL");
            let (headers, body) = Default::default();
            let request = AttemptRequest { url, headers, body, fresh_connection: false };
            on_behalf_of(workspace.into(), async move { client.deliver(request).await.outcome })
        };
        let mut asking = tokio::task::JoinSet::new();
        for nth in 0..9 {
            asking.spawn(sent(format!("n{nth}.example"), "ws_bad"));
        }
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
        // Another workspace's is looked up at once, though all places of the first are taken.
        let fine = tokio::time::timeout(
            Duration::from_millis(1_500),
            sent("fine.example".into(), "ws_good"),
        );
        let outcome = fine.await.expect("it does not wait");
        assert_eq!(outcome, Outcome::Failed(Failure::Dns), "it is private");
        let own =
            tokio::time::timeout(Duration::from_millis(100), sent("fine.example".into(), "ws_bad"));
        assert!(own.await.is_err(), "its own waits for its own");
    }

    #[tokio::test]
    async fn of_mixed_answers_only_the_public_addresses_are_used() {
        let script = "10.0.0.1 8.8.8.8 ::1 2606:4700::1111 ::ffff:127.0.0.1";
        let script = [("name.example", script)];
        let rules = rules(egress(&[]), Scripted::table(&script));
        let found = rules.addresses_for_attempt("name.example").await.expect("some are public");
        let found: Vec<String> = found.iter().map(ToString::to_string).collect();
        assert_eq!(found, ["8.8.8.8", "2606:4700::1111"]);
    }
}
