//! Routes that allow more spellings: targets that browsers, SDKs and frameworks send, and targets
//! that must still be refused.

use weir_tests::config::Config;
use weir_tests::real;
use weir_tests::world::World;

use super::{Table, Target};
use crate::tokens::by_keys;
use weir_tests::answer::Answer;
use weir_tests::issuer::{Signer, published};
use weir_tests::upstream::Upstream;

/// Path, allowed spellings, limit: a route with all spellings, a route as in Django, routes as in
/// GitLab, and one with a tenant in its path.
const ROUTES: [(&str, &str, &str); 5] = [
    (
        "/v1/workspaces/{workspace}/files/{*rest}",
        "trailing_slash escapes escaped_slash",
        "workspace",
    ),
    ("/v1/django/{*rest}", "trailing_slash", "address"),
    ("/v1/projects/{project}/{*rest}", "escapes escaped_slash", "address"),
    ("/v1/projects/{project}/admin/{*rest}", "", "organisation"),
    ("/v1/of/{who}/{workspace}/{*rest}", "escapes escaped_slash", "workspace"),
];

fn opened(mut config: Config) -> Config {
    for (path, spellings, limit) in ROUTES {
        let spellings: Vec<String> =
            spellings.split_whitespace().map(|name| format!("\"{name}\"")).collect();
        // These paths contain no organisation: the stricter limit `admin` replaces that limit.
        let limit = if limit == "organisation" { "admin" } else { limit };
        config = config.with(
            "[[routes]]",
            &format!(
                "plane = \"control\"\npath = \"{path}\"\nlimits = [\"{limit}\"]\n\
                 upstream = \"control\"\nspellings = [{}]",
                spellings.join(", ")
            ),
        );
    }
    config.with("[planes.control]", "hosts = [\"api.localhost\", \"127.0.0.1\"]").with(
        "[limits.admin]",
        "key = \"address\"\nalgorithm = \"rolling_window\"\nrequests = 900\nwindow = \"1m\"",
    )
}

const SENT: &[Target] = &[
    (b"GET /v1/workspaces/ws_acme/files/", "workspace@control"),
    (b"GET /v1/workspaces/ws_acme/files/a/", "workspace@control"),
    (b"GET /v1/workspaces/ws_acme/files/a%2Fb.txt", "workspace@control"),
    (b"GET /v1/workspaces/ws_acme/files/a%2fb", "workspace@control"),
    (b"GET /v1/workspaces/ws_acme/files/urn%3Aisbn%3A1", "workspace@control"),
    (b"GET /v1/workspaces/ws_acme/files/%7Eada/%66oo%2Dbar", "workspace@control"),
    (b"GET /v1/workspaces/ws_acme/files/https%3A%2F%2Fa.example%2Fb%3Fc%3Dd", "workspace@control"),
    (b"GET /v1/workspaces/ws_acme/files/a%40b%20c%2Cd", "workspace@control"),
    (b"POST /v1/workspaces/ws_acme/files/a%3Ab/", "workspace@control"),
    (b"GET /v1/django/users/", "address@control"),
    (b"GET /v1/django/users/7/?page=2", "address@control"),
    (b"GET /v1/django/", "address@control"),
    (b"GET /v1/projects/group%2Fproject/issues", "address@control"),
    (b"GET /v1/projects/group%2Fsub%2Fproject", "address@control"),
    (b"GET /v1/projects/7/repository/files/src%2Fmain%2Ers", "address@control"),
    (b"GET /v1/of/me%2Ftoo/ws_acme/x", "400"),
    (b"GET /v1/of/urn%3Ame/ws_acme/x%2Fy", "workspace@control"),
];

const REFUSED: &[Target] = &[
    // Spellings that the route does not allow.
    (b"GET /v1/django/a%3Ab", "400"),
    (b"GET /v1/django/a%2Fb", "400"),
    (b"GET /v1/projects/7/", "400"),
    (b"GET /v1/workspaces/ws_acme/users/", "400"),
    (b"GET /v1/workspaces/ws_acme/users/a%3Ab", "400"),
    (b"GET /healthz/", "400"),
    (b"GET /v2/", "400"),
    // Targets that no route accepts.
    (b"GET /v1/workspaces/ws_acme/files//a", "400"),
    (b"GET /v1/workspaces/ws_acme/files/..", "400"),
    (b"GET /v1/workspaces/ws_acme/files/../users/", "400"),
    (b"GET /v1/workspaces/ws_acme/files/%2e%2e/users", "400"),
    (b"GET /v1/workspaces/ws_acme/files/..%2F..%2Fws_quiet", "400"),
    (b"GET /v1/workspaces/ws_acme/files/a%2F..%2F..%2F..%2Fws_quiet", "400"),
    (b"GET /v1/workspaces/ws_acme/files/..%20%2Fusers", "400"),
    (b"GET /v1/workspaces/ws_acme/files/..%5C..%5Cws_quiet", "400"),
    (b"GET /v1/workspaces/ws_acme/files/a%252Fb", "400"),
    (b"GET /v1/workspaces/ws_acme/files/a%25%32%46b", "400"),
    (b"GET /v1/workspaces/ws_acme/files/%252%65%25%32e/ws_quiet", "400"),
    (b"GET /v1/workspaces/ws_acme/files/%25%35%43", "400"),
    (b"GET /v1/workspaces/ws_acme/files/%25%30%30", "400"),
    (b"GET /v1/workspaces/ws_acme/files/a%00/", "400"),
    (b"GET /v1/workspaces/ws_acme/files/%C0%AF/", "400"),
    (b"GET /v1/workspaces/ws_acme/files/a%zz", "400"),
    // Targets that match another route once they are decoded, split, stripped or lowercased.
    (b"GET /v1/workspaces/ws_acme/%66iles/a", "400"),
    (b"GET /v1/workspaces/ws_acme/files%2Fa", "400"),
    (b"GET /v1/workspaces/ws_acme%2Ffiles/a", "400"),
    (b"GET /v1/workspaces/ws_acm%65/files/a", "400"),
    (b"GET /v1%2Fworkspaces/ws_acme/files/a", "400"),
    (b"POST /v1/workspaces/ws_acme/tenants%3Abatch", "400"),
    (b"POST /v1/workspaces/ws_acme/tenants:batch/", "400"),
    (b"GET /v1/%64jango/users/", "400"),
    (b"GET /v1/projects/a%2Fadmin/x", "400"),
    (b"GET /v1/projects/a%2F%2Fadmin", "400"),
    (b"GET /v1/projects/a%2FADMIN/x", "400"),
    (b"GET /v1/projects/a%2Fadmin.json", "400"),
    (b"GET /v1/projects/7/%61dmin/x", "400"),
    (b"GET /v1/projects/7/Admin/x", "400"),
    (b"GET /v1/projects%2F7/x", "400"),
    (b"GET /v1/of/me%2Fws_quiet/ws_acme/x", "400"),
    (b"GET /v1/of/%2F/ws_quiet/ws_acme", "400"),
    (b"GET /v1/of/%20/ws_quiet/ws_acme", "400"),
    (b"GET /v1/of/me/ws_%61cme/x", "400"),
];

#[test]
fn targets_of_real_clients_are_forwarded_unchanged_where_a_route_allows_them() {
    let table = Table::with(opened);
    for (start, outcome) in SENT.iter().chain(REFUSED) {
        table.check(start, b"api.localhost", outcome);
    }
    table.finish();
}

#[test]
fn targets_built_by_node_and_python_reach_the_server_byte_for_byte() {
    let world = World::with(opened);
    let base = format!("http://{}/v1/workspaces/ws_acme/files", world.gateway.http());
    for (client, mut command) in [
        ("node", real::node("tests/real/spellings.mjs")),
        ("python", real::python("tests/real/spellings.py")),
    ] {
        let before = world.control.requests().len();
        let output = real::run(command.arg(&base)).expect(0).stdout;
        let sent: Vec<&str> = output.lines().collect();
        let requests = world.control.requests();
        let seen: Vec<String> = requests[before..]
            .iter()
            .map(|request| String::from_utf8_lossy(&request.target()).into_owned())
            .collect();
        assert!(sent.len() >= 8, "{client} sent {sent:?}");
        assert_eq!(seen, sent, "{client}");
    }
}

#[test]
fn a_token_reaches_no_other_workspace_by_any_spelling() {
    let (server, signer) = (Upstream::start(), Signer::new("first"));
    server.always(Answer::ok(published(&[&signer])));
    let table = Table::with(|config| by_keys(opened(config), &server));
    let token = signer.token(&serde_json::json!({ "workspace_id": "ws_acme" }));
    let field = format!("api.localhost\r\nAuthorization: Bearer {token}");
    for (start, outcome) in REFUSED {
        table.check_raw(
            &[start, b" HTTP/1.1\r\nHost: ".as_slice(), field.as_bytes(), b"\r\n\r\n"].concat(),
            start,
            None,
            outcome,
        );
    }
    table.finish();
    table.world.control.assert_untouched();
}
