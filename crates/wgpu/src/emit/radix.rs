//! The stable radix sort: for every 8 bits three launches, which count, scan and move. No workgroup waits for
//! another; a launch sees what those before it wrote. On software drivers, where barriers are dear, an invocation
//! takes a chunk of a line by itself.

use std::fmt::Write as _;

use wgrad_graph::Result;

use super::fold;
use super::kernel::{Cx, Kernel, Touch};
use crate::choose;
use crate::launch::Launch;

/// Invocations of a workgroup: one a digit.
const WG: u32 = 256;

/// Lines of keys, each to be put in order with the places that its keys had.
pub(super) struct Radix<'a> {
    pub(super) cx: Cx<'a>,
    pub(super) lines: usize,
    pub(super) n: usize,
    /// Bits of a key that tell keys apart.
    pub(super) bits: u32,
}

/// Where the keys come from and where the order goes.
pub(super) trait Ends<'a> {
    /// Notes what the first pass reads.
    fn reads(&self, k: &mut Kernel<'a>);
    /// Declarations of the first pass, and text that makes `key` of position `p` of line `line`.
    fn key(&self, k: &mut Kernel<'a>) -> Result<(String, String)>;
    /// Notes what the last pass writes; false where keys and places stay in scratch memory.
    fn writes(&self, k: &mut Kernel<'a>) -> bool;
    /// Text that writes `value` to place `to` of line `line`.
    fn store(&self, k: &mut Kernel<'a>) -> String;
}

impl<'a> Radix<'a> {
    fn passes(&self) -> u32 {
        self.bits.div_ceil(8).max(1)
    }

    /// Whether an invocation takes a chunk by itself, rather than a workgroup a tile.
    fn alone(&self) -> bool {
        choose::software(self.cx.caps)
    }

    fn each(&self) -> u32 {
        choose::radix_each(self.cx.caps)
    }

    /// Tiles, or chunks, of a line.
    fn tiles(&self) -> usize {
        if self.alone() {
            choose::radix_chunks(self.lines, self.n, self.cx.caps)
        } else {
            self.n.div_ceil((WG * self.each()) as usize)
        }
    }

    /// The grid of a launch of so many workgroups, or invocations that work alone.
    fn grid(&self, work: usize) -> Result<[u32; 3]> {
        let each = if self.alone() { self.workgroup() } else { 1 };
        fold((work as u64).div_ceil(u64::from(each)), self.cx.caps)
    }

    fn workgroup(&self) -> u32 {
        if self.alone() { choose::chunk_workgroup(self.cx.caps) } else { WG }
    }

    fn keys(&self) -> usize {
        self.lines * self.n
    }

    /// Pairs of keys and places that lie in scratch memory at a time.
    fn sides(&self, kept: bool) -> usize {
        (self.passes() as usize - usize::from(!kept)).min(2)
    }

    /// Words of scratch memory; `kept`: the ordered keys and places stay there.
    pub(super) fn words(&self, kept: bool) -> usize {
        self.sides(kept) * 2 * self.keys() + self.lines * 256 * (self.tiles() + 1)
    }

    /// Where the keys and the places begin that pass `pass` writes to scratch memory.
    fn side(&self, pass: u32) -> (usize, usize) {
        let at = (pass as usize % 2) * 2 * self.keys();
        (at, at + self.keys())
    }

    /// Where the ordered keys and places begin that stay in scratch memory.
    pub(super) fn kept(&self) -> (usize, usize) {
        self.side(self.passes() - 1)
    }

    /// All passes; `words` is the scratch memory of the step.
    pub(super) fn launches(&self, ends: &dyn Ends<'a>, kept: bool, words: usize) -> Result<Vec<Launch>> {
        let counts = self.sides(kept) * 2 * self.keys();
        let mut launches = Vec::new();
        for pass in 0..self.passes() {
            launches.push(self.count(ends, pass, counts, words)?);
            launches.push(self.scan(counts, words)?);
            launches.push(self.place(ends, pass, counts, words)?);
        }
        Ok(launches)
    }

    fn totals(&self, counts: usize) -> usize {
        counts + self.lines * 256 * self.tiles()
    }

    /// Text that makes `key`, and with `value` its place, of position `p` as pass `pass` finds them.
    fn load(
        &self,
        ends: &dyn Ends<'a>,
        k: &mut Kernel<'a>,
        pass: u32,
        value: bool,
    ) -> Result<(String, String)> {
        let (declared, mut text) = if pass == 0 {
            ends.key(k)?
        } else {
            let keys = k.word("keys_from", self.side(pass - 1).0 as i64);
            let key = k.scratch_word(&format!("{keys} + line * n + p"));
            (String::new(), format!("let key = {key};\n"))
        };
        if value && pass == 0 {
            text.push_str("let value = p;\n");
        } else if value {
            let values = k.word("values_from", self.side(pass - 1).1 as i64);
            let value = k.scratch_word(&format!("{values} + line * n + p"));
            text.push_str(&format!("let value = {value};\n"));
        }
        Ok((declared, text))
    }

    fn count(&self, ends: &dyn Ends<'a>, pass: u32, counts: usize, words: usize) -> Result<Launch> {
        let mut k = Kernel::new(self.cx);
        if pass == 0 {
            ends.reads(&mut k);
        }
        k.scratch(words, true, Touch::Each);
        let sizes = self.sizes(&mut k, pass, counts);
        let (declared, key) = self.load(ends, &mut k, pass, false)?;
        let grid = self.grid(self.lines * self.tiles())?;
        let (wg, word) = (self.workgroup(), k.scratch_word("at"));
        if self.alone() {
            let (clear, more) = (format!("{word} = 0u;"), format!("{word} = {word} + 1u;"));
            let extra = format!("const WG = {wg}u;\n{declared}");
            let regions = [("sizes", sizes.as_str()), ("clear", &clear), ("key", &key), ("more", &more)];
            return k.finish(wgrad_wgsl::RADIX_COUNT_LINE, &extra, &regions, grid, self.keys() as u64);
        }
        let store = format!("{word} = atomicLoad(&found[lane]);\n");
        let extra = format!("const WG = {wg}u;\nconst EACH = {}u;\n{declared}", self.each());
        let (mut loads, mut counted) = (String::new(), String::new());
        for i in 0..4 {
            let _ = write!(
                loads,
                "var key{i}: u32;\n{{\nlet p = min(p + {i}u * WG, n - 1u);\n{key}key{i} = key;\n}}\n"
            );
            let _ = writeln!(
                counted,
                "if (live && p + {i}u * WG < n) {{ atomicAdd(&found[(key{i} >> shift) & 255u], 1u); }}"
            );
        }
        let keys = format!("{loads}{counted}");
        let regions = [("sizes", sizes.as_str()), ("keys", &keys), ("store", &store)];
        k.finish(wgrad_wgsl::RADIX_COUNT, &extra, &regions, grid, self.keys() as u64)
    }

    fn sizes(&self, k: &mut Kernel<'a>, pass: u32, counts: usize) -> String {
        let shift = (8 * pass) as usize;
        let words = [
            ("lines", self.lines),
            ("n", self.n),
            ("tiles", self.tiles()),
            ("shift", shift),
            ("counts", counts),
        ];
        let mut text = k.declare_words(&words);
        if self.alone() {
            text.push_str(&k.declare_words(&[("span", self.n.div_ceil(self.tiles()))]));
        }
        text
    }

    fn scan(&self, counts: usize, words: usize) -> Result<Launch> {
        let mut k = Kernel::new(self.cx);
        k.scratch(words, true, Touch::Each);
        let rows = self.lines * 256;
        let totals = self.totals(counts);
        let sizes = [("rows", rows), ("tiles", self.tiles()), ("counts", counts), ("totals", totals)];
        let sizes = k.declare_words(&sizes);
        let word = k.scratch_word("at");
        let (count, store) = (format!("let count = {word};"), format!("{word} = left;"));
        let total = format!("{word} = before;");
        let extra = format!("const WG = {}u;\n", self.workgroup());
        let regions = [("sizes", sizes.as_str()), ("count", &count), ("store", &store), ("total", &total)];
        let grid = self.grid(rows)?;
        let file = if self.alone() { wgrad_wgsl::RADIX_SCAN_LINE } else { wgrad_wgsl::RADIX_SCAN };
        let mut launch = k.finish(file, &extra, &regions, grid, rows as u64)?;
        launch.cost_bytes = (rows * self.tiles()) as u64 * 8;
        Ok(launch)
    }

    fn place(&self, ends: &dyn Ends<'a>, pass: u32, counts: usize, words: usize) -> Result<Launch> {
        let mut k = Kernel::new(self.cx);
        if pass == 0 {
            ends.reads(&mut k);
        }
        let last = pass + 1 == self.passes() && ends.writes(&mut k);
        k.scratch(words, true, Touch::Each);
        let mut sizes = self.sizes(&mut k, pass, counts);
        sizes.push_str(&k.declare_words(&[("totals", self.totals(counts))]));
        let (declared, load) = self.load(ends, &mut k, pass, true)?;
        let store = if last {
            ends.store(&mut k)
        } else {
            let (keys, values) = self.side(pass);
            let (keys, values) = (k.word("keys_to", keys as i64), k.word("values_to", values as i64));
            let key = k.scratch_word(&format!("{keys} + line * n + to"));
            let value = k.scratch_word(&format!("{values} + line * n + to"));
            format!("{key} = key;\n{value} = value;\n")
        };
        let grid = self.grid(self.lines * self.tiles())?;
        let wg = self.workgroup();
        if self.alone() {
            let (word, sum) = (k.scratch_word("at"), k.scratch_word("sum"));
            let begin = format!("{word} = {word} + smaller;\nsmaller += {sum};\n");
            let place = format!("let to = {word};\n{word} = to + 1u;\n");
            let extra = format!("const WG = {wg}u;\n{declared}");
            let regions = [
                ("sizes", sizes.as_str()),
                ("begin", &begin),
                ("load", &load),
                ("place", &place),
                ("store", &store),
            ];
            return k.finish(wgrad_wgsl::RADIX_MOVE_LINE, &extra, &regions, grid, 4 * self.keys() as u64);
        }
        let total = k.scratch_word("totals + line * 256u + lane");
        let earlier = k.scratch_word("counts + (line * 256u + lane) * tiles + tile");
        let begin = format!("let total = {total};\nlet earlier = {earlier};\n");
        let each = self.each();
        if choose::votes(self.cx.caps) {
            let text =
                Moved { sizes: &sizes, declared: &declared, load: &load, begin: &begin, store: &store };
            return self.voted(k, &text, grid);
        }
        let room = WG * (each + 1);
        let extra = format!(
            "const WG = {wg}u;\nconst EACH = {each}u;\nvar<workgroup> keys: array<u32, {room}>;\n\
             var<workgroup> values: array<u32, {room}>;\n{declared}"
        );
        let regions = [("sizes", sizes.as_str()), ("load", &load), ("begin", &begin), ("store", &store)];
        k.finish(wgrad_wgsl::RADIX_MOVE, &extra, &regions, grid, 16 * self.keys() as u64)
    }

    /// The launch that moves, by votes of subgroups; every key has names of its own.
    fn voted(&self, k: Kernel<'a>, text: &Moved<'_>, grid: [u32; 3]) -> Result<Launch> {
        let (each, sg) = (self.each(), self.cx.caps.subgroup);
        let mut extra = format!(
            "const WG = {WG}u;\nconst EACH = {each}u;\nconst SG = {sg}u;\n\
             fn scanned(own: vec2<u32>, sub: u32) -> vec2<u32> {{\nvar sum = own;\nvar left = own;\n"
        );
        let mut step = 1;
        while step < sg {
            let _ = writeln!(
                extra,
                "left = subgroupShuffleUp(sum, {step}u);\nif (sub >= {step}u) {{ sum += left; }}"
            );
            step *= 2;
        }
        let _ = write!(extra, "return sum;\n}}\n{}", text.declared);
        let [mut loads, mut picks, mut ranks, mut places, mut stores] = [const { String::new() }; 5];
        for i in 0..each {
            // No branch between the loads, which would have each wait for the one before.
            let _ = write!(
                loads,
                "var key{i}: u32;\nvar value{i}: u32;\n{{\nlet p = min(own + {i}u * SG, n - 1u);\n\
                 {}key{i} = key;\nvalue{i} = value;\n}}\n",
                text.load
            );
            let _ = writeln!(picks, "key{i} = select(0xffffffffu, key{i}, own + {i}u * SG < n);");
            let _ = writeln!(ranks, "let rank{i} = ranked((key{i} >> shift) & 255u, part, sub);");
            let _ = write!(
                places,
                "{{\nlet place = placed((key{i} >> shift) & 255u, part) + rank{i};\n\
                 keys[place] = key{i};\nvalues[place] = value{i};\n}}\n"
            );
            let _ = write!(
                stores,
                "{{\nlet i = {i}u * WG + lane;\nif (i < live) {{\nlet key = keys[i];\nlet value = values[i];\n\
                 let to = starts[(key >> shift) & 255u] + i;\n{}}}\n}}\n",
                text.store
            );
        }
        loads.push_str(&picks);
        let regions = [
            ("sizes", text.sizes),
            ("loads", &loads),
            ("ranks", &ranks),
            ("begin", text.begin),
            ("places", &places),
            ("stores", &stores),
        ];
        k.finish(wgrad_wgsl::RADIX_RANK, &extra, &regions, grid, 16 * self.keys() as u64)
    }
}

/// Texts of the launch that moves.
struct Moved<'t> {
    sizes: &'t str,
    declared: &'t str,
    load: &'t str,
    begin: &'t str,
    store: &'t str,
}
