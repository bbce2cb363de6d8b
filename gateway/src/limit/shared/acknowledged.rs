//! Waits until replicas have what a call has charged.
//!
//! A connection stands still while it waits for replicas. Calls that arrive meanwhile therefore
//! travel together, with one wait after the last of them.
//!
//! Invariant: a call counts as executed only if enough replicas have it.
//!
//! Not here: what becomes of a request whose call failed (`shared::remote`).

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, Pipeline, Value, cmd};
use tokio::sync::oneshot;

use super::errors::{CallError, failed};

/// Sends the calls of one connection in groups.
pub(super) struct Acknowledging {
    replicas: u32,
    timeout: Duration,
    waiting: Mutex<Vec<Call>>,
    /// The one who sends the next group.
    turn: tokio::sync::Mutex<()>,
}

type Reply = Result<Value, CallError>;

struct Call {
    command: Cmd,
    reply: oneshot::Sender<Reply>,
}

impl Acknowledging {
    /// None where no replica has to acknowledge anything.
    pub(super) fn new(replicas: u32, timeout: Duration) -> Option<Self> {
        let (waiting, turn) = (Mutex::default(), tokio::sync::Mutex::default());
        (replicas > 0).then_some(Self { replicas, timeout, waiting, turn })
    }

    /// Sends a command with those that wait, or waits until another has sent it.
    pub(super) async fn send(&self, connection: &MultiplexedConnection, command: &Cmd) -> Reply {
        let (reply, mut replied) = oneshot::channel();
        let own = Call { command: command.clone(), reply };
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).push(own);
        let lost = || CallError::Lost("a call was given up".to_owned());
        tokio::select! {
            biased;
            reply = &mut replied => return reply.unwrap_or_else(|_| Err(lost())),
            turn = self.turn.lock() => {
                self.send_group(connection).await;
                drop(turn);
            }
        }
        replied.await.unwrap_or_else(|_| Err(lost()))
    }

    async fn send_group(&self, connection: &MultiplexedConnection) {
        let group =
            std::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner));
        if group.is_empty() {
            return;
        }
        let mut sent = Pipeline::with_capacity(group.len() + 1);
        let (commands, replies): (Vec<Cmd>, Vec<_>) =
            group.into_iter().map(|call| (call.command, call.reply)).unzip();
        let count = commands.len() + 1;
        commands.into_iter().for_each(|command| {
            sent.add_command(command);
        });
        let mut wait = cmd("WAIT");
        wait.arg(self.replicas).arg(self.timeout.as_millis().max(1).to_string());
        sent.add_command(wait);
        let received = connection.clone().send_packed_commands(&sent, 0, count).await;
        let received = received.map_err(|error| failed(&error));
        let acknowledged = received.as_ref().ok().and_then(|values| values.last().cloned());
        let have = match acknowledged {
            Some(Value::Int(have)) => have,
            _ => 0,
        };
        for (nth, reply) in replies.into_iter().enumerate() {
            let own = received.as_ref().map_err(Clone::clone);
            let own = own.map(|values| values.get(nth).cloned().unwrap_or(Value::Nil));
            let own = own.and_then(|value| value.extract_error().map_err(|error| failed(&error)));
            let own = match own {
                Ok(_) if have < i64::from(self.replicas) => {
                    Err(CallError::Refused(format!("{have} replicas have it in time")))
                }
                own => own,
            };
            // Fails only where the caller waits no more.
            let _ = reply.send(own);
        }
    }
}
