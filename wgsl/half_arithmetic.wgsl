// A test of the driver's own arithmetic of halves, run when a device opens: the same as in f32, rounded.
//
// Math:     y = 1 where any sum, 2 where any difference, 4 where any product is another half than the f32 one rounded,
//           8 where two steps one after the other are; several added. NaN is like NaN. f32 has more than twice the digits
//           of a half and two, so that what it rounds to is the half nearest to the exact result.
// Shapes:   every half, with 32 others: zeros, infinities, NaN, the least and the largest, those that make ties, and some
//           that differ for each.
// Dispatch: an invocation a half.
// Numerics: exact. Drivers take a sum and a difference of the same for nothing, unless something stands between that
//           they do not know: `wrong[1]` is 0.
// Cost:     nothing to speak of.
// Source:   own. The region between `//[ functions` and `//]` is replaced by half.wgsl.

enable f16;
enable wgpu_int16;

@group(0) @binding(0) var<storage, read_write> wrong: array<atomic<u32>>;

//[ functions
fn wg_from_f16(h: u32) -> f32 { return f32(h); }
fn wg_to_f16(x: f32) -> u32 { return u32(x); }
//]

fn half(h: u32) -> f16 { return bitcast<f16>(u16(h)); }

fn bits(x: f16) -> u32 { return u32(bitcast<u16>(x)); }

fn alike(a: u32, b: u32) -> bool {
    return a == b || ((a & 0x7fffu) > 0x7c00u && (b & 0x7fffu) > 0x7c00u && b < 0x10000u);
}

fn partner(h: u32, j: u32) -> u32 {
    switch j {
        case 0u: { return 0u; }
        case 1u: { return 0x8000u; }
        case 2u: { return 0x7c00u; }
        case 3u: { return 0x7e00u; }
        case 4u: { return 1u; }
        case 5u: { return 0x83ffu; }
        case 6u: { return 0x0400u; }
        case 7u: { return 0xfbffu; }
        case 8u: { return 0x3c00u; }
        case 9u: { return 0x3800u; }
        case 10u: { return 0x3e00u; }
        case 11u: { return h ^ 0x8000u; }
        // Half of the last digit, and one and a half of it.
        case 12u: { return select(0x1400u, (h & 0x7c00u) - 0x2c00u, (h & 0x7c00u) > 0x2c00u); }
        case 13u: { return select(0x1600u, (h & 0x7c00u) - 0x2a00u, (h & 0x7c00u) > 0x2c00u); }
        default: { return ((h * 40503u + j * 30011u) ^ (h >> 5u)) & 0xffffu; }
    }
}

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let h = id.x;
    let x = wg_from_f16(h);
    let zero = atomicLoad(&wrong[1]);
    var otherwise = 0u;
    for (var j = 0u; j < 32u; j += 1u) {
        let g = partner(h, j);
        let y = wg_from_f16(g);
        let sum = bits(half(h) + half(g));
        let product = bits(half(h) * half(g));
        let right = wg_to_f16(x * y);
        otherwise |= select(1u, 0u, alike(wg_to_f16(x + y), sum));
        otherwise |= select(2u, 0u, alike(wg_to_f16(x - y), bits(half(h) - half(g))));
        otherwise |= select(4u, 0u, alike(right, product));
        let less = bits(half(sum | zero) - half(g));
        let more = bits(half(product | zero) + half(g));
        let two = alike(wg_to_f16(wg_from_f16(wg_to_f16(x + y)) - y), less) && alike(wg_to_f16(wg_from_f16(right) + y), more);
        otherwise |= select(8u, 0u, two);
    }
    if (otherwise != 0u) {
        atomicOr(&wrong[0], otherwise);
    }
}
