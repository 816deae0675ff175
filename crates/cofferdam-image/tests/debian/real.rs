//! Root file systems from the real archive's packages, and programs in them.

use std::os::unix::fs::PermissionsExt;

use cofferdam_image::debian::Progress;
use cofferdam_image::{Cache, Plan, Recipe, resolve};

use crate::root::{Root, files_in, is_no_archive, tar_of};

/// Promise (Containers): A root file system from Debian packages has the same bytes each time.
#[test]
fn tiny_root_passes_conformance_and_is_reproducible() {
    let test = "tiny_root_passes_conformance_and_is_reproducible";
    let temp = tempfile::tempdir().expect("a directory");
    let cache = Cache::new(temp.path().join("cache"));
    let mut steps = Vec::new();
    let plan = match resolve(&Recipe::tiny(), &cache, &mut |step| steps.push(step)) {
        Ok(plan) => plan,
        Err(error) if is_no_archive(test, &error) => return,
        Err(error) => panic!("{error}"),
    };
    assert_eq!(steps, [Progress::Updating, Progress::Resolving]);
    let mut fetched = (0, 0);
    let mut tar = Vec::new();
    let mut keep = |step: Progress| {
        if let Progress::Fetching { done, total } = step {
            assert!(done >= fetched.0 && done <= total, "{done} of {total} after {fetched:?}");
            fetched = (done, total);
        }
    };
    plan.write_tar(&mut tar, &mut keep).unwrap_or_else(|error| panic!("{error}"));
    assert!(fetched.1 > 1 << 20, "fetched {fetched:?}");
    let again = resolve(&Recipe::tiny(), &cache, &mut |_| ()).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(again.key(), plan.key(), "the archive changed in the meantime");
    let mut second = Vec::new();
    let nothing_is_fetched = &mut |step| assert!(!matches!(step, Progress::Fetching { .. }), "{step:?}");
    again.write_tar(&mut second, nothing_is_fetched).unwrap_or_else(|error| panic!("{error}"));
    assert!(second == tar, "the same packages produced different bytes");

    let root = Root::unpack(&tar);
    check_files(&root, &plan);
    let is = |expected: &'static str| move |found: &str| found == expected;
    root.expect(test, &["sh", "-c", "printf '%s' a; echo b | awk '{print $1}'"], is("ab"));
    root.expect(test, &["sh", "-c", "yes x | head -c 5 | wc -c; setsid sh -c 'exit 0' && echo ok"], is("5\nok"));
    root.expect(test, &["sh", "-c", "cd /tmp && mkfifo p && ln -s p l && readlink l && rm p l; which env"], |found| {
        found == "p\n/usr/bin/env" || found == "p\n/bin/env"
    });
    let python = "import os, sys, signal, socket; print(os.getcwd(), sys.getfilesystemencoding())";
    root.expect(test, &["python3", "-I", "-S", "-c", python], is("/ utf-8"));
    root.expect(test, &["sh", "-c", ". /etc/os-release && echo ${ID:+known}"], is("known"));
}

/// Checks properties of every root.
fn check_files(root: &Root, plan: &Plan) {
    for path in files_in(&root.path()) {
        let found = path.symlink_metadata().expect("a file");
        assert_eq!(found.permissions().mode() & 0o6000, 0, "{} has set-id bits", path.display());
    }
    let inside = |path: &str| root.path().join(path);
    assert!(!inside("usr/share/man").exists() && !inside("usr/share/locale").exists());
    assert!(inside("usr/share/doc/libc6/copyright").is_file());
    assert!(inside("workspace").is_dir() && inside("bin").is_symlink());
    let mode = inside("tmp").metadata().expect("/tmp").permissions().mode();
    assert_eq!(mode & 0o7777, 0o1777);
    let status = std::fs::read_to_string(inside("var/lib/dpkg/status")).expect("a status");
    let named: Vec<&str> = status.lines().filter_map(|line| line.strip_prefix("Package: ")).collect();
    let planned: Vec<&str> = plan.packages().iter().map(|package| &*package.name).collect();
    assert_eq!(named, planned);
}

#[test]
fn the_base_root_runs_python_node_and_knows_certificates() {
    let test = "the_base_root_runs_python_node_and_knows_certificates";
    let temp = tempfile::tempdir().expect("a directory");
    let mut recipe = Recipe::base();
    recipe.packages.push("ca-certificates".to_owned());
    recipe.optional.push("cofferdam-no-such-package".to_owned());
    let plan = match resolve(&recipe, &Cache::new(temp.path()), &mut |_| ()) {
        Ok(plan) => plan,
        Err(error) if is_no_archive(test, &error) => return,
        Err(error) => panic!("{error}"),
    };
    assert!(plan.notes().iter().any(|note| note.starts_with("cofferdam-no-such-package was left out")), "{plan:?}");
    let root = Root::unpack(&tar_of(&plan));
    check_files(&root, &plan);
    let library = "import json, ssl, sqlite3, asyncio, hashlib, zlib, ctypes
connection = sqlite3.connect(':memory:')
print(json.dumps(connection.execute('select 6 * 7').fetchone()), len(ssl.create_default_context().get_ca_certs()) > 50)";
    root.expect(test, &["python3", "-c", library], |found| found == "[42] True");
    if plan.packages().iter().any(|package| package.name == "nodejs") {
        root.expect(test, &["node", "--version"], |found| found.starts_with('v'));
        let code = "console.log(require('crypto').createHash('sha256').update('').digest('hex').slice(0, 8))";
        root.expect(test, &["node", "-e", code], |found| found == "e3b0c442");
    }
    let tools = "set -e; cd /tmp; echo a >f; tar -czf t f; gzip -t t; grep -q a f; sed -i s/a/b/ f; find . -name f; diff f f; rm f t";
    root.expect(test, &["bash", "-c", tools], |found| found == "./f");
    root.expect(test, &["sh", "-c", "locale charmap; getent passwd nobody | cut -d: -f3"], |found| {
        found == "UTF-8\n65534"
    });
}
