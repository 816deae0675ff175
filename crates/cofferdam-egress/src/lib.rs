//! Network access of sandboxes by policy.
//!
//! ```text
//! guest --name--> resolver --rules--> synthetic address
//! guest --connection to it--> gateway --rules, checks of TLS and HTTP--> the host's resolver --rules--> server
//! ```
//!
//! Only [`Rules`] decides about names, addresses and ports, at every isolation level. It does no IO. The gateway serves
//! the sockets of a sandbox that has no other way out. A guest never learns the address of a server, and cannot choose
//! one: the gateway connects to an address that it resolved itself for the name.
//!
//! # Where to look
//!
//! - Rules, without I/O: `rules.rs`; their hosts: `host.rs`; public addresses: `addresses.rs`.
//! - The resolver: `dns.rs`; synthetic addresses: `names.rs`. What a sandbox needs before it starts: `plan.rs`.
//! - The gateway's sockets: `gateway.rs`; one connection: `first_bytes.rs`, `sniff.rs`, `flow.rs`, `inspect.rs`. Connections
//!   that the kernel refuses: `connection_attempts.rs` and `gateway/refused.rs`.
//! - HTTP: `http.rs`; proxies: `proxy.rs`; TLS: `intercept.rs`, with the authority in `authority.rs`.
//! - Secrets: `secrets.rs`; their sources: `providers.rs`; their removal from streams: `scrub.rs`.
//! - Limits: `budget.rs`, `pace.rs` and `share.rs`. Requests on behalf of untrusted code: `fetch.rs`.

#![forbid(unsafe_code)]

#[cfg(feature = "gateway")]
mod access;
mod addresses;
#[cfg(feature = "gateway")]
mod authority;
#[cfg_attr(not(feature = "gateway"), expect(dead_code, reason = "only the gateway counts"))]
mod budget;
#[cfg(feature = "gateway")]
mod connection_attempts;
#[cfg(feature = "gateway")]
mod denials;
#[cfg(feature = "gateway")]
mod dns;
#[cfg(feature = "gateway")]
pub mod fetch;
#[cfg(feature = "gateway")]
mod first_bytes;
#[cfg(feature = "gateway")]
mod flow;
#[cfg(feature = "fuzz")]
pub mod fuzz;
#[cfg(feature = "gateway")]
mod gateway;
mod host;
#[cfg(feature = "gateway")]
mod http;
#[cfg(feature = "gateway")]
mod inspect;
#[cfg(feature = "gateway")]
mod intercept;
#[cfg(feature = "gateway")]
mod key_store;
mod literal;
#[cfg(feature = "gateway")]
mod names;
#[cfg(feature = "gateway")]
mod pace;
mod plan;
#[cfg(feature = "gateway")]
mod providers;
#[cfg(feature = "gateway")]
mod proxy;
mod rules;
#[cfg(feature = "gateway")]
mod scrub;
#[cfg(feature = "gateway")]
mod secrets;
#[cfg(feature = "gateway")]
mod share;
#[cfg(feature = "gateway")]
mod sniff;
#[cfg(feature = "gateway")]
mod upstream;

use std::net::Ipv4Addr;

#[cfg(feature = "gateway")]
pub use access::{Access, FILES};
pub use addresses::{is_own, is_public};
#[cfg(feature = "gateway")]
pub use authority::{Authority, Roots};
#[cfg(feature = "gateway")]
pub use gateway::{Gateway, Sockets};
pub use host::{PRESETS, is_not_single_host};
#[cfg(feature = "gateway")]
pub use intercept::Interception;
pub use literal::decide_literal;
#[cfg(feature = "gateway")]
pub use pace::Pace;
#[cfg(feature = "gateway")]
pub use plan::replace;
pub use plan::{MAX_PORTS, Plan, Reach};
#[cfg(feature = "gateway")]
pub use providers::read as read_source;
pub use rules::{Allowed, Content, LEARNED_PORTS, Query, Refusal, ResolvedAddress, Rule, Rules, Server, Target};
#[cfg(feature = "gateway")]
pub use secrets::Secrets;
#[cfg(feature = "gateway")]
pub use share::MAX_CONNECTIONS;

/// The network of synthetic addresses and the length of its prefix: the block for benchmarks of RFC 2544, which no host
/// of the internet has.
pub const NETWORK: (Ipv4Addr, u8) = (Ipv4Addr::new(198, 18, 0, 0), 15);
/// The address of a sandbox's resolver.
pub const RESOLVER: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
/// The port of the proxy at the address of the resolver: HTTP and SOCKS5.
pub const PROXY_PORT: u16 = 3128;
