//! Egress rules: which URLs and addresses may be called, and name resolution that obeys them.
//!
//! # Invariants
//!
//! 1. No connection is opened to an unchecked address, whatever DNS returns: connections use the
//!    addresses of [`Rules::addresses`], which returns no forbidden one. An address in a URL is
//!    never resolved, so [`Rules::canonical`] checks it before every attempt.
//! 2. The same rules apply when a URL is registered and when it is called. Names are resolved only
//!    when they are called: a registration proves nothing about later lookups.
//! 3. An owner cannot distinguish a name with forbidden addresses from one without any: otherwise
//!    owners could map the internal network.
//! 4. Lookups use the permits of the attempt's workspace ([`on_behalf_of`]).

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

/// The longest that an attempt waits for a lookup; at most half of its deadline. A slower lookup
/// counts as no attempt: the delivery is retried soon and joins the running lookup.
const LOOKUP_WAIT_MAX: Duration = Duration::from_secs(2);

tokio::task_local! {
    /// The workspace of the current attempt.
    static WORKSPACE: Arc<str>;
}

/// Runs an attempt of a workspace, whose permits its lookups use.
pub fn on_behalf_of<F: Future>(workspace: Arc<str>, attempt: F) -> impl Future<Output = F::Output> {
    WORKSPACE.scope(workspace, attempt)
}

/// The workspace of the current attempt; `None` for one of no workspace.
pub(crate) fn workspace() -> Option<Arc<str>> {
    WORKSPACE.try_with(Arc::clone).ok()
}

/// The operator's egress rules.
#[derive(Clone, Debug)]
pub struct Rules {
    egress: Egress,
    names: Arc<Names>,
}

/// Why a name has no allowed address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// The name does not resolve, or to no allowed address.
    #[error("the host resolves to no allowed address")]
    NoAddress,
    /// The lookup got no reply.
    #[error("the lookup of the host name got no reply")]
    Unanswered,
    /// A shortage of this machine: descriptors, memory, threads.
    #[error("no resources to look up the host name")]
    Shortage,
}

impl Rules {
    /// Rules for these settings; `names` outlives a reload.
    #[must_use]
    pub fn new(egress: Egress, names: Arc<Names>) -> Self {
        Self { egress, names }
    }

    /// Rules for these settings, with the system's resolver.
    #[must_use]
    pub fn system(egress: Egress) -> Self {
        Self::new(egress, Names::system())
    }

    /// The canonical form of an allowed URL, or why it is refused.
    pub fn canonical(&self, text: &str) -> Result<Url, String> {
        canonical_url::canonical(text, &self.egress)
    }

    /// Whether a canonical URL may be called, or why it is refused.
    pub(super) fn check(&self, url: &Url) -> Result<(), String> {
        canonical_url::check(url, &self.egress)
    }

    /// Why an address may not be called; `None` if it may.
    #[must_use]
    pub fn forbidden(&self, address: IpAddr) -> Option<&'static str> {
        address::forbidden(address, &self.egress.allow_networks)
    }

    /// The allowed addresses of a name, looked up with a permit of the attempt's workspace.
    pub async fn addresses_for_attempt(&self, name: &str) -> Result<Vec<IpAddr>, AddressError> {
        self.addresses(WORKSPACE.try_with(Arc::clone).ok(), name).await
    }

    /// The addresses of the operator's proxy, which may be private.
    pub(crate) async fn addresses_of_proxy(&self, host: &str) -> Result<Vec<IpAddr>, LookupError> {
        match host.parse() {
            Ok(address) => Ok(vec![address]),
            Err(_) => self.names.addresses(None, host, self.lookup_wait()).await,
        }
    }

    fn lookup_wait(&self) -> Duration {
        LOOKUP_WAIT_MAX.min(self.egress.deadline / 2)
    }

    /// The allowed addresses of a name; not empty.
    pub async fn addresses(
        &self,
        workspace: Option<Arc<str>>,
        name: &str,
    ) -> Result<Vec<IpAddr>, AddressError> {
        let found = self.names.addresses(workspace, name, self.lookup_wait()).await;
        let mut allowed = found.map_err(|error| match error {
            LookupError::NoSuchName => AddressError::NoAddress,
            LookupError::Unanswered => AddressError::Unanswered,
            LookupError::Shortage => AddressError::Shortage,
        })?;
        let many = allowed.len();
        allowed.retain(|address| self.forbidden(*address).is_none());
        if allowed.is_empty() {
            log::debug!("none of the {many} addresses of `{name}` is allowed");
            return Err(AddressError::NoAddress);
        }
        Ok(allowed)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::config::settings::AttemptSettings;
    use crate::delivery::client::DeliveryClient;
    use crate::delivery::connection::AttemptRequest;
    use crate::delivery::egress::dns::Lookup;
    use crate::delivery::egress::dns::tests::Scripted;
    use crate::domain::outcome::{Failure, Outcome};

    /// Rules for these settings without a cache of names.
    pub(crate) fn rules(egress: Egress, lookup: Arc<dyn Lookup>) -> Rules {
        let names = Names::new(lookup, weir_common::time::Clock::system(), Duration::ZERO);
        Rules::new(egress, Arc::new(names))
    }

    /// The default settings with these networks allowed.
    pub(crate) fn egress(networks: &[&str]) -> Egress {
        Egress {
            deadline: Duration::from_secs(10),
            requests: 100,
            window: Duration::from_secs(60),
            host_multiple: 10,
            in_flight_max: 1_000,
            allow_http: false,
            allow_networks: networks.iter().map(|net| net.parse().expect("a network")).collect(),
            ports: vec![443, 8443],
            extra_ca: None,
            source: Vec::new(),
            proxy: None,
            proxy_credentials: None,
            proxy_credentials_file: None,
            client_certificate: None,
            client_key: None,
        }
    }

    #[tokio::test]
    async fn a_name_with_forbidden_addresses_is_reported_like_one_without_any() {
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
    async fn an_attempt_waits_for_a_lookup_up_to_two_seconds_or_half_of_its_deadline() {
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
    async fn lookups_count_in_the_share_of_the_workspace() {
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
            let request = AttemptRequest {
                url,
                headers,
                body,
                fresh_connection: false,
                client_certificate: None,
                keep: AttemptSettings::default(),
            };
            on_behalf_of(workspace.into(), async move { client.deliver(request).await.outcome })
        };
        let mut lookups = tokio::task::JoinSet::new();
        for nth in 0..9 {
            lookups.spawn(sent(format!("n{nth}.example"), "ws_bad"));
        }
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
        // Another workspace's lookup starts at once, though the first one's share is used up.
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
    async fn of_mixed_results_only_public_addresses_are_used() {
        let script = "10.0.0.1 8.8.8.8 ::1 2606:4700::1111 ::ffff:127.0.0.1";
        let script = [("name.example", script)];
        let rules = rules(egress(&[]), Scripted::table(&script));
        let found = rules.addresses_for_attempt("name.example").await.expect("some are public");
        let found: Vec<String> = found.iter().map(ToString::to_string).collect();
        assert_eq!(found, ["8.8.8.8", "2606:4700::1111"]);
    }
}
