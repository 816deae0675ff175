//! Comparison of each request with the published description of the API in `description.json`.

use std::collections::BTreeSet;

use cofferdam_contract::{ByteSize, ErrorKind};
use cofferdam_vm::firecracker::{
    BootSource, Drive, DriveId, MachineConfig, Method, Request, SnapshotCreate, SnapshotLoad, VmState, Vsock,
};
use serde_json::{Value, json};

use crate::support::{Reply, Server, http};

pub(crate) fn description() -> Value {
    serde_json::from_str(include_str!("description.json")).expect("it is JSON")
}

/// Returns every kind of request, in each form.
fn requests() -> Vec<Request> {
    let id = || DriveId::new("data_1").unwrap();
    let boot = BootSource {
        kernel_image_path: "/vmlinux".into(),
        initrd_path: "/initrd".into(),
        boot_args: "console=ttyS0".to_owned(),
    };
    vec![
        Request::DescribeInstance,
        Request::Version,
        Request::Machine(MachineConfig::new(2, ByteSize::from_mebibytes(256)).unwrap()),
        Request::BootSource(boot),
        Request::Drive(Drive::read_only(id(), "/root.img")),
        Request::Drive(Drive::writable(id(), "/data.img")),
        Request::Vsock(Vsock::new("/v.sock")),
        Request::Entropy,
        Request::Start,
        Request::Change(VmState::Paused),
        Request::Change(VmState::Resumed),
        Request::CreateSnapshot(SnapshotCreate::new("/state", "/memory")),
        Request::LoadSnapshot(SnapshotLoad::new("/state", "/memory", "/other.sock")),
    ]
}

/// Returns a number for each kind of request. Does not compile until a new kind is added here, and in the list above.
fn kind(request: &Request) -> usize {
    match request {
        Request::DescribeInstance => 0,
        Request::Version => 1,
        Request::Machine(_) => 2,
        Request::BootSource(_) => 3,
        Request::Drive(_) => 4,
        Request::Vsock(_) => 5,
        Request::Entropy => 6,
        Request::Start => 7,
        Request::Change(_) => 8,
        Request::CreateSnapshot(_) => 9,
        Request::LoadSnapshot(_) => 10,
    }
}

const KINDS: usize = 11;

fn method(request: &Request) -> &'static str {
    match request.method() {
        Method::Get => "GET",
        Method::Put => "PUT",
        Method::Patch => "PATCH",
    }
}

/// Returns the description of a method at a path; `{…}` in its paths matches one part.
fn described<'a>(description: &'a Value, method: &str, path: &str) -> Option<&'a Value> {
    let matches = |template: &str| {
        let (template, path): (Vec<_>, Vec<_>) = (template.split('/').collect(), path.split('/').collect());
        template.len() == path.len()
            && template
                .iter()
                .zip(&path)
                .all(|(part, word)| part == word || (part.starts_with('{') && !word.is_empty()))
    };
    let paths = description["paths"].as_object().expect("paths");
    let (_, methods) = paths.iter().find(|(template, _)| matches(template))?;
    methods.get(method)
}

/// Returns the breaches of the description by a request.
pub(crate) fn breaches(
    description: &Value,
    method: &str,
    path: &str,
    body: Option<&Value>,
    success: u16,
) -> Vec<String> {
    let Some(described) = described(description, method, path) else {
        return vec![format!("{method} {path} is not described")];
    };
    let mut breaches = Vec::new();
    if described["answers"].get(success.to_string()).is_none() {
        breaches.push(format!("{method} {path} is never answered with {success}"));
    }
    match (described["body"].as_str(), body) {
        (None, None) => {}
        (Some(kind), Some(body)) => object(description, kind, body, &format!("{method} {path}"), &mut breaches),
        (wanted, found) => breaches.push(format!("{method} {path}: body {found:?}, described is {wanted:?}")),
    }
    breaches
}

fn object(description: &Value, kind: &str, value: &Value, at: &str, breaches: &mut Vec<String>) {
    let described = &description["types"][kind];
    assert!(described.is_object(), "the description has no {kind}");
    let Some(fields) = value.as_object() else {
        breaches.push(format!("{at}: {value} is no {kind}"));
        return;
    };
    for required in described["required"].as_array().expect("a list").iter().filter_map(Value::as_str) {
        if !fields.contains_key(required) {
            breaches.push(format!("{at}: {required} is missing"));
        }
    }
    for (name, value) in fields {
        match described["properties"].get(name) {
            Some(rule) => property(description, rule, value, &format!("{at} {name}"), breaches),
            None => breaches.push(format!("{at}: {name} is unknown")),
        }
    }
}

fn property(description: &Value, rule: &Value, value: &Value, at: &str, breaches: &mut Vec<String>) {
    if let Some(words) = rule.as_array() {
        if !words.contains(value) {
            breaches.push(format!("{at}: {value} is none of {words:?}"));
        }
        return;
    }
    let rule = rule.as_str().expect("a rule");
    let right = match rule.split_once(' ').unwrap_or((rule, "")) {
        ("string", _) => value.is_string(),
        ("boolean", _) => value.is_boolean(),
        ("integer", bounds) => value.as_u64().is_some_and(|number| within(number, bounds)),
        (kind, _) => {
            object(description, kind, value, at, breaches);
            true
        }
    };
    if !right {
        breaches.push(format!("{at}: {value} is not {rule}"));
    }
}

/// Returns true if a number is within bounds such as `1..32`, `3..` or nothing.
fn within(number: u64, bounds: &str) -> bool {
    let Some((min, max)) = bounds.split_once("..") else { return true };
    number >= min.parse().expect("a number") && (max.is_empty() || number <= max.parse().expect("a number"))
}

fn request_breaches(description: &Value, request: &Request) -> Vec<String> {
    let body = request.body().expect("a JSON body");
    breaches(description, method(request), &request.path(), body.as_ref(), request.success())
}

/// Promise (Virtual machines): Each request to Firecracker matches the description of its API.
#[test]
fn each_request_is_as_described() {
    let description = description();
    let requests = requests();
    let kinds: BTreeSet<usize> = requests.iter().map(kind).collect();
    assert_eq!(kinds, (0..KINDS).collect(), "each kind of request is tried");
    let breaches: Vec<_> = requests.iter().flat_map(|request| request_breaches(&description, request)).collect();
    assert!(breaches.is_empty(), "{breaches:#?}");
}

/// The description must promise everything that is read of each answer; and an answer with just that must be accepted.
#[tokio::test]
async fn the_least_answer_that_is_described_is_understood() {
    let server = Server::start(|seen| {
        let description = description();
        let kind = described(&description, &seen.method, &seen.path).expect("described")["answers"]["200"].clone();
        Reply::Respond(http(200, &least(&description, kind.as_str().expect("an answer")).to_string()))
    });
    let client = server.client();
    client.describe("test").await.expect("an instance");
    client.version("test").await.expect("a version");
    assert!(server.seen().iter().all(|seen| seen.connection == 1), "the connection is reused");
}

/// Returns a value with the required properties alone.
fn least(description: &Value, kind: &str) -> Value {
    let described = &description["types"][kind];
    let required = described["required"].as_array().expect("a list").iter().filter_map(Value::as_str);
    let fields = required.map(|name| {
        let value = match &described["properties"][name] {
            Value::Array(words) => words[0].clone(),
            rule if rule == "string" => json!("x"),
            _ => json!(1),
        };
        (name.to_owned(), value)
    });
    Value::Object(fields.collect())
}

/// Each state of the description is known to the client.
#[tokio::test]
async fn each_state_of_an_instance_is_known() {
    let description = description();
    for state in description["types"]["InstanceInfo"]["properties"]["state"].as_array().expect("words").clone() {
        let answer = json!({ "app_name": "x", "id": "x", "state": state, "vmm_version": "x" }).to_string();
        let server = Server::start(move |_| Reply::Respond(http(200, &answer)));
        server.client().describe("test").await.unwrap_or_else(|error| panic!("{state}: {error}"));
    }
}

/// The requests on the socket are those that were compared above, on one connection.
#[tokio::test]
async fn requests_match_the_api_description() {
    let server = Server::start(|seen| {
        let description = description();
        let success = if seen.method == "GET" { 200 } else { 204 };
        let breaches = breaches(&description, &seen.method, &seen.path, seen.body.as_ref(), success);
        let fault = json!({ "fault_message": breaches.join("; ") }).to_string();
        match (breaches.is_empty(), success) {
            (false, _) => Reply::Respond(http(400, &fault)),
            (true, 200) => Reply::Respond(http(200, "{}")),
            (true, _) => Reply::Respond(b"HTTP/1.1 204 X\r\n\r\n".to_vec()),
        }
    });
    let client = server.client();
    for request in requests() {
        client.send("test", &request).await.unwrap_or_else(|error| panic!("{request:?}: {error}"));
    }
    let seen = server.seen();
    assert_eq!(seen.len(), requests().len());
    for seen in &seen {
        assert_eq!(seen.connection, 1, "the connection is reused");
        let lower = seen.head.to_ascii_lowercase();
        assert!(lower.contains("\r\nhost: localhost\r\n"), "{}", seen.head);
        assert_eq!(lower.contains("\r\ncontent-type: application/json\r\n"), seen.body.is_some(), "{}", seen.head);
        assert!(!lower.contains("transfer-encoding"), "{}", seen.head);
    }
}

#[tokio::test]
async fn a_status_that_is_not_described_is_an_error() {
    for (request, status) in [(Request::Version, 204), (Request::Start, 200)] {
        let server = Server::start(move |_| Reply::Respond(http(status, "")));
        let error = server.client().send("test", &request).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains(&status.to_string()), "{error}");
    }
}

/// The comparison itself detects each kind of breach.
#[test]
fn the_comparison_notices_each_kind_of_breach() {
    let description = description();
    for (method, path, body, success, says) in [
        ("PUT", "/boot", json!({}), 204, "is not described"),
        ("PATCH", "/vsock", json!({}), 204, "is not described"),
        ("PUT", "/drives/a/b", json!({}), 204, "is not described"),
        ("PUT", "/boot-source", json!({ "boot_args": "x" }), 204, "kernel_image_path is missing"),
        ("PUT", "/boot-source", json!({ "kernel_image_path": "x", "kernel": "x" }), 204, "kernel is unknown"),
        ("PUT", "/boot-source", json!({ "kernel_image_path": 1 }), 204, "is not string"),
        ("PUT", "/actions", json!({ "action_type": "Stop" }), 204, "is none of"),
        ("PUT", "/vsock", json!({ "guest_cid": 2, "uds_path": "x" }), 204, "is not integer 3.."),
        ("PUT", "/machine-config", json!({ "vcpu_count": 33, "mem_size_mib": 1 }), 204, "is not integer 1..32"),
        ("PUT", "/snapshot/load", json!({ "snapshot_path": "x", "mem_backend": {} }), 204, "backend_type is missing"),
        ("PATCH", "/vm", json!({ "state": "Paused" }), 200, "is never answered with 200"),
    ] {
        let found = breaches(&description, method, path, Some(&body), success);
        assert!(found.iter().any(|breach| breach.contains(says)), "{method} {path} {body}: {found:?}");
    }
    let found = breaches(&description, "GET", "/version", Some(&json!({})), 200);
    assert!(found.iter().any(|breach| breach.contains("body")), "{found:?}");
}
