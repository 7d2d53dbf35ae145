//! Units for matrices in plain WGSL, so that kernels that need them run where there are none: every invocation of a
//! subgroup has its matrices whole, in scratch memory, and does what all of them would do together. What follows on each
//! other is a table that one loop walks, of as many rounds as no compiler knows: drivers write out every call and loop.

use std::collections::HashMap;
use std::fmt::Write as _;

use crate::emit::template::prelude;
use crate::launch::{Binding, Bound, Lowered};

/// A kernel under translation.
#[derive(Default)]
struct Emulator {
    text: String,
    /// Numbers of matrices by their names; 0 is one of zeros.
    matrices: HashMap<String, usize>,
    /// Workgroup memory with halves.
    arrays: Vec<String>,
    /// Names of addresses.
    places: HashMap<String, String>,
    /// What the next loop does.
    steps: Vec<String>,
    /// Blocks that those opened, less those that they closed.
    blocks: i32,
}

/// What a loop does by number; arrays are loaded by those behind.
const MULTIPLY: usize = 0;
const ADD: usize = 1;
const TIMES: usize = 2;
const LOAD: usize = 3;

impl Emulator {
    fn number(&mut self, name: &str) -> usize {
        let next = self.matrices.len() + 1;
        if name.starts_with("coop_mat") { 0 } else { *self.matrices.entry(name.to_owned()).or_insert(next) }
    }

    fn known(&self, name: &str) -> bool {
        self.matrices.contains_key(name)
    }

    /// `line` as a step of the next loop, if it is one.
    fn step(&mut self, line: &str) -> bool {
        let line = line.trim();
        if matches!(line, "{" | "}") && !(self.steps.is_empty() && self.places.is_empty()) {
            self.blocks += if line == "{" { 1 } else { -1 };
            return true;
        }
        let bare = line.trim_start_matches("let ").trim_start_matches("var ").trim_end_matches(';');
        let Some((name, made)) = bare.split_once(" = ") else {
            return false;
        };
        let is_place = |name: &str| {
            let rest = name.strip_prefix('i').unwrap_or_default().trim_start_matches(['a', 'b', 'p', 'q']);
            !rest.is_empty() && rest.chars().all(|c| c.is_ascii_digit() || c == '_')
        };
        if is_place(name) {
            self.places.insert(name.to_owned(), made.to_owned());
            return true;
        }
        // `y + z * by` is two steps.
        let mut made = made.to_owned();
        if let Some((sum, by)) = made.clone().rsplit_once(" * ")
            && let Some((y, z)) = sum.split_once(" + ").filter(|(y, z)| self.known(y) && self.known(z))
        {
            let [x, a] = ["part of a sum", z].map(|m| self.number(m));
            self.steps.push(format!("kind = {TIMES}u; x = {x}u; a = {a}u; by = {by};"));
            made = format!("{y} + part of a sum");
        }
        let made = &*made;
        let step = if made.starts_with("coop_mat") {
            format!("kind = {TIMES}u; x = {}u;", self.number(name))
        } else if made.starts_with("coopLoad") {
            let turned = u32::from(made.starts_with("coopLoadT"));
            let (array, rest) = made.split_once("(&").unwrap().1.split_once('[').unwrap();
            let (at, stride) = rest.trim_end_matches(')').split_once("], ").unwrap();
            let kind = LOAD + self.arrays.iter().position(|a| a == array).unwrap();
            let at = self.places.get(at).cloned().unwrap_or_else(|| at.to_owned());
            format!("kind = {kind}u; x = {}u; a = {at}; b = {stride}; c = {turned}u;", self.number(name))
        } else if let Some(inner) = made.strip_prefix("coopMultiplyAdd(") {
            let mut parts = inner.trim_end_matches(')').splitn(3, ", ");
            let [a, b, c] = std::array::from_fn(|_| self.number(parts.next().unwrap()));
            format!("kind = {MULTIPLY}u; x = {}u; a = {a}u; b = {b}u; c = {c}u;", self.number(name))
        } else if let Some((y, z)) = made.split_once(" + ").filter(|(y, z)| self.known(y) && self.known(z)) {
            let [x, a, b] = [name, y, z].map(|m| self.number(m));
            format!("kind = {ADD}u; x = {x}u; a = {a}u; b = {b}u;")
        } else if let Some((y, by)) = made.split_once(" * ").filter(|(y, _)| self.known(y)) {
            let [x, a] = [name, y].map(|m| self.number(m));
            format!("kind = {TIMES}u; x = {x}u; a = {a}u; by = {by};")
        } else {
            return false;
        };
        self.steps.push(step);
        true
    }

    /// The loop over what was noted.
    fn flush(&mut self) {
        self.places.clear();
        if !self.steps.is_empty() {
            let _ = writeln!(
                self.text,
                "for (var step = 0u; step < rows_of_all() / 16u * {}u; step += 1u) {{\n\
                 var kind = 0u;\nvar x = 0u;\nvar a = 0u;\nvar b = 0u;\nvar c = 0u;\nvar by = 0.0;\nswitch step {{",
                self.steps.len()
            );
            for (i, step) in self.steps.drain(..).enumerate() {
                let _ = writeln!(self.text, "case {i}u: {{ {step} }}");
            }
            self.text.push_str("default: {}\n}\nmatrix_step(kind, x, a, b, c, by);\n}\n");
        }
        let block = if self.blocks > 0 { "{\n" } else { "}\n" };
        self.text.push_str(&block.repeat(self.blocks.unsigned_abs() as usize));
        self.blocks = 0;
    }

    fn line(&mut self, line: &str) {
        if self.step(line) {
            return;
        }
        self.flush();
        if let Some((name, ty)) = line.strip_prefix("var<workgroup> ").and_then(|l| l.split_once(": "))
            && (name == "te" || ty.starts_with("array<vec4<f16>"))
        {
            self.arrays.push(name.to_owned());
        }
        if let Some(name) = line.trim().strip_prefix("var ").and_then(|l| l.split_once(": coop_mat")) {
            let x = self.number(name.0);
            let _ = writeln!(
                self.text,
                "home = first_matrix(group, lane);\nlane_of_all = lane;\nzero(0u);\nzero({x}u);"
            );
        } else if let Some(rest) = line.trim().strip_prefix("coopStoreT(") {
            let (x, rest) = rest.split_once(", &te[").unwrap();
            let (at, stride) = rest.trim_end_matches(");").split_once("], ").unwrap();
            let x = self.number(x);
            let _ = writeln!(self.text, "store_te({x}u, {at}, {stride});");
        } else {
            let names = [
                ("array<vec4<f16>", "array<vec2<u32>"),
                ("vec4<f16>()", "vec2<u32>()"),
                ("vec4<f16>(", "four_halves("),
                ("unpack2x16float(", "two_floats("),
                ("pack2x16float(", "two_halves("),
                ("subgroupBarrier(", "workgroupBarrier("),
                ("subgroupShuffleXor(", "of_beside("),
                ("subgroupShuffle(", "of_lane("),
                ("subgroupMax(", "largest_of("),
                ("subgroupAny(", "any_of("),
            ];
            let line = names.iter().fold(line.to_owned(), |line, (from, to)| line.replace(from, to));
            let _ = writeln!(self.text, "{line}");
        }
    }

    /// What the text calls, for matrices that lie in binding `b`.
    fn functions(&self, b: usize, grid: [u32; 3]) -> String {
        // By rows, each written out: llvmpipe leaves every loop after 65535 rounds of all loops.
        let (mut loads, mut products) = (String::new(), String::new());
        for (i, array) in self.arrays.iter().enumerate() {
            let _ = writeln!(loads, "case {}u: {{\nif (c == 1u) {{", LOAD + i);
            let floats = if array == "te" { "" } else { "four_floats" };
            for q in 0..4 {
                let _ = writeln!(loads, "s{q} = {floats}({array}[a + r * b + {q}u]);");
            }
            loads.push_str("} else {\n");
            for q in 0..16 {
                let _ = writeln!(
                    loads,
                    "s{}[{}u] = {floats}({array}[a + {q}u * b + r / 4u])[r % 4u];",
                    q / 4,
                    q % 4
                );
            }
            loads.push_str("}\n}\n");
        }
        for k in 0..16 {
            let _ = writeln!(products, "let a{k} = four(a, r * 16u + {}u)[{}u];", k / 4 * 4, k % 4);
            for q in 0..4 {
                let _ = writeln!(products, "s{q} += a{k} * four(b, {}u);", k * 16 + q * 4);
            }
        }
        let each = |text: &str| -> String {
            (0..4)
                .map(|q| text.replace('#', &format!("r * 16u + {}u", q * 4)).replace('@', &q.to_string()))
                .collect()
        };
        let [x, y, _] = grid;
        format!(
            "@group(0) @binding({b}) var<storage, ACCESS{b}> b{b}: array<u32>;
             var<private> home: u32;
             fn first_matrix(group: vec3<u32>, lane: u32) -> u32 {{
                 return (((group.z * {y}u + group.y) * {x}u + group.x) * WG + lane) * {}u;
             }}
             fn four(x: u32, i: u32) -> vec4<f32> {{
                 let at = home + x * 256u + i;
                 return bitcast<vec4<f32>>(vec4<u32>(b{b}[at], b{b}[at + 1u], b{b}[at + 2u], b{b}[at + 3u]));
             }}
             fn put(x: u32, i: u32, value: vec4<f32>) {{
                 let bits = bitcast<vec4<u32>>(value);
                 let at = home + x * 256u + i;
                 b{b}[at] = bits.x;
                 b{b}[at + 1u] = bits.y;
                 b{b}[at + 2u] = bits.z;
                 b{b}[at + 3u] = bits.w;
             }}
             fn two_halves(x: vec2<f32>) -> u32 {{ return wg_to_f16(x.x) | (wg_to_f16(x.y) << 16u); }}
             fn two_floats(x: u32) -> vec2<f32> {{ return vec2<f32>(wg_from_f16(x & 0xffffu), wg_from_f16(x >> 16u)); }}
             fn four_halves(x: vec4<f32>) -> vec2<u32> {{ return vec2<u32>(two_halves(x.xy), two_halves(x.zw)); }}
             fn four_floats(x: vec2<u32>) -> vec4<f32> {{ return vec4<f32>(two_floats(x.x), two_floats(x.y)); }}
             fn rows_of_all() -> u32 {{ return select(0u, 16u, lane_of_all < 4096u); }}
             var<private> lane_of_all: u32;
             var<workgroup> box: array<u32, WG>;
             fn tell(x: u32) {{ workgroupBarrier(); box[lane_of_all] = x; workgroupBarrier(); }}
             fn of_beside(x: f32, by: u32) -> f32 {{
                 tell(bitcast<u32>(x));
                 return bitcast<f32>(box[lane_of_all ^ by]);
             }}
             fn of_lane(x: f32, at: u32) -> f32 {{
                 tell(bitcast<u32>(x));
                 return bitcast<f32>(box[lane_of_all / 32u * 32u + at]);
             }}
             fn largest_of(x: u32) -> u32 {{
                 tell(x);
                 var most = 0u;
                 for (var r = 0u; r < 32u; r += 1u) {{ most = max(most, box[lane_of_all / 32u * 32u + r]); }}
                 return most;
             }}
             fn any_of(x: bool) -> bool {{
                 tell(u32(x));
                 var any = 0u;
                 for (var r = 0u; r < WG; r += 1u) {{ any |= box[r]; }}
                 return any > 0u;
             }}
             fn zero(x: u32) {{ for (var r = 0u; r < rows_of_all(); r += 1u) {{ {} }} }}
             fn store_te(x: u32, at: u32, stride: u32) {{
                 for (var r = 0u; r < rows_of_all(); r += 1u) {{ {} }}
             }}
             fn matrix_step(kind: u32, x: u32, a: u32, b: u32, c: u32, by: f32) {{
                 for (var r = 0u; r < rows_of_all(); r += 1u) {{
                     {}
                     switch kind {{
                         case {MULTIPLY}u: {{
                             {}
                             {products}
                         }}
                         case {ADD}u: {{ {} }}
                         case {TIMES}u: {{ {} }}
                         {loads} default: {{}}
                     }}
                     {}
                 }}
             }}\n",
            256 * (self.matrices.len() + 1),
            each("put(x, #, vec4<f32>());\n"),
            each("te[at + r * stride + @u] = four(x, #);\n"),
            each("var s@ = vec4<f32>();\n"),
            each("s@ = four(c, #);\n"),
            each("s@ = four(a, #) + four(b, #);\n"),
            each("s@ = four(a, #) * by;\n"),
            each("put(x, #, s@);\n"),
        )
    }
}

/// Launches for units, without them: their matrices lie in scratch memory behind that of the step.
pub(crate) fn emulated(lowered: &mut Lowered) {
    let (behind, mut more) = (lowered.scratch_bytes.next_multiple_of(256), 0);
    for launch in lowered.launches.iter_mut().filter(|l| l.source.contains("coop")) {
        let mut emulator = Emulator::default();
        launch.source.lines().filter(|l| !l.starts_with("enable ")).for_each(|line| emulator.line(line));
        let functions = emulator.functions(launch.bindings.len(), launch.grid);
        let halves =
            if launch.source.contains("fn wg_to_f16(") { String::new() } else { prelude(&functions) };
        let invocations: usize =
            launch.source.split("const WG = ").nth(1).unwrap().split('u').next().unwrap().parse().unwrap();
        let groups: u32 = launch.grid.iter().product();
        let bytes = groups as usize * invocations * 1024 * (emulator.matrices.len() + 1);
        more = more.max(bytes);
        launch.source = format!("{halves}{functions}{}", emulator.text);
        launch.bindings.push(Binding { what: Bound::Scratch(behind), written: true, bytes });
    }
    lowered.scratch_bytes = behind + more;
}
