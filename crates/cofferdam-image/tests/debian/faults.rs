//! Damaged caches, killed builds, failing mirrors, and no network.

use std::fs;
use std::path::{Path, PathBuf};

use cofferdam_image::{Cache, Plan, resolve};

use crate::driven::{Build, Ended, Stop, small, tar_in};
use crate::proxy::{Fault, Proxy};
use crate::root::{is_no_archive, tar_of};

/// Fills a cache and returns the plan and its tar. Returns `None` if no archive can be reached.
fn filled(test: &str, cache: &Path) -> Option<(Plan, Vec<u8>)> {
    match resolve(&small(), &Cache::new(cache), &mut |_| ()) {
        Ok(plan) => {
            let tar = tar_of(&plan);
            Some((plan, tar))
        }
        Err(error) if is_no_archive(test, &error) => None,
        Err(error) => panic!("{error}"),
    }
}

fn packages_in(cache: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(cache.join("packages")).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

/// Checks that the name of every cached package is its hash.
fn assert_sound(cache: &Path) {
    for path in packages_in(cache) {
        let output = std::process::Command::new("sha256sum").arg(&path).output().expect("sha256sum");
        let found = String::from_utf8_lossy(&output.stdout).into_owned();
        let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
        assert!(found.starts_with(&name), "{} is kept, but is {found}", path.display());
    }
}

/// Returns a configuration for apt, which any user can set in the environment.
fn configuration(temp: &Path, lines: &str) -> PathBuf {
    let path = temp.join("test.conf");
    fs::write(&path, lines).expect("a configuration");
    path
}

fn no_network(temp: &Path, more: &str) -> PathBuf {
    // No process listens at the discard port.
    let proxy = "\"http://127.0.0.1:9\"";
    configuration(temp, &format!("Acquire::http::Proxy {proxy};\nAcquire::https::Proxy {proxy};\n{more}"))
}

#[test]
fn damaged_packages_are_fetched_again_and_old_ones_pruned() {
    let test = "damaged_packages_are_fetched_again_and_old_ones_pruned";
    let temp = tempfile::tempdir().expect("a directory");
    let cache = temp.path().join("cache");
    let Some((plan, tar)) = filled(test, &cache) else { return };
    let packages = packages_in(&cache);
    assert_eq!(packages.len(), plan.packages().len());
    let mut bytes = fs::read(&packages[0]).expect("a package");
    bytes[1000] ^= 1;
    fs::write(&packages[0], bytes).expect("damaged");
    fs::write(&packages[1], "").expect("truncated");
    fs::remove_file(&packages[2]).expect("removed");
    let old = cache.join("packages/0000.deb");
    let age = std::time::SystemTime::now() - std::time::Duration::from_secs(40 * 86_400);
    fs::File::create(&old).and_then(|file| file.set_modified(age)).expect("an old package");
    assert!(tar_of(&plan) == tar, "different bytes after a repair");
    assert_eq!(packages_in(&cache), packages, "an old package was kept, or a needed one was not");
    assert_sound(&cache);
}

#[test]
fn two_at_once_make_the_same_bytes_in_one_cache() {
    let test = "two_at_once_make_the_same_bytes_in_one_cache";
    let temp = tempfile::tempdir().expect("a directory");
    let cache = temp.path().join("cache");
    let (one, other) = std::thread::scope(|scope| {
        let other = scope.spawn(|| filled(test, &cache));
        (filled(test, &cache), other.join().expect("ended"))
    });
    assert_eq!(one.is_some(), other.is_some());
    let (Some((one, one_tar)), Some((other, other_tar))) = (one, other) else { return };
    assert_eq!(one.key(), other.key());
    assert!(one_tar == other_tar, "different bytes");
    assert_sound(&cache);
}

/// Promise (Virtual machines): A killed build of a root file system leaves no partial result.
#[test]
fn a_killed_build_leaves_nothing_half_done() {
    let test = "a_killed_build_leaves_nothing_half_done";
    let temp = tempfile::tempdir().expect("a directory");
    let cache = temp.path().join("cache");
    for stop in [Stop::Fetching, Stop::Writing] {
        if let Err(ended) = Build::start(&cache, stop, &[]).kill_where_it_stops() {
            if is_skipped(test, &ended) {
                return;
            }
            panic!("it did not stop at {stop:?}: {ended:?}");
        }
        assert!(!tar_in(&cache).exists(), "{stop:?}: an incomplete tar");
        assert_sound(&cache);
    }
    let ended = Build::start(&cache, Stop::Never, &[]).end();
    let (plan, tar) = filled(test, &cache).expect("it was reached before");
    assert_eq!(ended.result, Ok(plan.key()));
    assert!(fs::read(tar_in(&cache)).expect("a tar") == tar, "different bytes");
    let entries = [temp.path(), &cache].into_iter().flat_map(|path| fs::read_dir(path).expect("a directory"));
    let left =
        entries.flatten().map(|entry| entry.file_name()).filter(|name| name.to_string_lossy().starts_with(['.', 'w']));
    assert_eq!(left.count(), 0, "files of the killed builds remain");
}

/// Promise (Virtual machines): The apt process of a killed build ends with it.
#[test]
fn an_apt_that_waits_for_the_network_ends_with_a_killed_build() {
    let test = "an_apt_that_waits_for_the_network_ends_with_a_killed_build";
    let temp = tempfile::tempdir().expect("a directory");
    // The server accepts requests and never answers.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    silent.set_nonblocking(true).expect("non-blocking");
    let address = silent.local_addr().expect("its address");
    let lines = ["http", "https"].map(|scheme| {
        format!("Acquire::{scheme}::Proxy \"http://{address}\";\nAcquire::{scheme}::Timeout \"1000\";\n")
    });
    let configured = configuration(temp.path(), &lines.concat());
    let mut build = Build::start(&temp.path().join("cache"), Stop::Never, &[("APT_CONFIG", &configured)]);
    let begun = std::time::Instant::now();
    let _asked = loop {
        match silent.accept() {
            Ok(request) => break request,
            Err(_) if build.has_ended() => return println!("SKIP {test}: apt contacts no archive"),
            Err(_) => assert!(begun.elapsed() < std::time::Duration::from_secs(120), "apt contacts no server"),
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    };
    build.kill();
}

fn is_skipped(test: &str, ended: &Ended) -> bool {
    let why = ended.result.as_ref().err().filter(|why| why.contains("NoArchive") || why.contains("MissingTool"));
    if let Some(why) = why {
        println!("SKIP {test}: {why}");
    }
    why.is_some()
}

#[test]
fn partial_download_keeps_the_fetched_packages() {
    let test = "partial_download_keeps_the_fetched_packages";
    let temp = tempfile::tempdir().expect("a directory");
    let cache = temp.path().join("cache");
    let empty = temp.path().join("empty");
    fs::create_dir(&empty).expect("a directory");
    for fault in [Fault::Cut, Fault::Damage] {
        let proxy = Proxy::start(fault);
        let lines = format!(
            "Acquire::http::Proxy \"http://{}\";\nAcquire::http::Pipeline-Depth \"0\";\nDir::Cache::archives \"{}\";\n",
            proxy.address,
            empty.display()
        );
        let configured = configuration(temp.path(), &lines);
        let ended = Build::start(&cache, Stop::Never, &[("APT_CONFIG", &configured)]).end();
        if proxy.packages() == 0 {
            println!("SKIP {test}: no package came through a proxy for plain HTTP: {ended:?}");
            return;
        }
        let why = ended.result.expect_err("it was built");
        assert!(why.starts_with("FetchFailed") && why.contains("Try again"), "{fault:?}: {why}");
        assert!(!tar_in(&cache).exists());
        assert_sound(&cache);
        assert!(!packages_in(&cache).is_empty(), "{fault:?}: no downloaded package was kept");
    }
    let came = packages_in(&cache).len();
    let (plan, _) = filled(test, &cache).expect("it was reached before");
    assert!(came < plan.packages().len(), "a damaged package was kept");
}

#[test]
fn without_a_network_a_cache_or_the_hosts_own_packages_do() {
    let test = "without_a_network_a_cache_or_the_hosts_own_packages_do";
    let temp = tempfile::tempdir().expect("a directory");
    let cache = temp.path().join("cache");
    let Some((plan, tar)) = filled(test, &cache) else { return };

    let offline = no_network(temp.path(), "");
    let ended = Build::start(&cache, Stop::Never, &[("APT_CONFIG", &offline)]).end();
    assert_eq!(ended.result.as_deref(), Ok(&*plan.key()), "{ended:?}");
    assert!(ended.notes.contains("cannot reach any archive") && ended.notes.contains("the previous lists"));
    assert!(fs::read(tar_in(&cache)).expect("a tar") == tar);

    let archives = temp.path().join("archives");
    fs::create_dir(&archives).expect("a directory");
    for package in plan.packages() {
        let name = format!("{}_{}_{}.deb", package.name, package.version.replace(':', "%3a"), package.architecture);
        fs::copy(cache.join(format!("packages/{}.deb", package.sha256)), archives.join(name)).expect("a package");
    }
    let lists = fs::read_dir(&cache).expect("the cache").flatten().map(|entry| entry.path().join("lists"));
    let lists = lists.into_iter().find(|path| path.is_dir()).expect("package lists");
    let of_host = |lists: &Path, archives: &Path| {
        let directories = (lists.display(), archives.display());
        format!("Dir::State::lists \"{}\";\nDir::Cache::archives \"{}\";\n", directories.0, directories.1)
    };
    let host = no_network(temp.path(), &of_host(&lists, &archives));
    let other = temp.path().join("other");
    let ended = Build::start(&other, Stop::Never, &[("APT_CONFIG", &host)]).end();
    assert_eq!(ended.result.as_deref(), Ok(&*plan.key()), "{ended:?}");
    assert!(ended.notes.contains("the host's lists"), "{ended:?}");
    assert!(fs::read(tar_in(&other)).expect("a tar") == tar);

    let nothing = temp.path().join("nothing");
    let host = no_network(temp.path(), &of_host(&nothing, &nothing));
    let ended = Build::start(&temp.path().join("third"), Stop::Never, &[("APT_CONFIG", &host)]).end();
    let why = ended.result.expect_err("there was nothing to build from");
    assert!(why.starts_with("NoArchive") && why.contains("cofferdam image import"), "{why}");
}

#[test]
fn without_apt_the_error_names_the_other_way() {
    let temp = tempfile::tempdir().expect("a directory");
    let ended = Build::start(&temp.path().join("cache"), Stop::Never, &[("PATH", temp.path())]).end();
    let why = ended.result.expect_err("there is no apt");
    assert!(why.starts_with("MissingTool") && why.contains("cofferdam image import"), "{why}");
}
