//! Header lines that we add to Pingora's responses, and responses that replace them.

use pingora_core::protocols::http::date::get_cached_date;

use crate::edge::connection::lingering_close::LingeringClose;
use crate::edge::connection::tunnel::Tunnel;
use crate::response::refusal::Refusal;

/// What is sent beside a response that Pingora writes, or instead of it.
#[derive(Debug, Default)]
pub(super) struct PendingResponse {
    /// Whether the response head has not been written yet.
    pub(super) awaits_head: bool,
    /// Header lines for that head, each with its line end.
    pub(super) lines: Vec<u8>,
    /// A whole response of our own.
    pub(super) answer: Vec<u8>,
    /// How the connection closes where the client may still be sending unread bytes.
    pub(super) linger: Option<LingeringClose>,
    /// The tunnel, after a switch to WebSocket.
    pub(super) tunnel: Option<Box<Tunnel>>,
}

impl PendingResponse {
    /// Appends a head that Pingora writes, with the lines pending for it, to the outgoing bytes.
    /// False where `bytes` are not a head.
    pub(super) fn complete(&mut self, bytes: &[u8], into: &mut Vec<u8>) -> bool {
        if !self.awaits_head {
            return false;
        }
        let is_interim = bytes.starts_with(b"HTTP/1.1 1") && !bytes.starts_with(b"HTTP/1.1 101");
        match bytes.strip_suffix(b"\r\n").filter(|_| !is_interim) {
            Some(head) => {
                into.extend_from_slice(head);
                into.append(&mut self.lines);
                into.extend_from_slice(b"\r\n");
                self.awaits_head = false;
            }
            None => into.extend_from_slice(bytes),
        }
        true
    }
}

/// The bytes of a refusal's response, after which the connection closes.
pub(super) fn closing_response(refusal: &Refusal) -> Vec<u8> {
    let date = get_cached_date();
    refusal.reply().to_http1(date.to_str().unwrap_or_default(), false, true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn completed(heads: &[&str]) -> (String, Vec<bool>) {
        let lines = b"X: y\r\n".to_vec();
        let mut pending =
            PendingResponse { awaits_head: true, lines, ..PendingResponse::default() };
        let mut outgoing = Vec::new();
        let completed_heads =
            heads.iter().map(|head| pending.complete(head.as_bytes(), &mut outgoing)).collect();
        (String::from_utf8(outgoing).unwrap(), completed_heads)
    }

    #[test]
    fn lines_are_in_the_head_of_the_answer_and_nowhere_else() {
        let (outgoing, completed_heads) = completed(&[
            "HTTP/1.1 103 Early Hints\r\n\r\n",
            "HTTP/1.1 200 OK\r\nA: b\r\n\r\n",
            "HTTP/1.1 is what this body begins with\r\n",
        ]);
        let answer = "HTTP/1.1 200 OK\r\nA: b\r\nX: y\r\n\r\n";
        assert_eq!(outgoing, format!("HTTP/1.1 103 Early Hints\r\n\r\n{answer}"));
        assert_eq!(completed_heads, [true, true, false]);
    }

    #[test]
    fn a_switch_of_protocols_is_an_answer() {
        let (outgoing, _) = completed(&["HTTP/1.1 101 Switching Protocols\r\n\r\n"]);
        assert!(outgoing.contains("X: y"));
    }
}
