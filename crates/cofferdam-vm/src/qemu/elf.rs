//! As much of ELF as says which symbols a program wants of which library, and as it takes to write a library that has them and
//! nothing else. For x86-64. The program is the host's own; whatever in it is not understood gives no answer.

/// A symbol that a program wants of a library.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Symbol<'a> {
    pub name: &'a str,
    pub version: Option<&'a str>,
}

/// A library that a program needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Needed<'a> {
    pub name: &'a str,
    /// Whether the program says of its symbols that they are this library's.
    versioned: bool,
    /// The program's symbols that say so.
    own: Vec<Wanted<'a>>,
    /// Symbols that do not say whose they are.
    open: Vec<Wanted<'a>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Wanted<'a> {
    symbol: Symbol<'a>,
    /// Data, which is read without being asked, has no stand-in.
    is_code: bool,
}

impl<'a> Needed<'a> {
    /// What the program wants of it. Where symbols have no versions, those that begin so are its own. None if any is not code,
    /// or if there is none.
    pub(crate) fn symbols(&self, begin: &str) -> Option<Vec<Symbol<'a>>> {
        let open = self.open.iter().filter(|wanted| !self.versioned && wanted.symbol.name.starts_with(begin));
        let all: Vec<Wanted<'a>> = self.own.iter().chain(open).copied().collect();
        let whole = !all.is_empty() && all.iter().all(|wanted| wanted.is_code);
        whole.then(|| all.iter().map(|wanted| wanted.symbol).collect())
    }
}

const SHT_DYNAMIC: u32 = 6;
const SHT_DYNSYM: u32 = 11;
const SHT_VERNEED: u32 = 0x6fff_fffe;
const SHT_VERSYM: u32 = 0x6fff_ffff;
const DT_NEEDED: u64 = 1;
const SYMBOL: usize = 24;
/// The version of a symbol, without the mark of one that is hidden.
const VERSION: u16 = 0x7fff;
const ET_DYN: u16 = 3;
const X86_64: u16 = 62;

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at.checked_add(2)?)?.try_into().ok()?))
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

fn long(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at.checked_add(8)?)?.try_into().ok()?))
}

/// What ends with a NUL in a table of texts.
fn text(table: &[u8], at: u32) -> Option<&str> {
    let rest = table.get(usize::try_from(at).ok()?..)?;
    let end = rest.iter().position(|&byte| byte == 0)?;
    std::str::from_utf8(&rest[..end]).ok()
}

/// A section's contents, and the number of the one that its texts are in.
#[derive(Clone, Copy)]
struct Section<'a> {
    kind: u32,
    bytes: &'a [u8],
    link: u32,
}

fn sections(file: &[u8]) -> Option<Vec<Section<'_>>> {
    const CLASS_64_LITTLE: &[u8] = b"\x7fELF\x02\x01";
    if !file.starts_with(CLASS_64_LITTLE) || half(file, 18)? != X86_64 || half(file, 58)? != 64 {
        return None;
    }
    let (table, count) = (usize::try_from(long(file, 40)?).ok()?, usize::from(half(file, 60)?));
    let all = (0..count).map(|index| {
        let header = file.get(table.checked_add(index * 64)?..)?.get(..64)?;
        let (kind, link) = (word(header, 4)?, word(header, 40)?);
        let (begin, size) = (usize::try_from(long(header, 24)?).ok()?, usize::try_from(long(header, 32)?).ok()?);
        // Those without contents have an offset all the same.
        let bytes = if kind == 8 { &[][..] } else { file.get(begin..begin.checked_add(size)?)? };
        Some(Section { kind, bytes, link })
    });
    all.collect()
}

/// Libraries that a program needs, with the symbols that it wants of them.
pub(crate) fn needed(file: &[u8]) -> Option<Vec<Needed<'_>>> {
    let sections = sections(file)?;
    let find = |kind: u32| {
        let section = sections.iter().find(|section| section.kind == kind)?;
        Some((section.bytes, sections.get(usize::try_from(section.link).ok()?)?.bytes))
    };
    let (dynamic, names) = find(SHT_DYNAMIC)?;
    let mut all = Vec::new();
    for entry in dynamic.chunks_exact(16).filter(|entry| long(entry, 0) == Some(DT_NEEDED)) {
        let name = text(names, u32::try_from(long(entry, 8)?).ok()?)?;
        all.push(Needed { name, versioned: false, own: Vec::new(), open: Vec::new() });
    }
    let versions = match find(SHT_VERNEED) {
        Some((versions, names)) => versions_of(versions, names)?,
        None => Vec::new(),
    };
    for needed in &mut all {
        needed.versioned = versions.iter().any(|version| version.library == needed.name);
    }
    let (symbols, names) = find(SHT_DYNSYM)?;
    let marks = find(SHT_VERSYM).map_or(&[][..], |(marks, _)| marks);
    for (index, symbol) in symbols.chunks_exact(SYMBOL).enumerate().skip(1) {
        let (kind, section) = (symbol[4] & 15, half(symbol, 6)?);
        if section != 0 {
            continue;
        }
        let mark = half(marks, index * 2).unwrap_or_default() & VERSION;
        let version = versions.iter().find(|version| version.mark == mark);
        // No kind and functions.
        let is_code = matches!(kind, 0 | 2);
        let symbol = Symbol { name: text(names, word(symbol, 0)?)?, version: version.map(|version| version.name) };
        let wanted = Wanted { symbol, is_code };
        for needed in &mut all {
            match version {
                Some(version) if version.library == needed.name => needed.own.push(wanted),
                Some(_) => {}
                None => needed.open.push(wanted),
            }
        }
    }
    Some(all)
}

/// A version of a library's symbols, and the number by which the program's symbols name it.
struct Version<'a> {
    library: &'a str,
    name: &'a str,
    mark: u16,
}

fn versions_of<'a>(table: &[u8], names: &'a [u8]) -> Option<Vec<Version<'a>>> {
    let mut all = Vec::new();
    let mut at = 0usize;
    loop {
        let library = text(names, word(table, at.checked_add(4)?)?)?;
        let mut part = at.checked_add(usize::try_from(word(table, at + 8)?).ok()?)?;
        for _ in 0..half(table, at + 2)? {
            let (mark, name) = (half(table, part.checked_add(6)?)?, text(names, word(table, part + 8)?)?);
            all.push(Version { library, name, mark });
            part = part.checked_add(usize::try_from(word(table, part + 12)?).ok()?)?;
        }
        match usize::try_from(word(table, at + 12)?).ok()? {
            // Each is further on than the one before, so that this ends.
            0 => return Some(all),
            next => at = at.checked_add(next)?,
        }
    }
}

/// What names of versions are found by.
fn hash(name: &str) -> u32 {
    name.bytes().fold(0u32, |hash, byte| {
        let sum = (hash << 4).wrapping_add(u32::from(byte));
        let high = sum & 0xf000_0000;
        (sum ^ (high >> 24)) & !high
    })
}

/// A table of texts that is being made.
struct Texts(Vec<u8>);

impl Texts {
    fn add(&mut self, text: &str) -> Option<u32> {
        let at = u32::try_from(self.0.len()).ok()?;
        self.0.extend(text.bytes().chain([0]));
        Some(at)
    }
}

const HEADER: usize = 64;
const SEGMENT: usize = 56;
const SEGMENTS: usize = 3;

/// A library of this name with these symbols, none of which can be called or is any data. None if there are too many.
pub(crate) fn library(name: &str, symbols: &[Symbol<'_>]) -> Option<Vec<u8>> {
    let mut texts = Texts(vec![0]);
    let own = texts.add(name)?;
    let mut versions: Vec<&str> = symbols.iter().filter_map(|symbol| symbol.version).collect();
    versions.sort_unstable();
    versions.dedup();
    // The first symbol is none; the first version is the library's own.
    let mut table = vec![0; SYMBOL];
    let mut marks: Vec<u8> = vec![0; 2];
    for symbol in symbols {
        const GLOBAL_FUNCTION: u8 = 0x12;
        table.extend(texts.add(symbol.name)?.to_le_bytes());
        // In some section; at a place that is not the first, which would count as none. Nothing here can be executed.
        table.extend([GLOBAL_FUNCTION, 0, 1, 0]);
        table.extend((HEADER as u64).to_le_bytes());
        table.extend(0u64.to_le_bytes());
        let mark = match symbol.version {
            Some(wanted) => versions.iter().position(|version| *version == wanted)? + 2,
            None => 1,
        };
        marks.extend(u16::try_from(mark).ok()?.to_le_bytes());
    }
    let mut definitions = Vec::new();
    for (at, version) in std::iter::once(&name).chain(&versions).enumerate() {
        let (place, base) = (if at == 0 { own } else { texts.add(version)? }, u16::from(at == 0));
        for value in [1, base, u16::try_from(at).ok()? + 1, 1] {
            definitions.extend(value.to_le_bytes());
        }
        let next = if at == versions.len() { 0 } else { 28 };
        for value in [hash(version), 20, next, place, 0] {
            definitions.extend(u32::to_le_bytes(value));
        }
    }
    Some(assemble(own, &table, &marks, (&definitions, versions.len() + 1), &texts.0))
}

/// Puts the parts behind the headers, and says where each is.
fn assemble(own: u32, symbols: &[u8], marks: &[u8], versions: (&[u8], usize), texts: &[u8]) -> Vec<u8> {
    let count = symbols.len() / SYMBOL;
    // One list of all symbols.
    let chain = (1..=count as u32).map(|index| if index as usize == count { 0 } else { index });
    let chain = chain.enumerate().map(|(at, next)| if at == 0 { 0 } else { next });
    let first = u32::from(count > 1);
    let words: Vec<u32> = [1, count as u32, first].into_iter().chain(chain).collect();
    let index: Vec<u8> = words.into_iter().flat_map(u32::to_le_bytes).collect();
    let mut file = vec![0; HEADER + SEGMENTS * SEGMENT];
    let mut put = |bytes: &[u8]| {
        file.resize(file.len().next_multiple_of(8), 0);
        let at = file.len() as u64;
        file.extend(bytes);
        at
    };
    let (symbols_at, index_at) = (put(symbols), put(&index));
    let (marks_at, versions_at, texts_at) = (put(marks), put(versions.0), put(texts));
    let entries: [(u64, u64); 10] = [
        (14, own.into()),
        (4, index_at),
        (5, texts_at),
        (10, texts.len() as u64),
        (6, symbols_at),
        (11, SYMBOL as u64),
        (0x6fff_fff0, marks_at),
        (0x6fff_fffc, versions_at),
        (0x6fff_fffd, versions.1 as u64),
        (0, 0),
    ];
    let dynamic: Vec<u8> = entries.iter().flat_map(|(key, value)| [*key, *value]).flat_map(u64::to_le_bytes).collect();
    let dynamic_at = put(&dynamic);
    let length = file.len() as u64;
    const READ_WRITE: u32 = 6;
    const PAGE: u64 = 4096;
    // What is loaded, what the loader reads, and that stacks need not be executable.
    let segments = [(1u32, 0, length, PAGE), (2, dynamic_at, dynamic.len() as u64, 8), (0x6474_e551, 0, 0, 16)];
    let mut head = b"\x7fELF\x02\x01\x01".to_vec();
    head.resize(16, 0);
    for value in [ET_DYN, X86_64, 1, 0] {
        head.extend(value.to_le_bytes());
    }
    for value in [0, HEADER as u64, 0] {
        head.extend(value.to_le_bytes());
    }
    for value in [0, 0, HEADER as u16, SEGMENT as u16, SEGMENTS as u16, 0, 0, 0] {
        head.extend(value.to_le_bytes());
    }
    for (kind, at, length, align) in segments {
        head.extend(kind.to_le_bytes());
        head.extend(READ_WRITE.to_le_bytes());
        for value in [at, at, at, length, length, align] {
            head.extend(value.to_le_bytes());
        }
    }
    file[..head.len()].copy_from_slice(&head);
    file
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of<'a>(name: &'a str, version: Option<&'a str>) -> Symbol<'a> {
        Symbol { name, version }
    }

    #[test]
    fn nothing_in_a_library_that_stands_in_can_be_executed() {
        let file = library("libx.so.1", &[of("x_open", Some("X_1")), of("x_close", Some("X_2"))]).unwrap();
        assert_eq!((half(&file, 16), half(&file, 18), half(&file, 56)), (Some(ET_DYN), Some(X86_64), Some(3)));
        for segment in file[HEADER..].chunks_exact(SEGMENT).take(SEGMENTS) {
            assert_eq!(word(segment, 4).map(|rights| rights & 1), Some(0), "{segment:?}");
            let end = long(segment, 8).unwrap() + long(segment, 32).unwrap();
            assert!(end <= file.len() as u64);
        }
    }

    #[test]
    fn hashes_of_names_are_those_of_the_standard() {
        // As `readelf -V` shows none of them, from a library that a linker made.
        assert_eq!(hash("GLIBC_2.2.5"), 0x0969_1a75);
        assert_eq!(hash(""), 0);
    }

    #[test]
    fn only_code_of_a_librarys_own_is_stood_in_for() {
        let wanted = |name, is_code| Wanted { symbol: of(name, None), is_code };
        let needed = |versioned, own: &[Wanted<'static>], open: &[Wanted<'static>]| Needed {
            name: "libx.so.1",
            versioned,
            own: own.to_vec(),
            open: open.to_vec(),
        };
        let (call, other, data) = (wanted("x_open", true), wanted("y_open", true), wanted("x_table", false));
        let names = |needed: Needed<'static>| {
            needed.symbols("x_").map(|all| all.iter().map(|symbol| symbol.name).collect::<Vec<_>>())
        };
        assert_eq!(names(needed(false, &[], &[call, other])), Some(vec!["x_open"]));
        assert_eq!(names(needed(true, &[other], &[call])), Some(vec!["y_open"]));
        assert_eq!(names(needed(false, &[], &[call, data])), None);
        assert_eq!(names(needed(true, &[data], &[])), None);
        assert_eq!(names(needed(true, &[], &[call])), None);
    }

    #[test]
    fn what_is_cut_or_odd_gives_no_answer() {
        let program = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let found = needed(&program).unwrap();
        let libc = found.iter().find(|needed| needed.name.starts_with("libc.so"));
        if let Some(libc) = libc {
            assert!(libc.own.iter().any(|wanted| wanted.symbol.name == "read" && wanted.is_code), "{libc:?}");
        }
        for length in [0, 63, 64, 4096, program.len() / 2] {
            assert_eq!(needed(&program[..length]), None);
        }
        assert_eq!(needed(&vec![0x7f; 4096]), None);
    }
}
