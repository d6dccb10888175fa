//! An HTTP/1.1 client that costs next to nothing, so that the server is what is measured.

use std::io;

use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::platform::KEY;

/// One keep-alive connection.
pub struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Connection {
    pub async fn open(address: &str) -> io::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, buffer: Vec::with_capacity(4096) })
    }

    /// Sends a prepared request and reads the whole answer: status and body.
    pub async fn exchange(&mut self, request: &[u8]) -> io::Result<(u16, String)> {
        let head = self.begin(request).await?;
        if header(&head, "transfer-encoding").is_some() {
            let mut body = String::new();
            while let Some(piece) = self.piece().await? {
                body.push_str(&piece);
            }
            return Ok((status(&head), body));
        }
        let length = header(&head, "content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
        while self.buffer.len() < length {
            self.fill().await?;
        }
        let body = self.buffer.drain(..length).collect();
        Ok((status(&head), String::from_utf8(body).map_err(io::Error::other)?))
    }

    /// Sends a prepared request and reads the head of the answer.
    pub async fn begin(&mut self, request: &[u8]) -> io::Result<String> {
        self.stream.write_all(request).await?;
        loop {
            if let Some(end) = find(&self.buffer, b"\r\n\r\n") {
                let head = self.buffer.drain(..end + 4).collect();
                return String::from_utf8(head).map_err(io::Error::other);
            }
            self.fill().await?;
        }
    }

    /// The next piece of a chunked body as it came, `None` at its end.
    pub async fn piece(&mut self) -> io::Result<Option<String>> {
        loop {
            if let Some(end) = find(&self.buffer, b"\r\n") {
                let size = String::from_utf8_lossy(&self.buffer[..end]).into_owned();
                let size = usize::from_str_radix(size.trim(), 16).map_err(io::Error::other)?;
                if self.buffer.len() >= end + 2 + size + 2 {
                    let piece: Vec<u8> = self.buffer.drain(..end + 2 + size + 2).skip(end + 2).take(size).collect();
                    let text = String::from_utf8(piece).map_err(io::Error::other)?;
                    return Ok((size > 0).then_some(text));
                }
            }
            self.fill().await?;
        }
    }

    /// Reads so many bytes and forgets them.
    pub async fn skip(&mut self, mut length: usize) -> io::Result<()> {
        while length > 0 {
            if self.buffer.is_empty() {
                self.fill().await?;
            }
            let read = self.buffer.len().min(length);
            self.buffer.drain(..read);
            length -= read;
        }
        Ok(())
    }

    /// Sends JSON with the key, if any, and reads the JSON of a success.
    pub async fn call(&mut self, method: &str, path: &str, body: &Value) -> Value {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let (status, answer) = self.exchange(&request(method, path, KEY, &body)).await.expect("an answer");
        assert!(status < 300, "{method} {path}: {status}: {answer}");
        serde_json::from_str(&answer).unwrap_or_default()
    }

    async fn fill(&mut self) -> io::Result<()> {
        match self.stream.read_buf(&mut self.buffer).await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }
}

/// The next request on a connection: its head and its body; `None` when there are no more.
pub async fn asked(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> io::Result<Option<(String, Vec<u8>)>> {
    let end = loop {
        if let Some(end) = find(buffer, b"\r\n\r\n") {
            break end + 4;
        }
        if stream.read_buf(buffer).await? == 0 {
            return Ok(None);
        }
    };
    let head = String::from_utf8_lossy(&buffer[..end]).into_owned();
    let length: usize = header(&head, "content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    while buffer.len() < end + length {
        if stream.read_buf(buffer).await? == 0 {
            return Ok(None);
        }
    }
    Ok(Some((head, buffer.drain(..end + length).skip(end).collect())))
}

/// A request with the key and, if any, a JSON body.
pub fn request(method: &str, path: &str, key: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!(
        "{method} {path} HTTP/1.1\r\nhost: bench\r\nauthorization: Bearer {key}\r\n\
         content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    )
    .into_bytes()
}

pub fn status(head: &str) -> u16 {
    head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0)
}

pub fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    let lines = head.lines().filter_map(|line| line.split_once(':'));
    lines.filter(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim()).next()
}

pub fn find(text: &[u8], what: &[u8]) -> Option<usize> {
    text.windows(what.len()).position(|window| window == what)
}
