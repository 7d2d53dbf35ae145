// Float functions of one or two numbers that keep NaN, or whose built-in is undefined at the edges. A
// kernel's text takes only the functions that it calls.
//
// Math:     sign; relu, maximum and minimum that keep NaN; remainders with the sign of either operand,
//           floored quotient; hypot; products and quotients that 0 keeps at 0; pow.
// Shapes:   scalars.
// Dispatch: none; called by the kernels.
// Numerics: exact but for pow (within 2e-5 of f64, relative to max(1, |result|)), hypot and x log w.
//           Remainders are exact while the quotient is below 2^24.
//           NaN is found and made by its bits: drivers may assume that float comparisons see none.
// Cost:     3 to 25 instructions each. Conditions are joined by & and |, here and in the other files of functions: a jump
//           for each, where a kernel repeats a text, made SwiftShader take 21 GB and minutes to compile it.
// Source:   IEEE 754; C99 for the special cases of pow.

fn wg_is_nan(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u;
}

fn wg_sign(x: f32) -> f32 {
    return select(select(x, -1.0, x < 0.0), 1.0, x > 0.0);
}

// Drivers turn a select by x > w into their max, which drops NaN; setting bits they leave alone.
fn wg_keep_nan(y: f32, x: f32, w: f32) -> f32 {
    return bitcast<f32>(bitcast<u32>(y) | select(0u, 0x7fc00000u, wg_is_nan(x) | wg_is_nan(w)));
}

// x / w rounded as IEEE 754 has it: drivers may be 2.5 units off in the last place, and then the mean of equal
// numbers is none of them. One step of Newton's, unless the quotient is exact or there is no finite correction.
fn wg_div(x: f32, w: f32) -> f32 {
    let q = x / w;
    let r = fma(-q, w, x);
    let c = bitcast<u32>(fma(r, 1.0 / w, q));
    let keep = ((bitcast<u32>(r) & 0x7fffffffu) == 0u) | ((c & 0x7f800000u) == 0x7f800000u);
    return bitcast<f32>(select(c, bitcast<u32>(q), keep));
}

// x - x: 0, or NaN for what is not finite.
fn wg_no_difference(x: f32) -> f32 {
    return bitcast<f32>(select(0u, 0x7fc00000u, (bitcast<u32>(x) & 0x7f800000u) == 0x7f800000u));
}

fn wg_max(x: f32, w: f32) -> f32 {
    return wg_keep_nan(max(x, w), x, w);
}

fn wg_min(x: f32, w: f32) -> f32 {
    return wg_keep_nan(min(x, w), x, w);
}

fn wg_relu(x: f32) -> f32 {
    return wg_keep_nan(max(x, 0.0), x, 0.0);
}

// 0 where w is 0, also beside infinity.
fn wg_times(x: f32, w: f32) -> f32 {
    return select(x * w, 0.0, w == 0.0);
}

// A whole number in the order of floats: NaN is the largest, both zeros are one.
fn wg_order_f32(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    let turned = select(bits | 0x80000000u, ~bits, bits > 0x80000000u);
    return select(turned, 0xffffffffu, wg_is_nan(x));
}

// |x| - q |w| for a whole q, by parts whose products are exact: drivers may round a product before they
// subtract it.
fn wg_less(x: f32, q: f32, w: f32) -> f32 {
    let qh = bitcast<f32>(bitcast<u32>(q) & 0xfffff000u);
    let wh = bitcast<f32>(bitcast<u32>(w) & 0xfffff000u);
    let ql = q - qh;
    let wl = w - wh;
    return (((x - qh * wh) - qh * wl) - ql * wh) - ql * wl;
}

fn wg_fmod(x: f32, w: f32) -> f32 {
    let a = abs(x);
    let b = abs(w);
    let infinite = 0x7f800000u;
    if (b == 0.0 || bitcast<u32>(a) >= infinite || bitcast<u32>(b) > infinite) { return wg_nan(); }
    if (a < b) { return x; }
    let r = wg_less(a, trunc(a / b), b);
    let up = select(r, r + b, r < 0.0);
    let down = select(up, up - b, up >= b);
    return wg_copysign(max(down, 0.0), x);
}

fn wg_rem(x: f32, w: f32) -> f32 {
    let r = wg_fmod(x, w);
    let apart = ((r > 0.0) & (w < 0.0)) | ((r < 0.0) & (w > 0.0));
    return wg_keep_nan(select(r, r + w, apart), r, r);
}

fn wg_floor_div(x: f32, w: f32) -> f32 {
    if (w == 0.0) { return x / w; }
    let r = wg_fmod(x, w);
    let q = round((x - r) / w);
    let apart = ((r > 0.0) & (w < 0.0)) | ((r < 0.0) & (w > 0.0));
    return wg_keep_nan(select(q, q - 1.0, apart), r, r);
}

fn wg_hypot(x: f32, w: f32) -> f32 {
    let a = max(abs(x), abs(w));
    let t = min(abs(x), abs(w)) / a;
    let y = select(a * sqrt(fma(t, t, 1.0)), 0.0, a == 0.0);
    let infinite = (bitcast<u32>(abs(x)) == 0x7f800000u) | (bitcast<u32>(abs(w)) == 0x7f800000u);
    return select(wg_keep_nan(y, x, w), wg_inf(), infinite);
}

fn wg_xlogy(x: f32, w: f32) -> f32 {
    return wg_keep_nan(wg_mul_zero(x, wg_log(w)), w, w);
}

fn wg_mul_zero(x: f32, w: f32) -> f32 {
    let zero = (bitcast<u32>(x) & 0x7fffffffu) == 0u;
    return bitcast<f32>(select(bitcast<u32>(x * w), 0u, zero));
}

fn wg_div_zero(x: f32, w: f32) -> f32 {
    let zero = (bitcast<u32>(x) & 0x7fffffffu) == 0u;
    return bitcast<f32>(select(bitcast<u32>(wg_div(x, w)), 0u, zero));
}

fn wg_pow(x: f32, w: f32) -> f32 {
    let a = abs(x);
    let infinite = 0x7f800000u;
    if (w == 2.0) { return x * x; }
    if (w == 0.5 && x > 0.0) { return sqrt(x); }
    if (w == 1.0) { return x; }
    if (w == 0.0 || x == 1.0 || (a == 1.0 && bitcast<u32>(abs(w)) == infinite)) { return 1.0; }
    if (w == -1.0) { return 1.0 / x; }
    let whole = floor(w) == w;
    let odd = whole & !(floor(w * 0.5) * 2.0 == w);
    let negative = (bitcast<u32>(x) & 0x80000000u) != 0u;
    let at_zero = select(select(bitcast<f32>(infinite), 0.0, w > 0.0), w, wg_is_nan(w));
    let size = select(exp2(w * log2(a)), at_zero, a == 0.0);
    let y = select(size, -size, odd & negative);
    let real = whole | !(x < 0.0) | (bitcast<u32>(a) == infinite);
    return select(wg_nan(), wg_keep_nan(y, x, w), real);
}
