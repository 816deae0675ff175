//! The option `wasm.directories` of a spec: names for directories of the workspace.

use cofferdam_contract::{Error, Result, SandboxPath, Spec};
use serde_json::Value;

/// The maximum number of names.
const MAX_NAMES: usize = 16;
const MAX_NAME: usize = 255;

/// The names that a spec gives to directories of the workspace, in place of the default ones.
pub(crate) type Directories = Vec<(String, SandboxPath)>;

/// Reads `wasm.directories`: an object from names to paths in the workspace.
pub(crate) fn read(value: &Value) -> Result<Directories> {
    let invalid = |what: &str| Error::invalid("create", format!("wasm.directories {what}"));
    let object = value.as_object().ok_or_else(|| invalid("must be an object of names and paths in the workspace"))?;
    if object.len() > MAX_NAMES {
        return Err(invalid("can have at most 16 names"));
    }
    let entry = |(name, path): (&String, &Value)| {
        if name.is_empty() || name.len() > MAX_NAME || name.contains('\0') {
            return Err(invalid("must have names of 1 to 255 bytes without NUL"));
        }
        let path = path.as_str().ok_or_else(|| invalid("must have a string as the path of each name"))?;
        Ok((name.clone(), SandboxPath::new(path)?))
    };
    object.iter().map(entry).collect()
}

/// Returns the directories that a spec names; `None` if it has the default ones.
pub(crate) fn named(spec: &Spec) -> Result<Option<Directories>> {
    spec.attributes().get("wasm.directories").map(read).transpose()
}

/// Rejects custom names for guests that start with the default ones: interpreters and snapshots remember these.
pub(crate) fn refuse_named(spec: &Spec) -> Result<()> {
    match named(spec)? {
        None => Ok(()),
        Some(_) => {
            Err(Error::unsupported("start", "interpreters, sessions and direct runs do not support wasm.directories")
                .with_remedy("remove wasm.directories"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn names_and_paths_are_read_or_refused() {
        let read_names = read(&json!({ "b": "x/y", "/": "." })).unwrap();
        assert_eq!(read_names, [("/".into(), SandboxPath::default()), ("b".into(), SandboxPath::new("x/y").unwrap())]);
        assert_eq!(read(&json!({})).unwrap(), []);
        let many: serde_json::Map<_, _> = (0..17).map(|number| (number.to_string(), json!("."))).collect();
        for bad in [json!(["a"]), json!({ "": "." }), json!({ "a": 1 }), json!({ "a": ".." }), many.into()] {
            assert!(read(&bad).is_err(), "{bad}");
        }
    }
}
