//! Why a server of the shared store cannot be used, and why a call has no reply.
//!
//! Not here: what becomes of a request whose call failed (`shared::remote`).

use std::time::Duration;

use redis::{ErrorKind, RedisError, ServerErrorKind};

use super::address::ServerAddress;

/// How long a connection may take to be made and to be checked.
pub(in super::super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// What servers say where an ACL forbids a command.
const FORBIDS: [&str; 3] = ["The user executing the script", "ACL failure", "no permissions"];

/// Why there is no connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// It may work later.
    #[error("{0}")]
    Unreachable(String),
    /// A file, a certificate or the password is wrong, or the server is none for requests. It may
    /// work later.
    #[error("{0}")]
    Rejected(String),
    /// A call was not answered in time.
    #[error("it does not answer")]
    Silent,
    /// It answers heartbeats, later than calls may take.
    #[error("its replies take longer than `store.timeout`")]
    TooLate,
    /// The server is reached, and must not be used.
    #[error("{0}")]
    Unfit(String),
}

impl ConnectError {
    /// Whether nothing was heard of the server.
    #[must_use]
    pub fn is_silence(&self) -> bool {
        matches!(self, Self::Unreachable(_) | Self::Silent)
    }

    /// The same error, of the server that Sentinels name: the log has the first of them.
    pub(super) fn of_primary(self, primary: &ServerAddress) -> Self {
        let of = |why: String| format!("the primary {primary}: {why}");
        match self {
            Self::Unreachable(why) => Self::Unreachable(of(why)),
            Self::Rejected(why) => Self::Rejected(of(why)),
            Self::Unfit(why) => Self::Unfit(of(why)),
            other => other,
        }
    }

    /// The same error, with a question to the operator where the server cannot be reached.
    pub(super) fn with_question(self, question: &str) -> Self {
        match self {
            Self::Unreachable(why) => Self::Unreachable(why + question),
            other => other,
        }
    }
}

/// Why a call has no reply.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The server does not execute calls now.
    #[error("{0}")]
    Refused(String),
    /// The server cannot execute this call: what it has of a key cannot be read.
    #[error("{0}")]
    Faulty(String),
    /// The connection is lost. The server may have executed it.
    #[error("{0}")]
    Lost(String),
    /// A thread's own link is lost, and the server may have executed it. What has become of the
    /// server, the first link tells.
    #[error("{0}")]
    Cut(String),
    /// The server is no primary any more.
    #[error("{0}")]
    Demoted(String),
    /// The server does not know the script.
    #[error("it forgets its scripts")]
    UnknownScript,
    /// Another server has the key.
    #[error("slot {slot} has moved to {to}")]
    Moved {
        /// Its slot in the Cluster.
        slot: usize,
        /// Where it is now.
        to: String,
    },
    /// Another server will have the key, and takes this call already.
    #[error("a slot is moving to {0}")]
    Asked(String),
    /// The keys are between two servers.
    #[error("a slot is moving")]
    Moving,
}

impl CallError {
    /// The same error with the call's keys, where one has another type: the server names none.
    pub(in super::super) fn of_keys<'k>(self, keys: impl Iterator<Item = &'k [u8]>) -> Self {
        match self {
            Self::Faulty(why) if why.contains("WRONGTYPE") => {
                let keys: Vec<_> = keys.map(String::from_utf8_lossy).collect();
                Self::Faulty(format!("{why}: {}", keys.join(" or ")))
            }
            other => other,
        }
    }
}

/// Whether a server says that an ACL forbids a command.
pub(super) fn is_forbidden(error: &str) -> bool {
    FORBIDS.iter().any(|words| error.contains(words))
}

/// Whether a server says that it does not have a command that a script calls.
pub(super) fn is_unknown(error: &str) -> bool {
    error.contains("Unknown") && error.contains("command called from")
}

/// What the server says of a call decides what becomes of the connection.
pub(in super::super) fn failed(error: &RedisError) -> CallError {
    let mut text = error.to_string();
    let is_forbidden = is_forbidden(&text);
    if is_forbidden {
        text.push_str(": a right is missing, which ACL LOG names and docs/scaling.md lists");
    }
    match error.kind() {
        ErrorKind::Server(kind) => match (kind, error.redirect_node()) {
            (ServerErrorKind::Moved, Some((to, slot))) => {
                CallError::Moved { slot: slot.into(), to: to.to_owned() }
            }
            (ServerErrorKind::Ask, Some((to, _))) => CallError::Asked(to.to_owned()),
            (ServerErrorKind::TryAgain, _) => CallError::Moving,
            (ServerErrorKind::NoScript, _) => CallError::UnknownScript,
            // A replica, or one without data: another connection may lead to a primary.
            (ServerErrorKind::ReadOnly | ServerErrorKind::MasterDown, _) => {
                CallError::Demoted(text)
            }
            // It does not execute calls for want of a right, whatever the key.
            (ServerErrorKind::ResponseError, _) if !is_forbidden => CallError::Faulty(text),
            _ => CallError::Refused(text),
        },
        ErrorKind::Extension if error.code() == Some("WRONGTYPE") => CallError::Faulty(text),
        ErrorKind::Extension => CallError::Refused(text),
        _ => CallError::Lost(text),
    }
}

/// Why a server that was asked something cannot be used.
pub(super) fn unreachable_for(error: &RedisError) -> ConnectError {
    match error.kind() {
        ErrorKind::Io => ConnectError::Unreachable(error.to_string()),
        // Of a refused AUTH the client library drops the server's words.
        ErrorKind::AuthenticationFailed => ConnectError::Rejected(format!(
            "{error}: the user or the password is wrong, or the server has `maxclients` connections"
        )),
        _ => ConnectError::Rejected(error.to_string()),
    }
}

/// Why a server has no view of a Cluster.
pub(super) fn refused_view(error: &RedisError) -> ConnectError {
    match error.to_string() {
        why if why.contains("cluster support disabled") => {
            ConnectError::Unfit("it is no node of a Cluster: remove `cluster`".to_owned())
        }
        _ => unreachable_for(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_a_server_are_classified() {
        let of = |reply: &str| {
            let value = redis::parse_redis_value(format!("-{reply}\r\n").as_bytes()).unwrap();
            failed(&value.extract_error().unwrap_err())
        };
        let is_refused = |reply| matches!(of(reply), CallError::Refused(_));
        for reply in ["LOADING it", "BUSY it", "OOM it", "NOREPLICAS it", "CLUSTERDOWN it"] {
            assert!(is_refused(reply), "{reply}");
        }
        for reply in ["READONLY it", "MASTERDOWN it"] {
            assert!(matches!(of(reply), CallError::Demoted(_)), "{reply}");
        }
        for reply in ["ERR it", "WRONGTYPE it"] {
            assert!(matches!(of(reply), CallError::Faulty(_)), "{reply}");
        }
        for reply in ["NOPERM no permissions", "ERR The user executing the script can't"] {
            assert!(of(reply).to_string().contains("ACL LOG"), "{reply}");
            assert!(is_refused(reply), "{reply}");
        }
        assert_eq!(of("NOSCRIPT it"), CallError::UnknownScript);
        assert_eq!(of("TRYAGAIN it"), CallError::Moving);
        assert_eq!(of("ASK 7 a:1"), CallError::Asked("a:1".to_owned()));
        assert_eq!(of("MOVED 7 a:1"), CallError::Moved { slot: 7, to: "a:1".to_owned() });
    }

    #[test]
    fn a_key_that_cannot_be_read_is_named() {
        let keys = [&b"weir1:{1}a"[..], b"weir1:{1}b"];
        let named = |error: CallError, count| error.of_keys(keys.into_iter().take(count));
        let faulty = |why: &str| CallError::Faulty(why.to_owned());
        assert_eq!(named(faulty("WRONGTYPE it"), 1), faulty("WRONGTYPE it: weir1:{1}a"));
        let either = faulty("WRONGTYPE it: weir1:{1}a or weir1:{1}b");
        assert_eq!(named(faulty("WRONGTYPE it"), 2), either);
        let own = faulty("WEIR unreadable weir1:{1}b");
        assert_eq!(named(own.clone(), 2), own, "the script knows which");
        assert_eq!(named(CallError::Moving, 2), CallError::Moving);
    }
}
