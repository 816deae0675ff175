//! Files that programs need and that maintainer scripts would have created.

use std::collections::BTreeMap;

use super::tree::Tree;

/// The directory of certificates in packages.
pub(crate) const CERTIFICATES: &[u8] = b"usr/share/ca-certificates";
pub(crate) const BUNDLE: &str = "etc/ssl/certs/ca-certificates.crt";

/// Links through `/etc/alternatives`: the name and its candidates, best first.
const ALTERNATIVES: &[(&str, &[&str])] = &[
    ("awk", &["gawk", "mawk", "original-awk"]),
    ("nawk", &["gawk", "mawk", "original-awk"]),
    ("which", &["which.gnu", "which.debianutils"]),
];
/// Candidates for `/bin/sh`, best first.
const SHELLS: &[&str] = &["dash", "bash"];
/// Directories of libraries in `/usr` that need a link in the root, if they exist.
const LIBRARIES: &[&str] = &["lib32", "lib64", "libo32", "libx32"];

/// Returns the links to create, with their targets, once all packages are merged.
pub(crate) fn links(tree: &Tree, has_certificates: bool) -> Vec<(String, String)> {
    let mut links = Vec::new();
    let mut link = |path: String, target: String| {
        if !tree.has(&path) {
            links.push((path, target));
        }
    };
    for name in LIBRARIES.iter().filter(|name| tree.has(&format!("usr/{name}"))) {
        link((*name).to_owned(), format!("usr/{name}"));
    }
    if let Some(shell) = SHELLS.iter().find(|shell| tree.has(&format!("usr/bin/{shell}"))) {
        link("usr/bin/sh".to_owned(), (*shell).to_owned());
    }
    for (name, choices) in ALTERNATIVES.iter().filter(|(name, _)| !tree.has(&format!("usr/bin/{name}"))) {
        if let Some(choice) = choices.iter().find(|choice| tree.has(&format!("usr/bin/{choice}"))) {
            link(format!("etc/alternatives/{name}"), format!("/usr/bin/{choice}"));
            link(format!("usr/bin/{name}"), format!("/etc/alternatives/{name}"));
        }
    }
    if has_certificates {
        // The first location that OpenSSL checks. The other one needs a link for each certificate, named by a hash.
        link("usr/lib/ssl/cert.pem".to_owned(), format!("/{BUNDLE}"));
    }
    links
}

/// Concatenates all certificates like `update-ca-certificates`: sorted, each with a final line end.
pub(crate) fn bundle(certificates: &BTreeMap<Vec<u8>, Vec<u8>>) -> Vec<u8> {
    let mut bundle = Vec::new();
    for certificate in certificates.values() {
        bundle.extend_from_slice(certificate);
        if !certificate.ends_with(b"\n") {
            bundle.push(b'\n');
        }
    }
    bundle
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::debian::path::GuestPath;
    use crate::debian::tree::Origin;

    fn links_with(files: &[&str]) -> Vec<String> {
        let mut tree = Tree::default();
        for file in files {
            tree.file(&GuestPath::parse(file.as_bytes()).expect("good"), Origin::Package(0)).expect("new");
        }
        links(&tree, false).into_iter().map(|(path, target)| format!("{path} {target}")).collect()
    }

    #[test]
    fn links_are_made_where_their_targets_are() {
        assert!(links_with(&[]).is_empty());
        assert!(links_with(&["usr/bin/dash", "usr/bin/sh"]).is_empty());
        assert_eq!(links_with(&["usr/bin/bash"]), ["usr/bin/sh bash"]);
        assert_eq!(links_with(&["usr/lib64/ld.so"]), ["lib64 usr/lib64"]);
        let awk = ["etc/alternatives/awk /usr/bin/gawk", "usr/bin/awk /etc/alternatives/awk"];
        assert_eq!(links_with(&["usr/bin/mawk", "usr/bin/gawk"])[..2], awk);
        assert!(links_with(&["usr/bin/mawk", "usr/bin/awk", "usr/bin/nawk"]).is_empty());
    }

    #[test]
    fn certificates_do_not_run_into_each_other() {
        let certificates = [("b", "B"), ("a", "A\n")].map(|(name, text)| (name.into(), text.into()));
        assert_eq!(bundle(&certificates.into()), b"A\nB\n");
    }
}
