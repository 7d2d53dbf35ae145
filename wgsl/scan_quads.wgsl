// Scan by quads: a workgroup runs along a line of neighbours, or along a chunk of one, tile after tile; lanes of a
// subgroup tell each other what they have.
//
// Math:     y[o, t] = join(y[o, t - 1], x[o, t]) for t ascending (or descending).
// Shapes:   row-major (outer, n), n a multiple of 4; `lines` is outer; each line in `chunks` chunks of `span`.
// Dispatch: 1-D, folded; one workgroup a chunk. A tile is WG * 16 elements, of which a subgroup takes SG * 16
//           neighbours in four rows, a quad a lane and row. A launch that does not WRITE leaves the chunks' totals in
//           scratch memory, joined lane by lane; one scans them there; one begins each chunk with those before it.
// Numerics: quads are joined first, then lanes in a tree, rows, subgroups and tiles one after another. Ends with the
//           same bits on every run.
// Cost:     reads and writes every element once, for the totals reads it once more; a barrier a tile.
// Source:   own. Regions between `//[ name` and `//]` are replaced by the printer.

//[ declare
struct Params { w0: u32, w1: u32, w2: u32, w3: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> b0: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> b1: array<vec4<f32>>;
const WG = 256u;
const SG = 32u;
const WRITE = true;
fn none() -> f32 {
    return 0.0;
}
fn join(x: f32, w: f32) -> f32 {
    return x + w;
}
fn scanned(own: f32, sub: u32) -> f32 {
    return subgroupInclusiveAdd(own);
}
alias T = f32;
//]
const PARTS = WG / SG;
var<workgroup> met: array<T, 2u * PARTS>;
var<workgroup> joined: array<T, PARTS>;

fn quad(x: vec4<T>) -> vec4<T> {
    let y = join(x.x, x.y);
    let z = join(y, x.z);
    return vec4<T>(x.x, y, z, join(z, x.w));
}

// The state of nothing for the first lane, else that of the one before.
fn before_lane(sum: T, sub: u32) -> T {
    let left = subgroupShuffleUp(sum, 1u);
    if (sub == 0u) { return none(); }
    return left;
}

fn joins(left: T, x: vec4<T>) -> vec4<T> {
    return vec4<T>(join(left, x.x), join(left, x.y), join(left, x.z), join(left, x.w));
}

fn each(x: vec4<T>, w: vec4<T>) -> vec4<T> {
    return vec4<T>(join(x.x, w.x), join(x.y, w.y), join(x.z, w.z), join(x.w, w.w));
}

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(subgroup_id) part: u32,
    @builtin(subgroup_invocation_id) sub: u32,
) {
    let slot = group.y * groups.x + group.x;
    //[ sizes
    let lines = params.w0;
    let n = params.w1;
    let chunks = params.w2;
    let span = params.w3;
    //]
    // Workgroups beyond the last chunk go along with it, and write nothing.
    let live = slot < lines * chunks;
    let spot = min(slot, lines * chunks - 1u);
    let line = spot / chunks;
    let chunk = spot - line * chunks;
    let first = line * n;
    let start = min(chunk * span, n);
    let until = min(start + span, n);
    let own = part * SG * 16u + sub * 4u;
    var before = none();
    if (!WRITE) {
        var sums = vec4<T>(none(), none(), none(), none());
        for (var t = start + own; t < until + own; t += WG * 16u) {
            var x0 = vec4<T>(none(), none(), none(), none());
            var x1 = x0; var x2 = x0; var x3 = x0;
            //[ loads
            if (t < until) { x0 = b0[(first + t) >> 2u]; }
            //]
            sums = each(sums, each(each(x0, x1), each(x2, x3)));
        }
        let sum = scanned(quad(sums).w, sub);
        if (sub == SG - 1u) { joined[part] = sum; }
        workgroupBarrier();
        for (var i = 0u; i < PARTS; i += 1u) { before = join(before, joined[i]); }
        //[ total
        //]
    } else {
        //[ before
        //]
        var flip = 0u;
        for (var base = start; base < until; base += WG * 16u) {
            let t = base + own;
            var x0 = vec4<T>(none(), none(), none(), none());
            var x1 = x0; var x2 = x0; var x3 = x0;
            //[ loads
            if (t < until) { x0 = b0[(first + t) >> 2u]; }
            //]
            let q0 = quad(x0);
            let q1 = quad(x1);
            let q2 = quad(x2);
            let q3 = quad(x3);
            let s0 = scanned(q0.w, sub);
            let s1 = scanned(q1.w, sub);
            let s2 = scanned(q2.w, sub);
            let s3 = scanned(q3.w, sub);
            let r1 = subgroupShuffle(s0, SG - 1u);
            let r2 = join(r1, subgroupShuffle(s1, SG - 1u));
            let r3 = join(r2, subgroupShuffle(s2, SG - 1u));
            let all = join(r3, subgroupShuffle(s3, SG - 1u));
            if (sub == 0u) { met[flip + part] = all; }
            workgroupBarrier();
            var left = before;
            for (var i = 0u; i < PARTS; i += 1u) {
                let next = join(before, met[flip + i]);
                if (i < part) { left = next; }
                before = next;
            }
            flip = PARTS - flip;
            let y0 = joins(join(left, before_lane(s0, sub)), q0);
            let y1 = joins(join(join(left, r1), before_lane(s1, sub)), q1);
            let y2 = joins(join(join(left, r2), before_lane(s2, sub)), q2);
            let y3 = joins(join(join(left, r3), before_lane(s3, sub)), q3);
            //[ stores
            if (live && t < until) { b1[(first + t) >> 2u] = y0 + y1 + y2 + y3; }
            //]
        }
    }
}
