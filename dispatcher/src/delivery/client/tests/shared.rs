//! Workspaces that share connections to one host.

use std::future::poll_fn;
use std::task::Poll;

use tokio::sync::Notify;

use super::*;
use crate::delivery::egress::on_behalf_of;
use crate::delivery::pool::CLOSED_WITHIN;
use crate::delivery::pool::sharing::{NEW_FOR, SUSPECT_FOR};

/// A receiver at whose path `/holds` a request is answered, and then holds the next one on its
/// connection. At `/starts` it sends an interim response to that one, at `/breaks` no HTTP; it
/// never answers at `/silent`.
async fn receiver() -> Receiver {
    Receiver::on("127.0.0.1", |mut stream| async move {
        while let Some(request) = read_request(&mut stream).await {
            if request.starts_with("POST /silent") {
                return std::future::pending().await;
            }
            let _ = stream.write_all(OK.as_bytes()).await;
            let next = match request.split(' ').nth(1) {
                Some("/holds") => "",
                Some("/starts") => "HTTP/1.1 102 Processing\r\n\r\n",
                Some("/breaks") => "none\r\n\r\n",
                _ => continue,
            };
            if !next.is_empty() && read_request(&mut stream).await.is_some() {
                let _ = stream.write_all(next.as_bytes()).await;
            }
            return std::future::pending().await;
        }
    })
    .await
}

/// Runs attempts at the same time.
async fn join_all<F: Future>(attempts: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    let mut running: Vec<_> = attempts.into_iter().map(|one| (Box::pin(one), None)).collect();
    poll_fn(|cx| {
        let mut all = Poll::Ready(());
        for (attempt, outcome) in running.iter_mut().filter(|(_, outcome)| outcome.is_none()) {
            match attempt.as_mut().poll(cx) {
                Poll::Ready(ended) => *outcome = Some(ended),
                Poll::Pending => all = Poll::Pending,
            }
        }
        all
    })
    .await;
    running.into_iter().filter_map(|(_, outcome)| outcome).collect()
}

/// The outcome of a workspace's attempt at a path.
async fn attempt(
    client: &DeliveryClient,
    receiver: &Receiver,
    (workspace, path): (&str, &str),
) -> Outcome {
    let url = format!("http://{}/{path}", receiver.address);
    on_behalf_of(workspace.into(), client.deliver(request(&url))).await.outcome
}

#[tokio::test]
async fn workspaces_share_connections_to_one_host() {
    let receiver = receiver().await;
    let (client, _) = client(&[], 10_000);
    for turn in 0..1_000 {
        let workspace = format!("ws_{turn}");
        let outcome = attempt(&client, &receiver, (&workspace, "hook")).await;
        assert_eq!((outcome, receiver.accepted()), (DELIVERED, 1), "{workspace}");
    }
}

#[tokio::test]
async fn a_workspace_that_holds_the_next_request_makes_one_attempt_of_others_late() {
    for (path, late) in
        [("holds", SILENT), ("starts", SILENT), ("breaks", Outcome::Failed(Failure::Connection))]
    {
        one_attempt_is_late(path, late).await;
    }
}

async fn one_attempt_is_late(path: &str, late: Outcome) {
    let receiver = receiver().await;
    let (client, clock) = client(&[], 500);
    let late_ones = async |turn: usize| {
        // It leaves four connections, each of which holds the next request.
        let held = (0..4).map(|_| attempt(&client, &receiver, ("ws_bad", path)));
        assert_eq!(join_all(held).await, vec![DELIVERED; 4]);
        let names: Vec<String> = (0..8).map(|other| format!("ws_{turn}_{other}")).collect();
        let others = names.iter().map(|name| attempt(&client, &receiver, (name, "hook")));
        let outcomes = join_all(others).await;
        outcomes.into_iter().filter(|outcome| *outcome != DELIVERED).collect::<Vec<_>>()
    };
    let (one, none) = (vec![late], vec![]);
    for (turn, (later, late)) in [
        (Duration::ZERO, &one),
        (Duration::ZERO, &none),
        (SUSPECT_FOR, &one),
        (SUSPECT_FOR, &none),
        (NEW_FOR - SUSPECT_FOR, &one),
    ]
    .into_iter()
    .enumerate()
    {
        clock.advance(later);
        assert_eq!(late_ones(turn).await, *late, "{path}, turn {turn}");
        // The others go on sharing.
        let before = receiver.accepted();
        for other in ["ws_x", "ws_y", "ws_z"] {
            assert_eq!(attempt(&client, &receiver, (other, "hook")).await, DELIVERED);
        }
        assert_eq!(receiver.accepted(), before, "{path}, turn {turn}");
    }
}

#[tokio::test]
async fn a_connection_that_is_closed_long_after_the_request_was_sent_makes_suspects() {
    for (later, accepted) in [(CLOSED_WITHIN, 3), (Duration::ZERO, 2)] {
        let [asked, closes] = [(); 2].map(|()| Arc::new(Notify::new()));
        let notifies = (asked.clone(), closes.clone());
        let receiver = Receiver::on("127.0.0.1", move |mut stream| {
            let (asked, closes) = notifies.clone();
            async move {
                while let Some(request) = read_request(&mut stream).await {
                    if request.starts_with("POST /closes") {
                        asked.notify_one();
                        return closes.notified().await;
                    }
                    let _ = stream.write_all(OK.as_bytes()).await;
                }
            }
        })
        .await;
        let (client, clock) = client(&[], 20_000);
        assert_eq!(attempt(&client, &receiver, ("ws_a", "hook")).await, DELIVERED);
        let closed = attempt(&client, &receiver, ("ws_b", "closes"));
        let closing = async {
            asked.notified().await;
            clock.advance(later);
            closes.notify_one();
        };
        let stale = Outcome::Internal(Fault::StaleConnection);
        assert_eq!(tokio::join!(closed, closing).0, stale);
        for workspace in ["ws_c", "ws_a"] {
            assert_eq!(attempt(&client, &receiver, (workspace, "hook")).await, DELIVERED);
        }
        assert_eq!(receiver.accepted(), accepted, "{later:?}");
    }
}

#[tokio::test]
async fn a_workspace_whose_receiver_is_silent_stops_no_sharing_among_others() {
    let receiver = receiver().await;
    let (client, _) = client(&[], 300);
    let names = ["ws_a", "ws_b", "ws_c", "ws_d"];
    let at_once =
        || join_all(names.iter().map(|name| attempt(&client, &receiver, (*name, "hook"))));
    at_once().await;
    assert_eq!(receiver.accepted(), 4);
    for _ in 0..4 {
        let silent = (0..2).map(|_| attempt(&client, &receiver, ("ws_dead", "silent")));
        assert_eq!(join_all(silent).await, vec![SILENT; 2]);
    }
    // Of the two attempts on connections of others, one made another workspace a suspect.
    let before = receiver.accepted();
    at_once().await;
    at_once().await;
    let new = receiver.accepted() - before;
    assert_eq!(new, 2 + 1, "what the silent ones took, and the suspect's second one");
}

#[tokio::test]
async fn a_workspace_whose_receiver_keeps_its_own_request_waiting_gets_new_connections() {
    let receiver = receiver().await;
    let (client, clock) = client(&[], 500);
    for outcome in [DELIVERED, SILENT, DELIVERED, DELIVERED, DELIVERED] {
        assert_eq!(attempt(&client, &receiver, ("ws_bad", "holds")).await, outcome);
    }
    assert_eq!(receiver.accepted(), 4);
    clock.advance(NEW_FOR);
    for outcome in [DELIVERED, SILENT] {
        assert_eq!(attempt(&client, &receiver, ("ws_bad", "holds")).await, outcome);
    }
    assert_eq!(receiver.accepted(), 5);
}

#[tokio::test]
async fn a_workspace_with_many_idle_connections_leaves_room_for_those_of_others() {
    let receiver = receiver().await;
    let (client, _) = client(&[], 20_000);
    let many = (0..140).map(|_| attempt(&client, &receiver, ("ws_many", "hook")));
    join_all(many).await;
    let names = ["ws_a", "ws_b", "ws_c", "ws_d"];
    for _ in 0..2 {
        join_all(names.iter().map(|name| attempt(&client, &receiver, (*name, "hook")))).await;
    }
    assert_eq!(receiver.accepted(), 140 + 3, "one is that of the other workspace");
}

#[tokio::test]
async fn a_receiver_that_announced_the_end_of_a_connection_may_close_it_first() {
    const LAST: &str = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok";
    let (closed, mut closes) = tokio::sync::mpsc::unbounded_channel();
    let receiver = Receiver::on("127.0.0.1", move |mut stream| {
        let closed = closed.clone();
        async move {
            read_request(&mut stream).await;
            let _ = stream.write_all(LAST.as_bytes()).await;
            for within in [10, 2_000] {
                let end = timeout(Duration::from_millis(within), stream.read(&mut [0])).await;
                let _ = closed.send(end.is_ok());
            }
        }
    })
    .await;
    let client = client(&[], 2_000).0;
    assert_eq!(client.deliver(request(&receiver.url("http"))).await.outcome, DELIVERED);
    assert_eq!(closes.recv().await, Some(false), "the receiver has time to close it");
    assert_eq!(closes.recv().await, Some(true), "it is closed all the same");
}
