//! Paths inside the root file system, as bytes. Pure, because packages may be hostile.

/// Directories that are merged into `/usr`: a package's `/bin/x` becomes `/usr/bin/x`.
const MERGED: &[&str] = &["bin", "lib", "lib32", "lib64", "libo32", "libx32", "sbin"];

/// Documentation, translations, and files that only package builders read.
const LEFT_OUT: &[&[u8]] = &[
    b"usr/share/bug",
    b"usr/share/doc-base",
    b"usr/share/groff",
    b"usr/share/info",
    b"usr/share/lintian",
    b"usr/share/linda",
    b"usr/share/locale",
    b"usr/share/man",
    b"usr/share/menu",
];
const DOC: &[u8] = b"usr/share/doc";

/// The maximum length of a path and of a path component on Linux.
const MAX_PATH: usize = 4095;
const MAX_NAME: usize = 255;

/// A path relative to the root: no leading slash, no empty, `.` or `..` component. The root itself is empty.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct GuestPath(Vec<u8>);

impl GuestPath {
    /// Parses a name in an archive. Returns the reason if it is invalid.
    pub(crate) fn parse(raw: &[u8]) -> Result<Self, &'static str> {
        if raw.is_empty() {
            return Err("a name is empty");
        }
        if raw[0] == b'/' {
            return Err("a name is absolute");
        }
        if raw.len() > MAX_PATH {
            return Err("a name is longer than Linux allows");
        }
        if raw.contains(&0) {
            return Err("a name contains a zero byte");
        }
        let mut parts: Vec<&[u8]> = Vec::new();
        for part in raw.split(|&byte| byte == b'/') {
            match part {
                b"" | b"." => {}
                b".." => return Err("a name climbs out of its directory"),
                part if part.len() > MAX_NAME => return Err("a component of a name is longer than Linux allows"),
                // In a layer of a container image, it would hide another file.
                part if part.starts_with(b".wh.") => return Err("a name means 'removed' in container images"),
                part => parts.push(part),
            }
        }
        Ok(Self(parts.join(&b'/')))
    }

    /// Creates a path from a constant of this crate.
    pub(crate) fn ours(path: &str) -> Self {
        Self(path.as_bytes().to_vec())
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    pub(crate) fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    fn parts(&self) -> impl Iterator<Item = &[u8]> {
        self.0.split(|&byte| byte == b'/').filter(|part| !part.is_empty())
    }

    /// Returns true if the path is one of the directories that became links.
    pub(crate) fn is_merged(&self) -> bool {
        MERGED.iter().any(|name| name.as_bytes() == self.0)
    }

    /// Returns the path below `/usr` if its directory is merged, such as `/bin` or `/lib`.
    pub(crate) fn merged(self) -> Self {
        let first = self.parts().next().unwrap_or_default();
        if MERGED.iter().any(|name| name.as_bytes() == first) {
            return Self([b"usr/", &*self.0].concat());
        }
        self
    }

    /// Returns the parent directories, from the top, without the root.
    pub(crate) fn parents(&self) -> impl Iterator<Item = Self> {
        let slashes = self.0.iter().enumerate().filter(|(_, byte)| **byte == b'/');
        slashes.map(|(at, _)| Self(self.0[..at].to_vec()))
    }

    /// Returns true if the path is left out of the root file system.
    pub(crate) fn is_left_out(&self, is_directory: bool, is_symlink: bool) -> bool {
        if LEFT_OUT.iter().any(|directory| self.is_within(directory)) {
            return true;
        }
        if !self.is_within(DOC) {
            return false;
        }
        // `usr/share/doc/PACKAGE` and the license in it stay.
        match self.parts().count() {
            0..=3 => false,
            4 => !(is_directory || is_symlink),
            5 => is_directory || !self.0.ends_with(b"/copyright"),
            _ => true,
        }
    }

    pub(crate) fn is_within(&self, directory: &[u8]) -> bool {
        self.0.strip_prefix(directory).is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
    }

    /// Returns true if a symbolic link at this path with this target leads above the root.
    pub(crate) fn climbs_out(&self, target: &[u8]) -> bool {
        let mut depth = if target.first() == Some(&b'/') { 0 } else { self.parts().count().saturating_sub(1) };
        for part in target.split(|&byte| byte == b'/') {
            match part {
                b"" | b"." => {}
                b".." if depth == 0 => return true,
                b".." => depth -= 1,
                _ => depth += 1,
            }
        }
        false
    }
}

impl std::fmt::Display for GuestPath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "/{}", self.0.escape_ascii())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn path(text: &str) -> GuestPath {
        GuestPath::parse(text.as_bytes()).expect(text)
    }

    #[test]
    fn names_that_lead_elsewhere_are_refused() {
        for bad in ["", "/etc/passwd", "../x", "./a/../b", "a/..", "a\0b", "usr/.wh.bin", "a/.wh..wh..opq"] {
            assert!(GuestPath::parse(bad.as_bytes()).is_err(), "{bad}");
        }
        assert!(GuestPath::parse(&[b'x'; 256]).is_err());
        assert!(GuestPath::parse("x/".repeat(2100).as_bytes()).is_err());
        for (raw, clean) in [("./", ""), ("./usr//bin/./sh", "usr/bin/sh"), ("a/", "a"), ("a/...", "a/...")] {
            assert_eq!(path(raw).as_bytes(), clean.as_bytes());
        }
    }

    #[test]
    fn programs_and_libraries_move_into_usr() {
        for (from, to) in [
            ("bin", "usr/bin"),
            ("bin/sh", "usr/bin/sh"),
            ("lib64/ld.so", "usr/lib64/ld.so"),
            ("binary/x", "binary/x"),
            ("usr/bin/x", "usr/bin/x"),
        ] {
            assert_eq!(path(from).merged(), path(to));
        }
    }

    #[test]
    fn documentation_is_left_out_and_licences_are_kept() {
        for (name, directory, symlink, left_out) in [
            ("usr/share/doc", true, false, false),
            ("usr/share/doc/x", true, false, false),
            ("usr/share/doc/x", false, true, false),
            ("usr/share/doc/x", false, false, true),
            ("usr/share/doc/x/copyright", false, false, false),
            ("usr/share/doc/x/changelog.gz", false, false, true),
            ("usr/share/doc/x/y", true, false, true),
            ("usr/share/doc/x/y/copyright", false, false, true),
            ("usr/share/man", true, false, true),
            ("usr/share/man/man1/x.gz", false, false, true),
            ("usr/share/manual", false, false, false),
            ("usr/lib/locale/C.utf8/LC_CTYPE", false, false, false),
        ] {
            assert_eq!(path(name).is_left_out(directory, symlink), left_out, "{name}");
        }
    }

    #[test]
    fn links_that_climb_above_the_root_are_seen() {
        for (at, target, climbs) in [
            ("usr/bin/x", "../../etc/x", false),
            ("usr/bin/x", "../../../etc/x", true),
            ("usr/bin/x", "/etc/x", false),
            ("usr/bin/x", "/../x", true),
            ("x", "..", true),
            ("x", "a/../..", true),
        ] {
            assert_eq!(path(at).climbs_out(target.as_bytes()), climbs, "{at} -> {target}");
        }
    }

    proptest! {
        #[test]
        fn accepted_paths_stay_inside(raw in proptest::collection::vec(any::<u8>(), 0..60)) {
            if let Ok(path) = GuestPath::parse(&raw) {
                let path = path.merged();
                prop_assert!(path.parts().all(|part| ![&b""[..], b".", b".."].contains(&part) && !part.contains(&0)));
                prop_assert!(!path.as_bytes().starts_with(b"/") && !path.as_bytes().ends_with(b"/"));
                prop_assert_eq!(path.parents().count(), path.parts().count().saturating_sub(1));
            }
        }

        #[test]
        fn dots_and_slashes_change_nothing(parts in proptest::collection::vec("[a-z]{1,8}|\\.|", 1..8)) {
            let plain: Vec<&str> = parts.iter().map(String::as_str).filter(|part| !["", "."].contains(part)).collect();
            let found = GuestPath::parse(format!("./{}", parts.join("/")).as_bytes()).expect("good");
            prop_assert_eq!(found.as_bytes().to_vec(), plain.join("/").into_bytes());
        }
    }
}
