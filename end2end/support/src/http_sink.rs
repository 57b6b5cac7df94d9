//! An HTTP server that keeps the requests that it receives.
//!
//! Plain HTTP/1.1 over a TCP stream, one request for each connection, so that no framework has to be compiled. It answers
//! with the statuses that a test gives, and then with 204.

use std::{
    collections::VecDeque,
    io,
    sync::{Arc, Mutex, PoisonError},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use crate::wait;

/// A received request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceivedRequest {
    /// The method, the target and the protocol, as in `POST /hook HTTP/1.1`.
    pub line: String,
    /// The headers, with names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: String,
}

impl ReceivedRequest {
    /// Returns the value of a header.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

/// An answer: the status with its reason, further header lines, and the body.
#[derive(Clone, Copy, Debug)]
pub struct HttpAnswer {
    /// The status, as in `404 Not Found`.
    pub status: &'static str,
    /// Header lines, each with its line break.
    pub headers: &'static str,
    /// The body.
    pub body: &'static str,
}

/// A running server. It ends with the runtime of the test.
#[derive(Clone, Debug)]
pub struct HttpSink {
    /// The port on 127.0.0.1.
    pub port: u16,
    requests: Arc<Mutex<Vec<ReceivedRequest>>>,
    answers: Arc<Mutex<VecDeque<HttpAnswer>>>,
}

impl HttpSink {
    /// Starts a server that gives these answers in their order, and then accepts every request.
    ///
    /// # Panics
    ///
    /// Panics if no port is free.
    pub async fn start(answers: &[HttpAnswer]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("bound").port();
        let answers = Arc::new(Mutex::new(answers.iter().copied().collect()));
        let sink = Self { port, requests: Arc::default(), answers };
        let ours = sink.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let ours = ours.clone();
                tokio::spawn(async move { ours.serve(stream).await });
            }
        });
        sink
    }

    /// Returns the address of a path on this server.
    #[must_use]
    pub fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    /// Returns the requests received until now.
    #[must_use]
    pub fn requests(&self) -> Vec<ReceivedRequest> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until `count` requests were received, and returns them.
    ///
    /// # Panics
    ///
    /// Panics if they do not arrive within [`wait::WAIT_TIMEOUT`].
    pub async fn wait_for(&self, count: usize) -> Vec<ReceivedRequest> {
        wait::eventually("the requests", async || Some(self.requests()).filter(|found| found.len() >= count)).await
    }

    async fn serve(self, mut stream: TcpStream) -> io::Result<()> {
        let request = read(&mut stream).await?;
        self.requests.lock().unwrap_or_else(PoisonError::into_inner).push(request);
        let next = self.answers.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        let HttpAnswer { status, headers, body } =
            next.unwrap_or(HttpAnswer { status: "204 No Content", headers: "", body: "" });
        let length =
            if status.starts_with("204") { String::new() } else { format!("content-length: {}\r\n", body.len()) };
        let answer = format!("HTTP/1.1 {status}\r\n{length}{headers}connection: close\r\n\r\n{body}");
        stream.write_all(answer.as_bytes()).await?;
        stream.shutdown().await
    }
}

async fn read(stream: &mut TcpStream) -> io::Result<ReceivedRequest> {
    let mut bytes = Vec::new();
    let mut expected = None;
    loop {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let mut lines = head.lines();
            let line = lines.next().unwrap_or_default().to_owned();
            let header =
                |line: &str| line.split_once(": ").map(|(name, value)| (name.to_lowercase(), value.to_owned()));
            let headers: Vec<_> = lines.filter_map(header).collect();
            let request = ReceivedRequest { line, headers, body: body.to_owned() };
            let length = request.header("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
            if bytes.len() >= *expected.get_or_insert(head.len() + 4 + length) {
                return Ok(request);
            }
        }
        let mut buffer = [0; 8_192];
        let read = stream.read(&mut buffer).await?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        bytes.extend_from_slice(&buffer[..read]);
    }
}
