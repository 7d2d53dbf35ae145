// Elementwise kernels and copies: one invocation evaluates a group's expressions at one point of its
// space, or at four neighbouring points.
//
// Math:     y[p] = f(operands at p), several y.
// Shapes:   any space of rank 8 at most; operands through index functions.
// Dispatch: 1-D, folded into y past the device's limit; `count` invocations work.
// Numerics: those of the expressions.
// Cost:     memory bound; four points an invocation move whole 16-byte words.
// Source:   own. Regions between `//[ name` and `//]` are replaced by the printer.

//[ declare
struct Params { w0: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> b0: array<f32>;
@group(0) @binding(1) var<storage, read_write> b1: array<f32>;
const WG = 256u;
//]

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let at = (group.y * groups.x + group.x) * WG + lane;
    //[ count
    let count = params.w0;
    //]
    if (at < count) {
        //[ body
        b1[at] = b0[at];
        //]
    }
}
