//! Cases: mounts of host directories, host files, memory and disks.

use std::path::{Path, PathBuf};

use cofferdam_contract::{
    Access, ByteSize, Error, ErrorKind, Limits, Mount, MountAccess, MountSource, MountTarget, Protection,
    ProtectionState, Spec,
};
use tempfile::TempDir;

use super::limits::stored;
use crate::GuestProgram as P;
use crate::case::{Context, Outcome, Stop, Verdict, check, check_eq, expect_error, path, text};

const MIB: u64 = 1 << 20;

/// Returns a host directory with a file, which a spec mounts at `/mounted`.
fn mounted(cx: &Context, access: MountAccess) -> Outcome<(TempDir, Spec)> {
    let directory = tempfile::tempdir()?;
    std::fs::write(directory.path().join("given"), "by the host")?;
    open_to_all(directory.path(), 0o777)?;
    open_to_all(&directory.path().join("given"), 0o666)?;
    let path = directory.path().canonicalize()?;
    let spec = unlimited(cx)?.to_builder().mount(mount("/mounted", MountSource::HostPath { path, access })?).build()?;
    Ok((directory, spec))
}

/// Lets every user change a file or directory: the user of a sandbox may be any.
fn open_to_all(path: &Path, mode: u32) -> std::io::Result<()> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
    }
    #[cfg(not(unix))]
    let _ = (path, mode);
    Ok(())
}

/// Returns a spec without a disk limit, which no writable host directory has.
fn unlimited(cx: &Context) -> Outcome<Spec> {
    let spec = cx.spec().build()?;
    Ok(spec.to_builder().limits(Limits { disk: None, ..spec.limits().clone() }).build()?)
}

fn mount(target: &str, source: MountSource) -> Result<Mount, Error> {
    Ok(Mount { target: MountTarget::new(target)?, source })
}

fn read(path: &str) -> P {
    P::ReadFile { path: path.to_owned() }
}

fn write(path: &str, contents: &str) -> P {
    P::WriteFile { path: path.to_owned(), contents: contents.to_owned() }
}

pub(super) async fn read_only(cx: Context) -> Verdict {
    let (directory, spec) = mounted(&cx, MountAccess::ReadOnly)?;
    let sandbox = cx.sandbox_of(spec).await?;
    check_eq!(text(&cx.exec_ok(&sandbox, read("/mounted/given")).await?.stdout), "by the host", "what the guest read");
    let directory_made = P::MakeDirectory { path: "/mounted/new".into() };
    for program in [write("/mounted/new", "x"), write("/mounted/given", "x"), directory_made] {
        let name = program.name();
        check!(cx.exec(&sandbox, program).await?.exit.code != 0, "{name} succeeded in a read-only mount");
    }
    check_eq!(std::fs::read_to_string(directory.path().join("given"))?, "by the host", "the host's file");
    check_eq!(std::fs::read_dir(directory.path())?.count(), 1, "entries of the host's directory");
    let state = sandbox.posture().get(Protection::Workspace).map(|row| row.state);
    check_eq!(state, Some(ProtectionState::Enforced), "the row for workspace and mounts of the posture");
    Ok(())
}

pub(super) async fn read_write(cx: Context) -> Verdict {
    let (directory, spec) = mounted(&cx, MountAccess::ReadWrite)?;
    let sandbox = cx.sandbox_of(spec).await?;
    cx.exec_ok(&sandbox, P::Sequence(vec![write("/mounted/given", "changed"), write("/mounted/new", "made")])).await?;
    sandbox.close().await?;
    check_eq!(std::fs::read_to_string(directory.path().join("given"))?, "changed", "the host's file");
    check_eq!(std::fs::read_to_string(directory.path().join("new"))?, "made", "the new file");
    Ok(())
}

pub(super) async fn writable_has_no_size(cx: Context) -> Verdict {
    let (_directory, spec) = mounted(&cx, MountAccess::ReadWrite)?;
    let limits = Limits { disk: Some(ByteSize::from_bytes(64 * MIB)), ..spec.limits().clone() };
    let refused = cx.backend().create(spec.to_builder().limits(limits).build()?).await.map(|sandbox| cx.keep(sandbox));
    expect_error(refused, &[ErrorKind::WeakerThanRequired], "a writable mount with a disk limit")
}

pub(super) async fn copy_on_write(cx: Context) -> Verdict {
    let (directory, spec) = mounted(&cx, MountAccess::CopyOnWrite)?;
    let limits = Limits { disk: Some(ByteSize::from_bytes(16 * MIB)), ..spec.limits().clone() };
    let sandbox = cx.sandbox_of(spec.to_builder().limits(limits).build()?).await?;
    let program =
        P::Sequence(vec![write("/mounted/given", "changed"), write("/mounted/new", "made"), read("/mounted/given")]);
    check_eq!(text(&cx.exec_ok(&sandbox, program).await?.stdout), "changed", "what the guest read");
    let done = cx.exec(&sandbox, P::FillDisk { path: "/mounted/big".into(), bytes: 32 * MIB }).await?;
    check!(stored(&done)? <= 16 * MIB, "more was stored than the disk limit allows");
    check_eq!(std::fs::read_to_string(directory.path().join("given"))?, "by the host", "the host's file");
    check_eq!(std::fs::read_dir(directory.path())?.count(), 1, "entries of the host's directory");
    Ok(())
}

pub(super) async fn file(cx: Context) -> Verdict {
    let (directory, _) = mounted(&cx, MountAccess::ReadOnly)?;
    let path = directory.path().canonicalize()?.join("given");
    let at = |target: &str, access| mount(target, MountSource::HostPath { path: path.clone(), access });
    let spec = unlimited(&cx)?
        .to_builder()
        .mount(at("/config/read-only", MountAccess::ReadOnly)?)
        .mount(at("/config/writable", MountAccess::ReadWrite)?)
        .build()?;
    let sandbox = cx.sandbox_of(spec).await?;
    let program = P::Sequence(vec![read("/config/read-only"), write("/config/writable", "changed")]);
    check_eq!(text(&cx.exec_ok(&sandbox, program).await?.stdout), "by the host", "what the guest read");
    check!(cx.exec(&sandbox, write("/config/read-only", "x")).await?.exit.code != 0, "a read-only file was written");
    check_eq!(std::fs::read_to_string(&path)?, "changed", "the host's file");
    Ok(())
}

pub(super) async fn tmpfs(cx: Context) -> Verdict {
    let size = ByteSize::from_bytes(4 * MIB);
    let spec = cx
        .spec()
        .mount(mount("/scratch/small", MountSource::Tmpfs { size })?)
        .mount(mount("/scratch/other", MountSource::Tmpfs { size })?)
        .build()?;
    let sandbox = cx.sandbox_of(spec).await?;
    let done = cx.exec(&sandbox, P::FillDisk { path: "/scratch/small/big".into(), bytes: 8 * MIB }).await?;
    let stored = stored(&done)?;
    check!(stored <= 4 * MIB, "{stored} bytes stored in a tmpfs of 4 MiB");
    check!(stored >= MIB, "only {stored} bytes stored in a tmpfs of 4 MiB");
    cx.exec_ok(&sandbox, P::Sequence(vec![write("/scratch/other/file", "x"), read("/scratch/other/file")])).await?;
    Ok(())
}

pub(super) async fn nested(cx: Context) -> Verdict {
    let (directory, spec) = mounted(&cx, MountAccess::ReadOnly)?;
    std::fs::create_dir(directory.path().join("inner"))?;
    let size = ByteSize::from_bytes(MIB);
    // The order of the spec does not matter.
    let mut builder = spec.to_builder().mount(mount("/mounted/inner", MountSource::Tmpfs { size })?);
    builder = builder.mount(mount("/mounted/inner/deeper", MountSource::Tmpfs { size })?);
    let sandbox = cx.sandbox_of(builder.build()?).await?;
    let program = P::Sequence(vec![write("/mounted/inner/deeper/file", "x"), read("/mounted/given")]);
    check_eq!(text(&cx.exec_ok(&sandbox, program).await?.stdout), "by the host", "what the guest read");
    check!(cx.exec(&sandbox, write("/mounted/new", "x")).await?.exit.code != 0, "the outer mount was written");
    check_eq!(std::fs::read_dir(directory.path().join("inner"))?.count(), 0, "entries of the host's directory");
    Ok(())
}

pub(super) async fn in_the_workspace(cx: Context) -> Verdict {
    let size = ByteSize::from_bytes(MIB);
    let spec = cx.spec().mount(mount("/workspace/cache", MountSource::Tmpfs { size })?).build()?;
    let sandbox = cx.sandbox_of(spec).await?;
    cx.exec_ok(&sandbox, write("/workspace/cache/kept", "kept")).await?;
    cx.exec_ok(&sandbox, P::MakeDirectory { path: "empty".into() }).await?;
    let (empty, cache) = (path("empty")?, path("cache")?);
    // The directory that is mounted over may belong to another user.
    let refused = [ErrorKind::Conflict, ErrorKind::Denied];
    expect_error(sandbox.rename(&empty, &cache).await, &refused, "replacing a mount")?;
    expect_error(sandbox.rename(&cache, &path("new")?).await, &refused, "renaming a mount")?;
    let invalid = [ErrorKind::InvalidInput];
    expect_error(sandbox.rename(&path("")?, &path("new")?).await, &invalid, "renaming the workspace with a mount")?;
    let read = cx.exec_ok(&sandbox, read("/workspace/cache/kept")).await?;
    check_eq!(text(&read.stdout), "kept", "what the guest read in the mount");
    Ok(())
}

pub(super) async fn disk(cx: Context) -> Verdict {
    let size = 32 * MIB;
    let (_directory, path) = empty_disk(size)?;
    let spec = |access| -> Outcome<Spec> {
        let source = MountSource::Disk { path: path.clone(), access };
        Ok(cx.spec().mount(mount("/mounted", source)?).build()?)
    };
    let sandbox = cx.sandbox_of(spec(Access::ReadWrite)?).await?;
    cx.exec_ok(&sandbox, write("/mounted/kept", "by the guest")).await?;
    let done = cx.exec(&sandbox, P::FillDisk { path: "/mounted/big".into(), bytes: 2 * size }).await?;
    let stored = stored(&done)?;
    check!(stored <= size, "{stored} bytes stored on a disk of {size} bytes");
    check!(stored >= size / 4, "only {stored} bytes stored on a disk of {size} bytes");
    sandbox.close().await?;
    let sandbox = cx.sandbox_of(spec(Access::ReadOnly)?).await?;
    check_eq!(text(&cx.exec_ok(&sandbox, read("/mounted/kept")).await?.stdout), "by the guest", "the kept file");
    for program in [write("/mounted/kept", "x"), write("/mounted/new", "x")] {
        check!(cx.exec(&sandbox, program).await?.exit.code != 0, "a disk that is mounted read-only was written");
    }
    Ok(())
}

pub(super) async fn disk_missing_or_special(cx: Context) -> Verdict {
    let (directory, disk) = empty_disk(32 * MIB)?;
    let not_a_disk = directory.path().join("text");
    std::fs::write(&not_a_disk, "no file system")?;
    for path in [directory.path().join("missing"), directory.path().to_owned(), not_a_disk, disk.join("below")] {
        let source = MountSource::Disk { path: path.clone(), access: Access::ReadWrite };
        let spec = cx.spec().mount(mount("/mounted", source)?).build()?;
        let created = cx.backend().create(spec).await.map(|sandbox| cx.keep(sandbox));
        check!(created.is_err(), "{} was mounted as a disk", path.display());
    }
    Ok(())
}

/// Creates an ext4 file system of this size in a file. Its files belong to user 1000. Skips the case if the host cannot.
fn empty_disk(size: u64) -> Outcome<(TempDir, PathBuf)> {
    let directory = tempfile::tempdir()?;
    let path = directory.path().canonicalize()?.join("disk");
    std::fs::File::create_new(&path)?.set_len(size)?;
    let formatted = ["mkfs.ext4", "/usr/sbin/mkfs.ext4", "/sbin/mkfs.ext4"].iter().find_map(|program| {
        let mut command = std::process::Command::new(program);
        command.args(["-q", "-F", "-m", "0", "-E", "root_owner=1000:1000"]).arg(&path);
        command.output().ok()
    });
    match formatted {
        None => Err(Stop::skip("no mkfs.ext4 (package e2fsprogs) to create a disk with")),
        Some(formatted) if formatted.status.success() => Ok((directory, path)),
        Some(formatted) => Err(Stop::fail(format!("mkfs.ext4: {}", text(&formatted.stderr)))),
    }
}

pub(super) async fn missing_or_special(cx: Context) -> Verdict {
    let directory = tempfile::tempdir()?;
    let path = directory.path().canonicalize()?;
    let of = |path: std::path::PathBuf| -> Outcome<Spec> {
        let source = MountSource::HostPath { path, access: MountAccess::ReadOnly };
        Ok(unlimited(&cx)?.to_builder().mount(mount("/mounted", source)?).build()?)
    };
    let missing = cx.backend().create(of(path.join("missing"))?).await.map(|sandbox| cx.keep(sandbox));
    expect_error(missing, &[ErrorKind::NotFound], "a host path that does not exist")?;
    #[cfg(unix)]
    {
        let socket = path.join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket)?;
        std::os::unix::fs::symlink(&path, path.join("link"))?;
        let (denied, escape) = ([ErrorKind::Denied], [ErrorKind::PathEscape]);
        for (path, kinds) in [(socket, &denied), ("/dev/null".into(), &denied), (path.join("link"), &escape)] {
            let shown = path.display().to_string();
            let created = cx.backend().create(of(path)?).await.map(|sandbox| cx.keep(sandbox));
            expect_error(created, kinds, &shown)?;
        }
    }
    Ok(())
}
