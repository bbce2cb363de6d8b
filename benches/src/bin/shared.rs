//! Compares limits in a shared Redis server with limits in memory, with nginx and a script of two
//! INCR, and with an Envoy that runs already. Prints each figure that was aimed at with its aim.
//!
//! All targets run in every round, one after the other, each round beginning with another one. The
//! Redis server is the same for all but Envoy, on the same machine.

use std::net::SocketAddr;
use std::path::PathBuf;

use weir_benches::flags::{Flags, fail, sibling};
use weir_benches::lab::Folder;
use weir_benches::load::{Aim, saturate};
use weir_benches::report::{Series, table};
use weir_benches::shared::{RedisServer, many, nginx_lua, weir};
use weir_benches::targets::{Limits, Plane, Target, upstream};

const USAGE: &str = "usage: shared [--gateway PATH] [--rounds 7] [--seconds 3] [--connections 64] \
    [--envoy ADDRESS]";

/// The targets that figures compare.
const WINDOWS: [&str; 3] =
    ["weir, Redis, two windows", "weir, memory, two windows", "nginx + Lua + Redis"];
const BUCKET: [&str; 2] = ["weir, Redis, one bucket", "weir, memory, one bucket"];
const REFUSING: &str = "weir, Redis, two windows, refusing";
const MANY: [&str; 3] = [
    "weir, Redis, two windows, 10000 workspaces",
    "weir, memory, two windows, 10000 workspaces",
    "nginx + Lua + Redis, 10000 workspaces",
];

/// Enough that hardly any two requests at once are of the same one.
const WORKSPACES: u32 = 10_000;

/// What a refusing limit admits before it refuses, and once more where a window ends.
const ADMITTED_MAX: f64 = 2.0;

/// The measurements of one target, one value per round.
#[derive(Default)]
struct Record {
    rate: Series,
    p50: Series,
    p99: Series,
    processor: Series,
    redis: Series,
    scripts: Series,
    /// Microseconds of each script.
    script: Series,
}

fn main() {
    let mut flags = Flags::from_env(USAGE);
    let gateway: PathBuf = flags.value("--gateway", sibling("weir-gateway"));
    let rounds: usize = flags.value("--rounds", 7);
    let seconds: u32 = flags.value("--seconds", 3);
    let connections: u32 = flags.value("--connections", 64);
    let envoy: Option<SocketAddr> = flags.given("--envoy");
    let [] = flags.rest();
    let folder = Folder::new("shared");
    let redis = RedisServer::start(&folder);
    let up = upstream(&folder);
    let targets = targets(&folder, &gateway, &up, &redis);
    let mut records: Vec<Record> = targets.iter().map(|_| Record::default()).collect();
    // The same request as to the others; it admits all that one machine can send.
    let envoy = envoy.and_then(|address| Some(Aim { address, ..targets.first()?.aim.clone() }));
    let mut beside = Series::default();
    for target in &targets {
        let _ = saturate(&target.aim, connections, 1);
    }
    for round in 0..rounds {
        for step in 0..targets.len() {
            let at = (round + step) % targets.len();
            if let (Some(target), Some(record)) = (targets.get(at), records.get_mut(at)) {
                measure(target, &redis, (connections, seconds), record);
            }
        }
        if let Some(aim) = &envoy {
            beside.0.push(saturate(aim, connections, seconds).rate);
        }
        eprintln!("round {} of {rounds}", round + 1);
    }
    println!("{}", shown(&targets, &records));
    println!("{}", aims(&targets, &records, envoy.is_some().then_some(&beside)));
}

fn targets(
    folder: &Folder,
    gateway: &std::path::Path,
    up: &Target,
    redis: &RedisServer,
) -> Vec<Target> {
    let (to, at) = (up.aim.address, redis.address);
    let database = |number| (to, Some((at, number)));
    let (windows, bucket) = ((Plane::Control, Limits::Admit), (Plane::Data, Limits::Admit));
    let refusing = (Plane::Control, Limits::Refuse);
    vec![
        weir(folder, gateway, (to, None), windows),
        weir(folder, gateway, database(1), windows),
        weir(folder, gateway, (to, None), bucket),
        weir(folder, gateway, database(2), bucket),
        weir(folder, gateway, (to, None), refusing),
        weir(folder, gateway, database(3), refusing),
        nginx_lua(folder, to, at, Limits::Admit),
        nginx_lua(folder, to, at, Limits::Refuse),
        many(folder, WORKSPACES, weir(folder, gateway, (to, None), windows)),
        many(folder, WORKSPACES, weir(folder, gateway, database(4), windows)),
        many(folder, WORKSPACES, nginx_lua(folder, to, at, Limits::Admit)),
    ]
}

fn measure(target: &Target, redis: &RedisServer, load: (u32, u32), record: &mut Record) {
    let before = (target.process.usage(), redis.process.usage(), redis.scripts());
    let run = saturate(&target.aim, load.0, load.1);
    let after = (target.process.usage(), redis.process.usage(), redis.scripts());
    let admitted = run.answers - run.errors;
    let wrong = match target.limits {
        Limits::Refuse => admitted > ADMITTED_MAX,
        _ => run.errors > 0.0,
    };
    if wrong {
        fail(&format!("{}: {} of {} refused", target.name, run.errors, run.answers));
    }
    let used = |before: weir_benches::lab::Usage, after: weir_benches::lab::Usage| {
        (after.user - before.user + after.system - before.system) / run.answers
    };
    record.rate.0.push(run.rate);
    record.p50.0.push(run.p50);
    record.p99.0.push(run.p99);
    record.processor.0.push(used(before.0, after.0));
    record.redis.0.push(used(before.1, after.1));
    let [calls, micros] = [0, 1].map(|nth: usize| {
        let [before, after] = [before.2, after.2].map(|both| both.get(nth).copied());
        after.unwrap_or(0.0) - before.unwrap_or(0.0)
    });
    record.scripts.0.push(calls / run.answers);
    if calls > 0.0 {
        record.script.0.push(micros / calls);
    }
}

/// What was aimed at, and what was measured.
fn aims(targets: &[Target], records: &[Record], envoy: Option<&Series>) -> String {
    let of = |name: &str| {
        let nth = targets.iter().position(|target| target.name == name);
        nth.and_then(|nth| records.get(nth)).unwrap_or_else(|| fail(&format!("no {name}")))
    };
    let [bucket, bucket_memory] = BUCKET.map(of);
    let [busy, many] = [WINDOWS, MANY].map(|names| names.map(of));
    // Of each request, whose call may be that of another one, too.
    let scripts = |record: &Record| record.script.median() * record.scripts.median();
    // Heartbeats are scripts, too.
    let refused = of(REFUSING).scripts.median();
    let [shared, ..] = busy;
    let beside = envoy.map(|envoy| shared.rate.ratio_to(envoy));
    let no_envoy = "not measured: --envoy takes one with Limitador that runs";
    let figure = |value: f64| format!("{value:.3}");
    let each = [(busy, "one workspace"), (many, "10,000 workspaces")];
    let windows = each.into_iter().flat_map(|([shared, memory, nginx], of)| {
        let [memory, nginx_rate] = [memory, nginx].map(|other| shared.rate.ratio_to(&other.rate));
        let script = scripts(shared) / scripts(nginx);
        [
            (format!("two windows of {of}: requests/s ÷ in memory"), figure(memory), "≥ 0.9"),
            ("the same ÷ nginx + Lua + Redis".to_owned(), figure(nginx_rate), "≥ 1.4"),
            ("CPU of scripts a request ÷ of two INCR".to_owned(), figure(script), "≤ 2.3"),
        ]
    });
    let others = [
        ("÷ Envoy + Limitador, one workspace", beside.map_or(no_envoy.to_owned(), figure), "≥ 3"),
        (
            "one bucket: requests/s ÷ in memory",
            figure(bucket.rate.ratio_to(&bucket_memory.rate)),
            "≥ 0.9",
        ),
        ("calls a request of it", figure(bucket.scripts.median()), "≤ 0.05"),
        ("calls a refused request", figure(refused), "0"),
    ];
    let rows = windows.chain(others.map(|(name, value, aim)| (name.to_owned(), value, aim)));
    let rows: Vec<Vec<String>> =
        rows.map(|(name, value, aim)| vec![name, value, aim.to_owned()]).collect();
    table("What was aimed at", &["", "measured", "aim"], &rows)
}

fn shown(targets: &[Target], records: &[Record]) -> String {
    let row = |(target, record): (&Target, &Record)| {
        let ratio = |other: &str| {
            let at = targets.iter().position(|target| target.name == other)?;
            records.get(at).map(|other| format!("{:.2}", record.rate.ratio_to(&other.rate)))
        };
        let refusing = if target.limits == Limits::Refuse { ", refusing" } else { "" };
        let memory = ratio(&target.name.replace("Redis", "memory"))
            .filter(|_| target.name.starts_with("weir"));
        vec![
            target.name.clone(),
            record.rate.range(0),
            memory.unwrap_or_default(),
            ratio(&format!("nginx + Lua + Redis{refusing}")).unwrap_or_default(),
            record.p50.range(0),
            record.p99.range(0),
            format!("{:.1}", record.processor.median()),
            format!("{:.1}", record.redis.median()),
            format!("{:.3}", record.scripts.median()),
            format!("{:.1}", record.script.median()),
        ]
    };
    let head = [
        "",
        "req/s",
        "× memory",
        "× nginx + Lua",
        "p50 µs",
        "p99 µs",
        "CPU µs/req",
        "Redis µs/req",
        "scripts/req",
        "µs/script",
    ];
    let rows: Vec<Vec<String>> = targets.iter().zip(records).map(row).collect();
    table("Limits in a shared store, as fast as it goes", &head, &rows)
}
