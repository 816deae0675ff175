//! The packages of the SDKs for plugins, one in the usual form of each language.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::formats::{Contents, pack_wheel, tar};
use super::tree::{Tree, run_tool};
use crate::repository::Repository;
use crate::test::sdk::RUST;

const PYTHON: &str = "sdk/python-plugin";
const NODE: &str = "sdk/node-plugin";
/// The modules of the SDK for Python.
const MODULES: [&str; 4] = ["__init__.py", "__main__.py", "testing.py", "py.typed"];

/// The packages of the SDKs.
#[derive(Debug)]
pub struct Sdks {
    /// The Python wheel.
    pub wheel: PathBuf,
    /// The npm package.
    pub npm: PathBuf,
    /// The package of cargo.
    pub krate: PathBuf,
}

/// Packs the SDKs, which have the version of the program.
pub fn pack(repository: &Repository, contents: &Contents, stage: &Path, out: &Path) -> Result<Sdks> {
    let versions = [
        (format!("{PYTHON}/src/cofferdam_plugin/__init__.py"), format!("__version__ = \"{}\"\n", contents.version)),
        (format!("{NODE}/package.json"), format!("\"version\": \"{}\",\n", contents.version)),
        (format!("{RUST}/Cargo.toml"), format!("version = \"{}\"\n", contents.version)),
    ];
    for (file, line) in versions {
        ensure!(repository.read(&file)?.contains(&line), "{file} has not the version {}", contents.version);
    }
    Ok(Sdks {
        wheel: wheel(repository, contents, stage, out)?,
        npm: npm(repository, contents, stage, out)?,
        krate: krate(repository, contents, stage, out)?,
    })
}

fn wheel(repository: &Repository, contents: &Contents, stage: &Path, out: &Path) -> Result<PathBuf> {
    let tree = Tree::create(stage.join("sdk-wheel"))?;
    for name in MODULES {
        let text = repository.read(format!("{PYTHON}/src/cofferdam_plugin/{name}"))?;
        tree.file(&format!("cofferdam_plugin/{name}"), &text)?;
    }
    let Contents { version, license, .. } = contents;
    let base = format!("cofferdam_plugin-{version}");
    let info = format!("{base}.dist-info");
    let wheel = "Wheel-Version: 1.0\nGenerator: cargo xtask dist\nRoot-Is-Purelib: true\nTag: py3-none-any\n";
    tree.file(&format!("{info}/WHEEL"), wheel)?;
    let readme = repository.read(format!("{PYTHON}/README.md"))?;
    tree.file(
        &format!("{info}/METADATA"),
        &format!(
            "Metadata-Version: 2.1\nName: cofferdam-plugin\nVersion: {version}\n\
             Summary: SDK for Cofferdam plugins in Python\nLicense: {license}\nLicense-File: LICENSE\n\
             Requires-Python: >=3.9\nClassifier: Typing :: Typed\nDescription-Content-Type: text/markdown\n\n{readme}"
        ),
    )?;
    tree.file(&format!("{info}/LICENSE"), &contents.license_text)?;
    let file = out.join(format!("{base}-py3-none-any.whl"));
    pack_wheel(contents, &tree, &file)?;
    Ok(file)
}

fn npm(repository: &Repository, contents: &Contents, stage: &Path, out: &Path) -> Result<PathBuf> {
    let tree = Tree::create(stage.join("sdk-npm"))?;
    let manifest: Value = serde_json::from_str(&repository.read(format!("{NODE}/package.json"))?)?;
    let files = manifest["files"].as_array().context("package.json lists no files")?;
    for name in files.iter().filter_map(Value::as_str).chain(["package.json", "README.md"]) {
        tree.file(&format!("package/{name}"), &repository.read(format!("{NODE}/{name}"))?)?;
    }
    let file = out.join(format!("cofferdam-plugin-{}.tgz", contents.version));
    tar(contents, &tree, "package", &file)?;
    Ok(file)
}

fn krate(repository: &Repository, contents: &Contents, stage: &Path, out: &Path) -> Result<PathBuf> {
    let mut cargo = repository.cargo();
    cargo.current_dir(repository.root().join(RUST)).env("CARGO_TARGET_DIR", stage.join("sdk-crate"));
    run_tool("cargo package", cargo.args(["package", "--quiet", "--no-verify", "--allow-dirty", "--locked"]))?;
    let name = format!("cofferdam-plugin-sdk-{}.crate", contents.version);
    let (packed, file) = (stage.join("sdk-crate/package").join(&name), out.join(&name));
    std::fs::copy(&packed, &file).with_context(|| format!("cannot copy {}", packed.display()))?;
    Ok(file)
}

/// Returns the components of the SBOM. The program contains the SDKs for Python and Node.js.
pub fn components(version: &str, license: &str) -> Vec<Value> {
    let component = |name: &str, purl: String, scope: &str| {
        json!({
            "type": "library", "bom-ref": purl, "name": name, "version": version,
            "licenses": [{ "expression": license }], "purl": purl, "scope": scope,
        })
    };
    vec![
        component("cofferdam-plugin", format!("pkg:pypi/cofferdam-plugin@{version}"), "required"),
        component("@cofferdam/plugin", format!("pkg:npm/%40cofferdam/plugin@{version}"), "required"),
        component("cofferdam-plugin-sdk", format!("pkg:cargo/cofferdam-plugin-sdk@{version}"), "optional"),
    ]
}
