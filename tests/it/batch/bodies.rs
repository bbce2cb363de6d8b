//! Counting the items of a JSON array, including bodies that mislead a careless counter.

use weir_tests::request::Request;
use weir_tests::wait;
use weir_tests::world::World;

use super::{BATCH, assert_no_body_since, post};

/// Bodies, and the expected status if three items are allowed.
const BODIES: &[(&str, u16)] = &[
    ("[]", 200),
    (" \t\r\n[ ] \n", 200),
    ("[1]", 200),
    ("[1,2,3]", 200),
    ("[1,2,3,4]", 422),
    ("[1,2,3,4", 400),
    ("[[1,2,3,4,5],[6,7,8,9],[[],[],[],[]]]", 200),
    ("[[1],[2],[3],[4]]", 422),
    (r#"[{"a":1,"b":2,"c":3,"d":[1,2,3,4]}]"#, 200),
    (r#"["a,b,c,d","]","["]"#, 200),
    (r#"["\"","\\",","]"#, 200),
    (r#"["\",\",\",\",\","]"#, 200),
    (r#"["\\",2,3,"\\"]"#, 422),
    (r#"["\u005d","\u0022","\u002c"]"#, 200),
    (r#"[null,true,false]"#, 200),
    (r#"[-0.5e+10,1E9,0]"#, 200),
    (r#"["äöü","日本","🎉"]"#, 200),
    ("", 400),
    (" ", 400),
    ("{}", 400),
    (r#"{"items":[1,2,3,4]}"#, 400),
    ("null", 400),
    ("1", 400),
    (r#""[1,2,3]""#, 400),
    ("[", 400),
    ("[1", 400),
    ("[1,", 400),
    ("[1,]", 400),
    ("[,1]", 400),
    ("[1,,2]", 400),
    ("[1 2]", 400),
    ("[1}", 400),
    ("[1]]", 400),
    ("[1][2]", 400),
    ("[1]x", 400),
    ("[1]\n{}", 400),
    ("]", 400),
    (r#"[{"a"}]"#, 400),
    (r#"[{"a":}]"#, 400),
    (r#"[{a:1}]"#, 400),
    (r#"["a]"#, 400),
    ("['a']", 400),
    (r#"["\x"]"#, 400),
    ("[\"\n\"]", 400),
    ("[01]", 400),
    ("[.5]", 400),
    ("[NaN]", 400),
    ("[undefined]", 400),
    ("[1]//", 400),
    ("\u{feff}[1]", 400),
];

#[test]
fn items_are_counted_as_a_parser_counts_them() {
    let world = roomy();
    let mut wrong = Vec::new();
    for (body, status) in BODIES {
        let before = world.control.requests().len();
        let found = post(&world, body.as_bytes()).status;
        let shown = world.control.requests();
        let forwarded = shown.get(before).is_some_and(|seen| seen.body == body.as_bytes());
        if found != *status || forwarded != (*status == 200) {
            wrong.push(format!("{body:?} is {found}, not {status}; forwarded: {forwarded}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_body_may_be_split_at_any_byte() {
    let world = roomy();
    for body in [r#"["\"]",{"a":[1,2,3,4]},"\u005d"]"#, r#"[[],"\\",{},"]"]"#] {
        let status = if body.contains("u005d") { 200 } else { 422 };
        let bytes: Vec<&[u8]> = body.as_bytes().chunks(1).collect();
        world.call(&Request::post(BATCH, "").chunks(&bytes)).expect(status);
        for at in 1..body.len() {
            let (left, right) = body.split_at(at);
            let chunks = Request::post(BATCH, "").chunks(&[left, right]);
            world.call(&chunks).expect(status);
        }
    }
}

#[test]
fn invalid_utf8_is_no_json() {
    let world = roomy();
    for body in [b"[\"\xff\"]".as_slice(), b"[\"\xc0\xaf\"]", b"[\0]", b"\xff\xfe[\0]\0"] {
        post(&world, body).expect_problem(400);
    }
    assert_no_body_since(&world.control, 0);
}

#[test]
fn deep_nesting_does_not_crash_the_gateway() {
    let world = roomy();
    let depth = 400_000;
    let deep = format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    let status = post(&world, deep.as_bytes()).status;
    assert!([200, 400].contains(&status), "{status}");
    assert_eq!(post(&world, "[".repeat(depth).as_bytes()).status, 400);
    post(&world, b"[1]").expect(200);
}

#[test]
fn of_a_batch_whose_client_disconnects_the_upstream_sees_nothing() {
    let world = roomy();
    let mut client = world.client();
    client.send(Request::post(BATCH, "").body("[1,2,3]").head_bytes());
    client.send("[1,2");
    client.finish();
    drop(client);
    wait::until("the batch to be charged", || {
        (world.gateway.used("batch", "ws_acme") == 1).then_some(())
    });
    world.get("/healthz").expect(200);
    let bodies: Vec<_> = world.control.requests().into_iter().map(|seen| seen.body).collect();
    assert!(bodies.iter().all(Vec::is_empty), "{bodies:?}");
}

/// A world that allows three items a batch, and practically any number of batches.
fn roomy() -> World {
    World::with(|config| {
        config
            .with("[limits.batch]", "requests = 4000")
            .replacing("batch_items_max = 100", "batch_items_max = 3")
    })
}
