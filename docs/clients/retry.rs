//! Calls a URL, and waits after each 429 as docs/clients.md says. Needs std alone.
//!
//! Usage: `retry URL REQUESTS [TRIES]`, or `retry --delays`.

use std::collections::hash_map::RandomState;
use std::error::Error;
use std::hash::{BuildHasher, Hasher};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;
use std::{env, thread};

const TRIES_MAX: usize = 6;
/// Seconds. A client gives up rather than come before `Retry-After`.
const WAIT_MAX: f64 = 600.0;
const TIMEOUT: Duration = Duration::from_secs(30);

struct Outcome {
    status: u16,
    waits: Vec<f64>,
}

fn get_with_retries(url: &str, tries_max: usize) -> io::Result<Outcome> {
    let mut waits = Vec::new();
    loop {
        let (status, retry_after) = get(url)?;
        let wait = delay(waits.len(), retry_after, random());
        if status != 429 || waits.len() + 1 >= tries_max || wait > WAIT_MAX {
            return Ok(Outcome { status, waits });
        }
        thread::sleep(Duration::from_secs_f64(wait));
        waits.push(wait);
    }
}

/// Seconds before a retry, of which the first is number 0; `random` is from 0 to 1.
fn delay(retry: usize, retry_after: f64, random: f64) -> f64 {
    let backoff = 2_f64.powf(retry as f64).min(30.0) * (0.8 + 0.4 * random);
    backoff.max(retry_after)
}

/// From 0 to 1, by the random seed of std's hash maps.
fn random() -> f64 {
    RandomState::new().build_hasher().finish() as f64 / u64::MAX as f64
}

/// The status and `Retry-After` of one request; your HTTP client does this, and TLS.
fn get(url: &str) -> io::Result<(u16, f64)> {
    let wrong = || io::Error::other("not http:// or not HTTP");
    let rest = url.strip_prefix("http://").ok_or_else(wrong)?;
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    let address = if host.contains(':') { host.to_owned() } else { format!("{host}:80") };
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    let head = format!("GET /{path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes())?;
    let mut response = Vec::new();
    stream.read_to_end(&mut response)?;
    let response = String::from_utf8_lossy(&response);
    let head = response.split("\r\n\r\n").next().unwrap_or_default();
    let status = head.split(' ').nth(1).and_then(|word| word.parse().ok()).ok_or_else(wrong)?;
    let mut fields = head.lines().filter_map(|line| line.split_once(':'));
    let retry_after = fields.find(|(name, _)| name.eq_ignore_ascii_case("retry-after"));
    let seconds = retry_after.and_then(|(_, value)| value.trim().parse::<u32>().ok());
    Ok((status, seconds.unwrap_or(0).into()))
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let (url, requests, tries) = match &arguments[..] {
        [option] if option == "--delays" => {
            println!("{:?}", (0..7).map(|retry| delay(retry, 0.0, 0.5)).collect::<Vec<_>>());
            return Ok(());
        }
        [url, requests] => (url, requests.parse()?, TRIES_MAX),
        [url, requests, tries] => (url, requests.parse()?, tries.parse()?),
        _ => return Err("usage: retry URL REQUESTS [TRIES]".into()),
    };
    for _ in 0..requests {
        let Outcome { status, waits } = get_with_retries(url, tries)?;
        let tries = waits.len() + 1;
        println!("{{\"status\":{status},\"tries\":{tries},\"waits\":{waits:.2?}}}");
    }
    Ok(())
}
