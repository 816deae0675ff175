//! Rules for dependencies between crates: in one direction, as in `ARCHITECTURE.md`.

use serde_json::Value;

/// The allowed dependencies of a crate of the workspace.
struct Layer {
    name: &'static str,
    /// Crates of the workspace that it may depend on.
    uses: &'static [&'static str],
    /// Additional crates that its tests may use.
    tests_use: &'static [&'static str],
}

const ANY: &[&str] = &["*"];

const fn layer(name: &'static str, uses: &'static [&'static str], tests_use: &'static [&'static str]) -> Layer {
    Layer { name, uses, tests_use }
}

/// Every crate of the workspace. A missing one is a breach: its layer has to be decided.
const LAYERS: &[Layer] = &[
    layer("cofferdam-contract", &[], &[]),
    layer("cofferdam-linux", &[], &[]),
    layer("cofferdam-util", &[], &[]),
    layer("cofferdam-tree", &["cofferdam-linux", "cofferdam-util"], &[]),
    layer("cofferdam-archive", &["cofferdam-util"], &[]),
    layer("cofferdam-audit", &["cofferdam-linux", "cofferdam-util"], &[]),
    layer("cofferdam-changes", &["cofferdam-contract", "cofferdam-linux", "cofferdam-util"], &[]),
    layer("cofferdam-volume", &["cofferdam-contract", "cofferdam-linux", "cofferdam-tree", "cofferdam-util"], &[]),
    layer("cofferdam-conformance", &["cofferdam-contract"], &["cofferdam-simulated"]),
    layer("cofferdam-egress", &["cofferdam-contract"], &[]),
    layer(
        "cofferdam-plugin",
        &["cofferdam-audit", "cofferdam-contract", "cofferdam-egress", "cofferdam-linux", "cofferdam-util"],
        &[],
    ),
    layer(
        "cofferdam-process",
        &["cofferdam-changes", "cofferdam-contract", "cofferdam-egress", "cofferdam-linux"],
        &["cofferdam-conformance"],
    ),
    layer(
        "cofferdam-container",
        &[
            "cofferdam-changes",
            "cofferdam-contract",
            "cofferdam-egress",
            "cofferdam-guest",
            "cofferdam-linux",
            "cofferdam-util",
        ],
        &["cofferdam-conformance"],
    ),
    layer("cofferdam-e2b", &["cofferdam-contract"], &["cofferdam-conformance", "cofferdam-process"]),
    layer(
        "cofferdam-guest",
        &["cofferdam-contract", "cofferdam-egress", "cofferdam-linux"],
        &["cofferdam-conformance"],
    ),
    layer(
        "cofferdam-vm",
        &[
            "cofferdam-archive",
            "cofferdam-contract",
            "cofferdam-egress",
            "cofferdam-guest",
            "cofferdam-image",
            "cofferdam-linux",
            "cofferdam-util",
        ],
        &["cofferdam-changes", "cofferdam-conformance"],
    ),
    layer("cofferdam-interpreter", &["cofferdam-contract"], &["cofferdam-process"]),
    layer("cofferdam-screen", &[], &[]),
    layer("cofferdam-simulated", &["cofferdam-contract", "cofferdam-conformance"], &[]),
    layer("cofferdam-wasm-runtimes", &["cofferdam-linux", "cofferdam-util"], &[]),
    layer(
        "cofferdam-image",
        &[
            "cofferdam-archive",
            "cofferdam-contract",
            "cofferdam-guest",
            "cofferdam-linux",
            "cofferdam-tree",
            "cofferdam-util",
        ],
        &[],
    ),
    layer(
        "cofferdam-wasm",
        &[
            "cofferdam-conformance",
            "cofferdam-contract",
            "cofferdam-egress",
            "cofferdam-linux",
            "cofferdam-util",
            "cofferdam-wasm-runtimes",
        ],
        &[],
    ),
    layer(
        "cofferdam-engine",
        &["cofferdam-contract", "cofferdam-interpreter"],
        &["cofferdam-conformance", "cofferdam-simulated"],
    ),
    layer(
        "cofferdam-mcp",
        &["cofferdam-changes", "cofferdam-code", "cofferdam-contract", "cofferdam-util"],
        &["cofferdam-process", "cofferdam-simulated"],
    ),
    layer(
        "cofferdam-server",
        &[
            "cofferdam-audit",
            "cofferdam-changes",
            "cofferdam-code",
            "cofferdam-contract",
            "cofferdam-linux",
            "cofferdam-util",
            "cofferdam-volume",
        ],
        &["cofferdam-conformance", "cofferdam-process", "cofferdam-simulated"],
    ),
    layer("cofferdam-resident", &["cofferdam-contract", "cofferdam-engine", "cofferdam-linux"], &[]),
    layer(
        "cofferdam-code",
        &["cofferdam-audit", "cofferdam-contract", "cofferdam-screen", "cofferdam-util"],
        &["cofferdam-process"],
    ),
    layer(
        "cofferdam-fuzz",
        &[
            "cofferdam-archive",
            "cofferdam-changes",
            "cofferdam-contract",
            "cofferdam-conformance",
            "cofferdam-egress",
            "cofferdam-image",
            "cofferdam-plugin",
            "cofferdam-screen",
            "cofferdam-wasm",
        ],
        &[],
    ),
    layer("cofferdam", ANY, ANY),
    layer("cofferdam-bench", ANY, ANY),
    layer("xtask", &[], &[]),
];

/// Returns dependencies in the wrong direction, and packages without the workspace's licence.
pub fn check(packages: &[Value]) -> Vec<String> {
    let names: Vec<&str> = packages.iter().filter_map(|package| package["name"].as_str()).collect();
    packages.iter().flat_map(|package| package_breaches(package, &names)).collect()
}

fn package_breaches(package: &Value, ours: &[&str]) -> Vec<String> {
    let name = package["name"].as_str().unwrap_or_default();
    let mut breaches = Vec::new();
    if package["license"] != "Apache-2.0" {
        breaches.push(format!("{name}: needs `license.workspace = true` in its Cargo.toml"));
    }
    let Some(layer) = LAYERS.iter().find(|layer| layer.name == name) else {
        breaches.push(format!("{name}: is in no layer; add its allowed dependencies to xtask/src/tidy/layers.rs"));
        return breaches;
    };
    for dependency in package["dependencies"].as_array().into_iter().flatten() {
        let on = dependency["name"].as_str().unwrap_or_default();
        if !ours.contains(&on) || on == name {
            continue;
        }
        let for_tests = dependency["kind"] == "dev";
        let may = allowed(layer.uses, on) || (for_tests && allowed(layer.tests_use, on));
        if !may {
            let dependent = if for_tests { "its tests" } else { "it" };
            breaches.push(format!("{name}: {dependent} must not depend on {on} (ARCHITECTURE.md, code map)"));
        }
    }
    breaches
}

fn allowed(list: &[&str], name: &str) -> bool {
    list == ANY || list.contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn package(name: &str, on: &str, kind: Option<&str>) -> Value {
        json!({ "name": name, "license": "Apache-2.0", "dependencies": [{ "name": on, "kind": kind }] })
    }

    #[test]
    fn arrows_point_one_way() {
        for (name, on, kind, good) in [
            ("cofferdam-process", "cofferdam-contract", None, true),
            ("cofferdam-process", "cofferdam-simulated", None, false),
            ("cofferdam-process", "cofferdam-conformance", None, false),
            ("cofferdam-process", "cofferdam-conformance", Some("dev"), true),
            ("cofferdam-process", "cofferdam", Some("dev"), false),
            ("cofferdam-container", "cofferdam-linux", None, true),
            ("cofferdam-container", "cofferdam-process", None, false),
            ("cofferdam-container", "cofferdam-conformance", None, false),
            ("cofferdam-contract", "cofferdam-linux", None, false),
            ("cofferdam-contract", "serde", None, true),
            ("cofferdam-engine", "cofferdam-contract", None, true),
            ("cofferdam-engine", "cofferdam-process", None, false),
            ("cofferdam-engine", "cofferdam-process", Some("dev"), false),
            ("cofferdam-engine", "cofferdam-interpreter", None, true),
            ("cofferdam-resident", "cofferdam-engine", None, true),
            ("cofferdam-resident", "cofferdam-process", None, false),
            ("cofferdam-engine", "cofferdam-resident", None, false),
            ("cofferdam-engine", "cofferdam-simulated", None, false),
            ("cofferdam-engine", "cofferdam-simulated", Some("dev"), true),
            ("cofferdam-process", "cofferdam-engine", None, false),
            ("cofferdam", "cofferdam-process", None, true),
            ("xtask", "cofferdam-process", None, false),
        ] {
            let others = ["cofferdam-contract", "cofferdam-linux", "cofferdam-simulated", "cofferdam-conformance"];
            let above =
                ["cofferdam-process", "cofferdam-interpreter", "cofferdam-engine", "cofferdam-resident", "cofferdam"];
            let ours: Vec<&str> = others.into_iter().chain(above).collect();
            assert_eq!(package_breaches(&package(name, on, kind), &ours).is_empty(), good, "{name} on {on} {kind:?}");
        }
    }

    #[test]
    fn a_crate_without_a_layer_or_a_licence_is_a_breach() {
        assert_eq!(check(&[json!({ "name": "cofferdam-new", "license": null, "dependencies": [] })]).len(), 2);
    }
}
