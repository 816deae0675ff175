//! Errors of TLS, with reason and remedy.

use std::error::Error as Source;

use cofferdam_contract::{Error, ErrorKind};
use rustls::CertificateError;

/// Alerts of a server about the client's certificate, by the names that rustls gives them, with message and remedy. A
/// server sends them after the negotiation, so that they arrive inside the errors of HTTP.
const ALERTS: [(&str, &str, &str); 7] = [
    (
        "CertificateRequired",
        "the server requires a certificate of the client",
        "give --client-cert and --client-key, or set COFFERDAM_CLIENT_CERT and COFFERDAM_CLIENT_KEY",
    ),
    (
        "UnknownCA",
        "the server does not trust the authority of the client's certificate",
        "use a certificate of an authority in the server's --tls-client-ca, with those between in the same file",
    ),
    (
        "CertificateExpired",
        "the server finds the client's certificate expired or not valid yet",
        "renew the certificate, and compare the clocks of this host and the server",
    ),
    ("CertificateRevoked", "the client's certificate was revoked", "get a new certificate from the authority"),
    ("BadCertificate", "the server cannot use the client's certificate", CERTIFICATE),
    ("CertificateUnknown", "the server does not accept the client's certificate", CERTIFICATE),
    ("UnsupportedCertificate", "the server does not accept this kind of certificate", CERTIFICATE),
];
const CERTIFICATE: &str = "use a certificate for clients (extended key usage clientAuth), and its own private key";
const CLOCKS: &str = "renew the server's certificate, or set the clock of this host";
const AUTHORITY: &str = "give its authority with --ca or COFFERDAM_CA, if this is the right server";

/// Returns the error of TLS that caused a failure, if there is one.
pub fn tls_error(error: &(dyn Source + 'static)) -> Option<Error> {
    let (mut next, mut shown) = (Some(error), String::new());
    while let Some(error) = next {
        // An error of input and output passes over the one that it contains.
        let inner = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        let inner = inner.and_then(|inner| inner.downcast_ref::<rustls::Error>());
        if let Some(rustls::Error::InvalidCertificate(reason)) = inner.or_else(|| error.downcast_ref()) {
            let (message, remedy) = server_certificate(reason);
            return Some(Error::new(ErrorKind::Unavailable, "connect", message).with_remedy(remedy));
        }
        shown.push_str(&format!("{error} {error:?} "));
        next = error.source();
    }
    if !shown.contains("received fatal alert") && !shown.contains("AlertReceived") {
        return None;
    }
    let (_, message, remedy) = ALERTS.iter().find(|(name, ..)| shown.contains(name))?;
    Some(Error::new(ErrorKind::Denied, "connect", *message).with_remedy(*remedy))
}

fn server_certificate(reason: &CertificateError) -> (String, &'static str) {
    match reason {
        CertificateError::UnknownIssuer => {
            ("this host does not trust the authority of the server's certificate".to_owned(), AUTHORITY)
        }
        CertificateError::Expired => ("the server's certificate has expired".to_owned(), CLOCKS),
        CertificateError::NotValidYet => ("the server's certificate is not valid yet".to_owned(), CLOCKS),
        CertificateError::ExpiredContext { time, not_after } => {
            let since = time.as_secs().saturating_sub(not_after.as_secs());
            (format!("the server's certificate has expired {} ago, by the clock of this host", span(since)), CLOCKS)
        }
        CertificateError::NotValidYetContext { time, not_before } => {
            let until = not_before.as_secs().saturating_sub(time.as_secs());
            (format!("the server's certificate will be valid in {}, by the clock of this host", span(until)), CLOCKS)
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => (
            "the server's certificate is for another host name".to_owned(),
            "use the name in the certificate, or check that this is the right server",
        ),
        CertificateError::Revoked => ("the server's certificate was revoked".to_owned(), "ask its operator"),
        other => (format!("the server's certificate cannot be used: {other}"), AUTHORITY),
    }
}

/// Returns a time in its largest unit.
fn span(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} days", seconds / 86400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::AlertDescription;

    #[test]
    fn every_known_alert_is_one_of_rustls() {
        for (name, message, _) in ALERTS {
            let alert = (0..=u8::MAX).map(AlertDescription::from).find(|alert| format!("{alert:?}") == name);
            let error = rustls::Error::AlertReceived(alert.expect(name));
            let found = tls_error(&std::io::Error::other(error)).expect("it is known");
            assert_eq!(found.message(), message);
        }
        assert!(tls_error(&std::io::Error::other("CertificateRequired")).is_none());
        assert!(tls_error(&std::io::Error::from(std::io::ErrorKind::ConnectionReset)).is_none());
    }
}
