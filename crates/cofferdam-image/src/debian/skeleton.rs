//! The content of every root file system, independent of its packages.

/// Directories and their permissions.
pub(crate) const DIRECTORIES: &[(&str, u32)] = &[
    ("code", 0o755),
    ("dev", 0o755),
    ("etc", 0o755),
    ("etc/alternatives", 0o755),
    ("home", 0o755),
    ("media", 0o755),
    ("mnt", 0o755),
    ("opt", 0o755),
    ("proc", 0o755),
    ("root", 0o700),
    ("run", 0o755),
    ("run/lock", 0o1777),
    ("srv", 0o755),
    ("sys", 0o755),
    ("tmp", 0o1777),
    ("usr", 0o755),
    ("usr/bin", 0o755),
    ("usr/lib", 0o755),
    ("usr/local", 0o755),
    ("usr/local/bin", 0o755),
    ("usr/local/lib", 0o755),
    ("usr/local/sbin", 0o755),
    ("usr/sbin", 0o755),
    ("var", 0o755),
    ("var/cache", 0o755),
    ("var/lib", 0o755),
    ("var/lib/dpkg", 0o755),
    ("var/lib/dpkg/info", 0o755),
    ("var/log", 0o755),
    ("var/tmp", 0o1777),
    // For a tmpfs, runc takes the mode of the directory below, whatever the engine asks for.
    ("workspace", 0o1777),
];

/// Links and their targets. They come first, so that they exist when later entries are unpacked.
pub(crate) const LINKS: &[(&str, &str)] =
    &[("bin", "usr/bin"), ("lib", "usr/lib"), ("sbin", "usr/sbin"), ("var/lock", "/run/lock"), ("var/run", "/run")];

/// Files that no package contains, because maintainer scripts create them.
pub(crate) const FILES: &[(&str, &str)] = &[
    ("etc/group", "root:x:0:\nmail:x:8:\nshadow:x:42:\nutmp:x:43:\nstaff:x:50:\nusers:x:100:\nnogroup:x:65534:\n"),
    ("etc/nsswitch.conf", "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\n"),
    ("etc/passwd", "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"),
];

/// Directories that may contain only directories: the kernel or a mount provides their content.
pub(crate) const EMPTY: &[&[u8]] = &[b"dev", b"proc", b"sys", b"workspace", b"code"];
