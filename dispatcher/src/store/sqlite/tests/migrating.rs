//! Databases of earlier versions open completely, wherever a migration was interrupted.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::Mutex;

use rusqlite::Connection;
use rusqlite::trace::TraceEventCodes;
use sha2::{Digest, Sha256};

use crate::domain::delivery::DeliveryState;
use crate::domain::health::Health;
use crate::domain::id::{DeliveryId, JobId};
use crate::domain::webhook::options::WebhookOptions;
use crate::store::encryption::{Content, KEY_BYTES, NONCE_BYTES, Sealer};
use crate::store::sqlite::backup::backup;
use crate::store::sqlite::migrations::{APPLICATION_ID, MIGRATIONS, VERSION};
use crate::store::sqlite::pragmas::prepare;
use crate::store::sqlite::preview::would_open;
use crate::store::sqlite::restore::restore;
use crate::store::sqlite::tests::*;
use crate::store::types::JobScope;

const DAY: Duration = Duration::from_secs(86_400);

/// The first 16 hex digits of the SHA-256 of each released migration.
const FINGERPRINTS: [&str; MIGRATIONS.len()] = [
    "e953bedd7b59d388",
    "b6e256f5dcd44723",
    "494e9f90931c6632",
    "db7269cc4e575795",
    "9bdb85be76a0b9af",
    "95582b1046b25e68",
    "8bcc37429222f814",
    "6d6d8df6ab5b2fa5",
    "5331b9b4b1ab4640",
    "b35a9ed0feee2da6",
    "c369a1eae225c177",
    "eeb468b64be81926",
    "21173dd55173a80e",
    "d8b5f78746c94cd6",
    "e8e843215e58bfa7",
    "c46b69f3c093c1fd",
    "616c1f4083f3a742",
    "cb7b8e7a1262b192",
    "a711d25838f8e259",
    "8ada44e07ad8c216",
];

const TABLES: [&str; 16] = [
    "meta",
    "counters",
    "workspaces",
    "endpoints",
    "webhooks",
    "events",
    "deliveries",
    "attempts",
    "transcripts",
    "jobs",
    "job_webhooks",
    "mails",
    "event_types",
    "sessions",
    "activity",
    "stops",
];

fn paths(folder: &Folder) -> [PathBuf; 2] {
    ["data/dispatcher.db", "data/secrets.key"].map(|name| folder.path(name))
}

/// A database of that version, with rows in every table, and its key.
fn earlier(version: i64) -> Folder {
    let folder = Folder::new();
    let [path, key] = paths(&folder);
    fs::create_dir_all(folder.path("data")).unwrap();
    fs::write(&key, [3; KEY_BYTES]).unwrap();
    fs::set_permissions(&key, PermissionsExt::from_mode(0o600)).unwrap();
    let sealer = Sealer::new(&Secret::new([3; KEY_BYTES]));
    let sealed =
        |id, plain: &str| sealer.seal((WebhookId(id), Content::Secret), plain, [9; NONCE_BYTES]);
    let conn = Connection::open(&path).unwrap();
    let mut steps = MIGRATIONS.iter().take(usize::try_from(version).unwrap());
    // The rows are written with the names that tables and columns have up to version 3.
    for sql in steps.by_ref().take(3) {
        conn.execute_batch(sql).unwrap();
    }
    conn.pragma_update(None, "application_id", APPLICATION_ID).unwrap();
    conn.pragma_update(None, "user_version", version).unwrap();
    let now = i64::try_from(NOW.0).unwrap();
    let until = now + 86_400_000_000;
    let sql = "INSERT INTO meta VALUES ('public_id_key', ?1), ('key_check', ?2), \
        ('ended_in_order', x'00'), ('cut_off', ?3)";
    conn.execute(sql, ([7_u8; 32], sealed(0, "weir"), (NOW.0 - 1).to_le_bytes())).unwrap();
    conn.execute_batch(&format!(
        "UPDATE counters SET waiting = 1, webhooks = 2, deliveries_made = 4, webhooks_made = 3;
         INSERT INTO workspaces VALUES (1, '{WS}');
         INSERT INTO lanes (id, url) VALUES (1, 'https://hooks.example.com/in');
         INSERT INTO events (id, name, workspace, kind, digest, created_at, needed_by, body)
             SELECT value, 'evt_' || value, 1, 0, x'{digest}', {now}, value < 5, x'78'
             FROM json_each('[1, 2, 3, 4, 5]');
         INSERT INTO deliveries VALUES
             (1, 1, 1, 1, 0, 0, {now}, 0, 0, {now}, NULL, NULL, 0, NULL, NULL {more}),
             (2, 2, 1, 1, 0, 1, {now}, 1, 0, {now}, {now}, {now}, 0, {now}, 'status_200' {more}),
             (3, 3, 1, 1, 0, 2, {now}, 9, 8, {now}, {now}, {now}, 0, {now}, 'status_500' {more}),
             (4, 4, 1, 1, 0, 2, {now}, 9, 8, {now}, {now}, {now}, 0, {now}, 'status_500' {more});
         INSERT INTO attempts (id, delivery, lane, number, started_at, took, outcome)
             VALUES (1, 2, 1, 1, {now}, 5, 'status_200');
         INSERT INTO jobs (id, workspace, created_at, newest, looked_to, redelivered)
             VALUES (1, 1, {now}, 4, 3, 1);
         INSERT INTO mails (key, recipient, subject, text, state) VALUES ('told', '', '', '', 2);",
        digest = hex::encode([7; 32]),
        more = if version < 3 { "" } else { ", NULL" },
    ))
    .unwrap();
    let health = serde_json::to_string(&Health::default()).unwrap();
    let sql = "INSERT INTO webhooks (id, workspace, lane, events, created_at, secret, health, \
        gone_up_to) VALUES (?1, 1, 1, 1153, ?2, ?3, ?4, ?5)";
    conn.execute(sql, (1, now, sealed(1, "whsec_new"), &health, None::<i64>)).unwrap();
    conn.execute(sql, (2, now, sealed(2, "whsec_gone"), &health, Some(0))).unwrap();
    conn.execute(sql, (3, now, sealed(3, "whsec_only"), &health, None::<i64>)).unwrap();
    let old = sealed(1, "whsec_old");
    if version < 3 {
        let sql = "UPDATE webhooks SET secret_before = ?1, secret_before_until = ?2 WHERE id = 1";
        conn.execute(sql, (old, until)).unwrap();
    } else {
        let before = format!("[[{until}, \"{}\"]]", hex::encode(old));
        conn.execute("UPDATE webhooks SET secrets_before = ?1 WHERE id = 1", [before]).unwrap();
    }
    for sql in steps {
        conn.execute_batch(sql).unwrap();
    }
    folder
}

/// The schema by kind and name: its SQL without comments, spaces and quotes.
fn schema_of(conn: &Connection) -> Vec<[String; 4]> {
    let sql = "SELECT type, name, tbl_name, coalesce(sql, '') FROM sqlite_schema ORDER BY 1, 2";
    let bare = |sql: String| {
        let lines = sql.lines().map(|line| line.split("--").next().unwrap_or(line));
        lines.flat_map(str::chars).filter(|one| !one.is_whitespace() && *one != '"').collect()
    };
    let mut query = conn.prepare(sql).unwrap();
    let row =
        |row: &rusqlite::Row<'_>| Ok([row.get(0)?, row.get(1)?, row.get(2)?, bare(row.get(3)?)]);
    query.query_map([], row).unwrap().collect::<rusqlite::Result<_>>().unwrap()
}

fn fresh_schema() -> Vec<[String; 4]> {
    let mut conn = Connection::open_in_memory().unwrap();
    prepare(&mut conn).unwrap();
    schema_of(&conn)
}

/// Checks that a store has the rows that [`earlier`] wrote.
async fn check_whole(store: &SqliteStore) {
    let webhook = store.webhook(WS, WebhookId(1)).await.unwrap().expect("it is there");
    let signing: Vec<&str> = webhook.secrets.signing(NOW).collect();
    assert_eq!(signing, ["whsec_new", "whsec_old"]);
    assert_eq!(webhook.secrets.signing(NOW.plus(DAY)).count(), 1);
    assert!(webhook.secrets.active(NOW).all(|one| one.created_at.is_none()), "it is not known");
    let only = store.webhook(WS, WebhookId(3)).await.unwrap().expect("it is there");
    assert_eq!(only.secrets.current.created_at, Some(only.created_at));
    assert_eq!(webhook.events.to_string(), "user.created plan.changed signups_blocked");
    assert_eq!((webhook.options, webhook.disabled_at), (WebhookOptions::default(), None));
    assert_eq!(store.webhook(WS, WebhookId(2)).await.unwrap(), None, "it was deleted");
    let listed = store.deliveries(WS, &Filter::default(), Paging::first(9)).await.unwrap().items;
    let numbers: Vec<i64> = listed.iter().map(|one| one.id.0).collect();
    assert_eq!(numbers, [4, 3, 2, 1]);
    assert!(listed.iter().all(|one| one.kind.name() == "user.created"));
    let deliveries = store.fetch(WebhookId(1), &[], 9).await.unwrap().deliveries;
    assert_eq!(
        deliveries.iter().map(|one| (one.id.0, &*one.event_id)).collect::<Vec<_>>(),
        [(1, "evt_1")]
    );
    assert_eq!(store.figures().await.unwrap().waiting, 1);
    assert!(!store.clean_shutdown());
    assert_eq!(store.unclean_shutdowns().first(), Some(&UnixTime(NOW.0 - 1)));
    assert!(!accept(store, "evt_5").await.unwrap(), "it is known");
}

#[tokio::test]
async fn a_database_of_any_earlier_version_is_migrated_whole_and_works() {
    for version in 1..VERSION {
        let folder = earlier(version);
        let [path, key] = paths(&folder);
        would_open(&path, &key).unwrap();
        let store = open(&folder).unwrap();
        let counts = |session: &mut crate::store::sqlite::writer::session::WriteSession| {
            let count = |table| {
                let sql = format!("SELECT count(*) FROM {table}");
                session.conn.query_row(&sql, [], |row| row.get::<_, i64>(0))
            };
            Ok((TABLES.map(|table| count(table).unwrap()), schema_of(&session.conn)))
        };
        let (counts, schema) = store.writer.run(counts).await.unwrap();
        assert_eq!(
            counts[1..],
            [1, 1, 1, 3, 5, 4, 1, 0, 1, 0, 1, 12, 0, 0, 0],
            "version {version}"
        );
        assert_eq!(schema, fresh_schema(), "version {version}");
        check_whole(&store).await;
        // The job had examined the third delivery, and continues after it.
        while store.step_job(1, NOW).await.unwrap().more {}
        let states = async |id| store.delivery(WS, DeliveryId(id)).await.unwrap().unwrap().0.state;
        assert_eq!(states(3).await, DeliveryState::FailedPermanent);
        assert_eq!(states(4).await, DeliveryState::Waiting);
        // It counts what became of what this version redelivered.
        let job = store.job(WS, JobId(1)).await.unwrap().unwrap();
        assert_eq!((job.redelivered, job.sum(|one| one.waiting), job.counted), (2, 1, None));
        assert_eq!(job.scope, JobScope::Matching(Filter::default()));
        assert!(!job.cancelled && job.ended_at == Some(NOW));
        // Ended deliveries are kept until their retention ends, and then dropped.
        let sweep = async |days: u32| {
            while store.sweep(&kept(DAY * days), NOW, 100).await.unwrap() {}
            store.deliveries(WS, &Filter::default(), Paging::first(9)).await.unwrap().items.len()
        };
        assert_eq!(sweep(1).await, 4);
        store.close().await.unwrap();
        drop(store);
        let clock = Clock::manual(NOW.plus(DAY));
        let store = SqliteStore::open(&path, &key, clock.clone()).unwrap();
        clock.advance(2 * DAY);
        while store.sweep(&kept(DAY), clock.now().unix, 100).await.unwrap() {}
        let left = store.deliveries(WS, &Filter::default(), Paging::first(9)).await.unwrap().items;
        assert_eq!(left.iter().map(|one| one.id.0).collect::<Vec<_>>(), [4, 1]);
    }
}

/// A copy of the files, as a process that is killed now leaves them.
fn killed(folder: &Folder) -> Folder {
    let copy = Folder::new();
    fs::create_dir_all(copy.path("data")).unwrap();
    for name in ["data/dispatcher.db", "data/dispatcher.db-wal", "data/secrets.key"] {
        if folder.path(name).exists() {
            fs::copy(folder.path(name), copy.path(name)).unwrap();
        }
    }
    copy
}

#[tokio::test]
async fn a_process_that_is_killed_at_any_point_of_a_migration_leaves_a_database_that_opens() {
    let folder = Arc::new(earlier(1));
    let mut conn = Connection::open(folder.path("data/dispatcher.db")).unwrap();
    let left = Arc::new(Mutex::new(Vec::new()));
    let (copies, from) = (Arc::clone(&left), Arc::clone(&folder));
    let copy = move |_: rusqlite::trace::TraceEvent<'_>| copies.lock().unwrap().push(killed(&from));
    conn.trace_v2(TraceEventCodes::SQLITE_TRACE_STMT, Some(copy)).unwrap();
    prepare(&mut conn).unwrap();
    conn.trace_v2(TraceEventCodes::empty(), None::<fn(rusqlite::trace::TraceEvent<'_>)>).unwrap();
    left.lock().unwrap().push(killed(&folder));
    let left = std::mem::take(&mut *left.lock().unwrap());
    assert!(left.len() > 40, "{} points", left.len());
    let mut versions: Vec<i64> = Vec::new();
    for folder in left {
        let looked = killed(&folder);
        let found = Connection::open(looked.path("data/dispatcher.db")).unwrap();
        versions.push(found.pragma_query_value(None, "user_version", |row| row.get(0)).unwrap());
        let store = open(&folder).unwrap();
        check_whole(&store).await;
        let schema = |session: &mut crate::store::sqlite::writer::session::WriteSession| {
            Ok(schema_of(&session.conn))
        };
        assert_eq!(store.writer.run(schema).await.unwrap(), fresh_schema());
    }
    assert!(versions.is_sorted(), "{versions:?}");
    versions.dedup();
    assert_eq!(versions, (1..=VERSION).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_backup_of_an_earlier_version_is_copied_restored_and_migrated_by_the_next_start() {
    let folder = earlier(3);
    let ([path, key], copy) = (paths(&folder), folder.path("copy.db"));
    backup(&path, &copy).unwrap();
    let conn = Connection::open(&copy).unwrap();
    let version = conn.pragma_query_value(None, "user_version", |row| row.get::<_, i64>(0));
    assert_eq!(version.unwrap(), 3, "a copy is as what it is a copy of");
    drop(conn);
    restore(&copy, &path, &key, true).unwrap();
    would_open(&path, &key).unwrap();
    check_whole(&open(&folder).unwrap()).await;
}

#[test]
fn a_later_version_is_refused_with_its_number_by_a_start_and_every_command() {
    let (folder, store) = fresh();
    drop(store);
    let ([path, key], copy) = (paths(&folder), folder.path("copy.db"));
    backup(&path, &copy).unwrap();
    for path in [&path, &copy] {
        let conn = Connection::open(path).unwrap();
        conn.pragma_update(None, "user_version", 4_711).unwrap();
    }
    let messages = [
        refusal(&folder),
        would_open(&path, &key).unwrap_err().to_string(),
        backup(&path, &folder.path("other.db")).unwrap_err().to_string(),
        restore(&copy, &path, &key, true).unwrap_err().to_string(),
    ];
    let known =
        format!("of schema 4711, and this program knows {VERSION} at most: run the version");
    for message in messages {
        assert!(message.contains(&known), "{message}");
    }
}

#[test]
fn a_database_without_a_version_is_refused_and_not_written_to() {
    for version in [0, -1] {
        let (folder, store) = fresh();
        drop(store);
        let [path, key] = paths(&folder);
        let conn = Connection::open(&path).unwrap();
        conn.pragma_update(None, "user_version", version).unwrap();
        drop(conn);
        let before = fs::read(&path).unwrap();
        for message in [refusal(&folder), would_open(&path, &key).unwrap_err().to_string()] {
            assert!(message.contains("not a database of weir-dispatcher"), "{message}");
        }
        assert!(fs::read(&path).unwrap() == before, "it was written to");
    }
}

#[test]
fn a_migration_that_was_released_never_changes() {
    let found = MIGRATIONS.map(|sql| hex::encode(Sha256::digest(sql))[..16].to_owned());
    assert_eq!(found, FINGERPRINTS);
}
