//! An hour of fifty agents and their workspace's other traffic, on a turned clock: the client's
//! waits and its cache against the limits of the gateway.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::Instant;
use weir_client::call::{Answer, Call};
use weir_client::client::{BUDGET, CACHE_BYTES, Client};
use weir_client::methods::Paging;
use weir_client::transport::{SendError, Transport};
use weir_common::limit::decision::Decision;
use weir_common::limit::quota::Quota;
use weir_common::limit::rolling::RollingQuota;
use weir_common::limit::state::State;
use weir_common::time::{Moment, Tick, UnixTime};
use weir_tests::rng::SeededRng;

const HOUR: Duration = Duration::from_secs(3_600);

/// How long a call is under way.
const LATENCY: Duration = Duration::from_millis(40);

/// When the hour begins, so that no tick is 0.
const START: u64 = 1_000_000_000_000;

/// A gateway with one limit, and what it has seen.
struct Gateway {
    began: Instant,
    quota: Quota,
    state: Mutex<State>,
    /// The times of the lists that were admitted, per target.
    lists: Mutex<Vec<(String, Tick)>>,
    refused: AtomicU64,
    dice: Mutex<SeededRng>,
}

impl Gateway {
    fn new(seed: u64, requests: u32) -> Arc<Self> {
        let quota = Quota::Rolling(RollingQuota { requests, window: Duration::from_secs(60) });
        Arc::new(Self {
            began: now(),
            quota,
            state: Mutex::new(State::fresh(quota)),
            lists: Mutex::default(),
            refused: AtomicU64::new(0),
            dice: Mutex::new(SeededRng::new(seed)),
        })
    }

    fn tick(&self) -> Tick {
        let passed = now().duration_since(self.began);
        Tick(START).plus(passed)
    }

    /// The seconds until a request would be admitted; none if it is admitted now.
    fn charge(&self) -> Option<u64> {
        let (mut state, now) = (self.state.lock().unwrap(), self.tick());
        match state.decide(&self.quota, 1, now) {
            Decision::Admit => {
                state.charge(&self.quota, 1, now);
                None
            }
            Decision::Refuse { retry_at } => {
                Some(retry_at.since(now).as_micros().div_ceil(1_000_000) as u64)
            }
            Decision::TooLarge => panic!("a request costs 1"),
        }
    }
}

struct Wire(Arc<Gateway>);

#[async_trait]
impl Transport for Wire {
    fn now(&self) -> Moment {
        let tick = self.0.tick();
        Moment { tick, unix: UnixTime(tick.0) }
    }

    fn dice(&self) -> u64 {
        self.0.dice.lock().unwrap().next()
    }

    async fn wait(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }

    async fn send(&self, call: &Call, _: Option<&str>) -> Result<Answer, SendError> {
        let Self(gateway) = self;
        tokio::time::sleep(LATENCY).await;
        if let Some(seconds) = gateway.charge() {
            gateway.refused.fetch_add(1, Ordering::Relaxed);
            let body = r#"{"type": "urn:weir:problem:rate-limited"}"#;
            let retry_after = Some(seconds.to_string());
            return Ok(Answer { status: 429, retry_after, body: body.into(), ..Answer::default() });
        }
        gateway.lists.lock().unwrap().push((call.target.clone(), gateway.tick()));
        let body = r#"{"data": [], "next_cursor": null}"#;
        Ok(Answer { status: 200, body: body.into(), ..Answer::default() })
    }
}

#[expect(clippy::disallowed_methods, reason = "the runtime's clock, which the test turns")]
fn now() -> Instant {
    Instant::now()
}

/// What happened within the hour.
struct Hour {
    gateway: Arc<Gateway>,
    calls: u64,
    errors: u64,
    longest: Duration,
    waits: u64,
}

/// Fifty agents list without pause for an hour, each of them `pages` in turn, while `others`
/// requests a minute of the same workspace use the limit.
fn hour(seed: u64, pages: u32, others: u32) -> Hour {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(async {
        let gateway = Gateway::new(seed, 60);
        let client = Client::new(Wire(Arc::clone(&gateway)), BUDGET, CACHE_BYTES);
        let mut tasks = tokio::task::JoinSet::new();
        for agent in 0..50 {
            let client = client.clone();
            tasks.spawn(agent_of(client, agent, pages));
        }
        let busy = async {
            if others == 0 {
                return std::future::pending().await;
            }
            let mut every = tokio::time::interval(Duration::from_secs(60) / others);
            loop {
                every.tick().await;
                gateway.charge();
            }
        };
        let (mut calls, mut errors, mut longest) = (0, 0, Duration::ZERO);
        let ended = async {
            while let Some(agent) = tasks.join_next().await {
                let (own, failed, slowest) = agent.unwrap();
                (calls, errors) = (calls + own, errors + failed);
                longest = longest.max(slowest);
            }
        };
        tokio::select! {
            () = ended => {}
            () = busy => unreachable!("it has no end"),
        }
        let waits = client.waits();
        Hour { gateway, calls, errors, longest, waits }
    })
}

/// An agent's calls, its errors, and its longest call.
async fn agent_of(client: Client, agent: u32, pages: u32) -> (u64, u64, Duration) {
    let end = now() + HOUR;
    let (mut calls, mut errors, mut longest) = (0, 0, Duration::ZERO);
    while now() < end {
        let began = now();
        let limit = Some(1 + (agent + calls as u32) % pages);
        let page = client.workspace("ws_acme").unwrap();
        errors += u64::from(page.webhooks(&Paging { limit, cursor: None }).await.is_err());
        calls += 1;
        longest = longest.max(now().duration_since(began));
        // A model thinks between two calls; without it the clock would not advance.
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    (calls, errors, longest)
}

impl Hour {
    /// Checks that no list was sent again within five seconds.
    #[track_caller]
    fn assert_spaced(&self) {
        let lists = self.gateway.lists.lock().unwrap();
        for (nth, (target, at)) in lists.iter().enumerate() {
            let next = lists[nth + 1..].iter().find(|(other, _)| other == target);
            if let Some((_, next)) = next {
                assert!(next.since(*at) >= Duration::from_secs(5), "{target}: {at:?}, {next:?}");
            }
        }
    }
}

#[test]
fn an_hour_of_one_list_by_fifty_agents_is_never_refused() {
    let hour = hour(1, 1, 0);
    assert!(hour.calls > 300_000, "{}", hour.calls);
    hour.assert_spaced();
    let sent = hour.gateway.lists.lock().unwrap().len();
    assert!((600..=721).contains(&sent), "{sent}");
    assert_eq!((hour.errors, hour.waits), (0, 0));
    assert_eq!(hour.gateway.refused.load(Ordering::Relaxed), 0);
    assert!(hour.longest <= 2 * LATENCY, "{:?}", hour.longest);
}

#[test]
fn an_hour_beyond_the_limit_waits_but_within_its_budget_and_is_rarely_refused() {
    // Six lists of five seconds are 72 a minute, and others use 20 of the 60.
    for seed in 1..=3 {
        let hour = hour(seed, 6, 20);
        hour.assert_spaced();
        assert!(hour.waits > 0);
        let most = BUDGET + 2 * LATENCY;
        assert!(hour.longest <= most, "seed {seed}: {:?}", hour.longest);
        assert_eq!(hour.errors, 0, "seed {seed}: an agent sees a refusal that a wait would avoid");
        // Those that waited together return together, and each costs a refusal at worst.
        let refused = hour.gateway.refused.load(Ordering::Relaxed);
        let sent = hour.gateway.lists.lock().unwrap().len() as u64;
        assert!(refused < sent, "seed {seed}: {refused} refused, {sent} admitted");
    }
}

#[test]
fn a_limit_that_never_admits_ends_each_call_within_its_budget() {
    let hour = hour(1, 3, 6_000);
    assert!(hour.longest <= BUDGET + 2 * LATENCY, "{:?}", hour.longest);
    assert!(hour.errors > 0);
    let refused = hour.gateway.refused.load(Ordering::Relaxed);
    assert!(refused < 3_600, "less than one a second for fifty agents: {refused}");
}
