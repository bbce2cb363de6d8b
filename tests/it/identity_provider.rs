//! A certified identity provider on the data plane, and a client that reaches it only through the
//! gateway: its public name, sign-in, and which calls are limited.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::Value;
use weir_tests::process::Process;
use weir_tests::real;
use weir_tests::request::{Request, data_host};
use weir_tests::response::Response;
use weir_tests::wait;

use crate::answers::House;

/// The route by which the gateway itself calls the provider, as a client that does not use its
/// public name.
const FOR_ITSELF: &str = "plane = \"own\"\npath = \"/oauth/v2/{*rest}\"\n\
                          limits = [\"address\"]\nupstream = \"data\"";

/// A world with the provider on its data plane; buckets refill so slowly that a burst is exact.
struct Provided {
    house: House,
    _provider: Process,
}

impl Provided {
    #[track_caller]
    fn start() -> Self {
        let mut command = real::node("tests/real/identity_provider.mjs");
        let provider = Process::spawn("identity provider", &mut command);
        let is_listening = |line: &Value| line["listening"].is_string();
        let address = provider.stdout().wait("where the provider listens", is_listening);
        let servers = format!("servers = [{}]", address["listening"]);
        let house = House::with(|config| {
            config
                .with("[upstreams.data]", &servers)
                .with("[limits.instance]", "rate = 1")
                .with("[planes.own]", "hosts = [\"127.0.0.1\"]")
                .with("[[routes]]", FOR_ITSELF)
        });
        Self { house, _provider: provider }
    }

    /// The public name of an instance.
    fn issuer(&self, scheme: &str, instance: &str) -> String {
        let address = match scheme {
            "https" => &*self.house.https,
            _ => self.house.world.gateway.http(),
        };
        let (_, port) = address.rsplit_once(':').unwrap();
        format!("{scheme}://{}:{port}", data_host(instance))
    }

    /// Configures the control plane to verify tokens with these lines.
    #[track_caller]
    fn verify(&self, how: &str, lines: &str) {
        let world = &self.house.world;
        let identity = format!(
            "verify = \"{how}\"\nplanes = [\"control\"]\nworkspace_claim = \"workspace\"\n\
             organisation_claim = \"organisation\""
        );
        let config =
            world.config().with("[identity]", &identity).with(&format!("[identity.{how}]"), lines);
        world.gateway.write_config(&config.to_string());
        world.gateway.reload().expect(200);
    }

    /// The response to a call for a workspace with this token.
    #[track_caller]
    fn call(&self, workspace: &str, token: &str) -> Response {
        let target = format!("/v1/workspaces/{workspace}/users");
        let bearer = format!("Bearer {token}");
        self.house.world.call(&Request::get(&target).field("Authorization", &bearer))
    }

    /// The client's report on a task, as JSON.
    #[track_caller]
    fn client(&self, issuer: &str, task: &str) -> Value {
        let mut client = real::node("tests/real/identity_client.mjs");
        client.env("NODE_EXTRA_CA_CERTS", self.house.authority.path("ca.crt")).args([issuer, task]);
        serde_json::from_str(&real::run(&mut client).expect(0).stdout).unwrap()
    }
}

#[test]
fn a_user_signs_in_at_the_providers_public_host() {
    let provided = Provided::start();
    for scheme in ["https", "http"] {
        let issuer = provided.issuer(scheme, "in_acme");
        let seen = provided.client(&issuer, "sign-in");
        assert_eq!(seen["issuer"], *issuer, "{seen}");
        assert_eq!(seen["keys"], format!("{issuer}/oauth/v2/keys"));
        for endpoint in ["authorization", "token", "userinfo", "introspection"] {
            let url = seen["metadata"][format!("{endpoint}_endpoint")].as_str().unwrap();
            assert!(url.starts_with(&format!("{issuer}/")), "{endpoint} is at {url}");
        }
        assert_eq!(seen["user"]["email"], "alice@example.com");
        assert_eq!((&seen["active"], &seen["client_id"]), (&true.into(), &"app".into()));
        let hops = seen["hops"].as_array().unwrap();
        assert!(hops.len() >= 4, "asks to sign in, and to agree: {hops:?}");
        for hop in hops {
            assert_eq!(hop["limits"]["x-ratelimit-limit"], "200", "{hop}");
            assert_eq!(hop["limits"]["x-ratelimit-resource"], "instance", "{hop}");
        }
    }
}

#[test]
fn discovery_and_keys_are_free_and_tokens_are_not() {
    let provided = Provided::start();
    let issuer = provided.issuer("https", "in_burst");
    let seen = provided.client(&issuer, "free");
    assert_eq!(seen["calls"], 1_000);
    assert_eq!(seen["statuses"], serde_json::json!({ "200": 1_000 }));
    assert_eq!(seen["limits"], serde_json::json!({}), "no limit governs these calls");
    assert_eq!(provided.house.world.gateway.used("instance", "in_burst"), 0);

    let before = wait::unix_seconds();
    let seen = provided.client(&issuer, "burst");
    let (admitted, seconds) = (seen["admitted"].as_u64().unwrap(), seen["seconds"].as_f64());
    let refill = seconds.unwrap().ceil() as u64 + 1;
    assert!((200..=200 + refill).contains(&admitted), "{admitted} in {seconds:?} s");

    let first = &seen["first"];
    assert_eq!(first["status"], 200, "{seen}");
    let of = |name: &str| first["limits"][name].as_str().map(str::to_owned);
    assert_eq!(of("x-ratelimit-limit").as_deref(), Some("200"));
    assert_eq!(of("x-ratelimit-resource").as_deref(), Some("instance"));
    let left: u64 = of("x-ratelimit-remaining").unwrap().parse().unwrap();
    assert!((180..200).contains(&left), "twenty at once: {left}");
    let reset: u64 = of("x-ratelimit-reset").unwrap().parse().unwrap();
    assert!((before..before + 60).contains(&reset), "at {before} {reset}");

    // The client's own error has the values.
    let refused = &seen["refused"];
    assert_eq!(refused["code"], "OAUTH_RESPONSE_IS_NOT_JSON", "{seen}");
    assert_eq!(refused["status"], 429, "{seen}");
    assert_eq!(refused["limits"]["retry-after"], "1");
    assert_eq!(refused["limits"]["x-ratelimit-remaining"], "0");
    assert_eq!(seen["body"]["resource"], "instance", "{seen}");
    assert_eq!(provided.client(&issuer, "still-free")["statuses"]["200"], 100, "still free");
}

#[test]
fn its_access_tokens_for_a_resource_name_the_workspace() {
    let provided = Provided::start();
    let issuer = provided.issuer("https", "in_acme");
    let token = provided.client(&issuer, "token");
    let parts: Vec<&str> = token["access_token"].as_str().unwrap().split('.').collect();
    let decoded = |part: &str| -> Value {
        serde_json::from_slice(&URL_SAFE_NO_PAD.decode(part).unwrap()).unwrap()
    };
    assert_eq!(decoded(parts[0])["alg"], "ES256");
    let claims = decoded(parts[1]);
    assert_eq!(claims["iss"], *issuer);
    assert_eq!(claims["aud"], "https://api.example.com");
    assert_eq!(claims["workspace"], "ws_acme");
}

#[test]
fn its_tokens_are_verified_by_the_keys_that_it_publishes() {
    let provided = Provided::start();
    let issuer = provided.issuer("https", "in_acme");
    let token = provided.client(&issuer, "token");
    let token = token["access_token"].as_str().unwrap();
    provided.verify(
        "jwt",
        &format!(
            "jwks_url = \"http://{}/oauth/v2/keys\"\nissuer = \"{issuer}\"\n\
             audience = [\"https://api.example.com\"]",
            provided.house.world.gateway.http()
        ),
    );
    let answer = provided.call("ws_acme", token).expect(200);
    assert_eq!(answer.allowance().resource, "workspace");
    provided.call("ws_big", token).expect_problem(403);
    provided.call("ws_quiet", token).expect_problem(403);
    let (head, rest) = token.split_once('.').unwrap();
    let (claims, signature) = rest.split_once('.').unwrap();
    let claims = String::from_utf8(URL_SAFE_NO_PAD.decode(claims).unwrap()).unwrap();
    let other = URL_SAFE_NO_PAD.encode(claims.replace("ws_acme", "ws_quiet"));
    let tampered = provided.call("ws_quiet", &format!("{head}.{other}.{signature}"));
    tampered.expect_problem(401);
    assert_eq!(provided.house.world.control.requests().len(), 1);
    assert_eq!(provided.house.world.gateway.used("workspace", "ws_acme"), 1);
}

#[test]
fn opaque_tokens_are_introspected_at_the_provider() {
    let provided = Provided::start();
    let token = provided.client(&provided.issuer("https", "in_acme"), "opaque");
    let token = token["access_token"].as_str().unwrap();
    assert!(!token.contains('.'), "this one can be read: {token}");
    provided.house.world.gateway.folder().write("secret", "a-secret-of-the-test\n");
    provided.verify(
        "introspection",
        &format!(
            "url = \"http://{}/oauth/v2/introspect\"\nclient_id = \"app\"\n\
             client_secret_file = \"secret\"",
            provided.house.world.gateway.http()
        ),
    );
    let answer = provided.call("ws_acme", token).expect(200);
    assert_eq!(answer.allowance().resource, "workspace");
    provided.call("ws_quiet", token).expect_problem(403);
    provided.call("ws_acme", &format!("{token}x")).expect_problem(401);
    assert_eq!(provided.house.world.control.requests().len(), 1);
}
