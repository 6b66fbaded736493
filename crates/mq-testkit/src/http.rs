//! A request to a broker's admin port or socket.

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

/// Asks, such as `GET /metrics`, and returns status and body.
///
/// # Panics
/// If the answer is not HTTP, or does not come.
pub async fn ask(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    request: &str,
    body: &str,
) -> (u16, String) {
    let length = body.len();
    let text = format!("{request} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n{body}");
    stream.write_all(text.as_bytes()).await.expect("it is sent");
    let mut answer = String::new();
    let read = stream.read_to_string(&mut answer).await;
    read.expect("it is answered");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    let status = head
        .split(' ')
        .nth(1)
        .and_then(|status| status.parse().ok());
    (status.expect("a status"), body.to_owned())
}
