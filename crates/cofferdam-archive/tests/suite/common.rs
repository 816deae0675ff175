//! A small VM, and helpers that save and restore it.

use std::fs::File;
use std::io::Cursor;
use std::ops::ControlFlow;
use std::os::unix::fs::{FileExt, MetadataExt};

use cofferdam_archive::{
    Base, Key, Limits, PAGE, Part, Progress, ReadOptions, Reader, Restored, Result, WriteOptions, Writer,
};

/// Continues, regardless of the progress.
pub fn on(_: Progress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// Creates an unnamed file.
pub fn blank() -> File {
    tempfile::tempfile().unwrap()
}

/// Creates a file with these bytes.
pub fn file_of(bytes: &[u8]) -> File {
    let file = blank();
    file.write_all_at(bytes, 0).unwrap();
    file
}

/// Reads a whole file.
pub fn contents(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; file.metadata().unwrap().len() as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

/// Returns the bytes that a file takes on the disk.
pub fn stored(file: &File) -> u64 {
    file.metadata().unwrap().blocks() * 512
}

/// Returns an incompressible page that is different for each number except zero.
pub fn page(number: u64) -> Vec<u8> {
    let mut state = number;
    let mut page = vec![0; PAGE];
    for word in page.chunks_exact_mut(8) {
        // The steps of splitmix64, which map zero to zero.
        state = state.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        word.copy_from_slice(&(mixed ^ (mixed >> 27)).to_le_bytes());
    }
    page
}

/// Returns pages by their numbers, one after the other.
pub fn pages(numbers: &[u64]) -> Vec<u8> {
    numbers.iter().flat_map(|number| page(*number)).collect()
}

pub fn key() -> Key {
    Key::new(&[0x5A; 32]).unwrap()
}

/// A VM with every kind of part.
pub struct Vm {
    pub manifest: Vec<u8>,
    pub devices: File,
    pub memory: File,
    pub disk: File,
    pub base: Option<Base>,
}

impl Vm {
    /// Creates a VM with a few pages of each kind.
    pub fn small() -> Self {
        Self {
            manifest: br#"{"cpu":"named"}"#.to_vec(),
            devices: file_of(b"the state of devices"),
            memory: file_of(&pages(&[0, 1, 1, 0, 2, 1, 2])),
            disk: file_of(&[pages(&[7, 0, 9, 3]), b"end".to_vec()].concat()),
            base: Some(Base::hashed(file_of(&pages(&[7, 8, 8, 0]))).unwrap()),
        }
    }

    pub fn save(&self, options: WriteOptions<'_>) -> Result<Vec<u8>> {
        let mut writer = Writer::new(options)?;
        writer.state("devices", &self.devices)?.memory("memory", &self.memory)?;
        writer.disk("disk", &self.disk, self.base.as_ref())?.json("manifest", &self.manifest)?;
        let mut bytes = Vec::new();
        let written = writer.write(&mut bytes, &mut on)?;
        assert_eq!(written.bytes, bytes.len() as u64);
        Ok(bytes)
    }

    pub fn plain(&self) -> Vec<u8> {
        self.save(WriteOptions::default()).unwrap()
    }

    pub fn encrypted(&self) -> Vec<u8> {
        self.save(WriteOptions { key: Some(&key()), ..WriteOptions::default() }).unwrap()
    }

    /// Returns the parts' contents, in the order of the archive.
    pub fn all(&self) -> Vec<Vec<u8>> {
        vec![self.manifest.clone(), contents(&self.devices), contents(&self.memory), contents(&self.disk)]
    }

    /// Returns new handles of the bases, for restoring.
    pub fn bases(&self) -> Vec<Base> {
        let again = |base: &Base, file: &File| Base::known(base.id(), file.try_clone().unwrap()).unwrap();
        self.base.iter().map(|base| again(base, &file_of(&pages(&[7, 8, 8, 0])))).collect()
    }
}

/// Restores to unnamed files. Returns the restored parts and every file that was passed.
pub fn restore(bytes: &[u8], key: Option<&Key>, bases: &[Base]) -> (Result<Restored>, Vec<File>) {
    let options = ReadOptions { key, limits: Limits::default() };
    let mut files = Vec::new();
    let mut targets = |_: &Part| {
        let file = blank();
        files.push(file.try_clone()?);
        Ok(file)
    };
    let restored =
        Reader::open(Cursor::new(bytes), &options).and_then(|reader| reader.restore(bases, &mut targets, &mut on));
    (restored, files)
}

/// Verifies without restoring.
pub fn verify(bytes: &[u8], key: Option<&Key>) -> Result<()> {
    let options = ReadOptions { key, limits: Limits::default() };
    Reader::open(Cursor::new(bytes), &options)?.verify(&mut on).map(|_| ())
}

/// Returns the restored contents, in the order of the archive.
pub fn all(restored: &Restored) -> Vec<Vec<u8>> {
    let documents = restored.documents.iter().map(|document| document.bytes.clone());
    documents.chain(restored.files.iter().map(|(_, file)| contents(file))).collect()
}
