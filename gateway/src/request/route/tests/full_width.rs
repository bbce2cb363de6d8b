//! Tests of the routes that paths with full-width characters lead to.

use crate::request::route::tests::servers::{CONTROL, leads, paths};
use crate::request::target::Malformed;

#[test]
fn full_width_characters_lead_where_their_ascii_leads_and_pass_where_that_is_the_same() {
    let paths = paths(CONTROL);
    for (path, why) in [
        ("/api/projects/a/x%EF%BC%8F%EF%BC%8E%EF%BC%8E%EF%BC%8Fexport", Malformed::DotSegment),
        ("/api/projects/a/x/%EF%BC%8E/export", Malformed::DotSegment),
        ("/api/projects/a/x/\u{ff0e}\u{ff0e}/b", Malformed::DotSegment),
        ("/v1/workspaces/ws_a/files/a%2F\u{ff0e}\u{ff0e}", Malformed::DotSegment),
        ("/v1/workspaces/ws_a/files/..%EF%BB%BF", Malformed::DotSegment),
        ("/api/projects/a\u{ff0f}export", Malformed::OtherRoute),
        ("/api/projects/a\u{ff3c}export", Malformed::OtherRoute),
        ("/api/projects/a/admin%EF%BC%8Fa", Malformed::OtherRoute),
        ("/api/projects/a/export%EF%BC%9Bx/y", Malformed::OtherRoute),
        ("/api/projects/a/export%EF%BC%9Fx/y", Malformed::OtherRoute),
        ("/api/projects/a/export%EF%BB%BF", Malformed::OtherRoute),
        ("/of/me%EF%BC%8Fws_b/ws_a/x", Malformed::OtherRoute),
        ("/v1/workspaces/ws_a/files/\u{ff0f}..%2Fx", Malformed::DotSegment),
    ] {
        assert_eq!(leads(&paths, CONTROL, path), Err(why), "{path}");
    }
    for (path, route) in [
        ("/v1/workspaces/ws_a/users/\u{ff21}\u{ff22}\u{ff23}", 4),
        ("/v1/workspaces/ws_a/files/a\u{ff0f}b\u{ff0e}txt", 3),
        ("/v1/workspaces/ws_a/files/a\u{ff1b}b\u{ff1f}.txt", 3),
        ("/api/projects/a/%EF%BC%88%E7%B7%8F%EF%BC%89%EF%BC%8E%E8%A1%A8", 7),
        ("/static/\u{ff05}\u{ff0f}\u{ff0b}", 12),
    ] {
        assert_eq!(leads(&paths, CONTROL, path), Ok(CONTROL[route].0), "{path}");
    }
}
