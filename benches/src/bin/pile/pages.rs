//! Times the pages of the dashboard, of the workspace whose webhook has a tenth of all deliveries,
//! many of them failed.

use std::io::{Read, Write};
use std::net::SocketAddr;

use weir_benches::dispatched::Dispatcher;
use weir_benches::flags::fail;
use weir_benches::lab::Folder;
use weir_benches::post::{connect, exchange, seconds};
use weir_benches::report::{Series, table};

use crate::Lab;
use crate::calls::{LARGE, LARGEST, call, id_in};
use crate::upkeep::change;

/// Requests for each page.
const VIEWS: usize = 50;

/// Deliveries that failed permanently.
const FAILED: i64 = 10_000;

/// The name that the shipped settings have for the dashboard.
const HOST: &str = "api.localhost:8080";

/// A visitor with a session.
struct Visitor {
    api: SocketAddr,
    cookie: String,
}

impl Lab {
    /// Lets some deliveries fail, and prints how long each page takes.
    pub(crate) fn pages(&self, folder: &Folder, dispatcher: Dispatcher) -> Dispatcher {
        drop(dispatcher);
        let chosen = format!(
            "SELECT id FROM deliveries WHERE webhook = {LARGEST} AND state = 0 \
             ORDER BY id LIMIT {FAILED}"
        );
        change(
            folder,
            &format!(
                "UPDATE deliveries SET state = 2, attempts = 9, first_attempt_at = created_at, \
                    ended_at = created_at, last_outcome = 'status_503' WHERE id IN ({chosen}); \
                 UPDATE counters SET waiting = waiting - {FAILED};"
            ),
        );
        let dispatcher = self.still(folder);
        let visitor = sign_in(&dispatcher);
        let token = &dispatcher.aim.token;
        let get = |path: &str| call(dispatcher.api, token, "GET", path, "");
        let webhook = id_in(&get(&format!("{LARGE}/webhooks")));
        let failed = id_in(&get(&format!("{LARGE}/deliveries?state=failed_permanent")));
        let base = LARGE.replace("/v1/", "/dashboard/");
        let pages = [
            "webhooks".to_owned(),
            format!("webhooks/{webhook}"),
            "failed".to_owned(),
            "failed?outcome=status_5xx".to_owned(),
            "deliveries".to_owned(),
            "deliveries?state=waiting".to_owned(),
            format!("deliveries/{failed}"),
            "redeliveries".to_owned(),
        ];
        let rows = pages.iter().map(|page| {
            let mut times = [const { Series(Vec::new()) }; 2];
            let mut bytes = 0;
            for _ in 0..VIEWS {
                let (first, whole, length) = self.view(&visitor, &format!("{base}/{page}"));
                times[0].0.push(first);
                times[1].0.push(whole);
                bytes = length;
            }
            let shown = page.replace(&webhook, "wh_…").replace(&failed, "dlv_…");
            let mut row = vec![format!("`{shown}`")];
            for series in &times {
                let max = series.0.iter().copied().fold(0.0, f64::max);
                row.extend([format!("{:.2}", series.median()), format!("{max:.2}")]);
            }
            row.push(format!("{:.1}", bytes as f64 / 1_024.0));
            row
        });
        let head = ["", "first byte p50 ms", "max", "whole p50 ms", "max", "KiB"];
        println!("{}", table("Pages of the dashboard", &head, &rows.collect::<Vec<_>>()));
        dispatcher
    }

    /// Loads a page: milliseconds to the first byte and to the last, and its bytes.
    fn view(&self, visitor: &Visitor, path: &str) -> (f64, f64, usize) {
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: {HOST}\r\nCookie: {}\r\nConnection: close\r\n\r\n",
            visitor.cookie
        );
        let mut stream = connect(visitor.api);
        let began = self.clock.now().tick;
        let elapsed = || seconds(self.clock.now().tick.since(began)) * 1_000.0;
        let mut talk = || -> std::io::Result<(f64, Vec<u8>)> {
            stream.write_all(request.as_bytes())?;
            let mut answer = vec![0];
            stream.read_exact(&mut answer)?;
            let first = elapsed();
            stream.read_to_end(&mut answer)?;
            Ok((first, answer))
        };
        let (first, answer) = talk().unwrap_or_else(|error| fail(&format!("{path}: {error}")));
        if !answer.starts_with(b"HTTP/1.1 200") {
            fail(&format!("{path} is answered by\n{}", String::from_utf8_lossy(&answer)));
        }
        (first, elapsed(), answer.len())
    }
}

/// Opens a session with the token.
fn sign_in(dispatcher: &Dispatcher) -> Visitor {
    let workspace = LARGE.rsplit('/').next().unwrap_or_default();
    let body = format!("workspace={workspace}&token={}", dispatcher.aim.token);
    let request = format!(
        "POST /dashboard/sign-in HTTP/1.1\r\nHost: {HOST}\r\nSec-Fetch-Site: same-origin\r\n\
         Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let answer = exchange(&mut connect(dispatcher.api), request.as_bytes(), &mut Vec::new());
    let cookie = answer.lines().find_map(|line| {
        let (name, value) = line.split_once(": ")?;
        name.eq_ignore_ascii_case("set-cookie").then(|| value.split(';').next())?
    });
    let cookie = cookie.unwrap_or_else(|| fail(&format!("no session:\n{answer}"))).to_owned();
    Visitor { api: dispatcher.api, cookie }
}
