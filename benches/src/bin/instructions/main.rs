//! Counts user instructions per request of each target, and per delivery, with callgrind.
//!
//! A count depends on the program and the requests, and hardly on the machine's other work: two
//! runs differ by a few in ten thousand. It includes neither the kernel nor caches.
//!
//! Sixteen connections take turns: all send, then all are read. Instructions spent on opening
//! and warming up are discarded. Over TLS `h2load` sends the load twice, the second time with
//! more requests: the difference excludes the cost of the connections.
//!
//! Deliveries are counted one after another, from the post to the record, without shared commits:
//! under load commits are shared, and a delivery costs less.
//!
//! With `--check` it counts what may not grow, and compares (`check`).

mod callgrind;
mod check;
mod counts;
mod recorded;
mod upstream;

use std::path::{Path, PathBuf};

use weir_benches::flags::{Flags, fail, sibling};
use weir_benches::lab::{Folder, Process};
use weir_benches::report::table;
use weir_benches::secure::{self, Pair, Version};
use weir_benches::targets::{Limits, Plane, Target, bare, haproxy, nginx, upstream, weir};

use crate::counts::CONNECTIONS;

const USAGE: &str = "usage: instructions [--gateway PATH] [--dispatcher PATH] [--requests 3200] \
    [--deliveries 400] [--only TEXT] [--by plain|tls|event|delivery] [--keep FILE]
       instructions --check [--only TEXT] | --record WHY | --release VERSION";
/// Beside the benches, from the root of the repository.
const RECORDED: &str = "benches/recorded.md";

fn main() {
    let mut flags = Flags::from_env(USAGE);
    let file = Path::new(RECORDED);
    let (check, why) = (flags.has("--check"), flags.given::<String>("--record"));
    match (check, why, flags.given::<String>("--release")) {
        (false, None, None) => compare(flags),
        (true, None, None) => check::check(file, &flags.value("--only", String::new())),
        (false, Some(why), None) => check::record(file, &why),
        (false, None, Some(version)) => check::release(file, &version),
        _ => fail(USAGE),
    }
}

/// Counts Weir and its peers, and prints a table.
fn compare(mut flags: Flags) {
    let gateway: PathBuf = flags.value("--gateway", sibling("weir-gateway"));
    let dispatcher: PathBuf = flags.value("--dispatcher", sibling("weir-dispatcher"));
    let requests = flags.value("--requests", 3_200);
    let deliveries = flags.value("--deliveries", 400);
    let only = flags.value("--only", String::new());
    let by = flags.value("--by", String::new());
    let keep = flags.value("--keep", String::new());
    let [] = flags.rest();
    let (plain, counting) = (Folder::new("upstream"), Folder::counting("counted"));
    let up = upstream(&plain);
    let pair = Pair::new(&plain);
    let mut rows = Vec::new();
    let mut row = |name: String, process: &Process, counted: u64, dump: u32| {
        if !keep.is_empty() {
            copy(&process.counts(dump), &keep);
        }
        eprintln!("{name}: {counted}");
        rows.push(vec![name, counted.to_string()]);
    };
    let wants = |part: &str| by.is_empty() || by == part;
    let makers = if wants("plain") { makers(&counting, &gateway, &up) } else { Vec::new() };
    for make in makers {
        let target = make();
        if target.name.contains(&only) {
            let counted = counts::request(&target, requests / CONNECTIONS, CONNECTIONS);
            row(target.name.clone(), &target.process, counted, 1);
        }
    }
    let makers =
        if wants("tls") { makers_tls(&counting, &gateway, &up, &pair) } else { Vec::new() };
    for (name, make) in makers {
        for version in [Version::One, Version::Two] {
            let name = format!("{name}, {}", version.name());
            if name.contains(&only) {
                let target = make();
                let counted = counts::request_tls(&target, version, requests);
                row(name, &target.process, counted, 2);
            }
        }
    }
    type Count = fn(&Folder, &Path, u64) -> (Process, u64);
    let counts: [(&str, Count); 2] = [("event", counts::event), ("delivery", counts::delivery)];
    for (part, count) in counts {
        let name = format!("weir-dispatcher, {part}");
        if wants(part) && name.contains(&only) {
            let folder = Folder::counting(part);
            let (process, counted) = count(&folder, &dispatcher, deliveries);
            row(name, &process, counted, 1);
        }
    }
    println!("{}", table("User instructions per request", &["", "instructions"], &rows));
}

type Maker<'a> = Box<dyn Fn() -> Target + 'a>;

/// Every target; each is started only when it is measured, because valgrind is slow.
fn makers<'a>(folder: &'a Folder, gateway: &'a Path, up: &'a Target) -> Vec<Maker<'a>> {
    let up = up.aim.address;
    let mut all: Vec<Maker<'a>> = Vec::new();
    for limits in [Limits::None, Limits::Admit, Limits::Refuse] {
        all.push(Box::new(move || nginx(folder, up, limits, false)));
        all.push(Box::new(move || haproxy(folder, up, limits)));
    }
    for mimalloc in [false, true] {
        for limits in [Limits::None, Limits::Refuse] {
            all.push(Box::new(move || bare(folder, up, limits, mimalloc)));
        }
    }
    for row in [
        (Plane::Control, Limits::Admit, false),
        (Plane::Data, Limits::Admit, false),
        (Plane::Control, Limits::Admit, true),
        (Plane::Control, Limits::Refuse, false),
        (Plane::Control, Limits::Refuse, true),
    ] {
        all.push(Box::new(move || weir(folder, gateway, up, row)));
    }
    all
}

/// The targets over TLS, with their names.
fn makers_tls<'a>(
    folder: &'a Folder,
    gateway: &'a Path,
    up: &'a Target,
    pair: &'a Pair,
) -> Vec<(&'static str, Maker<'a>)> {
    vec![
        ("nginx", Box::new(move || secure::nginx(folder, &up.aim, pair))),
        ("HAProxy", Box::new(move || secure::haproxy(folder, &up.aim, pair))),
        ("bare pingora, mimalloc", Box::new(move || secure::bare(folder, &up.aim, pair))),
        ("weir", Box::new(move || secure::weir(folder, gateway, &up.aim, pair))),
    ]
}

fn copy(counts: &Path, to: &str) {
    if let Err(error) = std::fs::copy(counts, to) {
        fail(&format!("{to}: {error}"));
    }
}
