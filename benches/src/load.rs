//! Load at full speed: runs `wrk` and reads its results.
//!
//! Not here: load at a fixed rate (`steady`).

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;

use crate::flags::fail;

/// The request and its target.
#[derive(Clone)]
pub struct Aim {
    /// The target's address.
    pub address: SocketAddr,
    /// The Host header.
    pub host: String,
    /// The path.
    pub path: String,
    /// A script for `wrk` that makes other requests.
    pub script: Option<PathBuf>,
}

/// The result of one run.
#[derive(Clone, Copy, Default)]
pub struct Run {
    /// Responses in total.
    pub answers: f64,
    /// Responses with status 400 or above among them.
    pub errors: f64,
    /// Responses a second.
    pub rate: f64,
    /// Median latency in microseconds.
    pub p50: f64,
    /// 99th percentile of the latency in microseconds.
    pub p99: f64,
}

/// Runs `wrk` with one thread and `connections` for `seconds`.
#[must_use]
pub fn saturate(aim: &Aim, connections: u32, seconds: u32) -> Run {
    let script = aim.script.iter().flat_map(|script| ["-s".as_ref(), script.as_os_str()]);
    let output = Command::new("wrk")
        .args(script)
        .args(["-t1", "--latency", "-c", &connections.to_string()])
        .args(["-d", &format!("{seconds}s"), "-H", &format!("Host: {}", aim.host)])
        .arg(format!("http://{}{}", aim.address, aim.path))
        .output()
        .unwrap_or_else(|error| fail(&format!("wrk: {error} (Debian: apt install wrk)")));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let broken = text.contains("Socket errors") || !output.status.success();
    match (broken, read_wrk(&text)) {
        (false, Some(run)) => run,
        _ => fail(&format!("wrk on {}: {text}", aim.address)),
    }
}

fn read_wrk(text: &str) -> Option<Run> {
    let after = |label: &str| {
        let line = text.lines().find(|line| line.trim_start().starts_with(label))?;
        line.trim_start().strip_prefix(label)?.split_whitespace().next()
    };
    let answers = text.lines().find(|line| line.contains("requests in"))?;
    Some(Run {
        answers: answers.split_whitespace().next()?.parse().ok()?,
        errors: after("Non-2xx or 3xx responses:").map_or(Some(0.0), |n| n.parse().ok())?,
        rate: after("Requests/sec:")?.parse().ok()?,
        p50: micros(after("50%")?)?,
        p99: micros(after("99%")?)?,
    })
}

fn micros(text: &str) -> Option<f64> {
    let number = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match text.strip_prefix(number)? {
        "us" => 1.0,
        "ms" => 1_000.0,
        "s" => 1_000_000.0,
        _ => return None,
    };
    Some(number.parse::<f64>().ok()? * unit)
}
