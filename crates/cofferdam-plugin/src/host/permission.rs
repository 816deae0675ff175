//! The permissions of a plugin's requests. Pure: manifest and request in, verdict out.

use serde_json::Value;

use crate::pattern::matches_event;
use crate::wire::{CallError, ErrorKind};
use crate::{Manifest, Permission};

/// The methods of the host that need a permission.
const METHODS: [(&str, Permission); 27] = [
    ("fs.read", Permission::FsRead),
    ("fs.stat", Permission::FsRead),
    ("fs.list", Permission::FsRead),
    ("fs.write", Permission::FsWrite),
    ("fs.mkdir", Permission::FsWrite),
    ("fs.remove", Permission::FsWrite),
    ("net.fetch", Permission::Net),
    ("secrets.get", Permission::SecretsRead),
    ("secrets.set", Permission::SecretsWrite),
    ("secrets.delete", Permission::SecretsWrite),
    ("events.publish", Permission::EventsPublish),
    ("events.subscribe", Permission::EventsSubscribe),
    ("events.unsubscribe", Permission::EventsSubscribe),
    ("scheduler.create", Permission::SchedulerCreate),
    ("scheduler.list", Permission::SchedulerCreate),
    ("scheduler.cancel", Permission::SchedulerCancel),
    ("calendar.create", Permission::CalendarWrite),
    ("calendar.delete", Permission::CalendarWrite),
    ("calendar.import", Permission::CalendarWrite),
    ("calendar.read", Permission::CalendarRead),
    ("calendar.query", Permission::CalendarRead),
    ("calendar.export", Permission::CalendarRead),
    ("artifacts.write", Permission::ArtifactsWrite),
    ("artifacts.read", Permission::ArtifactsRead),
    ("artifacts.list", Permission::ArtifactsRead),
    ("invoke", Permission::Invoke),
    ("sandbox.execute", Permission::SandboxExecute),
];
/// The methods that every plugin may use. They reach its own objects only.
const FREE: [&str; 6] = ["kv.get", "kv.set", "kv.delete", "kv.list", "config.get", "resources.track"];

/// Checks a request against the manifest, before anything else happens.
///
/// # Errors
/// - `MethodNotFound` for a method that the host does not have.
/// - `PermissionDenied` with `permission`, `target` and `remedy`.
pub fn check(manifest: &Manifest, method: &str, params: &Value) -> Result<(), CallError> {
    if FREE.contains(&method) {
        return Ok(());
    }
    let Some((_, permission)) = METHODS.iter().find(|(name, _)| *name == method) else {
        return Err(CallError::new(ErrorKind::MethodNotFound, format!("the host has no method '{}'", shown(method))));
    };
    let target = target(method, params);
    if !manifest.permissions.contains(permission) {
        let remedy = format!("add \"{}\" to permissions", permission.as_str());
        return Err(denied(*permission, &target, &remedy));
    }
    let (listed, remedy) = match method {
        "secrets.get" | "secrets.set" | "secrets.delete" => {
            (manifest.secrets.contains(&target), format!("add \"{}\" to secrets", shown(&target)))
        }
        "events.publish" => {
            let remedy = format!("add \"{}\" to events.publish", shown(&target));
            (manifest.events.publish.iter().any(|pattern| matches_event(pattern, &target)), remedy)
        }
        "events.subscribe" => {
            let remedy = format!("add \"{}\" to events.subscribe", shown(&target));
            (manifest.events.subscribe.iter().any(|pattern| matches_event(pattern, &target)), remedy)
        }
        "fs.read" | "fs.stat" | "fs.list" => {
            let remedy = format!("add \"{}\" to sandbox.fsAccess.read", shown(&target));
            (manifest.sandbox.fs_access.read.iter().any(|prefix| is_below(&target, prefix)), remedy)
        }
        "fs.write" | "fs.mkdir" | "fs.remove" => {
            let remedy = format!("add \"{}\" to sandbox.fsAccess.write", shown(&target));
            (manifest.sandbox.fs_access.write.iter().any(|prefix| is_below(&target, prefix)), remedy)
        }
        // The gateway's rules check the host, before anything is resolved.
        _ => (true, String::new()),
    };
    if listed { Ok(()) } else { Err(denied(*permission, &target, &remedy)) }
}

/// Returns the error of a denied request.
pub fn denied(permission: Permission, target: &str, remedy: &str) -> CallError {
    let target = shown(target);
    let message = format!("permission denied: {} for '{target}'; {remedy} in the manifest", permission.as_str());
    CallError::new(ErrorKind::PermissionDenied, message)
        .with("permission", permission.as_str())
        .with("target", target)
        .with("remedy", remedy)
}

/// Returns the object of a request, for the verdict and the log.
pub fn target(method: &str, params: &Value) -> String {
    let key = match method.split_once('.').map_or(method, |(service, _)| service) {
        "fs" | "resources" => "path",
        "net" => "url",
        "secrets" => "name",
        "events" if method == "events.publish" => "name",
        "events" => "pattern",
        "kv" => "key",
        "invoke" => "plugin",
        "sandbox" => "language",
        _ => return String::new(),
    };
    let target = params.get(key).and_then(Value::as_str).unwrap_or_default();
    if key != "url" {
        return target.to_owned();
    }
    // A query or a user may be a secret.
    let (scheme, rest) = target.split_once("://").unwrap_or(("", target));
    let rest = rest.split(['?', '#']).next().unwrap_or_default();
    let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
    format!("{scheme}://{host}{path}")
}

/// Returns a text of a plugin without control characters, and of bounded length.
pub fn shown(text: &str) -> String {
    const MAX: usize = 200;
    let mut shown: String = text.chars().take(MAX).flat_map(char::escape_debug).collect();
    if text.chars().nth(MAX).is_some() {
        shown.push('…');
    }
    shown
}

/// Returns true if a path is an allowed path or lies below it. A path with `.`, `..` or empty components is below none.
pub fn is_below(path: &str, allowed: &str) -> bool {
    let plain = |path: &str| {
        let relative = path.strip_prefix('/').unwrap_or(path);
        !relative.split('/').any(|part| matches!(part, "" | "." | "..")) && !path.contains('\0')
    };
    let relative = allowed.strip_prefix("./").unwrap_or(allowed);
    if relative.starts_with('/') && !allowed.starts_with('/') {
        return false;
    }
    let allowed = relative.trim_end_matches('/');
    let below = path.strip_prefix(allowed).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    match allowed {
        // The plugin's whole data directory.
        "." => plain(path) && !path.starts_with('/'),
        "" => plain(path) && path.starts_with('/'),
        _ => plain(path) && below && path.starts_with('/') == allowed.starts_with('/'),
    }
}

/// Returns the plan of the plugin's network: its hosts if it has the permission, else none.
pub fn network(manifest: &Manifest) -> Option<Vec<String>> {
    let hosts = &manifest.sandbox.net;
    (manifest.permissions.contains(&Permission::Net) && !hosts.is_empty()).then(|| hosts.clone())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn manifest(permissions: &[&str]) -> Manifest {
        serde_json::from_value(json!({
            "manifest": 1, "name": "p", "version": "1.0.0", "runtime": "python", "entry": "m:f",
            "permissions": permissions, "secrets": ["TOKEN"],
            "sandbox": {"fsAccess": {"read": ["data", "/srv/shared/"], "write": ["data/out"]}},
            "events": {"publish": ["weather.*"], "subscribe": ["clock.**"]},
        }))
        .unwrap()
    }

    /// Promise (Plugins): Each request of a plugin is denied without the permission in its manifest, and the denial names
    /// permission, target and remedy.
    #[test]
    fn each_request_is_denied_without_its_permission() {
        for (method, permission) in METHODS {
            let error = check(&manifest(&[]), method, &json!({"path": "data/x"})).unwrap_err();
            assert_eq!(error.kind, ErrorKind::PermissionDenied, "{method}");
            assert_eq!(error.data["permission"], permission.as_str());
            assert!(error.data["remedy"].as_str().unwrap().contains(permission.as_str()));
        }
        for method in FREE {
            assert_eq!(check(&manifest(&[]), method, &Value::Null), Ok(()));
        }
        assert_eq!(check(&manifest(&[]), "fs.chmod", &Value::Null).unwrap_err().kind, ErrorKind::MethodNotFound);
    }

    /// Promise (Plugins): A permission grants only the paths, secrets and events that the manifest lists.
    #[test]
    fn permission_grants_listed_values_only() {
        let all = ["fs.read", "fs.write", "secrets.read", "events.publish", "events.subscribe"];
        let manifest = manifest(&all);
        let allowed = |method: &str, key: &str, value: &str| check(&manifest, method, &json!({key: value})).is_ok();
        for path in ["data", "data/a/b", "/srv/shared", "/srv/shared/x"] {
            assert!(allowed("fs.read", "path", path), "{path}");
        }
        for path in [
            "",
            "datax",
            "data/../x",
            "data//x",
            "/data/x",
            "./data",
            "/srv/sharedx",
            "srv/shared/x",
            "/etc/passwd",
            "data/./x",
            "data/\0",
        ] {
            assert!(!allowed("fs.read", "path", path), "{path:?}");
        }
        assert!(allowed("fs.write", "path", "data/out/x") && !allowed("fs.write", "path", "data/x"));
        assert!(allowed("secrets.get", "name", "TOKEN") && !allowed("secrets.get", "name", "OTHER"));
        assert!(allowed("events.publish", "name", "weather.x") && !allowed("events.publish", "name", "clock.x"));
        assert!(allowed("events.subscribe", "pattern", "clock.*") && !allowed("events.subscribe", "pattern", "**"));
    }

    proptest! {
        #[test]
        fn an_allowed_path_never_climbs(path in "[a./\\x00]{0,12}", prefix in "[a./]{1,6}") {
            if is_below(&path, &prefix) {
                prop_assert!(!path.split('/').any(|part| part == ".."));
            }
        }
    }
}
