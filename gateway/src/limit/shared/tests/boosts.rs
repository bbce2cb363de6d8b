//! What a store keeps of boosts.

use super::super::super::changes::FORGET_ENDED;
use super::*;

#[test]
fn a_boost_that_was_set_since_the_earlier_one_was_read_is_not_forgotten_with_that() {
    let (mut connection, key) = (server::shared().connect(), fresh_key());
    let script = connection.load(FORGET_ENDED);
    for (field, text) in [("a", "ended"), ("b", "set since"), ("c", "active")] {
        connection.call(&[b"HSET", &key[..], field.as_bytes(), text.as_bytes()]);
    }
    let read = ["a", "ended", "b", "ended", "d", "ended"];
    let mut call = vec![b"EVALSHA".to_vec(), script, b"1".to_vec(), key.clone()];
    call.extend(read.map(|text| text.as_bytes().to_vec()));
    assert_eq!(connection.call(&call), Value::Nothing);
    let left = ["a", "b", "c"].map(|field| {
        connection.call(&[b"HEXISTS", &key[..], field.as_bytes()]) == Value::Number(1)
    });
    assert_eq!(left, [false, true, true]);
}
