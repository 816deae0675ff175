//! Extraction of the uncompressed kernel from a Linux image, for VMMs that do not decompress kernels.
//!
//! The header of the boot protocol locates the payload, whose first bytes determine its compression. The result must be
//! an ELF file. Kernels come from packages and from users' files, so the uncompressed size is limited.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;

use crate::error::{Result, VmError, io};
use crate::sparse;

/// Maximum size of a kernel, before and after decompression.
const MAX_KERNEL: u64 = 256 << 20;
const ELF: &[u8] = b"\x7fELF";
const GZIP: &[u8] = b"\x1f\x8b";
const ZSTD: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];
/// The legacy format of LZ4: blocks preceded by their lengths.
const LZ4: &[u8] = &[0x02, 0x21, 0x4c, 0x18];
/// Maximum uncompressed size of an LZ4 block.
const LZ4_BLOCK: usize = 8 << 20;
/// Other formats that kernels use, which are detected but not supported.
const OTHERS: [(&[u8], &str); 4] =
    [(b"\xfd7zXZ", "xz"), (b"BZh", "bzip2"), (b"\x5d\x00\x00", "lzma"), (b"\x89LZO", "lzo")];

/// Decompresses the kernel in a file into a sealed file in the host's memory.
pub(crate) fn unpacked(path: &Path) -> Result<File> {
    let mut image = Vec::new();
    let file = File::open(path).map_err(io("open", path))?;
    file.take(MAX_KERNEL + 1).read_to_end(&mut image).map_err(io("read", path))?;
    let bad = |why: String| VmError::Invalid { what: format!("the kernel {} {why}", path.display()) };
    if image.len() as u64 > MAX_KERNEL {
        return Err(bad(format!("is larger than {MAX_KERNEL} bytes")));
    }
    let kernel = kernel_of(&image).map_err(bad)?;
    let mut into = sparse::blank(0).map_err(io("create", "an unpacked kernel"))?;
    into.write_all(&kernel).map_err(io("write", "an unpacked kernel"))?;
    sparse::seal(&into).map_err(io("seal", "an unpacked kernel"))?;
    Ok(into)
}

/// Returns the ELF file in an image, or the error as a predicate.
fn kernel_of(image: &[u8]) -> Result<Vec<u8>, String> {
    if image.starts_with(ELF) {
        return Ok(image.to_vec());
    }
    let payload = payload(image).ok_or("is neither an ELF file nor a boot image with a payload")?;
    let unpacked = unpack(payload)?;
    if unpacked.starts_with(ELF) { Ok(unpacked) } else { Err("does not hold an ELF file".to_owned()) }
}

/// Returns the compressed payload of a boot image.
fn payload(image: &[u8]) -> Option<&[u8]> {
    const SECTOR: usize = 512;
    /// The first version of the protocol with the payload's location.
    const WITH_PAYLOAD: u16 = 0x208;
    let word = |at: usize| {
        let bytes = image.get(at..at + 4)?.try_into().ok()?;
        usize::try_from(u32::from_le_bytes(bytes)).ok()
    };
    let version = u16::from_le_bytes(image.get(0x206..0x208)?.try_into().ok()?);
    if image.get(0x202..0x206)? != b"HdrS" || version < WITH_PAYLOAD {
        return None;
    }
    // For historical reasons, 0 means 4.
    let sectors = match *image.get(0x1f1)? {
        0 => 4,
        sectors => usize::from(sectors),
    };
    let begin = ((sectors + 1) * SECTOR).checked_add(word(0x248)?)?;
    image.get(begin..begin.checked_add(word(0x24c)?)?)
}

fn unpack(payload: &[u8]) -> Result<Vec<u8>, String> {
    // The payload ends with four bytes of its uncompressed size.
    let packed = payload.get(..payload.len().saturating_sub(4)).unwrap_or_default();
    let read = |from: &mut dyn Read| {
        let mut out = Vec::new();
        from.take(MAX_KERNEL + 1).read_to_end(&mut out).map_err(|error| format!("cannot be unpacked: {error}"))?;
        if out.len() as u64 > MAX_KERNEL { Err(format!("unpacks to more than {MAX_KERNEL} bytes")) } else { Ok(out) }
    };
    if packed.starts_with(LZ4) {
        unpack_lz4(packed.get(LZ4.len()..).unwrap_or_default())
    } else if packed.starts_with(GZIP) {
        read(&mut flate2::read::GzDecoder::new(packed))
    } else if packed.starts_with(ZSTD) {
        let decoder = zstd::stream::read::Decoder::with_buffer(packed);
        read(&mut decoder.map_err(|error| format!("cannot be unpacked: {error}"))?.single_frame())
    } else {
        let known = OTHERS.iter().find(|(begin, _)| packed.starts_with(begin)).map_or("an unknown format", |it| it.1);
        Err(format!(
            "is compressed with {known}; only lz4, gzip and zstd are supported for Firecracker; use an uncompressed \
             kernel (vmlinux) with `cofferdam vm build-image --kernel`"
        ))
    }
}

fn unpack_lz4(mut blocks: &[u8]) -> Result<Vec<u8>, String> {
    let mut out = Vec::new();
    let mut block = vec![0; LZ4_BLOCK];
    while let Some((length, rest)) = blocks.split_first_chunk::<4>() {
        if length.as_slice() == LZ4 {
            // Another archive starts.
            blocks = rest;
            continue;
        }
        let length = usize::try_from(u32::from_le_bytes(*length)).unwrap_or(usize::MAX);
        let (packed, further) = rest.split_at_checked(length).ok_or("cannot be unpacked: a block is cut off")?;
        let written = lz4_flex::block::decompress_into(packed, &mut block);
        let written = written.map_err(|error| format!("cannot be unpacked: {error}"))?;
        out.extend_from_slice(block.get(..written).unwrap_or_default());
        if out.len() as u64 > MAX_KERNEL {
            return Err(format!("unpacks to more than {MAX_KERNEL} bytes"));
        }
        blocks = further;
    }
    if blocks.is_empty() { Ok(out) } else { Err("cannot be unpacked: trailing data after its blocks".to_owned()) }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use cofferdam_image::{Cache, Images, Recipe, RootSource, Source};
    use proptest::prelude::*;

    use super::*;

    /// Returns a boot image with this payload.
    fn image(packed: &[u8]) -> Vec<u8> {
        let mut image = vec![0; 3 * 512];
        image[0x1f1] = 1;
        image[0x202..0x206].copy_from_slice(b"HdrS");
        image[0x206..0x208].copy_from_slice(&0x20fu16.to_le_bytes());
        image[0x248..0x24c].copy_from_slice(&512u32.to_le_bytes());
        image[0x24c..0x250].copy_from_slice(&(packed.len() as u32 + 4).to_le_bytes());
        image.extend_from_slice(packed);
        image.extend_from_slice(&[0; 4]);
        image
    }

    fn kernel() -> Vec<u8> {
        [ELF, &b"a kernel, and the same again; ".repeat(1000)].concat()
    }

    fn lz4(blocks: &[&[u8]]) -> Vec<u8> {
        let packed = blocks.iter().flat_map(|block| {
            let packed = lz4_flex::block::compress(block);
            [&(packed.len() as u32).to_le_bytes()[..], &packed].concat()
        });
        LZ4.iter().copied().chain(packed).collect()
    }

    /// Promise (Virtual machines): Firecracker gets the kernel from its compressed image.
    #[test]
    fn kernel_is_extracted_from_compressed_images() {
        let kernel = kernel();
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(&kernel).unwrap();
        for packed in [
            lz4(&[&kernel[..5000], &kernel[5000..]]),
            gzip.finish().unwrap(),
            zstd::stream::encode_all(&*kernel, 1).unwrap(),
        ] {
            assert!(kernel_of(&image(&packed)).unwrap() == kernel);
        }
        assert!(kernel_of(&kernel).unwrap() == kernel);
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("vmlinuz");
        std::fs::write(&path, image(&lz4(&[&kernel]))).unwrap();
        let file = unpacked(&path).unwrap();
        let mut found = vec![0; kernel.len()];
        file.read_exact_at(&mut found, 0).unwrap();
        assert!(found == kernel && file.set_len(0).is_err(), "the file is not sealed");
    }

    #[test]
    fn files_that_are_no_kernels_are_refused() {
        let cut = lz4(&[&kernel()]);
        for (bad, says) in [
            (b"MZ".to_vec(), "neither an ELF file"),
            (Vec::new(), "neither an ELF file"),
            (image(b"\xfd7zXZ\0abcdef"), "is compressed with xz"),
            (image(b"something else"), "unknown"),
            (image(&lz4(&[b"no kernel"])), "does not hold an ELF file"),
            (image(&cut[..cut.len() - 1]), "a block is cut off"),
            (image(&[LZ4, &[2, 0, 0, 0, 0xff, 0xff]].concat()), "cannot be unpacked"),
        ] {
            let error = kernel_of(&bad).unwrap_err();
            assert!(error.contains(says), "{says}: {error}");
        }
        // A payload that extends beyond the file.
        let mut long = image(b"x");
        long[0x24c..0x250].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(kernel_of(&long).unwrap_err().contains("neither"));
    }

    /// Promise (Virtual machines): A kernel image that unpacks to more than the limit is refused.
    #[test]
    fn kernel_that_unpacks_beyond_the_limit_is_refused() {
        let zeros = vec![0; LZ4_BLOCK];
        let block = lz4(&[&zeros]);
        let many = [LZ4.to_vec(), block[LZ4.len()..].repeat(40)].concat();
        assert!(kernel_of(&image(&many)).unwrap_err().contains("unpacks to more"));
    }

    /// Unpacks the default kernel, if VM tests are enabled.
    ///
    /// Promise (Virtual machines): The kernel of the default image is unpacked.
    #[test]
    fn the_usual_kernel_is_unpacked() {
        let variable = |name: &str| std::env::var_os(name).map(std::path::PathBuf::from);
        if variable("COFFERDAM_TEST_MACHINES").is_none() {
            println!("SKIP the_usual_kernel_is_unpacked: COFFERDAM_TEST_MACHINES=1 has an image made");
            return;
        }
        let home = || variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")));
        let cache = variable("COFFERDAM_TEST_CACHE").unwrap_or_else(|| home().unwrap().join("cofferdam"));
        let images = Images::new(cache.join("vm"), Cache::new(cache.join("debian")));
        let source = Source { root: RootSource::Debian(Recipe::tiny()), ..Source::default() };
        let image = images.find_or_make(&source, &mut |_| ()).expect("an image");
        let kernel = unpacked(&image.kernel).unwrap();
        let length = kernel.metadata().unwrap().len();
        let mut head = [0; 20];
        kernel.read_exact_at(&mut head, 0).unwrap();
        // An executable for this architecture.
        assert!(length > 10 << 20 && head[..4] == *ELF && head[16..20] == [2, 0, 62, 0], "{length} {head:?}");
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_kernel_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..600), whole in any::<bool>()) {
            let _ = if whole { kernel_of(&image(&bytes)) } else { kernel_of(&bytes) };
            let _ = unpack_lz4(&bytes);
        }
    }
}
