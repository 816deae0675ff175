//! Loading of machine code that was compiled before.

use std::fs::File;

use rustix::fs::{SealFlags, fcntl_get_seals};
use wasmtime::{Engine, Module};

/// Loads a module from a file that this program wrote.
///
/// # Errors
///
/// If the code was compiled by another version, for other settings or for another processor.
pub(crate) fn load(engine: &Engine, file: Verified) -> wasmtime::Result<Module> {
    // SAFETY: a `Verified` contains the bytes that the compiler wrote, and is sealed: it cannot change or be truncated.
    unsafe { Module::deserialize_open_file(engine, file.0) }
}

/// A sealed memory file whose bytes this process compared with a hash.
///
/// The module's code is a mapping of it. An ordinary file is not safe: a process that writes to it changes running
/// code, and one that truncates it kills this process by SIGBUS.
pub(crate) struct Verified(File);

impl Verified {
    /// Wraps a file that [`Cache::open`](cofferdam_wasm_runtimes::Cache::open) returned; `None` if it is not sealed.
    pub(crate) fn new(file: File) -> Option<Self> {
        let needed = SealFlags::WRITE | SealFlags::SHRINK;
        let sealed = fcntl_get_seals(&file).is_ok_and(|seals| seals.contains(needed));
        sealed.then_some(Self(file))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::FileExt;
    use std::path::Path;

    use cofferdam_wasm_runtimes::Cache;
    use wasmtime::{Config, Instance, Store};

    use super::*;

    const FILES: [&str; 1] = ["code"];

    /// Publishes a module with a function that returns a number.
    fn publish(cache: &Cache, parent: &Path, engine: &Engine, answer: u8) {
        let staged = parent.join("staged");
        fs::create_dir(&staged).unwrap();
        let text = format!("(module (func (export \"f\") (result i32) i32.const {answer}))");
        let module = Module::new(engine, wat::parse_str(text).unwrap()).unwrap();
        fs::write(staged.join(FILES[0]), module.serialize().unwrap()).unwrap();
        cache.remove("entry").unwrap();
        cache.publish(&staged, "entry", &FILES).unwrap();
    }

    fn call(engine: &Engine, module: &Module) -> i32 {
        let mut store = Store::new(engine, ());
        let instance = Instance::new(&mut store, module, &[]).unwrap();
        instance.get_typed_func::<(), i32>(&mut store, "f").unwrap().call(&mut store, ()).unwrap()
    }

    #[test]
    fn change_of_a_file_after_its_hash_has_no_effect() {
        let directory = tempfile::tempdir().unwrap();
        let cache = Cache::new(directory.path().join("cache"));
        cache.prepare().unwrap();
        let engine = Engine::new(Config::new().gc_support(false)).unwrap();
        let file = directory.path().join("cache/entry/code");
        let open = || cache.open("entry", &FILES).unwrap().map(|mut found| found.remove(0).1);
        let other = || {
            let module = wat::parse_str("(module (func (export \"f\") (result i32) i32.const 66))").unwrap();
            Module::new(&engine, module).unwrap().serialize().unwrap()
        };
        let changes: [(&str, &dyn Fn()); 3] = [
            ("rewritten in place", &|| {
                let rewritten = fs::File::options().write(true).open(&file).unwrap();
                rewritten.write_all_at(&other(), 0).unwrap();
            }),
            ("replaced", &|| {
                fs::write(directory.path().join("other"), other()).unwrap();
                fs::rename(directory.path().join("other"), &file).unwrap();
            }),
            ("truncated", &|| fs::File::options().write(true).open(&file).unwrap().set_len(0).unwrap()),
        ];
        for (what, change) in changes {
            // Change the file between hash and map.
            publish(&cache, directory.path(), &engine, 7);
            let hashed = open().unwrap();
            change();
            let module =
                load(&engine, Verified::new(hashed).expect("sealed")).unwrap_or_else(|error| panic!("{what}: {error}"));
            assert_eq!(call(&engine, &module), 7, "{what} between hash and map");
            assert!(open().is_none(), "{what}: the changed file was accepted");
            // Change the file between map and call.
            publish(&cache, directory.path(), &engine, 7);
            let module = load(&engine, Verified::new(open().unwrap()).expect("sealed")).unwrap();
            change();
            assert_eq!(call(&engine, &module), 7, "{what} between map and call");
        }
    }

    #[test]
    fn a_file_that_could_change_is_no_code() {
        assert!(Verified::new(tempfile::tempfile().unwrap()).is_none());
    }
}
