//! Decides about one request: forward it, buffer its body first, or refuse it.
//!
//! Four steps, each in a file: *classify* (its form and its route), *authenticate*
//! (`identity::auth`), *resolve* (its tenants), *admit* (their limits). They receive plain values,
//! the same for every version of HTTP. A request waits only for an identity server, a remote
//! directory, the shared store, or counters that another process owns. Only after such a wait the
//! clock is read here.
//!
//! # Invariants
//!
//! 1. A request that a limit refuses is charged by none. One refused because no server is healthy
//!    is charged: retrying does not bypass a limit.
//! 2. A request that *classify*, *authenticate* or *resolve* refuses charges no tenant. Its
//!    response charges `limits.refused` by address, which refuses nothing (`proxy::respond`).
//! 3. A request that has waited is charged as of the end of its wait: a server receives no more in
//!    a window than a limit admits.
//!
//! # Not here
//!
//! Forwarding, buffering and sending responses (`proxy`).

pub mod admit;
pub mod classify;
pub mod facts;
mod own_limits;
pub mod request_head;
pub mod resolve;

use std::future::poll_fn;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;

use http::header;
use pingora_http::RequestHeader;
use weir_common::time::{Clock, Moment};

use crate::admission::admit::{CheckedRequest, LimitDecision};
use crate::admission::classify::{Classified, classify};
use crate::admission::facts::{RequestFacts, TenantLabels};
use crate::admission::own_limits::OwnLimits;
use crate::admission::resolve::resolve;
use crate::config::active::ActiveConfig;
use crate::config::shared::Shared;
use crate::identity::auth;
use crate::identity::auth::address_turns::AddressTurns;
use crate::identity::auth::authorization::Claims;
use crate::identity::directory::unknown_budget::UnknownBudget;
use crate::request::target::Malformed;
use crate::response::refusal::Refusal;
use crate::response::reply::Reply;
use crate::rules::charges::Charges;
use crate::rules::subject::KeySources;
use crate::rules::tenant::Identity;
use crate::rules::{Batch, RouteMatch};
use crate::settings::RouteCost;
use crate::upstream::Upstream;

/// What to do with a request.
#[derive(Debug)]
pub enum Admission {
    /// Forward it.
    Forward,
    /// Buffer its body, count the items of its batch, and only then forward it. What is charged
    /// only then, by the number of items, comes with it.
    BufferBody(Batch, Option<Box<Charges>>),
    /// Answer it, as it is no request for an upstream.
    Answer(Reply),
    /// Send a refusal.
    Refuse(Refusal),
}

/// A request whose head has been read.
pub struct Arrival<'r> {
    /// Its head.
    pub head: &'r RequestHeader,
    /// The length of its head as received, over HTTP/1 only.
    pub length: Option<usize>,
    /// Why it is refused, if two parsers could read its head differently.
    pub malformed: Option<Malformed>,
    /// When its head had been read.
    pub started_at: Moment,
    /// Its number in this process.
    pub nth: u64,
}

/// Decides about a request. `facts` starts with what its connection shows; each step adds to it.
pub async fn admit(
    shared: &Shared,
    config: &ActiveConfig,
    arrival: Arrival<'_>,
    facts: &mut RequestFacts,
) -> Admission {
    let target = match classify::read(&config.settings.server, &arrival, facts) {
        Ok(target) => target,
        Err(refusal) => return Admission::Refuse(refusal),
    };
    let route_match = match classify(&config.rules, &arrival, &target, facts) {
        Classified::Routed(route_match) => route_match,
        Classified::Preflight(reply) => return Admission::Answer(reply),
        Classified::Refused(refusal) => return Admission::Refuse(refusal),
    };
    // Filled in place: they are large to move.
    let mut charges = Charges::default();
    let resolved =
        authenticate_and_resolve(shared, config, &route_match, &arrival, (facts, &mut charges));
    let (own_limits, now) = match resolved.await {
        Ok(resolved) => resolved,
        // `proxy::respond` charges the refusal.
        Err(refusal) => return Admission::Refuse(refusal),
    };
    let checked = CheckedRequest { shared, config, now, nth: arrival.nth };
    let route = route_match.route;
    let charged = match route.cost {
        RouteCost::Fixed(_) => checked.charge(&mut charges, &mut facts.limits).await,
        RouteCost::Items => match checked.preview(&mut charges, &mut facts.limits) {
            LimitDecision::Refused(refusal) => Err(refusal),
            _ => Ok(()),
        },
    };
    if let Err(refusal) = charged {
        return Admission::Refuse(refusal);
    }
    if let Some(limits) = own_limits {
        // Boxed: it is rare, and inline it would make every request's future larger.
        let mut reply = Box::pin(limits.reply(shared, &config.rules, now)).await;
        if let Some(cors) = config.rules.cors(route.plane) {
            reply.lines.push_str(&cors.lines(&arrival.head.headers, &[]));
        }
        return Admission::Answer(reply);
    }
    let too_large = |max: &u64| announced(arrival.head).is_some_and(|bytes| bytes > *max);
    if let Some(bytes_max) = route.body_bytes_max.filter(too_large) {
        return Admission::Refuse(Refusal::BodyTooLarge { bytes_max });
    }
    let upstream = config.upstreams.get(route.upstream);
    if !upstream.is_some_and(|upstream| upstream.has_healthy()) {
        return Admission::Refuse(no_server(upstream.map(|upstream| &**upstream)));
    }
    let Some(batch) = route.batch else { return Admission::Forward };
    let by_items = route.cost == RouteCost::Items;
    Admission::BufferBody(batch, by_items.then(|| Box::new(charges)))
}

/// The value of `Content-Length`, where there is one.
#[must_use]
pub fn announced(head: &RequestHeader) -> Option<u64> {
    head.headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.trim().parse().ok()
}

/// Adds what a request is charged to, and returns what its route answers by itself, and as of when
/// it is charged. A refusal, and no charges, if its token is not accepted or does not reach the
/// tenants that the request names, or if either cannot be checked now.
async fn authenticate_and_resolve(
    shared: &Shared,
    config: &ActiveConfig,
    route_match: &RouteMatch<'_>,
    arrival: &Arrival<'_>,
    (facts, charges): (&mut RequestFacts, &mut Charges),
) -> Result<(Option<OwnLimits>, Moment), Refusal> {
    let (rules, address) = (&config.rules, facts.client.address);
    let mut own_limits = None;
    let mut now = arrival.started_at;
    let claims = match route_match.route.needs_token {
        // Boxed, so that the future of a request that needs no token is smaller.
        true => {
            let authenticated = Box::pin(authenticate(shared, config, arrival, address));
            Some(awaited(authenticated, &shared.clock, &mut now).await?)
        }
        false => None,
    };
    let claims = claims.as_deref();
    let names = auth::authorization::claimed(route_match.names, claims, &rules.workspaces);
    let arrived = now.tick;
    let budget = || UnknownBudget::of(address, rules.seed(), &shared.limiter, arrived);
    let resolved = resolve(config, route_match, claims, &names, budget);
    let known = awaited(resolved, &shared.clock, &mut now).await?;
    let identity = rules.identify(&names, known.as_ref());
    if !route_match.route.exempt {
        let untrusted = !facts.client.is_trusted_proxy;
        let sources = KeySources {
            identity: &identity,
            address,
            now,
            claims: claims.map_or(&[], |claims| &claims.keys),
            headers: &arrival.head.headers,
            dropped: untrusted.then_some(&config.settings.server.trusted_headers),
        };
        rules.add_checks(route_match.route, &sources, charges);
        own_limits = route_match.route.answers_limits.then(|| OwnLimits::of(rules, &sources));
    }
    label(&mut facts.tenant, identity, known.is_some() && route_match.route.exempt);
    Ok((own_limits, now))
}

/// Awaits `step`; one that was not ready at once moves `now` to the time at which it is.
async fn awaited<T>(step: impl Future<Output = T>, clock: &Clock, now: &mut Moment) -> T {
    let mut step = pin!(step);
    let mut has_waited = false;
    let done = poll_fn(|context| {
        let polled = step.as_mut().poll(context);
        has_waited |= polled.is_pending();
        polled
    });
    let done = done.await;
    if has_waited {
        *now = clock.now();
    }
    done
}

/// Verifies the token of a request. An identity server is queried in turns of the address.
async fn authenticate(
    shared: &Shared,
    config: &ActiveConfig,
    arrival: &Arrival<'_>,
    address: IpAddr,
) -> Result<Arc<Claims>, Refusal> {
    let (verifier, now) = (config.verifier.as_deref(), arrival.started_at);
    let turns = AddressTurns {
        in_flight: &shared.identity_queries,
        address,
        limiter: &shared.limiter,
        rules: &config.rules,
        clock: &shared.clock,
    };
    auth::verify(verifier, &arrival.head.headers, now, &shared.metrics, &turns).await
}

/// The refusal of a request whose upstream has no healthy server.
#[must_use]
pub fn no_server(upstream: Option<&Upstream>) -> Refusal {
    let wait = upstream.map(Upstream::back_in).unwrap_or_default();
    // Rounded up, so that a client that waits this long does not retry too early.
    Refusal::NoServer {
        retry_after: wait.as_millis().div_ceil(1_000).max(1).try_into().unwrap_or(1),
    }
}

/// Records a request's tenants; its organisation only if it was not `guessed`.
fn label(tenant: &mut TenantLabels, identity: Identity<'_>, guessed: bool) {
    tenant.has_entry = identity.workspace.as_ref().is_some_and(|subject| subject.tenant.is_some());
    tenant.workspace = identity.workspace.map(|subject| subject.name);
    let organisation = identity.organisation.filter(|_| !guessed);
    tenant.organisation = organisation.map(|subject| subject.name);
    tenant.instance = identity.instance.map(|subject| subject.name);
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;
    use tokio::sync::Semaphore;
    use tokio::task::JoinSet;
    use weir_common::config::document::Document;
    use weir_common::directory::Directory;
    use weir_common::directory::client::DirectoryClient;
    use weir_common::time::UnixTime;

    use http::{HeaderMap, Method};

    use super::*;
    use crate::admission::facts::LimitFacts;
    use crate::config::checked::{CheckedConfig, Config, Origin};
    use crate::config::shared::Seeds;
    use crate::limit::key::Seed;
    use crate::request::target;
    use crate::settings::directory::DirectorySource;

    const SHIPPED: &str = include_str!("../../config/gateway.toml");
    const FROM_FILE: &str = "source = \"file\"\npath = \"config/directory.toml\"";

    /// What the shipped limit of a workspace admits in a minute.
    const ADMITTED: usize = 60;

    /// A gateway with the shipped settings, of which these are replaced.
    fn gateway((from, to): (&str, &str), clock: &Clock) -> Arc<Shared> {
        let text = SHIPPED.replacen(from, to, 1);
        let (document, nothing) = (Document::new("g", &text), Document::new("d", ""));
        let raw = crate::settings::read::read(&document).made;
        let seed = Seed::new([7; 16]);
        let of_tenants = (&Directory::default(), &nothing);
        let rules = crate::rules::compile::check((&raw, &document), of_tenants, seed);
        assert!(document.diagnostics().is_empty(), "{:?}", document.diagnostics());
        let mut origin = Origin::default();
        if let DirectorySource::Http(http) = &raw.settings.directory.source {
            origin.client = Some(DirectoryClient::new(http).unwrap());
        }
        let checked = CheckedConfig { rules, settings: raw.settings, origin };
        let seeds = Seeds { keys: seed, request_ids: seed };
        Arc::new(Shared::new(clock.clone(), Config::built_in(), checked, seeds, 10))
    }

    /// A server that answers every request with `body`, each once `gate` admits it.
    async fn serve(listener: TcpListener, body: &str, asked: Arc<AtomicU64>, gate: Arc<Semaphore>) {
        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut read = Vec::new();
            while !read.windows(4).any(|end| end == b"\r\n\r\n") {
                stream.read_buf(&mut read).await.unwrap();
            }
            asked.fetch_add(1, Ordering::Relaxed);
            gate.acquire().await.unwrap().forget();
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    }

    /// Sends as many requests for one workspace as its limit admits.
    fn send(shared: &Arc<Shared>, requests: &mut JoinSet<Admission>) {
        for _ in 0..ADMITTED {
            let shared = shared.clone();
            requests.spawn(async move {
                let path = b"/v1/workspaces/ws_a/users";
                let mut head = RequestHeader::build("GET", path, None).unwrap();
                head.insert_header("Host", "api.localhost").unwrap();
                head.insert_header("Authorization", "Bearer opaque").unwrap();
                let (started_at, config) = (shared.clock.now(), shared.active.load_full());
                let arrival =
                    Arrival { head: &head, length: None, malformed: None, started_at, nth: 0 };
                let mut facts = RequestFacts::of(Ipv4Addr::LOCALHOST.into());
                admit(&shared, &config, arrival, &mut facts).await
            });
        }
    }

    /// How many requests a limit admits of those that wait for a server for more than its window,
    /// and as many that come after them.
    async fn admitted_of_early_and_late(
        settings: impl Fn(&str) -> (&'static str, String),
        body: &'static str,
    ) -> usize {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (from, to) = settings(&format!("http://{}", listener.local_addr().unwrap()));
        let clock = Clock::manual(UnixTime(1_700_000_000_000_000));
        let shared = gateway((from, &to), &clock);
        let (asked, gate) = (Arc::new(AtomicU64::default()), Arc::new(Semaphore::new(0)));
        let mut server = JoinSet::new();
        server.spawn(serve(listener, body, asked.clone(), gate.clone()));
        let mut requests = JoinSet::new();
        send(&shared, &mut requests);
        while asked.load(Ordering::Relaxed) == 0 {
            tokio::task::yield_now().await;
        }
        clock.advance(Duration::from_secs(61));
        gate.add_permits(10);
        let mut answers = Vec::new();
        while answers.len() < ADMITTED {
            answers.push(requests.join_next().await.unwrap().unwrap());
        }
        send(&shared, &mut requests);
        answers.extend(requests.join_all().await);
        let limited =
            |answer: &&Admission| matches!(answer, Admission::Refuse(Refusal::RateLimited { .. }));
        answers.len() - answers.iter().filter(limited).count()
    }

    #[test]
    fn requests_that_have_waited_are_charged_as_of_the_end_of_their_wait() {
        // Another test may have installed it already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let of_directory = |url: &str| {
                (FROM_FILE, format!("source = \"http\"\nurl = \"{url}\"\nttl = \"1h\""))
            };
            assert_eq!(admitted_of_early_and_late(of_directory, "{}").await, ADMITTED);
            let of_token = |url: &str| {
                let how = "verify = \"introspection\"\nplanes = [\"control\"]\n\
                           introspection.ttl = \"1h\"\nintrospection.url =";
                ("verify = \"none\"", format!("{how} \"{url}\""))
            };
            let active = "{\"active\": true, \"workspace_id\": \"ws_a\"}";
            assert_eq!(admitted_of_early_and_late(of_token, active).await, ADMITTED);
        });
    }

    #[test]
    fn a_batch_whose_body_ends_after_midnight_counts_for_the_new_day_alone() {
        let by_minute = "algorithm = \"rolling_window\"\nrequests = 60\nwindow = \"1m\"\n\
                         mode = \"enforce\"\n\n[limits.organisation]";
        let by_day = by_minute
            .replace("rolling_window", "calendar_day")
            .replace("window = \"1m\"", "time_zone = \"UTC\"");
        let evening = UnixTime(1_700_006_397_000_000);
        let clock = Clock::manual(evening);
        let shared = gateway((by_minute, &by_day), &clock);
        let config = shared.active.load_full();
        let target = target::read(b"/v1/workspaces/ws_a/users", Some(b"api.localhost")).unwrap();
        let route_match = config.rules.match_route(&target, &Method::GET).unwrap();
        let identity = config.rules.identify(&route_match.names, None);
        let made = |now: Moment| {
            let sources = KeySources {
                identity: &identity,
                address: IpAddr::V4(Ipv4Addr::LOCALHOST),
                now,
                claims: &[],
                headers: &HeaderMap::new(),
                dropped: None,
            };
            let mut charges = Charges::default();
            config.rules.add_checks(route_match.route, &sources, &mut charges);
            charges
        };
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let charge = |mut charges: Charges| {
            let request =
                CheckedRequest { shared: &shared, config: &config, now: clock.now(), nth: 0 };
            let mut facts = LimitFacts::default();
            runtime.block_on(request.charge(&mut charges, &mut facts)).is_ok()
        };
        assert_eq!((0..99).filter(|_| charge(made(clock.now()))).count(), 60);
        let earlier = made(clock.now());
        clock.advance(Duration::from_secs(5));
        assert!(charge(earlier), "it is a new day");
        assert_eq!((0..99).filter(|_| charge(made(clock.now()))).count(), 59);
    }
}
