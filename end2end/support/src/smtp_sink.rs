//! An SMTP server that keeps what it receives.
//!
//! It has as much of the protocol as a client needs to deliver a mail, and refuses the commands that a test names.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
};

/// A running server. It ends with the runtime of the test.
#[derive(Clone, Debug)]
pub struct SmtpSink {
    /// The port on 127.0.0.1.
    pub port: u16,
    lines: Arc<Mutex<Vec<String>>>,
}

impl SmtpSink {
    /// Starts a server that accepts every mail.
    ///
    /// # Panics
    ///
    /// Panics if no port is free.
    pub async fn start() -> Self {
        Self::start_refusing("", "").await
    }

    /// Starts a server that answers a line that starts with `line` with `answer`, and accepts everything else. The line
    /// `.` is the end of a mail.
    ///
    /// # Panics
    ///
    /// Panics if no port is free.
    pub async fn start_refusing(line: &'static str, answer: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("bound").port();
        let sink = Self { port, lines: Arc::default() };
        let lines = sink.lines.clone();
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                tokio::spawn(serve_client(socket, (line, answer), lines.clone()));
            }
        });
        sink
    }

    /// Returns all lines that clients have sent, the mails included.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the mails that were sent, headers and body, whether they were accepted or not.
    #[must_use]
    pub fn mails(&self) -> Vec<String> {
        let lines = self.lines();
        let after_data = lines.split(|line| line == "DATA").skip(1);
        after_data
            .map(|rest| rest.iter().take_while(|line| *line != ".").cloned().collect::<Vec<_>>().join("\n"))
            .collect()
    }
}

async fn serve_client(socket: TcpStream, refused: (&str, &str), lines: Arc<Mutex<Vec<String>>>) {
    let (read, mut write) = socket.into_split();
    let mut from_client = BufReader::new(read).lines();
    let mut in_mail = false;
    let mut answer = "220 mail.test ESMTP".to_owned();
    loop {
        if write.write_all(format!("{answer}\r\n").as_bytes()).await.is_err() {
            return;
        }
        loop {
            let Ok(Some(line)) = from_client.next_line().await else { return };
            lines.lock().unwrap_or_else(PoisonError::into_inner).push(line.clone());
            answer = if in_mail {
                if line != "." {
                    continue;
                }
                in_mail = false;
                if refused.0 == "." { refused.1 } else { "250 2.0.0 queued as 4711" }.to_owned()
            } else if !refused.0.is_empty() && line.starts_with(refused.0) {
                refused.1.to_owned()
            } else if line.starts_with("EHLO") {
                "250-mail.test\r\n250-8BITMIME\r\n250-SMTPUTF8\r\n250 AUTH PLAIN".to_owned()
            } else if line.starts_with("AUTH") {
                "235 2.7.0 welcome".to_owned()
            } else if line == "DATA" {
                in_mail = true;
                "354 go on".to_owned()
            } else if line == "QUIT" {
                "221 bye".to_owned()
            } else {
                "250 2.1.0 ok".to_owned()
            };
            break;
        }
    }
}
