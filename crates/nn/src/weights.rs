//! Named host tensors in a safetensors file.

use std::borrow::Cow;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use safetensors::tensor::{Dtype, SafeTensorError, SafeTensors, View};
use wgrad_graph::{DType, Error, ErrorKind, HostTensor, Result, Shape};

/// Writes tensors to a safetensors file, whole or not at all: to a temporary file beside it first, to
/// the disk, then renamed.
///
/// # Errors
/// `Argument` for a name given twice; `Data`, naming the file, when it cannot be written. The old file
/// is then as it was.
pub fn save_tensors(path: impl AsRef<Path>, tensors: &[(String, HostTensor)]) -> Result<()> {
    let path = path.as_ref();
    let mut names: Vec<&str> = tensors.iter().map(|(name, _)| name.as_str()).collect();
    names.sort_unstable();
    if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        wgrad_graph::bail!(Argument, "save", "{:?} names two tensors", twice[0]);
    }
    let views = tensors.iter().map(|(name, x)| (name.as_str(), Stored(x, x.shape())));
    let bytes = safetensors::serialize(views, None).map_err(|e| fault("save", path, &e))?;
    write_whole(path, &bytes).map_err(|e| {
        let text = format!("{}: cannot be written: {e}", path.display());
        Error::new(ErrorKind::Data, "save", text).because(e)
    })
}

/// The tensors of a safetensors file, in the order of their bytes.
///
/// # Errors
/// `Data`, naming the file: it cannot be read, its header is malformed, ranges overlap or do not cover
/// the file, a dtype or a rank has no counterpart here.
pub fn load_tensors(path: impl AsRef<Path>) -> Result<Vec<(String, HostTensor)>> {
    let path = path.as_ref();
    let bytes = fs::read(path).map_err(|e| {
        let text = format!("{}: cannot be read: {e}", path.display());
        Error::new(ErrorKind::Data, "load", text).because(e)
    })?;
    let file = SafeTensors::deserialize(&bytes).map_err(|e| fault("load", path, &e))?;
    let mut tensors = Vec::with_capacity(file.len());
    for (name, view) in file.iter() {
        let refuse = |why: String| {
            Err(Error::new(ErrorKind::Data, "load", format!("{}: {name:?}: {why}", path.display())))
        };
        let dtype = match view.dtype() {
            Dtype::BOOL => DType::Bool,
            Dtype::U8 => DType::U8,
            Dtype::U32 => DType::U32,
            Dtype::I32 => DType::I32,
            Dtype::I64 => DType::I64,
            Dtype::F16 => DType::F16,
            Dtype::BF16 => DType::BF16,
            Dtype::F32 => DType::F32,
            Dtype::F64 => DType::F64,
            other => return refuse(format!("dtype {other:?} is not supported")),
        };
        let Some(shape) = Shape::try_new(view.shape()) else {
            return refuse(format!("shape {:?} is not supported", view.shape()));
        };
        tensors.push((
            view.data().as_ptr(),
            name.to_owned(),
            HostTensor::from_bytes(shape, dtype, view.data())?,
        ));
    }
    tensors.sort_by(|(a, a_name, _), (b, b_name, _)| (a, a_name).cmp(&(b, b_name)));
    Ok(tensors.into_iter().map(|(_, name, x)| (name, x)).collect())
}

fn fault(op: &str, path: &Path, e: &SafeTensorError) -> Error {
    Error::new(ErrorKind::Data, op, format!("{}: not a good safetensors file: {e}", path.display()))
}

/// A host tensor as safetensors wants it, with its shape held so that it can be lent.
struct Stored<'a>(&'a HostTensor, Shape);

impl View for Stored<'_> {
    fn dtype(&self) -> Dtype {
        match self.0.dtype() {
            DType::Bool => Dtype::BOOL,
            DType::U8 => Dtype::U8,
            DType::U32 => Dtype::U32,
            DType::I32 => Dtype::I32,
            DType::I64 => Dtype::I64,
            DType::F16 => Dtype::F16,
            DType::BF16 => Dtype::BF16,
            DType::F32 => Dtype::F32,
            DType::F64 => Dtype::F64,
        }
    }

    fn shape(&self) -> &[usize] {
        self.1.dims()
    }

    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(self.0.bytes())
    }

    fn data_len(&self) -> usize {
        self.0.bytes().len()
    }
}

/// Writes a file so that at every moment either the old or the new one is there, whole.
fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let name = path.file_name().ok_or(io::ErrorKind::InvalidFilename)?.to_string_lossy();
    let unique = NEXT.fetch_add(1, Ordering::Relaxed);
    let temporary = Temporary(folder.join(format!(".{name}.{}-{unique}.tmp", std::process::id())));
    let mut file = File::create_new(&temporary.0)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&temporary.0, path)?;
    std::mem::forget(temporary);
    // The rename itself must reach the disk too; some file systems cannot sync a folder, and the file is
    // whole in any case.
    File::open(folder).and_then(|folder| folder.sync_all()).or(Ok(()))
}

/// A file that goes when it is not renamed in time.
struct Temporary(PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Folder;

    fn some() -> Vec<(String, HostTensor)> {
        vec![
            (
                "fc1.weight".into(),
                HostTensor::new([2, 3], &[1.0f32, -2.0, 3.5, f32::NAN, 0.0, -0.0]).unwrap(),
            ),
            ("mask".into(), HostTensor::new([2], &[true, false]).unwrap()),
            ("empty".into(), HostTensor::new([0, 4], &[0u8; 0]).unwrap()),
            ("step".into(), HostTensor::new([], &[7u32]).unwrap()),
            ("wide".into(), HostTensor::new([1], &[0.1f64]).unwrap()),
            ("long".into(), HostTensor::new([2], &[i64::MIN, (1 << 60) + 1]).unwrap()),
            ("half".into(), HostTensor::new([3], &[1.5f32, -0.0, 70000.0]).unwrap().cast(DType::F16)),
            ("brain".into(), HostTensor::new([1], &[3e38f32]).unwrap().cast(DType::BF16)),
        ]
    }

    #[test]
    fn what_is_saved_is_loaded_bit_by_bit() {
        let folder = Folder::new();
        let path = folder.path("w.safetensors");
        save_tensors(&path, &some()).unwrap();
        let mut loaded = load_tensors(&path).unwrap();
        let mut saved = some();
        loaded.sort_by(|a, b| a.0.cmp(&b.0));
        saved.sort_by(|a, b| a.0.cmp(&b.0));
        assert_eq!(loaded.len(), saved.len());
        for ((a, x), (b, y)) in loaded.iter().zip(&saved) {
            assert_eq!((a, x.shape(), x.dtype(), x.bytes()), (b, y.shape(), y.dtype(), y.bytes()));
        }
    }

    #[test]
    fn a_failed_save_leaves_the_old_file_and_nothing_else() {
        let folder = Folder::new();
        let path = folder.path("w.safetensors");
        save_tensors(&path, &some()).unwrap();
        let old = fs::read(&path).unwrap();
        let twice = [some().remove(0), some().remove(0)];
        assert_eq!(save_tensors(&path, &twice).unwrap_err().kind(), ErrorKind::Argument);
        assert_eq!(fs::read(&path).unwrap(), old);
        // A folder stands where the file should go: the rename fails after the temporary was written.
        fs::create_dir(folder.path("taken")).unwrap();
        fs::write(folder.path("taken/x"), b"").unwrap();
        let error = save_tensors(folder.path("taken"), &some()).unwrap_err();
        assert!(error.kind() == ErrorKind::Data && error.to_string().contains("taken"), "{error}");
        assert_eq!(fs::read_dir(folder.path("")).unwrap().count(), 2);
        assert!(save_tensors(folder.path("no/such/folder"), &some()).is_err());
    }

    #[test]
    fn damaged_files_are_refused() {
        let folder = Folder::new();
        let path = folder.path("w.safetensors");
        save_tensors(&path, &some()).unwrap();
        let good = fs::read(&path).unwrap();
        for len in 0..good.len() {
            fs::write(&path, &good[..len]).unwrap();
            let error = load_tensors(&path).unwrap_err();
            assert!(
                error.kind() == ErrorKind::Data && error.to_string().contains("w.safetensors"),
                "{error}"
            );
        }
        fs::write(&path, [&good[..], b"x"].concat()).unwrap();
        assert!(load_tensors(&path).is_err());
        assert!(load_tensors(folder.path("none")).unwrap_err().to_string().contains("none"));
    }

    #[test]
    fn a_dtype_without_counterpart_is_named() {
        let folder = Folder::new();
        let path = folder.path("half.safetensors");
        let header = br#"{"h":{"dtype":"I16","shape":[1],"data_offsets":[0,2]}}  "#;
        let bytes = [&(header.len() as u64).to_le_bytes()[..], header, &[0, 0]].concat();
        fs::write(&path, bytes).unwrap();
        let error = load_tensors(&path).unwrap_err().to_string();
        assert!(error.contains("\"h\"") && error.contains("I16"), "{error}");
    }
}
