//! Which keys of a published set are accepted, how many are tried, and where claims are found.

use crate::token::claims::NAMES_MAX;
use crate::token::keys::KEYS_MAX;
use crate::token::tests::*;

#[test]
fn keys_that_are_not_for_us_are_passed_over() {
    for (vector, change) in [
        ("rs256", json!({ "use": "enc" })),
        ("rs256", json!({ "use": 1 })),
        ("rs256", json!({ "alg": "RS512" })),
        ("rs256", json!({ "alg": "ES256" })),
        ("rs256", json!({ "alg": "RSA-OAEP" })),
        ("rs256", json!({ "key_ops": ["encrypt"] })),
        ("rs256", json!({ "key_ops": "verify" })),
        ("rs256", json!({ "kty": "oct", "k": "AAAA" })),
        ("rs256", json!({ "d": "AQAB" })),
        ("rs256", json!({ "e": "AQ" })),
        ("rs256", json!({ "e": "AAAA" })),
        ("rs256", json!({ "e": "Ag" })),
        ("rs256", json!({ "e": coded([1; 5]) })),
        ("rs256", json!({ "n": coded([1; 128]) })),
        ("rs256", json!({ "n": coded([255; 1025]) })),
        ("rs256", json!({ "n": coded([2; 256]) })),
        ("rs256", json!({ "n": "" })),
        ("rs256", json!({ "n": "!" })),
        ("rs256", json!({ "kid": 1 })),
        ("es256", json!({ "crv": "P-384" })),
        ("es256", json!({ "crv": "secp256k1" })),
        ("es256", json!({ "x": coded([1; 31]) })),
        ("es256", json!({ "y": null })),
        ("es256", json!({ "alg": "RS256" })),
        ("eddsa", json!({ "crv": "X25519" })),
        ("eddsa", json!({ "x": coded([1; 33]) })),
        ("eddsa", json!({ "kty": "EC" })),
    ] {
        let text = json!({ "keys": [public(vector, change.clone())] }).to_string();
        assert_eq!(KeySet::read(text.as_bytes()), Err(keys::Unusable::Empty), "{vector} {change}");
    }
    for (vector, change) in [
        ("rs256", json!({ "use": "sig", "alg": "RS256", "key_ops": ["verify"], "x5t": "x" })),
        ("rs256", json!({ "n": coded([&[0], &*part(&public("rs256", json!({})), "n")].concat()) })),
        ("es256", json!({ "alg": "ES256" })),
        ("eddsa", json!({ "alg": "Ed25519" })),
        ("eddsa", json!({ "alg": "EdDSA" })),
    ] {
        let keys = set(&[json!(1), json!({}), public(vector, change)]);
        assert_eq!(keys.len(), 1);
        let vectors = vectors();
        let jws = Jws::read(vectors[vector]["token"].as_str().unwrap()).unwrap();
        assert_eq!(keys.check(&jws), Ok(()));
    }
}

#[test]
fn a_set_of_keys_has_a_size_and_one_reading() {
    let many =
        |count: usize| json!({ "keys": vec![public("eddsa", json!({})); count] }).to_string();
    assert_eq!(KeySet::read(many(KEYS_MAX).as_bytes()).unwrap().len(), KEYS_MAX);
    assert_eq!(KeySet::read(many(KEYS_MAX + 1).as_bytes()), Err(keys::Unusable::TooMany));
    for text in ["", "[]", "{}", "{\"keys\":{}}", "{\"keys\":[],\"keys\":[]}", "<html>"] {
        assert_eq!(KeySet::read(text.as_bytes()), Err(keys::Unusable::Malformed), "{text}");
    }
    assert_eq!(KeySet::read(b"{\"keys\":[]}"), Err(keys::Unusable::Empty));
}

#[test]
fn two_keys_of_one_name_are_both_tried_and_a_hundred_are_not() {
    let other = public("eddsa", json!({ "kid": "eddsa", "x": coded([9; 32]) }));
    let own = public("eddsa", json!({ "kid": "eddsa" }));
    let token = changed(json!({}), json!({}));
    let with = |others: usize| set(&[vec![other.clone(); others], vec![own.clone()]].concat());
    assert!(judged(&token, &with(1), &terms()).is_ok());
    assert!(judged(&token, &with(3), &terms()).is_ok());
    assert_eq!(judged(&token, &with(4), &terms()), Err(Flaw::Signature));
    let nameless = changed(json!({ "kid": null }), json!({}));
    assert!(judged(&nameless, &with(1), &terms()).is_ok());
    assert_eq!(judged(&nameless, &set(&[other]), &terms()), Err(Flaw::UnknownKey));
}

#[test]
fn a_claim_is_found_by_its_whole_name_or_else_by_its_steps() {
    let claims = Claims::read(
        br#"{"ws":"ws_a","a":{"b":{"c":["x","y"]},"n":1},"https://e.test/ws":"ws_b",
            "a.b":"whole","mixed":["ok","not ok","",7,null,["z"]],"none":null,"empty":[],
            "bad":"a/b","flag":true}"#,
    )
    .unwrap();
    for (path, names) in [
        ("ws", Some(vec!["ws_a"])),
        ("a.b.c", Some(vec!["x", "y"])),
        ("https://e.test/ws", Some(vec!["ws_b"])),
        ("a.b", Some(vec!["whole"])),
        ("mixed", Some(vec!["ok"])),
        ("empty", Some(vec![])),
        ("bad", Some(vec![])),
        ("a", Some(vec![])),
        ("a.n", Some(vec![])),
        ("flag", Some(vec![])),
        ("none", Some(vec![])),
        ("missing", None),
        ("a.x", None),
        ("ws.x", Some(vec![])),
        ("", None),
        (".", None),
    ] {
        let names = names.map(|names| names.into_iter().map(Box::from).collect());
        assert_eq!(claims.names(path), names, "{path}");
    }
    let many = json!({ "ws": vec!["a"; NAMES_MAX + 1] }).to_string();
    assert_eq!(Claims::read(many.as_bytes()).unwrap().names("ws").unwrap().len(), NAMES_MAX);
}
