//! Reports the state of this process to the service supervisor: `sd_notify(3)`, by datagrams.
//!
//! Not here: which socket (`main`), what the supervisor does with the state (`deploy`).

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The supervisor, where there is one.
#[derive(Debug, Default)]
pub struct Notify(Option<UnixDatagram>);

impl Notify {
    /// The supervisor at `place`: a path, or `@` and an abstract name.
    ///
    /// # Errors
    ///
    /// The socket has no listener. This stops the start, because systemd would end a process that
    /// does not report.
    pub fn at(place: Option<&OsStr>) -> io::Result<Self> {
        let Some(place) = place else { return Ok(Self(None)) };
        Self::connected(place).map_err(|why| {
            let place = place.display();
            let text = format!("no supervisor listens at `{place}`, which NOTIFY_SOCKET names");
            io::Error::new(why.kind(), format!("{text}: {why}; unset it where there is none"))
        })
    }

    fn connected(place: &OsStr) -> io::Result<Self> {
        let address = match place.as_bytes().strip_prefix(b"@") {
            Some(name) => SocketAddr::from_abstract_name(name)?,
            None => SocketAddr::from_pathname(place)?,
        };
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        socket.connect_addr(&address)?;
        Ok(Self(Some(socket)))
    }

    /// Reports that this process serves, and is the main process from now on.
    pub fn ready(&self) {
        self.send(&format!("READY=1\nMAINPID={}\nSTATUS=serving", std::process::id()));
    }

    /// Reports that this process accepts no new work.
    pub fn stopping(&self) {
        self.send("STOPPING=1\nSTATUS=draining connections");
    }

    fn send(&self, words: &str) {
        // A supervisor that does not read must not stop the gateway from serving.
        let _ = self.0.as_ref().map(|socket| socket.send(words.as_bytes()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_supervisor_is_notified_at_a_path_and_at_an_abstract_name() {
        let process = std::process::id();
        let path = std::env::temp_dir().join(format!("weir-notify-{process}"));
        let name = format!("weir-notify-{process}");
        let abstractly = SocketAddr::from_abstract_name(&name).unwrap();
        let supervisors = [
            (path.clone().into_os_string(), UnixDatagram::bind(&path).unwrap()),
            (format!("@{name}").into(), UnixDatagram::bind_addr(&abstractly).unwrap()),
        ];
        for (place, supervisor) in supervisors {
            let notify = Notify::at(Some(&place)).unwrap();
            notify.ready();
            let mut received = [0; 200];
            let length = supervisor.recv(&mut received).unwrap();
            let expected = format!("READY=1\nMAINPID={process}\n");
            assert!(received[..length].starts_with(expected.as_bytes()));
        }
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn no_supervisor_is_no_error_and_a_bad_path_is() {
        Notify::at(None).unwrap().ready();
        let error = Notify::at(Some("/no/such/socket".as_ref())).unwrap_err().to_string();
        assert!(error.contains("`/no/such/socket`, which NOTIFY_SOCKET names"), "{error}");
    }
}
