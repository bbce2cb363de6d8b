//! Three gateways on one Redis server under random faults: every admission is replayed.
//!
//! Each gateway reaches the server through a relay of its own, which cuts connections and delays or
//! swallows replies. Gateways are killed and stand still, and so does the server; in runs with
//! losses it forgets all. What clients sent and were answered and what the upstream saw is recorded
//! and checked both ways: nothing was admitted beyond the table in docs/scaling.md, and nothing was
//! refused that fits. A seed repeats the faults, not their moments.
//!
//! Not here: the checks (`weir_tests::admissions`), whether they find anything (`made_up`), the
//! same in virtual time (`gateways`).

mod made_up;

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use weir_tests::admissions::{Admissions, Loss, Outcome, Sent};
use weir_tests::client::Client;
use weir_tests::config::{Config, DIRECTORY};
use weir_tests::folder::Folder;
use weir_tests::gateway::Gateway;
use weir_tests::process::signal;
use weir_tests::redis::{Redis, Reply};
use weir_tests::relay::{Relay, Replies};
use weir_tests::request::{Request, data_host};
use weir_tests::rng::SeededRng;
use weir_tests::upstream::Upstream;
use weir_tests::wait;

use super::store;

/// How many gateways there are.
const PLACES: usize = 3;

/// Clients of each gateway.
const CLIENTS: usize = 3;

/// The longest time that a gateway or the server stands still, in milliseconds.
const STANDS_STILL_MAX: u64 = 700;

/// How long after its answer a request without a verdict may still be charged, in microseconds: the
/// gateway's timeout, and how far its estimate of the server's time can be ahead after a stop.
const FATE_UNKNOWN: u64 = 1_000 * (100 + 250 + STANDS_STILL_MAX + 450);

/// What a request can be, and the limits that it has.
const KINDS: [(&str, &[usize]); 3] =
    [("ws_acme", &[WORKSPACE, ORGANISATION]), ("ws_quiet", &[1, ORGANISATION]), ("", &[INSTANCE])];

const WORKSPACE: usize = 0;
const ORGANISATION: usize = 2;
const INSTANCE: usize = 3;

/// What each limit but the last admits, and the window in microseconds.
const WINDOWS: [(u64, u64); 3] = [(16, 700_000), (16, 700_000), (24, 1_100_000)];

/// The burst of the last limit, and its rate.
const BUCKET: (u32, f64) = (30, 60.0);

/// Whether the server forgets.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Losses {
    None,
    All,
}

/// The gateways, and what is known of all requests.
struct Run {
    redis: Redis,
    relays: Vec<Relay>,
    upstream: Upstream,
    configs: Vec<Config>,
    gateways: Vec<Mutex<Place>>,
    admissions: Mutex<Admissions>,
    ended: AtomicBool,
    _files: Folder,
}

/// The process at one place; none while it is started.
#[derive(Default)]
struct Place {
    gateway: Option<Gateway>,
    /// How many there were before it.
    process: usize,
}

fn limits(most: [u64; 3]) -> [(&'static str, String); 3] {
    let window = |nth: usize| {
        let (most, millis) = (most[nth], WINDOWS[nth].1 / 1_000);
        format!("requests = {most}\nwindow = \"{millis}ms\"\non_store_failure = \"refuse\"")
    };
    let (burst, rate) = BUCKET;
    let bucket = format!("rate = {rate}\nburst = {burst}\non_store_failure = \"refuse\"");
    [
        ("[limits.workspace]", window(WORKSPACE)),
        ("[limits.organisation]", window(ORGANISATION)),
        ("[limits.instance]", bucket),
    ]
}

impl Run {
    /// Starts all; the first gateway's limits are `first`, which is wrong where a fault is planted.
    fn start(first: [u64; 3]) -> Self {
        let (redis, upstream, files) = (Redis::start(&[]), Upstream::start(), Folder::new());
        let relays: Vec<Relay> = (0..PLACES).map(|_| Relay::start(&redis.address())).collect();
        let servers = format!("servers = [\"{}\"]", upstream.address());
        let config = |nth: usize| {
            let url = format!("redis://{}", relays[nth].address());
            let most = if nth == 0 { first } else { WINDOWS.map(|(most, _)| most) };
            let own = [("[store]", store(&url, &files)), ("[store]", "timeout = \"100ms\"".into())];
            let upstreams = ["[upstreams.control]", "[upstreams.data]", "[upstreams.dispatcher]"];
            let upstreams = upstreams.map(|name| (name, servers.clone()));
            let all = own.into_iter().chain(upstreams).chain(limits(most));
            all.fold(Config::default(), |config, (name, lines)| config.with(name, &lines))
        };
        let configs: Vec<Config> = (0..PLACES).map(config).collect();
        let start = |config: &Config| {
            let gateway = Some(Gateway::start(&config.to_string(), DIRECTORY));
            Mutex::new(Place { gateway, process: 0 })
        };
        let gateways = configs.iter().map(start).collect();
        let (admissions, ended) = (Mutex::default(), AtomicBool::new(false));
        Self { redis, relays, upstream, configs, gateways, admissions, ended, _files: files }
    }

    /// Runs clients until `act` returns, and returns what they were answered.
    fn under_load(mut self, seed: u64, act: impl FnOnce(&Self)) -> Admissions {
        thread::scope(|scope| {
            for nth in 0..PLACES * CLIENTS {
                let (run, rng) = (&self, SeededRng::stream(seed, 1 + nth as u64));
                scope.spawn(move || run.client(nth % PLACES, rng));
            }
            act(&self);
            self.ended.store(true, Ordering::Relaxed);
        });
        // No request is under way now.
        let mut seen: BTreeMap<usize, Vec<u64>> = BTreeMap::new();
        for request in self.upstream.requests() {
            let target = String::from_utf8(request.target()).unwrap();
            let number = target.rsplit('=').next().unwrap().parse().unwrap();
            seen.entry(number).or_default().push(1_000 * (request.at_ms + 1));
        }
        self.upstream.stop();
        let mut admissions = self.admissions.into_inner().unwrap();
        admissions.match_seen(&seen).unwrap_or_else(|broken| panic!("seed {seed}: {broken}"));
        admissions
    }

    fn client(&self, place: usize, mut rng: SeededRng) {
        let mut client: Option<(Client, usize)> = None;
        while !self.ended.load(Ordering::Relaxed) {
            wait::pass(Duration::from_millis(rng.below(16)));
            let process = self.gateways[place].lock().unwrap().process;
            if client.as_ref().is_none_or(|(_, own)| *own != process) {
                client = self.connect(place);
            }
            let Some((connected, process)) = &mut client else { continue };
            let kind = rng.below(KINDS.len() as u64) as usize;
            if !self.send(connected, (place, *process), kind) {
                client = None;
            }
        }
    }

    fn connect(&self, place: usize) -> Option<(Client, usize)> {
        let place = self.gateways[place].lock().unwrap();
        let address = place.gateway.as_ref()?.http();
        Some((Client::try_connect(address).ok()?, place.process))
    }

    /// Sends one request and records what becomes of it; false where the connection ended.
    fn send(&self, client: &mut Client, (gateway, process): (usize, usize), kind: usize) -> bool {
        let (workspace, limits) = KINDS[kind];
        let sent = 1_000 * wait::unix_millis();
        let request = Sent {
            gateway,
            process,
            limits: limits.to_vec(),
            refused_by: Vec::new(),
            cost: 1,
            outcome: Outcome::Nothing,
            sent,
            answered: u64::MAX,
            ended: u64::MAX,
        };
        let number = {
            let mut admissions = self.admissions.lock().unwrap();
            admissions.sent.push(request);
            admissions.sent.len() - 1
        };
        let request = match workspace {
            "" => Request::get(&format!("/login?n={number}")).host(&data_host("in_acme")),
            name => Request::get(&format!("/v1/workspaces/{name}/users?n={number}")),
        };
        let answer = client.try_exchange(request.head_bytes());
        let answered = 1_000 * (wait::unix_millis() + 1);
        let mut admissions = self.admissions.lock().unwrap();
        let own = &mut admissions.sent[number];
        own.answered = answered;
        own.outcome = match answer.as_ref().map(|answer| answer.status) {
            Ok(200) => Outcome::Admitted,
            Ok(429) => Outcome::Refused,
            Ok(503) => Outcome::Unavailable,
            Ok(other) => panic!("{other}"),
            Err(_) => Outcome::Nothing,
        };
        match (own.outcome, &answer) {
            (Outcome::Refused, Ok(answer)) => {
                own.refused_by = match &*answer.allowance().resource {
                    "organisation" => vec![ORGANISATION],
                    _ => limits[..1].to_vec(),
                };
            }
            (Outcome::Unavailable | Outcome::Nothing, _) => own.answered += FATE_UNKNOWN,
            _ => {}
        }
        answer.is_ok_and(|answer| answer.field("Connection") != Some("close"))
    }

    /// Lets things fail, one after the other.
    fn fail(&self, losses: Losses, rng: &mut SeededRng) {
        let place = rng.below(PLACES as u64) as usize;
        let short = Duration::from_millis(50 + rng.below(STANDS_STILL_MAX - 50));
        let relay = &self.relays[place];
        match (losses, rng.below(10)) {
            (Losses::All, 0..=6) => self.forget(),
            (_, 0 | 7) => self.kill(place),
            (_, 1 | 8) => relay.cut(),
            (Losses::All, _) => {}
            (_, 2 | 3) => {
                relay.set(Replies::Swallow);
                wait::pass(short / 2);
                relay.set(Replies::Pass);
            }
            (_, 4) => {
                relay.set(Replies::Delay(short / 8));
                wait::pass(short);
                relay.set(Replies::Pass);
            }
            (_, 5) => {
                self.redis.pause();
                wait::pass(short);
                self.redis.resume();
            }
            _ => {
                let id = self.gateways[place].lock().unwrap().gateway.as_ref().unwrap().serving();
                assert!(signal(id, "STOP"));
                wait::pass(short);
                assert!(signal(id, "CONT"));
            }
        }
    }

    /// Kills a gateway, and starts another in its place.
    fn kill(&self, place: usize) {
        let (gateway, process) = {
            let mut own = self.gateways[place].lock().unwrap();
            let gateway = own.gateway.take().unwrap();
            own.process += 1;
            (gateway, own.process - 1)
        };
        gateway.signal("KILL");
        drop(gateway);
        let killed = (place, process, 1_000 * wait::unix_millis());
        self.admissions.lock().unwrap().killed.push(killed);
        let started = Gateway::start(&self.configs[place].to_string(), DIRECTORY);
        self.gateways[place].lock().unwrap().gateway = Some(started);
    }

    /// The server forgets all, and the gateways tell it what they admitted.
    fn forget(&self) {
        let began = 1_000 * wait::unix_millis();
        self.redis.run("FLUSHALL");
        let at = 1_000 * (wait::unix_millis() + 1);
        // A heartbeat tells all before the next one is sent.
        let mut heard: BTreeMap<String, Vec<String>> = BTreeMap::new();
        wait::until("all gateways to have told it", || {
            let Reply::List(all) = self.redis.run("HGETALL weir1:{gateways}") else { panic!() };
            let texts = all.iter().map(|one| match one {
                Reply::Text(text) => text.clone(),
                other => panic!("{other:?}"),
            });
            let texts: Vec<String> = texts.collect();
            for pair in texts.chunks(2) {
                let times = heard.entry(pair[0].clone()).or_default();
                if times.last() != Some(&pair[1]) {
                    times.push(pair[1].clone());
                }
            }
            let told = heard.values().filter(|times| times.len() > 2).count();
            (told == PLACES).then_some(())
        });
        let untold = 1_000 * (wait::unix_millis() + 1) - at;
        let loss = Loss { since: 0, began, at, untold, survivable: at + untold };
        self.admissions.lock().unwrap().losses.push(loss);
    }
}

/// Checks what docs/scaling.md promises where the server answers or limits refuse, and where it
/// forgets.
fn check(admissions: &Admissions, losses: Losses) -> Result<(), String> {
    for (limit, (most, window)) in WINDOWS.into_iter().enumerate() {
        match losses {
            Losses::None => admissions.check_windows(limit, window, most)?,
            Losses::All => admissions.check_told(limit, window, most)?,
        }
        admissions.check_refused(limit, window, (most, 1))?;
    }
    match losses {
        Losses::None => admissions.check_bucket(INSTANCE, BUCKET),
        // Of a bucket the largest debt counts that one gateway knows.
        Losses::All => Ok(()),
    }
}

/// Runs with random faults for so long.
#[track_caller]
fn replay(losses: Losses, lasts: Duration) {
    let given = std::env::var_os("WEIR_SEED").and_then(|seed| seed.to_str()?.parse().ok());
    let seed = given.unwrap_or_else(wait::unix_millis);
    let run = Run::start(WINDOWS.map(|(most, _)| most));
    let admissions = run.under_load(seed, |run| {
        let (began, mut rng) = (wait::now(), SeededRng::stream(seed, 0));
        while began.elapsed() < lasts {
            wait::pass(Duration::from_millis(100 + rng.below(500)));
            run.fail(losses, &mut rng);
        }
    });
    let count = |outcome| admissions.sent.iter().filter(|sent| sent.outcome == outcome).count();
    let all = [Outcome::Admitted, Outcome::Refused, Outcome::Unavailable, Outcome::Nothing];
    println!("seed {seed}: {:?} of {all:?}", all.map(count));
    if let Err(broken) = check(&admissions, losses) {
        panic!("seed {seed}: {broken}\n{:?} {:?}", admissions.losses, admissions.killed);
    }
    assert!(count(Outcome::Admitted) > 100 && count(Outcome::Refused) > 100);
}

#[test]
fn cut_late_and_lost_replies_stops_and_kills_admit_and_refuse_nothing_too_much() {
    replay(Losses::None, Duration::from_secs(7));
}

#[test]
fn a_server_that_forgets_again_and_again_admits_what_no_living_gateway_knew_at_most() {
    replay(Losses::All, Duration::from_secs(6));
}

#[test]
fn a_gateway_that_admits_more_than_the_others_is_found() {
    let run = Run::start(WINDOWS.map(|(most, _)| 2 * most));
    let admissions = run.under_load(1, |_| wait::pass(Duration::from_secs(2)));
    let broken = check(&admissions, Losses::None).unwrap_err();
    assert!(broken.starts_with("over: limit"), "{broken}");
}
