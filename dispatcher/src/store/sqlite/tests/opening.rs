//! Opening the files: one process at a time, only ours, only with the right key; and copies.

use std::os::unix::fs::{PermissionsExt, symlink};

use rusqlite::Connection;

use crate::domain::webhook::client_certificate::{CertificateId, ClientCertificate};
use crate::domain::webhook::options::{CertificateChange, OptionsChange};
use crate::domain::webhook::signing_key::{SEED_BYTES, SigningKey};
use crate::store::sqlite::backup::{BackupError, backup};
use crate::store::sqlite::tests::*;
use crate::store::types::{KeyChange, WebhookChange};

#[tokio::test]
async fn what_was_stored_is_there_when_the_file_is_opened_again() {
    let (folder, store) = fresh();
    assert!(store.clean_shutdown(), "the first has no predecessor");
    let webhook = webhook(&store).await;
    accept(&store, "evt_1").await.unwrap();
    let made = store.webhook(WS, webhook).await.unwrap().unwrap();
    let shown = store.ids().webhook(webhook);
    let deliveries = store.fetch(webhook, &[], 10).await.unwrap().deliveries;
    store.close().await.unwrap();
    drop(store);
    let store = open(&folder).unwrap();
    assert!(store.clean_shutdown());
    assert_eq!(store.webhook(WS, webhook).await.unwrap(), Some(made));
    assert_eq!(store.ids().webhook(webhook), shown);
    assert_eq!(store.fetch(webhook, &[], 10).await.unwrap().deliveries, deliveries);
    let figures = store.figures().await.unwrap();
    assert_eq!((figures.waiting, figures.webhooks), (1, 1));
    assert!(!accept(&store, "evt_1").await.unwrap());
    assert!(accept(&store, "evt_2").await.unwrap());
    let later = store.fetch(webhook, &[], 10).await.unwrap().deliveries;
    assert!(later[1].id > deliveries[0].id);
}

#[tokio::test]
async fn a_process_that_did_not_close_did_not_end_in_order() {
    let (folder, store) = fresh();
    let webhook = webhook(&store).await;
    accept(&store, "evt_1").await.unwrap();
    drop(store);
    let store = open(&folder).unwrap();
    assert!(!store.clean_shutdown());
    assert_eq!(store.unclean_shutdowns(), [NOW]);
    assert_eq!(waiting(&store, webhook).await, 1);
    drop(store);
    let store = open(&folder).unwrap();
    assert_eq!(store.unclean_shutdowns(), [NOW; 2], "one does not make up for another");
    store.close().await.unwrap();
    drop(store);
    let store = open(&folder).unwrap();
    assert!(store.clean_shutdown());
    assert_eq!(store.unclean_shutdowns().len(), 2, "it may have been a moment ago");
}

#[tokio::test]
async fn no_other_user_can_read_the_database_or_a_copy_of_it() {
    let (folder, store) = fresh();
    accept(&store, "evt_1").await.unwrap();
    let copy = folder.path("copy.db");
    backup(&folder.path("data/dispatcher.db"), &copy).unwrap();
    for entry in fs::read_dir(folder.path("data")).unwrap() {
        let entry = entry.unwrap();
        if entry.file_name().to_string_lossy().starts_with("dispatcher.db") {
            let mode = entry.metadata().unwrap().permissions().mode();
            assert!(entry.path().extension() == Some("lock".as_ref()) || mode & 0o077 == 0);
        }
    }
    assert_eq!(copy.metadata().unwrap().permissions().mode() & 0o077, 0);
}

#[tokio::test]
async fn nothing_is_answered_as_stored_while_a_file_is_not_at_its_name() {
    let (folder, store) = fresh();
    let webhook = webhook(&store).await;
    let mut stored = 0;
    let mut accepted = async |at_its_name: bool| {
        let answer = accept(&store, &format!("evt_{stored}")).await;
        assert_eq!(answer.is_ok(), at_its_name, "{answer:?}");
        stored += usize::from(at_its_name);
        answer.err().map(|error| error.to_string())
    };
    accepted(true).await;
    for name in ["dispatcher.db", "dispatcher.db-wal", "dispatcher.db-shm"] {
        let name = folder.path(&format!("data/{name}"));
        fs::rename(&name, folder.path("aside")).unwrap();
        let message = accepted(false).await.unwrap();
        assert!(message.contains(&format!("{} was removed", name.display())), "{message}");
        // Another file at the same path does not count.
        fs::write(&name, "").unwrap();
        accepted(false).await;
        fs::rename(folder.path("aside"), &name).unwrap();
        accepted(true).await;
    }
    fs::rename(folder.path("data"), folder.path("elsewhere")).unwrap();
    accepted(false).await;
    fs::rename(folder.path("elsewhere"), folder.path("data")).unwrap();
    accepted(true).await;
    assert_eq!(waiting(&store, webhook).await, stored);
}

#[tokio::test]
async fn a_start_that_is_refused_leaves_the_database_and_its_log_as_they_are() {
    let (folder, store) = fresh();
    accept(&store, "evt_1").await.unwrap();
    store.close().await.unwrap();
    drop(store);
    let (others, other) = fresh();
    webhook(&other).await;
    let [database, log, shared] =
        ["", "-wal", "-shm"].map(|end| folder.path(&format!("data/dispatcher.db{end}")));
    let before = fs::read(&database).unwrap();
    // An operator restored a database, but left the WAL of another one beside it.
    fs::copy(others.path("data/dispatcher.db-wal"), &log).unwrap();
    let message = refusal(&folder);
    assert!(message.contains("is not of the database"), "{message}");
    assert!(fs::read(&database).unwrap() == before, "the database was changed");
    assert!(fs::metadata(&log).unwrap().len() > 0);
    fs::remove_file(&log).unwrap();
    assert!(!shared.exists(), "nothing has opened it");
    let store = open(&folder).unwrap();
    assert!(!accept(&store, "evt_1").await.unwrap(), "what was there is there");
    store.close().await.unwrap();
    drop(store);
    assert!(fs::metadata(&log).is_err(), "a good log is checkpointed");
}

#[tokio::test]
async fn a_file_that_is_open_is_not_opened_again() {
    let (folder, store) = fresh();
    let message = refusal(&folder);
    assert!(message.contains("in use by another process"), "{message}");
    accept(&store, "evt_1").await.unwrap();
    drop(store);
    assert!(open(&folder).is_ok());
}

#[tokio::test]
async fn a_file_that_is_open_is_not_opened_again_by_another_name() {
    let folder = Folder::new();
    let (key, link) = (folder.path("data/secrets.key"), folder.path("link.db"));
    let open_at = |name: &str| SqliteStore::open(&folder.path(name), &key, Clock::manual(NOW));
    let message = |name: &str| open_at(name).unwrap_err().to_string();
    fs::create_dir_all(folder.path("data")).unwrap();
    symlink(folder.path("data"), folder.path("elsewhere")).unwrap();
    // The first process creates the file, through whichever name.
    symlink(folder.path("data/dispatcher.db"), &link).unwrap();
    for first in ["link.db", "data/dispatcher.db", "elsewhere/dispatcher.db"] {
        let store = open_at(first).unwrap();
        for second in ["link.db", "data/dispatcher.db", "elsewhere/dispatcher.db"] {
            assert!(message(second).contains("in use by another process"), "{first} {second}");
        }
        webhook(&store).await;
    }
    assert_eq!(open(&folder).unwrap().webhooks(WS, None, 9).await.unwrap().items.len(), 3);
    backup(&link, &folder.path("copy.db")).unwrap();
    let copy = SqliteStore::open(&folder.path("copy.db"), &key, Clock::manual(NOW)).unwrap();
    assert_eq!(copy.webhooks(WS, None, 9).await.unwrap().items.len(), 3);
}

#[tokio::test]
async fn a_file_of_two_names_is_refused() {
    let (folder, store) = fresh();
    let (path, second) = (folder.path("data/dispatcher.db"), folder.path("data/second.db"));
    fs::hard_link(&path, &second).unwrap();
    let key = folder.path("data/secrets.key");
    let message = SqliteStore::open(&second, &key, Clock::manual(NOW)).unwrap_err().to_string();
    assert!(message.contains("has 2 names (hard links)"), "{message}");
    let message = backup(&second, &folder.path("copy.db")).unwrap_err().to_string();
    assert!(message.contains("has 2 names (hard links)"), "{message}");
    drop(store);
    assert!(refusal(&folder).contains("has 2 names (hard links)"));
    fs::remove_file(&second).unwrap();
    assert!(open(&folder).is_ok());
}

#[test]
fn a_database_that_is_no_regular_file_is_not_waited_for() {
    let folder = Folder::new();
    fs::create_dir_all(folder.path("data")).unwrap();
    pipe(&folder.path("data/dispatcher.db"));
    let message = at_once(move || refusal(&folder));
    assert!(message.contains("not a regular file"), "{message}");
}

#[tokio::test]
async fn a_file_of_another_program_is_left_as_it_is() {
    let folder = Folder::new();
    let path = folder.path("data/dispatcher.db");
    fs::create_dir_all(folder.path("data")).unwrap();
    fs::write(&path, "these are my notes, and no database at all").unwrap();
    assert!(refusal(&folder).contains("not a database of weir-dispatcher"));
    assert!(fs::read_to_string(&path).unwrap().starts_with("these are my notes"));
    fs::remove_file(&path).unwrap();
    let theirs = Connection::open(&path).unwrap();
    theirs.execute_batch("CREATE TABLE songs (title TEXT)").unwrap();
    drop(theirs);
    let before = fs::read(&path).unwrap();
    assert!(refusal(&folder).contains("not a database of weir-dispatcher"));
    assert_eq!(fs::read(&path).unwrap(), before);
    assert!(!folder.path("data/secrets.key").exists());
}

#[tokio::test]
async fn a_file_with_secrets_opens_with_its_own_key_alone() {
    let (folder, store) = fresh();
    let webhook = webhook(&store).await;
    drop(store);
    let (key, aside) = (folder.path("data/secrets.key"), folder.path("aside.key"));
    fs::rename(&key, &aside).unwrap();
    let message = refusal(&folder);
    assert!(message.contains("is gone") && message.contains("put it back"), "{message}");
    assert!(!key.exists(), "no second key is made");
    let other = Folder::new();
    open(&other).unwrap();
    fs::copy(other.path("data/secrets.key"), &key).unwrap();
    assert!(refusal(&folder).contains("sealed with another key"));
    fs::rename(&aside, &key).unwrap();
    let secrets = open(&folder).unwrap().webhook(WS, webhook).await.unwrap().unwrap().secrets;
    assert_eq!(secrets.current.secret.expose(), "whsec_secret");
}

#[tokio::test]
async fn no_secret_is_on_disk_in_the_open() {
    let (folder, store) = fresh();
    let id = webhook(&store).await;
    let key = SigningKey::of_seed([7; SEED_BYTES]);
    let stored = key.stored();
    let pem = ("-- chain --".to_owned(), "-- hidden key --".to_owned());
    let certificate = ClientCertificate::new(pem, "CN=a".to_owned(), NOW, CertificateId([9; 32]));
    let client_certificate = CertificateChange::Set(certificate);
    let options = OptionsChange { client_certificate, ..Default::default() };
    let signing_key = KeyChange::Have(key);
    let change = WebhookChange { signing_key, options, ..Default::default() };
    store.change_webhook(WS, id, change, NOW).await.unwrap();
    store.close().await.unwrap();
    let bytes = fs::read(folder.path("data/dispatcher.db")).unwrap();
    assert!(bytes.windows(12).any(|part| part == b"hooks.exampl"), "there is a webhook");
    assert!(!bytes.windows(12).any(|part| part == b"whsec_secret"));
    let seed = stored.expose().as_bytes();
    for hidden in [&[7; SEED_BYTES], seed, b"hidden key"] {
        assert!(!bytes.windows(hidden.len()).any(|part| part == hidden));
    }
}

#[tokio::test]
async fn a_copy_is_made_while_the_store_is_open_and_opens_itself() {
    let (folder, store) = fresh();
    let webhook = webhook(&store).await;
    accept(&store, "evt_1").await.unwrap();
    let (from, to) = (folder.path("data/dispatcher.db"), folder.path("copy.db"));
    backup(&from, &to).unwrap();
    assert!(accept(&store, "evt_2").await.unwrap());
    assert!(matches!(backup(&from, &to), Err(BackupError::Exists { .. })));
    let absent = backup(&folder.path("nowhere.db"), &folder.path("other.db"));
    assert!(absent.unwrap_err().to_string().contains("there is no database"));
    assert!(!folder.path("other.db").exists());
    let message = backup(&from, &folder.path("gone/copy.db")).unwrap_err().to_string();
    assert_eq!(message, format!("there is no folder {}", folder.path("gone").display()));
    let draft = folder.path(&format!("other.db.{}.draft", std::process::id()));
    fs::create_dir(&draft).unwrap();
    let message = backup(&from, &folder.path("other.db")).unwrap_err().to_string();
    assert!(message.contains(&format!("; and {} cannot be removed", draft.display())), "{message}");
    let copy =
        SqliteStore::open(&to, &folder.path("data/secrets.key"), Clock::manual(NOW)).unwrap();
    assert!(!copy.clean_shutdown());
    assert_eq!(waiting(&copy, webhook).await, 1);
    assert_eq!(copy.ids().webhook(webhook), store.ids().webhook(webhook));
}

#[tokio::test]
async fn a_file_is_set_up_so_that_what_was_answered_outlives_a_loss_of_power() {
    let (_folder, store) = fresh();
    let look = |session: &mut crate::store::sqlite::writer::session::WriteSession| {
        let pragma = |name| session.conn.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
        let mode = |row: &rusqlite::Row<'_>| row.get::<_, String>(0);
        let mode = session.conn.pragma_query_value(None, "journal_mode", mode)?;
        Ok((mode, pragma("synchronous")?, pragma("page_size")?))
    };
    // 2 is FULL: the WAL is synced before a commit returns.
    assert_eq!(store.writer.run(look).await.unwrap(), ("wal".to_owned(), 2, 4_096));
}
