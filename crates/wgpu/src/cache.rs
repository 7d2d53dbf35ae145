//! The driver's compiled kernels on disk, so that the next run starts faster. Whatever fails here
//! only costs time.

use std::fs;
use std::hash::Hasher;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// First bytes of a file; changes with the format.
const MAGIC: &[u8; 8] = b"wgradpc1";

/// FNV-1a, which is stable over runs and versions.
struct Fnv(u64);

impl Hasher for Fnv {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

fn hash(bytes: &[u8]) -> u64 {
    let mut fnv = Fnv(0xcbf2_9ce4_8422_2325);
    fnv.write(bytes);
    fnv.finish()
}

/// The folder of cache files: `$WGRAD_CACHE_DIR`, else `wgrad` in the user's cache folder.
pub(crate) fn folder() -> Option<PathBuf> {
    let var = |name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    var("WGRAD_CACHE_DIR")
        .or_else(|| var("XDG_CACHE_HOME").map(|p| p.join("wgrad")))
        .or_else(|| var("HOME").map(|p| p.join(".cache").join("wgrad")))
}

/// The file for an adapter and its driver, and for what a device is opened: a file holds what the device has that wrote
/// it last.
pub(crate) fn file(folder: &Path, info: &wgpu::AdapterInfo, what: &str) -> Option<PathBuf> {
    let key = wgpu::util::pipeline_cache_key(info)?;
    let driver = hash(format!("{}\n{}\n{}", info.name, info.driver, info.driver_info).as_bytes());
    Some(folder.join(format!("{key}_{driver:016x}{what}.bin")))
}

/// The data in `file`; `None` when there is none or it is not what was written.
pub(crate) fn load(file: &Path) -> Option<Vec<u8>> {
    let bytes = fs::read(file).ok()?;
    let data = bytes.strip_prefix(MAGIC)?;
    let (sum, data) = data.split_first_chunk::<8>()?;
    (u64::from_le_bytes(*sum) == hash(data)).then(|| data.to_vec())
}

/// Writes `data` to `file`: another process sees the old file or the new one, never a part.
pub(crate) fn store(file: &Path, data: &[u8]) -> std::io::Result<()> {
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder)?;
    }
    // Devices of one process may write at a time.
    static PARTS: AtomicU64 = AtomicU64::new(0);
    let number = PARTS.fetch_add(1, Ordering::Relaxed);
    let part = file.with_extension(format!("{}-{number}.part", std::process::id()));
    let bytes = [MAGIC, &hash(data).to_le_bytes()[..], data].concat();
    let done = fs::write(&part, bytes).and_then(|()| fs::rename(&part, file));
    if done.is_err() {
        // What is left of a failed attempt is worth nothing.
        let _ = fs::remove_file(&part);
    }
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_write_whole_files() {
        let folder = std::env::temp_dir().join(format!("wgrad-cache-threads-{}", std::process::id()));
        let (file, data) = (folder.join("a.bin"), [vec![1u8; 1 << 20], vec![2; 1 << 19]]);
        std::thread::scope(|scope| {
            for data in &data {
                scope.spawn(|| (0..50).for_each(|_| store(&file, data).unwrap()));
            }
            for _ in 0..200 {
                assert!(!file.exists() || data.contains(&load(&file).expect("it is never a part")));
            }
        });
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn corrupt_files_are_ignored() {
        let folder = std::env::temp_dir().join(format!("wgrad-cache-{}", std::process::id()));
        let file = folder.join("a.bin");
        assert!(load(&file).is_none());
        store(&file, b"compiled").unwrap();
        assert_eq!(load(&file).unwrap(), b"compiled");
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
        let mut bytes = fs::read(&file).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(&file, &bytes).unwrap();
        assert!(load(&file).is_none());
        fs::write(&file, b"wgrad").unwrap();
        assert!(load(&file).is_none());
        fs::remove_dir_all(&folder).unwrap();
        assert!(store(Path::new("/proc/none/a.bin"), b"x").is_err());
    }
}
