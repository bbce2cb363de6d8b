//! Restoring the database from copies.

use std::collections::BTreeSet;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};

use crate::store::sqlite::backup::backup;
use crate::store::sqlite::preview::would_open;
use crate::store::sqlite::restore::{RestoreError, STEPS, restore, restore_by_steps};
use crate::store::sqlite::tests::*;

const OTHER_WS: &str = "ws_other";

/// Creates objects in a workspace, and returns their identifiers.
async fn made(store: &SqliteStore, ws: &str, round: u32) -> BTreeSet<String> {
    let ids = store.ids();
    let mut all = BTreeSet::new();
    for nth in 0..3 {
        let new = NewWebhook {
            workspace: ws.into(),
            url: format!("https://{round}.example.com/{nth}").into(),
            events: EventSet::of([EventType::new("user.created"), EventType::new("plan.changed")]),
            options: Default::default(),
            secret: Secret::new("whsec_secret".to_owned()),
            webhooks_max: 100,
            signing_key: None,
        };
        let Created::Webhook(webhook) = store.create_webhook(new, NOW).await.unwrap() else {
            panic!("there was room");
        };
        all.insert(ids.webhook(webhook.id));
    }
    for nth in 0..30 {
        let event = NewEvent { workspace: ws.into(), ..event(&format!("evt_{round}_{nth}")) };
        let Accepted::Stored { arrivals, .. } = store.accept(vec![event], NOW).await.unwrap()
        else {
            panic!("they are in conflict");
        };
        all.extend(arrivals.iter().map(|one| ids.delivery(one.delivery.id)));
    }
    for _ in 0..4 {
        let JobCreated::Job(job) =
            store.create_job(ws, Filter::default().into(), NOW).await.unwrap()
        else {
            panic!("there are few");
        };
        all.insert(ids.job(job.id));
    }
    while store.step_job(500, NOW).await.unwrap().more {}
    all
}

/// Replaces the database by a copy, as an operator might.
fn put_back(folder: &Folder, copy: &str) {
    for end in ["-wal", "-shm"] {
        let _ = fs::remove_file(folder.path(&format!("data/dispatcher.db{end}")));
    }
    fs::copy(folder.path(copy), folder.path("data/dispatcher.db")).unwrap();
}

#[tokio::test]
async fn a_restored_backup_assigns_no_identifier_twice() {
    let (folder, store) = fresh();
    let mut seen = made(&store, WS, 0).await;
    backup(&folder.path("data/dispatcher.db"), &folder.path("copy.db")).unwrap();
    let mut check = |more: BTreeSet<String>| {
        let again: Vec<_> = more.intersection(&seen).collect();
        assert!(again.is_empty(), "given out twice: {again:?}");
        seen.extend(more);
    };
    check(made(&store, WS, 1).await);
    drop(store);
    // The original continues after a restart; the copy is restored more than once.
    check(made(&open(&folder).unwrap(), WS, 2).await);
    for round in 3..6 {
        put_back(&folder, "copy.db");
        check(made(&open(&folder).unwrap(), OTHER_WS, round).await);
        check(made(&open(&folder).unwrap(), WS, 10 * round).await);
    }
}

#[tokio::test]
async fn a_wal_of_another_database_is_refused() {
    let (folder, store) = fresh();
    accept(&store, "evt_1").await.unwrap();
    let [database, log, lock] =
        ["", "-wal", ".lock"].map(|end| folder.path(&format!("data/dispatcher.db{end}")));
    backup(&database, &folder.path("copy.db")).unwrap();
    accept(&store, "evt_2").await.unwrap();
    // The process is killed, and leaves its WAL.
    let left = [&database, &log, &lock].map(|name| fs::read(name).unwrap());
    assert!(!left[1].is_empty());
    drop(store);
    let put = || {
        for (name, bytes) in [&database, &log, &lock].into_iter().zip(&left) {
            fs::write(name, bytes).unwrap();
        }
    };
    // The WAL is accepted with its own database.
    put();
    let store = open(&folder).unwrap();
    assert!(!accept(&store, "evt_2").await.unwrap(), "what was answered as stored is there");
    drop(store);
    // It is refused with a copy that was made while the process ran.
    put();
    fs::copy(folder.path("copy.db"), &database).unwrap();
    let message = refusal(&folder);
    assert!(message.contains("is not of the database") && message.contains("Move it"), "{message}");
    assert!(fs::read(&log).unwrap() == left[1], "it was left as it is");
    assert!(fs::read(&database).unwrap() == fs::read(folder.path("copy.db")).unwrap());
    // It is also refused without a database.
    fs::remove_file(&database).unwrap();
    let message = refusal(&folder);
    assert!(message.contains("there is no database") && message.contains("-wal"), "{message}");
    assert!(!database.exists() && log.exists());
    fs::copy(folder.path("copy.db"), &database).unwrap();
    fs::remove_file(&log).unwrap();
    let store = open(&folder).unwrap();
    assert!(!accept(&store, "evt_1").await.unwrap());
    assert!(accept(&store, "evt_2").await.unwrap(), "it came after the copy");
}

/// If root runs the tests, the database belongs to another user; otherwise to us.
#[tokio::test]
async fn a_backup_that_is_restored_belongs_to_the_user_who_runs_the_program() {
    let owner = |path: &Path| {
        let file = fs::metadata(path).unwrap();
        (file.uid(), file.gid())
    };
    for there in [true, false] {
        let (folder, store) = fresh();
        let [path, key, copy, lock] =
            ["data/dispatcher.db", "data/secrets.key", "copy.db", "data/dispatcher.db.lock"]
                .map(|name| folder.path(name));
        backup(&path, &copy).unwrap();
        store.close().await.unwrap();
        drop(store);
        fs::remove_file(&lock).unwrap();
        for file in [&path, &folder.path("data")] {
            let _ = chown(file, Some(4_711), Some(4_712));
        }
        let expected = owner(&path);
        if !there {
            fs::remove_file(&path).unwrap();
        }
        restore(&copy, &path, &key, there).unwrap();
        assert_eq!([owner(&path), owner(&lock)], [expected; 2], "{there}");
    }
}

#[tokio::test]
async fn a_backup_is_restored_where_nothing_is_lost_by_it() {
    let (folder, store) = fresh();
    let [path, key, copy] =
        ["data/dispatcher.db", "data/secrets.key", "copy.db"].map(|name| folder.path(name));
    accept(&store, "evt_1").await.unwrap();
    backup(&path, &copy).unwrap();
    accept(&store, "evt_2").await.unwrap();
    let again = |replace| restore(&copy, &path, &key, replace);
    let message = again(true).unwrap_err().to_string();
    assert!(message.contains("in use by another process"), "{message}");
    drop(store);
    // A WAL, as after a kill.
    let log = folder.path("data/dispatcher.db-wal");
    fs::write(&log, "left").unwrap();
    let message = again(false).unwrap_err().to_string();
    assert!(message.contains("there is a database") && message.contains("--replace"), "{message}");
    assert!(matches!(restore(&path, &path, &key, true), Err(RestoreError::Itself { .. })));
    let aside = again(true).unwrap().expect("there was one");
    assert_eq!(aside, folder.path("data/dispatcher.db.before-restore").canonicalize().unwrap());
    assert_eq!(fs::read(format!("{}-wal", aside.display())).unwrap(), b"left");
    assert!(!log.exists());
    let store = open(&folder).unwrap();
    assert!(!accept(&store, "evt_1").await.unwrap());
    assert!(accept(&store, "evt_2").await.unwrap(), "it came after the backup");
    store.close().await.unwrap();
    drop(store);
    assert!(matches!(again(true), Err(RestoreError::AsideExists { .. })));
    fs::remove_file(format!("{}-wal", aside.display())).unwrap();
    let kept = SqliteStore::open(&aside, &key, Clock::manual(NOW)).unwrap();
    assert!(!accept(&kept, "evt_2").await.unwrap(), "what was there is there");
    // Without an existing database, `replace` is not required.
    let other = Folder::new();
    fs::create_dir_all(other.path("new")).unwrap();
    fs::copy(&key, other.path("new/secrets.key")).unwrap();
    let there = other.path("new/deep/d.db");
    assert_eq!(restore(&copy, &there, &other.path("new/secrets.key"), false).unwrap(), None);
    assert_eq!(there.metadata().unwrap().permissions().mode() & 0o077, 0);
}

/// A folder with `copy.db`, which has the first event, and a database of a killed process, which
/// has the second event only in its WAL.
async fn killed() -> Folder {
    let (folder, store) = fresh();
    accept(&store, "evt_1").await.unwrap();
    backup(&folder.path("data/dispatcher.db"), &folder.path("copy.db")).unwrap();
    accept(&store, "evt_2").await.unwrap();
    let names = ["", "-wal", ".lock"].map(|end| folder.path(&format!("data/dispatcher.db{end}")));
    let left = names.each_ref().map(|name| fs::read(name).unwrap());
    assert!(!left[1].is_empty());
    drop(store);
    for (name, bytes) in names.iter().zip(&left) {
        fs::write(name, bytes).unwrap();
    }
    folder
}

/// The files beside the key, without `-shm`.
fn names(folder: &Folder) -> BTreeSet<String> {
    let all = fs::read_dir(folder.path("data")).unwrap();
    let all = all.map(|one| one.unwrap().file_name().into_string().unwrap());
    all.filter(|name| !name.ends_with("-shm")).collect()
}

#[tokio::test]
async fn a_restore_that_fails_at_a_step_leaves_the_earlier_database() {
    for fails in 0..STEPS {
        let folder = killed().await;
        let [path, key, copy] =
            ["data/dispatcher.db", "data/secrets.key", "copy.db"].map(|name| folder.path(name));
        let before = names(&folder);
        let fail = |nth| if nth == fails { Err(io::Error::other("a disk")) } else { Ok(()) };
        let message = restore_by_steps(&copy, &path, &key, true, &fail).unwrap_err().to_string();
        assert!(
            message.contains("cannot move") && message.contains("a disk"),
            "{fails}: {message}"
        );
        assert_eq!(names(&folder), before, "{fails}");
        let store = open(&folder).unwrap();
        assert!(!accept(&store, "evt_2").await.unwrap(), "{fails}: its log is there");
    }
}

#[tokio::test]
async fn a_start_reports_an_interrupted_restore_and_the_next_restore_completes_it() {
    for cut in 0..STEPS {
        let folder = killed().await;
        let [path, key, copy] =
            ["data/dispatcher.db", "data/secrets.key", "copy.db"].map(|name| folder.path(name));
        let run = || {
            let stop = |nth| if nth == cut { panic!("it is killed") } else { Ok(()) };
            restore_by_steps(&copy, &path, &key, true, &stop)
        };
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).unwrap_err();
        if cut > 0 {
            let message = refusal(&folder);
            assert!(
                message.contains("was cut off") && message.contains("--replace` again"),
                "{message}"
            );
            assert_eq!(would_open(&path, &key).unwrap_err().to_string(), message);
        }
        let aside = restore(&copy, &path, &key, true).unwrap().expect("there was one");
        let expected = [
            "dispatcher.db",
            "dispatcher.db.before-restore",
            "dispatcher.db.before-restore-wal",
            "dispatcher.db.lock",
            "secrets.key",
        ];
        assert_eq!(names(&folder), expected.map(str::to_owned).into(), "{cut}");
        let store = open(&folder).unwrap();
        assert!(accept(&store, "evt_2").await.unwrap(), "{cut}: it came after the backup");
        let kept = SqliteStore::open(&aside, &key, Clock::manual(NOW)).unwrap();
        assert!(!accept(&kept, "evt_2").await.unwrap(), "{cut}: what was there is there");
    }
}

#[tokio::test]
async fn no_database_is_begun_beside_what_a_restore_left() {
    for left in [".before-restore", ".before-restore-wal", ".restore-draft"] {
        for empty in [false, true] {
            let (folder, store) = fresh();
            store.close().await.unwrap();
            drop(store);
            let [path, key] = ["data/dispatcher.db", "data/secrets.key"].map(|at| folder.path(at));
            fs::rename(&path, folder.path(&format!("data/dispatcher.db{left}"))).unwrap();
            if empty {
                fs::write(&path, "").unwrap();
            }
            let message = refusal(&folder);
            let expected = format!("dispatcher.db{left}: run `weir-dispatcher restore` again");
            assert!(
                message.contains(&expected) && message.contains("begin with nothing"),
                "{message}"
            );
            assert_eq!(would_open(&path, &key).unwrap_err().to_string(), message);
            assert_eq!(path.exists(), empty, "none is made");
        }
    }
}

#[tokio::test]
async fn a_foreign_file_or_a_backup_with_another_key_is_not_restored() {
    let (folder, store) = fresh();
    let [path, key, copy] =
        ["data/dispatcher.db", "data/secrets.key", "copy.db"].map(|name| folder.path(name));
    backup(&path, &copy).unwrap();
    drop(store);
    let before = fs::read(&path).unwrap();
    let refused = |from: &Path, key: &Path| {
        let message = restore(from, &path, key, true).unwrap_err().to_string();
        assert!(fs::read(&path).unwrap() == before, "it was changed");
        message
    };
    let message = refused(&folder.path("nowhere.db"), &key);
    assert!(message.contains("there is no database"), "{message}");
    fs::write(folder.path("notes.db"), "these are my notes, and no database at all").unwrap();
    let message = refused(&folder.path("notes.db"), &key);
    assert!(message.contains("not a database of weir-dispatcher"), "{message}");
    fs::write(folder.path("empty.db"), "").unwrap();
    let message = refused(&folder.path("empty.db"), &folder.path("no.key"));
    assert!(message.contains("is empty: it is no database and no backup"), "{message}");
    let (others, _other) = fresh();
    let message = refused(&copy, &others.path("data/secrets.key"));
    assert!(message.contains("sealed with another key"), "{message}");
    let message = refused(&copy, &folder.path("no.key"));
    assert!(message.contains("is gone") && !folder.path("no.key").exists(), "{message}");
}
