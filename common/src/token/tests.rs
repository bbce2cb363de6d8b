//! Verifies tokens of the published vectors (`vectors.json`), and of the known attacks (RFC 8725)
//! signed with the vectors' own keys.

mod published;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use proptest::prelude::*;
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, RSA_PKCS1_SHA256,
};
use ring::{hmac, rsa};
use serde_json::{Value, json};

use crate::token::*;

/// The time of every test, in Unix seconds.
const NOW: u64 = 1_800_000_000;

fn vectors() -> Value {
    serde_json::from_str(include_str!("vectors.json")).unwrap()
}

fn coded(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

fn part(key: &Value, name: &str) -> Vec<u8> {
    URL_SAFE_NO_PAD.decode(key[name].as_str().unwrap()).unwrap()
}

/// A vector's key as its issuer would publish it, with some members changed.
fn public(vector: &str, changes: Value) -> Value {
    let mut key = vectors()[vector]["key"].clone();
    let members = key.as_object_mut().unwrap();
    for name in ["d", "p", "q", "dp", "dq", "qi"] {
        members.shift_remove(name);
    }
    members.extend(changes.as_object().unwrap().clone());
    members.retain(|_, value| !value.is_null());
    key
}

fn set(keys: &[Value]) -> KeySet {
    KeySet::read(json!({ "keys": keys }).to_string().as_bytes()).unwrap()
}

/// The keys of all vectors, each with its vector's name as `kid`.
fn keys() -> KeySet {
    set(&["rs256", "es256", "eddsa"].map(|name| public(name, json!({ "kid": name }))))
}

/// Signs with a vector's key, whatever the header says.
fn sign(vector: &str, signed: &[u8]) -> Vec<u8> {
    let key = &vectors()[vector]["key"];
    let random = SystemRandom::new();
    match vector {
        "rs256" => {
            let names = ["n", "e", "d", "p", "q", "dp", "dq", "qi"];
            let [n, e, d, p, q, dp, dq, qi] = names.map(|name| part(key, name));
            let public_key = rsa::PublicKeyComponents { n, e };
            let key = rsa::KeyPairComponents { public_key, d, p, q, dP: dp, dQ: dq, qInv: qi };
            let key = rsa::KeyPair::from_components(&key).unwrap();
            let mut signature = vec![0; key.public().modulus_len()];
            key.sign(&RSA_PKCS1_SHA256, &random, signed, &mut signature).unwrap();
            signature
        }
        "es256" => {
            let point = [&[4], &*part(key, "x"), &*part(key, "y")].concat();
            let secret = part(key, "d");
            let algorithm = &ECDSA_P256_SHA256_FIXED_SIGNING;
            let key =
                EcdsaKeyPair::from_private_key_and_public_key(algorithm, &secret, &point, &random);
            key.unwrap().sign(&random, signed).unwrap().as_ref().to_vec()
        }
        _ => {
            let (secret, public) = (part(key, "d"), part(key, "x"));
            let key = Ed25519KeyPair::from_seed_and_public_key(&secret, &public).unwrap();
            key.sign(signed).as_ref().to_vec()
        }
    }
}

/// A token with exactly this header and payload, signed with a vector's key.
fn token(vector: &str, header: &str, payload: &str) -> String {
    let signed = format!("{}.{}", coded(header), coded(payload));
    let signature = coded(sign(vector, signed.as_bytes()));
    format!("{signed}.{signature}")
}

/// A valid token but for changes to its header and its claims; null removes a member.
fn changed(header: Value, claims: Value) -> String {
    let apply = |mut to: Value, changes: Value| {
        let members = to.as_object_mut().unwrap();
        members.extend(changes.as_object().unwrap().clone());
        members.retain(|_, value| !value.is_null());
        to.to_string()
    };
    let own = json!({ "iss": "https://id.test", "aud": "api", "exp": NOW + 60, "sub": "me" });
    let header = apply(json!({ "alg": "EdDSA", "kid": "eddsa" }), header);
    token("eddsa", &header, &apply(own, claims))
}

fn terms() -> Terms {
    Terms {
        issuer: "https://id.test".to_owned(),
        audience: vec!["api".to_owned(), "other".to_owned()],
        algorithms: vec![Algorithm::Rs256, Algorithm::Es256, Algorithm::EdDsa],
        leeway: Duration::from_secs(30),
    }
}

fn judged(token: &str, keys: &KeySet, terms: &Terms) -> Result<UnixTime, Flaw> {
    verify(token, keys, terms, UnixTime(NOW * 1_000_000)).map(|verified| verified.expires)
}

#[track_caller]
fn check(token: &str, flaw: Option<Flaw>) {
    assert_eq!(judged(token, &keys(), &terms()).err(), flaw, "{token}");
}

#[test]
fn the_published_examples_verify() {
    for name in ["rs256", "es256", "eddsa"] {
        let keys = set(&[public(name, json!({}))]);
        let vectors = vectors();
        let jws = Jws::read(vectors[name]["token"].as_str().unwrap()).unwrap();
        assert_eq!(keys.check(&jws), Ok(()), "{name}");
        let other = KeySet::read(
            json!({ "keys": [public(name, json!({ "kid": "x" }))] }).to_string().as_bytes(),
        )
        .unwrap();
        assert_eq!(other.check(&jws), Ok(()), "without a name every key is tried");
    }
    let token = vectors()["rs256"]["token"].as_str().unwrap().to_owned();
    let terms = Terms { issuer: "joe".to_owned(), ..terms() };
    let keys = set(&[public("rs256", json!({}))]);
    assert_eq!(judged(&token, &keys, &terms), Err(Flaw::Audience), "its claims are looked at");
}

#[test]
fn a_token_of_each_kind_is_valid_until_it_expires() {
    for (name, alg) in [("rs256", "RS256"), ("es256", "ES256"), ("eddsa", "EdDSA")] {
        let header = json!({ "alg": alg, "kid": name, "typ": "at+jwt" }).to_string();
        let claims = json!({ "iss": "https://id.test", "aud": ["x", "api"], "exp": NOW + 60 });
        let token = token(name, &header, &claims.to_string());
        let expires = UnixTime((NOW + 60 + 30) * 1_000_000);
        assert_eq!(judged(&token, &keys(), &terms()), Ok(expires));
        let at = |micros| verify(&token, &keys(), &terms(), UnixTime(micros)).map(|v| v.expires);
        assert_eq!(at(expires.0 - 1), Ok(expires));
        assert_eq!(at(expires.0), Err(Flaw::Expired));
    }
    check(&changed(json!({ "alg": "Ed25519" }), json!({})), None);
}

#[test]
fn every_change_of_a_single_character_is_detected() {
    for name in ["rs256", "es256", "eddsa"] {
        let alg = if name == "eddsa" { "EdDSA".to_owned() } else { name.to_uppercase() };
        let claims = json!({ "iss": "https://id.test", "aud": "api", "exp": NOW + 60 });
        let header = json!({ "alg": alg, "kid": name }).to_string();
        let token = token(name, &header, &claims.to_string());
        for at in 0..token.len() {
            let by = if &token[at..=at] == "A" { "B" } else { "A" };
            let wrong = format!("{}{by}{}", &token[..at], &token[at + 1..]);
            assert!(judged(&wrong, &keys(), &terms()).is_err(), "{name}: {at}");
        }
    }
}

#[test]
fn an_algorithm_is_the_keys_and_never_the_tokens() {
    for alg in [
        "none", "None", "NONE", "nOnE", "", "HS256", "HS384", "HS512", "RS384", "RS512", "PS256",
        "ES384", "ES256K", "rs256", "Ed448", "RSA-OAEP",
    ] {
        check(&changed(json!({ "alg": alg }), json!({})), Some(Flaw::Algorithm));
    }
    for alg in [json!(1), json!(["EdDSA"]), json!({}), Value::Null] {
        check(&changed(json!({ "alg": alg }), json!({})), Some(Flaw::Malformed));
    }
    // The `kid` of one key, and the algorithm of another.
    for alg in ["RS256", "ES256"] {
        check(&changed(json!({ "alg": alg }), json!({})), Some(Flaw::Algorithm));
    }
    let only = Terms { algorithms: vec![Algorithm::Rs256], ..terms() };
    assert_eq!(judged(&changed(json!({}), json!({})), &keys(), &only), Err(Flaw::Algorithm));
}

#[test]
fn a_public_key_is_no_secret_to_sign_with() {
    let key = public("rs256", json!({}));
    let claims = json!({ "iss": "https://id.test", "aud": "api", "exp": NOW + 60 });
    for secret in [part(&key, "n"), key.to_string().into_bytes(), Vec::new()] {
        let mac = hmac::Key::new(hmac::HMAC_SHA256, &secret);
        for alg in ["HS256", "RS256"] {
            let header = json!({ "alg": alg, "kid": "rs256" }).to_string();
            let signed = format!("{}.{}", coded(header), coded(claims.to_string()));
            let tag = hmac::sign(&mac, signed.as_bytes());
            let flaw = if alg == "HS256" { Flaw::Algorithm } else { Flaw::Signature };
            check(&format!("{signed}.{}", coded(tag)), Some(flaw));
        }
    }
}

#[test]
fn a_key_that_the_token_brings_along_is_not_believed() {
    let own = public("eddsa", json!({ "kid": "mine" }));
    for header in [
        json!({ "jwk": own, "kid": "mine" }),
        json!({ "jku": "https://evil.test/keys", "kid": "mine" }),
        json!({ "x5u": "https://evil.test/cert", "kid": "../../dev/null" }),
        json!({ "kid": "' OR 1=1 --" }),
        json!({ "kid": "" }),
    ] {
        check(&changed(header, json!({})), Some(Flaw::UnknownKey));
    }
    check(&changed(json!({ "jwk": own }), json!({})), None);
    check(&changed(json!({ "kid": 7 }), json!({})), Some(Flaw::Malformed));
}

#[test]
fn a_signature_of_zeros_or_of_another_form_is_none() {
    let signed = |header: Value| {
        let claims = json!({ "iss": "https://id.test", "aud": "api", "exp": NOW + 60 });
        format!("{}.{}", coded(header.to_string()), coded(claims.to_string()))
    };
    let ecdsa = signed(json!({ "alg": "ES256", "kid": "es256" }));
    let mut der = vec![0x30, 0x44, 2, 32];
    der.extend(&sign("es256", ecdsa.as_bytes())[..32]);
    for signature in [vec![0; 64], vec![], vec![0; 63], vec![1; 65], der] {
        check(&format!("{ecdsa}.{}", coded(signature)), Some(Flaw::Signature));
    }
    let edwards = signed(json!({ "alg": "EdDSA", "kid": "eddsa" }));
    for signature in [vec![0; 64], vec![], vec![255; 64]] {
        check(&format!("{edwards}.{}", coded(signature)), Some(Flaw::Signature));
    }
    let rsa = signed(json!({ "alg": "RS256", "kid": "rs256" }));
    for signature in [vec![0; 256], vec![], vec![1], vec![255; 256]] {
        check(&format!("{rsa}.{}", coded(signature)), Some(Flaw::Signature));
    }
}

#[test]
fn what_has_two_readings_has_none() {
    let whole = changed(json!({}), json!({}));
    let (rest, signature) = whole.rsplit_once('.').unwrap();
    let header = r#"{"alg":"EdDSA","kid":"eddsa","alg":"none"}"#;
    let claims = format!("{{\"iss\":\"https://id.test\",\"aud\":\"api\",\"exp\":{}", NOW + 60);
    let good = "{\"alg\":\"EdDSA\",\"kid\":\"eddsa\"}";
    for wrong in [
        String::new(),
        ".".to_owned(),
        "..".to_owned(),
        "...".to_owned(),
        rest.to_owned(),
        format!("{whole}."),
        format!("{whole}.x"),
        format!("{whole}="),
        format!("{whole}=="),
        format!(" {whole}"),
        format!("{whole}\n"),
        format!("{rest}=.{signature}"),
        whole.replace('.', "..").replacen("..", ".", 1),
        format!("{rest}.{}", signature.replace('_', "/").replace('-', "+") + "+"),
        format!("a.b.c.d.{signature}"),
        "{\"payload\":\"\",\"signatures\":[]}".to_owned(),
        token("eddsa", header, &format!("{claims}}}")),
        token("eddsa", good, &format!("{claims},\"exp\":9999999999}}")),
        token("eddsa", good, &format!("{claims},\"a\":{{\"b\":1,\"b\":2}}}}")),
        token("eddsa", good, "[]"),
        token("eddsa", good, "x"),
        token("eddsa", good, ""),
        token("eddsa", "[]", &format!("{claims}}}")),
    ] {
        check(&wrong, Some(Flaw::Malformed));
    }
    check(&token("eddsa", good, &format!("{claims}}}")), None);
}

#[test]
fn bits_that_base64_leaves_over_are_nought() {
    // 64 bytes leave four bits over in the last character, which must be zero.
    let whole = changed(json!({}), json!({}));
    let last = whole.chars().last().unwrap();
    let alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    for other in alphabet.chars().filter(|other| *other != last) {
        let wrong = format!("{}{other}", &whole[..whole.len() - 1]);
        assert!(judged(&wrong, &keys(), &terms()).is_err(), "{other}");
    }
}

#[test]
fn a_token_of_another_type_or_with_an_unknown_extension_is_none() {
    for typ in ["JWT", "jwt", "at+jwt", "AT+JWT", "application/at+jwt", "application/jwt"] {
        check(&changed(json!({ "typ": typ }), json!({})), None);
    }
    for typ in [json!("dpop+jwt"), json!("logout+jwt"), json!("secevent+jwt"), json!(""), json!(1)]
    {
        check(&changed(json!({ "typ": typ }), json!({})), Some(Flaw::Malformed));
    }
    for crit in [json!(["exp"]), json!([]), json!(["b64"]), json!("b64")] {
        let header = json!({ "crit": crit, "exp": 1, "b64": false });
        check(&changed(header, json!({})), Some(Flaw::Malformed));
    }
}

#[test]
fn a_token_has_a_size() {
    let with = |bytes: usize| changed(json!({}), json!({ "pad": "x".repeat(bytes) }));
    let fits = (0..).step_by(3).map(with).take_while(|t| t.len() <= TOKEN_BYTES_MAX).last();
    check(&fits.unwrap(), None);
    check(&with(TOKEN_BYTES_MAX), Some(Flaw::Malformed));
}

#[test]
fn issuer_and_audience_match_byte_for_byte() {
    for iss in [
        json!("https://id.test/"),
        json!("HTTPS://id.test"),
        json!(["https://id.test"]),
        json!(""),
        Value::Null,
    ] {
        check(&changed(json!({}), json!({ "iss": iss })), Some(Flaw::Issuer));
    }
    for aud in [
        json!("API"),
        json!(["x"]),
        json!([]),
        json!(["api", 1]),
        json!({ "api": 1 }),
        json!(true),
        Value::Null,
    ] {
        check(&changed(json!({}), json!({ "aud": aud })), Some(Flaw::Audience));
    }
    check(&changed(json!({}), json!({ "aud": ["x", "other"] })), None);
}

#[test]
fn a_token_has_its_time() {
    let late = |exp: Value| changed(json!({}), json!({ "exp": exp }));
    for (exp, flaw) in [
        (json!(NOW - 29), None),
        (json!(NOW as f64 - 29.5), None),
        (json!(NOW - 30), Some(Flaw::Expired)),
        (json!(NOW as f64 - 30.5), Some(Flaw::Expired)),
        (json!(0), Some(Flaw::Expired)),
        (json!(-1), Some(Flaw::Expired)),
        (json!(u64::MAX), None),
        (json!(1e300), None),
        (json!("1900000000"), Some(Flaw::Malformed)),
        (json!(true), Some(Flaw::Malformed)),
        (Value::Null, Some(Flaw::Expired)),
    ] {
        check(&late(exp), flaw);
    }
    for claim in ["nbf", "iat"] {
        let early = |value: Value| changed(json!({}), json!({ claim: value }));
        check(&early(json!(NOW + 30)), None);
        check(&early(json!(NOW + 31)), Some(Flaw::Early));
        check(&early(json!(NOW as f64 + 30.5)), Some(Flaw::Early));
        check(&early(json!("x")), Some(Flaw::Malformed));
    }
}

#[test]
fn claims_are_not_read_before_the_signature_is_verified() {
    let expired = changed(json!({}), json!({ "exp": 1, "iss": "x" }));
    let (signed, _) = expired.rsplit_once('.').unwrap();
    check(&format!("{signed}.{}", coded([0; 64])), Some(Flaw::Signature));
}

proptest! {
    #[test]
    fn no_arbitrary_text_is_a_token_and_every_one_is_refused(
        text in "[ -~]{0,40}(\\.[A-Za-z0-9_-]{0,60}){0,4}",
    ) {
        prop_assert!(judged(&text, &keys(), &terms()).is_err());
    }

    #[test]
    fn bytes_of_any_kind_are_no_keys_and_no_claims(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        prop_assert!(KeySet::read(&bytes).is_err());
        let _ = Claims::read(&bytes);
    }
}
