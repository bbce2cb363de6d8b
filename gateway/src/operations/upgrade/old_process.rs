//! The old process's side of an upgrade: starts the successor, sends it the sockets and the
//! counters, and then forwards checks to it.
//!
//! # Invariants
//!
//! 1. A failure before the successor has everything leaves this process as it was; the successor
//!    is killed before the store is opened again.
//! 2. At most [`PIPELINE_MAX`] checks are in flight: both directions fit into the kernel's socket
//!    buffers, so that neither process blocks until the other reads.
//!
//! # Not here
//!
//! The new process's side (`upgrade::new_process`), the messages (`upgrade::protocol`).

use std::collections::VecDeque;
use std::env;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command};
use std::sync::Arc;

use log::Level;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;
use tokio::sync::{mpsc, watch};
use weir_common::http_client::is_reset;
use weir_common::log::events;
use weir_common::time::{Moment, Tick, UnixTime};

use crate::config::shared::Shared;
use crate::limit::limiter::{LimitOwner, RemoteCheck};
use crate::limit::memory::Closed;
use crate::limit::snapshot;
use crate::operations::upgrade::protocol::{self, Kind, Messages, Offer, OtherStates, PROTOCOL};
use crate::operations::upgrade::sockets::{self, SOCKETS_MAX, Sockets};
use crate::operations::upgrade::{
    MOVE_WAIT, READY_WAIT, REMOTE_CHECKS_MAX, TAKE_OVER, UpgradeError, broken,
};
use crate::rules::retention::Retention;

/// Requests in flight at one time; the checks of one take half a kilobyte, the verdict as much.
const PIPELINE_MAX: usize = 64;

/// States are sent in pieces of about this size, so that the successor reads while this process
/// writes.
const PIECE_BYTES: usize = 256 * 1024;

/// A process that this one has started; killed and reaped on drop.
struct Started(Option<Child>);

impl Started {
    /// Kills it after a failure. If it had ended by itself, that is the reason.
    fn end(mut self, why: UpgradeError) -> UpgradeError {
        let Some(mut child) = self.0.take() else { return why };
        // An error means that it has already exited.
        let _ = child.kill();
        match (child.wait(), &why) {
            (Ok(status), UpgradeError::Broken { source, .. })
                if is_end(source) && status.signal() != Some(Signal::KILL.as_raw()) =>
            {
                UpgradeError::Ended(status)
            }
            _ => why,
        }
    }
}

/// Whether an error means that the other process has closed its end.
fn is_end(error: &io::Error) -> bool {
    is_reset(error) || error.kind() == io::ErrorKind::UnexpectedEof
}

impl Drop for Started {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            // An error means that it has already exited.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A successor that is ready to take over.
pub struct Candidate {
    started: Started,
    stream: StdStream,
}

/// The process that has taken over.
pub struct Successor {
    child: Child,
    stream: StdStream,
    checks_to_send: mpsc::Receiver<RemoteCheck>,
    /// How many states it received.
    states: usize,
    /// How long their transfer took, in seconds.
    seconds: f64,
}

/// Starts the program again and waits until it is ready. If this future is dropped, the process is
/// killed.
pub async fn start(shared: &Arc<Shared>, sockets: &Sockets) -> Result<Candidate, UpgradeError> {
    let (named, passed) = sockets.share().map_err(broken("sharing sockets"))?;
    if named.len() > SOCKETS_MAX {
        return Err(UpgradeError::TooManySockets);
    }
    let is_shared = shared.limiter.shared.is_some();
    let offer = Offer { seed: shared.seed.bytes(), is_shared, sockets: named };
    let (ours, theirs) = StdStream::pair().map_err(broken("creating the socket pair"))?;
    let started = Started(Some(spawn(theirs.into())?));
    let greeted = tokio::task::spawn_blocking(move || establish(ours, &offer, &passed));
    match tokio::time::timeout(READY_WAIT, greeted).await {
        Ok(Ok(Ok(stream))) => Ok(Candidate { started, stream }),
        Ok(Ok(Err(why))) => Err(started.end(why)),
        // A panic in `establish` is a bug.
        Ok(Err(error)) => Err(broken("sending to the new process")(error.into())),
        Err(_) => Err(UpgradeError::Late),
    }
}

/// Starts the program at the path in `argv[0]`, where another version may be installed.
fn spawn(stdin: OwnedFd) -> Result<Child, UpgradeError> {
    let mut given = env::args_os();
    let program = given.next().unwrap_or_default();
    let mut command = Command::new(program);
    command.args(given).env(TAKE_OVER, "1").stdin(stdin);
    command.spawn().map_err(broken("starting the new process"))
}

fn establish(
    mut stream: StdStream,
    offer: &Offer,
    passed: &[OwnedFd],
) -> Result<StdStream, UpgradeError> {
    let talking = "sending to the new process";
    stream.set_read_timeout(Some(READY_WAIT)).map_err(broken(talking))?;
    stream.set_write_timeout(Some(MOVE_WAIT)).map_err(broken(talking))?;
    let version = "its version of the upgrade protocol";
    let hello = expect_message(&mut stream, Kind::Hello, version)?;
    let hello = hello.try_into().map_err(|_| UpgradeError::Unexpected(version))?;
    let theirs = u32::from_le_bytes(hello);
    if theirs != PROTOCOL {
        return Err(UpgradeError::OtherProtocol { theirs });
    }
    sockets::send(&stream, passed).map_err(broken("passing sockets"))?;
    let offer = serde_json::to_vec(offer).map_err(|why| broken(talking)(why.into()))?;
    protocol::write(&mut stream, Kind::Offer, &offer).map_err(broken(talking))?;
    expect_message(&mut stream, Kind::Ready, "its report that it is ready")?;
    Ok(stream)
}

/// Reads the next message of the new process, which must be of `kind`.
fn expect_message(
    stream: &mut StdStream,
    kind: Kind,
    what: &'static str,
) -> Result<Vec<u8>, UpgradeError> {
    match protocol::read(stream).map_err(broken("waiting for the new process"))? {
        (Kind::Failed, why) => Err(UpgradeError::Failed(String::from_utf8_lossy(&why).into())),
        (received, body) if received == kind => Ok(body),
        _ => Err(UpgradeError::Unexpected(what)),
    }
}

impl Candidate {
    /// Sends the counters. Must not be cancelled; it has its own deadline.
    pub async fn send_counters(self, shared: &Arc<Shared>) -> Result<Successor, UpgradeError> {
        let shared = shared.clone();
        let moved = tokio::task::spawn_blocking(move || self.send_blocking(&shared)).await;
        // A panic there is a bug, and drops the closed shards: they cannot be opened again.
        moved.map_err(|error| broken("sending the counters")(error.into()))?
    }

    fn send_blocking(mut self, shared: &Shared) -> Result<Successor, UpgradeError> {
        let from = shared.clock.now().tick;
        shared.limiter.set_owner(LimitOwner::Moving);
        let mut closed_shards = Vec::new();
        let states = match send_states(&mut self.stream, shared, &mut closed_shards) {
            Ok(states) => states,
            Err(why) => {
                // First: both must not have the counters.
                let why = self.started.end(why);
                for (nth, closed) in closed_shards.into_iter().enumerate() {
                    shared.limiter.store.reopen(nth, closed);
                }
                shared.limiter.boosts.reopen();
                shared.limiter.set_owner(LimitOwner::Here);
                return Err(why);
            }
        };
        let child = self.started.0.take().expect("only its end takes it before");
        let (owner, checks_to_send) = mpsc::channel(REMOTE_CHECKS_MAX);
        shared.limiter.set_owner(LimitOwner::There(owner));
        let seconds = shared.clock.now().tick.since(from).as_secs_f64();
        Ok(Successor { child, stream: self.stream, checks_to_send, states, seconds })
    }
}

/// Closes one shard after another and sends its states. Returns how many there were.
pub(super) fn send_states(
    stream: &mut StdStream,
    shared: &Shared,
    closed_shards: &mut Vec<Closed>,
) -> Result<usize, UpgradeError> {
    let sending = "sending the counters";
    stream.set_read_timeout(Some(MOVE_WAIT)).map_err(broken(sending))?;
    let deadline = shared.clock.now().tick.plus(MOVE_WAIT);
    let boosts = shared.limiter.boosts.close();
    let mut count = 0;
    let mut piece = Vec::with_capacity(2 * PIECE_BYTES);
    for nth in 0..shared.limiter.store.shards() {
        let Some(closed) = shared.limiter.store.close(nth) else { break };
        let now = shared.clock.now();
        closed_shards.push(closed);
        if now.tick > deadline {
            return Err(UpgradeError::Slow);
        }
        let counted = shared.limiter.earliest(now).tick;
        for kept in closed_shards.last().into_iter().flat_map(|closed| closed.each(counted)) {
            count += 1;
            snapshot::put(&mut piece, kept, of_machine(counted));
            if piece.len() >= PIECE_BYTES {
                protocol::write(stream, Kind::States, &piece).map_err(broken(sending))?;
                piece.clear();
            }
        }
    }
    let now = shared.limiter.earliest(shared.clock.now()).tick;
    let synced = shared.limiter.synced();
    for own in synced.keys {
        snapshot::put_synced(&mut piece, &own, of_machine(now));
        if piece.len() >= PIECE_BYTES {
            protocol::write(stream, Kind::States, &piece).map_err(broken(sending))?;
            piece.clear();
        }
    }
    protocol::write(stream, Kind::States, &piece).map_err(broken(sending))?;
    let boosts = boosts
        .into_iter()
        .map(|(key, boost)| (key.bits().to_le_bytes(), boost.raised.to_json(), boost.until.0));
    // Read last: a reload during the transfer changes both values.
    let memory = Retention::of(&shared.active.load().rules);
    let keep_until = shared.limiter.store.kept_until().0;
    let (resets, boosts) = (synced.resets, boosts.collect());
    let rest = OtherStates { keep_until, memory, boosts, resets };
    let rest = serde_json::to_vec(&rest).map_err(|why| broken(sending)(why.into()))?;
    protocol::write(stream, Kind::Moved, &rest).map_err(broken(sending))?;
    stream.flush().map_err(broken(sending))?;
    expect_message(stream, Kind::Received, "its report that it has the counters").map(|_| count)
}

/// The moment of a tick for both processes: both read the machine's monotonic clock, or the shared
/// store's, so that the transfer needs no wall clock, which could be set meanwhile.
pub(super) fn of_machine(tick: Tick) -> Moment {
    Moment { tick, unix: UnixTime(tick.0) }
}

impl Successor {
    /// Its process id.
    pub fn process(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// What the log says of the transfer.
    pub fn details(&self) -> [(&'static str, Value); 3] {
        [
            ("process", json!(self.child.id())),
            ("states", json!(self.states)),
            ("seconds", json!(self.seconds)),
        ]
    }

    /// Forwards a stop signal that arrived during the transfer: it was meant for the process that
    /// serves.
    pub fn stop(&self) {
        // An error means that it has already exited.
        let _ = kill_process(self.process(), Signal::TERM);
    }

    /// Forwards checks until the other process ends. `end_requested` becomes true when that
    /// process requests this one to end, or has ended.
    pub async fn answer(self, shared: Arc<Shared>, end_requested: watch::Sender<bool>) {
        let Self { stream, mut checks_to_send, .. } = self;
        if let Err(error) = forward(stream, &mut checks_to_send, (&shared, &end_requested)).await {
            let fields = [("error", json!(error.to_string()))];
            events::event(Level::Error, "limit owner lost", &fields);
        }
        shared.limiter.set_owner(LimitOwner::Lost);
        let _ = end_requested.send(true);
    }
}

async fn forward(
    stream: StdStream,
    checks_to_send: &mut mpsc::Receiver<RemoteCheck>,
    (shared, end_requested): (&Shared, &watch::Sender<bool>),
) -> io::Result<()> {
    stream.set_nonblocking(true)?;
    let (reader, mut writer) = UnixStream::from_std(stream)?.into_split();
    let mut frames = Messages::new(reader);
    let mut waiting = VecDeque::new();
    let mut bytes = Vec::new();
    loop {
        tokio::select! {
            Some(first) = checks_to_send.recv(), if waiting.len() < PIPELINE_MAX => {
                bytes.clear();
                let mut next = Some(first);
                while let Some(RemoteCheck { checks, answer }) = next.take() {
                    let mut body = Vec::with_capacity(256 * checks.len());
                    protocol::put_checks(&mut body, &checks)?;
                    protocol::put(&mut bytes, Kind::Check, &body);
                    waiting.push_back((checks, answer));
                    if waiting.len() < PIPELINE_MAX {
                        next = checks_to_send.try_recv().ok();
                    }
                }
                writer.write_all(&bytes).await?;
            }
            ended = shared.limiter.next_ended() => {
                bytes.clear();
                let mut body = Vec::with_capacity(16 * ended.len());
                protocol::put_released(&mut body, &ended);
                protocol::put(&mut bytes, Kind::Released, &body);
                writer.write_all(&bytes).await?;
            }
            message = frames.next() => match message? {
                None => return Err(io::ErrorKind::UnexpectedEof.into()),
                Some((Kind::Answer, body)) => {
                    let mut answered = protocol::answer(&body, shared.clock.now())?;
                    let Some((checks, caller)) = waiting.pop_front() else { continue };
                    let verdict = &mut answered.verdict;
                    shared.limiter.hold(verdict, &checks);
                    // The receiver may be gone: the request is then released.
                    drop(caller.send(answered));
                }
                // The caller learns from the end of its channel that there is none.
                Some((Kind::NoVerdict, _)) => drop(waiting.pop_front()),
                Some((Kind::End, _)) => drop(end_requested.send(true)),
                Some(_) => return Err(io::ErrorKind::InvalidData.into()),
            }
        }
    }
}
