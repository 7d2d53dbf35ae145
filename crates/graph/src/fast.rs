//! Paths that exist for speed alone. Results with and without one agree within the tolerance of what they
//! compute, so that a wrong number is found by switching them off one after another. A path that pays on some
//! devices alone is off on others until it is asked for.

use std::fmt;

/// A path that is taken for speed, and can be switched off by its name: `WGRAD_OFF=quads,split_k`, or
/// [`Off::with`].
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum Fast {
    /// Several nodes in one kernel.
    Fusion,
    /// Equal kernels of several values, such as the updates of all parameters, as one dispatch.
    Batches,
    /// Four neighbouring elements by one invocation.
    Quads,
    /// Four turns of a reduction's loop at once.
    Unrolled,
    /// Operands that run across the result turned in workgroup memory.
    TiledTranspose,
    /// Few long reductions cut up among workgroups, combined by a second launch.
    SplitReductions,
    /// Sorting by digits, in launches of counting, scanning and moving.
    RadixSort,
    /// Scatters whose values are put in order by position first, so that every result has an invocation.
    SortedScatter,
    /// Few long scans cut up among workgroups.
    SplitScans,
    /// Lanes of a subgroup that tell each other what they have: scans of neighbours, ranks of keys.
    Subgroups,
    /// Matrix products staged through workgroup memory.
    TiledMatmul,
    /// Matrix products cut up along K among workgroups, combined by a second launch.
    SplitK,
    /// Matrix products of few rows by slices of K within a workgroup.
    StreamedMatmul,
    /// Matrix products of f16 on units that multiply small matrices, where the adapter has those.
    CooperativeMatmul,
    /// Matrix products of f32 on those units, each number as two halves.
    SplitMatmul,
    /// Lanes of a subgroup that load the rows of a matrix product for each other, on software drivers.
    SharedRows,
    /// Halves as words of 16 bits, where the adapter has those.
    NativeHalf,
    /// Two words moved as one of 64 bits, where a driver takes as long for either.
    LongWords,
    /// Halves converted by the driver's own instructions, where these are right for all of them.
    PackedHalves,
    /// Steps from halves to a half by the driver's own arithmetic of those, on software drivers where it is right.
    HalfArithmetic,
    /// On the CPU: neighbouring kernels of one row after another, while the row is in the cache.
    RowRuns,
    /// On the CPU: bands of a product's rows, each by one thread through all that follows in its kernel.
    ProductBands,
    /// Values that are stored although what they are computed from is stored too are computed again instead.
    Repeats,
    /// Passes equal to an earlier one take over its gradient graph and its flush.
    EqualPasses,
    /// Several reductions along one row, and what lies between and after them, in one kernel.
    RowPrograms,
    /// Sums over rows for each column, by the kernel that runs along the rows before them.
    ColumnSums,
    /// Attention by blocks, without its weights in memory.
    FlashAttention,
    /// Attention of f16 on units that multiply small matrices, where the adapter has those.
    CooperativeAttention,
    /// Attention of f32 on those units, each number as two halves.
    SplitAttention,
    /// A plan bound to the buffers that it was bound to before takes its bind groups as a whole.
    BoundPlans,
    /// Convolutions over values that lie with their channels last, so that the factors of their products are vectors.
    ChannelsLast,
    /// Divisions by sizes as products with their reciprocals, where the adapter multiplies words of 64 bits.
    Reciprocals,
}

impl Fast {
    /// All of them.
    pub const ALL: [Fast; 32] = [
        Fast::Fusion,
        Fast::Batches,
        Fast::Quads,
        Fast::Unrolled,
        Fast::TiledTranspose,
        Fast::SplitReductions,
        Fast::RadixSort,
        Fast::SortedScatter,
        Fast::SplitScans,
        Fast::Subgroups,
        Fast::TiledMatmul,
        Fast::SplitK,
        Fast::StreamedMatmul,
        Fast::CooperativeMatmul,
        Fast::SplitMatmul,
        Fast::SharedRows,
        Fast::NativeHalf,
        Fast::LongWords,
        Fast::PackedHalves,
        Fast::HalfArithmetic,
        Fast::RowRuns,
        Fast::ProductBands,
        Fast::Repeats,
        Fast::EqualPasses,
        Fast::RowPrograms,
        Fast::ColumnSums,
        Fast::FlashAttention,
        Fast::CooperativeAttention,
        Fast::SplitAttention,
        Fast::BoundPlans,
        Fast::ChannelsLast,
        Fast::Reciprocals,
    ];

    /// The name by which it is switched off.
    pub const fn name(self) -> &'static str {
        match self {
            Fast::Fusion => "fusion",
            Fast::Batches => "batches",
            Fast::Quads => "quads",
            Fast::Unrolled => "unrolled",
            Fast::TiledTranspose => "tiled_transpose",
            Fast::SplitReductions => "split_reductions",
            Fast::RadixSort => "radix_sort",
            Fast::SortedScatter => "sorted_scatter",
            Fast::SplitScans => "split_scans",
            Fast::Subgroups => "subgroups",
            Fast::TiledMatmul => "tiled_matmul",
            Fast::SplitK => "split_k",
            Fast::StreamedMatmul => "streamed_matmul",
            Fast::CooperativeMatmul => "cooperative_matmul",
            Fast::SplitMatmul => "split_matmul",
            Fast::SharedRows => "shared_rows",
            Fast::NativeHalf => "native_half",
            Fast::LongWords => "long_words",
            Fast::PackedHalves => "packed_halves",
            Fast::HalfArithmetic => "half_arithmetic",
            Fast::RowRuns => "row_runs",
            Fast::ProductBands => "product_bands",
            Fast::Repeats => "repeats",
            Fast::EqualPasses => "equal_passes",
            Fast::RowPrograms => "row_programs",
            Fast::ColumnSums => "column_sums",
            Fast::FlashAttention => "flash_attention",
            Fast::CooperativeAttention => "cooperative_attention",
            Fast::SplitAttention => "split_attention",
            Fast::BoundPlans => "bound_plans",
            Fast::ChannelsLast => "channels_last",
            Fast::Reciprocals => "reciprocals",
        }
    }

    /// The path called `name`.
    pub fn named(name: &str) -> Option<Fast> {
        Fast::ALL.into_iter().find(|path| path.name() == name)
    }
}

impl fmt::Display for Fast {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The fast paths that are switched off; none by default.
#[derive(Copy, Clone, Default, PartialEq, Eq, Hash)]
pub struct Off(u32);

impl Off {
    /// Paths that pay where units multiply matrices: off on other devices unless they are asked for.
    pub const WITHOUT_UNITS: Off = Off(1 << Fast::ChannelsLast as u32);

    /// What `WGRAD_OFF` names: paths separated by commas, or `all`; and, on a device without `units` for matrices,
    /// [`Off::WITHOUT_UNITS`] but for what `WGRAD_ON` names.
    ///
    /// # Panics
    /// Where one names a path that there is not: a search that switches nothing off finds nothing.
    pub fn of_env(units: bool) -> Off {
        let [off, on] = ["WGRAD_OFF", "WGRAD_ON"].map(|key| {
            let names = std::env::var(key).unwrap_or_default();
            match Off::parse(&names) {
                Ok(paths) => paths,
                Err(name) => {
                    panic!("{key}: no fast path is called `{name}`; there are: all, {}", Off(u32::MAX))
                }
            }
        });
        if units { off } else { off.and(Off::WITHOUT_UNITS.less(on)) }
    }

    /// These but for those of `other`.
    #[must_use]
    const fn less(self, other: Off) -> Off {
        Off(self.0 & !other.0)
    }

    /// The paths in a list of names separated by commas; the name that is none's otherwise.
    pub fn parse(names: &str) -> Result<Off, &str> {
        let names = names.split(',').map(str::trim).filter(|name| !name.is_empty());
        names.map(|name| (name, Fast::named(name))).try_fold(Off::default(), |off, named| match named {
            ("all", _) => Ok(Off(u32::MAX)),
            (_, Some(path)) => Ok(off.with(path)),
            (name, None) => Err(name),
        })
    }

    /// These, and `path`.
    #[must_use]
    pub const fn with(self, path: Fast) -> Off {
        Off(self.0 | 1 << path as u32)
    }

    /// These, and those of `other`.
    #[must_use]
    pub const fn and(self, other: Off) -> Off {
        Off(self.0 | other.0)
    }

    /// Whether `path` is switched off.
    pub const fn contains(self, path: Fast) -> bool {
        self.0 & 1 << path as u32 != 0
    }
}

impl fmt::Display for Off {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> =
            Fast::ALL.into_iter().filter(|path| self.contains(*path)).map(Fast::name).collect();
        f.write_str(&names.join(", "))
    }
}

impl fmt::Debug for Off {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Off({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_switch_paths_off() {
        assert_eq!(Off::parse(""), Ok(Off::default()));
        let off = Off::parse(" quads, split_k ,").unwrap();
        assert_eq!(off, Off::default().with(Fast::Quads).with(Fast::SplitK));
        assert!(off.contains(Fast::SplitK) && !off.contains(Fast::Batches));
        assert_eq!(off.to_string(), "quads, split_k");
        assert_eq!(Off::parse("quads,quad"), Err("quad"));
        let all = Off::parse("all").unwrap();
        assert!(Fast::ALL.into_iter().all(|path| all.contains(path)));
        assert!(Fast::ALL.into_iter().all(|path| all.less(off).contains(path) != off.contains(path)));
    }

    #[test]
    fn each_path_has_a_name_of_its_own() {
        for (i, path) in Fast::ALL.into_iter().enumerate() {
            assert_eq!((path as usize, Fast::named(path.name())), (i, Some(path)));
        }
    }
}
