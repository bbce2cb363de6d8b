//! Whole heads, byte for byte: contradicting hosts, contradicting lengths, malformed lines.

/// A request as sent on the wire, and the outcome.
pub(super) const HEADS: &[(&[u8], &str)] = &[
    // The host.
    (b"GET /healthz HTTP/1.1\r\n\r\n", "400"),
    (b"GET /healthz HTTP/1.1\r\nHost:\r\n\r\n", "400"),
    (b"GET /healthz HTTP/1.0\r\n\r\n", "400"),
    (b"GET /healthz HTTP/1.0\r\nHost: api.localhost\r\n\r\n", "exempt@control"),
    (b"GET /healthz HTTP/1.1\r\nHost: api.localhost\r\nHost: api.localhost\r\n\r\n", "400"),
    (b"GET /healthz HTTP/1.1\r\nHost: api.localhost\r\nHost: evil.example\r\n\r\n", "400"),
    (b"GET /healthz HTTP/1.1\r\nhost: evil.example\r\nHOST: api.localhost\r\n\r\n", "400"),
    (b"GET /healthz HTTP/1.1\r\nHost : api.localhost\r\n\r\n", "400"),
    (b"GET /healthz HTTP/1.1\r\n Host: api.localhost\r\n\r\n", "400"),
    (b"GET /healthz HTTP/1.1\r\nHost: evil.example\r\n\tapi.localhost\r\n\r\n", "400"),
    (b"GET http://api.localhost/healthz HTTP/1.1\r\nHost: evil.example\r\n\r\n", "400"),
    (b"GET http://evil.example/healthz HTTP/1.1\r\nHost: api.localhost\r\n\r\n", "400"),
    (b"GET http://api.localhost@evil.example/ HTTP/1.1\r\nHost: api.localhost\r\n\r\n", "400"),
    (b"GET /healthz HTTP/1.1\r\nHost: api.localhost\r\nConnection: host\r\n\r\n", "400"),
    // Ambiguous body lengths.
    (
        b"POST /v1/me HTTP/1.1\r\nHost: api.localhost\r\nContent-Length: 3\r\n\
        Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "400",
    ),
    (
        b"POST /v1/me HTTP/1.1\r\nHost: api.localhost\r\nTransfer-Encoding: chunked\r\n\
        Content-Length: 3\r\n\r\n0\r\n\r\n",
        "400",
    ),
    (
        b"POST /v1/me HTTP/1.1\r\nHost: api.localhost\r\nContent-Length: 3\r\n\
        Content-Length: 4\r\n\r\nabcd",
        "400",
    ),
    (b"POST /v1/me HTTP/1.1\r\nHost: api.localhost\r\nContent-Length: +3\r\n\r\nabc", "400"),
    (b"POST /v1/me HTTP/1.1\r\nHost: api.localhost\r\nContent-Length: -3\r\n\r\nabc", "400"),
    (b"POST /v1/me HTTP/1.1\r\nHost: api.localhost\r\nContent-Length: 0x3\r\n\r\nabc", "400"),
    (b"POST /v1/me HTTP/1.1\r\nHost: api.localhost\r\nContent-Length: 3, 3\r\n\r\nabc", "400"),
    (b"POST /v1/me HTTP/1.1\r\nHost: api.localhost\r\nContent-Length: 3 ,3\r\n\r\nabc", "400"),
    (
        b"POST /v1/me HTTP/1.1\r\nHost: api.localhost\r\nContent-Length: 03\r\n\r\nabc",
        "address@control",
    ),
    (b"POST /v1/me HTTP/1.1\r\nHost: api.localhost\r\nContent-Length: 3, 4\r\n\r\nabcd", "400"),
    (b"POST /v1/me HTTP/1.1\r\nHost: api.localhost\r\nContent-Length: three\r\n\r\nabc", "400"),
    (b"POST /v1/me HTTP/1.1\r\nHost: api.localhost\r\nContent-Length:\r\n\r\n", "400"),
    (
        b"POST /v1/me HTTP/1.1\r\nHost: api.localhost\r\n\
        Content-Length: 99999999999999999999\r\n\r\n",
        "400",
    ),
    (
        b"POST /v1/me HTTP/1.1\r\nHost: api.localhost\r\nTransfer-Encoding: xchunked\r\n\r\n\
        0\r\n\r\n",
        "400",
    ),
    (
        b"POST /v1/me HTTP/1.1\r\nHost: api.localhost\r\nTransfer-Encoding: chunked, identity\r\n\
        \r\n0\r\n\r\n",
        "400",
    ),
    (b"POST /v1/me HTTP/1.1\r\nHost: api.localhost\r\nTransfer-Encoding: identity\r\n\r\n", "400"),
    (
        b"POST /v1/me HTTP/1.1\r\nHost: api.localhost\r\nTransfer-Encoding: chunked\r\n\
        Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "400",
    ),
    (
        b"POST /v1/me HTTP/1.1\r\nHost: api.localhost\r\nTransfer-Encoding:\x0bchunked\r\n\r\n\
        0\r\n\r\n",
        "400",
    ),
    (
        b"POST /v1/me HTTP/1.1\r\nHost: api.localhost\r\nTransfer-Encoding : chunked\r\n\r\n\
        0\r\n\r\n",
        "400",
    ),
    (
        b"POST /v1/me HTTP/1.0\r\nHost: api.localhost\r\nTransfer-Encoding: chunked\r\n\r\n\
        0\r\n\r\n",
        "400",
    ),
    (
        b"GET /v1/me HTTP/1.1\r\nHost: api.localhost\r\nContent-Length: 2\r\n\r\n{}",
        "address@control",
    ),
    (
        b"GET /v1/me HTTP/1.1\r\nHost: api.localhost\r\nTransfer-Encoding: chunked\r\n\r\n\
        2\r\n{}\r\n0\r\n\r\n",
        "address@control",
    ),
    (b"POST /v1/me HTTP/1.1\r\nHost: api.localhost\r\n\r\n", "address@control"),
    // Ambiguous line ends.
    (b"GET /v1/me HTTP/1.1\nHost: api.localhost\n\n", "address@control"),
    (b"GET /v1/me HTTP/1.1\r\nHost: api.localhost\nX: y\r\n\r\n", "address@control"),
    (b"GET /v1/me HTTP/1.1\r\nHost: api.localhost\r\nX: a\rb\r\n\r\n", "400"),
    (b"GET /v1/me HTTP/1.1\r\nHost: api.localhost\r\nX: a\0b\r\n\r\n", "400"),
    (b"GET /v1/me HTTP/1.1\r\nHost: api.localhost\r\nX: a\r\n b\r\n\r\n", "400"),
    (b"GET /v1/me HTTP/1.1\r\nHost: api.localhost\r\nX Y: a\r\n\r\n", "400"),
    (b"GET /v1/me HTTP/1.1\r\nHost: api.localhost\r\n: a\r\n\r\n", "400"),
    (b"GET /v1/me HTTP/1.1\r\nHost: api.localhost\r\nnonsense\r\n\r\n", "400"),
    (b"GET /v1/me HTTP/1.1 \r\nHost: api.localhost\r\n\r\n", "400"),
    (b"GET /v1/me HTTP/2.0\r\nHost: api.localhost\r\n\r\n", "400"),
    (b"GET /v1/me HTTP/1.2\r\nHost: api.localhost\r\n\r\n", "400"),
    (b"GET /v1/me http/1.1\r\nHost: api.localhost\r\n\r\n", "400"),
    (b"GET /v1/me\r\n\r\n", "400"),
    (b"G@T /v1/me HTTP/1.1\r\nHost: api.localhost\r\n\r\n", "400"),
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", "400"),
    (
        b"GET /v1/me HTTP/1.1\r\nHost: api.localhost\r\n\
        Connection: a, b, c, d, e, f, g, h, i, j, k, l\r\n\r\n",
        "400",
    ),
    (
        b"GET /v1/me HTTP/1.1\r\nHost: api.localhost\r\nConnection: X-Forwarded-For\r\n\
        X-Forwarded-For: 192.0.2.1\r\n\r\n",
        "400",
    ),
    (
        b"GET /v1/me HTTP/1.1\r\nHost: api.localhost\r\nConnection: Upgrade, HTTP2-Settings\r\n\
        Upgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n\r\n",
        "address@control",
    ),
];
