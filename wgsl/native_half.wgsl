// A test of words of 16 bits, run when a device opens: the same halves by words of their own, two a word, four a
// vector.
//
// Math:     y[i] = x[i] as f32 and back; y[n + i] = the same half way to the next, to a half.
// Shapes:   all n = 65536 halves.
// Dispatch: an invocation a half.
// Numerics: the three results are equal bits where the adapter keeps its promise.
// Cost:     nothing to speak of.
// Source:   own. The region between `//[ functions` and `//]` is replaced by half.wgsl.

enable wgpu_int16;

@group(0) @binding(0) var<storage, read> alone: array<u16>;
@group(0) @binding(1) var<storage, read> pairs: array<u32>;
@group(0) @binding(2) var<storage, read> fours: array<vec4<u16>>;
@group(0) @binding(3) var<storage, read_write> to_alone: array<u16>;
@group(0) @binding(4) var<storage, read_write> to_pairs: array<atomic<u32>>;
@group(0) @binding(5) var<storage, read_write> to_fours: array<vec4<u16>>;

//[ functions
fn wg_from_f16(h: u32) -> f32 { return f32(h); }
fn wg_to_f16(x: f32) -> u32 { return u32(x); }
//]

fn back(h: u32) -> u32 { return wg_to_f16(wg_from_f16(h)); }

fn between(h: u32) -> u32 { return wg_to_f16(bitcast<f32>(bitcast<u32>(wg_from_f16(h)) + 0x1000u)); }

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let i = id.x;
    let x = u32(alone[i]);
    to_alone[i] = u16(back(x));
    to_alone[i + 65536u] = u16(between(x));
    let shift = (i & 1u) * 16u;
    let w = (pairs[i >> 1u] >> shift) & 0xffffu;
    atomicOr(&to_pairs[i >> 1u], back(w) << shift);
    atomicOr(&to_pairs[(i >> 1u) + 32768u], between(w) << shift);
    if ((i & 3u) == 0u) {
        let v = vec4<u32>(fours[i >> 2u]);
        let v_back = vec4<u32>(back(v.x), back(v.y), back(v.z), back(v.w));
        let v_between = vec4<u32>(between(v.x), between(v.y), between(v.z), between(v.w));
        to_fours[i >> 2u] = vec4<u16>(v_back);
        to_fours[(i >> 2u) + 16384u] = vec4<u16>(v_between);
    }
}
