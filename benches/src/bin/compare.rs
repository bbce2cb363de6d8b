//! Compares Weir with nginx, HAProxy and bare Pingora: at full speed, when refusing, and at a
//! fixed rate.
//!
//! Load, target and upstream share one machine with everything else that runs on it. So every
//! target runs in every round, each round begins with another target, and a ratio is the median
//! of the rounds' ratios. A wrong response ends the comparison.

use std::path::PathBuf;

use weir_benches::flags::{Flags, fail, sibling};
use weir_benches::lab::{Folder, get};
use weir_benches::load::saturate;
use weir_benches::report::{Series, quantile, table};
use weir_benches::steady::{self, Pace};
use weir_benches::targets::{Limits, Plane, Target, bare, haproxy, nginx, upstream, weir};

const USAGE: &str = "usage: compare [--gateway PATH] [--rounds 7] [--seconds 3] \
    [--connections 64] [--rate 0] [--only proxy|refuse|steady] \
    [--without-weir] [--without-peers]";

/// A refusing limit admits one request, and another one after its window.
const ADMITTED_MAX: f64 = 2.0;

struct Plan {
    gateway: PathBuf,
    rounds: usize,
    seconds: u32,
    connections: u32,
    /// Requests a second of the third table; 0 for a quarter of what its first target reaches.
    rate: u32,
    only: String,
    weir: bool,
    peers: bool,
}

fn main() {
    let plan = plan();
    if plan.wants("proxy") {
        let folder = Folder::new("proxy");
        let targets = proxies(&plan, &folder, upstream(&folder));
        println!("{}", saturated("Proxying, as fast as it goes", &plan, &targets));
    }
    if plan.wants("refuse") {
        let folder = Folder::new("refuse");
        let up = upstream(&folder);
        let targets = refusers(&plan, &folder, &up);
        println!("{}", saturated("Refusing, as fast as it goes", &plan, &targets));
    }
    if plan.wants("steady") {
        let folder = Folder::new("steady");
        let up = upstream(&folder);
        println!("{}", at_a_rate(&plan, &steady_targets(&plan, &folder, &up)));
    }
}

fn plan() -> Plan {
    let mut flags = Flags::from_env(USAGE);
    let plan = Plan {
        gateway: flags.value("--gateway", sibling("weir-gateway")),
        rounds: flags.value("--rounds", 7),
        seconds: flags.value("--seconds", 3),
        connections: flags.value("--connections", 64),
        rate: flags.value("--rate", 0),
        only: flags.value("--only", String::new()),
        weir: !flags.has("--without-weir"),
        peers: !flags.has("--without-peers"),
    };
    let [] = flags.rest();
    plan
}

impl Plan {
    fn wants(&self, part: &str) -> bool {
        self.only.is_empty() || self.only == part
    }

    fn weir(&self, folder: &Folder, up: &Target, rows: &[(Plane, Limits, bool)]) -> Vec<Target> {
        let rows = if self.weir { rows } else { &[] };
        rows.iter().map(|row| weir(folder, &self.gateway, up.aim.address, *row)).collect()
    }
}

fn proxies(plan: &Plan, folder: &Folder, up: Target) -> Vec<Target> {
    let address = up.aim.address;
    let rows = [
        (Plane::Control, Limits::Admit, false),
        (Plane::Data, Limits::Admit, false),
        (Plane::Control, Limits::Admit, true),
    ];
    let weirs = plan.weir(folder, &up, &rows);
    let mut targets = vec![up];
    if plan.peers {
        targets.extend([
            nginx(folder, address, Limits::None, false),
            nginx(folder, address, Limits::Admit, false),
            nginx(folder, address, Limits::Admit, true),
            haproxy(folder, address, Limits::None),
            haproxy(folder, address, Limits::Admit),
            bare(folder, address, Limits::None, false),
            bare(folder, address, Limits::None, true),
        ]);
    }
    targets.extend(weirs);
    targets
}

fn refusers(plan: &Plan, folder: &Folder, up: &Target) -> Vec<Target> {
    let address = up.aim.address;
    let mut targets = Vec::new();
    if plan.peers {
        targets.extend([
            nginx(folder, address, Limits::Refuse, false),
            haproxy(folder, address, Limits::Refuse),
            bare(folder, address, Limits::Refuse, false),
            bare(folder, address, Limits::Refuse, true),
        ]);
    }
    let refusing = |access| (Plane::Control, Limits::Refuse, access);
    targets.extend(plan.weir(folder, up, &[refusing(false), refusing(true)]));
    targets
}

fn steady_targets(plan: &Plan, folder: &Folder, up: &Target) -> Vec<Target> {
    let address = up.aim.address;
    let mut targets = Vec::new();
    if plan.peers {
        targets.extend([
            nginx(folder, address, Limits::Admit, false),
            haproxy(folder, address, Limits::Admit),
            bare(folder, address, Limits::None, false),
        ]);
    }
    targets.extend(plan.weir(folder, up, &[(Plane::Control, Limits::Admit, false)]));
    targets
}

/// The measurements of one target, one value per round.
#[derive(Default)]
struct Record {
    rate: Series,
    p50: Series,
    p99: Series,
    user: Series,
    system: Series,
    processor: Series,
}

fn saturated(title: &str, plan: &Plan, targets: &[Target]) -> String {
    let mut records: Vec<Record> = targets.iter().map(|_| Record::default()).collect();
    for target in targets {
        check(target);
        let _ = saturate(&target.aim, plan.connections, 1);
    }
    for round in 0..plan.rounds {
        for step in 0..targets.len() {
            let at = (round + step) % targets.len();
            if let (Some(target), Some(record)) = (targets.get(at), records.get_mut(at)) {
                measure(plan, target, record);
            }
        }
        eprintln!("{title}: round {} of {}", round + 1, plan.rounds);
    }
    targets.iter().for_each(check);
    let base = |name: &str| {
        let at = targets.iter().position(|target| target.name.starts_with(name))?;
        records.get(at)
    };
    let against = |record: &Record, name: &str| match base(name) {
        Some(other) => format!("{:.2}", record.rate.ratio_to(&other.rate)),
        None => String::new(),
    };
    let rows: Vec<Vec<String>> = targets
        .iter()
        .zip(&records)
        .map(|(target, record)| {
            let [total, user, system] =
                [&record.processor, &record.user, &record.system].map(Series::median);
            vec![
                target.name.clone(),
                record.rate.range(0),
                record.p50.range(0),
                record.p99.range(0),
                format!("{total:.1} ({user:.1}/{system:.1})"),
                against(record, "bare pingora"),
                against(record, "nginx"),
                format!("{:.0}", target.process.resident_mib()),
            ]
        })
        .collect();
    let head =
        ["", "req/s", "p50 µs", "p99 µs", "CPU µs/req (user/sys)", "× bare", "× nginx", "RSS MiB"];
    table(title, &head, &rows)
}

fn measure(plan: &Plan, target: &Target, record: &mut Record) {
    let before = target.process.usage();
    let run = saturate(&target.aim, plan.connections, plan.seconds);
    let after = target.process.usage();
    let wrong = match target.limits {
        Limits::None | Limits::Admit => run.errors > 0.0,
        Limits::Refuse => run.answers - run.errors > ADMITTED_MAX,
    };
    if wrong {
        fail(&format!("{}: {} of {} refused", target.name, run.errors, run.answers));
    }
    record.rate.0.push(run.rate);
    record.p50.0.push(run.p50);
    record.p99.0.push(run.p99);
    record.user.0.push((after.user - before.user) / run.answers);
    record.system.0.push((after.system - before.system) / run.answers);
    let used = after.user - before.user + after.system - before.system;
    record.processor.0.push(used / run.answers);
}

/// Sends two requests, and ends the comparison unless the second response is as expected.
fn check(target: &Target) {
    let response = |_| get(target.aim.address, &target.aim.host, &target.aim.path);
    // A refusing limit admits the first request.
    let answer = [(); 2].map(response).into_iter().next_back().unwrap_or_default();
    let answer = answer.to_ascii_lowercase();
    let status = format!("http/1.1 {} ", target.limits.status());
    let has_limits = answer.contains("x-ratelimit-remaining: ") == target.name.starts_with("weir");
    if !answer.starts_with(&status) || !has_limits {
        fail(&format!("{} should have answered {status}:\n{answer}", target.name));
    }
}

fn at_a_rate(plan: &Plan, targets: &[Target]) -> String {
    let rate = if plan.rate > 0 { plan.rate } else { quarter(plan, targets) };
    let pace = Pace { rate, seconds: plan.seconds, connections: 64 };
    let mut records = vec![[const { Series(Vec::new()) }; 5]; targets.len()];
    for round in 0..plan.rounds {
        for step in 0..targets.len() {
            let at = (round + step) % targets.len();
            let (Some(target), Some(record)) = (targets.get(at), records.get_mut(at)) else {
                continue;
            };
            check(target);
            let latencies = steady::run(&target.aim, target.limits.status(), pace);
            let [p50, p99, p999, max] =
                [0.5, 0.99, 0.999, 1.0].map(|share| quantile(&latencies.all, share));
            let values = [p50, p99, latencies.p99_of_tenths, p999, max];
            for (series, value) in record.iter_mut().zip(values) {
                series.0.push(value as f64);
            }
        }
        eprintln!("at a fixed rate: round {} of {}", round + 1, plan.rounds);
    }
    let rows: Vec<Vec<String>> = targets
        .iter()
        .zip(&records)
        .map(|(target, record)| {
            let quantiles = record.iter().map(|series| series.range(0));
            let ratios = records.first().into_iter().flat_map(|first| record.iter().zip(first));
            let ratios = ratios.take(4).map(|(series, first)| series.ratio_to(first));
            let ratios = ratios.map(|ratio| format!("{ratio:.2}"));
            std::iter::once(target.name.clone()).chain(quantiles).chain(ratios).collect()
        })
        .collect();
    let title = format!("At {rate} requests a second");
    let head = [
        "",
        "p50 µs",
        "p99 µs",
        "p99 of tenths µs",
        "p99.9 µs",
        "max µs",
        "p50 × first",
        "p99 × first",
        "p99 of tenths × first",
        "p99.9 × first",
    ];
    table(&title, &head, &rows)
}

/// A quarter of the requests a second that the first target reaches now: machines differ by a
/// factor of three from day to day.
fn quarter(plan: &Plan, targets: &[Target]) -> u32 {
    let Some(first) = targets.first() else { return 1 };
    check(first);
    let rate = saturate(&first.aim, plan.connections, plan.seconds).rate;
    ((rate / 4.0) as u32).max(1)
}
