//! `cofferdam net set` and `net show`.

use cofferdam::{NetworkPolicy, NetworkRule, Result};
use cofferdam_server::client::Method;
use serde_json::json;

use super::client::encoded;
use super::connect;
use crate::args::{ClientArgs, SetNetworkArgs, ShowNetworkArgs};
use crate::commands::block_on;
use crate::report::{self, Form};
use crate::terminal::one_line;

/// Replaces the policy of a sandbox.
pub fn set(args: &SetNetworkArgs) -> u8 {
    ask(&args.client, &args.sandbox, Method::PUT, args.network.policy(), Form::of(args.json))
}

/// Prints the policy of a sandbox.
pub fn show(args: &ShowNetworkArgs) -> u8 {
    ask(&args.client, &args.sandbox, Method::GET, None, Form::of(args.json))
}

/// Sends a request whose answer is the policy in force, and prints it.
fn ask(client: &ClientArgs, sandbox: &str, method: Method, policy: Option<&NetworkPolicy>, form: Form) -> u8 {
    let path = format!("/v1/sandboxes/{}/network", encoded(sandbox));
    let answer: Result<NetworkPolicy> =
        connect(client).and_then(|client| block_on(async { client.call(method, &path, policy).await }));
    match answer {
        Err(error) => report::error(&error, form),
        Ok(policy) if form == Form::Json => report::printed(report::document(&json!(policy)), 0),
        Ok(policy) => {
            let line = format!("{sandbox}: allows {}", described(&policy));
            report::printed(report::print(&format!("{}\n", one_line(&line))), 0)
        }
    }
}

/// Returns the hosts of a policy, with the methods and paths of its rules.
fn described(policy: &NetworkPolicy) -> String {
    let rule = |rule: &NetworkRule| {
        let lists = [&rule.methods, &rule.paths].into_iter().filter(|list| !list.is_empty());
        lists.fold(rule.host.clone(), |text, list| format!("{text} {}", list.join(",")))
    };
    let allowed: Vec<String> = match policy {
        NetworkPolicy::Rules(rules) => rules.allow.iter().map(rule).collect(),
        policy => policy.hosts().into_iter().map(str::to_owned).collect(),
    };
    if allowed.is_empty() { "no network".to_owned() } else { allowed.join("; ") }
}
