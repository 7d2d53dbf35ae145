//! Shapes and dtypes of results: the single door through which an operation enters a graph.

use smallvec::SmallVec;

use crate::{Binary, DType, MAX_RANK, Matrix, Op, Out, Result, Scan, Shape, Unary, bail};

/// Shape and dtype of `op` on `ins`. `to` and `dtype` are what the operation itself does not tell
/// (the shape of reshape, expand, slice, pad, iota, random, scatter-add; the dtype of cast, iota,
/// scalar).
///
/// Halves are moved, chosen and converted; what computes takes them as f32 (see
/// [`Op::computes`]).
///
/// # Errors
/// `Shape`, `DType` or `Argument`, when the operands do not fit the operation.
pub fn infer(op: Op, ins: &[Out], to: Option<Shape>, dtype: Option<DType>) -> Result<Out> {
    let name = op.name();
    let arity = match op {
        Op::Input | Op::Custom(_) | Op::Attention(_) | Op::AttentionGrad(_) => {
            bail!(Argument, name, "has no rule of its own for shapes")
        }
        Op::Scalar | Op::Iota { .. } => 0,
        Op::Random => 4,
        Op::Select | Op::SliceAssignAt { .. } => 3,
        Op::Binary(_)
        | Op::MatMul
        | Op::SliceAt { .. }
        | Op::SliceAssign(_)
        | Op::Gather { .. }
        | Op::Scatter { .. }
        | Op::Scan { kind: Scan::Recur, .. }
        | Op::Matrix(Matrix::Solve | Matrix::Triangular { .. }) => 2,
        Op::Concat { .. } => ins.len().max(1),
        _ => 1,
    };
    if ins.len() != arity {
        bail!(Argument, name, "takes {arity} operands, {} were given", ins.len());
    }
    let to_shape = || {
        to.ok_or_else(|| crate::Error::new(crate::ErrorKind::Argument, name, "needs the shape of its result"))
    };
    let to_dtype = || {
        dtype.ok_or_else(|| {
            crate::Error::new(crate::ErrorKind::Argument, name, "needs the dtype of its result")
        })
    };
    let same = |a: Out, b: Out| -> Result<()> {
        if a.shape != b.shape {
            bail!(Shape, name, "shapes {} and {} differ", a.shape, b.shape);
        }
        if a.dtype != b.dtype {
            bail!(DType, name, "dtypes {} and {} differ", a.dtype, b.dtype);
        }
        Ok(())
    };
    let computes = |x: Out| -> Result<()> {
        if x.dtype.is_half() {
            bail!(DType, name, "computes in f32, {} is for storage: cast around the operation", x.dtype);
        }
        Ok(())
    };
    let axis_below = |axis: u8, rank: usize| -> Result<usize> {
        if usize::from(axis) >= rank {
            bail!(Argument, name, "axis {axis} of a tensor of rank {rank}");
        }
        Ok(usize::from(axis))
    };
    let scalar_u32 = |x: Out| -> Result<()> {
        if x.shape.rank() != 0 || x.dtype != DType::U32 {
            bail!(DType, name, "needs a u32 scalar where it got {x:?}");
        }
        Ok(())
    };
    Ok(match op {
        Op::Input | Op::Custom(_) | Op::Attention(_) | Op::AttentionGrad(_) => unreachable!("refused above"),
        Op::Scalar => Out { shape: Shape::SCALAR, dtype: to_dtype()? },
        Op::Iota { axis } => {
            let (shape, dtype) = (to_shape()?, to_dtype()?);
            axis_below(axis, shape.rank())?;
            if dtype == DType::Bool || dtype == DType::U8 {
                bail!(DType, name, "counts in u32, i32, i64 or floats, not {dtype}");
            }
            Out { shape, dtype }
        }
        Op::Random => {
            ins.iter().try_for_each(|x| scalar_u32(*x))?;
            Out { shape: to_shape()?, dtype: DType::U32 }
        }
        Op::Unary(u) => {
            computes(ins[0])?;
            if !u.row().takes(ins[0].dtype) || (u == Unary::LeadingZeros && ins[0].dtype == DType::I64) {
                bail!(DType, name, "is not defined on {}", ins[0].dtype);
            }
            Out { shape: ins[0].shape, dtype: u.dtype(ins[0].dtype) }
        }
        Op::Binary(b) => {
            same(ins[0], ins[1])?;
            computes(ins[0])?;
            if !b.row().takes(ins[0].dtype) || (b == Binary::MulHigh && ins[0].dtype == DType::I64) {
                bail!(DType, name, "is not defined on {}", ins[0].dtype);
            }
            Out { shape: ins[0].shape, dtype: b.dtype(ins[0].dtype) }
        }
        Op::Select => {
            same(ins[1], ins[2])?;
            if ins[0].dtype != DType::Bool || ins[0].shape != ins[1].shape {
                bail!(Shape, name, "needs a bool condition of shape {}, got {:?}", ins[1].shape, ins[0]);
            }
            ins[1]
        }
        Op::Cast => Out { shape: ins[0].shape, dtype: to_dtype()? },
        Op::Reduce { axes, .. } => {
            computes(ins[0])?;
            if ins[0].dtype == DType::Bool || ins[0].dtype == DType::U8 {
                bail!(DType, name, "is not defined on {}; cast first", ins[0].dtype);
            }
            let mut shape = ins[0].shape;
            for axis in axes.iter() {
                axis_below(axis as u8, shape.rank())?;
                shape = shape.with(axis, 1);
            }
            Out { shape, dtype: ins[0].dtype }
        }
        Op::ArgReduce { axis, .. } => {
            let axis = axis_below(axis, ins[0].shape.rank())?;
            computes(ins[0])?;
            if ins[0].dtype == DType::Bool || ins[0].dtype == DType::U8 {
                bail!(DType, name, "is not defined on {}; cast first", ins[0].dtype);
            }
            if ins[0].shape[axis] == 0 {
                bail!(Shape, name, "axis {axis} of {} is empty", ins[0].shape);
            }
            Out { shape: ins[0].shape.with(axis, 1), dtype: DType::I32 }
        }
        Op::MatMul => {
            computes(ins[0])?;
            let (a, b) = (ins[0].shape, ins[1].shape);
            let rank = a.rank();
            if rank < 2
                || b.rank() != rank
                || a.dims()[..rank - 2] != b.dims()[..rank - 2]
                || a[rank - 1] != b[rank - 2]
            {
                bail!(Shape, name, "shapes {a} and {b} do not fit [.., M, K] x [.., K, N]");
            }
            if ins[0].dtype != ins[1].dtype || !ins[0].dtype.is_float() {
                bail!(DType, name, "needs one float dtype, got {} and {}", ins[0].dtype, ins[1].dtype);
            }
            Out { shape: a.with(rank - 1, b[rank - 1]), dtype: ins[0].dtype }
        }
        Op::Reshape => {
            let shape = to_shape()?;
            if shape.elems() != ins[0].shape.elems() {
                bail!(
                    Shape,
                    name,
                    "{} has {} elements, {shape} has {}",
                    ins[0].shape,
                    ins[0].shape.elems(),
                    shape.elems()
                );
            }
            Out { shape, ..ins[0] }
        }
        Op::Permute(perm) => {
            let x = ins[0].shape;
            let perm = &perm[..x.rank()];
            if (0..x.rank()).any(|axis| !perm.contains(&(axis as u8))) {
                bail!(Argument, name, "{perm:?} is no permutation of the axes of {x}");
            }
            let dims: Vec<usize> = perm.iter().map(|p| x[usize::from(*p)]).collect();
            Out { shape: Shape::new(&dims), ..ins[0] }
        }
        Op::Expand => {
            let shape = to_shape()?;
            let fits = shape.rank() == ins[0].shape.rank()
                && ins[0].shape.dims().iter().zip(shape.dims()).all(|(a, b)| a == b || *a == 1);
            if !fits {
                bail!(Shape, name, "{} does not expand to {shape}", ins[0].shape);
            }
            Out { shape, ..ins[0] }
        }
        Op::Slice(steps) => {
            let shape = to_shape()?;
            part_fits(name, ins[0].shape, shape, &steps)?;
            Out { shape, ..ins[0] }
        }
        Op::Windows { axis, size, step, dilation } => {
            let from = ins[0].shape;
            let axis = axis_below(axis, from.rank())?;
            if size == 0 || step == 0 || dilation == 0 {
                bail!(Argument, name, "size {size}, step {step} and dilation {dilation} have to be above 0");
            }
            let span = (size as usize - 1) * dilation as usize + 1;
            if span > from[axis] {
                bail!(
                    Shape,
                    name,
                    "a window spans {span} elements, axis {axis} of {from} has {}",
                    from[axis]
                );
            }
            let count = (from[axis] - span) / step as usize + 1;
            let dims = [from.with(axis, count).dims(), &[size as usize]].concat();
            Out { shape: fits(name, &dims)?, ..ins[0] }
        }
        Op::Diagonal { a, b } => {
            let from = ins[0].shape;
            let (a, b) = (axis_below(a, from.rank())?, axis_below(b, from.rank())?);
            if a == b || from[a] != from[b] {
                bail!(Shape, name, "axes {a} and {b} of {from} are not two axes of one size");
            }
            let kept = (0..from.rank()).filter(|axis| ![a, b].contains(axis)).map(|axis| from[axis]);
            Out { shape: fits(name, &kept.chain([from[a]]).collect::<Vec<_>>())?, ..ins[0] }
        }
        Op::Pad { lo } => {
            let shape = to_shape()?;
            let fits = shape.rank() == ins[0].shape.rank()
                && (0..shape.rank()).all(|i| lo[i] as usize + ins[0].shape[i] <= shape[i]);
            if !fits {
                bail!(
                    Shape,
                    name,
                    "{} after {:?} zeros does not fit into {shape}",
                    ins[0].shape,
                    &lo[..ins[0].shape.rank()]
                );
            }
            Out { shape, ..ins[0] }
        }
        Op::Concat { axis } => {
            if ins.is_empty() {
                bail!(Argument, name, "needs at least one operand");
            }
            let axis = axis_below(axis, ins[0].shape.rank())?;
            let mut size = 0;
            for x in ins {
                if x.dtype != ins[0].dtype {
                    bail!(DType, name, "dtypes {} and {} differ", ins[0].dtype, x.dtype);
                }
                if x.shape.rank() != ins[0].shape.rank()
                    || x.shape.with(axis, 0) != ins[0].shape.with(axis, 0)
                {
                    bail!(Shape, name, "{} and {} differ beside axis {axis}", ins[0].shape, x.shape);
                }
                size += x.shape[axis];
            }
            Out { shape: ins[0].shape.with(axis, size), ..ins[0] }
        }
        Op::SliceAt { axis } => {
            let shape = to_shape()?;
            scalar_u32(ins[1])?;
            part_at_fits(name, ins[0].shape, shape, axis)?;
            Out { shape, ..ins[0] }
        }
        Op::SliceAssign(steps) => {
            if ins[0].dtype != ins[1].dtype {
                bail!(DType, name, "dtypes {} and {} differ", ins[0].dtype, ins[1].dtype);
            }
            part_fits(name, ins[0].shape, ins[1].shape, &steps)?;
            ins[0]
        }
        Op::SliceAssignAt { axis } => {
            if ins[0].dtype != ins[1].dtype {
                bail!(DType, name, "dtypes {} and {} differ", ins[0].dtype, ins[1].dtype);
            }
            scalar_u32(ins[2])?;
            part_at_fits(name, ins[0].shape, ins[1].shape, axis)?;
            ins[0]
        }
        Op::Gather { axis } => {
            let axis = axis_below(axis, ins[0].shape.rank())?;
            index_fits(name, ins[1], ins[0].shape, axis)?;
            Out { shape: ins[1].shape, dtype: ins[0].dtype }
        }
        Op::Scatter { axis, .. } => {
            let shape = to_shape()?;
            let axis = axis_below(axis, shape.rank())?;
            index_fits(name, ins[0], shape, axis)?;
            if ins[0].shape != ins[1].shape {
                bail!(Shape, name, "indices {} and values {} differ", ins[0].shape, ins[1].shape);
            }
            computes(ins[1])?;
            if ins[1].dtype == DType::Bool || ins[1].dtype == DType::U8 {
                bail!(DType, name, "is not defined on {}; cast first", ins[1].dtype);
            }
            Out { shape, dtype: ins[1].dtype }
        }
        Op::ArgSort { axis, .. } => {
            computes(ins[0])?;
            axis_below(axis, ins[0].shape.rank())?;
            Out { shape: ins[0].shape, dtype: DType::I32 }
        }
        Op::Scan { kind, axis, .. } => {
            axis_below(axis, ins[0].shape.rank())?;
            computes(ins[0])?;
            if kind == Scan::Recur {
                same(ins[0], ins[1])?;
            }
            let dtype = ins[0].dtype;
            if matches!(dtype, DType::Bool | DType::U8) || kind == Scan::LogAddExp && !dtype.is_float() {
                bail!(DType, name, "is not defined on {dtype}; cast first");
            }
            Out { shape: ins[0].shape, dtype: kind.dtype(dtype) }
        }
        Op::Matrix(kind) => matrix(kind, ins)?,
    })
}

/// As [`infer`], of operations with several results too.
///
/// # Errors
/// As [`infer`].
pub fn infer_all(op: Op, ins: &[Out], to: Option<Shape>, dtype: Option<DType>) -> Result<SmallVec<[Out; 1]>> {
    match op.attend() {
        Some(attend) => crate::attend::infer(op, attend, ins),
        None => Ok(SmallVec::from_buf([infer(op, ins, to, dtype)?])),
    }
}

fn fits(name: &str, dims: &[usize]) -> Result<Shape> {
    match Shape::try_new(dims) {
        Some(shape) => Ok(shape),
        None => bail!(Shape, name, "shape {dims:?}: rank over {MAX_RANK}, or too many elements"),
    }
}

fn matrix(kind: Matrix, ins: &[Out]) -> Result<Out> {
    let (name, a, dtype) = (kind.name(), ins[0].shape, ins[0].dtype);
    let Some((lead, n)) =
        a.rank().checked_sub(2).map(|r| (&a.dims()[..r], a[r])).filter(|(r, n)| a[r.len() + 1] == *n)
    else {
        bail!(Shape, name, "needs square matrices over the last two axes, got {a}");
    };
    if !matches!(dtype, DType::F32 | DType::F64) || ins.iter().any(|x| x.dtype != dtype) {
        bail!(DType, name, "needs f32 or f64, got {ins:?}; cast first");
    }
    Ok(match kind {
        Matrix::Cholesky => ins[0],
        Matrix::Slogdet => Out { shape: Shape::new(&[lead, &[2]].concat()), dtype },
        Matrix::Det => Out { shape: Shape::new(lead), dtype },
        Matrix::Triangular { .. } | Matrix::Solve => {
            let b = ins[1].shape;
            if b.rank() != a.rank() || b.dims()[..lead.len() + 1] != a.dims()[..lead.len() + 1] {
                bail!(Shape, name, "{a} and {b} do not fit [.., {n}, {n}] and [.., {n}, K]");
            }
            ins[1]
        }
    })
}

fn part_fits(name: &str, whole: Shape, part: Shape, steps: &crate::Steps) -> Result<()> {
    let inside = |i: usize| {
        let (first, step) = (steps.start[i], steps.step[i]);
        let last = first + step * (part[i] as i64 - 1);
        let range = 0..whole[i] as i64;
        step != 0 && (part[i] == 0 || range.contains(&first) && range.contains(&last))
    };
    if part.rank() != whole.rank() || !(0..part.rank()).all(inside) {
        bail!(
            Shape,
            name,
            "part {part} from {:?} by {:?} is not inside {whole}",
            &steps.start[..part.rank()],
            &steps.step[..part.rank()]
        );
    }
    Ok(())
}

fn part_at_fits(name: &str, whole: Shape, part: Shape, axis: u8) -> Result<()> {
    let axis = usize::from(axis);
    if axis >= whole.rank()
        || part.rank() != whole.rank()
        || part.with(axis, 0) != whole.with(axis, 0)
        || part[axis] > whole[axis]
    {
        bail!(Shape, name, "part {part} does not fit into {whole} along axis {axis}");
    }
    Ok(())
}

fn index_fits(name: &str, idx: Out, whole: Shape, axis: usize) -> Result<()> {
    if !idx.dtype.is_int() {
        bail!(DType, name, "needs integer indices, got {}", idx.dtype);
    }
    if idx.shape.rank() != whole.rank() || idx.shape.with(axis, 0) != whole.with(axis, 0) {
        bail!(Shape, name, "indices {} do not fit {whole} beside axis {axis}", idx.shape);
    }
    Ok(())
}
