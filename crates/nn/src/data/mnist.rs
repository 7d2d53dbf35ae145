//! The MNIST handwritten digits from their four IDX files.

use std::path::Path;

use wgrad_graph::{DType, Error, ErrorKind, HostTensor, Result};

use super::{Source, read_idx};

/// The MNIST handwritten digits (LeCun, Cortes, Burges).
#[derive(Clone, Debug)]
pub struct Mnist {
    /// 60,000 images to learn from.
    pub train: Digits,
    /// 10,000 images to test on.
    pub test: Digits,
}

/// Images with their labels.
#[derive(Clone, Debug)]
pub struct Digits {
    /// u8 `[n, 28, 28]`, 0 the background.
    pub images: HostTensor,
    /// u8 `[n]`, each 0 to 9.
    pub labels: HostTensor,
}

/// Some images with their labels.
#[derive(Clone, Debug)]
pub struct Batch {
    /// u8 `[batch, 28, 28]`.
    pub images: HostTensor,
    /// i32 `[batch]`.
    pub labels: HostTensor,
}

impl Mnist {
    /// Reads `{train,t10k}-{images-idx3,labels-idx1}-ubyte`, each with or without `.gz`, from `dir`.
    ///
    /// # Errors
    /// `Data` for what [`read_idx`] refuses, images that are not u8 `[n, 28, 28]`, labels that are not u8
    /// `[n]` for the same `n`, and a label over 9.
    pub fn load(dir: impl AsRef<Path>) -> Result<Mnist> {
        let dir = dir.as_ref();
        Ok(Mnist { train: Digits::load(dir, "train")?, test: Digits::load(dir, "t10k")? })
    }
}

impl Digits {
    fn load(dir: &Path, part: &str) -> Result<Digits> {
        let find = |kind: &str| {
            let packed = dir.join(format!("{part}-{kind}-ubyte.gz"));
            if packed.exists() { packed } else { packed.with_extension("") }
        };
        let (images_path, labels_path) = (find("images-idx3"), find("labels-idx1"));
        let (images, labels) = (read_idx(&images_path)?, read_idx(&labels_path)?);
        let fault = |path: &Path, rule: String| {
            Err(Error::new(ErrorKind::Data, "mnist", format!("{}: {rule}", path.display())))
        };
        let (shape, n) = (images.shape(), images.shape()[0]);
        if images.dtype() != DType::U8 || shape.rank() != 3 || shape.dims()[1..] != [28, 28] {
            return fault(&images_path, format!("{} {shape} is not u8 [n, 28, 28]", images.dtype()));
        }
        if labels.dtype() != DType::U8 || labels.shape().dims() != [n] {
            let rule = format!("{} {} does not label {n} images", labels.dtype(), labels.shape());
            return fault(&labels_path, rule);
        }
        if let Some((at, label)) = labels.bytes().iter().enumerate().find(|(_, label)| **label > 9) {
            return fault(&labels_path, format!("label {at} is {label}, not a digit"));
        }
        Ok(Digits { images, labels })
    }

    /// The first `n` images, or all when there are fewer.
    #[must_use]
    pub fn first(&self, n: usize) -> Digits {
        let n = n.min(self.len());
        let images = rows(&self.images, 0..n);
        Digits { images, labels: rows(&self.labels, 0..n) }
    }
}

/// The rows of `x` with these indices, in this order. The indices are below `x`'s first size.
fn rows(x: &HostTensor, index: impl ExactSizeIterator<Item = usize>) -> HostTensor {
    let shape = x.shape().with(0, index.len());
    let row_bytes = x.shape().dims()[1..].iter().product::<usize>() * x.dtype().bytes();
    let mut bytes = Vec::with_capacity(index.len() * row_bytes);
    index.for_each(|i| bytes.extend_from_slice(&x.bytes()[i * row_bytes..][..row_bytes]));
    HostTensor::from_bytes(shape, x.dtype(), bytes).expect("as many rows were copied as the shape has")
}

impl Source for Digits {
    type Batch = Batch;

    fn len(&self) -> usize {
        self.labels.shape()[0]
    }

    fn batch(&self, index: &[usize]) -> Result<Batch> {
        if let Some(i) = index.iter().find(|i| **i >= self.len()) {
            wgrad_graph::bail!(Argument, "batch", "image {i} of {}", self.len());
        }
        let rows = |x| rows(x, index.iter().copied());
        Ok(Batch { images: rows(&self.images), labels: rows(&self.labels).cast(DType::I32) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Folder;

    fn write(folder: &Folder, images: &[u8], labels: &[u8]) {
        for part in ["train", "t10k"] {
            std::fs::write(folder.path(&format!("{part}-images-idx3-ubyte")), images).unwrap();
            std::fs::write(folder.path(&format!("{part}-labels-idx1-ubyte")), labels).unwrap();
        }
    }

    fn images(n: u8, side: u8) -> Vec<u8> {
        let pixels = usize::from(n) * usize::from(side) * usize::from(side);
        let mut bytes = vec![0, 0, 8, 3, 0, 0, 0, n, 0, 0, 0, side, 0, 0, 0, side];
        bytes.extend((0..pixels).map(|i| (i / 784) as u8));
        bytes
    }

    fn labels(labels: &[u8]) -> Vec<u8> {
        [&[0, 0, 8, 1, 0, 0, 0, labels.len() as u8], labels].concat()
    }

    #[test]
    fn loads_and_gathers() {
        let folder = Folder::new();
        write(&folder, &images(3, 28), &labels(&[7, 8, 9]));
        let mnist = Mnist::load(folder.path("")).unwrap();
        let batch = mnist.train.batch(&[2, 0]).unwrap();
        assert_eq!(batch.images.shape().dims(), [2, 28, 28]);
        assert_eq!((batch.images.bytes()[0], batch.images.bytes()[784]), (2, 0));
        assert_eq!((batch.labels.dtype(), batch.labels.to_vec::<i32>()), (DType::I32, vec![9, 7]));
        assert_eq!(mnist.test.first(2).len(), 2);
        assert_eq!(mnist.test.first(9).len(), 3);
        assert!(mnist.test.batch(&[3]).is_err());
    }

    #[test]
    fn refuses_what_is_not_mnist() {
        for (images, labels, rule) in [
            (images(2, 14), labels(&[1, 2]), "is not u8 [n, 28, 28]"),
            (images(2, 28), labels(&[1, 2, 3]), "does not label 2 images"),
            (images(2, 28), labels(&[1, 10]), "label 1 is 10"),
            (labels(&[1, 2]), images(2, 28), "is not u8 [n, 28, 28]"),
        ] {
            let folder = Folder::new();
            write(&folder, &images, &labels);
            let error = Mnist::load(folder.path("")).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Data);
            assert!(error.to_string().contains(rule) && error.to_string().contains("-ubyte"), "{error}");
        }
        let error = Mnist::load("/nowhere").unwrap_err();
        assert!(error.to_string().contains("/nowhere/train-images-idx3-ubyte"), "{error}");
    }
}
