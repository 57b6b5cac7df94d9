//! Settings for the HTTP server.

use std::{net::IpAddr, path::PathBuf};

use super::EnvReader;

/// The listening address and the public address of the HTTP server.
#[derive(Clone, Debug)]
pub struct HttpConfig {
    /// `HOST`: IP address to listen on; `0.0.0.0` accepts connections from other machines. Default `127.0.0.1`.
    pub host: IpAddr,
    /// `PORT`: port to listen on. From 1 to 65,535. Default none: the first free port from 8600 to 8699.
    pub port: Option<u16>,
    /// `PUBLIC_URL`: address at which browsers reach the server, if a proxy makes it differ from the listening address.
    /// Starts with `http://` or `https://`; with `https://` cookies are marked Secure. Default none.
    pub public_url: Option<String>,
    /// `SITE_ROOT`: folder with the compiled dashboard that browsers load. Default `target/site`.
    pub site_root: PathBuf,
}

impl HttpConfig {
    /// Reads the settings from the environment.
    pub(super) fn read(read: &mut EnvReader) -> Self {
        let host = match read.text("HOST").map(|text| text.parse::<IpAddr>().map_err(|_| text)) {
            None => IpAddr::from([127, 0, 0, 1]),
            Some(Ok(host)) => host,
            Some(Err(text)) => {
                read.add_error("HOST", &format!("give an IP address such as 127.0.0.1 or 0.0.0.0, not {text:?}"));
                IpAddr::from([127, 0, 0, 1])
            }
        };
        let port = match read.number("PORT", 0_u16, 1, u16::MAX) {
            0 => None,
            port => Some(port),
        };
        let public_url = read.text("PUBLIC_URL").map(|url| url.trim_end_matches('/').to_owned());
        if let Some(url) = &public_url
            && !url.starts_with("http://")
            && !url.starts_with("https://")
        {
            read.add_error("PUBLIC_URL", "it must start with http:// or https://");
        }
        Self {
            host,
            port,
            public_url,
            site_root: read.text("SITE_ROOT").map_or_else(|| PathBuf::from("target/site"), PathBuf::from),
        }
    }

    /// Returns true if browsers connect over TLS.
    #[must_use]
    pub fn is_secure(&self) -> bool {
        self.public_url.as_deref().is_some_and(|url| url.starts_with("https://"))
    }
}
