//! The network policy of a sandbox.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ByteSize;

/// The network access of the code.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", tag = "kind")]
#[non_exhaustive]
pub enum NetworkPolicy {
    /// No network except the sandbox's own loopback interface. The default.
    #[default]
    None,
    /// Access to the listed hosts only.
    Allow {
        /// Host names, wildcards (`*.` and a domain), addresses (IPv6 in brackets), each with an optional `:port`, or
        /// presets (`@` and a name).
        hosts: Vec<String>,
    },
    /// Access by detailed rules only.
    Rules(NetworkRules),
    /// Access that is recorded, to find the policy that a program needs.
    Learn {
        /// True allows connections to every name with a usual port. False refuses everything after the look-up.
        allow: bool,
    },
}

impl NetworkPolicy {
    /// Returns the hosts of all rules, in the syntax of [`NetworkPolicy::Allow`].
    pub fn hosts(&self) -> Vec<&str> {
        match self {
            Self::None | Self::Learn { .. } => Vec::new(),
            Self::Allow { hosts } => hosts.iter().map(String::as_str).collect(),
            Self::Rules(rules) => rules.allow.iter().map(|rule| rule.host.as_str()).collect(),
        }
    }
}

/// Rules for connections and requests, and secrets for requests. A connection or request is allowed if one of the rules
/// matches it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct NetworkRules {
    /// The rules.
    pub allow: Vec<NetworkRule>,
    /// Secrets that the gateway puts into requests.
    #[serde(rename = "secret", skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<NetworkSecret>,
}

/// A rule that allows connections or requests to a host.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NetworkRule {
    /// A host in the syntax of [`NetworkPolicy::Allow`].
    pub host: String,
    /// The protocol. Default: any.
    #[serde(default)]
    pub protocol: NetworkProtocol,
    /// The allowed HTTP methods, such as `GET`. Empty allows every method. With methods or paths, only HTTP is allowed,
    /// and the gateway intercepts TLS.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub methods: Vec<String>,
    /// The allowed prefixes of the path. `/v1` allows `/v1` and `/v1/x`, but not `/v10`. Empty allows every path.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<String>,
    /// The maximum number of requests of the sandbox's lifetime; of connections where requests are not seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_requests: Option<u64>,
    /// The maximum number of bytes of the sandbox's lifetime, both directions together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_bytes: Option<ByteSize>,
    /// The maximum number of requests in any minute; of connections where requests are not seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests_per_minute: Option<u32>,
    /// The maximum number of bytes in any second, both directions together. Traffic beyond waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_per_second: Option<ByteSize>,
}

/// A connection or request of a sandbox. A connection is reported at its end, and a request at its begin.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NetworkEvent {
    /// The time of the event, in milliseconds since 1970.
    pub time_ms: u64,
    /// The name or address as the guest named it.
    pub host: String,
    /// The port.
    pub port: u16,
    /// The address of the server, if there was a connection to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<std::net::IpAddr>,
    /// `any`, `tls`, `https` or `http`.
    pub protocol: String,
    /// The method of a request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// The path of a request, without the query.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// The rule that allowed it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// The reason of a refusal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// `displaced` at the end of a connection whose place another sandbox took, `unreachable` if the server could not be reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended: Option<String>,
    /// Bytes that the guest sent on the connection so far.
    pub sent: u64,
    /// Bytes that the guest received on the connection so far.
    pub received: u64,
    /// Milliseconds since the begin of the connection.
    pub duration_ms: u64,
    /// Requests on the connection so far, those without an event of their own included.
    #[serde(default)]
    pub requests: u64,
}

/// A kind of look-ups, connections or requests that were refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NetworkDenial {
    /// The refused action, such as `the look-up of example.com`. Contains no control characters.
    pub what: String,
    /// The reason, and the rule that would allow it, if one would.
    pub why: String,
    /// The number of times.
    pub times: u64,
}

impl std::fmt::Display for NetworkDenial {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "refused {}: {}", self.what, self.why)?;
        if self.times > 1 { write!(f, " ({} times)", self.times) } else { Ok(()) }
    }
}

impl NetworkDenial {
    /// Returns the denials that came after earlier ones of the same sandbox.
    pub fn since(mut all: Vec<Self>, before: &[Self]) -> Vec<Self> {
        for denial in &mut all {
            let same = |earlier: &&Self| earlier.what == denial.what && earlier.why == denial.why;
            denial.times -= before.iter().find(same).map_or(0, |earlier| earlier.times.min(denial.times));
        }
        all.retain(|denial| denial.times > 0);
        all
    }
}

/// The use of a sandbox's network since its creation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct NetworkUsage {
    /// Connections, those that are open and those that were refused included.
    pub connections: u64,
    /// Requests of HTTP where the gateway sees them.
    pub requests: u64,
    /// Look-ups, connections and requests that were refused: by the policy, or because too many were open. Those in
    /// `displaced` are included.
    pub refused: u64,
    /// Connections that ended because another sandbox took their place.
    pub displaced: u64,
    /// Bytes that the guest sent on its connections.
    pub sent_bytes: u64,
    /// Bytes that the guest received on its connections.
    pub received_bytes: u64,
}

/// The protocol that a rule allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum NetworkProtocol {
    /// Any protocol over TCP. TLS and HTTP are checked where they are recognised. The default.
    #[default]
    Any,
    /// TLS that passes through untouched.
    Tls,
    /// HTTP over TLS, which the gateway intercepts with a certificate authority of this sandbox.
    Https,
    /// HTTP without TLS.
    Http,
}

/// A secret that the gateway puts into requests. The sandbox has a placeholder in an environment variable instead.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NetworkSecret {
    /// The environment variable in the sandbox that has the placeholder.
    pub name: String,
    /// The source of the value on the host: `env:NAME`, `file:PATH`, `command:PROGRAM ARGUMENTS`,
    /// `keyring:SERVICE/USER` (of the kernel) or `credential:NAME` (of systemd).
    pub from: String,
    /// The hosts whose requests get the value, in the syntax of [`NetworkPolicy::Allow`]. Each must be allowed by a rule.
    pub hosts: Vec<String>,
    /// The place in a request where the placeholder is replaced.
    #[serde(rename = "place", default)]
    pub location: SecretPlace,
    /// The maximum number of requests that get the value. Default: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_uses: Option<u64>,
}

/// The place of a secret in a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum SecretPlace {
    /// The value of this header. The default is `authorization`.
    Header(String),
    /// The value of this parameter of the query.
    Query(String),
    /// The user name or password of basic authentication.
    Basic,
}

impl Default for SecretPlace {
    fn default() -> Self {
        Self::Header("authorization".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_round_trips_through_json() {
        let text = r#"{"kind":"rules","allow":[{"host":"api.example.com:443","methods":["GET"],"max_bytes":"1M"}],
            "secret":[{"name":"TOKEN","from":"env:TOKEN","hosts":["api.example.com:443"]}]}"#;
        let policy: NetworkPolicy = serde_json::from_str(text).unwrap();
        let NetworkPolicy::Rules(rules) = &policy else { panic!("{policy:?}") };
        assert_eq!(rules.allow[0].max_bytes, Some(ByteSize::from_bytes(1 << 20)));
        assert_eq!(rules.secrets[0].location, SecretPlace::Header("authorization".to_owned()));
        assert_eq!(policy.hosts(), ["api.example.com:443"]);
        assert_eq!(serde_json::from_str::<NetworkPolicy>(&serde_json::to_string(&policy).unwrap()).unwrap(), policy);
        for text in [r#"{"kind":"rules","deny":[]}"#, r#"{"kind":"rules","allow":[{"host":"a","method":["GET"]}]}"#] {
            assert!(serde_json::from_str::<NetworkPolicy>(text).is_err(), "{text}");
        }
    }
}
