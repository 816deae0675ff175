//! Mounts as named on the command line.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use cofferdam::{
    Access, ByteSize, DirectoryId, Error, ErrorKind, Mount, MountAccess, MountSource, MountTarget, Result, SpecBuilder,
};
use cofferdam_linux::named::{NamedPath, UntrustedLink};

use super::{own, reason};
use crate::args::MountArgs;

/// Adds the mounts of the options to a spec.
pub fn add(mut builder: SpecBuilder, args: &MountArgs) -> Result<SpecBuilder> {
    for text in &args.mount {
        let (named, target, access) = split(text)?;
        let (path, id) = host_path(named, access)?;
        let source = MountSource::HostPath { path: path.clone(), access };
        builder = builder.directory(path, id).mount(Mount { target, source });
    }
    for text in &args.tmpfs {
        let (target, size) = text.rsplit_once(':').ok_or_else(|| {
            Error::invalid("run", format!("--tmpfs '{text}' has no size"))
                .with_remedy("write GUEST:SIZE, such as /scratch:64M")
        })?;
        let size: ByteSize =
            size.parse().map_err(|error: String| Error::invalid("run", format!("--tmpfs '{text}': {error}")))?;
        builder = builder.mount(Mount { target: MountTarget::new(target)?, source: MountSource::Tmpfs { size } });
    }
    Ok(builder)
}

/// Splits `HOST:GUEST[:ro|rw|cow]`.
fn split(text: &str) -> Result<(&str, MountTarget, MountAccess)> {
    let (rest, access) = match text.rsplit_once(':') {
        Some((rest, "ro")) => (rest, MountAccess::ReadOnly),
        Some((rest, "rw")) => (rest, MountAccess::ReadWrite),
        Some((rest, "cow")) => (rest, MountAccess::CopyOnWrite),
        _ => (text, MountAccess::ReadOnly),
    };
    match rest.rsplit_once(":/") {
        Some((host, _)) if !host.is_empty() => Ok((host, MountTarget::new(&rest[host.len() + 1..])?, access)),
        _ => Err(Error::invalid(
            "run",
            format!("--mount '{text}' does not name a host path and an absolute path inside"),
        )
        .with_remedy("write HOST:GUEST, HOST:GUEST:rw or HOST:GUEST:cow, such as ./data:/data")),
    }
}

/// Opens a host path. Returns the path without links, and the identity of the file. The file stays open until this
/// process exits, so that no other file gets its inode number.
fn host_path(named: &str, access: MountAccess) -> Result<(PathBuf, DirectoryId)> {
    let bad = |why: String| {
        Error::invalid("run", format!("--mount '{named}' {why}")).with_remedy("use a directory or file that exists")
    };
    let failed = |error: std::io::Error| match UntrustedLink::of(&error) {
        Some(link) => Error::new(ErrorKind::PathEscape, "run", format!("--mount '{named}' cannot be used: {link}"))
            .with_remedy(UntrustedLink::REMEDY),
        None => bad(format!("cannot be used: {}", reason(&error))),
    };
    let opened = NamedPath::open(Path::new(named)).map_err(failed)?;
    let (path, id) =
        (opened.path().to_owned(), DirectoryId { device: opened.stat().st_dev, inode: opened.stat().st_ino });
    let to_host = match access {
        MountAccess::ReadWrite => Access::ReadWrite,
        MountAccess::ReadOnly | MountAccess::CopyOnWrite => Access::ReadOnly,
    };
    own::check("--mount", named, &path, to_host)?;
    std::mem::forget(OwnedFd::from(opened));
    Ok((path, id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_names_host_target_and_access() {
        let read =
            |text| split(text).map(|(host, target, access)| (host.to_owned(), String::from(target), access)).ok();
        let expect = |host: &str, target: &str, access| Some((host.to_owned(), target.to_owned(), access));
        assert_eq!(read("./d:/data"), expect("./d", "/data", MountAccess::ReadOnly));
        assert_eq!(read("/a:b:/data/x:rw"), expect("/a:b", "/data/x", MountAccess::ReadWrite));
        assert_eq!(read("/a:/ro:cow"), expect("/a", "/ro", MountAccess::CopyOnWrite));
        for bad in ["", "/a", "/a:b", ":/data", "/a:ro", "/a:/data/..", "/a:/proc/x:ro", "/a:/b:cwo"] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }
}
