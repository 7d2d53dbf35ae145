//! Kernel sources, one WGSL file each. Files of functions, which are valid together, are taken from by
//! name; the others are valid on their own: regions between `//[ name` and `//]` hold an identity kernel that the printer replaces.

/// Float functions that keep NaN, and pow.
pub const MATH: &str = include_str!("math.wgsl");
/// Transcendental functions.
pub const TRANSCENDENTAL: &str = include_str!("transcendental.wgsl");
/// Inverse, trigonometric and hyperbolic functions, and the complement of erf.
pub const INVERSE: &str = include_str!("inverse.wgsl");
/// Integer functions.
pub const INTEGER: &str = include_str!("integer.wgsl");
/// Conversions and the order of arg-reductions.
pub const CAST: &str = include_str!("cast.wgsl");
/// Floats of 16 bits.
pub const HALF: &str = include_str!("half.wgsl");
/// Neighbours in words of 64 bits.
pub const LONG: &str = include_str!("long.wgsl");
/// The test of words of 16 bits.
pub const NATIVE_HALF: &str = include_str!("native_half.wgsl");
/// The test of the driver's conversions of halves.
pub const PACKED_HALF: &str = include_str!("packed_half.wgsl");
/// The test of the driver's arithmetic of halves.
pub const HALF_ARITHMETIC: &str = include_str!("half_arithmetic.wgsl");
/// Arithmetic of integers of 64 bits.
pub const INT64: &str = include_str!("int64.wgsl");
/// Order and conversions of integers of 64 bits.
pub const INT64_MORE: &str = include_str!("int64_more.wgsl");
/// Random bits.
pub const RANDOM: &str = include_str!("random.wgsl");
/// Elementwise kernels.
pub const POINTWISE: &str = include_str!("pointwise.wgsl");
/// Elementwise kernels of operands that are turned in workgroup memory.
pub const TRANSPOSE: &str = include_str!("transpose.wgsl");
/// Reductions.
pub const REDUCE: &str = include_str!("reduce.wgsl");
/// Row programs.
pub const ROW: &str = include_str!("row.wgsl");
/// Row programs that sum columns meanwhile.
pub const ROW_SUMS: &str = include_str!("row_sums.wgsl");
/// Scatter.
pub const SCATTER: &str = include_str!("scatter.wgsl");
/// Matrix products staged through workgroup memory.
pub const MATMUL_TILE: &str = include_str!("matmul_tile.wgsl");
/// Matrix products straight from storage.
pub const MATMUL_DIRECT: &str = include_str!("matmul_direct.wgsl");
/// Matrix products of few rows.
pub const MATMUL_STREAM: &str = include_str!("matmul_stream.wgsl");
/// The largest numbers of the factors of a product.
pub const MATMUL_RANGE: &str = include_str!("matmul_range.wgsl");

/// Scans, one invocation a line.
pub const SCAN_LINE: &str = include_str!("scan_line.wgsl");
/// Scans, one workgroup a line.
pub const SCAN_TILE: &str = include_str!("scan_tile.wgsl");
/// Scans of neighbours, one workgroup a line, four elements a lane and row.
pub const SCAN_QUADS: &str = include_str!("scan_quads.wgsl");

/// Few positions of a scatter put in order, by counting.
pub const SCATTER_RANK: &str = include_str!("scatter_rank.wgsl");
/// Places in order, by counting.
pub const ARGSORT_RANK: &str = include_str!("argsort_rank.wgsl");
/// Two ordered runs as one.
pub const ARGSORT_MERGE: &str = include_str!("argsort_merge.wgsl");

/// Digits of a tile counted, for the radix sort.
pub const RADIX_COUNT: &str = include_str!("radix_count.wgsl");
/// Where each tile's digits begin.
pub const RADIX_SCAN: &str = include_str!("radix_scan.wgsl");
/// Keys and values moved to where their digit puts them.
pub const RADIX_MOVE: &str = include_str!("radix_move.wgsl");
/// Keys and values moved to where their digit puts them, where lanes of a subgroup vote.
pub const RADIX_RANK: &str = include_str!("radix_rank.wgsl");
/// Digits of a chunk counted by one invocation.
pub const RADIX_COUNT_LINE: &str = include_str!("radix_count_line.wgsl");
/// Where each chunk's digits begin.
pub const RADIX_SCAN_LINE: &str = include_str!("radix_scan_line.wgsl");
/// A chunk's keys and values moved by one invocation.
pub const RADIX_MOVE_LINE: &str = include_str!("radix_move_line.wgsl");

/// Where each position's share of the ordered values begins.
pub const SCATTER_BOUNDS: &str = include_str!("scatter_bounds.wgsl");
/// Windows of ordered values that go to one position.
pub const SCATTER_WINDOWS: &str = include_str!("scatter_windows.wgsl");
/// Ordered values combined, one invocation a result.
pub const SCATTER_ROWS: &str = include_str!("scatter_rows.wgsl");

/// Cholesky factors, one workgroup a matrix.
pub const MATRIX_CHOLESKY: &str = include_str!("matrix_cholesky.wgsl");
/// Triangular systems, one workgroup a matrix and block of columns.
pub const MATRIX_TRIANGULAR: &str = include_str!("matrix_triangular.wgsl");
/// Elimination with row exchanges, one workgroup a matrix.
pub const MATRIX_LU: &str = include_str!("matrix_lu.wgsl");

/// Attention and its gradients by tiles.
pub const ATTENTION_TILE: &str = include_str!("attention_tile.wgsl");

/// Every file: name and source.
pub const ALL: [(&str, &str); 41] = [
    ("math", MATH),
    ("transcendental", TRANSCENDENTAL),
    ("inverse", INVERSE),
    ("integer", INTEGER),
    ("cast", CAST),
    ("half", HALF),
    ("long", LONG),
    ("native_half", NATIVE_HALF),
    ("packed_half", PACKED_HALF),
    ("half_arithmetic", HALF_ARITHMETIC),
    ("int64", INT64),
    ("int64_more", INT64_MORE),
    ("random", RANDOM),
    ("pointwise", POINTWISE),
    ("transpose", TRANSPOSE),
    ("reduce", REDUCE),
    ("row", ROW),
    ("scatter", SCATTER),
    ("matmul_tile", MATMUL_TILE),
    ("matmul_direct", MATMUL_DIRECT),
    ("matmul_range", MATMUL_RANGE),
    ("matmul_stream", MATMUL_STREAM),
    ("scan_line", SCAN_LINE),
    ("scan_tile", SCAN_TILE),
    ("scan_quads", SCAN_QUADS),
    ("argsort_rank", ARGSORT_RANK),
    ("argsort_merge", ARGSORT_MERGE),
    ("radix_count", RADIX_COUNT),
    ("radix_scan", RADIX_SCAN),
    ("radix_move", RADIX_MOVE),
    ("radix_rank", RADIX_RANK),
    ("radix_count_line", RADIX_COUNT_LINE),
    ("radix_scan_line", RADIX_SCAN_LINE),
    ("radix_move_line", RADIX_MOVE_LINE),
    ("scatter_bounds", SCATTER_BOUNDS),
    ("scatter_windows", SCATTER_WINDOWS),
    ("scatter_rows", SCATTER_ROWS),
    ("matrix_cholesky", MATRIX_CHOLESKY),
    ("matrix_triangular", MATRIX_TRIANGULAR),
    ("matrix_lu", MATRIX_LU),
    ("attention_tile", ATTENTION_TILE),
];

/// The files of functions, of which one may call another's.
pub const FUNCTIONS: [&str; 10] =
    [MATH, TRANSCENDENTAL, INVERSE, INTEGER, CAST, HALF, LONG, INT64, INT64_MORE, RANDOM];
