//! Layers under a real overlayfs, as root and as an ordinary user.

use std::path::PathBuf;
use std::process::Command;

use super::support::*;

/// Mounts the layers in namespaces of their own, and returns the output of a script in the mount.
fn inside(layers: &[PathBuf], script: &str) -> Result<String, String> {
    let temp = tempfile::tempdir().unwrap();
    for name in ["upper", "work", "merged"] {
        std::fs::create_dir(temp.path().join(name)).unwrap();
    }
    let lower: Vec<String> = layers.iter().rev().map(|path| path.display().to_string()).collect();
    let options =
        format!("userxattr,lowerdir={},upperdir={1}/upper,workdir={1}/work", lower.join(":"), temp.path().display());
    let merged = temp.path().join("merged");
    let script = format!("mount -t overlay overlay -o {options} {0} && cd {0} && {script}", merged.display());
    let output =
        Command::new("unshare").args(["--user", "--map-root-user", "--mount", "sh", "-ec", &script]).output().unwrap();
    // The work directory has no permissions.
    let _ =
        std::fs::set_permissions(temp.path().join("work/work"), std::os::unix::fs::PermissionsExt::from_mode(0o700));
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

/// Promise (Images): Under overlayfs, the layers of an image show what its whiteouts leave.
#[test]
fn whiteouts_apply_in_an_overlay_mount() {
    let fixture = Fixture::new();
    let below = layer(&[
        (DIRECTORY, "./", "", 0o755, b""),
        (FILE, "gone", "", 0o644, b"x"),
        (FILE, "kept", "", 0o644, b"old"),
        (DIRECTORY, "emptied/", "", 0o755, b""),
        (FILE, "emptied/old", "", 0o644, b"x"),
        (DIRECTORY, "again/", "", 0o755, b""),
        (FILE, "again/old", "", 0o644, b"x"),
        (DIRECTORY, "tree/", "", 0o755, b""),
        (FILE, "tree/deep", "", 0o644, b"x"),
        (DIRECTORY, "both/", "", 0o755, b""),
        (FILE, "both/below", "", 0o644, b"x"),
    ]);
    let above = layer(&[
        (FILE, ".wh.gone", "", 0o644, b""),
        (FILE, "emptied/.wh..wh..opq", "", 0o644, b""),
        (FILE, "emptied/new", "", 0o644, b"x"),
        (FILE, ".wh.again", "", 0o644, b""),
        (FILE, "again/new", "", 0o644, b"x"),
        (FILE, ".wh.tree", "", 0o644, b""),
        (FILE, "both/above", "", 0o644, b"x"),
        (FILE, "kept", "", 0o644, b"new"),
    ]);
    fixture.store.load(layout(&[(below, gzip), (above, gzip)]).path(), None, &mut |_| ()).unwrap();
    let found = fixture.store.resolve("test:1").unwrap();
    let script = "find . | sort | tr '\\n' ' '; cat kept; rm -r both; echo x > made; find . -name made";
    match inside(&found.layers, script) {
        Ok(text) => assert_eq!(
            text,
            ". ./again ./again/new ./both ./both/above ./both/below ./emptied ./emptied/new ./kept new./made\n"
        ),
        Err(error) if error.contains("unshare") => println!("SKIP whiteouts_apply_in_an_overlay_mount: {error}"),
        Err(error) => panic!("{error}"),
    }
    assert!(found.layers[1].join("both/above").exists());
}
