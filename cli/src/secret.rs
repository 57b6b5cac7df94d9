//! A line that is typed without an echo.

use std::{
    io::{self, BufRead, Write},
    os::fd::AsFd,
};

use nix::sys::termios::{LocalFlags, SetArg, Termios, tcgetattr, tcsetattr};

/// Restores the attributes of a terminal.
struct Restore<'a, T: AsFd> {
    terminal: &'a T,
    attributes: Termios,
}

impl<T: AsFd> Drop for Restore<'_, T> {
    fn drop(&mut self) {
        let _ = tcsetattr(self.terminal, SetArg::TCSANOW, &self.attributes);
    }
}

/// Asks for a secret at a terminal and returns the typed line.
///
/// # Errors
///
/// Returns an error if the terminal cannot hide what is typed, so that nothing is typed in the open.
pub(super) fn read_secret<T: AsFd>(
    terminal: &T,
    input: &mut dyn BufRead,
    messages: &mut dyn Write,
    question: &str,
) -> io::Result<String> {
    let attributes = tcgetattr(terminal)?;
    let mut hidden = attributes.clone();
    hidden.local_flags.remove(LocalFlags::ECHO);
    let restore = Restore { terminal, attributes };
    tcsetattr(terminal, SetArg::TCSANOW, &hidden)?;
    write!(messages, "{question} ")?;
    messages.flush()?;
    let mut line = String::new();
    let outcome = input.read_line(&mut line);
    drop(restore);
    // The line break of the user was hidden too.
    writeln!(messages)?;
    outcome?;
    Ok(line.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use std::{fs::File, io::BufReader, io::Read, thread};

    use nix::pty::openpty;

    use super::*;

    #[test]
    fn a_typed_secret_is_not_echoed() {
        let pty = openpty(None, None).expect("a pseudo-terminal");
        let (user, terminal) = (File::from(pty.master), File::from(pty.slave));
        let typing = thread::spawn(move || {
            let mut user = user;
            let mut seen = Vec::new();
            // The question appears once the echo is off.
            while !seen.ends_with(b"Token: ") {
                let mut byte = [0];
                user.read_exact(&mut byte).expect("the question");
                seen.push(byte[0]);
            }
            user.write_all(b"milvaion_secret\n").expect("typing");
            let mut byte = [0];
            while !seen.ends_with(b"\n") {
                user.read_exact(&mut byte).expect("the end of the line");
                seen.push(byte[0]);
            }
            (String::from_utf8_lossy(&seen).into_owned(), user)
        });
        let mut input = BufReader::new(terminal.try_clone().expect("a copy"));
        let mut messages = terminal.try_clone().expect("a copy");
        let secret = read_secret(&terminal, &mut input, &mut messages, "Token:").expect("a line");
        let (seen, _user) = typing.join().expect("no panic");
        assert_eq!(secret, "milvaion_secret");
        assert!(!seen.contains("milvaion_"), "{seen:?}");
        assert!(tcgetattr(&terminal).expect("attributes").local_flags.contains(LocalFlags::ECHO), "the echo is back");
    }
}
