//! Virtual time: everything runs on one thread, and all clocks go on with the runtime's.

use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use tokio::runtime::Builder;
use tokio::task::LocalSet;
use tokio::time::Instant;
use weir_common::time::{Clock, UnixTime};

/// All clocks of machines.
pub(crate) type Clocks = Arc<Mutex<Vec<Clock>>>;

/// When the monotonic clocks of machines showed 0, in microseconds since 1970: as a day began.
pub(crate) const BOOTED: u64 = 20_600 * 86_400_000_000;

/// The clock of a machine, at this time in microseconds since 1970.
pub(crate) fn clock_at(now: u64) -> Clock {
    let clock = Clock::manual(UnixTime(now - BOOTED));
    clock.set(UnixTime(now));
    clock
}

/// Runs this to its end. The clocks that it adds go on with the runtime's.
pub(crate) fn run<T>(clocks: &Clocks, run: impl Future<Output = T>) -> T {
    let epoch = Arc::new(OnceLock::new());
    let runtime = Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .on_thread_unpark(following(clocks.clone(), epoch.clone()))
        .build()
        .unwrap();
    LocalSet::new().block_on(&runtime, async {
        epoch.set(Instant::now()).unwrap();
        run.await
    })
}

/// Lets all clocks go on with the runtime's, before anything runs at a new time.
fn following(clocks: Clocks, epoch: Arc<OnceLock<Instant>>) -> impl Fn() + Send + Sync + 'static {
    let known = Mutex::new(Duration::ZERO);
    move || {
        let Some(epoch) = epoch.get() else { return };
        let mut known = known.lock().unwrap();
        let now = epoch.elapsed();
        let passed = now - *known;
        *known = now;
        for clock in &*clocks.lock().unwrap() {
            clock.advance(passed);
        }
    }
}
