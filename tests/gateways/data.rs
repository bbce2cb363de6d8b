//! The data of a simulated Redis server, and the commands that gateways and their scripts use.
//!
//! Invariant: a command does what a real server's does, or is an error.
//!
//! Not here: scripts (`scripts`), connections (`network`).

use std::collections::BTreeMap;

/// What a server replies.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Reply {
    Status(&'static str),
    Text(Vec<u8>),
    Number(i64),
    List(Vec<Reply>),
    Nothing,
    Error(String),
}

/// The keys of a server, and its clock.
#[derive(Clone, Debug, Default)]
pub(crate) struct Data {
    keys: BTreeMap<Vec<u8>, Entry>,
    /// Microseconds since 1970.
    pub(crate) now: u64,
}

#[derive(Clone, Debug)]
struct Entry {
    value: Value,
    /// In microseconds since 1970.
    expires: Option<u64>,
}

#[derive(Clone, Debug)]
enum Value {
    Text(Vec<u8>),
    Fields(BTreeMap<Vec<u8>, Vec<u8>>),
    /// Scores by member.
    Scores(BTreeMap<Vec<u8>, i64>),
}

type Found = Result<Reply, String>;

impl Data {
    /// Deletes all keys.
    pub(crate) fn flush(&mut self) {
        self.keys.clear();
    }

    /// Executes a command.
    pub(crate) fn run(&mut self, words: &[Vec<u8>]) -> Reply {
        let now = self.now;
        self.keys.retain(|_, entry| entry.expires.is_none_or(|at| at > now));
        self.execute(words).unwrap_or_else(Reply::Error)
    }

    fn execute(&mut self, words: &[Vec<u8>]) -> Found {
        let all: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
        let (name, arguments) = all.split_first().ok_or("ERR no command")?;
        match (name.to_ascii_uppercase().as_slice(), arguments) {
            (b"TIME", []) => {
                let parts = [self.now / 1_000_000, self.now % 1_000_000];
                Ok(Reply::List(parts.map(|part| text(&part.to_string())).to_vec()))
            }
            (b"GET", [key]) => {
                Ok(self.string(key)?.map_or(Reply::Nothing, |own| Reply::Text(own.clone())))
            }
            (b"SET", [key, value, options @ ..]) => self.set(key, value, options),
            (b"GETRANGE", [key, from, to]) => self.range(key, number(from)?, number(to)?),
            (b"SETRANGE", [key, at, piece]) => self.set_range(key, number(at)?, piece),
            (b"DEL", keys) => {
                let deleted = keys.iter().filter(|key| self.keys.remove(**key).is_some()).count();
                Ok(Reply::Number(deleted as i64))
            }
            (b"PEXPIRE", [key, millis]) => {
                let expires = Some(self.after(number(millis)?));
                let found = self.keys.get_mut(*key);
                let found = found.map(|entry| entry.expires = expires);
                Ok(Reply::Number(found.is_some().into()))
            }
            (b"INCR", [key]) => self.add(key, 1),
            (b"INCRBY", [key, by]) => self.add(key, number(by)?),
            (b"HSET", [key, field, value]) => {
                let fields = self.fields(key)?;
                let added = fields.insert(field.to_vec(), value.to_vec()).is_none();
                Ok(Reply::Number(added.into()))
            }
            (b"HDEL", [key, field]) => {
                let fields = self.fields(key)?;
                let removed = fields.remove(*field).is_some();
                if fields.is_empty() {
                    self.keys.remove(*key);
                }
                Ok(Reply::Number(removed.into()))
            }
            (b"HGETALL", [key]) => {
                let fields = self.fields(key)?.clone();
                if fields.is_empty() {
                    self.keys.remove(*key);
                }
                let all = fields.into_iter().flat_map(|(field, value)| [field, value]);
                Ok(Reply::List(all.map(Reply::Text).collect()))
            }
            (b"ZADD", [key, score, member]) => {
                let score = number(score)?;
                let added = self.scores(key)?.insert(member.to_vec(), score).is_none();
                Ok(Reply::Number(added.into()))
            }
            (b"ZADD", [key, b"GT", b"CH", score, member]) => {
                self.raise_score(key, number(score)?, member)
            }
            (b"ZRANGEBYSCORE", [key, from, b"+inf", b"WITHSCORES"]) if from.starts_with(b"(") => {
                let above = number(&from[1..])?;
                let found = self.ranked(key)?.into_iter().filter(|(score, _)| *score > above);
                let pair = |(score, member): (i64, _)| [member, score.to_string().into_bytes()];
                Ok(Reply::List(found.flat_map(pair).map(Reply::Text).collect()))
            }
            (b"ZREMRANGEBYRANK", [key, from, to]) => {
                self.remove_ranked(key, number(from)?, number(to)?)
            }
            _ => Err(format!("ERR unknown command {:?}", String::from_utf8_lossy(name))),
        }
    }

    fn set(&mut self, key: &[u8], value: &[u8], options: &[&[u8]]) -> Found {
        let expires = match options {
            [] => None,
            [b"NX"] if self.keys.contains_key(key) => return Ok(Reply::Nothing),
            [b"NX"] => None,
            [b"PX", millis] => Some(self.after(number(millis)?)),
            _ => return Err("ERR syntax error".to_owned()),
        };
        self.keys.insert(key.to_vec(), Entry { value: Value::Text(value.to_vec()), expires });
        Ok(Reply::Status("OK"))
    }

    fn range(&self, key: &[u8], from: i64, to: i64) -> Found {
        let whole = self.string(key)?.map_or(&[][..], Vec::as_slice);
        let (is_none, last) = (from < 0 && to < 0 && from > to, -(whole.len() as i64));
        // One before the first byte is the first, but for this.
        let to = if is_none {
            i64::MIN
        } else if to < 0 {
            to.max(last)
        } else {
            to
        };
        let piece = whole.get(within(whole.len(), from, to)).unwrap_or_default();
        Ok(Reply::Text(piece.to_vec()))
    }

    fn set_range(&mut self, key: &[u8], at: i64, piece: &[u8]) -> Found {
        if piece.is_empty() {
            return Ok(Reply::Number(self.string(key)?.map_or(0, Vec::len) as i64));
        }
        let whole = self.string_or_new(key)?;
        let end = at as usize + piece.len();
        whole.resize(whole.len().max(end), 0);
        whole[at as usize..end].copy_from_slice(piece);
        Ok(Reply::Number(whole.len() as i64))
    }

    fn add(&mut self, key: &[u8], by: i64) -> Found {
        let before = self.string(key)?.map_or(Ok(0), |own| number(own))?;
        let sum = before.checked_add(by).ok_or("ERR increment or decrement would overflow")?;
        *self.string_or_new(key)? = sum.to_string().into_bytes();
        Ok(Reply::Number(sum))
    }

    /// The members of a sorted set with their scores, in order.
    fn ranked(&mut self, key: &[u8]) -> Result<Vec<(i64, Vec<u8>)>, String> {
        let scores = self.scores(key)?;
        let all = scores.iter().map(|(member, score)| (*score, member.clone()));
        let mut all: Vec<(i64, Vec<u8>)> = all.collect();
        if all.is_empty() {
            self.keys.remove(key);
        }
        all.sort();
        Ok(all)
    }

    fn raise_score(&mut self, key: &[u8], score: i64, member: &[u8]) -> Found {
        let scores = self.scores(key)?;
        let is_higher = scores.get(member).is_none_or(|known| score > *known);
        if is_higher {
            scores.insert(member.to_vec(), score);
        }
        Ok(Reply::Number(is_higher.into()))
    }

    fn remove_ranked(&mut self, key: &[u8], from: i64, to: i64) -> Found {
        let ranked = self.ranked(key)?;
        let gone = ranked.get(within(ranked.len(), from, to)).unwrap_or_default();
        let scores = self.scores(key)?;
        scores.retain(|member, _| !gone.iter().any(|(_, one)| one == member));
        if scores.is_empty() {
            self.keys.remove(key);
        }
        Ok(Reply::Number(gone.len() as i64))
    }

    fn after(&self, millis: i64) -> u64 {
        self.now.saturating_add_signed(millis * 1_000)
    }

    fn string(&self, key: &[u8]) -> Result<Option<&Vec<u8>>, String> {
        match self.keys.get(key).map(|entry| &entry.value) {
            None => Ok(None),
            Some(Value::Text(own)) => Ok(Some(own)),
            Some(_) => Err(wrong_type()),
        }
    }

    fn string_or_new(&mut self, key: &[u8]) -> Result<&mut Vec<u8>, String> {
        match self.entry(key, || Value::Text(Vec::new())) {
            Value::Text(own) => Ok(own),
            _ => Err(wrong_type()),
        }
    }

    fn fields(&mut self, key: &[u8]) -> Result<&mut BTreeMap<Vec<u8>, Vec<u8>>, String> {
        match self.entry(key, || Value::Fields(BTreeMap::new())) {
            Value::Fields(own) => Ok(own),
            _ => Err(wrong_type()),
        }
    }

    fn scores(&mut self, key: &[u8]) -> Result<&mut BTreeMap<Vec<u8>, i64>, String> {
        match self.entry(key, || Value::Scores(BTreeMap::new())) {
            Value::Scores(own) => Ok(own),
            _ => Err(wrong_type()),
        }
    }

    fn entry(&mut self, key: &[u8], fresh: impl FnOnce() -> Value) -> &mut Value {
        let fresh = || Entry { value: fresh(), expires: None };
        &mut self.keys.entry(key.to_vec()).or_insert_with(fresh).value
    }
}

/// The places from one to another, both included, of so many; negative ones count from the end.
fn within(length: usize, from: i64, to: i64) -> std::ops::Range<usize> {
    let length = length as i64;
    let at = |nth: i64| if nth < 0 { length.saturating_add(nth) } else { nth };
    let (from, to) = (at(from).max(0), (at(to) + 1).min(length));
    from as usize..to.max(from) as usize
}

/// A text as a reply.
pub(crate) fn text(text: &str) -> Reply {
    Reply::Text(text.as_bytes().to_vec())
}

fn number(text: &[u8]) -> Result<i64, String> {
    let text = std::str::from_utf8(text).unwrap_or_default();
    // Only as it would be written.
    let read = text.parse::<i64>().ok().filter(|number| number.to_string() == text);
    read.ok_or_else(|| "ERR value is not an integer or out of range".to_owned())
}

fn wrong_type() -> String {
    "WRONGTYPE Operation against a key holding the wrong kind of value".to_owned()
}
