//! A key is replaced, or lost, and nothing else is.

use std::collections::BTreeMap;
use std::io;

use http::{HeaderName, HeaderValue};

use crate::domain::webhook::client_certificate::{CertificateId, ClientCertificate};
use crate::domain::webhook::options::{CertificateChange, OptionsChange};
use crate::domain::webhook::signing_key::SigningKey;
use crate::domain::webhook::{DisabledReason, Probe, Webhook, WebhookState};
use crate::store::mail::{NewMail, QueuedMail};
use crate::store::sqlite::backup::backup;
use crate::store::sqlite::preview::would_open;
use crate::store::sqlite::rekey::RekeyError;
use crate::store::sqlite::rekey::recovery::{LostSecret, RecoveryReport, recover};
use crate::store::sqlite::rekey::rotation::{RotationReport, rotate, rotate_by_steps};
use crate::store::sqlite::restore::restore;
use crate::store::sqlite::tests::*;
use crate::store::types::{Changed, KeyChange, Rotated, Rotation, WebhookChange};

/// The steps of a rotation.
const STEPS: usize = 6;

const HOUR: Duration = Duration::from_secs(3_600);

fn paths(folder: &Folder) -> [PathBuf; 2] {
    ["data/dispatcher.db", "data/secrets.key"].map(|name| folder.path(name))
}

/// Every file of a database, as a process that is killed now leaves them.
fn killed(folder: &Folder) -> Folder {
    let copy = Folder::new();
    fs::create_dir_all(copy.path("data")).unwrap();
    for file in fs::read_dir(folder.path("data")).unwrap() {
        let file = file.unwrap();
        fs::copy(file.path(), copy.path("data").join(file.file_name())).unwrap();
    }
    copy
}

fn bytes(folder: &Folder) -> BTreeMap<PathBuf, Vec<u8>> {
    let files = fs::read_dir(folder.path("data")).unwrap().map(|file| file.unwrap().path());
    // The index of the WAL is the operating system's to keep.
    let files = files.filter(|file| !file.to_string_lossy().ends_with("-shm"));
    files.map(|file| (file.clone(), fs::read(file).unwrap())).collect()
}

async fn set(store: &SqliteStore, id: WebhookId, change: WebhookChange) -> Webhook {
    match store.change_webhook(WS, id, change, NOW).await.unwrap() {
        Changed::Webhook(webhook) => *webhook,
        other => panic!("{other:?}"),
    }
}

async fn another_secret(store: &SqliteStore, id: WebhookId, secret: &str) -> Webhook {
    let rotation = Rotation { secret: Secret::new(secret.to_owned()), overlap: Some(HOUR) };
    match store.rotate(WS, id, rotation, NOW.plus(HOUR)).await.unwrap() {
        Rotated::Webhook(webhook) => *webhook,
        other => panic!("{other:?}"),
    }
}

fn has_all() -> WebhookChange {
    let header = (HeaderName::from_static("x-key"), Some(HeaderValue::from_static("linnet")));
    let pem = ("-- chain --".to_owned(), "-- hidden key --".to_owned());
    let certificate = ClientCertificate::new(pem, "CN=a".to_owned(), NOW, CertificateId([9; 32]));
    let client_certificate = CertificateChange::Set(certificate);
    let options =
        OptionsChange { headers: vec![header], client_certificate, ..OptionsChange::default() };
    let signing_key = KeyChange::Have(SigningKey::of_seed([7; 32]));
    WebhookChange { options, signing_key, ..WebhookChange::default() }
}

/// A closed database with a webhook that has everything that is sealed, a plain one that its owner
/// has disabled, and a delivery for each.
async fn two_webhooks() -> (Folder, [Webhook; 2]) {
    let (folder, store) = fresh();
    let first = webhook(&store).await;
    set(&store, first, has_all()).await;
    let first = another_secret(&store, first, "whsec_second").await;
    let second = webhook(&store).await;
    assert!(accept(&store, "evt_1").await.unwrap());
    let off = WebhookChange { disabled: Some(true), ..WebhookChange::default() };
    let second = set(&store, second, off).await;
    store.close().await.unwrap();
    (folder, [first, second])
}

async fn both(folder: &Folder) -> (SqliteStore, [Webhook; 2]) {
    let store = open(folder).unwrap();
    let page = store.webhooks(WS, None, 9).await.unwrap();
    (store, page.items.try_into().unwrap())
}

/// What is sealed of the first webhook, by its column.
fn sealed(folder: &Folder) -> BTreeMap<String, Vec<u8>> {
    let conn = Connection::open(folder.path("data/dispatcher.db")).unwrap();
    let sql = "SELECT name FROM pragma_table_info('webhooks') WHERE type = 'BLOB'";
    let mut query = conn.prepare(sql).unwrap();
    let columns = query.query_map([], |row| row.get::<_, String>(0)).unwrap();
    let mut all: BTreeMap<String, Vec<u8>> = columns
        .map(|column| {
            let column = column.unwrap();
            let sql = format!("SELECT {column} FROM webhooks WHERE id = 1");
            let value = conn.query_row(&sql, [], |row| row.get(0));
            (column.clone(), value.unwrap_or_else(|_| panic!("{column} is not set: set it here")))
        })
        .collect();
    let sql = "SELECT secrets_before FROM webhooks WHERE id = 1";
    let before: String = conn.query_row(sql, [], |row| row.get(0)).unwrap();
    all.insert("secrets_before".to_owned(), before.into_bytes());
    all
}

#[tokio::test]
async fn a_rotation_seals_everything_anew_and_changes_nothing_else() {
    let (folder, webhooks) = two_webhooks().await;
    let ([path, key], copy) = (paths(&folder), folder.path("copy.db"));
    backup(&path, &copy).unwrap();
    let (old_key, before) = (fs::read(&key).unwrap(), sealed(&folder));
    let former = folder.path("data/secrets.key.before-rotation");
    let expected = RotationReport::Sealed { webhooks: 2, former: former.clone() };
    let files = bytes(&folder);
    assert_eq!(rotate(&path, &key, true).unwrap(), expected);
    assert!(files == bytes(&folder), "a dry run wrote something");
    assert_eq!(rotate(&path, &key, false).unwrap(), expected);
    assert_eq!(fs::read(&former).unwrap(), old_key);
    assert_ne!(fs::read(&key).unwrap(), old_key);
    let (after, file) = (sealed(&folder), fs::read(&path).unwrap());
    for (column, before) in before {
        assert_ne!(after[&column], before, "{column} is sealed with the key before");
        let left = file.windows(before.len()).any(|part| part == before);
        assert!(!left, "what {column} was is left in the file");
    }
    let (store, found) = both(&folder).await;
    assert_eq!(found, webhooks);
    assert_eq!(waiting(&store, webhooks[0].id).await, 1);
    store.close().await.unwrap();
    drop(store);
    // A backup from before opens with the key before, and with no other.
    let refused = restore(&copy, &path, &key, true).unwrap_err().to_string();
    assert!(refused.contains("sealed with another key"), "{refused}");
    fs::copy(&former, &key).unwrap();
    restore(&copy, &path, &key, true).unwrap();
    assert_eq!(both(&folder).await.1, webhooks);
}

#[tokio::test]
async fn a_rotation_that_is_killed_at_any_step_leaves_a_database_that_opens() {
    let (folder, webhooks) = two_webhooks().await;
    let [path, key] = paths(&folder);
    let left = std::cell::RefCell::new(Vec::new());
    let keep = |_| {
        left.borrow_mut().push(killed(&folder));
        Ok(())
    };
    rotate_by_steps(&path, &key, &keep).unwrap();
    left.borrow_mut().push(killed(&folder));
    let left = left.into_inner();
    assert_eq!(left.len(), STEPS + 1);
    let mut finished = 0;
    for (nth, folder) in left.into_iter().enumerate() {
        let [path, key] = paths(&folder);
        // Rotated again after the kill.
        let again = killed(&folder);
        let [again_path, again_key] = paths(&again);
        match rotate(&again_path, &again_key, false) {
            Ok(RotationReport::Finished) => finished += 1,
            Ok(RotationReport::Sealed { .. }) => {}
            // It was whole.
            Err(RekeyError::Left { .. }) => assert!(nth >= STEPS - 1, "step {nth}"),
            Err(why) => panic!("step {nth}: {why}"),
        }
        assert_eq!(both(&again).await.1, webhooks, "step {nth}");
        // Or started.
        would_open(&path, &key).unwrap();
        let (store, found) = both(&folder).await;
        assert_eq!(found, webhooks, "step {nth}");
        drop(store);
        assert_eq!(both(&folder).await.1, webhooks, "step {nth}, the second start");
    }
    assert_eq!(finished, 1, "only between the commit and the renaming");
}

#[tokio::test]
async fn a_rotation_that_fails_at_any_step_can_be_repeated() {
    for failing in 0..STEPS {
        let (folder, webhooks) = two_webhooks().await;
        let [path, key] = paths(&folder);
        let fail = |nth| if nth == failing { Err(io::Error::other("no room")) } else { Ok(()) };
        rotate_by_steps(&path, &key, &fail).unwrap_err();
        assert_eq!(both(&folder).await.1, webhooks, "step {failing}");
    }
}

fn mail_of(lost: &LostSecret) -> Vec<QueuedMail> {
    let text = format!("{} {} {} {}", lost.url, lost.headers, lost.signing_key, lost.certificate);
    let key = format!("secret-lost:{}", lost.webhook);
    let to = "a@example.com".to_owned();
    vec![NewMail { webhook: lost.id, to, subject: lost.workspace.clone(), text, key }.into()]
}

#[tokio::test]
async fn a_lost_key_keeps_the_queue_and_webhooks_wait_for_new_secrets() {
    let (folder, webhooks) = two_webhooks().await;
    let [path, key] = paths(&folder);
    let lost_key = fs::read(&key).unwrap();
    fs::remove_file(&key).unwrap();
    let files = bytes(&folder);
    let copy = folder.path("data/dispatcher.db.before-recovery");
    let expected = RecoveryReport { lost: 2, kept: 0, mails: 2, copy: copy.clone() };
    assert_eq!(recover(&path, &key, &mail_of, NOW, true).unwrap(), expected);
    assert!(files == bytes(&folder), "a dry run wrote something");
    assert_eq!(recover(&path, &key, &mail_of, NOW, false).unwrap(), expected);
    let (store, found) = both(&folder).await;
    for (found, before) in found.iter().zip(&webhooks) {
        assert_eq!(found.state(), WebhookState::Disabled);
        assert_eq!(found.disabled_reason(), Some(DisabledReason::SecretLost));
        assert_eq!(
            (found.secrets.signing(NOW).count(), found.options.headers.iter().count()),
            (0, 0)
        );
        assert_eq!((found.id, &found.url, &found.events), (before.id, &before.url, &before.events));
        assert_eq!(waiting(&store, found.id).await, 1, "nothing is dropped");
    }
    // One of the workspace at a time.
    let mut mails = store.claim_mails(9, NOW, Default::default()).await.unwrap();
    mails.extend(store.claim_mails(9, NOW, Default::default()).await.unwrap());
    let texts: Vec<&str> = mails.iter().map(|mail| mail.mail.text.as_str()).collect();
    let url = &webhooks[0].url;
    assert_eq!(texts, [format!("{url} true true true"), format!("{url} false false false")]);
    // What the owner sets meanwhile stays; what the owner disabled stays disabled.
    let [first, second] = webhooks.map(|webhook| webhook.id);
    set(&store, first, has_all()).await;
    let free = another_secret(&store, first, "whsec_third").await;
    assert_eq!((free.state(), free.probing), (WebhookState::Delivering, Some(Probe::Any)));
    assert_eq!(free.secrets.signing(NOW).collect::<Vec<_>>(), ["whsec_third"]);
    assert_eq!((free.options.headers.iter().count(), free.paused_total), (1, HOUR));
    let still = another_secret(&store, second, "whsec_fourth").await;
    assert_eq!(still.disabled_reason(), Some(DisabledReason::Owner));
    let on = WebhookChange { disabled: Some(false), ..WebhookChange::default() };
    assert_eq!(set(&store, second, on).await.state(), WebhookState::Delivering);
    drop(store);
    let again = recover(&path, &key, &mail_of, NOW, false).unwrap_err().to_string();
    assert!(again.contains("nothing is lost"), "{again}");
    // The key turns up: the copy opens with it.
    fs::write(&key, lost_key).unwrap();
    restore(&copy, &path, &key, true).unwrap();
    assert_eq!(both(&folder).await.1[0].secrets.signing(NOW).count(), 2);
}

#[tokio::test]
async fn a_webhook_without_a_secret_stays_stopped_whatever_else_ends() {
    let (folder, webhooks) = two_webhooks().await;
    let [path, key] = paths(&folder);
    fs::remove_file(&key).unwrap();
    recover(&path, &key, &|_| Vec::new(), NOW, false).unwrap();
    let (store, [first, second]) = both(&folder).await;
    let on = || WebhookChange { disabled: Some(false), ..WebhookChange::default() };
    for id in [first.id, second.id] {
        let still = set(&store, id, on()).await;
        assert_eq!(still.disabled_reason(), Some(DisabledReason::SecretLost));
        store.reactivate(WS, id, NOW.plus(HOUR)).await.unwrap();
        let still = store.webhook(WS, id).await.unwrap().unwrap();
        assert_eq!(still.disabled_reason(), Some(DisabledReason::SecretLost));
        assert_eq!(still.stopped_since(), Some(NOW), "deadlines shift by all of it");
    }
    assert_eq!(waiting(&store, webhooks[0].id).await, 1);
}

#[tokio::test]
async fn a_new_secret_withdraws_the_mail_about_the_lost_one_and_no_other() {
    let (folder, _) = two_webhooks().await;
    let [path, key] = paths(&folder);
    fs::remove_file(&key).unwrap();
    recover(&path, &key, &mail_of, NOW, false).unwrap();
    // The first one is paused as well; the second is disabled by its owner.
    let conn = Connection::open(&path).unwrap();
    conn.execute("UPDATE webhooks SET paused_at = secret_lost_at WHERE id = 1", []).unwrap();
    conn.execute("UPDATE webhooks SET disabled_at = secret_lost_at WHERE id = 2", []).unwrap();
    drop(conn);
    let (store, found) = both(&folder).await;
    for webhook in &found {
        let (id, to) = (webhook.id, "a@example.com".to_owned());
        let key = format!("paused:{id:?}");
        let mail = NewMail { webhook: id, to, subject: String::new(), text: String::new(), key };
        store.record(vec![], vec![], vec![mail.into()], vec![]).await.unwrap();
        another_secret(&store, id, "whsec_third").await;
    }
    let mut kinds = Vec::new();
    while let [one] = &*store.claim_mails(9, NOW, Default::default()).await.unwrap() {
        kinds.push(one.mail.key.split(':').next().unwrap().to_owned());
    }
    assert_eq!(kinds, ["paused", "paused"]);
}

#[tokio::test]
async fn only_a_lost_key_is_recovered_and_only_a_whole_database_rotated() {
    let (folder, webhooks) = two_webhooks().await;
    let [path, key] = paths(&folder);
    let no_mails = |_: &LostSecret| Vec::new();
    let recovered = || recover(&path, &key, &no_mails, NOW, false).map_err(|why| why.to_string());
    assert!(recovered().unwrap_err().contains("nothing is lost"));
    let (store, _) = both(&folder).await;
    for message in [recovered().unwrap_err(), rotate(&path, &key, false).unwrap_err().to_string()] {
        assert!(message.contains("in use by another process"), "{message}");
    }
    drop(store);
    // The key is only in another place.
    let former = folder.path("data/secrets.key.before-rotation");
    fs::rename(&key, &former).unwrap();
    let message = recovered().unwrap_err();
    assert!(message.contains("before-rotation: nothing is lost, rename it"), "{message}");
    fs::rename(&former, &key).unwrap();
    // One webhook is damaged: the others keep their secrets.
    let conn = Connection::open(&path).unwrap();
    conn.execute("UPDATE webhooks SET secret = x'00' WHERE id = 2", []).unwrap();
    drop(conn);
    let message = rotate(&path, &key, false).unwrap_err().to_string();
    assert!(message.contains("are damaged") && message.contains("recover-key"), "{message}");
    let report = recovered().unwrap();
    assert_eq!((report.lost, report.kept), (1, 1));
    let (store, [first, second]) = both(&folder).await;
    assert_eq!(first, webhooks[0]);
    assert_eq!(second.disabled_reason(), Some(DisabledReason::SecretLost));
    store.close().await.unwrap();
    drop(store);
    // A second rotation would hide the key of a backup.
    fs::remove_file(folder.path("data/secrets.key.next")).unwrap();
    fs::remove_file(&former).unwrap();
    rotate(&path, &key, false).unwrap();
    let message = rotate(&path, &key, false).unwrap_err().to_string();
    assert!(message.contains("before-rotation is there already"), "{message}");
}
