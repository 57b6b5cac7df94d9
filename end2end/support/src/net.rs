//! Free ports.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use anyhow::bail;

/// Returns a free port below the system's range for outgoing connections. A port in that range could be taken by a
/// connection while a killed program is down, and the program could not start again.
///
/// # Errors
///
/// Returns an error if 1,000 random ports between 12000 and 20000 are all in use.
pub fn free_port() -> anyhow::Result<u16> {
    for _ in 0..1_000 {
        let port = rand::random_range(12_000..20_000);
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return Ok(port);
        }
    }
    bail!("no port between 12000 and 20000 is free")
}

/// Returns a local address with a free port.
///
/// # Panics
///
/// Panics if there is no free port.
#[must_use]
pub fn free_address() -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, free_port().expect("a free port")))
}
