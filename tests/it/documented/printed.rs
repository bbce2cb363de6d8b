//! Compares a command's output with a document's: generated names and numbers may differ.

/// The prefixes of generated names.
const MADE_UP: [&str; 5] = ["wh_", "evt_", "dlv_", "whsec_", "weir_"];

/// Fields of a response that are compared with their values; of the others only the name is
/// compared.
const EXACT: [&str; 3] = ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-resource"];

/// Whether the output is as promised. Of an HTTP response the status, the promised fields, and the
/// body if one is promised are compared; of anything else all of it.
pub(super) fn is_as_promised(promised: &str, actual: &str) -> bool {
    if !promised.starts_with("HTTP/") {
        return plain(promised.trim_end()) == plain(actual.trim_end());
    }
    let parts = |text: &str| -> (String, String) {
        let (head, body) = text.split_once("\n\n").unwrap_or((text, ""));
        (head.trim_end().to_lowercase(), plain(body.trim_end()))
    };
    let ((promised, promised_body), (head, body)) = (parts(promised), parts(actual));
    let compared = |line: &str| {
        let name = line.split_once(": ").map_or(line, |(name, _)| name);
        if EXACT.contains(&name) { line.to_owned() } else { name.to_owned() }
    };
    let actual: Vec<String> = head.lines().map(compared).collect();
    promised.lines().map(compared).all(|line| actual.contains(&line))
        && (promised_body.is_empty() || promised_body == body)
}

/// The generated names in a text, in order.
pub(super) fn names(text: &str) -> Vec<&str> {
    let mut found: Vec<(usize, &str)> = Vec::new();
    for prefix in MADE_UP {
        let of_name = |one: char| one.is_ascii_alphanumeric() || "_+/=-".contains(one);
        for (at, _) in text.match_indices(prefix) {
            let rest = &text[at..];
            let name = rest.split(|one| !of_name(one)).next().unwrap_or_default();
            found.push((at, name));
        }
    }
    found.sort_unstable();
    found.into_iter().map(|(_, name)| name).collect()
}

/// A text in which all generated names with the same prefix are equal, and so are numbers and
/// digests.
pub(super) fn plain(text: &str) -> String {
    let mut text = text.to_owned();
    for name in names(&text.clone()) {
        let prefix = MADE_UP.iter().find(|prefix| name.starts_with(**prefix)).unwrap_or(&"");
        text = text.replace(name, prefix);
    }
    // 32 bytes, in hex or in base64 without its padding.
    let in_base64 = |one: char| one.is_ascii_alphanumeric() || "+/".contains(one);
    let is_digest = |word: &&str| match word.len() {
        64 => word.chars().all(|one| one.is_ascii_hexdigit()),
        43 => word.chars().all(in_base64),
        _ => false,
    };
    let words = text.split(|one: char| "\"=,".contains(one) || one.is_whitespace());
    let digests: Vec<String> = words.filter(is_digest).map(str::to_owned).collect();
    for digest in digests {
        text = text.replace(&digest, "0");
    }
    let mut plain = String::with_capacity(text.len());
    for one in text.chars().map(|one| if one.is_ascii_digit() { '0' } else { one }) {
        if one != '0' || !plain.ends_with('0') {
            plain.push(one);
        }
    }
    plain
}

#[test]
fn names_and_numbers_match_any_name_and_number() {
    assert_eq!(names("/wh_1:x dlv_2, 'whsec_a+/='"), ["wh_1", "dlv_2", "whsec_a+/="]);
    assert_eq!(
        plain(r#"{"id":"evt_01x","n":12,"s":"waiting"}"#),
        plain(r#"{"id":"evt_9","n":3,"s":"waiting"}"#)
    );
    let header = |digest: &str| format!("signature: t=1,v1={digest}\nother: v1,{}=", &digest[..43]);
    assert_eq!(plain(&header(&"ab".repeat(32))), plain(&header(&"0c".repeat(32))));
    assert!(is_as_promised("HTTP/1.1 200 OK\nX: 1\n\n{}\n", "HTTP/1.1 200 OK\nx: 2\n\n{}"));
    assert!(!is_as_promised("HTTP/1.1 200 OK\n", "HTTP/1.1 202 Accepted\n"));
    assert!(!is_as_promised("HTTP/1.1 200 OK\nX: 1\n", "HTTP/1.1 200 OK\n"));
    assert!(!is_as_promised("HTTP/1.1 200 OK\n\n{\"a\":\"b\"}", "HTTP/1.1 200 OK\n\n{}"));
    let [one, other] =
        [59, 60].map(|left| format!("HTTP/1.1 200 OK\nX-RateLimit-Remaining: {left}"));
    assert!(is_as_promised(&one, &one) && !is_as_promised(&one, &other));
    assert!(is_as_promised("used 60 of it", "used 7 of it\n") && !is_as_promised("a", "a b"));
}
