// Third launch of a pass of the radix sort: every tile is put in order by the digit, and goes where the counts say.
//
// Math:     to = (keys of smaller digits) + (keys of this digit in earlier tiles) + (place among those of this
//           tile); equal digits keep their order.
// Shapes:   `lines` lines of `n` keys, each of `tiles` tiles of WG * EACH.
// Dispatch: 1-D, folded; one workgroup of 256 a tile.
// Numerics: exact and stable.
// Cost:     reads and writes every key and value once, in stretches of a digit; two turns by 4 bits in workgroup
//           memory, 3 barriers each. Two counters of 16 bits share a word: a tile has at most 4096 keys.
// Source:   Satish, Harris and Garland, "Designing efficient sorting algorithms for manycore GPUs", 2009; the
//           text is our own. Regions between `//[ name` and `//]` are replaced by the printer.

//[ declare
struct Params { w0: u32, w1: u32, w2: u32, w3: u32, w4: u32, w5: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> b0: array<u32>;
@group(0) @binding(1) var<storage, read_write> b1: array<u32>;
const WG = 256u;
const EACH = 16u;
var<workgroup> keys: array<u32, 4352>;
var<workgroup> values: array<u32, 4352>;
//]
var<workgroup> seen: array<u32, 2304>;
var<workgroup> sums: array<u32, 256>;
var<workgroup> blocks: array<u32, 16>;
var<workgroup> heads: array<u32, 9>;
var<workgroup> starts: array<u32, 256>;
// A spare word after each lane's elements, so that lanes meet different banks.
fn keep(i: u32) -> u32 { return i + i / EACH; }
fn mark(i: u32) -> u32 { return i + i / 8u; }
// Sums of what the lanes before this one give.
fn scanned(lane: u32, own: u32) -> u32 {
    sums[lane] = own;
    workgroupBarrier();
    if (lane < 16u) {
        var sum = 0u;
        for (var i = 0u; i < 16u; i += 1u) {
            let next = sums[lane * 16u + i];
            sums[lane * 16u + i] = sum;
            sum += next;
        }
        blocks[lane] = sum;
    }
    workgroupBarrier();
    var left = sums[lane];
    for (var i = 0u; i < 15u; i += 1u) { left += select(0u, blocks[i], i < lane / 16u); }
    return left;
}

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let slot = group.y * groups.x + group.x;
    //[ sizes
    let lines = params.w0;
    let n = params.w1;
    let tiles = params.w2;
    let shift = params.w3;
    let counts = params.w4;
    let totals = params.w5;
    //]
    // Workgroups beyond the last tile go along with it, and write nothing.
    let whole = min(slot, lines * tiles - 1u);
    let line = whole / tiles;
    let tile = whole - line * tiles;
    let live = select(0u, min(n - tile * EACH * WG, EACH * WG), slot < lines * tiles);
    for (var turn = 0u; turn < EACH; turn += 1u) {
        let i = turn * WG + lane;
        let p = tile * EACH * WG + i;
        // What is beyond the end comes after everything else.
        keys[keep(i)] = 0xffffffffu;
        if (p < n) {
            //[ load
            let key = b0[line * n + p];
            let value = p;
            //]
            keys[keep(i)] = key;
            values[keep(i)] = value;
        }
    }
    workgroupBarrier();
    var key: array<u32, EACH>;
    var value: array<u32, EACH>;
    for (var half = 0u; half < 8u; half += 4u) {
        for (var b = 0u; b < 8u; b += 1u) { seen[mark(b * WG + lane)] = 0u; }
        for (var j = 0u; j < EACH; j += 1u) {
            key[j] = keys[keep(lane * EACH + j)];
            value[j] = values[keep(lane * EACH + j)];
            let digit = (key[j] >> (shift + half)) & 15u;
            seen[mark((digit >> 1u) * WG + lane)] += 1u << ((digit & 1u) * 16u);
        }
        workgroupBarrier();
        var own = 0u;
        for (var i = 0u; i < 8u; i += 1u) { own += seen[mark(lane * 8u + i)]; }
        var left = scanned(lane, own);
        for (var i = 0u; i < 8u; i += 1u) {
            // A row of counters, of an even digit and the odd one after it, begins every 256.
            if (i == 0u && lane % 32u == 0u) { heads[lane / 32u] = left; }
            let next = seen[mark(lane * 8u + i)];
            seen[mark(lane * 8u + i)] = left;
            left += next;
        }
        if (lane == WG - 1u) { heads[8] = left; }
        workgroupBarrier();
        for (var j = 0u; j < EACH; j += 1u) {
            let digit = (key[j] >> (shift + half)) & 15u;
            let row = digit >> 1u;
            let odd = (digit & 1u) * 16u;
            let counter = mark(row * WG + lane);
            let before = seen[counter];
            // Before it: those of its parity up to here, and those of the other one in the rows before.
            let others = (heads[row + (digit & 1u)] >> (16u - odd)) & 65535u;
            let place = ((before >> odd) & 65535u) + others;
            seen[counter] = before + (1u << odd);
            keys[keep(place)] = key[j];
            values[keep(place)] = value[j];
        }
        workgroupBarrier();
    }
    // Where each digit begins: among all keys of the line, and in this tile.
    //[ begin
    let total = b1[totals + line * 256u + lane];
    let earlier = b1[counts + (line * 256u + lane) * tiles + tile];
    //]
    let begin = scanned(lane, total) + earlier;
    for (var turn = 0u; turn < EACH; turn += 1u) {
        let i = turn * WG + lane;
        let digit = (keys[keep(i)] >> shift) & 255u;
        if (i == 0u || digit != ((keys[keep(max(i, 1u) - 1u)] >> shift) & 255u)) { starts[digit] = i; }
    }
    workgroupBarrier();
    let shifted = begin - starts[lane];
    workgroupBarrier();
    starts[lane] = shifted;
    workgroupBarrier();
    for (var turn = 0u; turn < EACH; turn += 1u) {
        let i = turn * WG + lane;
        if (i < live) {
            let key = keys[keep(i)];
            let value = values[keep(i)];
            let to = starts[(key >> shift) & 255u] + i;
            //[ store
            b1[line * n + to] = value;
            //]
        }
    }
}
