// Third launch of a pass of the radix sort where lanes of a subgroup can vote: every tile is put in order by the
// digit, and goes where the counts say.
//
// Math:     to = (keys of smaller digits) + (keys of this digit in earlier tiles) + (place among those of this
//           tile); equal digits keep their order.
// Shapes:   `lines` lines of `n` keys, each of `tiles` tiles of WG * EACH.
// Dispatch: 1-D, folded; one workgroup of 256 a tile, of which a subgroup of SG takes EACH * SG neighbours.
// Numerics: exact and stable.
// Cost:     reads and writes every key and value once, in stretches of a digit; 8 votes a key tell which lanes have its
//           digit, of which the first counts them all; 5 barriers.
// Source:   Ashkiani et al., "GPU multisplit", 2016; the text is our own. Regions between `//[ name` and `//]` are
//           replaced by the printer.

//[ declare
struct Params { w0: u32, w1: u32, w2: u32, w3: u32, w4: u32, w5: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> b0: array<u32>;
@group(0) @binding(1) var<storage, read_write> b1: array<u32>;
const WG = 256u;
const EACH = 1u;
const SG = 32u;
fn scanned(own: vec2<u32>, sub: u32) -> vec2<u32> {
    return subgroupInclusiveAdd(own);
}
//]
const PARTS = WG / SG;
var<workgroup> keys: array<u32, WG * EACH>;
var<workgroup> values: array<u32, WG * EACH>;
var<workgroup> seen: array<atomic<u32>, PARTS * 128u>;
var<workgroup> starts: array<u32, 256>;
var<workgroup> sums: array<vec2<u32>, PARTS>;

// Two counters of 16 bits share a word: those of neighbouring subgroups.
fn half(part: u32) -> u32 { return (part & 1u) * 16u; }

// How many keys of this digit the lanes before this one have had, those of earlier rounds too.
fn ranked(digit: u32, part: u32, sub: u32) -> u32 {
    var same = 0xffffffffu;
    for (var b = 0u; b < 8u; b += 1u) {
        let odd = ((digit >> b) & 1u) == 1u;
        let vote = subgroupBallot(odd).x;
        same &= select(~vote, vote, odd);
    }
    same &= 0xffffffffu >> (32u - SG);
    let leader = firstTrailingBit(same);
    var old = 0u;
    if (sub == leader) { old = atomicAdd(&seen[(part >> 1u) * 256u + digit], countOneBits(same) << half(part)); }
    return ((subgroupShuffle(old, leader) >> half(part)) & 65535u) + countOneBits(same & ((1u << sub) - 1u));
}

// Where the keys of this digit begin that the subgroup has.
fn placed(digit: u32, part: u32) -> u32 {
    return (atomicLoad(&seen[(part >> 1u) * 256u + digit]) >> half(part)) & 65535u;
}

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(subgroup_id) part: u32,
    @builtin(subgroup_invocation_id) sub: u32,
) {
    let slot = group.y * groups.x + group.x;
    let lane = part * SG + sub;
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
    let own = (tile * WG + part * SG) * EACH + sub;
    // What is beyond the end comes after everything else.
    //[ loads
    var key0 = 0xffffffffu;
    var value0 = own;
    if (own < n) { key0 = b0[line * n + own]; }
    //]
    for (var i = 0u; i < PARTS / 2u; i += 1u) { atomicStore(&seen[i * WG + lane], 0u); }
    workgroupBarrier();
    //[ ranks
    let rank0 = ranked((key0 >> shift) & 255u, part, sub);
    //]
    // Where each digit begins: among all keys of the line, and in this tile.
    //[ begin
    let total = b1[totals + line * 256u + lane];
    let earlier = b1[counts + (line * 256u + lane) * tiles + tile];
    //]
    workgroupBarrier();
    var here = 0u;
    for (var i = 0u; i < PARTS / 2u; i += 1u) {
        let counts = atomicLoad(&seen[i * 256u + lane]);
        here += (counts & 65535u) + (counts >> 16u);
    }
    let both = vec2<u32>(total, here);
    var left = scanned(both, sub);
    if (sub == SG - 1u) { sums[part] = left; }
    left -= both;
    workgroupBarrier();
    for (var i = 0u; i < PARTS; i += 1u) { left += select(vec2<u32>(), sums[i], i < part); }
    starts[lane] = left.x + earlier - left.y;
    for (var i = 0u; i < PARTS / 2u; i += 1u) {
        let counts = atomicLoad(&seen[i * 256u + lane]);
        let next = left.y + (counts & 65535u);
        atomicStore(&seen[i * 256u + lane], left.y | (next << 16u));
        left.y = next + (counts >> 16u);
    }
    workgroupBarrier();
    //[ places
    let place0 = placed((key0 >> shift) & 255u, part) + rank0;
    keys[place0] = key0;
    values[place0] = value0;
    //]
    workgroupBarrier();
    //[ stores
    if (lane < live) {
        let i = lane;
        let key = keys[i];
        let value = values[i];
        let to = starts[(key >> shift) & 255u] + i;
        b1[line * n + to] = value;
    }
    //]
}
