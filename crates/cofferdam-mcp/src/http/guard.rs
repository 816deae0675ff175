//! Authentication by bearer token, and answers to refused requests.

use std::convert::Infallible;
use std::fmt;

use bytes::Bytes;
use cofferdam_contract::{Error, Result};
use http::{HeaderMap, Response, StatusCode, header};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use sha2::{Digest, Sha256};

use super::connections::NoRoom;

/// An answer of the SDK's type.
pub type Answer = Response<BoxBody<Bytes, Infallible>>;

/// Minimum length of a token.
const MIN_CHARACTERS: usize = 16;
/// Time after which a refused client may retry.
const RETRY_AFTER_SECONDS: &str = "10";

/// The bearer token of clients. Only its hash is stored, so that neither memory nor comparison times reveal it.
#[derive(Clone)]
pub struct Token([u8; 32]);

impl Token {
    /// Reads a token. Ignores surrounding whitespace.
    pub fn new(text: &str) -> Result<Self> {
        let text = text.trim();
        if text.len() < MIN_CHARACTERS || !text.chars().all(|c| c.is_ascii_graphic()) {
            return Err(Error::invalid(
                "read token",
                format!("a token must have {MIN_CHARACTERS} or more printable ASCII characters, without spaces"),
            )
            .with_remedy("generate one with: head -c 32 /dev/urandom | base64"));
        }
        Ok(Self(Sha256::digest(text).into()))
    }

    /// Returns true if a request presents the token.
    pub fn admits(&self, headers: &HeaderMap) -> bool {
        let mut values = headers.get_all(header::AUTHORIZATION).iter();
        let (Some(value), None) = (values.next(), values.next()) else { return false };
        let presented = value.to_str().ok().and_then(|value| value.split_once(' '));
        match presented {
            Some((scheme, token)) if scheme.eq_ignore_ascii_case("bearer") => {
                let hash: [u8; 32] = Sha256::digest(token.trim()).into();
                self.0.iter().zip(hash).fold(0, |different, (own, other)| different | (own ^ other)) == 0
            }
            _ => false,
        }
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

/// Returns the answer for an unknown path.
pub fn not_found() -> Answer {
    text(StatusCode::NOT_FOUND, "Not Found: the server is at /mcp\n")
}

/// Returns the answer for a missing or wrong token.
pub fn unauthorized() -> Answer {
    let mut answer =
        text(StatusCode::UNAUTHORIZED, "Unauthorized: send the server's token as Authorization: Bearer TOKEN\n");
    answer.headers_mut().insert(header::WWW_AUTHENTICATE, header::HeaderValue::from_static("Bearer"));
    answer
}

/// Returns the answer for a full server: 429 if the client has reached its limit, else 503.
pub fn full(full: NoRoom) -> Answer {
    let mut answer = match full {
        NoRoom::Client => text(
            StatusCode::TOO_MANY_REQUESTS,
            "Too Many Requests: this address has reached its limit of connections or sessions\n",
        ),
        NoRoom::Server => text(StatusCode::SERVICE_UNAVAILABLE, "Service Unavailable: the server is full\n"),
    };
    answer.headers_mut().insert(header::RETRY_AFTER, header::HeaderValue::from_static(RETRY_AFTER_SECONDS));
    answer.headers_mut().insert(header::CONNECTION, header::HeaderValue::from_static("close"));
    answer
}

fn text(status: StatusCode, text: &'static str) -> Answer {
    let mut answer = Response::new(Full::new(Bytes::from_static(text.as_bytes())).boxed());
    *answer.status_mut() = status;
    answer.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("text/plain"));
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_token_is_let_in() {
        let token = Token::new(" 0123456789abcdef\n").unwrap();
        let admits = |values: &[&str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(header::AUTHORIZATION, value.parse().unwrap());
            }
            token.admits(&headers)
        };
        assert!(admits(&["Bearer 0123456789abcdef"]) && admits(&["bearer  0123456789abcdef"]));
        for values in [
            &[][..],
            &["0123456789abcdef"],
            &["Bearer 0123456789abcde"],
            &["Bearer 0123456789abcdef0"],
            &["Basic 0123456789abcdef"],
            &["Bearer "],
            &["Bearer x", "Bearer 0123456789abcdef"],
        ] {
            assert!(!admits(values), "{values:?}");
        }
        for text in ["", "short", "0123456789 abcdef", "0123456789abcdé"] {
            assert!(Token::new(text).is_err(), "{text}");
        }
        assert_eq!(format!("{token:?}"), "Token");
    }
}
