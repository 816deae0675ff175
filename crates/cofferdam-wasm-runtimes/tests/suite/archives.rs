//! Hostile and broken archives.

use std::fs;
use std::io::Write;
use std::path::Path;

use cofferdam_wasm_runtimes::{RuntimesError, unpack_tgz_file, unpack_zip_under};

/// Creates a `.tar.gz` of entries with unchecked names, which the tar crate itself would refuse to write.
fn tgz(entries: &[(&str, u8, &[u8])]) -> Vec<u8> {
    let mut tar = Vec::new();
    for (name, kind, content) in entries {
        let mut header = tar::Header::new_ustar();
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        header.set_entry_type(tar::EntryType::new(*kind));
        if *kind != b'0' {
            header.set_link_name("/etc/passwd").expect("a link's target");
        }
        header.set_cksum();
        tar.extend_from_slice(header.as_bytes());
        tar.extend_from_slice(content);
        tar.resize(tar.len().next_multiple_of(512), 0);
    }
    tar.resize(tar.len() + 1024, 0);
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(&tar).expect("compress");
    gzip.finish().expect("compress")
}

fn refuses_tgz(bytes: &[u8], reason: &str) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let archive = directory.path().join("a.tgz");
    fs::write(&archive, bytes).expect("the archive");
    let error = unpack_tgz_file(&archive, "package/m", &directory.path().join("out")).expect_err(reason);
    assert!(matches!(error, RuntimesError::BadArchive { .. }), "{error:?}");
    assert!(error.to_string().contains(reason), "{error} does not contain {reason}");
}

#[test]
fn tar_entry_that_leads_out_is_refused() {
    refuses_tgz(&tgz(&[("../m", b'0', b"x"), ("package/m", b'0', b"x")]), "leads out");
    refuses_tgz(&tgz(&[("/package/m", b'0', b"x")]), "leads out");
    refuses_tgz(&tgz(&[("package/../../m", b'0', b"x")]), "leads out");
}

#[test]
fn tar_link_or_device_is_refused() {
    for kind in [b'1', b'2', b'3', b'6'] {
        refuses_tgz(&tgz(&[("package/m", kind, b"")]), "is not a regular file");
    }
}

#[test]
fn tar_without_the_file_or_with_two_is_refused() {
    refuses_tgz(&tgz(&[("package/n", b'0', b"x")]), "does not contain");
    refuses_tgz(&tgz(&[("package/m", b'0', b"x"), ("package/m", b'0', b"y")]), "twice");
}

#[test]
fn truncated_tar_is_refused() {
    let content: Vec<u8> =
        (0..100_000_u32).flat_map(|number| number.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    let whole = tgz(&[("package/m", b'0', &content)]);
    refuses_tgz(&whole[..whole.len() / 2], "");
    refuses_tgz(b"no archive at all", "");
}

#[test]
fn tar_never_writes_through_a_link() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let archive = directory.path().join("a.tgz");
    fs::write(&archive, tgz(&[("package/m", b'0', b"x")])).expect("the archive");
    let victim = directory.path().join("victim");
    fs::write(&victim, "safe").expect("the victim");
    let out = directory.path().join("out");
    std::os::unix::fs::symlink(&victim, &out).expect("a link");
    unpack_tgz_file(&archive, "package/m", &out).expect_err("the target is a link");
    assert_eq!(fs::read_to_string(&victim).expect("the victim"), "safe");
}

fn zip_of(entries: &[(&str, bool)]) -> Vec<u8> {
    let mut zip = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    for (name, link) in entries {
        let options = zip::write::SimpleFileOptions::default();
        if *link {
            zip.add_symlink(*name, "/etc/passwd", options).expect("a link");
        } else {
            zip.start_file(*name, options).expect("a file");
            zip.write_all(b"content").expect("its content");
        }
    }
    zip.finish().expect("the zip").into_inner()
}

fn unzip(bytes: &[u8], target: &Path) -> Result<(), RuntimesError> {
    let archive = target.join("a.zip");
    fs::write(&archive, bytes).expect("the archive");
    unpack_zip_under(&archive, &target.join("out"), "bin/x", |name| !name.ends_with("skip"))
}

#[test]
fn zip_entry_that_leads_out_or_is_a_link_is_refused() {
    for (name, link) in [("../x", false), ("/x", false), ("a/../../x", false), ("a\\x", false), ("a", true)] {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let result = unzip(&zip_of(&[(name, link)]), directory.path());
        let error = result.expect_err(name);
        assert!(matches!(error, RuntimesError::BadArchive { .. }), "{name}: {error:?}");
        assert!(!directory.path().join("out/a").exists(), "{name} left a file");
    }
}

#[test]
fn truncated_zip_is_refused() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let whole = zip_of(&[("bin/x", false)]);
    let error = unzip(&whole[..whole.len() - 30], directory.path()).expect_err("truncated");
    assert!(matches!(error, RuntimesError::BadArchive { .. }), "{error:?}");
}

#[test]
fn zip_unpacks_selected_files_only() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    unzip(&zip_of(&[("bin/x", false), ("bin/skip", false)]), directory.path()).expect("unpacked");
    assert_eq!(fs::read(directory.path().join("out/bin/x")).expect("the file"), b"content");
    assert!(!directory.path().join("out/bin/skip").exists());
}
