//! Commands and replies as they travel: the second version of the protocol of Redis.

use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader, DuplexStream, ReadHalf};

use super::data::Reply;

/// Reads a command; none where the connection ends.
pub(crate) async fn read(from: &mut BufReader<ReadHalf<DuplexStream>>) -> Option<Vec<Vec<u8>>> {
    let count = length(from, b'*').await?;
    let mut words = Vec::with_capacity(count);
    for _ in 0..count {
        let mut word = vec![0; length(from, b'$').await? + 2];
        from.read_exact(&mut word).await.ok()?;
        word.truncate(word.len() - 2);
        words.push(word);
    }
    Some(words)
}

async fn length(from: &mut BufReader<ReadHalf<DuplexStream>>, kind: u8) -> Option<usize> {
    let mut line = Vec::new();
    from.read_until(b'\n', &mut line).await.ok()?;
    let digits = line.strip_prefix(&[kind])?.strip_suffix(b"\r\n")?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// Writes a reply.
pub(crate) fn write(reply: &Reply, to: &mut Vec<u8>) {
    match reply {
        Reply::Status(text) => to.extend(format!("+{text}\r\n").bytes()),
        Reply::Text(text) => {
            to.extend(format!("${}\r\n", text.len()).bytes());
            to.extend_from_slice(text);
            to.extend_from_slice(b"\r\n");
        }
        Reply::Number(number) => to.extend(format!(":{number}\r\n").bytes()),
        Reply::List(all) => {
            to.extend(format!("*{}\r\n", all.len()).bytes());
            all.iter().for_each(|one| write(one, to));
        }
        Reply::Nothing => to.extend_from_slice(b"$-1\r\n"),
        Reply::Error(error) => {
            let line = error.lines().next().unwrap_or_default();
            to.extend(format!("-{line}\r\n").bytes());
        }
    }
}
