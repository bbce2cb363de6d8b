//! The settings of a run.

use weir_tests::rng::SeededRng;

use crate::orders::OPERATOR_URL;

/// The window of the rate limit, in seconds: attempts may also last longer.
pub(crate) fn window(rng: &mut SeededRng) -> u64 {
    *rng.pick(&[60, 60, 60, 3]).unwrap()
}

/// The contract's settings, or similar ones: another pace, cap, deadline or `pause_after`. The
/// window is the same throughout a run: what a receiver may see while it changes is not judged.
pub(crate) fn config(rng: &mut SeededRng, window: u64) -> String {
    let requests: u64 = *rng.pick(&[100, 100, 20, 20, 6]).unwrap();
    let total = *rng.pick(&[4_096, 40, 20]).unwrap();
    let pause_after = rng.pick(&["24h", "24h", "3h", "20m"]).unwrap();
    let deadline = *rng.pick(&[10, 10, 4, 15]).unwrap();
    let multiple = rng.pick(&[10, 2, 1]).unwrap();
    let mode = rng.pick(&["delay", "delay", "delay", "offset"]).unwrap();
    // One unresponsive endpoint must not be able to use all of them.
    let total = total.max((requests * deadline).div_ceil(window) + 3);
    format!(
        "[auth]\ntokens = \"t\"\n[directory]\nsource = \"file\"\npath = \"d\"\n\
         [egress]\nrequests = {requests}\nwindow = \"{window}s\"\nhost_multiple = {multiple}\n\
         in_flight_max = {total}\ndeadline = \"{deadline}s\"\n\
         [attempts]\nprivate_answers = true\n\
         [retry]\nmode = \"{mode}\"\n\
         [health]\npause_after = \"{pause_after}\"\n\
         [operator]\nurl = \"{OPERATOR_URL}\"\nsecret_file = \"o\"\n\
         [mail]\nsmtp = \"smtp://127.0.0.1\"\nfrom = \"weir@example.com\"\n"
    )
}
