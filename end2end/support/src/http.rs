//! The health and metrics endpoints of a local server or worker.
//!
//! Plain HTTP/1.0 over a TCP stream: the response ends with the connection, and no HTTP client has to be compiled.

use std::{io, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

/// The time a process has for one response.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Sends a GET request. Returns the status line and the body.
///
/// # Errors
///
/// Returns an error if nothing listens on the port, or there is no complete response within two seconds.
pub async fn get(port: u16, path: &str) -> io::Result<(String, String)> {
    let exchange = async {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
        stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n").as_bytes()).await?;
        let mut response = String::new();
        stream.read_to_string(&mut response).await?;
        let (head, body) = response.split_once("\r\n\r\n").ok_or(io::ErrorKind::UnexpectedEof)?;
        Ok((head.lines().next().unwrap_or_default().to_owned(), body.to_owned()))
    };
    tokio::time::timeout(RESPONSE_TIMEOUT, exchange).await?
}

/// Returns true if the process on this port reports that it is ready.
pub async fn is_ready(port: u16) -> bool {
    get(port, "/health/ready").await.is_ok_and(|(status, _)| status.contains(" 200 "))
}

/// Returns one metric, summed over its labels; none if the process does not respond.
pub async fn metric(port: u16, name: &str) -> Option<f64> {
    let (_, text) = get(port, "/metrics").await.ok()?;
    let samples = text.lines().filter(|line| line.starts_with(name));
    Some(samples.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).sum())
}
