//! The rules of a manifest that a schema cannot express. They read the parsed value, so that they also find problems of
//! a manifest that has others.

use cofferdam_contract::{NetworkPolicy, parse_duration};
use cofferdam_egress::{Plan, Reach};
use serde_json::Value;

use crate::check::MAX_PROBLEMS;
use crate::document::{At, Document, below};
use crate::pattern::is_event_pattern;
use crate::problem::plain;
use crate::{Permission, Problem, Severity};

/// A finding before it has a line: the severity, the pointer, the rule, the message and the remedy.
type Finding = (Severity, String, At, &'static str, String, String);

/// Adds the problems of all rules.
pub fn check(document: &Document<'_>, problems: &mut Vec<Problem>) {
    let value = &document.value;
    let mut findings = Vec::new();
    entry(value, &mut findings);
    strategy(value, &mut findings);
    permissions(value, &mut findings);
    paths(value, &mut findings);
    hosts(value, &mut findings);
    schemas(value, &mut findings);
    events(value, &mut findings);
    times(value, &mut findings);
    // Each look-up of a line reads the text.
    problems.extend(findings.into_iter().take(MAX_PROBLEMS).map(|(severity, pointer, at, rule, message, remedy)| {
        document.problem(severity, (&pointer, at), rule, message, remedy)
    }));
}

fn texts<'v>(value: &'v Value, pointer: &'v str) -> impl Iterator<Item = (String, &'v str)> {
    let list = value.pointer(pointer).and_then(Value::as_array).into_iter().flatten().enumerate();
    list.filter_map(move |(index, item)| Some((below(pointer, &index.to_string()), item.as_str()?)))
}

fn entry(value: &Value, findings: &mut Vec<Finding>) {
    let (Some(runtime), entry) = (value["runtime"].as_str(), &value["entry"]) else { return };
    let mut add = |message: String, remedy: &str| {
        findings.push((Severity::Error, "/entry".to_owned(), At::Value, "entry", message, remedy.to_owned()));
    };
    let remedy = match runtime {
        "python" => "write module:function, such as \"weather.main:activate\"",
        "node" => "write path:export, such as \"dist/main.js:activate\"",
        "wasm" => "write the path of a .wasm file in the plugin, such as \"weather.wasm\"",
        "command" => "write the words of a command, such as [\"bin/weather\", \"--stdio\"]",
        _ => return,
    };
    let is_name = |text: &str| {
        let mut bytes = text.bytes();
        bytes.next().is_some_and(|first| first.is_ascii_alphabetic() || first == b'_' || first == b'$')
            && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'$')
    };
    let is_valid = match (runtime, entry) {
        (_, Value::Null) => return,
        ("python", Value::String(text)) => text.split_once(':').is_some_and(|(module, function)| {
            module.split('.').all(is_name) && is_name(function) && !text.contains('$')
        }),
        ("node", Value::String(text)) => text.split_once(':').is_some_and(|(path, export)| {
            is_inside(path)
                && [".js", ".mjs", ".cjs", ".ts", ".mts"].iter().any(|end| path.ends_with(end))
                && is_name(export)
        }),
        ("wasm", Value::String(text)) => text.ends_with(".wasm") && is_inside(text),
        ("command", Value::Array(words)) => {
            words.first().and_then(Value::as_str).is_some_and(|program| !program.is_empty() && !program.contains('\0'))
        }
        _ => false,
    };
    if !is_valid {
        add(format!("the entry does not fit the runtime {runtime}"), remedy);
    }
}

/// Returns true for a relative path that does not leave its directory.
fn is_inside(path: &str) -> bool {
    !path.is_empty()
        && !path.starts_with('/')
        && !path.contains(['\0', '\\'])
        && !path.split('/').any(|part| part == "..")
}

fn strategy(value: &Value, findings: &mut Vec<Finding>) {
    const POINTER: &str = "/sandbox/strategy";
    let Some(strategy) = value.pointer(POINTER).and_then(Value::as_str) else { return };
    let mut add = |severity, rule, message: String, remedy: &str| {
        findings.push((severity, POINTER.to_owned(), At::Value, rule, message, remedy.to_owned()));
    };
    match (strategy, value["runtime"].as_str()) {
        ("wasm", Some(runtime)) if runtime != "wasm" => {
            let message = format!("the strategy wasm cannot run the runtime {runtime}");
            add(Severity::Error, "strategy", message, "write strategy = \"subprocess\", or runtime = \"wasm\"");
        }
        ("subprocess" | "container" | "vm", Some("wasm")) => {
            let message = format!("the runtime wasm runs in the strategy wasm, and not in {strategy}");
            add(Severity::Error, "strategy", message, "write strategy = \"wasm\", or remove the key");
        }
        ("thread" | "inline", _) => {
            let message = format!("the strategy {strategy} has no isolation");
            let remedy = "write strategy = \"subprocess\"; hosts refuse this one unless they run in development mode";
            add(Severity::Warning, "development-only", message, remedy);
        }
        _ => {}
    }
    let level = value.pointer("/sandbox/level").and_then(Value::as_str);
    let order = ["wasm", "process", "container", "vm"];
    let of_strategy = match strategy {
        "subprocess" => "process",
        "container" | "vm" => strategy,
        _ => return,
    };
    let rank = |name: &str| order.iter().position(|known| *known == name);
    if let Some((level, wanted)) = level.and_then(|level| Some((level, rank(level)?)))
        && rank(of_strategy).is_some_and(|rank| rank < wanted)
    {
        let message = format!("the strategy {strategy} is weaker than the level {level}");
        let remedy = format!("write strategy = \"{level}\", or a lower level");
        findings.push((Severity::Error, "/sandbox/level".to_owned(), At::Value, "level", message, remedy));
    }
}

/// Permissions without their list grant nothing, and lists without their permission neither.
fn permissions(value: &Value, findings: &mut Vec<Finding>) {
    const LISTS: [(Permission, &str, &str); 5] = [
        (Permission::Net, "/sandbox/net", "[\"api.example.com:443\"]"),
        (Permission::FsRead, "/sandbox/fsAccess/read", "[\"data\"]"),
        (Permission::FsWrite, "/sandbox/fsAccess/write", "[\"data\"]"),
        (Permission::EventsPublish, "/events/publish", "[\"weather.changed\"]"),
        (Permission::EventsSubscribe, "/events/subscribe", "[\"clock.minute\"]"),
    ];
    let granted: Vec<(String, &str)> = texts(value, "/permissions").collect();
    let find = |permission: Permission| granted.iter().find(|(_, name)| *name == permission.as_str());
    let has_items =
        |pointer: &str| value.pointer(pointer).and_then(Value::as_array).is_some_and(|list| !list.is_empty());
    let key = |pointer: &str| pointer[1..].replace('/', ".");
    for (permission, list, example) in LISTS {
        let name = permission.as_str();
        match (find(permission), has_items(list)) {
            (Some((pointer, _)), false) => findings.push((
                Severity::Error,
                pointer.clone(),
                At::Value,
                "empty-allowlist",
                format!("the permission {name} grants nothing without {}", key(list)),
                format!("add {} = {example}, or remove the permission", key(list)),
            )),
            (None, true) => findings.push((
                Severity::Error,
                list.to_owned(),
                At::Key,
                "missing-permission",
                format!("{} has no effect without the permission {name}", key(list)),
                format!("add \"{name}\" to permissions, or remove the list"),
            )),
            _ => {}
        }
    }
    let secrets = [Permission::SecretsRead, Permission::SecretsWrite].into_iter().find_map(find);
    match (secrets, has_items("/secrets")) {
        (Some((pointer, name)), false) => findings.push((
            Severity::Error,
            pointer.clone(),
            At::Value,
            "empty-allowlist",
            format!("the permission {name} grants nothing without secrets"),
            "add secrets = [\"API_TOKEN\"], or remove the permission".to_owned(),
        )),
        (None, true) => findings.push((
            Severity::Error,
            "/secrets".to_owned(),
            At::Key,
            "missing-permission",
            "secrets has no effect without the permission secrets.read or secrets.write".to_owned(),
            "add \"secrets.read\" to permissions, or remove the list".to_owned(),
        )),
        _ => {}
    }
}

fn paths(value: &Value, findings: &mut Vec<Finding>) {
    for list in ["/sandbox/fsAccess/read", "/sandbox/fsAccess/write"] {
        for (pointer, path) in texts(value, list) {
            let leaves = path.contains(['\0', '\\']) || path.split('/').any(|part| part == "..");
            if leaves {
                let message = format!("the path {} has '..', a backslash or a zero byte", plain(path));
                let remedy = "write a path below the plugin's data directory, or an absolute one";
                findings.push((Severity::Error, pointer, At::Value, "path", message, remedy.to_owned()));
            } else if path.split('/').all(|part| part.is_empty() || part == ".") && path.starts_with('/') {
                let message = "the path / is the whole file system".to_owned();
                let remedy = "name the directories that the plugin needs";
                findings.push((Severity::Error, pointer, At::Value, "path", message, remedy.to_owned()));
            }
        }
    }
}

/// Hosts are those of a network policy, which alone decides what is valid.
fn hosts(value: &Value, findings: &mut Vec<Finding>) {
    for (pointer, host) in texts(value, "/sandbox/net") {
        let policy = NetworkPolicy::Allow { hosts: vec![host.to_owned()] };
        if let Err(error) = Plan::of(&policy, "process", Reach::Addresses) {
            let message = format!("the host {} is invalid: {}", plain(host), plain(error.message()));
            let remedy = error.remedy().unwrap_or("write a host and a port, such as \"api.example.com:443\"");
            findings.push((Severity::Error, pointer, At::Value, "host", message, remedy.to_owned()));
        }
    }
}

fn schemas(value: &Value, findings: &mut Vec<Finding>) {
    let of_methods = value["methods"].as_object().into_iter().flatten().flat_map(|(name, _)| {
        let method = below("/methods", name);
        ["input", "output"].map(|key| below(&method, key))
    });
    for pointer in std::iter::once("/configSchema".to_owned()).chain(of_methods) {
        let Some(schema) = value.pointer(&pointer).filter(|schema| schema.is_object()) else { continue };
        if let Err(error) = jsonschema::validator_for(schema) {
            let inside = format!("{pointer}{}", error.instance_path().as_str());
            let message = format!("the JSON Schema is invalid: {}", plain(&error.to_string()));
            let remedy = "correct the schema; it can refer to its own parts only";
            findings.push((Severity::Error, inside, At::Value, "schema", message, remedy.to_owned()));
        }
    }
}

fn events(value: &Value, findings: &mut Vec<Finding>) {
    for list in ["/events/publish", "/events/subscribe"] {
        for (pointer, pattern) in texts(value, list) {
            if !is_event_pattern(pattern) {
                let message = format!("the pattern {} is invalid", plain(pattern));
                let remedy =
                    "write names with dots between them; '*' stands for one name, '**' at the end for any number";
                findings.push((Severity::Error, pointer, At::Value, "event-pattern", message, remedy.to_owned()));
            }
        }
    }
}

fn times(value: &Value, findings: &mut Vec<Finding>) {
    let time =
        |pointer: &str| value.pointer(pointer).and_then(Value::as_str).and_then(|text| parse_duration(text).ok());
    let (min, max) = ("/sandbox/restart/minBackoff", "/sandbox/restart/maxBackoff");
    if let (Some(short), Some(long)) = (time(min), time(max))
        && short > long
    {
        let message = "minBackoff is longer than maxBackoff".to_owned();
        let remedy = "write a longer maxBackoff".to_owned();
        findings.push((Severity::Error, max.to_owned(), At::Value, "backoff", message, remedy));
    }
    let of_methods = value["methods"].as_object().into_iter().flatten();
    let of_methods = of_methods.map(|(name, _)| below(&below("/methods", name), "timeout"));
    let of_sandbox = ["call", "start", "idle"].map(|name| format!("/sandbox/timeouts/{name}"));
    for pointer in of_sandbox.into_iter().chain(of_methods) {
        if time(&pointer).is_some_and(|time| time.is_zero()) {
            let message = "the time is zero, so that nothing could run".to_owned();
            findings.push((
                Severity::Error,
                pointer,
                At::Value,
                "zero-time",
                message,
                "write a longer time".to_owned(),
            ));
        }
    }
}
