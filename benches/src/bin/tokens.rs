//! Measures the cost of a request's token: on first use, with the signature check, and when cached.
//!
//! It covers the gateway's whole path from the request head to the token's claims, with keys
//! from a server in this program. The tokens differ in one claim and have a typical size.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use pingora_http::RequestHeader;
use ring::rand::SystemRandom;
use ring::rsa;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, RSA_PKCS1_SHA256,
};
use serde_json::{Value, json};
use tokio::runtime::Builder;
use tokio::sync::Notify;
use weir_benches::flags::{Flags, fail};
use weir_benches::report::{Series, table};
use weir_common::allocator::Allocator;
use weir_common::config::file::ConfigFile;
use weir_common::identity::{Unbounded, refresh_jwks};
use weir_common::time::{Clock, Moment};
use weir_gateway::config::active::ActiveConfig;
use weir_gateway::config::checked::{Config, USUAL};
use weir_gateway::identity::auth::{self, Verifier};
use weir_gateway::limit::key::Seed;
use weir_gateway::telemetry::metrics::Metrics;

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

const USAGE: &str = "usage: tokens [--rounds 7] [--tokens 2000] [--requests 500000]";
/// The public example keys of RFC 7515 and RFC 8037.
const VECTORS: &str = include_str!("../../../common/src/token/vectors.json");
const FIRST_WAIT: Duration = Duration::from_secs(5);
const KINDS: [(&str, &str); 3] = [("rs256", "RS256"), ("es256", "ES256"), ("eddsa", "EdDSA")];

fn main() {
    let mut flags = Flags::from_env(USAGE);
    let rounds: usize = flags.value("--rounds", 7);
    let tokens: usize = flags.value("--tokens", 2_000);
    let requests: usize = flags.value("--requests", 500_000);
    let [] = flags.rest();
    // As the gateway's main does, for the client that fetches keys.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let metrics = Arc::new(Metrics::new());
    let verifier = verifier(&serve_keys(), &metrics);
    let Ok(runtime) = Builder::new_current_thread().enable_all().build() else {
        fail("no runtime");
    };
    let never = Notify::new();
    let refreshed = refresh_jwks(|| Some(verifier.clone()), &never);
    let measured = runtime.block_on(async {
        tokio::select! {
            () = refreshed => fail("the keys are no longer refreshed"),
            rows = measure((&*verifier, &*metrics), [rounds, tokens, requests]) => rows,
        }
    });
    let head = ["token", "bytes", "first time, ns", "again, ns", "again, requests/s"];
    println!("{}", table("A request's token, one thread", &head, &measured));
}

async fn measure(
    with: (&Verifier, &Metrics),
    [rounds, tokens, requests]: [usize; 3],
) -> Vec<Vec<String>> {
    let clock = Clock::system();
    let mut rows = Vec::new();
    for (vector, alg) in KINDS {
        let (mut cold, mut warm) = (Series::default(), Series::default());
        let mut bytes = 0;
        for round in 0..rounds {
            let name = |n: usize| format!("{vector}-{round}-{n}");
            let made: Vec<String> = (0..tokens).map(|n| token(vector, alg, &name(n))).collect();
            bytes = made.first().map_or(0, String::len);
            let heads: Vec<RequestHeader> = made.iter().map(|token| head(token)).collect();
            let now = clock.now();
            let before = clock.now().tick;
            for head in &heads {
                verify(with, head, now).await;
            }
            cold.0.push(nanos(clock.now().tick.since(before), heads.len()));
            let before = clock.now().tick;
            for head in heads.iter().cycle().take(requests) {
                verify(with, head, now).await;
            }
            warm.0.push(nanos(clock.now().tick.since(before), requests));
        }
        let each_second = 1e9 / warm.median();
        let figures =
            [bytes.to_string(), cold.range(0), warm.range(0), format!("{each_second:.0}")];
        rows.push([vec![alg.to_owned()], figures.to_vec()].concat());
    }
    rows
}

async fn verify((verifier, metrics): (&Verifier, &Metrics), head: &RequestHeader, now: Moment) {
    match auth::verify(Some(verifier), &head.headers, now, metrics, &Unbounded).await {
        Ok(claims) if claims.workspaces.is_some() => {}
        other => fail(&format!("a token that holds was not taken: {other:?}")),
    }
}

fn nanos(took: Duration, times: usize) -> f64 {
    took.as_secs_f64() * 1e9 / times as f64
}

fn head(token: &str) -> RequestHeader {
    let made = RequestHeader::build("GET", b"/v1/workspaces/ws_acme/users", Some(4));
    let Ok(mut head) = made else { fail("no head") };
    if head.insert_header("authorization", format!("Bearer {token}")).is_err() {
        fail("no header");
    }
    head
}

/// A verifier with the shipped settings, and the keys at `url`.
fn verifier(url: &str, metrics: &Arc<Metrics>) -> Arc<Verifier> {
    let identity = format!(
        "verify = \"jwt\"\nplanes = [\"control\"]\n\
         jwt.jwks_url = \"{url}\"\njwt.issuer = \"https://id.test\"\n\
         jwt.audience = [\"https://api.test\"]\n"
    );
    let shipped = include_str!("../../../config/gateway.toml");
    let settings = shipped.replacen("verify = \"none\"", &identity, 1);
    let folder = std::env::temp_dir().join(format!("weir-tokens-{}", std::process::id()));
    let directory = folder.join("directory.toml");
    let settings = settings.replace("config/directory.toml", &directory.to_string_lossy());
    let path = folder.join("gateway.toml");
    let written = std::fs::create_dir_all(&folder)
        .and_then(|()| std::fs::write(&directory, ""))
        .and_then(|()| std::fs::write(&path, settings));
    if written.is_err() {
        fail("cannot write into the folder for temporary files");
    }
    let loaded =
        Config { file: ConfigFile::new(Some(path), USUAL) }.load(Seed::new(*b"sixteen bytes ok"));
    let _ = std::fs::remove_dir_all(&folder);
    let checked = loaded.unwrap_or_else(|diagnostics| fail(&format!("{diagnostics:?}")));
    let active = ActiveConfig::new(checked, None, metrics, &Clock::system());
    active.verifier.unwrap_or_else(|| fail("the settings have no token verified"))
}

/// Serves the keys to one request, and returns their URL.
fn serve_keys() -> String {
    let listener = TcpListener::bind("127.0.0.1:0");
    let Ok(listener) = listener else { fail("no port") };
    let Ok(address) = listener.local_addr() else { fail("no port") };
    let keys: Vec<Value> = KINDS.iter().map(|(vector, _)| public(vector)).collect();
    let body = json!({ "keys": keys }).to_string();
    let serve = move || {
        let Ok((mut stream, _)) = listener.accept() else { return };
        let _ = stream.set_read_timeout(Some(FIRST_WAIT));
        let _ = stream.read(&mut [0; 4096]);
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
        let _ = stream.write_all(format!("{head}{body}").as_bytes());
    };
    if std::thread::Builder::new().spawn(serve).is_err() {
        fail("no thread");
    }
    format!("http://{address}/keys")
}

fn key(vector: &str) -> Value {
    let all: Value = serde_json::from_str(VECTORS).unwrap_or_default();
    all.pointer(&format!("/{vector}/key")).cloned().unwrap_or_default()
}

fn public(vector: &str) -> Value {
    let mut key = key(vector);
    if let Some(members) = key.as_object_mut() {
        members.retain(|name, _| ["kty", "crv", "n", "e", "x", "y"].contains(&name.as_str()));
        members.insert("kid".to_owned(), vector.into());
    }
    key
}

fn token(vector: &str, alg: &str, subject: &str) -> String {
    let coded = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
    let header = json!({ "alg": alg, "typ": "at+jwt", "kid": vector });
    let claims = json!({
        "iss": "https://id.test",
        "aud": ["https://api.test"],
        "exp": 9_999_999_999_u64,
        "iat": 1_700_000_000,
        "jti": subject,
        "client_id": "a-client-of-the-usual-length",
        "sub": "8c1d5a3e-1d5f-4c59-b9a0-6a4d1f0d6e57",
        "scope": "openid profile email workspaces:read workspaces:write",
        "workspace_id": "ws_acme",
        "organisation_id": "org_acme",
    });
    let [header, claims] = [header, claims].map(|part| coded(part.to_string().as_bytes()));
    let signed = format!("{header}.{claims}");
    let Some(signature) = sign(vector, signed.as_bytes()) else { fail("cannot sign") };
    format!("{signed}.{}", coded(&signature))
}

fn sign(vector: &str, signed: &[u8]) -> Option<Vec<u8>> {
    let key = key(vector);
    let part = |name: &str| URL_SAFE_NO_PAD.decode(key.get(name)?.as_str()?).ok();
    let random = SystemRandom::new();
    match vector {
        "rs256" => {
            let public_key = rsa::PublicKeyComponents { n: part("n")?, e: part("e")? };
            let (d, p, q) = (part("d")?, part("p")?, part("q")?);
            let (dp, dq, qi) = (part("dp")?, part("dq")?, part("qi")?);
            let key = rsa::KeyPairComponents { public_key, d, p, q, dP: dp, dQ: dq, qInv: qi };
            let key = rsa::KeyPair::from_components(&key).ok()?;
            let mut signature = vec![0; key.public().modulus_len()];
            key.sign(&RSA_PKCS1_SHA256, &random, signed, &mut signature).ok()?;
            Some(signature)
        }
        "es256" => {
            let point = [&[4], &*part("x")?, &*part("y")?].concat();
            let algorithm = &ECDSA_P256_SHA256_FIXED_SIGNING;
            let secret = part("d")?;
            let key =
                EcdsaKeyPair::from_private_key_and_public_key(algorithm, &secret, &point, &random);
            Some(key.ok()?.sign(&random, signed).ok()?.as_ref().to_vec())
        }
        _ => {
            let key = Ed25519KeyPair::from_seed_and_public_key(&part("d")?, &part("x")?).ok()?;
            Some(key.sign(signed).as_ref().to_vec())
        }
    }
}
