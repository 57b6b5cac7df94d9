//! Binds the HTTP port.

use std::{
    io::ErrorKind,
    net::{IpAddr, SocketAddr},
};

use tokio::net::TcpListener;

use super::ServerError;

/// The first port that is tried if `PORT` is not set.
const FIRST_PORT: u16 = 8600;
/// The number of ports that are tried if `PORT` is not set.
const MAX_PORTS_TRIED: u16 = 100;

/// Binds the given port, or the first free port of the default range.
pub(super) async fn listen(host: IpAddr, port: Option<u16>) -> Result<TcpListener, ServerError> {
    if let Some(port) = port {
        return TcpListener::bind((host, port)).await.map_err(|source| match source.kind() {
            ErrorKind::AddrInUse => ServerError::PortTaken { port, source },
            ErrorKind::PermissionDenied => ServerError::PortForbidden { port, source },
            _ => ServerError::AddressUnusable { address: SocketAddr::new(host, port), source },
        });
    }
    let last = FIRST_PORT + MAX_PORTS_TRIED - 1;
    let mut failure = None;
    for port in FIRST_PORT..=last {
        match TcpListener::bind((host, port)).await {
            Ok(listener) => return Ok(listener),
            Err(error) => failure = Some(error),
        }
    }
    let source = failure.unwrap_or_else(|| ErrorKind::AddrInUse.into());
    Err(ServerError::NoFreePort { host, first: FIRST_PORT, last, source })
}

#[cfg(test)]
mod tests {
    use std::{error::Error, net::Ipv4Addr};

    use super::*;

    #[tokio::test]
    async fn a_port_in_use_is_named_with_its_remedy() {
        let taken = listen(Ipv4Addr::LOCALHOST.into(), Some(0)).await.expect("the system chooses a free port");
        let port = taken.local_addr().expect("the socket is bound").port();
        let error = listen(Ipv4Addr::LOCALHOST.into(), Some(port)).await.expect_err("the port is taken");
        assert!(matches!(error, ServerError::PortTaken { .. }), "{error}");
        let message = error.to_string();
        assert!(message.starts_with(&format!("Port {port} is in use")), "{message}");
        let source = error.source().expect("the error of the system").to_string();
        assert!(!message.contains(&source), "the message does not repeat its source: {message}");
    }
}
