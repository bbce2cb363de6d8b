//! Writes the program's own log: one JSON object a line, on standard error.
//!
//! Libraries log through the `log` crate; the program itself calls [`event`], with named fields.
//! Not here: lines of JSON on standard output, such as the access log (`json_lines`).

use std::io::{self, Write};
use std::sync::{Arc, OnceLock};

use log::{Level, LevelFilter, Log, Metadata, Record};
use serde_json::{Map, Value};

use crate::log::outlet::Outlet;
use crate::log::visible;
use crate::time::Clock;

/// Libraries that are not logged: Pingora logs whole heads, tokens included, and rustls a line for
/// each handshake whose client sends an address as the server name.
const SILENT: [&str; 2] = ["pingora", "rustls"];

/// The levels of a program's own log, as settings name them; the first is the default.
pub const LEVELS: [(&str, LevelFilter); 4] = [
    ("info", LevelFilter::Info),
    ("error", LevelFilter::Error),
    ("warn", LevelFilter::Warn),
    ("debug", LevelFilter::Debug),
];

static LOG: OnceLock<JsonLines> = OnceLock::new();

/// Installs the log for the whole process. A second call only changes the level.
pub fn install(clock: Clock, level: LevelFilter) {
    // An error means that a logger is installed already.
    let _ = log::set_logger(LOG.get_or_init(|| JsonLines::begin(clock)));
    log::set_max_level(level);
}

/// Logs an event, with named fields.
pub fn event(level: Level, message: &str, fields: &[(&str, Value)]) {
    if let Some(log) = LOG.get().filter(|_| level <= log::max_level()) {
        log.write(&log.line(level, message, fields));
    }
}

#[derive(Debug)]
struct JsonLines {
    clock: Clock,
    /// `None` if the writing thread could not be started.
    outlet: Option<Arc<Outlet>>,
}

impl JsonLines {
    fn begin(clock: Clock) -> Self {
        let outlet = Arc::new(Outlet::default());
        let (lines, writer) = (Self { clock: clock.clone(), outlet: None }, Arc::clone(&outlet));
        let dropped = move |count: u64| {
            lines.line(Level::Warn, "log lines dropped", &[("count", count.into())])
        };
        let thread = std::thread::Builder::new().name("log".to_owned()).spawn(move || {
            loop {
                writer.write_some(&mut io::stderr(), &dropped);
            }
        });
        // Without a thread, the caller writes.
        Self { clock, outlet: thread.is_ok().then_some(outlet) }
    }

    fn line(&self, level: Level, message: &str, fields: &[(&str, Value)]) -> Vec<u8> {
        let mut line = Map::new();
        line.insert("time".to_owned(), self.clock.now().unix.rfc3339().into());
        line.insert("level".to_owned(), level.as_str().to_ascii_lowercase().into());
        line.insert("message".to_owned(), message.into());
        line.extend(fields.iter().map(|(name, value)| ((*name).to_owned(), value.clone())));
        let mut bytes = Vec::with_capacity(256);
        visible::write(&mut bytes, &line);
        bytes.push(b'\n');
        bytes
    }

    fn write(&self, line: &[u8]) {
        match &self.outlet {
            Some(outlet) => outlet.write_line(line),
            // Standard error is closed: there is nowhere to report that.
            None => drop(io::stderr().write_all(line)),
        }
    }
}

impl Log for JsonLines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        // The program logs what matters of these itself.
        let is_silent = SILENT.iter().any(|library| metadata.target().starts_with(library));
        !is_silent && metadata.level() <= log::max_level()
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            let target = Value::from(record.target());
            self.write(&self.line(
                record.level(),
                &record.args().to_string(),
                &[("target", target)],
            ));
        }
    }

    fn flush(&self) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::UnixTime;

    #[test]
    fn messages_of_libraries_that_clients_can_provoke_are_not_logged() {
        let log = JsonLines { clock: Clock::manual(UnixTime(0)), outlet: None };
        log::set_max_level(LevelFilter::Info);
        for (target, expected) in [
            ("pingora_proxy::proxy_h1", false),
            ("rustls::msgs::handshake", false),
            ("reqwest::connect", true),
        ] {
            let metadata = Metadata::builder().target(target).level(Level::Warn).build();
            assert_eq!(log.enabled(&metadata), expected, "{target}");
        }
    }

    #[test]
    fn an_event_is_one_line_of_json_with_its_fields_named() {
        let log = JsonLines { clock: Clock::manual(UnixTime(0)), outlet: None };
        let fields = [("address", "::1".into()), ("key", "a\u{9b}31m\u{7f}\u{2028}".into())];
        let bytes = log.line(Level::Warn, "first\nsecond \"quoted\"", &fields);
        let text = std::str::from_utf8(&bytes).expect("a line is text");
        assert!(!text.trim_end().contains(visible::is_unsafe), "{text}");
        assert_eq!(bytes.iter().filter(|byte| **byte == b'\n').count(), 1);
        let line: Value = serde_json::from_slice(&bytes).expect("a line is JSON");
        assert_eq!(line["message"], "first\nsecond \"quoted\"");
        assert_eq!(line["address"], "::1");
        assert_eq!(line["level"], "warn");
        assert_eq!(line["time"], "1970-01-01T00:00:00.000Z");
    }
}
