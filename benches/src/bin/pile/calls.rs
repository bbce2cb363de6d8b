//! Times the calls of customers and operators.

use std::net::SocketAddr;

use weir_benches::dispatched::Dispatcher;
use weir_benches::flags::fail;
use weir_benches::post::{connect, exchange, seconds};
use weir_benches::report::Series;

use crate::Lab;

/// Calls of each kind.
const CALLS: usize = 50;

/// The workspace whose one webhook has a tenth of the backlog.
pub(crate) const LARGE: &str = "/v1/workspaces/ws_b0";

/// The number of that webhook in SQL: it is the newest one.
pub(crate) const LARGEST: &str = "(SELECT max(id) FROM webhooks)";

impl Lab {
    /// Makes each call [`CALLS`] times; returns the durations in milliseconds.
    pub(crate) fn calls(&self, dispatcher: &Dispatcher) -> Vec<(String, Series)> {
        let token = &dispatcher.aim.token;
        let get = |at, path: &str| call(at, token, "GET", path, "");
        let webhook = id_in(&get(dispatcher.api, &format!("{LARGE}/webhooks")));
        let list = format!("{LARGE}/deliveries");
        let one = format!("{list}/{}", id_in(&get(dispatcher.api, &list)));
        let filters = [
            "",
            "?limit=100",
            "?state=waiting",
            "?state=delivered",
            "?state=failed_permanent",
            "?type=user.deleted",
            "?since=2100-01-01T00:00:00Z",
            "?until=2000-01-01T00:00:00Z",
            &format!("?webhook={webhook}"),
        ];
        let customers = [format!("{LARGE}/webhooks"), format!("{LARGE}/webhooks/{webhook}"), one];
        let lists = filters.into_iter().map(|filter| format!("{list}{filter}"));
        let customers = customers.into_iter().chain(lists).map(|path| (dispatcher.api, path));
        let operators = ["/metrics", "/readyz"].map(|path| (dispatcher.admin, path.to_owned()));
        let timed = |(at, path): (SocketAddr, String)| {
            let mut took = Series::default();
            for _ in 0..CALLS {
                let began = self.clock.now().tick;
                let _ = get(at, &path);
                took.0.push(seconds(self.clock.now().tick.since(began)) * 1_000.0);
            }
            let shown = path.trim_start_matches(LARGE).replace(&webhook, "wh_…");
            let shown = shown.split("dlv_").next().unwrap_or_default().to_owned();
            (shown, took)
        };
        customers.chain(operators).map(timed).collect()
    }
}

/// Table rows: each call's durations with many and with few waiting deliveries.
pub(crate) fn beside(few: &[(String, Series)], many: &[(String, Series)]) -> Vec<Vec<String>> {
    let row = |((path, many), (_, few)): (&(String, Series), &(String, Series))| {
        let max = many.0.iter().copied().fold(0.0, f64::max);
        vec![
            format!("`GET {path}`"),
            format!("{:.2}", many.median()),
            format!("{max:.2}"),
            format!("{:.2}", few.median()),
            format!("{:.2}", many.median() / few.median()),
        ]
    };
    many.iter().zip(few).map(row).collect()
}

/// Makes a call that must succeed; returns the whole response.
pub(crate) fn call(at: SocketAddr, token: &str, method: &str, path: &str, body: &str) -> String {
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let answer = exchange(&mut connect(at), request.as_bytes(), &mut Vec::new());
    if !answer.starts_with("HTTP/1.1 20") {
        fail(&format!("{method} {path} is answered by\n{answer}"));
    }
    answer
}

/// The first identifier in a response.
pub(crate) fn id_in(answer: &str) -> String {
    let id = answer.split("\"id\":\"").nth(1).and_then(|rest| rest.split('"').next());
    id.unwrap_or_else(|| fail(&format!("no id in {answer}"))).to_owned()
}
