//! Waits until replicas have what a call has charged.
//!
//! A connection stands still while it waits for replicas. Calls that arrive meanwhile therefore
//! travel together, with one wait after the last of them.
//!
//! Invariant: a call counts as executed only if enough replicas have it.
//!
//! Not here: what becomes of a request whose call failed (`shared::remote`).

use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::{Cmd, Pipeline, Value, cmd};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::errors::{CallError, failed};
use super::login::Session;

/// Sends the calls of one connection in groups.
pub(super) struct Acknowledging {
    replicas: u32,
    timeout: Duration,
    calls: Mutex<Calls>,
    /// The task that sends groups, so that a call that is given up takes no other along.
    sending: Mutex<JoinSet<()>>,
}

#[derive(Default)]
struct Calls {
    waiting: Vec<Call>,
    are_sent: bool,
}

type Reply = Result<Value, CallError>;

struct Call {
    command: Cmd,
    reply: oneshot::Sender<Reply>,
}

/// Sends groups until none waits. Where it is dropped before, the next call starts another one.
struct Sender(Option<Arc<Acknowledging>>);

impl Drop for Sender {
    fn drop(&mut self) {
        if let Some(all) = &self.0 {
            all.calls().are_sent = false;
        }
    }
}

impl Sender {
    async fn send_groups(mut self, to: Session) {
        let Some(all) = self.0.clone() else { return };
        while let Some(mut group) = all.next_group() {
            // What was given up meanwhile needs no call.
            group.retain(|call| !call.reply.is_closed());
            if !group.is_empty() {
                all.send_group(&to, group).await;
            }
        }
        self.0 = None;
    }
}

impl Acknowledging {
    /// None where no replica has to acknowledge anything.
    pub(in super::super) fn new(replicas: u32, timeout: Duration) -> Option<Arc<Self>> {
        let (calls, sending) = (Mutex::default(), Mutex::default());
        (replicas > 0).then(|| Arc::new(Self { replicas, timeout, calls, sending }))
    }

    fn calls(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The calls that wait; none where there are none, and the next one needs a sender.
    fn next_group(&self) -> Option<Vec<Call>> {
        let mut calls = self.calls();
        calls.are_sent = !calls.waiting.is_empty();
        calls.are_sent.then(|| mem::take(&mut calls.waiting))
    }

    /// Lets a command wait for the next group. True where that needs a sender.
    fn wait(&self, command: &Cmd, reply: oneshot::Sender<Reply>) -> bool {
        let mut calls = self.calls();
        calls.waiting.push(Call { command: command.clone(), reply });
        !mem::replace(&mut calls.are_sent, true)
    }

    /// Sends a command with those that wait, after those that are under way.
    pub(super) async fn send(self: &Arc<Self>, to: &Session, command: &Cmd) -> Reply {
        let (reply, replied) = oneshot::channel();
        if self.wait(command, reply) {
            let (sender, to) = (Sender(Some(self.clone())), to.clone());
            let mut sending = self.sending.lock().unwrap_or_else(PoisonError::into_inner);
            while sending.try_join_next().is_some() {}
            sending.spawn(sender.send_groups(to));
        }
        let lost = |_| Err(CallError::Lost("the connection has ended".to_owned()));
        replied.await.unwrap_or_else(lost)
    }

    async fn send_group(&self, to: &Session, group: Vec<Call>) {
        let mut sent = Pipeline::with_capacity(group.len() + 1);
        let (commands, replies): (Vec<Cmd>, Vec<_>) =
            group.into_iter().map(|call| (call.command, call.reply)).unzip();
        let count = commands.len() + 1;
        commands.into_iter().for_each(|command| {
            sent.add_command(command);
        });
        sent.add_command(self.wait_command());
        let received = to.send_all(&sent, count).await;
        let received = received.map_err(|error| failed(&error));
        let waited = received.as_ref().ok().and_then(|values| values.last());
        for (nth, reply) in replies.into_iter().enumerate() {
            let own = received.as_ref().map_err(Clone::clone);
            let own = own.map(|values| values.get(nth).cloned().unwrap_or(Value::Nil));
            let own = own.and_then(|value| value.extract_error().map_err(|error| failed(&error)));
            // Fails only where the caller waits no more.
            let _ = reply.send(own.and_then(|own| self.acknowledged(own, waited)));
        }
    }

    /// Waits for replicas to have what was sent before it over the same connection.
    pub(super) fn wait_command(&self) -> Cmd {
        let mut wait = cmd("WAIT");
        wait.arg(self.replicas).arg(self.timeout.as_millis().max(1).to_string());
        wait
    }

    /// The reply of a call, unless too few replicas have it by the reply of the wait after it.
    pub(super) fn acknowledged(&self, own: Value, waited: Option<&Value>) -> Reply {
        let waited = waited.cloned().unwrap_or(Value::Nil).extract_error();
        match waited {
            Ok(Value::Int(have)) if have >= i64::from(self.replicas) => Ok(own),
            Ok(Value::Int(have)) => {
                Err(CallError::Refused(format!("{have} replicas have it in time")))
            }
            Ok(_) => Err(CallError::Refused("no replica has it in time".to_owned())),
            // Its user may not wait, or it is a replica.
            Err(error) => Err(CallError::Refused(failed(&error).to_string())),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
    use tokio::sync::Semaphore;

    use weir_common::time::{Clock, UnixTime};

    use super::super::address::StoreLogin;
    use super::super::link::{Link, Script};
    use super::*;

    /// Answers each command with 1, what it reads at once with one permit.
    async fn serve(mut stream: DuplexStream, read: Arc<Mutex<String>>, permits: Arc<Semaphore>) {
        let mut bytes = [0; 4_096];
        while let Ok(count @ 1..) = stream.read(&mut bytes).await {
            let text = String::from_utf8_lossy(&bytes[..count]).into_owned();
            read.lock().unwrap().push_str(&text);
            permits.acquire().await.unwrap().forget();
            let replies = ":1\r\n".repeat(text.matches('*').count());
            stream.write_all(replies.as_bytes()).await.unwrap();
        }
    }

    #[tokio::test]
    async fn a_call_for_a_key_that_is_moving_waits_for_replicas_too() {
        let (read, permits) = (Arc::new(Mutex::new(String::new())), Arc::new(Semaphore::new(9)));
        let (near, far) = tokio::io::duplex(4_096);
        let mut world = JoinSet::new();
        world.spawn(serve(far, read.clone(), permits));
        let session = Session::over(near, &StoreLogin::default()).await.unwrap();
        for (replicas, is_kept) in [(0, true), (1, true), (2, false)] {
            let acknowledge = (replicas, Duration::from_secs(1));
            let clock = Clock::manual(UnixTime(0));
            let link = Link::new(session.clone(), acknowledge, clock);
            let ran = link.evaluate_early(&Script::new("return 1"), &cmd("CALL")).await;
            assert_eq!(ran.is_ok(), is_kept, "{ran:?}");
            assert_eq!(read.lock().unwrap().contains("WAIT"), replicas > 0);
        }
    }

    #[test]
    fn a_wait_that_is_not_allowed_is_no_replica_that_is_late() {
        let all = Acknowledging::new(1, Duration::from_secs(1)).unwrap();
        let of = |reply: &[u8]| {
            let waited = redis::parse_redis_value(reply).unwrap();
            all.acknowledged(Value::Int(7), Some(&waited))
        };
        assert_eq!(of(b":1\r\n"), Ok(Value::Int(7)));
        assert!(of(b":0\r\n").unwrap_err().to_string().starts_with("0 replicas"));
        let forbidden = of(b"-NOPERM User weir has no permissions to run the 'wait' command\r\n");
        let why = forbidden.unwrap_err();
        assert!(matches!(why, CallError::Refused(_)), "{why:?}");
        assert!(why.to_string().contains("'wait' command: a right is missing"), "{why}");
    }

    #[tokio::test]
    async fn a_call_that_is_given_up_takes_no_other_along() {
        let (read, permits) = (Arc::new(Mutex::new(String::new())), Arc::new(Semaphore::new(0)));
        let (near, far) = tokio::io::duplex(4_096);
        let (mut world, mut given_up, mut kept) = (JoinSet::new(), JoinSet::new(), JoinSet::new());
        world.spawn(serve(far, read.clone(), permits.clone()));
        let connection = Session::over(near, &StoreLogin::default()).await.unwrap();
        let all = Acknowledging::new(1, Duration::from_secs(1)).unwrap();
        let send = |name: &'static str| {
            let (all, connection) = (all.clone(), connection.clone());
            async move { all.send(&connection, &cmd(name)).await }
        };

        given_up.spawn(send("FIRST"));
        while !read.lock().unwrap().contains("WAIT") {
            tokio::task::yield_now().await;
        }
        given_up.spawn(send("SECOND"));
        kept.spawn(send("THIRD"));
        while all.calls().waiting.len() < 2 {
            tokio::task::yield_now().await;
        }
        given_up.shutdown().await;
        permits.add_permits(2);
        assert_eq!(kept.join_next().await.unwrap().unwrap(), Ok(Value::Int(1)));
        assert!(!read.lock().unwrap().contains("SECOND"));
    }
}
