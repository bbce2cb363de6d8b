//! A client's request, written out field by field.
//!
//! It adds only `Host` and the framing of a body to what a test writes.

/// The control host of the default configuration.
pub const CONTROL: &str = "api.localhost";

/// The data host of an instance under the default configuration.
pub fn data_host(instance: &str) -> String {
    format!("{instance}.auth.localhost")
}

/// A request, sent exactly as written.
#[derive(Clone, Debug)]
pub struct Request {
    method: String,
    target: String,
    host: String,
    fields: Vec<(String, String)>,
    body: Option<Body>,
}

#[derive(Clone, Debug)]
enum Body {
    Fixed(Vec<u8>),
    Chunks(Vec<Vec<u8>>),
}

impl Request {
    /// A request to the control host.
    pub fn new(method: &str, target: &str) -> Self {
        Self {
            method: method.to_owned(),
            target: target.to_owned(),
            host: CONTROL.to_owned(),
            fields: Vec::new(),
            body: None,
        }
    }

    /// A GET to the control host.
    pub fn get(target: &str) -> Self {
        Self::new("GET", target)
    }

    /// A POST to the control host, with a JSON body.
    pub fn post(target: &str, body: impl Into<Vec<u8>>) -> Self {
        Self::new("POST", target).field("Content-Type", "application/json").body(body)
    }

    /// Sends it to another host.
    pub fn host(mut self, host: &str) -> Self {
        host.clone_into(&mut self.host);
        self
    }

    /// Adds a field.
    pub fn field(mut self, name: &str, value: &str) -> Self {
        self.fields.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Sets a body of known length.
    pub fn body(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.body = Some(Body::Fixed(bytes.into()));
        self
    }

    /// Sets a body in chunks.
    pub fn chunks<B: AsRef<[u8]>>(mut self, chunks: &[B]) -> Self {
        self.body = Some(Body::Chunks(chunks.iter().map(|chunk| chunk.as_ref().into()).collect()));
        self
    }

    /// Whether its response has no body, whatever the head announces.
    pub fn is_head(&self) -> bool {
        self.method == "HEAD"
    }

    /// Its head for HTTP/2: pseudo-fields first, names in lower case.
    pub fn pseudo_fields(&self) -> Vec<(String, String)> {
        let pseudo = [
            (":method", &self.method),
            (":scheme", &"https".to_owned()),
            (":authority", &self.host),
            (":path", &self.target),
        ];
        let pseudo = pseudo.map(|(name, value)| (name.to_owned(), value.clone()));
        let fields = self.fields.iter().map(|(n, value)| (n.to_ascii_lowercase(), value.clone()));
        let length = match &self.body {
            Some(Body::Fixed(bytes)) => Some(bytes.len().to_string()),
            _ => None,
        };
        let length = length.map(|length| ("content-length".to_owned(), length));
        pseudo.into_iter().chain(fields).chain(length).collect()
    }

    /// Its body without any framing, if it has one.
    pub fn content(&self) -> Option<Vec<u8>> {
        match self.body.as_ref()? {
            Body::Fixed(bytes) => Some(bytes.clone()),
            Body::Chunks(chunks) => Some(chunks.concat()),
        }
    }

    /// The bytes up to and including the empty line.
    pub fn head_bytes(&self) -> Vec<u8> {
        let mut text =
            format!("{} {} HTTP/1.1\r\nHost: {}\r\n", self.method, self.target, self.host);
        for (name, value) in &self.fields {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        match &self.body {
            None => {}
            Some(Body::Fixed(bytes)) => {
                text.push_str(&format!("Content-Length: {}\r\n", bytes.len()))
            }
            Some(Body::Chunks(_)) => text.push_str("Transfer-Encoding: chunked\r\n"),
        }
        text.push_str("\r\n");
        text.into_bytes()
    }

    /// The bytes after the empty line.
    pub fn body_bytes(&self) -> Vec<u8> {
        match &self.body {
            None => Vec::new(),
            Some(Body::Fixed(bytes)) => bytes.clone(),
            Some(Body::Chunks(chunks)) => {
                let mut bytes: Vec<u8> = chunks.iter().flat_map(chunk).collect();
                bytes.extend(chunk(b""));
                bytes
            }
        }
    }
}

/// One chunk as sent on the wire; an empty one is the last chunk.
pub fn chunk(piece: impl AsRef<[u8]>) -> Vec<u8> {
    let piece = piece.as_ref();
    let mut bytes = format!("{:x}\r\n", piece.len()).into_bytes();
    bytes.extend(piece);
    bytes.extend(b"\r\n");
    bytes
}
