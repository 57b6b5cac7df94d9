//! The device of a session, in words.
//!
//! The words help users to recognise their own sessions. They prove nothing, because any client can send any
//! User-Agent. Browsers freeze most of the header today, so its version numbers are left out.

/// The word for a device that cannot be recognised.
pub const UNKNOWN_DEVICE: &str = "Unknown device";

/// Browsers by a part of their User-Agent. Most browsers also name others that they descend from, so the more special
/// one comes first.
const BROWSERS: [(&str, &str); 19] = [
    ("SamsungBrowser/", "Samsung Internet"),
    ("DuckDuckGo/", "DuckDuckGo"),
    ("YaBrowser/", "Yandex Browser"),
    ("Vivaldi/", "Vivaldi"),
    ("EdgA/", "Edge"),
    ("EdgiOS/", "Edge"),
    ("Edg/", "Edge"),
    ("Edge/", "Edge"),
    ("OPR/", "Opera"),
    ("OPiOS/", "Opera"),
    ("OPT/", "Opera"),
    ("FxiOS/", "Firefox"),
    ("Firefox/", "Firefox"),
    ("CriOS/", "Chrome"),
    ("HeadlessChrome/", "Chrome"),
    ("Chromium/", "Chromium"),
    ("Chrome/", "Chrome"),
    ("Trident/", "Internet Explorer"),
    ("Safari/", "Safari"),
];

/// Systems by a part of their User-Agent. Android also names Linux, and iPhones name Mac OS X.
const SYSTEMS: [(&str, &str); 8] = [
    ("iPhone", "iPhone"),
    ("iPad", "iPad"),
    ("Android", "Android"),
    ("CrOS", "ChromeOS"),
    ("Windows", "Windows"),
    ("Macintosh", "macOS"),
    ("FreeBSD", "FreeBSD"),
    ("Linux", "Linux"),
];

/// Programs by the start of their User-Agent.
const PROGRAMS: [(&str, &str); 7] = [
    ("curl/", "curl"),
    ("Wget/", "Wget"),
    ("HTTPie/", "HTTPie"),
    ("PostmanRuntime/", "Postman"),
    ("python-requests/", "Python"),
    ("python-httpx/", "Python"),
    ("Go-http-client/", "Go"),
];

/// Returns the device of a User-Agent in words, as in `Firefox on Linux`, `Chrome on Android` or `curl`.
#[must_use]
pub fn describe(user_agent: Option<&str>) -> String {
    let user_agent = user_agent.unwrap_or_default();
    if let Some((_, program)) = PROGRAMS.iter().find(|(start, _)| user_agent.starts_with(start)) {
        return (*program).to_owned();
    }
    let find = |names: &[(&str, &'static str)]| {
        names.iter().find(|(part, _)| user_agent.contains(part)).map(|(_, name)| *name)
    };
    match (find(&BROWSERS), find(&SYSTEMS)) {
        (Some(browser), Some(system)) => format!("{browser} on {system}"),
        (Some(browser), None) => browser.to_owned(),
        (None, Some(system)) => format!("Unknown browser on {system}"),
        (None, None) => UNKNOWN_DEVICE.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn common_browsers_are_named_with_their_system() {
        for (user_agent, device) in [
            ("Mozilla/5.0 (X11; Linux x86_64; rv:145.0) Gecko/20100101 Firefox/145.0", "Firefox on Linux"),
            (
                "Mozilla/5.0 (Linux; Android 10; K) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/143.0.0.0 Mobile Safari/537.36",
                "Chrome on Android",
            ),
            (
                "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/143.0.0.0 Safari/537.36 Edg/143.0.0.0",
                "Edge on Windows",
            ),
            (
                "Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/18.6 Safari/605.1.15",
                "Safari on macOS",
            ),
            (
                "Mozilla/5.0 (iPhone; CPU iPhone OS 18_6 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/18.6 Mobile/15E148 Safari/604.1",
                "Safari on iPhone",
            ),
            (
                "Mozilla/5.0 (iPhone; CPU iPhone OS 18_6 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko) CriOS/143.0.0.0 Mobile/15E148 Safari/604.1",
                "Chrome on iPhone",
            ),
            (
                "Mozilla/5.0 (X11; CrOS x86_64 14541.0.0) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/143.0.0.0 Safari/537.36 OPR/125.0.0.0",
                "Opera on ChromeOS",
            ),
            (
                "Mozilla/5.0 (Linux; Android 10; K) AppleWebKit/537.36 (KHTML, like Gecko) SamsungBrowser/29.0 Chrome/136.0.0.0 Mobile Safari/537.36",
                "Samsung Internet on Android",
            ),
        ] {
            assert_eq!(describe(Some(user_agent)), device, "{user_agent}");
        }
    }

    #[test]
    fn programs_and_unknown_devices_have_a_word_too() {
        assert_eq!(describe(Some("curl/8.14.1")), "curl");
        assert_eq!(describe(Some("python-requests/2.32.5")), "Python");
        assert_eq!(describe(Some("Something (Linux)")), "Unknown browser on Linux");
        assert_eq!(describe(Some("Firefox/145.0")), "Firefox");
        for unknown in [None, Some(""), Some("\u{fffd}<b>")] {
            assert_eq!(describe(unknown), UNKNOWN_DEVICE);
        }
    }
}
