//! The `Forwarded` and `traceparent` headers of a forwarded request.

/// One hop of `Forwarded` (RFC 7239) for the connection that a request arrived on: the address of
/// its client, the host, `http` or `https`.
#[must_use]
pub(super) fn forwarded(peer: &str, host: &str, scheme: &str) -> String {
    let is_v6 = peer.contains(':');
    let [before, after] = if is_v6 { ["for=\"[", "]\""] } else { ["for=", ""] };
    [before, peer, after, ";host=\"", host, "\";proto=", scheme].concat()
}

/// Whether `value` is a `traceparent` that can be passed on (W3C Trace Context, level 2).
#[must_use]
pub(super) fn is_traceparent(value: &[u8]) -> bool {
    let mut parts = value.split(|byte| *byte == b'-');
    let (version, trace, parent, flags) = (parts.next(), parts.next(), parts.next(), parts.next());
    let lower_hex = |part: Option<&[u8]>, length: usize| {
        part.is_some_and(|part| {
            part.len() == length
                && part.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        })
    };
    let not_zero =
        |part: Option<&[u8]>| part.is_some_and(|part| part.iter().any(|byte| *byte != b'0'));
    let ends = version != Some(b"00") || parts.next().is_none();
    lower_hex(version, 2)
        && version != Some(b"ff")
        && lower_hex(trace, 32)
        && not_zero(trace)
        && lower_hex(parent, 16)
        && not_zero(parent)
        && lower_hex(flags, 2)
        && ends
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hop_is_written_as_rfc_7239_has_it() {
        assert_eq!(
            forwarded("192.0.2.1", "a.test:80", "http"),
            "for=192.0.2.1;host=\"a.test:80\";proto=http"
        );
        assert_eq!(forwarded("::1", "a", "https"), "for=\"[::1]\";host=\"a\";proto=https");
    }

    #[test]
    fn a_traceparent_is_checked_to_the_letter() {
        let good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        assert!(is_traceparent(good.as_bytes()));
        assert!(is_traceparent(format!("cc{}-more", &good[2..]).as_bytes()));
        for bad in [
            &good.to_uppercase(),
            &good.replace("4bf92f3577b34da6a3ce929d0e0e4736", &"0".repeat(32)),
            &good.replace("00f067aa0ba902b7", &"0".repeat(16)),
            &format!("ff{}", &good[2..]),
            &format!("{good}-x"),
            &good[..54],
            "",
        ] {
            assert!(!is_traceparent(bad.as_bytes()), "{bad}");
        }
    }
}
