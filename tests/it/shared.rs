//! Several gateways that share a Redis server admit together what one would admit.

mod away;
mod cluster;
mod connecting;
mod ending;
mod exact;
mod forgetting;
mod in_flight;
mod leases;
mod operating;
mod replay;
mod sentinel;
mod tls;
mod valkey;

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use weir_tests::client::Client;
use weir_tests::config::{Config, DIRECTORY};
use weir_tests::folder::Folder;
use weir_tests::gateway::Gateway;
use weir_tests::redis::Redis;
use weir_tests::request::Request;
use weir_tests::response::Response;
use weir_tests::upstream::Upstream;
use weir_tests::wait;

const TARGET: &str = "/v1/workspaces/ws_acme/users";

/// A secret that is long enough.
const SECRET: &str = "0123456789abcdef0123456789abcdef";

/// Gateways with the same configuration and upstreams, and the store that they share.
struct Fleet<S = Redis> {
    redis: S,
    gateways: Vec<Gateway>,
    config: Config,
    upstream: Upstream,
    files: Folder,
}

impl Fleet {
    /// Two gateways with the default configuration as `change` changes it.
    #[track_caller]
    fn with(change: impl FnOnce(Config) -> Config) -> Self {
        Self::of(Redis::start(&[]), 2, change)
    }

    /// So many gateways that share this server.
    #[track_caller]
    fn of(redis: Redis, count: usize, change: impl FnOnce(Config) -> Config) -> Self {
        let url = redis.url();
        Self::on(redis, &url, count, change)
    }
}

impl<S> Fleet<S> {
    /// So many gateways that share these servers, at this URL.
    #[track_caller]
    fn on(redis: S, url: &str, count: usize, change: impl FnOnce(Config) -> Config) -> Self {
        let (upstream, files) = (Upstream::start(), Folder::new());
        let servers = format!("servers = [\"{}\"]", upstream.address());
        let config = ["control", "data", "dispatcher"]
            .iter()
            .fold(Config::default(), |to, name| to.with(&format!("[upstreams.{name}]"), &servers));
        let config = change(config.with("[store]", &store(url, &files)));
        let gateways = (0..count).map(|_| Gateway::start(&config.to_string(), DIRECTORY)).collect();
        Self { redis, gateways, config, upstream, files }
    }

    /// One request to a gateway, on a new connection.
    #[track_caller]
    fn call(&self, nth: usize, request: &Request) -> Response {
        self.gateways[nth].client().call(request)
    }

    /// One GET to a gateway, on a new connection.
    #[track_caller]
    fn get(&self, nth: usize, target: &str) -> Response {
        self.call(nth, &Request::get(target))
    }

    /// Sends `each` requests one after the other on each of `clients` connections to each gateway.
    fn at_once(&self, clients: usize, each: usize, request: &Request) -> Vec<Response> {
        let client = |gateway: &Gateway| {
            let mut client = gateway.client();
            (0..each).map(|_| client.call(request)).collect::<Vec<_>>()
        };
        thread::scope(|scope| {
            let all = self.gateways.iter().flat_map(|gateway| (0..clients).map(move |_| gateway));
            let running: Vec<_> = all.map(|gateway| scope.spawn(move || client(gateway))).collect();
            running.into_iter().flat_map(|client| client.join().unwrap()).collect()
        })
    }

    /// Sends so many requests, to one gateway after the other.
    fn in_turn(&self, times: usize) -> Vec<Response> {
        (0..times).map(|nth| self.get(nth % self.gateways.len(), TARGET)).collect()
    }

    /// Sends requests through all gateways at full speed while `act` runs, and returns what they
    /// have admitted.
    fn under_load(&self, act: impl FnOnce()) -> Admitted {
        let (stop, admitted) = (AtomicBool::new(false), Mutex::default());
        thread::scope(|scope| {
            for gateway in self.gateways.iter().chain(&self.gateways) {
                scope.spawn(|| hammer(gateway, &stop, &admitted));
            }
            act();
            stop.store(true, Ordering::Relaxed);
        });
        let mut admitted: Admitted = admitted.into_inner().unwrap();
        admitted.sort();
        admitted
    }

    /// Ends a gateway by this signal, and starts another with its files.
    #[track_caller]
    fn start_again(&mut self, nth: usize, signal: &str) {
        self.start_again_after(nth, signal, |_| {});
    }

    /// Ends a gateway, and starts it in its folder after `meanwhile`, which the others see.
    fn start_again_after(&mut self, nth: usize, signal: &str, meanwhile: impl FnOnce(&Self)) {
        let mut gateway = self.gateways.remove(nth);
        gateway.signal(signal);
        gateway.wait_for_exit();
        meanwhile(self);
        let next = Gateway::start_in(gateway.into_folder(), &self.config.to_string(), DIRECTORY);
        self.gateways.insert(nth, next);
    }

    /// Waits until each gateway knows how many there are.
    #[track_caller]
    fn wait_until_known(&self) {
        let count = self.gateways.len() as f64;
        wait::until("all gateways to be known", || {
            let known = |gateway: &Gateway| gateway.metric("weir_gateway_store_gateways") == count;
            self.gateways.iter().all(known).then_some(())
        });
    }

    /// Waits until each gateway has logged that the store is back.
    #[track_caller]
    fn wait_for_return(&self) {
        for gateway in &self.gateways {
            let is_back = |line: &Value| line["message"] == "shared store available";
            gateway.log().wait("the return", is_back);
        }
    }
}

/// When each admitted request was sent, and when its response was read: it was admitted in between.
type Admitted = Vec<(Instant, Instant)>;

fn hammer(gateway: &Gateway, stop: &AtomicBool, admitted: &Mutex<Admitted>) {
    let mut client = gateway.client();
    while !stop.load(Ordering::Relaxed) {
        let from = wait::now();
        let answer = client.call(&Request::get(TARGET));
        match answer.status {
            200 => admitted.lock().unwrap().push((from, wait::now())),
            429 => {}
            other => panic!("{other}: {}", answer.text()),
        }
        if answer.field("Connection") == Some("close") {
            client = Client::connect(gateway.http());
        }
    }
}

/// Checks that no window has more admissions than `limit`, and that there were `limit` in each.
#[track_caller]
fn check_windows(admitted: &Admitted, limit: usize, window: Duration) {
    for (nth, (from, _)) in admitted.iter().enumerate() {
        let within = |(_, until): &&(Instant, Instant)| *until < *from + window;
        let surely = admitted[nth..].iter().filter(within).count();
        assert!(surely <= limit, "{surely} within {window:?}");
    }
    let lasted = admitted[admitted.len() - 1].1 - admitted[0].0;
    let windows = (lasted.as_millis() / window.as_millis()) as usize;
    assert!(admitted.len() >= limit * windows, "{} in {lasted:?}", admitted.len());
}

/// The lines of a store at this URL. Nothing here depends on how fast a busy machine is: requests
/// wait for the store as long as they may.
fn store(url: &str, files: &Folder) -> String {
    let secret = files.write("secret", SECRET);
    format!(
        "kind = \"redis\"\nurl = \"{url}\"\nsecret_file = \"{}\"\ntimeout = \"1s\"",
        secret.display()
    )
}

fn count(answers: &[Response], status: u16) -> usize {
    answers.iter().filter(|answer| answer.status == status).count()
}
