//! The writer's batches: what shares a commit, and what a failure undoes.

use tokio::task::JoinSet;

use crate::store::sqlite::error::Fault;
use crate::store::sqlite::tests::*;
use crate::store::sqlite::writer::queue::Size;
use crate::store::sqlite::writer::session::WriteSession;

#[tokio::test]
async fn concurrent_writes_share_a_commit() {
    let (_folder, store) = fresh();
    let (store, before) = (Arc::new(store), 400);
    let room = store.writer.room_left();
    let webhook = webhook(&store).await;
    let commits = store.figures().await.unwrap().commits;
    // While the writer is blocked, all other calls queue behind it.
    let (release, released) = std::sync::mpsc::channel::<()>();
    let mut calls = JoinSet::new();
    let blocking = Arc::clone(&store);
    calls.spawn(async move {
        let wait = move |_: &mut WriteSession| {
            released.recv_timeout(Duration::from_secs(30)).expect("the test releases it");
            Ok(())
        };
        blocking.writer.run(wait).await.unwrap();
    });
    for number in 0..before {
        let store = Arc::clone(&store);
        calls
            .spawn(async move { assert!(accept(&store, &format!("evt_{number}")).await.unwrap()) });
    }
    while store.writer.room_left() > room - before {
        tokio::task::yield_now().await;
    }
    release.send(()).unwrap();
    while let Some(ended) = calls.join_next().await {
        ended.unwrap();
    }
    assert_eq!(waiting(&store, webhook).await, before);
    let commits = store.figures().await.unwrap().commits - commits;
    assert_eq!(commits, 1);
}

#[tokio::test]
async fn a_failed_task_does_not_fail_its_batch() {
    for size in [Size::Small, Size::Large] {
        fails_alone(size).await;
    }
}

async fn fails_alone(size: Size) {
    let (_folder, store) = fresh();
    let webhook = webhook(&store).await;
    let wrong = store.writer.run_sized(size, wrong);
    let (wrong, right, other) =
        tokio::join!(wrong, accept(&store, "evt_2"), accept(&store, "evt_1"));
    assert!(matches!(wrong, Err(StoreError::Damaged(_))), "{wrong:?}");
    assert!(right.unwrap());
    assert!(other.unwrap(), "what went wrong left nothing behind");
    assert_eq!(waiting(&store, webhook).await, 2);
    assert_eq!(store.figures().await.unwrap().waiting, 2);
}

/// Work that fails after it has changed something.
fn wrong(session: &mut WriteSession) -> Result<(), Fault> {
    session.counters.waiting += 5;
    let sql = "INSERT INTO events \
        (name, workspace, kind, digest, created_at, delivery_refs, body) \
        VALUES ('evt_1', 1, 0, x'', 0, 0, x'')";
    session.conn.execute(sql, [])?;
    session.conn.execute(sql, [])?;
    Ok(())
}

#[tokio::test]
async fn a_failed_task_undoes_nothing_of_an_earlier_one_of_its_batch() {
    let (_folder, store) = fresh();
    let webhook = webhook(&store).await;
    let (release, blocked) = blocked(&store);
    // The writer is blocked until the other calls are queued behind it, in this order.
    let (earlier, wrong) = (accept(&store, "evt_0"), store.writer.run(wrong));
    let (blocked, earlier, wrong, later, ()) =
        tokio::join!(blocked, earlier, wrong, accept(&store, "evt_1"), async {
            release.send(()).unwrap();
        });
    blocked.unwrap();
    assert!(matches!(wrong, Err(StoreError::Damaged(_))), "{wrong:?}");
    assert!(earlier.unwrap() && later.unwrap());
    assert_eq!(waiting(&store, webhook).await, 2);
    assert_eq!(store.figures().await.unwrap().waiting, 2);
}

#[tokio::test]
async fn one_that_panics_does_no_harm_to_its_batch_nor_to_the_writer() {
    let (_folder, store) = fresh();
    let webhook = webhook(&store).await;
    let wrong = store.writer.run::<(), _>(|session| {
        session.counters.waiting += 5;
        panic!("on purpose")
    });
    let (wrong, right) = tokio::join!(wrong, accept(&store, "evt_1"));
    assert!(matches!(wrong, Err(StoreError::Damaged(_))), "{wrong:?}");
    assert!(right.unwrap() && accept(&store, "evt_2").await.unwrap());
    assert_eq!(waiting(&store, webhook).await, 2);
    assert_eq!(store.figures().await.unwrap().waiting, 2);
}

#[tokio::test]
async fn where_the_disk_fails_the_whole_batch_has_done_nothing() {
    let (_folder, store) = fresh();
    let webhook = webhook(&store).await;
    let (release, blocked) = blocked(&store);
    let fails = store.writer.run::<(), _>(|session| {
        session.counters.waiting += 5;
        let full = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_FULL);
        Err(rusqlite::Error::SqliteFailure(full, None).into())
    });
    // The writer is blocked until the other calls are queued behind it, in this order.
    let (blocked, accepted, failed, ()) =
        tokio::join!(blocked, accept(&store, "evt_1"), fails, async {
            release.send(()).unwrap();
        });
    for refused in [blocked, accepted.map(|_| ()), failed] {
        assert!(matches!(refused, Err(StoreError::Unavailable(_))), "{refused:?}");
    }
    assert_eq!(waiting(&store, webhook).await, 0);
    assert!(accept(&store, "evt_2").await.unwrap());
    let figures = store.figures().await.unwrap();
    assert_eq!((figures.waiting, waiting(&store, webhook).await), (1, 1));
}

#[tokio::test]
async fn an_event_waits_for_one_large_call_of_others_at_most() {
    let (_folder, store) = fresh();
    webhook(&store).await;
    let (release, blocked) = blocked(&store);
    let call = async |name: &'static str, events: usize| {
        let events = (0..events).map(|number| event(&format!("evt_{name}_{number}"))).collect();
        store.accept(events, NOW).await.unwrap();
    };
    let calls = async { tokio::join!(call("A", 65), call("B", 65), call("small", 1)) };
    let (blocked, ..) = tokio::join!(blocked, calls, async { release.send(()).unwrap() });
    blocked.unwrap();
    let all = store.deliveries(WS, &Filter::default(), Paging::first(500)).await.unwrap().items;
    let newest_first = all.iter().map(|delivery| delivery.event_id.to_string());
    let later = newest_first.take_while(|id| id != "evt_small_0").count();
    assert!(later >= 65, "{later} of 130 came after it");
}

#[tokio::test]
async fn events_are_refused_while_the_write_queue_is_full() {
    let (_folder, store) = fresh();
    webhook(&store).await;
    let all = store.writer.use_all_room();
    let refused = accept(&store, "evt_1").await;
    assert!(matches!(refused, Err(StoreError::Busy)), "{refused:?}");
    store.writer.restore_room(all);
    assert!(accept(&store, "evt_1").await.unwrap());
}
