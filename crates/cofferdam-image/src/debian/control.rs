//! Control files of packages, and dpkg's list of installed packages.

use super::error::{Result, bad_package};

/// The maximum size of a control file, in bytes.
pub(crate) const MAX_CONTROL: u64 = 1 << 20;

/// A control file, which is one paragraph.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Control {
    text: String,
}

impl Control {
    /// Parses a control file. `package` is for the error.
    pub(crate) fn parse(bytes: &[u8], package: &str) -> Result<Self> {
        let bad = |reason: &str| bad_package(package, format!("its control file {reason}"));
        let text = std::str::from_utf8(bytes).map_err(|_| bad("is not UTF-8"))?.trim_matches('\n');
        for line in text.lines() {
            let continues = line.starts_with([' ', '\t']) && !line.trim().is_empty();
            let names = line.split_once(':').is_some_and(|(name, _)| is_field_name(name));
            if !continues && !names {
                return Err(bad("is not one paragraph of fields"));
            }
        }
        let control = Self { text: text.to_owned() };
        if text.starts_with([' ', '\t'])
            || ["Package", "Version", "Architecture"].iter().any(|n| control.field(n).is_none())
        {
            return Err(bad("does not name the package, its version and its architecture"));
        }
        if control.field("Status").is_some() {
            return Err(bad("claims a status"));
        }
        Ok(control)
    }

    /// Returns the first line of a field.
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        let fields = self.text.lines().filter_map(|line| line.split_once(':'));
        fields.into_iter().find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
    }

    /// Returns the paragraph for `/var/lib/dpkg/status`. The status is "installed", because vulnerability scanners read
    /// only that.
    pub(crate) fn installed(&self) -> String {
        let mut paragraph = String::with_capacity(self.text.len() + 40);
        for line in self.text.lines() {
            paragraph.push_str(line);
            paragraph.push('\n');
            if line.split_once(':').is_some_and(|(name, _)| name.eq_ignore_ascii_case("Package")) {
                paragraph.push_str("Status: install ok installed\n");
            }
        }
        paragraph.push('\n');
        paragraph
    }
}

fn is_field_name(name: &str) -> bool {
    !name.is_empty() && !name.starts_with(['-', '#']) && name.bytes().all(|byte| byte.is_ascii_graphic())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TEXT: &str = "Package: x\nVersion: 1:2\nArchitecture: all\nDescription: short\n long\n .\n more\n";

    #[test]
    fn a_control_file_becomes_a_status() {
        let control = Control::parse(TEXT.as_bytes(), "x").expect("good");
        assert_eq!(control.field("version"), Some("1:2"));
        let expected = TEXT.replace("Package: x\n", "Package: x\nStatus: install ok installed\n") + "\n";
        assert_eq!(control.installed(), expected);
    }

    #[test]
    fn control_data_of_several_packages_is_refused() {
        for bad in [
            "",
            "Package: x\n",
            "\n \nPackage: x",
            "Package: x\nVersion: 1\nArchitecture: all\n\nPackage: y\n",
            "Package: x\nVersion: 1\nArchitecture: all\n \nPackage: y\n",
            "Package: x\nVersion: 1\nArchitecture: all\nStatus: deinstall ok config-files\n",
            "Package: x\nVersion: 1\nArchitecture: all\nnonsense\n",
            " Package: x\nVersion: 1\nArchitecture: all\n",
        ] {
            assert!(Control::parse(bad.as_bytes(), "x").is_err(), "{bad:?}");
        }
        assert!(Control::parse(b"Package: \xff\n", "x").is_err());
    }

    proptest! {
        #[test]
        fn anything_becomes_one_paragraph_or_is_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(control) = Control::parse(&bytes, "x") {
                prop_assert_eq!(control.installed().trim_end().matches("\n\n").count(), 0);
            }
        }

        #[test]
        fn fields_are_found(value in "[a-z][ -~]{0,30}[a-z]", more in "(\n [a-z]{1,9}){0,4}") {
            let text = format!("Package: p\nVersion: {value}\nArchitecture: all\nDescription: d{more}\n");
            let control = Control::parse(text.as_bytes(), "p").expect("good");
            prop_assert_eq!(control.field("Version"), Some(&*value));
            prop_assert_eq!(control.installed().matches("Status:").count(), 1 + value.matches("Status:").count());
        }
    }
}
