//! The web side.

use std::{net::IpAddr, path::PathBuf};

use super::EnvReader;

/// Where and how people reach the server.
#[derive(Clone, Debug)]
pub struct HttpConfig {
    /// `HOST`: the address to listen on. Default 127.0.0.1; 0.0.0.0 lets other machines in.
    pub host: IpAddr,
    /// `PORT`: 1 to 65535. When not set: 8600, or the next free one.
    pub port: Option<u16>,
    /// `PUBLIC_URL`: how browsers reach the server, when that differs from where it listens (behind a proxy). With
    /// `https://` cookies are marked Secure.
    pub public_url: Option<String>,
    /// `SITE_ROOT`: the folder with the browser side. Default `target/site`.
    pub site_root: PathBuf,
}

impl HttpConfig {
    pub(super) fn read(read: &mut EnvReader) -> Self {
        let host = match read.text("HOST").map(|text| text.parse::<IpAddr>().map_err(|_| text)) {
            None => IpAddr::from([127, 0, 0, 1]),
            Some(Ok(host)) => host,
            Some(Err(text)) => {
                read.wrong("HOST", &format!("it takes an address such as 127.0.0.1 or 0.0.0.0: got {text}"));
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
            read.wrong("PUBLIC_URL", "it must start with http:// or https://");
        }
        Self {
            host,
            port,
            public_url,
            site_root: read.text("SITE_ROOT").map_or_else(|| PathBuf::from("target/site"), PathBuf::from),
        }
    }

    /// Whether browsers come over TLS.
    #[must_use]
    pub fn is_secure(&self) -> bool {
        self.public_url.as_deref().is_some_and(|url| url.starts_with("https://"))
    }
}
