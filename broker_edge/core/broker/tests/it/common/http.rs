//! Plain HTTP requests to the admin listener.

use std::io::{Read, Write};
use std::net::SocketAddr;

use serde_json::Value;

use super::tcp;

/// The complete answer to a request with these headers.
pub fn ask(admin: SocketAddr, line: &str, headers: &[&str]) -> String {
    ask_with(admin, line, headers, "")
}

/// The same for a request with a body, whose size and kind are among the headers.
pub fn ask_with(admin: SocketAddr, line: &str, headers: &[&str], body: &str) -> String {
    let mut stream = tcp(admin);
    let headers: String = headers.iter().map(|one| format!("{one}\r\n")).collect();
    let request = format!("{line} HTTP/1.1\r\n{headers}Connection: close\r\n\r\n{body}");
    stream.write_all(request.as_bytes()).expect("it is taken");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers");
    answer
}

pub fn status(answer: &str) -> u16 {
    let code = answer.split(' ').nth(1).and_then(|code| code.parse().ok());
    code.unwrap_or_else(|| panic!("no status in {answer:?}"))
}

/// Status and body.
pub fn text(admin: SocketAddr, method: &str, path: &str) -> (u16, String) {
    let answer = ask(admin, &format!("{method} {path}"), &["Host: localhost"]);
    let (head, body) = answer
        .split_once("\r\n\r\n")
        .unwrap_or_else(|| panic!("no head in {answer:?}"));
    let is_chunked = head.to_lowercase().contains("transfer-encoding: chunked");
    let body = if is_chunked {
        dechunk(body)
    } else {
        body.to_owned()
    };
    (status(head), body)
}

fn dechunk(mut rest: &str) -> String {
    let mut body = String::new();
    while let Some((size, behind)) = rest.split_once("\r\n") {
        let size = usize::from_str_radix(size.trim(), 16).expect("the size of a chunk");
        if size == 0 {
            break;
        }
        body.push_str(&behind[..size]);
        rest = &behind[size + 2..];
    }
    body
}

pub fn json(admin: SocketAddr, method: &str, path: &str) -> (u16, Value) {
    let (status, body) = text(admin, method, path);
    let value = serde_json::from_str(&body).unwrap_or_else(|_| panic!("no JSON: {body:?}"));
    (status, value)
}
