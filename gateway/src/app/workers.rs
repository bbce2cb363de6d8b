//! The threads that serve clients, each with a runtime and connections to upstreams of its own.
//!
//! Not here: accepting connections (`listener`), when they end (`app`).

use std::io;
use std::sync::Arc;
use std::thread;

use pingora_core::server::configuration::ServerConf;
use pingora_proxy::http_proxy;
use tokio::runtime::Builder;
use tokio::sync::{mpsc, watch};

use crate::app::front::Front;
use crate::config::shared::Shared;
use crate::edge::drain::Drain;
use crate::edge::listener::{self, Accepted, Worker};
use crate::proxy::Proxy;
use crate::proxy::arrival::RequestHandler;

/// Idle connections to upstreams that each worker keeps, at most.
const POOL_MAX: usize = 1_024;

/// All workers.
pub(super) struct Workers {
    pub(super) list: Arc<Vec<Worker>>,
    ended: watch::Receiver<usize>,
    count: usize,
}

/// How many workers there are: as configured, or one for each core where that is 0.
pub(super) fn count(threads: usize) -> usize {
    let cores = || thread::available_parallelism().map_or(1, usize::from);
    if threads == 0 { cores() } else { threads }
}

impl Workers {
    pub(super) fn start(shared: &Arc<Shared>, end: &Drain) -> io::Result<Self> {
        let count = count(shared.active.load().settings.server.threads);
        let (list, ends): (Vec<_>, Vec<_>) = (0..count).map(|_| Worker::new()).unzip();
        let (done, ended) = watch::channel(0);
        let done = Arc::new(done);
        for (nth, from) in ends.into_iter().enumerate() {
            let (shared, end, done) = (shared.clone(), end.clone(), done.clone());
            let runtime = Builder::new_current_thread().enable_all().build()?;
            let work = move || {
                runtime.block_on(work(shared, from, end));
                done.send_modify(|done| *done += 1);
            };
            thread::Builder::new().name(format!("worker-{nth}")).spawn(work)?;
        }
        Ok(Self { list: Arc::new(list), ended, count })
    }

    /// Waits until every worker's last connection has closed.
    pub(super) async fn ended(&self) {
        let mut ended = self.ended.clone();
        // An error means that all of them have ended.
        let _ = ended.wait_for(|ended| *ended == self.count).await;
    }
}

async fn work(shared: Arc<Shared>, from: mpsc::UnboundedReceiver<Accepted>, end: Drain) {
    let conf =
        ServerConf { threads: 1, upstream_keepalive_pool_size: POOL_MAX, ..ServerConf::default() };
    let proxy = http_proxy(&Arc::new(conf), Proxy { shared: shared.clone() });
    let requests = RequestHandler {
        pingora: Arc::new(proxy),
        shared: shared.clone(),
        stop: end.close_after_response.clone(),
    };
    let front = Front { requests: Arc::new(requests), shared: shared.clone() };
    listener::serve(Arc::new(front), from, shared, end).await;
}
