//! The software bill of materials: every package that is compiled into the program, in the format CycloneDX.

use std::collections::{BTreeMap, BTreeSet};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::repository::Repository;

/// The version of the format.
const SPEC_VERSION: &str = "1.5";

/// Creates the bill of materials of a program with all features, for this target. `others` are components that cargo does
/// not know.
pub fn make(repository: &Repository, program: &str, target: &str, others: &[Value]) -> Result<Value> {
    let features = format!("{program}/full");
    let metadata = output(repository.cargo().args([
        "metadata",
        "--format-version=1",
        "--locked",
        "--filter-platform",
        target,
        "--features",
        &features,
    ]))?;
    let metadata = serde_json::from_str(&metadata).context("cargo metadata is not JSON")?;
    // The metadata contains the features that any package of the workspace enables, the tree only those of this
    // program.
    let tree = output(repository.cargo().args([
        "tree",
        "--locked",
        "--package",
        program,
        "--features",
        "full",
        "--target",
        target,
        "--edges=normal,build",
        "--prefix=none",
        "--format={p}",
    ]))?;
    let mut document = document(&metadata, &compiled(&tree), program)?;
    others.iter().try_for_each(|component| add(&mut document, component))?;
    validate(&document)?;
    Ok(document)
}

fn output(cargo: &mut Command) -> Result<String> {
    let output = cargo.stdin(Stdio::null()).stderr(Stdio::inherit()).output().context("cannot start cargo")?;
    ensure!(output.status.success(), "cargo cannot list the dependencies");
    String::from_utf8(output.stdout).context("the output of cargo is not UTF-8")
}

/// Returns name and version of each package in the output of `cargo tree`.
fn compiled(tree: &str) -> BTreeSet<(String, String)> {
    let package = |line: &str| {
        let mut words = line.split_whitespace();
        Some((words.next()?.to_owned(), words.next()?.strip_prefix('v')?.to_owned()))
    };
    tree.lines().filter_map(package).collect()
}

/// A package of the metadata.
struct Package<'a> {
    name: &'a str,
    version: &'a str,
    license: &'a str,
    is_macro: bool,
    /// The packages that it uses at run time, and those that it uses at build time.
    uses: Vec<&'a str>,
    is_built_with: Vec<&'a str>,
}

impl Package<'_> {
    fn purl(&self) -> String {
        format!("pkg:cargo/{}@{}", self.name, self.version.replace('+', "%2B"))
    }

    fn component(&self, kind: &str, scope: Option<&str>) -> Value {
        let mut component = json!({
            "type": kind,
            "bom-ref": self.purl(),
            "name": self.name,
            "version": self.version,
            "licenses": [{ "expression": expression(self.license) }],
            "purl": self.purl(),
        });
        if let Some(scope) = scope {
            component["scope"] = scope.into();
        }
        component
    }
}

/// Returns a licence in SPDX form. Older packages have a slash between alternatives.
fn expression(license: &str) -> String {
    license.split('/').map(str::trim).collect::<Vec<_>>().join(" OR ")
}

fn document(metadata: &Value, compiled: &BTreeSet<(String, String)>, program: &str) -> Result<Value> {
    let packages = packages(metadata, compiled)?;
    let root = packages.iter().find(|(_, package)| package.name == program);
    let (root, own) = root.with_context(|| format!("cargo metadata names no package '{program}'"))?;
    // Macros and their dependencies run in the compiler and are not part of the program.
    let runs = reached(&packages, root, |package| if package.is_macro { Vec::new() } else { package.uses.clone() });
    let all = reached(&packages, root, |package| [&*package.uses, &*package.is_built_with].concat());
    let scope = |id: &str| match runs.contains(id) && !packages[id].is_macro {
        true => "required",
        false => "excluded",
    };
    let mut components: Vec<(String, Value)> = all
        .iter()
        .filter(|id| *id != root)
        .map(|id| (packages[id].purl(), packages[id].component("library", Some(scope(id)))))
        .collect();
    components.sort_by(|a, b| a.0.cmp(&b.0));
    let mut dependencies: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for id in &all {
        let package = &packages[id];
        let uses = package.uses.iter().chain(&package.is_built_with).map(|id| packages[id].purl());
        dependencies.insert(package.purl(), uses.collect());
    }
    Ok(json!({
        "$schema": format!("http://cyclonedx.org/schema/bom-{SPEC_VERSION}.schema.json"),
        "bomFormat": "CycloneDX",
        "specVersion": SPEC_VERSION,
        "version": 1,
        "metadata": {
            "tools": { "components": [{ "type": "application", "name": "cargo xtask dist" }] },
            "component": own.component("application", None),
        },
        "components": components.into_iter().map(|(_, component)| component).collect::<Vec<_>>(),
        "dependencies": dependencies
            .into_iter()
            .map(|(from, to)| json!({ "ref": from, "dependsOn": to }))
            .collect::<Vec<_>>(),
    }))
}

/// Adds a component that the program depends on.
fn add(document: &mut Value, component: &Value) -> Result<()> {
    let (own, added) = (&component["bom-ref"], document["metadata"]["component"]["bom-ref"].clone());
    let entries = document["dependencies"].as_array_mut().context("the document has no dependencies")?;
    let main = entries.iter_mut().find(|entry| entry["ref"] == added).context("the program has no dependencies")?;
    main["dependsOn"].as_array_mut().context("the program has no dependencies")?.push(own.clone());
    entries.push(json!({ "ref": own, "dependsOn": [] }));
    document["components"].as_array_mut().context("the document has no components")?.push(component.clone());
    Ok(())
}

/// Returns the compiled packages, by cargo's id.
fn packages<'a>(metadata: &'a Value, compiled: &BTreeSet<(String, String)>) -> Result<BTreeMap<&'a str, Package<'a>>> {
    let mut packages = BTreeMap::new();
    for package in list(&metadata["packages"]) {
        let (name, version) = (text(&package["name"]), text(&package["version"]));
        if !compiled.contains(&(name.to_owned(), version.to_owned())) {
            continue;
        }
        let license = package["license"].as_str().with_context(|| format!("{name} {version} names no licence"))?;
        let mut kinds = list(&package["targets"]).iter().flat_map(|target| list(&target["kind"]));
        let is_macro = kinds.any(|kind| kind == "proc-macro");
        let package_of = Package { name, version, license, is_macro, uses: Vec::new(), is_built_with: Vec::new() };
        packages.insert(text(&package["id"]), package_of);
    }
    let known: BTreeSet<&str> = packages.keys().copied().collect();
    for node in list(&metadata["resolve"]["nodes"]) {
        let Some(package) = packages.get_mut(text(&node["id"])) else { continue };
        for edge in list(&node["deps"]).iter().filter(|edge| known.contains(text(&edge["pkg"]))) {
            let kinds = || list(&edge["dep_kinds"]).iter().map(|kind| &kind["kind"]);
            if kinds().any(Value::is_null) {
                package.uses.push(text(&edge["pkg"]));
            } else if kinds().any(|kind| kind == "build") {
                package.is_built_with.push(text(&edge["pkg"]));
            }
        }
    }
    Ok(packages)
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Returns the packages that are reachable from one, itself included.
fn reached<'a>(
    packages: &BTreeMap<&'a str, Package<'a>>,
    root: &'a str,
    next: impl Fn(&Package<'a>) -> Vec<&'a str>,
) -> BTreeSet<&'a str> {
    let mut reached = BTreeSet::new();
    let mut waiting = vec![root];
    while let Some(id) = waiting.pop() {
        if reached.insert(id) {
            waiting.extend(packages.get(id).map(&next).unwrap_or_default());
        }
    }
    reached
}

/// Checks that a document has the required fields, and that its parts are consistent.
pub fn validate(document: &Value) -> Result<()> {
    ensure!(document["bomFormat"] == "CycloneDX" && document["specVersion"] == SPEC_VERSION, "wrong format");
    ensure!(document["version"] == 1, "wrong version of the document");
    let main = &document["metadata"]["component"];
    let mut references = BTreeSet::new();
    for component in list(&document["components"]).iter().chain([main]) {
        let name = text(&component["name"]);
        for field in ["type", "bom-ref", "name", "version", "purl"] {
            ensure!(!text(&component[field]).is_empty(), "the component '{name}' has no {field}");
        }
        let licences = list(&component["licenses"]);
        ensure!(!licences.is_empty(), "the component '{name}' has no licence");
        for licence in licences.iter().map(|licence| text(&licence["expression"])) {
            ensure!(is_expression(licence), "'{licence}', the licence of '{name}', is not an SPDX expression");
        }
        ensure!(references.insert(text(&component["bom-ref"])), "two components have the reference of '{name}'");
    }
    let mut graph: BTreeMap<&str, Package<'_>> = BTreeMap::new();
    for entry in list(&document["dependencies"]) {
        let uses: Vec<&str> = list(&entry["dependsOn"]).iter().map(text).collect();
        let from = text(&entry["ref"]);
        if let Some(unknown) = uses.iter().chain([&from]).find(|name| !references.contains(*name)) {
            bail!("the dependency graph names '{unknown}', which is not a component");
        }
        let package =
            Package { name: from, version: "", license: "", is_macro: false, uses, is_built_with: Vec::new() };
        ensure!(graph.insert(from, package).is_none(), "the dependency graph names '{from}' twice");
    }
    let reached = reached(&graph, text(&main["bom-ref"]), |package| package.uses.clone());
    if let Some(apart) = references.difference(&reached).next() {
        bail!("nothing depends on the component '{apart}'");
    }
    Ok(())
}

/// Returns true if a text has the form of an SPDX expression: identifiers, joined by operators.
fn is_expression(text: &str) -> bool {
    let words: Vec<&str> =
        text.split(|c: char| c.is_whitespace() || "()".contains(c)).filter(|w| !w.is_empty()).collect();
    let is_operator = |word: &str| ["AND", "OR", "WITH"].contains(&word);
    let is_word = |word: &str| word.chars().all(|c| c.is_ascii_alphanumeric() || ".-+:".contains(c));
    words.len() % 2 == 1
        && words.iter().enumerate().all(|(index, word)| is_word(word) && is_operator(word) == (index % 2 == 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns metadata of a program that uses a library and a macro, and is tested with another library.
    fn metadata() -> Value {
        let package = |name: &str, license: &str, kind: &str| json!({ "id": name, "name": name, "version": "1.0.0+x", "license": license, "targets": [{ "kind": [kind] }] });
        let edge = |name: &str, kind: Value| json!({ "pkg": name, "dep_kinds": [{ "kind": kind }] });
        json!({
            "packages": [
                package("program", "Apache-2.0", "bin"),
                package("library", "MIT/Apache-2.0", "lib"),
                package("macro", "MIT", "proc-macro"),
                package("parser", "MIT", "lib"),
                package("compiler", "MIT", "lib"),
                package("tester", "MIT", "lib"),
            ],
            "resolve": { "nodes": [
                {
                    "id": "program",
                    "deps": [
                        edge("library", Value::Null), edge("macro", Value::Null), edge("compiler", json!("build")),
                        edge("tester", json!("dev")),
                    ],
                },
                { "id": "macro", "deps": [edge("parser", Value::Null)] },
            ] },
        })
    }

    fn sample_document() -> Value {
        let tree = "program v1.0.0+x (/src)\nlibrary v1.0.0+x\nmacro v1.0.0+x (proc-macro)\n\
                    parser v1.0.0+x\ncompiler v1.0.0+x\nlibrary v1.0.0+x (*)\n";
        document(&metadata(), &compiled(tree), "program").unwrap()
    }

    /// Promise (Measurements and structure): The SBOM has licences, scopes and a dependency graph.
    #[test]
    fn components_have_licences_scopes_and_a_graph() {
        let document = sample_document();
        validate(&document).unwrap();
        let scopes: Vec<_> =
            list(&document["components"]).iter().map(|c| (text(&c["name"]), text(&c["scope"]))).collect();
        assert_eq!(
            scopes,
            [("compiler", "excluded"), ("library", "required"), ("macro", "excluded"), ("parser", "excluded")]
        );
        let library = &document["components"][1];
        assert_eq!(library["purl"], "pkg:cargo/library@1.0.0%2Bx");
        assert_eq!(library["licenses"], json!([{ "expression": "MIT OR Apache-2.0" }]));
        let of_macro = list(&document["dependencies"]).iter().find(|entry| entry["ref"] == "pkg:cargo/macro@1.0.0%2Bx");
        assert_eq!(of_macro.unwrap()["dependsOn"], json!(["pkg:cargo/parser@1.0.0%2Bx"]));
    }

    /// Promise (Measurements and structure): The SBOM names every package of the program with its licence.
    #[test]
    fn the_sbom_of_the_program_names_a_dependency_with_its_licence() {
        let sdks = crate::dist::sdk::components("0.1.0", "Apache-2.0");
        let document = make(&Repository::this(), "cofferdam", "x86_64-unknown-linux-gnu", &sdks).unwrap();
        assert_eq!(document["metadata"]["component"]["name"], "cofferdam");
        let component = |name: &str| list(&document["components"]).iter().find(|component| component["name"] == name);
        let clap = component("clap").expect("clap is a dependency");
        assert_eq!(
            (&clap["scope"], &clap["licenses"]),
            (&json!("required"), &json!([{ "expression": "MIT OR Apache-2.0" }]))
        );
        assert_eq!(component("clap_derive").expect("a macro")["scope"], "excluded");
        assert!(component("wasmtime").is_some(), "features are missing");
        assert!(component("insta").is_none(), "tests are not shipped");
        assert_eq!(component("@cofferdam/plugin").expect("the SDK")["purl"], "pkg:npm/%40cofferdam/plugin@0.1.0");
    }

    /// Promise (Measurements and structure): An incomplete SBOM is refused.
    #[test]
    fn broken_documents_are_refused() {
        for (path, value) in [
            ("/specVersion", json!("1.4")),
            ("/components/0/licenses", json!([])),
            ("/components/0/licenses/0/expression", json!("MIT Apache-2.0")),
            ("/components/0/purl", Value::Null),
            ("/components/0/bom-ref", json!("pkg:cargo/library@1.0.0%2Bx")),
            ("/dependencies/0/dependsOn", json!(["pkg:cargo/unknown@1.0.0"])),
            ("/dependencies", json!([])),
        ] {
            let mut broken = sample_document();
            *broken.pointer_mut(path).unwrap() = value;
            assert!(validate(&broken).is_err(), "{path}");
        }
        for text in ["MIT", "(MIT OR Apache-2.0) AND Unicode-3.0", "Apache-2.0 WITH LLVM-exception OR MIT"] {
            assert!(is_expression(text), "{text}");
        }
        for text in ["", "MIT OR", "MIT/Apache-2.0", "OR"] {
            assert!(!is_expression(text), "{text}");
        }
    }
}
