//! The page of one key, what its forms change, and what a request would meet.
//!
//! What is changed is a call of the admin API in the same process: what is refused there is
//! refused here, in the same words.
//!
//! Not here: the numbers themselves (`admin::limits`), the rules of a request
//! (`operations::explain`).

use std::time::Duration;

use serde_json::{Map, Value};
use weir_common::admin::Acted;
use weir_common::http_server::reply::Reply;
use weir_common::json::member;
use weir_common::pages::form::Form;
use weir_common::pages::screen::{Grid, GridCell, Input, InputForm, Screen, SectionBody};
use weir_common::pages::show::mark;

use crate::operations::admin::GatewayAdmin;
use crate::operations::admin::screen::{explain_form, key_form, key_path, section};
use crate::operations::explain::{Example, explain};

/// How long the directory and identity servers have for an example, together.
const EXAMPLE_WAIT: Duration = Duration::from_secs(10);

/// A call of the admin API that was refused: its status, and a page that says why.
type Refused = (u16, Screen);

/// What the API answered.
fn answered(reply: Result<Reply, Reply>) -> Result<Value, Box<Refused>> {
    let (reply, is_done) = match reply {
        Ok(reply) => (reply, true),
        Err(reply) => (reply, false),
    };
    let value: Value = serde_json::from_slice(&reply.body).unwrap_or_default();
    if is_done {
        return Ok(value);
    }
    let title = member(&value, "title").as_str().unwrap_or("Not done").to_owned();
    let detail = member(&value, "detail").as_str().unwrap_or_default();
    Err(Box::new((reply.status, Screen::notice(title, mark("✕", "Not done", "bad"), detail))))
}

/// A value as a person reads it.
fn text(value: &Value) -> String {
    match value {
        Value::Null => "–".to_owned(),
        Value::String(text) => text.clone(),
        Value::Bool(true) => "yes".to_owned(),
        Value::Bool(false) => "no".to_owned(),
        Value::Object(members) => {
            let all = members.iter().map(|(name, value)| format!("{name} {}", text(value)));
            all.collect::<Vec<_>>().join(", ")
        }
        Value::Array(all) => all.iter().map(text).collect::<Vec<_>>().join(", "),
        Value::Number(number) => number.to_string(),
    }
}

impl GatewayAdmin {
    /// The page of a key.
    pub(super) async fn key_page(&self, query: &Form) -> Screen {
        let (limit, key) = (query.get("limit"), query.get("key"));
        let active = self.shared.active.load_full();
        let usage = match answered(self.usage(limit, key).await) {
            Ok(usage) => usage,
            Err(refused) => {
                let (_, mut screen) = *refused;
                screen.sections.push(key_form(&active, limit, key));
                return screen;
            }
        };
        let mut screen = Screen::new(key);
        screen.refreshes = true;
        let names = [
            ("limit", "Limit"),
            ("kind", "Counts by"),
            ("known", "In the directory"),
            ("allowance", "Value"),
            ("from", "From"),
            ("used", "Used"),
            ("remaining", "Remaining"),
            ("boosted_until", "Boosted until"),
        ];
        let facts =
            names.map(|(name, shown)| (shown.to_owned(), text(member(&usage, name)))).into();
        screen.sections.push(section("", "", SectionBody::Facts(facts)));
        if let Some(plans) = member(&usage, "by_plan").as_array() {
            let columns = vec!["Plan of the workspace", "Value", "Used", "Remaining"];
            let row = |one: &Value| {
                vec![
                    GridCell::Text(text(member(one, "plan"))),
                    GridCell::Text(text(member(one, "allowance"))),
                    GridCell::Number(text(member(one, "used"))),
                    GridCell::Number(text(member(one, "remaining"))),
                ]
            };
            let grid = Grid { columns, rows: plans.iter().map(row).collect(), empty: "" };
            screen.sections.push(section("By plan", "", SectionBody::Grid(grid)));
        }
        let form = |action: &str, inputs: Vec<Input>, button| {
            let own = [Input::hidden("limit", limit), Input::hidden("key", key)];
            let inputs = own.into_iter().chain(inputs).collect();
            let action = format!("/dashboard/key/{action}");
            SectionBody::Form(InputForm { action, reads: false, inputs, button, back: None })
        };
        let is_bucket = !member(&usage, "allowance")["rate"].is_null();
        let mut inputs = if is_bucket {
            vec![
                Input::text("rate", "Tokens per second, or per period as 5000/h", "100"),
                Input::text("burst", "Tokens of a full bucket", "200"),
            ]
        } else {
            vec![Input::text("requests", "Requests", "200")]
        };
        inputs.push(Input::text("ttl", "For how long, 31 days at most", "10m").with("10m"));
        let why = "Raises what the key may use for a while; it never lowers it.";
        screen.sections.push(section("Boost", why, form("boost", inputs, "Boost")));
        if !member(&usage, "boosted_until").is_null() {
            let end = form("unboost", Vec::new(), "End the boost");
            screen.sections.push(section("End the boost", "", end));
        }
        let why = "Its next requests are counted from zero.";
        let reset = form("reset", Vec::new(), "Forget what it has used …");
        screen.sections.push(section("Forget", why, reset));
        screen
    }

    /// What a form does.
    pub(super) async fn acted(&self, steps: &[&str], form: &Form) -> Option<Acted> {
        let (limit, key) = (form.get("limit"), form.get("key"));
        let done = match steps {
            ["explain"] => return Some(Acted::Show(200, self.explained(form).await)),
            ["key", "boost"] => self.boost(limit, key, boost(form).to_string().as_bytes()).await,
            ["key", "unboost"] => self.unboost(limit, key).await,
            ["key", "reset"] if form.get("confirmed") == "yes" => self.reset(limit, key).await,
            ["key", "reset"] => return Some(Acted::Show(200, reset_question(limit, key))),
            _ => return None,
        };
        Some(match answered(done) {
            Ok(_) => Acted::Go(key_path(limit, key)),
            Err(refused) => {
                let (status, mut screen) = *refused;
                let active = self.shared.active.load_full();
                screen.sections.push(key_form(&active, limit, key));
                Acted::Show(status, screen)
            }
        })
    }

    /// What a request would meet, with what is left now.
    async fn explained(&self, form: &Form) -> Screen {
        let mut screen = Screen::new("What would this request meet?");
        let explained = match example(form) {
            Ok(example) => self.explain(example).await,
            Err(why) => Err(why),
        };
        match explained {
            Ok(explained) => self.add_explained(&mut screen, &explained).await,
            Err(why) => {
                let heading = "What would this request meet?";
                screen = Screen::notice(heading, mark("✕", "Not a request", "bad"), why);
            }
        }
        let mut again = explain_form();
        if let SectionBody::Form(own) = &mut again.body {
            for input in &mut own.inputs {
                // A token is typed again, rather than sent back in a page.
                if input.name != "headers" {
                    input.value = form.get(input.name).to_owned();
                }
            }
        }
        screen.sections.push(again);
        screen
    }

    async fn explain(&self, example: Example) -> Result<Value, String> {
        let (active, now) = (self.shared.active.load_full(), self.shared.clock.now());
        let explained = explain(&active, (&example, now));
        match tokio::time::timeout(EXAMPLE_WAIT, explained).await {
            Ok(explained) => explained.map(|explained| explained.json()),
            Err(_) => {
                Err("The directory or the identity server did not answer in time.".to_owned())
            }
        }
    }

    async fn add_explained(&self, screen: &mut Screen, explained: &Value) {
        let members = explained.as_object().into_iter().flatten();
        let facts = members.filter(|(name, _)| *name != "limits");
        let facts = facts.map(|(name, value)| (name.clone(), text(value))).collect();
        screen.sections.push(section("", "", SectionBody::Facts(facts)));
        let Some(limits) = member(explained, "limits").as_array() else { return };
        let mut rows = Vec::new();
        for one in limits {
            let (limit, key) = (text(member(one, "limit")), text(member(one, "key")));
            // A header's value has only a hash here, by which nothing is found.
            let usage = answered(self.usage(&limit, &key).await).unwrap_or_default();
            let from = match member(&usage, "boosted_until").is_null() {
                true => text(member(one, "from")),
                false => format!("{}, boosted", text(member(one, "from"))),
            };
            rows.push(vec![
                GridCell::Text(limit.clone()),
                GridCell::Link(key_path(&limit, &key), key),
                GridCell::Text(text(member(one, "values"))),
                GridCell::Text(from),
                GridCell::Text(text(member(one, "mode"))),
                GridCell::Number(text(member(&usage, "used"))),
                GridCell::Number(text(member(&usage, "remaining"))),
            ]);
        }
        let columns = vec!["Limit", "Key", "Value", "From", "Mode", "Used", "Remaining"];
        let grid = Grid { columns, rows, empty: "No limit applies." };
        screen.sections.push(section("Limits that it meets", "", SectionBody::Grid(grid)));
    }
}

fn reset_question(limit: &str, key: &str) -> Screen {
    let inputs = [("limit", limit), ("key", key), ("confirmed", "yes")];
    let form = InputForm {
        action: "/dashboard/key/reset".to_owned(),
        reads: false,
        inputs: inputs.map(|(name, value)| Input::hidden(name, value)).into(),
        button: "Forget it",
        back: Some(key_path(limit, key)),
    };
    let text = format!(
        "What {key} has used of {limit} is forgotten, and its next requests are counted from \
         zero. Other keys and limits stay as they are."
    );
    Screen::question(format!("Forget what {key} has used?"), text, form)
}

/// The body of a boost: what was filled in, numbers as numbers.
fn boost(form: &Form) -> Value {
    let fields = ["requests", "rate", "burst", "ttl"];
    let filled = fields.into_iter().filter_map(|name| Some((name, form.filled(name)?)));
    let value = |text: &str| text.parse::<u32>().map_or_else(|_| Value::from(text), Value::from);
    filled.map(|(name, text)| (name.to_owned(), value(text))).collect::<Map<_, _>>().into()
}

/// The request that a form describes.
fn example(form: &Form) -> Result<Example, String> {
    let from = form.filled("from").unwrap_or("127.0.0.1");
    let from = from.parse().map_err(|_| format!("`{from}` is not an IP address"))?;
    let lines = form.get("headers").lines().map(str::trim).filter(|line| !line.is_empty());
    Ok(Example {
        method: form.get("method").to_owned(),
        url: form.get("url").to_owned(),
        headers: lines.map(str::to_owned).collect(),
        from,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_boost_has_what_was_filled_in() {
        let of = |text: &str| boost(&Form::read(text.as_bytes())).to_string();
        assert_eq!(of("requests=20&rate=&ttl=10m"), r#"{"requests":20,"ttl":"10m"}"#);
        assert_eq!(of("rate=5000/h&burst=x&ttl="), r#"{"rate":"5000/h","burst":"x"}"#);
    }

    #[test]
    fn an_example_has_a_header_in_each_line() {
        let read = |text: &str| example(&Form::read(text.as_bytes()));
        let found = read("method=GET&url=http://a/&headers=A:+1%0D%0A%0D%0A+B:2&from=").unwrap();
        assert_eq!(found.headers, ["A: 1", "B:2"]);
        assert_eq!(found.from.to_string(), "127.0.0.1");
        assert!(read("from=here").is_err());
    }
}
