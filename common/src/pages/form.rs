//! What a form sends. (core)

/// The fields of a form, or of a query.
pub struct Form(Vec<(String, String)>);

impl Form {
    /// The fields of `application/x-www-form-urlencoded`.
    #[must_use]
    pub fn read(text: &[u8]) -> Self {
        Self(form_urlencoded::parse(text).into_owned().collect())
    }

    /// The first field of this name, without white space around it; empty if there is none.
    #[must_use]
    pub fn get(&self, name: &str) -> &str {
        let found = self.0.iter().find(|(key, _)| key == name);
        found.map_or("", |(_, value)| value.trim())
    }

    /// The first field of this name, unless it is empty.
    #[must_use]
    pub fn filled(&self, name: &str) -> Option<&str> {
        Some(self.get(name)).filter(|value| !value.is_empty())
    }

    /// Every field of this name, in order.
    pub fn all<'f>(&'f self, name: &'f str) -> impl Iterator<Item = &'f str> {
        self.0.iter().filter(move |(key, _)| key == name).map(|(_, value)| value.as_str())
    }
}

/// A query of these parameters, without those that are empty.
#[must_use]
pub fn query<'q>(parameters: impl IntoIterator<Item = (&'q str, &'q str)>) -> String {
    let mut query = form_urlencoded::Serializer::new(String::new());
    query.extend_pairs(parameters.into_iter().filter(|(_, value)| !value.is_empty()));
    query.finish()
}

/// Lines of `name: value`, as an object's members; white space around both is dropped. A line
/// without a colon is a name without a value.
pub fn members(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.map(|line| line.split_once(':').unwrap_or((line, ""))).map(|(name, value)| {
        let (name, value) = (name.trim(), value.trim());
        (name, value)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_as_browsers_send_them() {
        let form = Form::read(b"url=https%3A%2F%2Fa.example%2Fx&events=a&events=b+c&empty=&d=+e+");
        assert_eq!(form.get("url"), "https://a.example/x");
        assert_eq!(form.all("events").collect::<Vec<_>>(), ["a", "b c"]);
        assert_eq!((form.filled("empty"), form.filled("none"), form.get("d")), (None, None, "e"));
    }

    #[test]
    fn a_query_has_what_is_filled() {
        assert_eq!(query([("a", "1 &"), ("b", ""), ("c", "é")]), "a=1+%26&c=%C3%A9");
    }

    #[test]
    fn members_stand_in_lines() {
        let found: Vec<_> = members("X-A: 1\r\n\n  x-b :  2:3 \nalone").collect();
        assert_eq!(found, [("X-A", "1"), ("x-b", "2:3"), ("alone", "")]);
    }
}
