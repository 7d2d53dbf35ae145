// Conversions of floats to integers, and tests for arg-reductions.
//
// Math:     truncation, saturated to the target's range; NaN becomes 0.
// Shapes:   scalars.
// Dispatch: none; called by the kernels.
// Numerics: exact. WGSL leaves NaN open and drivers differ outside the range, so both are decided here.
// Cost:     4 to 6 instructions.
// Source:   own.

fn wg_to_i32(x: f32) -> i32 {
    if (!(x > -2147483648.0)) {
        return select(bitcast<i32>(0x80000000u), 0, !(x <= 0.0));
    }
    return select(i32(min(x, 2147483520.0)), 2147483647, x >= 2147483648.0);
}

fn wg_to_u32(x: f32) -> u32 {
    if (!(x > 0.0)) {
        return 0u;
    }
    return select(u32(min(x, 4294967040.0)), 4294967295u, x >= 4294967296.0);
}

fn wg_to_u8(x: f32) -> u32 {
    if (!(x > 0.0)) {
        return 0u;
    }
    return u32(min(x, 255.0));
}

// Whether (v, i) comes before (bv, bi) in an arg-reduction: NaN first, then the extreme, then the smaller
// index. Index 0xffffffff is the empty state.
fn wg_arg_max_f32(v: f32, i: u32, bv: f32, bi: u32) -> bool {
    let nan = (bitcast<u32>(v) & 0x7fffffffu) > 0x7f800000u;
    let bnan = (bitcast<u32>(bv) & 0x7fffffffu) > 0x7f800000u;
    let tie = (nan & bnan) | (v == bv);
    let ahead = (nan & !bnan) | (!bnan & (v > bv)) | (tie & (i < bi));
    return (i != 0xffffffffu) & ((bi == 0xffffffffu) | ahead);
}

fn wg_arg_min_f32(v: f32, i: u32, bv: f32, bi: u32) -> bool {
    return wg_arg_max_f32(-v, i, -bv, bi);
}

fn wg_arg_max_i32(v: i32, i: u32, bv: i32, bi: u32) -> bool {
    let ahead = (v > bv) | ((v == bv) & (i < bi));
    return (i != 0xffffffffu) & ((bi == 0xffffffffu) | ahead);
}

fn wg_arg_min_i32(v: i32, i: u32, bv: i32, bi: u32) -> bool {
    let ahead = (v < bv) | ((v == bv) & (i < bi));
    return (i != 0xffffffffu) & ((bi == 0xffffffffu) | ahead);
}

fn wg_arg_max_u32(v: u32, i: u32, bv: u32, bi: u32) -> bool {
    let ahead = (v > bv) | ((v == bv) & (i < bi));
    return (i != 0xffffffffu) & ((bi == 0xffffffffu) | ahead);
}

fn wg_arg_min_u32(v: u32, i: u32, bv: u32, bi: u32) -> bool {
    let ahead = (v < bv) | ((v == bv) & (i < bi));
    return (i != 0xffffffffu) & ((bi == 0xffffffffu) | ahead);
}
