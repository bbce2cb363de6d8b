//! The simulated server against a real redis-server: random commands and random calls of the script
//! that decides get the same replies.
//!
//! Not here: what expires by the server's own clock, which no test can turn.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use redis::{Connection, Value, cmd};
use weir_common::limit::calendar::{Calendar, CalendarQuota, CalendarUnit, parse_zone};
use weir_common::limit::concurrency::ConcurrencyQuota;
use weir_common::limit::quota::{Horizon, Quota};
use weir_common::limit::rolling::{EXACT_MAX, RollingQuota};
use weir_common::limit::token_bucket::{BucketQuota, Rate};
use weir_common::time::{Moment, Tick, UnixTime};
use weir_gateway::limit::shared::call::{
    CallMode, LeaseRequest, ReplayedAdmission, ReturnedLease, SCRIPT, SharedCheck, SlotRequest,
    WitnessClaim, encode,
};
use weir_gateway::limit::shared::reply::{SharedReply, decode};
use weir_tests::redis::Redis;
use weir_tests::rng::SeededRng;

use super::data::{Data, Reply};
use super::runs::START;
use super::scripts::Scripts;

/// The clock of the script, and one that a test sets.
const CLOCK: (&str, &str) = ("redis.call('TIME')", "{ARGV[#KEYS + 2], ARGV[#KEYS + 3]}");

fn connect(server: &Redis) -> Connection {
    redis::Client::open(server.url()).unwrap().get_connection().unwrap()
}

/// A reply of the real server.
fn real(connection: &mut Connection, words: &[Vec<u8>]) -> Reply {
    let (name, arguments) = words.split_first().unwrap();
    let mut command = cmd(std::str::from_utf8(name).unwrap());
    command.arg(arguments);
    match command.query::<Value>(connection) {
        Ok(value) => as_reply(value),
        Err(error) => Reply::Error(error.to_string()),
    }
}

fn as_reply(value: Value) -> Reply {
    match value {
        Value::Nil => Reply::Nothing,
        Value::Okay => Reply::Status("OK"),
        Value::Int(number) => Reply::Number(number),
        Value::BulkString(text) => Reply::Text(text),
        Value::Array(all) => Reply::List(all.into_iter().map(as_reply).collect()),
        other => panic!("{other:?}"),
    }
}

/// What two servers must agree on: of an error that it is one, of a hash not the order.
fn essence(name: &[u8], reply: Reply) -> Reply {
    match reply {
        Reply::Error(_) => Reply::Error(String::new()),
        Reply::List(all) if name == b"HGETALL" => {
            let mut pairs: Vec<Vec<Reply>> = all.chunks(2).map(<[Reply]>::to_vec).collect();
            pairs.sort_by_key(|pair| format!("{pair:?}"));
            Reply::List(pairs.concat())
        }
        other => other,
    }
}

/// A command that gateways or their scripts use, with any arguments.
fn command(rng: &mut SeededRng) -> Vec<Vec<u8>> {
    let (key, which) = (format!("key{}", rng.below(4)), rng.below(14));
    let number = |rng: &mut SeededRng| (rng.below(40) as i64 - 15).to_string();
    let value = |rng: &mut SeededRng| match rng.below(6) {
        0 => String::new(),
        1 => number(rng),
        2 => "9223372036854775806".to_owned(),
        3 => (*rng.pick(&["007", "+5", " 5", "5 ", "-0", "0x5"]).unwrap()).to_owned(),
        _ => "\r\n\0text".repeat(1 + rng.below(3) as usize),
    };
    let words: Vec<String> = match which {
        0 => vec!["GET".into(), key],
        1 => vec!["SET".into(), key, value(rng)],
        2 => vec!["SET".into(), key, value(rng), "NX".into()],
        3 => vec!["SET".into(), key, value(rng), "PX".into(), "3600000".into()],
        4 => vec!["GETRANGE".into(), key, number(rng), number(rng)],
        5 => vec!["SETRANGE".into(), key, rng.below(30).to_string(), value(rng)],
        6 => vec!["DEL".into(), key, format!("key{}", rng.below(4))],
        7 => vec!["PEXPIRE".into(), key, (*rng.pick(&["3600000", "0", "-5"]).unwrap()).into()],
        8 => vec!["INCR".into(), key],
        9 => vec!["INCRBY".into(), key, value(rng)],
        10 => vec!["HSET".into(), key, format!("f{}", rng.below(3)), value(rng)],
        11 => match rng.chance(50) {
            true => vec!["HDEL".into(), key, format!("f{}", rng.below(3))],
            false => vec!["HGETALL".into(), key],
        },
        12 => {
            let pair = [number(rng), format!("m{}", rng.below(5))];
            let how: &[&str] = if rng.chance(50) { &["GT", "CH"] } else { &[] };
            let words = ["ZADD".to_owned(), key].into_iter();
            words.chain(how.iter().map(|word| (*word).to_owned())).chain(pair).collect()
        }
        _ => match rng.chance(50) {
            true => vec!["ZREMRANGEBYRANK".into(), key, number(rng), number(rng)],
            false => {
                let from = format!("({}", number(rng));
                vec!["ZRANGEBYSCORE".into(), key, from, "+inf".into(), "WITHSCORES".into()]
            }
        },
    };
    words.into_iter().map(String::into_bytes).collect()
}

#[test]
fn random_commands_get_the_replies_of_a_real_server() {
    let server = Redis::start(&[]);
    let mut connection = connect(&server);
    for seed in 1..=120 {
        let (mut rng, mut data) = (SeededRng::new(seed), Data::default());
        server.run("FLUSHALL");
        let mut before = Vec::new();
        for _ in 0..60 {
            let words = command(&mut rng);
            let name = words[0].clone();
            let shown = words.iter().map(|word| String::from_utf8_lossy(word).into_owned());
            before.push(shown.collect::<Vec<_>>());
            let found = essence(&name, real(&mut connection, &words));
            assert_eq!(essence(&name, data.run(&words)), found, "seed {seed}: {before:?}");
        }
    }
}

#[test]
fn what_expires_is_gone_on_both() {
    let server = Redis::start(&[]);
    let mut connection = connect(&server);
    let mut data = Data::default();
    data.now = START;
    let words = |text: &str| text.split(' ').map(|word| word.into()).collect::<Vec<Vec<u8>>>();
    for command in ["SET a 1 PX 40", "SET b 1", "PEXPIRE b 40", "SET c 1 PX 40", "SET c 2"] {
        assert_eq!(real(&mut connection, &words(command)), data.run(&words(command)));
    }
    weir_tests::wait::pass(Duration::from_millis(60));
    data.now += 60_000;
    for command in ["GET a", "GET b", "GET c", "PEXPIRE a 9", "SET a 3 NX"] {
        assert_eq!(real(&mut connection, &words(command)), data.run(&words(command)));
    }
}

/// What the gateways of one run know of a key.
#[derive(Clone, Default)]
struct Known {
    claims: Vec<WitnessClaim>,
    leases: Vec<ReturnedLease>,
}

/// The quota of a check: mostly of the key's own algorithm.
fn quota(nth: u64, now: u64, rng: &mut SeededRng) -> Quota {
    let calendar = Calendar { unit: CalendarUnit::Day, zone: parse_zone("UTC").unwrap() };
    let nth = if rng.chance(90) { nth } else { rng.below(4) };
    match nth {
        0 => {
            let requests = 5 + rng.below(20) as u32;
            Quota::Rolling(RollingQuota { requests, window: Duration::from_secs(60) })
        }
        1 => {
            let requests = EXACT_MAX + 1;
            Quota::Rolling(RollingQuota { requests, window: Duration::from_secs(600) })
        }
        2 => {
            let rate = Rate::parse(rng.pick(&["7/15m", "50/s", "999983/31d"]).unwrap()).unwrap();
            Quota::Bucket(BucketQuota { rate, burst: 20 + rng.below(80) as u32 })
        }
        _ => {
            let quota = CalendarQuota::new(30 + rng.below(30) as u32, calendar);
            Quota::Calendar(quota).at(Moment { tick: Tick(now), unix: UnixTime(now) })
        }
    }
}

fn check(nth: u64, known: &Known, now: u64, rng: &mut SeededRng) -> SharedCheck {
    let gateway = rng.below(3);
    let own = if nth == 4 {
        Quota::Concurrency(ConcurrencyQuota { requests: 4 + rng.below(4) as u32 })
    } else {
        quota(nth, now, rng)
    };
    let replayed = |rng: &mut SeededRng| {
        let one = |rng: &mut SeededRng| ReplayedAdmission {
            stamp: UnixTime(now - rng.below(90_000_000)),
            count: 1 + rng.below(3) as u32,
        };
        (0..rng.below(5)).map(|_| one(rng)).collect()
    };
    let is_window = matches!(own, Quota::Rolling(_));
    let (horizon, in_use) = (Horizon::of([own]), rng.below(4) as u32);
    SharedCheck {
        key: format!("weir1:{{0}}{nth}").into_bytes(),
        quota: own,
        // Nothing expires while the test runs.
        horizon: Horizon { window: 600_000_000 + horizon.window, ..horizon },
        cost: if nth == 4 { rng.below(2) as u32 } else { 1 + rng.below(4) as u32 },
        enforced: rng.chance(80),
        claim: rng.pick(&known.claims).copied().filter(|_| is_window && rng.chance(40)),
        replayed: if is_window && rng.chance(15) { replayed(rng) } else { Vec::new() },
        lease: matches!(own, Quota::Bucket(_)).then(|| LeaseRequest {
            gateway,
            returned: rng.pick(&known.leases).copied().filter(|_| rng.chance(50)),
            wanted: rng.below(12) as u32,
        }),
        slots: (nth == 4).then(|| SlotRequest {
            gateway,
            sequence: rng.below(100),
            in_use,
            needed: in_use + 1,
            wanted: in_use + rng.below(3) as u32,
        }),
    }
}

fn learn(known: &mut [Known], checks: &[(u64, SharedCheck)], reply: &SharedReply) {
    for ((nth, check), found) in checks.iter().zip(&reply.results) {
        let known = &mut known[*nth as usize];
        if let Some(receipt) = found.receipt {
            let (sequence, stamp) = (receipt.sequence, receipt.stamp);
            known.claims.push(WitnessClaim::Admission { sequence, stamp, count: check.cost });
        }
        if let Some(lease) = found.lease {
            known.leases.push(ReturnedLease { ends: lease.ends, unspent: lease.tokens / 2 });
        }
    }
}

#[test]
fn random_calls_of_the_script_get_the_replies_of_a_real_server() {
    let server = Redis::start(&[]);
    let mut connection = connect(&server);
    assert_eq!(SCRIPT.matches(CLOCK.0).count(), 1);
    let text = SCRIPT.replace(CLOCK.0, CLOCK.1);
    for seed in 1..=40 {
        let data: Rc<RefCell<Data>> = Rc::default();
        let (mut rng, mut scripts) = (SeededRng::new(seed), Scripts::new(data.clone(), None));
        server.run("FLUSHALL");
        let load = ["SCRIPT", "LOAD", &text].map(|word| word.as_bytes().to_vec());
        let name = real(&mut connection, &load);
        assert_eq!(scripts.load(&text), name, "the same digest");
        let Reply::Text(name) = name else { panic!("{name:?}") };
        let (mut now, mut known) = (START, vec![Known::default(); 5]);
        for call in 0..80 {
            now += rng.millis(1, 20_000).as_micros() as u64 + rng.below(1_000);
            let first = rng.below(5);
            let some: Vec<u64> = (first..5).filter(|nth| *nth == first || rng.chance(40)).collect();
            let one = |nth: u64| (nth, check(nth, &known[nth as usize], now, &mut rng));
            let checks: Vec<(u64, SharedCheck)> = some.into_iter().map(one).collect();
            let mode = if rng.chance(85) { CallMode::Charge } else { CallMode::Preview };
            let not_after = rng.chance(20).then(|| UnixTime(now + 500 - rng.below(700)));
            let own: Vec<SharedCheck> = checks.iter().map(|(_, check)| check.clone()).collect();
            let keys: Vec<Vec<u8>> = own.iter().map(|check| check.key.clone()).collect();
            let mut arguments = encode(&own, mode, not_after);
            arguments.extend([now / 1_000_000, now % 1_000_000].map(|one| one.to_string().into()));
            let count = keys.len().to_string().into_bytes();
            let head = [b"EVALSHA".to_vec(), name.clone(), count];
            let words: Vec<Vec<u8>> = [&head[..], &keys, &arguments].concat();
            let found = real(&mut connection, &words);
            let why = || format!("seed {seed}, call {call}: {own:?}");
            let simulated = scripts.run(&name, &keys, &arguments);
            assert_eq!(
                essence(b"EVALSHA", simulated),
                essence(b"EVALSHA", found.clone()),
                "{}",
                why()
            );
            if let Reply::Text(bytes) = found {
                learn(&mut known, &checks, &decode(&bytes, &own).unwrap());
            }
            for key in &keys {
                let get = [b"GET".to_vec(), key.clone()];
                assert_eq!(data.borrow_mut().run(&get), real(&mut connection, &get), "{}", why());
            }
        }
    }
}
