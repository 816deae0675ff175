//! Machine code that was compiled before.

use std::fs::File;

use rustix::fs::{SealFlags, fcntl_get_seals};
use wasmtime::{Engine, Module};

/// Loads the module from a file that this program wrote.
///
/// # Errors
///
/// If it was compiled by another version, for other settings or another processor.
pub(crate) fn load(engine: &Engine, file: Verified) -> wasmtime::Result<Module> {
    // SAFETY: a `Verified` holds the bytes that the compiler wrote, and is sealed: it cannot change or get shorter.
    unsafe { Module::deserialize_open_file(engine, file.0) }
}

/// A file in sealed memory whose bytes were compared with a hash by this process.
///
/// The module's code is a mapping of it. A file of a file system will not do: a process that writes to it changes code that
/// runs, and one that cuts it short ends this process by SIGBUS.
pub(crate) struct Verified(File);

impl Verified {
    /// Takes a file that [`Cache::open`](cofferdam_wasm_supply::Cache::open) returned; `None` for one that is not sealed.
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

    use cofferdam_wasm_supply::Cache;
    use wasmtime::{Config, Instance, Store};

    use super::*;

    const FILES: [&str; 1] = ["code"];

    /// Publishes a module with a function that returns a number.
    fn publish(cache: &Cache, place: &Path, engine: &Engine, answer: u8) {
        let made = place.join("made");
        fs::create_dir(&made).unwrap();
        let text = format!("(module (func (export \"f\") (result i32) i32.const {answer}))");
        let module = Module::new(engine, wat::parse_str(text).unwrap()).unwrap();
        fs::write(made.join(FILES[0]), module.serialize().unwrap()).unwrap();
        cache.remove("entry").unwrap();
        cache.publish(&made, "entry", &FILES).unwrap();
    }

    fn call(engine: &Engine, module: &Module) -> i32 {
        let mut store = Store::new(engine, ());
        let instance = Instance::new(&mut store, module, &[]).unwrap();
        instance.get_typed_func::<(), i32>(&mut store, "f").unwrap().call(&mut store, ()).unwrap()
    }

    #[test]
    fn what_becomes_of_the_file_after_it_was_hashed_changes_nothing() {
        let place = tempfile::tempdir().unwrap();
        let cache = Cache::new(place.path().join("cache"));
        cache.prepare().unwrap();
        let engine = Engine::new(Config::new().gc_support(false)).unwrap();
        let file = place.path().join("cache/entry/code");
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
                fs::write(place.path().join("other"), other()).unwrap();
                fs::rename(place.path().join("other"), &file).unwrap();
            }),
            ("cut short", &|| fs::File::options().write(true).open(&file).unwrap().set_len(0).unwrap()),
        ];
        for (what, change) in changes {
            // Between hash and map.
            publish(&cache, place.path(), &engine, 7);
            let hashed = open().unwrap();
            change();
            let module =
                load(&engine, Verified::new(hashed).expect("sealed")).unwrap_or_else(|error| panic!("{what}: {error}"));
            assert_eq!(call(&engine, &module), 7, "{what} between hash and map");
            assert!(open().is_none(), "{what}: the changed file is taken");
            // Between map and call.
            publish(&cache, place.path(), &engine, 7);
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
