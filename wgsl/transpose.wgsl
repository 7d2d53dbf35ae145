// Elementwise kernels whose operands run across the last axis of the space: tiles of those are turned in
// workgroup memory, so that reads and writes both move whole lines.
//
// Math:     y[p] = f(operands at p), several y; a turned operand has neighbours along `a`, results along `l`.
// Shapes:   any space of rank 8 at most; axis `a` of `turned` points, the last axis `l` of `last` points.
// Dispatch: 1-D, folded; a workgroup a tile of EDGE x EDGE points, `count` tiles. QUAD neighbours along `l` an
//           invocation, which loads READ along `a`.
// Numerics: those of the expressions.
// Cost:     memory bound: every element is read once and written once, in lines; one barrier.
// Source:   own; the padded tile is that of Ruetsch and Micikevicius, "Optimizing matrix transpose in CUDA",
//           2009. Regions between `//[ name` and `//]` are replaced by the printer.

//[ declare
struct Params { w0: u32, w1: u32, w2: u32, w3: u32, w4: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> b0: array<f32>;
@group(0) @binding(1) var<storage, read_write> b1: array<f32>;
const WG = 256u;
const EDGE = 32u;
const QUAD = 1u;
const READ = 1u;
var<workgroup> t0: array<f32, 1056>;
//]

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let slot = group.y * groups.x + group.x;
    //[ sizes
    let count = params.w0;
    let wide = params.w1;
    let high = params.w2;
    let turned = params.w3;
    let last = params.w4;
    //]
    // Workgroups beyond the last tile go along with it, and write nothing.
    let tile = min(slot, count - 1u);
    let live = slot < count;
    let rest = tile / wide;
    let others = rest / high;
    let l0 = (tile - rest * wide) * EDGE;
    let a0 = (rest - others * high) * EDGE;
    //[ others
    //]
    for (var turn = 0u; turn < EDGE * EDGE / READ / WG; turn += 1u) {
        let row = turn * (WG * READ / EDGE) + lane / (EDGE / READ);
        let column = lane % (EDGE / READ) * READ;
        let l = min(l0 + row, last - 1u);
        let a = min(a0 + column, turned - READ);
        let spot = row * (EDGE + 1u) + column;
        //[ stage
        t0[spot] = b0[l * turned + a];
        //]
    }
    workgroupBarrier();
    for (var turn = 0u; turn < EDGE * EDGE / QUAD / WG; turn += 1u) {
        let row = turn * (WG * QUAD / EDGE) + lane / (EDGE / QUAD);
        let column = lane % (EDGE / QUAD) * QUAD;
        let l = l0 + column;
        let a = a0 + row;
        let spot = column * (EDGE + 1u) + row;
        if (live && l < last && a < turned) {
            //[ point
            b1[a * last + l] = t0[spot];
            //]
        }
    }
}
