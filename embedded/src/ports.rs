//! Free loopback ports. They are kept from one start to the next, so that a bookmark or a `psql` history stays valid.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;
use std::path::Path;

use super::EmbeddedError;

/// The range from which ports are drawn. It is above the ports of well-known services and below Linux' range for
/// outgoing connections (from 32768), in which any browser tab could occupy a stored port.
const PORT_RANGE: Range<u16> = 20_000..32_000;

/// The ports of one data folder.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ServicePorts {
    pub(super) postgres: u16,
    pub(super) redis: u16,
    pub(super) rabbitmq: u16,
    /// The port of Erlang's distribution protocol. No client connects to it.
    pub(super) distribution: u16,
}

/// Reuses each port stored in `file` that is still free, draws the others at random, and stores the result.
pub(super) fn choose(file: &Path) -> Result<ServicePorts, EmbeddedError> {
    let before = std::fs::read_to_string(file).unwrap_or_default();
    let ports = assign(&parse(&before), is_free, || rand::random_range(PORT_RANGE));
    let after = render(&ports);
    if after != before {
        std::fs::write(file, after).map_err(EmbeddedError::folder(file, "written"))?;
    }
    Ok(ports)
}

/// Returns the port of PostgreSQL that `file` stores.
pub(super) fn stored_postgres(file: &Path) -> Option<u16> {
    parse(&std::fs::read_to_string(file).ok()?).get("postgres").copied()
}

/// Returns true if a listener can be opened on the loopback address now.
fn is_free(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
}

fn assign(stored: &BTreeMap<&str, u16>, free: impl Fn(u16) -> bool, draw: impl Fn() -> u16) -> ServicePorts {
    let mut taken = Vec::new();
    let mut pick = |name: &str| {
        let mut port = stored.get(name).copied().unwrap_or_else(&draw);
        while taken.contains(&port) || !free(port) {
            port = draw();
        }
        taken.push(port);
        port
    };
    ServicePorts {
        postgres: pick("postgres"),
        redis: pick("redis"),
        rabbitmq: pick("rabbitmq"),
        distribution: pick("distribution"),
    }
}

/// Parses lines of the form `name port`. Lines that cannot be parsed are ignored, which costs no more than a new port.
fn parse(text: &str) -> BTreeMap<&str, u16> {
    text.lines()
        .filter_map(|line| line.split_once(' '))
        .filter_map(|(name, port)| Some((name, port.trim().parse().ok().filter(|&port: &u16| port >= 1024)?)))
        .collect()
}

fn render(ports: &ServicePorts) -> String {
    let ServicePorts { postgres, redis, rabbitmq, distribution } = ports;
    format!("postgres {postgres}\nredis {redis}\nrabbitmq {rabbitmq}\ndistribution {distribution}\n")
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn counting_from(first: u16) -> impl Fn() -> u16 {
        let next = Cell::new(first);
        move || next.replace(next.get() + 1)
    }

    #[test]
    fn stored_ports_are_reused_while_free() {
        let text = render(&assign(&BTreeMap::new(), |_| true, counting_from(20_100)));
        let again = assign(&parse(&text), |_| true, counting_from(30_000));
        assert_eq!(again, ServicePorts { postgres: 20_100, redis: 20_101, rabbitmq: 20_102, distribution: 20_103 });
    }

    #[test]
    fn only_an_occupied_port_is_replaced() {
        let text = "postgres 20100\nredis 20101\nrabbitmq 20102\ndistribution 20103\n";
        let ports = assign(&parse(text), |port| port != 20_101, counting_from(30_000));
        assert_eq!(ports, ServicePorts { postgres: 20_100, redis: 30_000, rabbitmq: 20_102, distribution: 20_103 });
    }

    #[test]
    fn services_do_not_share_a_port_from_the_file() {
        let ports = assign(&parse("postgres 20100\nredis 20100\n"), |_| true, counting_from(20_100));
        assert_eq!(ports, ServicePorts { postgres: 20_100, redis: 20_101, rabbitmq: 20_102, distribution: 20_103 });
    }

    #[test]
    fn an_invalid_file_is_ignored() {
        assert!(parse("postgres\nredis 99999\nrabbitmq 80\n\0\0").is_empty());
    }

    #[test]
    fn a_port_with_a_listener_is_not_free() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(!is_free(port));
        drop(listener);
        assert!(is_free(port));
    }
}
