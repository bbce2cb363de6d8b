//! A store on a Cluster of one server, whose slots are those that the test says.

use std::io;
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;

use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use weir_common::limit::rolling::RollingQuota;

use super::super::super::super::key::{Key, LimitTag};
use super::super::super::super::memory::MemoryStore;
use super::super::super::super::{LimitCheck, Quota};
use super::super::super::{Beat, SharedConfig, SharedStore};
use super::super::address::StoreLogin;
use super::super::login::{Dialled, Session};
use super::*;

const INFO: &str = "redis_mode:cluster\r\nrole:master\r\nmaxmemory:0\r\n\
    maxmemory_policy:noeviction\r\n";

/// What names the gateway.
const ID: &str = "1";

/// The server's slots, as `CLUSTER NODES` has them, and how many scripts find keys between two
/// servers.
#[derive(Default)]
struct Own {
    slots: Mutex<&'static str>,
    moving: AtomicUsize,
}

struct Way(Arc<Own>);

impl Dial for Way {
    #[expect(clippy::disallowed_methods, reason = "they end with the runtime of the test")]
    fn dial<'d>(&'d self, _: &'d StoreLogin, _: &'d ServerAddress) -> Dialled<'d> {
        Box::pin(async {
            let (stream, far) = tokio::io::duplex(4_096);
            tokio::spawn(answer(far, self.0.clone()));
            Session::over(stream, &StoreLogin::default()).await
        })
    }
}

async fn answer(mut stream: DuplexStream, own: Arc<Own>) -> io::Result<()> {
    let text = |text: &str| format!("${}\r\n{text}\r\n", text.len());
    let mut bytes = [0; 4_096];
    loop {
        let count = stream.read(&mut bytes).await?;
        if count == 0 {
            return Ok(());
        }
        let commands = String::from_utf8_lossy(&bytes[..count]).into_owned();
        for command in commands.split('*').skip(1) {
            let slots = *own.slots.lock().unwrap();
            let one_less = |left: usize| left.checked_sub(1);
            let is_moving = || {
                let moving = &own.moving;
                moving.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok()
            };
            let reply = match command {
                command if command.contains("INFO") => text(INFO),
                command if command.contains("NODES") => {
                    text(&format!("a redis:6379@16379 myself,master - 0 0 1 connected {slots}"))
                }
                command if command.contains("EVALSHA") && is_moving() => {
                    "-TRYAGAIN Multiple keys request during rehashing of slot\r\n".to_owned()
                }
                command if command.contains("EVALSHA") => {
                    format!("*5\r\n{}", ["1", "0", "0", "0", ID].map(text).concat())
                }
                command if command.contains("TIME") => {
                    format!("*2\r\n{}", ["1", "0"].map(text).concat())
                }
                _ => "$-1\r\n".to_owned(),
            };
            stream.write_all(reply.as_bytes()).await?;
        }
    }
}

/// A store on the server, whose calls may take a second.
fn store_on(own: &Arc<Own>) -> SharedStore {
    let address = StoreAddress {
        topology: Topology::Cluster,
        servers: vec![ServerAddress { host: "redis".to_owned(), port: 6_379 }],
        login: StoreLogin::default(),
        sentinel_password_file: None,
        acknowledge: 0,
    };
    let config = SharedConfig {
        address,
        timeout: Duration::from_secs(1),
        gateways_min: 1,
        fingerprint: "f".to_owned(),
        id: ID.to_owned(),
    };
    SharedStore::new(config, Clock::system(), Arc::new(Way(own.clone())))
}

#[tokio::test]
async fn slots_without_a_server_are_reported_until_they_have_one() {
    let server = Arc::<Own>::default();
    let store = store_on(&server);
    let all = "Cluster of redis:6379".to_owned();
    for (own, count) in [("", SLOTS), ("0-16381 16383", 1)] {
        *server.slots.lock().unwrap() = own;
        let text = format!("{count} of 16384 slots have no server: create the Cluster, or run");
        for _ in 0..3 {
            store.beat(None).await;
        }
        let (name, beat) = store.beat(None).await.pop().unwrap();
        let Beat::Away(why) = beat else { panic!("{beat:?}") };
        assert_eq!(name, all);
        assert!(why.to_string().starts_with(&text) && !why.is_silence(), "{why}");
        assert_eq!(store.try_servers().await, [(all.clone(), why)]);
        assert_eq!(store.servers(), [1, 1, count]);
    }
    *server.slots.lock().unwrap() = "0-16383";
    assert_eq!(store.beat(None).await.pop(), Some((all, Beat::Recovered)));
    assert_eq!(store.servers(), [1, 1, 0]);
    let steady = ("redis:6379".to_owned(), Beat::Steady);
    assert_eq!(store.beat(None).await, [steady]);
    assert_eq!(store.try_servers().await, []);
}

#[tokio::test]
async fn a_call_whose_keys_are_between_two_servers_is_repeated_for_most_of_its_time() {
    let server = Arc::<Own>::default();
    *server.slots.lock().unwrap() = "0-16383";
    let store = store_on(&server);
    assert_eq!(store.beat(None).await.len(), 1);
    let known = store.nodes.known();
    let node = &known.nodes[0];
    let connection = node.connection().unwrap();
    let script = Script::new("return 1");
    server.moving.store(20, Ordering::Relaxed);
    let call = script.call(&[b"weir1:{1}a".to_vec()], &[]);
    let over = Over { node, connection: &connection };
    assert!(store.nodes.evaluate(over, &script, &call).await.is_ok());
    server.moving.store(usize::MAX, Ordering::Relaxed);
    let window = Duration::from_secs(60);
    let quota = Quota::Rolling(RollingQuota { requests: 4, window });
    let check = LimitCheck::new(Key::from_bits(7), LimitTag::from_bits(1), quota);
    let found = store.check(&MemoryStore::new(16), &[check], true).await;
    assert!(found.unwrap().is_admitted(), "by its share");
    let counted = |count: &AtomicU64| count.load(Ordering::Relaxed);
    let counts = &store.counts;
    assert_eq!([&counts.moving, &counts.failed, &counts.alone].map(counted), [1, 0, 1]);
    assert_eq!(store.servers(), [1, 1, 0], "the server is not away");
}
