//! Runs the scripts of gateways as a Redis server does: on Lua 5.1, with `redis.call` and `struct`.
//!
//! Not here: the commands (`data`).

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use mlua::{Function, Lua, MultiValue, Table, Value, Variadic};

use super::data::{Data, Reply};

/// A fault that is planted.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Mutant {
    /// In a script: a text of it, and what stands there instead.
    Script(&'static str, &'static str),
    /// In a gateway's client: what it has sent when its connection breaks, and has no reply to, it
    /// sends once more.
    Repeats,
}

/// The scripts that a server knows.
pub(crate) struct Scripts {
    lua: Lua,
    known: HashMap<String, Function>,
    mutant: Option<Mutant>,
}

impl Scripts {
    /// None, that run on this data.
    pub(crate) fn new(data: Rc<RefCell<Data>>, mutant: Option<Mutant>) -> Self {
        let lua = Lua::new();
        let call = move |lua: &Lua, words: Variadic<Value>| {
            let words: Vec<Vec<u8>> = words.iter().map(word).collect();
            to_lua(lua, data.borrow_mut().run(&words))
        };
        let redis = lua.create_table().unwrap();
        redis.set("call", lua.create_function(call).unwrap()).unwrap();
        let packing = lua.create_table().unwrap();
        packing.set("pack", lua.create_function(pack).unwrap()).unwrap();
        packing.set("unpack", lua.create_function(unpack).unwrap()).unwrap();
        lua.globals().set("redis", redis).unwrap();
        lua.globals().set("struct", packing).unwrap();
        Self { lua, known: HashMap::new(), mutant }
    }

    /// Loads a script, and returns its name.
    pub(crate) fn load(&mut self, script: &str) -> Reply {
        let digest =
            ring::digest::digest(&ring::digest::SHA1_FOR_LEGACY_USE_ONLY, script.as_bytes());
        let name: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        let script = match self.mutant {
            Some(Mutant::Script(from, to)) if script.contains(from) => script.replacen(from, to, 1),
            _ => script.to_owned(),
        };
        let loaded = self.lua.load(script).into_function().unwrap();
        self.known.insert(name.clone(), loaded);
        Reply::Text(name.into_bytes())
    }

    /// Runs a script with these keys and arguments.
    pub(crate) fn run(&self, name: &[u8], keys: &[Vec<u8>], arguments: &[Vec<u8>]) -> Reply {
        let name = String::from_utf8_lossy(name);
        let Some(script) = self.known.get(&*name) else {
            return Reply::Error("NOSCRIPT No matching script. Please use EVAL.".to_owned());
        };
        let globals = self.lua.globals();
        for (name, texts) in [("KEYS", keys), ("ARGV", arguments)] {
            let texts = texts.iter().map(|text| self.lua.create_string(text).unwrap());
            globals.set(name, self.lua.create_sequence_from(texts).unwrap()).unwrap();
        }
        match script.call::<Value>(()) {
            Ok(value) => from_lua(value),
            Err(mlua::Error::CallbackError { cause, .. }) => Reply::Error(cause.to_string()),
            Err(error) => Reply::Error(format!("ERR {error}")),
        }
    }
}

/// A word of a command, as a server writes what a script gives it.
fn word(value: &Value) -> Vec<u8> {
    match value {
        Value::String(text) => text.as_bytes().to_vec(),
        Value::Integer(number) => number.to_string().into_bytes(),
        Value::Number(number) => format!("{number}").into_bytes(),
        other => panic!("{other:?} is no word of a command"),
    }
}

fn to_lua(lua: &Lua, reply: Reply) -> mlua::Result<Value> {
    Ok(match reply {
        Reply::Status(text) => {
            let status = lua.create_table()?;
            status.set("ok", text)?;
            Value::Table(status)
        }
        Reply::Text(text) => Value::String(lua.create_string(text)?),
        Reply::Number(number) => Value::Number(number as f64),
        Reply::List(all) => {
            let all = all.into_iter().map(|one| to_lua(lua, one));
            let all = all.collect::<mlua::Result<Vec<Value>>>()?;
            Value::Table(lua.create_sequence_from(all)?)
        }
        Reply::Nothing => Value::Boolean(false),
        Reply::Error(error) => return Err(mlua::Error::RuntimeError(error)),
    })
}

fn from_lua(value: Value) -> Reply {
    match value {
        Value::String(text) => Reply::Text(text.as_bytes().to_vec()),
        Value::Integer(number) => Reply::Number(number),
        Value::Number(number) => Reply::Number(number as i64),
        Value::Boolean(true) => Reply::Number(1),
        Value::Table(all) => list(&all),
        _ => Reply::Nothing,
    }
}

fn list(all: &Table) -> Reply {
    let each = all.sequence_values::<Value>();
    Reply::List(each.map(|value| from_lua(value.unwrap())).collect())
}

/// One field of a format: `B`, `I4`, `d`, or so many bytes of text; `c0` is all of a text.
enum Field {
    Byte,
    Word,
    Double,
    Text(usize),
}

fn fields(format: &str) -> Vec<Field> {
    let format = format.strip_prefix('>').expect("all formats have the highest byte first");
    let (mut fields, mut rest) = (Vec::new(), format.chars().peekable());
    while let Some(kind) = rest.next() {
        let mut size = String::new();
        while let Some(digit) = rest.next_if(char::is_ascii_digit) {
            size.push(digit);
        }
        fields.push(match (kind, size.as_str()) {
            ('B', "") => Field::Byte,
            ('I', "4") => Field::Word,
            ('d', "") => Field::Double,
            ('c', size) => Field::Text(size.parse().unwrap()),
            other => panic!("{other:?} is in no format"),
        });
    }
    fields
}

fn pack(lua: &Lua, (format, values): (String, Variadic<Value>)) -> mlua::Result<Value> {
    let mut packed = Vec::new();
    let number = |value: &Value| match value {
        Value::Integer(number) => *number as f64,
        Value::Number(number) => *number,
        other => panic!("{other:?} is no number"),
    };
    let fields = fields(&format);
    assert_eq!(fields.len(), values.len(), "{format}");
    for (field, value) in fields.iter().zip(values.iter()) {
        match field {
            Field::Byte => packed.push(number(value) as u8),
            Field::Word => packed.extend((number(value) as i64 as u32).to_be_bytes()),
            Field::Double => packed.extend(number(value).to_be_bytes()),
            Field::Text(size) => {
                let Value::String(text) = value else { panic!("{value:?} is no text") };
                let text = text.as_bytes();
                packed.extend_from_slice(if *size > 0 { &text[..*size] } else { &text });
            }
        }
    }
    Ok(Value::String(lua.create_string(packed)?))
}

fn unpack(
    lua: &Lua,
    (format, text, from): (String, mlua::LuaString, Option<usize>),
) -> mlua::Result<MultiValue> {
    let text = text.as_bytes();
    let mut at = from.unwrap_or(1) - 1;
    let mut values = MultiValue::new();
    for field in fields(&format) {
        let size = match field {
            Field::Byte => 1,
            Field::Word => 4,
            Field::Double => 8,
            Field::Text(size) => size,
        };
        let piece = text.get(at..at + size);
        let short = || mlua::Error::RuntimeError("ERR data string too short".to_owned());
        let piece = piece.ok_or_else(short)?;
        at += size;
        values.push_back(match field {
            Field::Byte => Value::Number(f64::from(piece[0])),
            Field::Word => Value::Number(u32::from_be_bytes(piece.try_into().unwrap()).into()),
            Field::Double => Value::Number(f64::from_be_bytes(piece.try_into().unwrap())),
            Field::Text(_) => Value::String(lua.create_string(piece)?),
        });
    }
    values.push_back(Value::Number((at + 1) as f64));
    Ok(values)
}
