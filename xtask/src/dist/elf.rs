//! The parts of an ELF file that decide which systems run it.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

/// Libraries in the package of the C library.
const OF_LIBC: &[&str] = &["libc.so", "libm.so", "libdl.so", "libpthread.so", "librt.so", "ld-linux"];
/// The unwinder's library, and Debian's package of it.
const UNWINDER: (&str, &str) = ("libgcc_s.so", "libgcc-s1");
const PT_LOAD: u64 = 1;
const PT_DYNAMIC: u64 = 2;
const PT_INTERP: u64 = 3;
const DT_NEEDED: u64 = 1;
const DT_STRTAB: u64 = 5;
const DT_STRSZ: u64 = 10;

/// A processor architecture, under the name that each packager has for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Architecture {
    /// Rust's and Python's name.
    pub name: &'static str,
    /// Debian's name.
    pub debian: &'static str,
    /// Node's name.
    pub node: &'static str,
}

const X86_64: Architecture = Architecture { name: "x86_64", debian: "amd64", node: "x64" };
const AARCH64: Architecture = Architecture { name: "aarch64", debian: "arm64", node: "arm64" };

/// The C library that a program needs of the system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Libc {
    /// None: the program is static.
    Static,
    /// glibc, of at least the version 2.`minor`.
    Glibc {
        /// The second part of the version.
        minor: u32,
        /// Debian's packages with the libraries, besides that of the C library.
        others: Vec<&'static str>,
    },
}

/// A program for Linux.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// The architecture that it runs on.
    pub architecture: Architecture,
    /// The C library that it needs.
    pub libc: Libc,
}

impl Program {
    /// Reads a program's file.
    pub fn read(path: &Path) -> Result<Self> {
        let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        Self::parse(&bytes).with_context(|| format!("cannot package {}", path.display()))
    }

    fn parse(bytes: &[u8]) -> Result<Self> {
        ensure!(bytes.starts_with(b"\x7fELF\x02\x01"), "it is not a 64-bit little-endian ELF file");
        let file = File(bytes);
        let architecture = match file.number(18, 2)? {
            62 => X86_64,
            183 => AARCH64,
            other => bail!("its architecture is unknown: ELF machine {other}"),
        };
        let segments = file.segments()?;
        if !segments.iter().any(|segment| segment.kind == PT_INTERP) {
            return Ok(Self { architecture, libc: Libc::Static });
        }
        Ok(Self { architecture, libc: file.libc(&segments)? })
    }
}

struct Segment {
    kind: u64,
    offset: u64,
    address: u64,
    size: u64,
}

struct File<'a>(&'a [u8]);

impl File<'_> {
    fn slice(&self, offset: u64, size: u64) -> Result<&[u8]> {
        let range = offset.checked_add(size).and_then(|end| Some(usize::try_from(offset).ok()?..end.try_into().ok()?));
        range.and_then(|range| self.0.get(range)).context("its headers point outside the file")
    }

    fn number(&self, offset: u64, size: u64) -> Result<u64> {
        Ok(self.slice(offset, size)?.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    fn segments(&self) -> Result<Vec<Segment>> {
        let (table, size, count) = (self.number(32, 8)?, self.number(54, 2)?, self.number(56, 2)?);
        let segment = |index| {
            let at = |field| table.saturating_add(index * size).saturating_add(field);
            Ok(Segment {
                kind: self.number(at(0), 4)?,
                offset: self.number(at(8), 8)?,
                address: self.number(at(16), 8)?,
                size: self.number(at(32), 8)?,
            })
        };
        (0..count).map(segment).collect()
    }

    /// Returns the C library of a dynamic program, from the strings of its dynamic section.
    fn libc(&self, segments: &[Segment]) -> Result<Libc> {
        let dynamic =
            segments.iter().find(|segment| segment.kind == PT_DYNAMIC).context("it has no dynamic section")?;
        let entries: Vec<(u64, u64)> = (0..dynamic.size / 16)
            .map(|index| {
                let at = dynamic.offset.saturating_add(index * 16);
                Ok((self.number(at, 8)?, self.number(at.saturating_add(8), 8)?))
            })
            .collect::<Result<_>>()?;
        let value = |tag| entries.iter().find(|entry| entry.0 == tag).map(|entry| entry.1);
        let (address, size) = value(DT_STRTAB).zip(value(DT_STRSZ)).context("it has no dynamic strings")?;
        let holds = |segment: &&Segment| {
            segment.kind == PT_LOAD
                && (segment.address..segment.address.saturating_add(segment.size)).contains(&address)
        };
        let load = segments.iter().find(holds).context("its dynamic strings are in no segment")?;
        let strings = self.slice(load.offset.saturating_add(address - load.address), size)?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let mut others = Vec::new();
        for (_, start) in entries.iter().filter(|entry| entry.0 == DT_NEEDED) {
            let rest = usize::try_from(*start).ok().and_then(|start| strings.get(start..));
            let name = text(rest.and_then(|rest| rest.split(|byte| *byte == 0).next()).unwrap_or_default());
            if name.starts_with(UNWINDER.0) {
                others.push(UNWINDER.1);
            } else if !OF_LIBC.iter().any(|known| name.starts_with(known)) {
                bail!("it needs the library '{name}', which is in no package that the Cofferdam package may depend on");
            }
        }
        let versions = strings.split(|byte| *byte == 0).filter_map(|name| {
            let version = text(name.strip_prefix(b"GLIBC_2.")?);
            version.split('.').next()?.parse().ok()
        });
        let minor = versions.max().context("it is dynamic, but not linked with glibc")?;
        Ok(Libc::Glibc { minor, others })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a file with a header and these program headers: kind, offset, address, size.
    fn elf(segments: &[[u64; 4]], rest: &[u8]) -> Vec<u8> {
        let mut bytes = b"\x7fELF\x02\x01".to_vec();
        bytes.resize(64, 0);
        bytes[18] = 62;
        bytes[32] = 64;
        bytes[54] = 56;
        bytes[56] = u8::try_from(segments.len()).unwrap();
        for [kind, offset, address, size] in segments {
            for number in [*kind, *offset, *address, 0, *size, 0, 0] {
                bytes.extend(number.to_le_bytes());
            }
        }
        bytes.extend(rest);
        bytes
    }

    /// Returns a dynamic program whose libraries are these.
    fn dynamic(strings: &[u8]) -> Vec<u8> {
        let start = 64 + 3 * 56;
        let size = u64::try_from(strings.len()).unwrap();
        let entries = [DT_NEEDED, 0, DT_STRTAB, 0x1000 + start + 64, DT_STRSZ, size, 0, 0];
        let mut rest: Vec<u8> = entries.iter().flat_map(|number| number.to_le_bytes()).collect();
        rest.extend(strings);
        elf(
            &[[PT_INTERP, 0, 0, 0], [PT_DYNAMIC, start, 0x1000 + start, 64], [PT_LOAD, 0, 0x1000, start + 64 + size]],
            &rest,
        )
    }

    #[test]
    fn a_program_without_an_interpreter_is_static() {
        let program = Program::parse(&elf(&[[PT_LOAD, 0, 0, 64]], b"")).unwrap();
        assert_eq!(program, Program { architecture: X86_64, libc: Libc::Static });
    }

    #[test]
    fn a_dynamic_program_needs_the_newest_version_that_it_names() {
        let program = Program::parse(&dynamic(b"libc.so.6\0GLIBC_2.2.5\0GLIBC_2.34\0GLIBC_2.9\0")).unwrap();
        assert_eq!(program.libc, Libc::Glibc { minor: 34, others: Vec::new() });
        let program = Program::parse(&dynamic(b"libgcc_s.so.1\0GLIBC_2.17\0")).unwrap();
        assert_eq!(program.libc, Libc::Glibc { minor: 17, others: vec!["libgcc-s1"] });
    }

    #[test]
    fn programs_that_no_package_can_serve_are_refused() {
        for (bytes, why) in [
            (dynamic(b"libssl.so.3\0GLIBC_2.34\0"), "libssl.so.3"),
            (dynamic(b"libc.so\0"), "not linked with glibc"),
            (b"#!/bin/sh\n".to_vec(), "not a 64-bit"),
            (elf(&[[PT_INTERP, 0, 0, 0], [PT_DYNAMIC, 1 << 40, 0, 64]], b""), "outside the file"),
        ] {
            let error = Program::parse(&bytes).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
