//! Reads do not wait for the writer, and their number at a time and their size are bounded.

use crate::domain::delivery::NextState;
use crate::domain::transcript::{Headers, RecordedAnswer, Transcript};
use crate::store::sqlite::read_pool::WORKERS_MAX;
use crate::store::sqlite::tests::growth::{arrive, ended};
use crate::store::sqlite::tests::*;

#[tokio::test]
async fn the_workers_reads_do_not_wait_for_the_writer() {
    let (_folder, store) = fresh();
    let webhook = webhook(&store).await;
    accept(&store, "evt_1").await.unwrap();
    let (release, blocked) = blocked(&store);
    let (blocked, ()) = tokio::join!(blocked, async {
        let queue = store.load(webhook).await.unwrap().expect("it is there");
        assert_eq!(queue.due, Some(NOW));
        let first = store.fetch(webhook, &[], 9).await.unwrap().deliveries;
        assert_eq!(store.fetch_one(first[0].id).await.unwrap(), Some(first[0].clone()));
        release.send(()).unwrap();
    });
    blocked.unwrap();
}

#[tokio::test]
async fn a_read_whose_caller_left_keeps_its_slot_until_it_ends() {
    let (_folder, store) = fresh();
    let look = |conn: &Connection| Ok(conn.query_row("SELECT 1", [], |row| row.get::<_, i64>(0))?);
    let (release, released) = std::sync::mpsc::channel::<()>();
    let (begin, begun) = std::sync::mpsc::channel();
    {
        let long = store.worker.read(move |_| {
            begin.send(()).unwrap();
            Ok(released.recv().is_ok())
        });
        let mut long = std::pin::pin!(long);
        tokio::select! {
            biased;
            _ = &mut long => panic!("it ended"),
            () = tokio::task::yield_now() => {}
        }
    }
    begun.recv_timeout(Duration::from_secs(10)).expect("it goes on");
    assert_eq!(store.worker.permits_free(), WORKERS_MAX - 1);
    assert_eq!(store.worker.read(look).await.unwrap(), 1, "others look meanwhile");
    release.send(()).unwrap();
    while store.worker.permits_free() < WORKERS_MAX {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn figures_are_available_while_every_reader_is_busy() {
    let (_folder, store) = fresh();
    webhook(&store).await;
    let _places = store.readers.acquire_all();
    let figures = tokio::time::timeout(Duration::from_secs(10), store.figures()).await;
    let figures = figures.expect("they do not wait").unwrap();
    assert_eq!((figures.webhooks, figures.bytes > 0), (1, true));
}

#[tokio::test]
async fn an_unreadable_delivery_does_not_stop_the_others_of_its_webhook() {
    let (_folder, store) = fresh();
    let webhook = webhook(&store).await;
    for id in ["evt_1", "evt_2", "evt_3"] {
        accept(&store, id).await.unwrap();
    }
    let damage = "UPDATE deliveries SET attempts = -1 WHERE id = 1";
    store.writer.run(move |session| Ok(session.conn.execute(damage, [])?)).await.unwrap();
    let fetched = store.fetch(webhook, &[], 1).await.unwrap();
    let ids: Vec<_> = fetched.deliveries.iter().map(|one| one.id.0).collect();
    assert_eq!((ids, fetched.more), (vec![2], true));
    assert_eq!(waiting(&store, webhook).await, 2);
}

#[tokio::test]
async fn a_list_shows_what_can_be_read() {
    let (_folder, store) = fresh();
    let first = webhook(&store).await;
    for id in ["evt_1", "evt_2", "evt_3"] {
        accept(&store, id).await.unwrap();
    }
    let second = webhook(&store).await;
    let damage = "UPDATE deliveries SET attempts = -1 WHERE id = 2; \
        UPDATE webhooks SET secret = x'00' WHERE id = 1";
    store.writer.run(move |session| Ok(session.conn.execute_batch(damage)?)).await.unwrap();
    let listed = store.deliveries(WS, &Filter::default(), Paging::first(9)).await.unwrap();
    let ids: Vec<i64> = listed.items.iter().map(|one| one.id.0).collect();
    assert_eq!(ids, [3, 1]);
    let listed = store.webhooks(WS, None, 9).await.unwrap();
    let ids: Vec<WebhookId> = listed.items.iter().map(|one| one.id).collect();
    assert_eq!((ids, first), (vec![second], WebhookId(1)));
}

#[tokio::test]
async fn a_delivery_shows_the_latest_responses_that_fit() {
    let (_folder, store) = fresh();
    webhook(&store).await;
    let ids = arrive(&store, ["evt_1".to_owned()].into_iter(), NOW).await;
    for number in 1..=20 {
        let mut over = ended(ids[0], NOW, NextState::Again { due: NOW, step: 1 });
        over.attempt.number = number;
        let answer = RecordedAnswer { body: vec![b'x'; 32 * 1024], ..Default::default() };
        let transcript = Transcript { request: Headers::default(), answer: Some(answer) };
        over.transcript = Some(Arc::new(transcript));
        store.record(vec![over], vec![], vec![], vec![]).await.unwrap();
    }
    let (_, attempts) = store.delivery(WS, ids[0]).await.unwrap().unwrap();
    let with: Vec<u32> = attempts
        .iter()
        .filter(|one| one.transcript.is_some())
        .map(|one| one.attempt.number)
        .collect();
    assert_eq!((attempts.len(), with), (20, (14..=20).collect()));
}
