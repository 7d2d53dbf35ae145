//! The IDX format of MNIST: a magic number, big-endian sizes, row-major elements; plain or gzipped.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;
use wgrad_graph::{DType, Error, ErrorKind, HostTensor, MAX_RANK, Result, Shape};

/// Deflate cannot expand data more than this; a file that claims more is lying about its sizes.
const MAX_EXPANSION: u64 = 1032;

/// The tensor in an IDX file, gzipped or not (told by the content, not by the name).
///
/// Element types u8, i32, f32 and f64 are read; i8 and i16 have no dtype here and are refused.
///
/// # Errors
/// `Data`, naming file, offset (in the unpacked file) and the rule that was broken: the file cannot be
/// opened or unpacked, wrong magic, unknown type, rank 0 or over 8, a size of 0, a product of sizes that
/// the file cannot hold, elements missing, bytes left over. Memory is reserved only for bytes that the
/// file can hold.
pub fn read_idx(path: impl AsRef<Path>) -> Result<HostTensor> {
    let path = path.as_ref();
    let open = |e: std::io::Error| fault(path, 0, format!("cannot be opened: {e}")).because(e);
    let file = File::open(path).map_err(open)?;
    let stored_bytes = file.metadata().map_err(open)?.len();
    let mut file = BufReader::with_capacity(1 << 16, file);
    let packed = std::io::BufRead::fill_buf(&mut file).map_err(open)?.starts_with(&[0x1f, 0x8b]);
    let room_bytes = if packed { stored_bytes.saturating_mul(MAX_EXPANSION) } else { stored_bytes };
    let reader: Box<dyn Read> = if packed { Box::new(MultiGzDecoder::new(file)) } else { Box::new(file) };
    Idx { path, reader, offset: 0, room_bytes }.tensor()
}

fn fault(path: &Path, offset: u64, rule: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Data, "read_idx", format!("{}, offset {offset}: {rule}", path.display()))
}

struct Idx<'a> {
    path: &'a Path,
    reader: Box<dyn Read>,
    offset: u64,
    /// The most bytes that the unpacked file can have.
    room_bytes: u64,
}

impl Idx<'_> {
    fn tensor(mut self) -> Result<HostTensor> {
        let [zero0, zero1, code, rank] = self.word("the magic number")?;
        if zero0 != 0 || zero1 != 0 {
            return Err(self.fault(0, "neither gzip nor IDX, whose magic number starts with two zero bytes"));
        }
        let dtype = match code {
            0x08 => DType::U8,
            0x0C => DType::I32,
            0x0D => DType::F32,
            0x0E => DType::F64,
            0x09 | 0x0B => {
                return Err(
                    self.fault(2, format!("elements of type 0x{code:02X} (i8, i16) are not supported"))
                );
            }
            _ => {
                return Err(
                    self.fault(2, format!("0x{code:02X} is no element type (08, 09, 0B, 0C, 0D, 0E are)"))
                );
            }
        };
        if rank == 0 || usize::from(rank) > MAX_RANK {
            return Err(self.fault(3, format!("rank {rank} is not between 1 and {MAX_RANK}")));
        }
        let mut dims = Vec::new();
        for axis in 0..rank {
            let at = self.offset;
            let size = u32::from_be_bytes(self.word("the size of an axis")?);
            if size == 0 {
                return Err(self.fault(at, format!("axis {axis} has size 0")));
            }
            dims.push(size as usize);
        }
        let bytes = self.elements(&dims, dtype)?;
        HostTensor::from_bytes(&dims, dtype, bytes)
    }

    /// The elements, little-endian, after the check that the file can hold them.
    fn elements(&mut self, dims: &[usize], dtype: DType) -> Result<Vec<u8>> {
        let start = self.offset;
        let claim = Shape::try_new(dims).and_then(|s| s.elems().checked_mul(dtype.bytes()));
        let Some(size) = claim.filter(|n| *n as u64 <= self.room_bytes.saturating_sub(start)) else {
            let room = self.room_bytes.saturating_sub(start);
            return Err(self
                .fault(start, format!("{dtype} {dims:?} needs more bytes than the file can hold ({room})")));
        };
        // The claim is bounded by the file's own size (times the expansion of deflate); memory still
        // grows with the bytes that arrive, not with the claim. One byte more shows left-overs and
        // makes the unpacker check its sum.
        let mut bytes = Vec::new();
        let read = (&mut self.reader).take(size as u64 + 1).read_to_end(&mut bytes);
        let at = start + bytes.len() as u64;
        read.map_err(|e| self.fault(at, format!("cannot be read: {e}")).because(e))?;
        if bytes.len() < size {
            return Err(self.fault(
                at,
                format!("the file ends, {dtype} {dims:?} needs {} more bytes", size - bytes.len()),
            ));
        }
        if bytes.len() > size {
            return Err(
                self.fault(start + size as u64, format!("bytes are left over after {dtype} {dims:?}"))
            );
        }
        if dtype.bytes() > 1 {
            bytes.chunks_exact_mut(dtype.bytes()).for_each(<[u8]>::reverse);
        }
        Ok(bytes)
    }

    fn word(&mut self, what: &str) -> Result<[u8; 4]> {
        let mut word = [0; 4];
        self.reader.read_exact(&mut word).map_err(|e| {
            let rule = match e.kind() {
                std::io::ErrorKind::UnexpectedEof => format!("the file ends inside {what}"),
                _ => format!("cannot be read: {e}"),
            };
            self.fault(self.offset, rule).because(e)
        })?;
        self.offset += 4;
        Ok(word)
    }

    fn fault(&self, offset: u64, rule: impl std::fmt::Display) -> Error {
        fault(self.path, offset, rule)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::testing::Folder;

    fn header(code: u8, dims: &[u32]) -> Vec<u8> {
        let mut bytes = vec![0, 0, code, dims.len() as u8];
        dims.iter().for_each(|d| bytes.extend(d.to_be_bytes()));
        bytes
    }

    fn gz(bytes: &[u8]) -> Vec<u8> {
        let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        packer.write_all(bytes).unwrap();
        packer.finish().unwrap()
    }

    fn read(bytes: &[u8]) -> Result<HostTensor> {
        let folder = Folder::new();
        let path = folder.path("x.idx");
        std::fs::write(&path, bytes).unwrap();
        read_idx(path)
    }

    /// Asserts that the file is refused, with this offset and these words.
    fn refused(bytes: &[u8], offset: u64, rule: &str) {
        let error = read(bytes).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Data);
        let text = error.to_string();
        assert!(text.contains("x.idx") && text.contains(&format!("offset {offset}:")), "{text}");
        assert!(text.contains(rule), "{text}\nlacks {rule:?}");
    }

    #[test]
    fn reads_plain_and_gzipped() {
        let bytes = [header(0x08, &[2, 3]), vec![1, 2, 3, 4, 5, 255]].concat();
        for file in [bytes.clone(), gz(&bytes)] {
            let x = read(&file).unwrap();
            assert_eq!((x.shape(), x.dtype()), (Shape::from([2, 3]), DType::U8));
            assert_eq!(x.to_vec::<u8>(), [1, 2, 3, 4, 5, 255]);
        }
    }

    #[test]
    fn wide_elements_are_big_endian() {
        let ints = [header(0x0C, &[2]), (-2i32).to_be_bytes().into(), 7i32.to_be_bytes().into()].concat();
        assert_eq!(read(&ints).unwrap().to_vec::<i32>(), [-2, 7]);
        let floats = [header(0x0D, &[1]), 1.5f32.to_be_bytes().into()].concat();
        assert_eq!(read(&floats).unwrap().to_vec::<f32>(), [1.5]);
        let doubles = [header(0x0E, &[1]), (-0.1f64).to_be_bytes().into()].concat();
        assert_eq!(read(&doubles).unwrap().to_vec::<f64>(), [-0.1]);
    }

    #[test]
    fn every_truncation_is_refused() {
        let bytes = [header(0x08, &[2, 3]), vec![1, 2, 3, 4, 5, 6]].concat();
        for len in 0..bytes.len() {
            let offset = match len {
                0..12 => len / 4 * 4,
                _ => 12,
            };
            refused(&bytes[..len], offset as u64, if len < 12 { "ends inside" } else { "can hold" });
        }
        let packed = gz(&bytes);
        for len in 2..packed.len() {
            assert_eq!(read(&packed[..len]).unwrap_err().kind(), ErrorKind::Data, "{len} bytes");
        }
        refused(&gz(&bytes[..15]), 15, "needs 3 more bytes");
    }

    #[test]
    fn faults_of_the_header_are_refused() {
        refused(b"PK\x03\x04 zip", 0, "two zero bytes");
        refused(&[0, 0, 0x08, 0], 3, "rank 0");
        refused(&header(0x08, &[1; 9]), 3, "rank 9");
        refused(&header(0x0A, &[1]), 2, "no element type");
        refused(&header(0x0B, &[1]), 2, "not supported");
        refused(&header(0x08, &[3, 0, 2]), 8, "axis 1 has size 0");
    }

    #[test]
    fn claims_beyond_the_file_are_refused_before_memory_is_reserved() {
        for dims in [&[u32::MAX; 8][..], &[u32::MAX; 2], &[u32::MAX], &[7]] {
            let bytes = [header(0x0E, dims), vec![0; 55]].concat();
            refused(&bytes, bytes.len() as u64 - 55, "more bytes than the file can hold (55)");
        }
        refused(&gz(&header(0x08, &[u32::MAX, u32::MAX])), 12, "more bytes than the file can hold");
    }

    #[test]
    fn bytes_left_over_are_refused() {
        let bytes = [header(0x08, &[2]), vec![1, 2, 3]].concat();
        refused(&bytes, 10, "left over");
        refused(&gz(&bytes), 10, "left over");
    }

    #[test]
    fn damaged_gzip_is_refused() {
        let good = gz(&[header(0x08, &[2]), vec![1, 2]].concat());
        refused(&[0x1f, 0x8b, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9], 0, "cannot be read");
        refused(&[good.clone(), b"garbage".to_vec()].concat(), 10, "cannot be read");
        let mut sum = good;
        let crc = sum.len() - 8;
        sum[crc] ^= 1;
        refused(&sum, 10, "cannot be read");
    }

    #[test]
    fn a_missing_file_is_named() {
        let error = read_idx("/nowhere/x.idx").unwrap_err();
        assert!(error.to_string().contains("/nowhere/x.idx"), "{error}");
    }
}
