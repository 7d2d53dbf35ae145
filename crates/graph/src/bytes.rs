//! Bytes on the host that clones share, wherever they lie.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// Memory that can be read as long as it is held.
type Hold = dyn AsRef<[u8]> + Send + Sync;

/// Bytes that clones share: a vector, or memory that a device has mapped and takes back when the last
/// clone is dropped. They do not change.
///
/// ```
/// use wgrad_graph::Bytes;
/// let bytes = Bytes::from(vec![1, 2, 3]);
/// assert_eq!(bytes.clone()[1..], [2, 3]);
/// ```
#[derive(Clone)]
pub struct Bytes(Arc<Hold>);

impl Bytes {
    /// The bytes of `memory`, held until the last clone is dropped; not copied.
    pub fn held(memory: impl AsRef<[u8]> + Send + Sync + 'static) -> Bytes {
        Bytes(Arc::new(memory))
    }
}

impl Deref for Bytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        (*self.0).as_ref()
    }
}

impl AsRef<[u8]> for Bytes {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl PartialEq for Bytes {
    fn eq(&self, other: &Bytes) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || **self == **other
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.len())
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(bytes: Vec<u8>) -> Bytes {
        Bytes::held(bytes)
    }
}

impl From<&[u8]> for Bytes {
    fn from(bytes: &[u8]) -> Bytes {
        Bytes::held(bytes.to_vec())
    }
}

impl From<Arc<[u8]>> for Bytes {
    fn from(bytes: Arc<[u8]>) -> Bytes {
        Bytes::held(bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    struct Counted(Vec<u8>, Arc<AtomicUsize>);

    impl AsRef<[u8]> for Counted {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }

    impl Drop for Counted {
        fn drop(&mut self) {
            self.1.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn memory_goes_back_with_the_last_clone() {
        let dropped = Arc::new(AtomicUsize::new(0));
        let bytes = Bytes::held(Counted(vec![7; 5], Arc::clone(&dropped)));
        let clone = bytes.clone();
        drop(bytes);
        assert_eq!((&clone[..], dropped.load(Ordering::SeqCst)), (&[7; 5][..], 0));
        assert_eq!(clone, Bytes::from(vec![7; 5]));
        drop(clone);
        assert_eq!(dropped.load(Ordering::SeqCst), 1);
    }
}
