//! Which kernels of the large sizes run: transposes, scans in chunks, sorts by digits, scatters in order.

use wgrad_graph::{Caps, Fast};

use super::{rounds, software};

/// Whether an operand that has neighbours along an axis of `turned` points, and lies `stride` elements apart
/// along the last axis, of `last` points, is turned in workgroup memory.
pub(crate) fn turns(turned: usize, last: usize, stride: u64, points: usize, caps: &Caps) -> bool {
    // Read as it lies, each invocation of a subgroup fetches 32 bytes for 4: an H200 reached 512 of 4300 GB/s.
    // Below 8 elements apart neighbours share those bytes; narrow axes leave most of a tile empty, and what
    // has less than 65536 points comes out of the caches. Software drivers load element by element anyway,
    // and pay for a barrier by a switch of coroutines.
    !software(caps)
        && caps.allows(Fast::TiledTranspose)
        && stride >= 8
        && turned >= 16
        && last >= 16
        && points >= 1 << 16
}

/// Edge of the tiles of operands of `words` words an element together; `narrow` is the shorter of the two axes.
pub(crate) fn turned_edge(words: usize, quads: bool, narrow: usize, caps: &Caps) -> Option<u32> {
    // 64 by 64 keeps 16 loads of an invocation under way, and its lines are whole for halves as well; beyond
    // 34 KiB few workgroups share a multiprocessor. An invocation alone for a point moves words: 32 are a line.
    let fits = |edge: usize| edge * (edge + 1) * words * 4 <= caps.shared_bytes.min(34 << 10);
    let large = quads && narrow > 32 && fits(64);
    if large { Some(64) } else { fits(32).then_some(32) }
}

/// Invocations of a workgroup that turns a tile.
pub(crate) fn turning_workgroup(caps: &Caps) -> u32 {
    256.min(caps.max_invocations)
}

/// Chunks into which each of `lines` lines of `n` elements is cut, each with a workgroup that scans tiles of `tile`.
pub(crate) fn scan_chunks(lines: usize, n: usize, tile: usize, caps: &Caps) -> usize {
    if !caps.allows(Fast::SplitScans) {
        return 1;
    }
    if software(caps) {
        // An invocation a chunk: 128 of them keep the vector lanes of a few cores busy. lavapipe runs along 2^20
        // elements in 30 ms so, in 120 by a workgroup with barriers. An element is six rounds of loops at most, a chunk
        // before this one another.
        let chunks = (128 / lines.max(1)).max(n.div_ceil(8000));
        return if lines >= 64 || n < 4096 || chunks > 16_000 { 1 } else { chunks };
    }
    // A chunk's total is read before it is scanned: 12 bytes an element instead of 8, and a launch of 5 us more,
    // for an H200 full of workgroups (1056) instead of one a line. Lines that fill a quarter of it keep to
    // themselves; a chunk keeps 4 tiles, and 1024 totals are read by one round of its lanes.
    const FULL: usize = 1056;
    if tile == 0 || lines >= FULL / 4 || n < 16 * tile {
        return 1;
    }
    (FULL / lines.max(1)).min(n / (4 * tile)).clamp(1, 1024)
}

/// Lanes of a workgroup that scans lines of `n` neighbours by quads, four a lane and tile; `None`: it does not.
pub(crate) fn scan_quads(lines: usize, inner: usize, n: usize, caps: &Caps) -> Option<u32> {
    // Four loads of 16 bytes are on their way at a time for each lane, and a tile has one barrier. Lanes that load a
    // word each and take turns in workgroup memory need 0.51 ms for what takes 0.22. Short lines in great number
    // have an invocation each.
    let subgroup = caps.subgroup;
    let known = subgroup.is_power_of_two() && (4..=64).contains(&subgroup) && caps.max_invocations >= 256;
    let fits = inner == 1 && n.is_multiple_of(4) && n >= 1024 && !(lines >= 1 << 15 && n <= 256);
    if software(caps) || !caps.allows(Fast::Subgroups) || !known || !fits {
        return None;
    }
    Some((n.div_ceil(16).next_power_of_two() as u32).clamp(subgroup, 256))
}

/// Tiles of a chunk of a line of `n` elements that quads are scanned of.
pub(crate) fn scan_tiles(lines: usize, n: usize, tile: usize, caps: &Caps) -> usize {
    // A chunk's total is read before it is scanned, and a launch between them scans the totals. A chunk is one tile, so
    // that what runs at a time lies together: 2^26 floats take an H200 0.22 ms, 0.60 with 1024 chunks whose loads
    // stood in branches.
    let all = n.div_ceil(tile);
    if !caps.allows(Fast::SplitScans) || lines >= 264 || n < 16 * tile {
        return all;
    }
    (lines * all).div_ceil(1 << 20)
}

/// Whether lines of `n` keys of `bits` bits, `count` keys in all, are put in order by their digits.
pub(crate) fn radix(n: usize, count: usize, bits: u32, caps: &Caps) -> bool {
    if !caps.allows(Fast::RadixSort) || bits > 32 || count > 1 << 26 {
        return false;
    }
    if software(caps) {
        // One invocation a chunk, no barriers: lavapipe sorts 2^20 keys in a tenth of the time of merging (0.2 s
        // and 2.5 s on two busy cores), 4096 in a sixth. Shorter lines are mostly counters.
        return n >= 512;
    }
    // A pass of 8 bits is three launches and moves 24 bytes a key; merging is a launch for each doubling, in
    // which every key takes as many dependent reads as its run has doublings. With 32 bits that is 12 launches
    // of 5 us, as many as merging has from 2^18 keys on; short lines in great number fill the tiles badly
    // below 4096. Keys of 64 bits would be 8 passes: they are merged. The tiles need workgroups of 256 and
    // their memory.
    let passes = bits.div_ceil(8) as usize;
    caps.max_invocations >= 256 && caps.shared_bytes >= 32 << 10 && n >= 4096 && count >= passes << 16
}

/// Chunks of a line of `n` keys that software drivers sort by one invocation each.
pub(crate) fn radix_chunks(lines: usize, n: usize, caps: &Caps) -> usize {
    // Enough for the vector lanes of all cores, few enough that 256 counters each stay in the cache: on lavapipe
    // 16 for 4096 keys, 64 for 65536, 128 to 256 for 2^20 are best. The rest keeps loops below the most that llvmpipe runs.
    let good = (1usize << (n.max(1).ilog2() / 2)) / 4;
    let least = n.div_ceil((rounds(caps) / 2).min(n.max(1)));
    (good.clamp(8, 256) / lines.max(1)).max(least).max(1)
}

/// Whether the radix sort ranks keys by votes of subgroups.
pub(crate) fn votes(caps: &Caps) -> bool {
    caps.allows(Fast::Subgroups) && caps.subgroup.is_power_of_two() && (8..=32).contains(&caps.subgroup)
}

/// Keys of an invocation of the radix sort.
pub(crate) fn radix_each(caps: &Caps) -> u32 {
    if votes(caps) {
        // 16 keys give runs of 16 a digit, half of a line. A subgroup has 256 counters of 16 bits.
        let rest = 256 / caps.subgroup as usize * 512 + 2048;
        let fits = |each: u32| rest + each as usize * 2048 <= caps.shared_bytes;
        return [16, 8, 4].into_iter().find(|each| fits(*each)).unwrap_or(4);
    }
    // Keys and places of a tile and 13 KiB of counters: 16 keys give runs of 16 a digit, half of a line.
    if caps.shared_bytes >= 48 << 10 { 16 } else { 8 }
}

/// Whether a scatter of `n` values a column to `size` positions puts them in order first.
pub(crate) fn sorted_scatter(columns: usize, n: usize, size: usize, caps: &Caps) -> bool {
    // A column's owner takes a dependent read for each value (0.7 us on an H200) and a write for each position
    // (5 ns): an embedding's gradient of 8192 ids took milliseconds. The order takes 5 launches and three more
    // for every 8 bits of a position, of 5 us each, and then moves every byte once. It pays above 80 us, as
    // long as the columns do not fill the device by themselves: 262144 owners hide each other's reads.
    // Software drivers run few invocations at once: owners are as good there.
    let owners_ns = 700 * n + 5 * size;
    !software(caps)
        && caps.allows(Fast::SortedScatter)
        && caps.max_invocations >= 256
        && caps.shared_bytes >= 32 << 10
        && n <= 1 << 26
        && columns < 1 << 18
        && owners_ns > 80_000
}

/// Whether the order of `n` values to `size` positions is found by counting, each position against all others.
pub(crate) fn counted_scatter(n: usize, size: usize) -> bool {
    // Six launches of a radix sort of 8192 keys, of two workgroups each, take an H200 50 us; 67 million comparisons 10.
    // A key and its place share a word, which is never all ones.
    let bits = |n: usize| usize::BITS - n.leading_zeros();
    n <= 1 << 14 && bits(size) + bits(n) <= 32
}

/// Ordered values of which a scatter combines those for one position ahead: about the square root of all.
pub(crate) fn scatter_window(n: usize) -> usize {
    // A position that takes all values is a loop over twice a window and all windows.
    (1 << (n.max(1).ilog2() / 2)).clamp(32, 1024)
}
