//! Requests of browsers: a key in a WebSocket's handshake, and pages of other origins.

use std::net::IpAddr;

use axum::http::header::{HOST, ORIGIN, SEC_WEBSOCKET_PROTOCOL};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Uri};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

/// The protocol of messages that a WebSocket may name.
pub const PROTOCOL: &str = "cofferdam.v1";
/// The start of a protocol that carries a key in base64url. A browser cannot send other headers with a WebSocket.
const BEARER: &str = "cofferdam.bearer.";
/// The header by which browsers describe the page behind a request.
const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Takes the key out of the protocols of a WebSocket. Returns it in the form of the header `Authorization`. A malformed
/// key is one that is not valid.
pub fn take_bearer(headers: &mut HeaderMap) -> Option<String> {
    let offered: Vec<String> = headers
        .get_all(SEC_WEBSOCKET_PROTOCOL)
        .iter()
        .flat_map(|value| value.to_str().unwrap_or_default().split(','))
        .map(|name| name.trim().to_owned())
        .collect();
    let key = offered.iter().find_map(|name| name.strip_prefix(BEARER))?;
    let key = URL_SAFE_NO_PAD.decode(key).ok().and_then(|bytes| String::from_utf8(bytes).ok()).unwrap_or_default();
    headers.remove(SEC_WEBSOCKET_PROTOCOL);
    if offered.iter().any(|name| name == PROTOCOL) {
        headers.insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(PROTOCOL));
    }
    Some(format!("Bearer {key}"))
}

/// Returns true for a request that a page of another origin may have sent with the browser of a user who needs no key:
/// its origin is not this server's, or its host is a name that may lead to any address, unless names are verified by TLS.
///
/// A connection to a Unix socket counts, too: users forward it to a port that their browser can reach.
pub fn is_of_another_origin(uri: &Uri, headers: &HeaderMap, has_verified_name: bool) -> bool {
    let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    // HTTP/2 has no header for the host.
    let host = uri.authority().map_or_else(|| text(HOST), Authority::as_str);
    let name = host.parse::<Authority>().map_or_else(|_| host.to_owned(), |authority| authority.host().to_owned());
    let bare = name.trim_start_matches('[').trim_end_matches(']');
    let is_name = !has_verified_name && bare != "localhost" && !bare.is_empty() && bare.parse::<IpAddr>().is_err();
    let is_own = |origin: &HeaderValue| {
        let origin = origin.to_str().ok().and_then(|origin| origin.split_once("://"));
        origin.is_some_and(|(scheme, of)| matches!(scheme, "http" | "https") && of == host)
    };
    let is_foreign = !headers.get_all(ORIGIN).iter().all(is_own);
    let is_cross = headers.get_all(FETCH_SITE).iter().any(|site| site != "same-origin" && site != "none");
    is_name || is_foreign || is_cross
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(list: &[(&'static str, &'static str)]) -> HeaderMap {
        let pair = |(name, value): &(&'static str, &'static str)| {
            (HeaderName::from_static(name), HeaderValue::from_static(value))
        };
        list.iter().map(pair).collect()
    }

    #[test]
    fn only_the_own_origin_is_accepted() {
        let uri = |text: &'static str| Uri::from_static(text);
        for (other, target, list) in [
            (false, "/", &[("host", "127.0.0.1:80")][..]),
            (false, "/", &[]),
            (false, "/", &[("host", "127.0.0.1:80"), ("origin", "http://127.0.0.1:80")]),
            (false, "/", &[("host", "[::1]:80"), ("origin", "https://[::1]:80")]),
            (false, "/", &[("host", "localhost"), ("sec-fetch-site", "same-origin")]),
            (false, "/", &[("host", "localhost"), ("sec-fetch-site", "none")]),
            (false, "https://localhost:8/", &[("origin", "https://localhost:8")]),
            (true, "/", &[("host", "127.0.0.1:80"), ("origin", "http://127.0.0.1:81")]),
            (true, "/", &[("host", "127.0.0.1:80"), ("origin", "http://127.0.0.1")]),
            (true, "/", &[("host", "localhost"), ("origin", "null")]),
            (true, "/", &[("host", "localhost"), ("origin", "file://localhost")]),
            (true, "/", &[("host", "localhost"), ("origin", "http://localhost"), ("origin", "http://evil.example")]),
            (true, "/", &[("host", "localhost"), ("sec-fetch-site", "same-site")]),
            (true, "/", &[("host", "localhost"), ("sec-fetch-site", "cross-site")]),
            (true, "/", &[("host", "evil.example"), ("origin", "http://evil.example")]),
            (true, "https://evil.example/", &[("host", "localhost")]),
        ] {
            assert_eq!(is_of_another_origin(&uri(target), &headers(list), false), other, "{target} {list:?}");
        }
        let named = [("host", "sandboxes.example"), ("origin", "https://sandboxes.example")];
        assert!(!is_of_another_origin(&uri("/"), &headers(&named), true));
        let other = [("host", "sandboxes.example"), ("origin", "https://evil.example")];
        assert!(is_of_another_origin(&uri("/"), &headers(&other), true));
    }

    #[test]
    fn a_key_is_taken_out_of_the_protocols() {
        let key = "cfd_1_2";
        let protocol = format!("{PROTOCOL}, {BEARER}{}", URL_SAFE_NO_PAD.encode(key));
        let mut map = HeaderMap::from_iter([(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_str(&protocol).unwrap())]);
        assert_eq!(take_bearer(&mut map).as_deref(), Some("Bearer cfd_1_2"));
        assert_eq!(map[SEC_WEBSOCKET_PROTOCOL], PROTOCOL);
        assert_eq!(take_bearer(&mut map), None);
        let mut alone = headers(&[("sec-websocket-protocol", "cofferdam.bearer.%%")]);
        assert_eq!((take_bearer(&mut alone).as_deref(), alone.len()), (Some("Bearer "), 0));
    }
}
