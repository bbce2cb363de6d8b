//! Collects the lines that a process prints, searchable while it runs.

use std::io::{BufRead, BufReader, Read};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

use serde_json::Value;

use crate::wait::{Deadline, PATIENCE};

/// The lines of one stream of a process up to now.
#[derive(Clone, Debug, Default)]
pub struct Lines {
    shared: Arc<(Mutex<Collected>, Condvar)>,
}

#[derive(Debug, Default)]
struct Collected {
    lines: Vec<String>,
    ended: bool,
}

impl Lines {
    /// Collects from `stream` until it ends.
    pub fn of(stream: impl Read + Send + 'static) -> Self {
        let lines = Self::default();
        let collector = lines.clone();
        let collect = move || {
            for line in BufReader::new(stream).lines().map_while(Result::ok) {
                collector.change(|stream| stream.lines.push(line));
            }
            collector.change(|stream| stream.ended = true);
        };
        thread::Builder::new().name("lines of a process".to_owned()).spawn(collect).unwrap();
        lines
    }

    /// All lines up to now.
    pub fn all(&self) -> Vec<String> {
        self.shared.0.lock().unwrap().lines.clone()
    }

    /// All lines up to now, as one text.
    pub fn text(&self) -> String {
        self.all().join("\n")
    }

    /// All lines up to now that are JSON.
    pub fn json(&self) -> Vec<Value> {
        self.all().iter().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// Waits for a JSON line that `is_it`.
    #[track_caller]
    pub fn wait(&self, what: &str, is_it: impl Fn(&Value) -> bool) -> Value {
        let found = self.find(&is_it);
        found.unwrap_or_else(|| panic!("no line says {what}:\n{}", self.text()))
    }

    /// Waits for a JSON line that `is_it`; `None` if the stream ends first or after [`PATIENCE`].
    pub fn find(&self, is_it: impl Fn(&Value) -> bool) -> Option<Value> {
        let deadline = Deadline::after(PATIENCE);
        let mut next = 0;
        let mut stream = self.shared.0.lock().unwrap();
        loop {
            while let Some(line) = stream.lines.get(next) {
                next += 1;
                if let Some(line) = serde_json::from_str(line).ok().filter(&is_it) {
                    return Some(line);
                }
            }
            if stream.ended {
                return None;
            }
            stream = self.shared.1.wait_timeout(stream, deadline.left()?).unwrap().0;
        }
    }

    /// Whether the stream has ended.
    pub fn has_ended(&self) -> bool {
        self.shared.0.lock().unwrap().ended
    }

    /// Waits until the stream has ended, and returns all of it.
    #[track_caller]
    pub fn to_end(&self) -> String {
        let deadline = Deadline::after(PATIENCE);
        let mut stream = self.shared.0.lock().unwrap();
        while !stream.ended {
            let left = deadline.left().unwrap_or_else(|| panic!("the stream does not end"));
            stream = self.shared.1.wait_timeout(stream, left).unwrap().0;
        }
        stream.lines.join("\n")
    }

    fn change(&self, act: impl FnOnce(&mut Collected)) {
        act(&mut self.shared.0.lock().unwrap());
        self.shared.1.notify_all();
    }
}
