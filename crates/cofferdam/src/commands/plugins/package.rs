//! `cofferdam plugins package` and `keygen`: signed packages of plugins.

use std::path::PathBuf;

use cofferdam::{Error, Result};
use cofferdam_plugin::package::{EXTENSION, PackageError, SigningKey, Tree};
use serde_json::json;

use super::answer;
use crate::args::{KeygenArgs, PackageArgs};
use crate::out_file::{Existing, OutFile};
use crate::terminal::one_line;

/// Creates a key.
pub fn keygen(args: &KeygenArgs) -> Result<u8> {
    let (key, public) = SigningKey::create(&args.file).map_err(|error| error.into_error("create key"))?;
    let fingerprint = key.fingerprint();
    let text = format!(
        "created the key {fingerprint}\n  private: {}\n  public:  {}\n",
        one_line(&args.file.display().to_string()),
        one_line(&public.display().to_string())
    );
    Ok(answer(args.json, &json!({"key": fingerprint, "private": args.file, "public": public}), &text))
}

/// Packs a directory.
pub fn pack(args: &PackageArgs) -> Result<u8> {
    let failed = |error: PackageError| error.into_error("package plugin");
    let key = SigningKey::read(&args.key).map_err(failed)?;
    // The file is not in the directory yet, if it is written there.
    let tree = Tree::read(&args.directory).map_err(failed)?;
    let manifest = tree.manifest();
    let default = || PathBuf::from(format!("{}-{}.{EXTENSION}", manifest.name, manifest.version));
    let out = args.out.clone().unwrap_or_else(default);
    if out.extension().is_none_or(|extension| extension != EXTENSION) {
        return Err(Error::invalid("package plugin", format!("'{}' does not end in .{EXTENSION}", out.display())));
    }
    let file = OutFile::begin(&out, if args.force { Existing::Replace } else { Existing::Keep })?;
    tree.write(&key, file.file()?).map_err(failed)?;
    file.finish()?;
    let (digest, fingerprint) = (tree.digest(), key.public().fingerprint());
    let shown = one_line(&out.display().to_string());
    let text = format!(
        "packed {} {} into {shown}\n  digest: {digest}\n  key:    {fingerprint}\n",
        manifest.name, manifest.version
    );
    let value = json!({
        "name": manifest.name,
        "version": manifest.version,
        "file": out,
        "digest": digest,
        "key": fingerprint,
        "entries": tree.index().entries.len(),
    });
    Ok(answer(args.json, &value, &text))
}
