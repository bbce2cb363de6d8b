//! What clients and operators are promised of the script, whatever its model says.

use proptest::prelude::*;
use weir_common::limit::calendar::CalendarUnit;

use super::changes::{bucket, calendar};
use super::*;

const MINUTE: Duration = Duration::from_secs(60);

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn no_window_admits_more_than_its_quota(
        requests in 1..20_u32,
        waits in prop::collection::vec(0..9_000_000_u64, 1..300),
        window in prop::sample::select(vec![MINUTE, 70 * MINUTE, 744 * 60 * MINUTE]),
    ) {
        let (mut store, key) = (Store::open(), fresh_key());
        let (length, mut admitted) = (micros(window), Vec::new());
        for wait in waits {
            // Waits of nothing are many at once, and some are as long as the window.
            store.now += if wait % 3 == 0 { 0 } else { wait * (length / 60_000_000) };
            let reply = store.call(&[check(&key, rolling(requests, window), 1)]);
            if reply.outcome == SharedOutcome::Admitted {
                admitted.push(store.now);
            }
        }
        for (nth, from) in admitted.iter().enumerate() {
            let within = admitted[nth..].iter().filter(|at| *at - from < length).count();
            prop_assert!(within <= requests as usize);
        }
    }

    #[test]
    fn a_malformed_reply_is_an_error(cut in 0..200_usize, at in 0..100_usize, byte: u8) {
        let checks = [check(b"a", rolling(5, MINUTE), 1), check(b"b", rolling(5, MINUTE), 1)];
        let mut reply = vec![0; 9 + 2 * 38];
        prop_assert!(decode(&reply, &checks).is_ok());
        reply[at % 85] = byte;
        let _ = decode(&reply, &checks);
        reply.resize(cut, byte);
        prop_assert!(cut == 85 || cut == 9 || decode(&reply, &checks).is_err());
    }
}

#[test]
fn numbers_that_no_script_writes_are_errors() {
    let checks = [check(b"a", rolling(5, MINUTE), 1)];
    let with = |at: usize, bytes: &[u8]| {
        let mut reply = vec![0; 47];
        reply[at..at + bytes.len()].copy_from_slice(bytes);
        decode(&reply, &checks).map(|_| ())
    };
    assert_eq!(with(0, &[0]), Ok(()));
    assert_eq!(with(0, &[4]), Err(BadReply::Unknown(4)));
    assert_eq!(with(9, &[3]), Err(BadReply::Unknown(3)));
    assert_eq!(with(10, &[2]), Err(BadReply::Unknown(2)));
    for time in [-1.0, 0.5, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        for at in [1, 11, 23, 31, 39] {
            assert_eq!(with(at, &time.to_be_bytes()), Err(BadReply::Time), "{time} {at}");
        }
    }
    assert_eq!(decode(&[], &checks), Err(BadReply::Length(0)));
    assert!(
        decode(&[3, 0, 0, 0, 0, 0, 0, 0, 0], &checks)
            .is_ok_and(|reply| reply.outcome == SharedOutcome::Late)
    );
}

#[test]
fn a_call_that_is_late_charges_nothing() {
    let mut store = Store::open();
    let quotas = [
        rolling(5, MINUTE),
        rolling(100_000, MINUTE),
        bucket("7/s", 5),
        calendar(CalendarUnit::Day, 5, START),
    ];
    for quota in quotas {
        let checks = [check(&fresh_key(), quota, 1)];
        let reply = store.call_as(&checks, CallMode::Charge, Some(UnixTime(START - 1)));
        assert_eq!((reply.outcome, reply.now), (SharedOutcome::Late, UnixTime(START)));
        assert_eq!(store.connection.call(&[b"EXISTS", &checks[0].key[..]]), Value::Number(0));
        let reply = store.call_as(&checks, CallMode::Charge, Some(UnixTime(START)));
        assert_eq!(reply.outcome, SharedOutcome::Admitted);
    }
}

#[test]
fn a_state_that_cannot_be_read_is_an_error_that_names_its_key() {
    let mut store = Store::open();
    let quotas = [rolling(5, MINUTE), bucket("7/s", 5), calendar(CalendarUnit::Day, 5, START)];
    let long = vec![b'x'; 5_000];
    let almost = [&[7; 90][..], b"\0\0\0\x01w1"].concat();
    for quota in quotas {
        for state in [&b"5"[..], b"w1", b"\0\0\0\0b1", b"\0\0\0\0c1", &almost, &long] {
            let [key, other] = [fresh_key(), fresh_key()];
            store.connection.call(&[b"SET", &key[..], state]);
            // Nothing is charged to the other limits either.
            let checks = [check(&other, quota, 1), check(&key, quota, 1)];
            let Value::Error(error) = store.reply(&checks, CallMode::Charge, None) else {
                panic!("{state:?} under {quota:?}")
            };
            let name = String::from_utf8(key.clone()).unwrap();
            assert!(error.contains("WEIR unreadable") && error.contains(&name), "{error}");
            assert_eq!(store.connection.call(&[b"EXISTS", &other[..]]), Value::Number(0));
            assert_eq!(store.connection.call(&[b"GET", &key[..]]), Value::Text(state.to_vec()));
        }
    }
}

#[test]
fn a_state_lives_at_least_as_long_as_it_matters() {
    let mut store = Store::open();
    let quotas = [
        (rolling(900, MINUTE), 60_000),
        (rolling(3, MINUTE), 60_000),
        (rolling(100_000, MINUTE), 60_059),
        (bucket("7/15m", 500), 128_571),
        (calendar(CalendarUnit::Day, 500, START), 172_800_000),
    ];
    for ((quota, millis), token) in quotas.into_iter().flat_map(|one| [(one, 0_i64), (one, 9_000)])
    {
        let key = fresh_key();
        // What is used may have to come back one token after the other, under another plan.
        let own = Horizon::of([quota]);
        let horizon = Horizon { token: own.token.max(token.unsigned_abs() * 1_000), ..own };
        let left = |store: &mut Store| {
            let Value::Number(left) = store.connection.call(&[b"PTTL", &key[..]]) else { panic!() };
            left
        };
        for nth in 0..400 {
            let reply = store.call(&[SharedCheck { horizon, ..check(&key, quota, 1) }]);
            if reply.outcome == SharedOutcome::Admitted {
                let millis =
                    millis.max(i64::from(quota.limit() - reply.results[0].remaining) * token);
                // Some of the server's own time passes, too.
                let least = if nth == 0 { 2 * millis } else { millis * 5 / 4 };
                assert!(left(&mut store) > least - 5_000, "{quota:?} at its charge {nth}");
            }
            store.now += 400_000;
            // As if the server's clock had moved, too.
            let left = (left(&mut store) - 400).to_string().into_bytes();
            store.connection.call(&[b"PEXPIRE", &key[..], &left]);
        }
    }
}
