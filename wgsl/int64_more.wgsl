// Integers of 64 bits as two words: more rows, order, conversions, arg-reductions. Goes with int64.wgsl.
//
// Math:     floor division, fmod, powers, comparisons, maximum, minimum, conversions from and to i32 and f32.
// Shapes:   scalars, each a vec2<u32>, the lower word first.
// Dispatch: none; called by the kernels.
// Numerics: exact; from f32: truncated, saturated, NaN becomes 0; to f32: nearest, ties to even.
// Cost:     1 to 15 instructions.
// Source:   own.

fn wg_fmod_i64(x: vec2<u32>, w: vec2<u32>) -> vec2<u32> {
    let r = wg_quotient(wg_abs_i64(x), wg_abs_i64(w)).zw;
    return select(select(r, wg_neg_i64(r), wg_below_zero(x)), vec2<u32>(), (w.x | w.y) == 0u);
}

fn wg_floor_div_i64(x: vec2<u32>, w: vec2<u32>) -> vec2<u32> {
    let r = wg_fmod_i64(x, w);
    let below = ((r.x | r.y) != 0u) & wg_below_zero(x ^ w);
    return wg_sub_i64(wg_div_i64(x, w), vec2<u32>(select(0u, 1u, below), 0u));
}

fn wg_pow_i64(x: vec2<u32>, w: vec2<u32>) -> vec2<u32> {
    let one = vec2<u32>(1u, 0u);
    var y = one;
    var b = x;
    for (var i = 0u; i < 63u; i += 1u) {
        let bit = (select(w.x, w.y, i >= 32u) >> (i & 31u)) & 1u;
        y = select(y, wg_mul_i64(y, b), bit == 1u);
        b = wg_mul_i64(b, b);
    }
    // Of the powers below 1 those of 1 and -1 alone have a part before the point.
    let minus = all(x == vec2<u32>(0xffffffffu));
    let turned = select(one, vec2<u32>(0xffffffffu), (w.x & 1u) == 1u);
    let below = select(select(vec2<u32>(), turned, minus), one, all(x == one));
    return select(y, below, wg_below_zero(w));
}

fn wg_le_i64(x: vec2<u32>, w: vec2<u32>) -> bool {
    return !wg_lt_i64(w, x);
}

fn wg_gt_i64(x: vec2<u32>, w: vec2<u32>) -> bool {
    return wg_lt_i64(w, x);
}

fn wg_ge_i64(x: vec2<u32>, w: vec2<u32>) -> bool {
    return !wg_lt_i64(x, w);
}

fn wg_maximum_i64(x: vec2<u32>, w: vec2<u32>) -> vec2<u32> {
    return select(x, w, wg_lt_i64(x, w));
}

fn wg_minimum_i64(x: vec2<u32>, w: vec2<u32>) -> vec2<u32> {
    return select(x, w, wg_lt_i64(w, x));
}

fn wg_arg_max_i64(v: vec2<u32>, i: u32, bv: vec2<u32>, bi: u32) -> bool {
    let ahead = wg_lt_i64(bv, v) | (wg_eq_i64(v, bv) & (i < bi));
    return (i != 0xffffffffu) & ((bi == 0xffffffffu) | ahead);
}

fn wg_arg_min_i64(v: vec2<u32>, i: u32, bv: vec2<u32>, bi: u32) -> bool {
    let ahead = wg_lt_i64(v, bv) | (wg_eq_i64(v, bv) & (i < bi));
    return (i != 0xffffffffu) & ((bi == 0xffffffffu) | ahead);
}

// An index in one word; one that needs two is beyond every axis.
fn wg_index_i64(x: vec2<u32>) -> u32 {
    return select(x.x, 0xffffffffu, x.y != 0u);
}

fn wg_i32_to_i64(x: i32) -> vec2<u32> {
    return vec2<u32>(bitcast<u32>(x), select(0u, 0xffffffffu, x < 0));
}

fn wg_f32_to_i64(x: f32) -> vec2<u32> {
    if (wg_is_nan(x)) {
        return vec2<u32>();
    }
    let bits = bitcast<u32>(x);
    let exponent = (bits >> 23u) & 255u;
    // From 2^63 on there is nothing but the ends of the range.
    if (exponent >= 190u) {
        return select(vec2<u32>(0xffffffffu, 0x7fffffffu), vec2<u32>(0u, 0x80000000u), bits >= 0x80000000u);
    }
    let m = vec2<u32>((bits & 0x7fffffu) | 0x800000u, 0u);
    let left = wg_shl_i64(m, vec2<u32>(max(exponent, 150u) - 150u, 0u));
    let right = vec2<u32>(m.x >> min(150u - min(exponent, 150u), 31u), 0u);
    let size = select(right, left, exponent >= 150u);
    return select(size, wg_neg_i64(size), bits >= 0x80000000u);
}

fn wg_i64_to_f32(x: vec2<u32>) -> f32 {
    let a = wg_abs_i64(x);
    // The upper 32 bits from the first one bit on; what lies below them decides ties alone.
    let zeros = select(countLeadingZeros(a.y), 32u + countLeadingZeros(a.x), a.y == 0u);
    let top = wg_shl_i64(a, vec2<u32>(min(zeros, 63u), 0u));
    let m = top.y | select(0u, 1u, top.x != 0u);
    let rounded = (m >> 8u) + select(0u, 1u, (m & 0xffu) + ((m >> 8u) & 1u) > 0x80u);
    // 2^24 times 2^(40 - zeros); rounding up to the next power of two carries into the exponent.
    let size = (rounded - 0x800000u) + ((190u - min(zeros, 64u)) << 23u);
    let sign = x.y & 0x80000000u;
    return bitcast<f32>(select(sign | size, 0u, (a.x | a.y) == 0u));
}
