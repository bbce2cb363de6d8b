//! A client against a server that follows a script, on a clock that the runtime turns.

use std::sync::atomic::AtomicU32;

use async_trait::async_trait;
use http::Method;
use tokio::time::Instant;
use weir_common::time::{Moment, UnixTime};

use super::*;

const SECOND: Duration = Duration::from_secs(1);

/// What a try gets: a status and `Retry-After`, or an error.
#[derive(Clone, Debug)]
enum Scripted {
    Answer(u16, Option<&'static str>, &'static str),
    Error(SendError),
}

/// A server that answers by script, and then with 200.
struct Script {
    began: Instant,
    script: Mutex<Vec<Scripted>>,
    sent: Mutex<Vec<(Duration, String, Option<String>)>>,
    dice: AtomicU32,
}

struct Wire(Arc<Script>);

#[expect(clippy::disallowed_methods, reason = "the runtime's clock, which the test turns")]
fn now() -> Instant {
    Instant::now()
}

#[async_trait]
impl Transport for Wire {
    fn now(&self) -> Moment {
        let tick = Tick(1_000_000).plus(now().duration_since(self.0.began));
        Moment { tick, unix: UnixTime(tick.0) }
    }

    fn dice(&self) -> u64 {
        // In the middle of the jitter, and different each time.
        2_000 + 4_001 * u64::from(self.0.dice.fetch_add(1, Ordering::Relaxed))
    }

    async fn wait(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }

    async fn send(&self, call: &Call, key: Option<&str>) -> Result<Answer, SendError> {
        let at = now().duration_since(self.0.began);
        self.0.sent.lock().unwrap().push((at, call.target.clone(), key.map(str::to_owned)));
        let next = {
            let mut script = self.0.script.lock().unwrap();
            if script.is_empty() { None } else { Some(script.remove(0)) }
        };
        tokio::time::sleep(SECOND / 10).await;
        match next.unwrap_or(Scripted::Answer(200, None, "{}")) {
            Scripted::Answer(status, retry_after, body) => Ok(Answer {
                status,
                retry_after: retry_after.map(str::to_owned),
                body: body.into(),
                ..Answer::default()
            }),
            Scripted::Error(error) => Err(error),
        }
    }
}

fn client(script: &[Scripted]) -> (Client, Arc<Script>) {
    let script = Script::new(script);
    (Client::new(Wire(Arc::clone(&script)), BUDGET, CACHE_BYTES), script)
}

const LIMITED: &str = r#"{"type": "urn:weir:problem:rate-limited", "detail": "Later."}"#;
const REFUSED: Scripted = Scripted::Answer(429, Some("7"), LIMITED);

impl Script {
    fn new(script: &[Scripted]) -> Arc<Self> {
        Arc::new(Self {
            began: now(),
            script: Mutex::new(script.to_vec()),
            sent: Mutex::default(),
            dice: AtomicU32::new(0),
        })
    }

    /// The seconds at which something was sent.
    fn seconds(&self) -> Vec<u64> {
        self.sent.lock().unwrap().iter().map(|(at, ..)| at.as_secs()).collect()
    }
}

fn list() -> Call {
    Call::list("/v1/things", &[])
}

fn write() -> Call {
    Call::write(Method::POST, "/v1/things".to_owned(), None)
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_waited_for_as_it_says_or_exponentially() {
    let limited = |retry_after| Scripted::Answer(429, retry_after, LIMITED);
    let (client, script) =
        client(&[limited(Some("7")), limited(None), limited(Some("1")), limited(None)]);
    client.send(&list()).await.unwrap();
    // 7, then 2, 4 and 8 seconds, and a tenth for each answer.
    assert_eq!(script.seconds(), [0, 7, 9, 13, 21]);
    assert_eq!(client.waits(), 4);
}

#[tokio::test(start_paused = true)]
async fn a_wait_beyond_the_budget_is_not_begun() {
    let (client, script) = client(&[Scripted::Answer(429, Some("76"), LIMITED)]);
    let error = client.send(&list()).await.unwrap_err();
    assert!(matches!(error, CallError::Busy { wait, .. } if wait == 76 * SECOND), "{error}");
    assert_eq!(script.seconds(), [0]);
    // The others know it without sending anything, for as long as it does not fit.
    let other = client.send(&Call::read("/v1/others".to_owned())).await.unwrap_err();
    assert!(matches!(other, CallError::Busy { .. }), "{other}");
    tokio::time::sleep(5 * SECOND).await;
    client.send(&Call::read("/v1/others".to_owned())).await.unwrap();
    assert_eq!(script.seconds(), [0, 76]);
}

#[tokio::test(start_paused = true)]
async fn a_refusal_for_years_holds_up_the_token_for_ten_minutes() {
    let years = Scripted::Answer(429, Some("99999999999"), LIMITED);
    let (client, script) = client(&[years]);
    let refused = client.send(&write()).await.unwrap_err();
    assert!(matches!(refused, CallError::Busy { wait, .. } if wait > 99 * REFUSED_MAX));
    tokio::time::sleep(REFUSED_MAX - BUDGET - SECOND).await;
    let early = client.send(&list()).await.unwrap_err();
    assert!(matches!(early, CallError::Busy { .. }), "{early}");
    tokio::time::sleep(2 * SECOND).await;
    client.send(&list()).await.unwrap();
    assert_eq!(script.seconds(), [0, 600]);
}

#[tokio::test(start_paused = true)]
async fn a_list_that_fails_is_not_sent_again_at_once_either() {
    let lost = Scripted::Error(SendError::Unknown("the connection ended".into()));
    for failure in [lost, Scripted::Answer(500, None, "<html>"), Scripted::Answer(404, None, "{}")]
    {
        let (client, script) = client(&[failure]);
        let first = client.send(&list()).await.unwrap_err();
        for _ in 0..9 {
            assert_eq!(client.send(&list()).await.unwrap_err(), first);
        }
        assert_eq!(script.seconds(), [0]);
        tokio::time::sleep(5 * SECOND).await;
        client.send(&list()).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn kept_lists_take_no_more_than_their_share() {
    let page = || Scripted::Answer(200, None, Box::leak("x".repeat(10_000).into_boxed_str()));
    let script = Script::new(&vec![page(); 40]);
    let client = Client::new(Wire(Arc::clone(&script)), BUDGET, 100_000);
    let lists: Vec<Call> = (0..20).map(|n| Call::list(&format!("/v1/{n}"), &[])).collect();
    for list in lists.iter().chain(&lists) {
        client.send(list).await.unwrap();
    }
    let kept = 40 - script.seconds().len();
    assert!((5..=9).contains(&kept), "{kept} of 20 lists of 10,000 bytes within 100,000");
}

#[tokio::test(start_paused = true)]
async fn while_a_limit_refuses_the_token_its_other_calls_wait_too() {
    let (client, script) = client(&[REFUSED]);
    let (one, two) = (list(), Call::read("/v1/others".to_owned()));
    let first = client.send(&one);
    let second = async {
        tokio::time::sleep(SECOND).await;
        client.send(&two).await
    };
    let (first, second) = tokio::join!(first, second);
    assert!(first.is_ok() && second.is_ok());
    assert_eq!(script.seconds(), [0, 7, 7]);
}

#[tokio::test(start_paused = true)]
async fn a_refusal_of_one_call_alone_holds_up_no_other() {
    let tests = r#"{"type": "urn:weir:problem:too-many-tests"}"#;
    let (client, script) = client(&[Scripted::Answer(429, Some("30"), tests)]);
    let (one, two) = (write(), list());
    let (first, second) = tokio::join!(client.send(&one), client.send(&two));
    assert!(first.is_ok() && second.is_ok());
    assert_eq!(script.seconds(), [0, 0, 30]);
}

#[tokio::test(start_paused = true)]
async fn identical_reads_at_one_time_are_sent_once_and_share_a_failure() {
    let (client, script) = client(&[Scripted::Answer(404, None, "{}")]);
    let mut reads = tokio::task::JoinSet::new();
    for _ in 0..50 {
        let client = client.clone();
        reads.spawn(async move { client.send(&Call::read("/v1/x".to_owned())).await });
    }
    while let Some(read) = reads.join_next().await {
        assert!(matches!(read.unwrap(), Err(CallError::Refused(problem)) if problem.status == 404));
    }
    assert_eq!(script.seconds(), [0]);
    client.send(&Call::read("/v1/x".to_owned())).await.unwrap();
    assert_eq!(script.seconds().len(), 2, "a failure is not kept");
}

#[tokio::test(start_paused = true)]
async fn reads_that_differ_in_anything_are_sent_each() {
    let (client, script) = client(&[]);
    let preview = |state| Call::preview("/v1/x".to_owned(), &serde_json::json!({ "state": state }));
    let list = |limit: &str| Call::list("/v1/x", &[("limit", limit.to_owned())]);
    let calls = [
        preview("waiting"),
        preview("delivered"),
        list("1"),
        list("2"),
        Call::read("/v1/x".into()),
    ];
    let mut reads = tokio::task::JoinSet::new();
    let count = calls.len();
    for call in [calls.clone(), calls].concat() {
        let client = client.clone();
        reads.spawn(async move { client.send(&call).await });
    }
    assert!(reads.join_all().await.iter().all(Result::is_ok));
    assert_eq!(script.seconds().len(), count);
}

#[tokio::test(start_paused = true)]
async fn a_list_is_kept_for_five_seconds_and_another_read_is_not() {
    let (client, script) = client(&[]);
    for _ in 0..3 {
        client.send(&list()).await.unwrap();
        client.send(&Call::list("/v1/things", &[("limit", "2".to_owned())])).await.unwrap();
    }
    assert_eq!(script.seconds().len(), 2, "each list once");
    tokio::time::sleep(5 * SECOND).await;
    client.send(&list()).await.unwrap();
    assert_eq!(script.seconds().len(), 3);
    for _ in 0..3 {
        client.send(&Call::read("/v1/things/1".to_owned())).await.unwrap();
    }
    assert_eq!(script.seconds().len(), 6);
}

#[tokio::test(start_paused = true)]
async fn a_list_is_read_again_after_a_change_even_one_that_was_under_way() {
    let (client, script) = client(&[]);
    client.send(&list()).await.unwrap();
    client.send(&write()).await.unwrap();
    client.send(&list()).await.unwrap();
    assert_eq!(script.seconds().len(), 3);
    // A list that began before a change ended is not kept for those after it.
    let (both, change) = (list(), write());
    tokio::time::sleep(6 * SECOND).await;
    let (first, second) = tokio::join!(client.send(&both), client.send(&change));
    assert!(first.is_ok() && second.is_ok());
    client.send(&list()).await.unwrap();
    assert_eq!(script.seconds().len(), 6);
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_read_is_sent_by_the_next_that_waits_for_it() {
    let (client, script) = client(&[]);
    let (one, two) = (list(), list());
    let cancelled = tokio::time::timeout(SECOND / 20, client.send(&one));
    let (cancelled, other) = tokio::join!(cancelled, client.send(&two));
    assert!(cancelled.is_err() && other.is_ok());
    assert_eq!(script.sent.lock().unwrap().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_wait_sends_nothing_more() {
    let (client, script) = client(&[REFUSED]);
    assert!(tokio::time::timeout(SECOND, client.send(&write())).await.is_err());
    tokio::time::sleep(60 * SECOND).await;
    assert_eq!(script.seconds(), [0]);
}

#[tokio::test(start_paused = true)]
async fn a_change_is_repeated_with_its_key_only_if_it_was_refused_before_it_began() {
    let unavailable = r#"{"type": "urn:weir:problem:unavailable"}"#;
    let (patient, script) = client(&[REFUSED, Scripted::Answer(503, Some("1"), unavailable)]);
    patient.send(&write()).await.unwrap();
    let keys: Vec<_> = script.sent.lock().unwrap().iter().map(|one| one.2.clone()).collect();
    assert_eq!(keys.len(), 3);
    assert!(keys[0].is_some() && keys.iter().all(|key| *key == keys[0]), "{keys:?}");
    patient.send(&write()).await.unwrap();
    let next = script.sent.lock().unwrap().last().unwrap().2.clone();
    assert_ne!(next, keys[0], "another change has another key");

    let lost = || Scripted::Error(SendError::Unknown("the connection ended".into()));
    for unknown in [lost(), Scripted::Answer(503, None, "<html>"), Scripted::Answer(502, None, "")]
    {
        let (client, script) = client(std::slice::from_ref(&unknown));
        let error = client.send(&write()).await.unwrap_err();
        assert!(matches!(error, CallError::MaybeDone(_)), "{unknown:?}: {error}");
        assert_eq!(script.seconds(), [0], "{unknown:?}");
    }
    let (client, script) = client(&[Scripted::Error(SendError::NotSent("refused".into()))]);
    let error = client.send(&write()).await.unwrap_err();
    assert!(matches!(error, CallError::Unreachable(_)), "{error}");
    assert_eq!(script.seconds(), [0]);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_busy_for_ever_ends_a_call_after_six_tries() {
    let (client, script) = client(&vec![Scripted::Answer(503, None, ""); 20]);
    let error = client.send(&list()).await.unwrap_err();
    assert!(matches!(error, CallError::Busy { .. }), "{error}");
    assert_eq!(script.seconds(), [0, 1, 3, 7, 15, 31]);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_may_still_wait_does_not_give_up_with_the_one_before_it() {
    let limited = |retry_after| Scripted::Answer(429, Some(retry_after), LIMITED);
    let (client, script) = client(&[limited("70"), limited("20")]);
    let (one, two) = (list(), list());
    let second = async {
        tokio::time::sleep(60 * SECOND).await;
        client.send(&two).await
    };
    let (first, second) = tokio::join!(client.send(&one), second);
    assert!(matches!(first, Err(CallError::Busy { .. })), "{first:?}");
    assert!(second.is_ok(), "{second:?}");
    assert_eq!(script.seconds(), [0, 70, 90]);
}

#[tokio::test(start_paused = true)]
async fn fifty_that_wait_for_a_busy_server_give_up_together() {
    let (client, script) = client(&vec![Scripted::Answer(503, None, ""); 99]);
    let mut reads = tokio::task::JoinSet::new();
    for _ in 0..50 {
        let client = client.clone();
        reads.spawn(async move { (client.send(&list()).await, now()) });
    }
    while let Some(read) = reads.join_next().await {
        let (outcome, at) = read.unwrap();
        assert!(matches!(outcome, Err(CallError::Busy { .. })), "{outcome:?}");
        assert!(at.duration_since(script.began) <= BUDGET + SECOND);
    }
    // One alone tries six times in half a minute; those that still may wait go on after it.
    assert!(script.seconds().len() <= 24, "{:?}", script.seconds());
}
