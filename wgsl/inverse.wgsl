// Trigonometric and hyperbolic functions beside sin, cos and tanh, and the complement of erf. A kernel's
// text takes only the functions that it calls.
//
// Math:     tan, asin, acos, atan, atan2, sinh, cosh, asinh, acosh, atanh, erfc, softplus.
// Shapes:   scalars.
// Dispatch: none; called by the kernels.
// Numerics: within 2e-6 of f64, relative to max(1, |result|); the odd ones also relatively near 0. WGSL's
//           own inverse functions may be off by 4096 units in the last place. Signs go by bits.
// Cost:     10 to 30 instructions each, at most one exp or log and one root.
// Source:   own minimax polynomials; t = (x - 3.75) / (x + 3.75) of Shepherd and Laframboise for erfc.

fn wg_nan() -> f32 {
    return bitcast<f32>(0x7fc00000u);
}

fn wg_inf() -> f32 {
    return bitcast<f32>(0x7f800000u);
}

// |x| with the sign of w.
fn wg_copysign(x: f32, w: f32) -> f32 {
    return bitcast<f32>((bitcast<u32>(x) & 0x7fffffffu) | (bitcast<u32>(w) & 0x80000000u));
}

fn wg_tan(x: f32) -> f32 {
    return wg_sin(x) / wg_cos(x);
}

// atan(x) for x in 0 ..= 1
fn wg_atan_unit(x: f32) -> f32 {
    let high = x > 0.41421356;
    let t = select(x, (x - 1.0) / (x + 1.0), high);
    let z = t * t;
    let p = fma(fma(fma(8.0603085e-2, z, -0.13879851), z, 0.19977926), z, -0.33332956);
    return fma(p * z, t, t) + select(0.0, 0.78539816, high);
}

fn wg_atan(x: f32) -> f32 {
    let a = abs(x);
    let y = wg_atan_unit(select(a, 1.0 / a, a > 1.0));
    return wg_keep_nan(wg_copysign(select(y, 1.57079633 - y, a > 1.0), x), x, x);
}

fn wg_atan2(x: f32, w: f32) -> f32 {
    let a = abs(x);
    let b = abs(w);
    let top = max(a, b);
    let whole = select(min(a, b) / top, 1.0, (a == b) & (top > 1.0));
    let y = wg_atan_unit(select(whole, 0.0, top == 0.0));
    let half = select(y, 1.57079633 - y, a > b);
    let full = select(half, 3.14159265 - half, (bitcast<u32>(w) & 0x80000000u) != 0u);
    return wg_keep_nan(wg_copysign(full, x), x, w);
}

// asin(x) for x in 0 ..= 0.5
fn wg_asin_half(x: f32) -> f32 {
    let z = x * x;
    let p = fma(fma(fma(fma(4.2218570e-2, z, 2.4147600e-2), z, 4.5477100e-2), z, 7.4952416e-2), z, 0.16666754);
    return fma(p * z, x, x);
}

fn wg_asin(x: f32) -> f32 {
    let a = abs(x);
    if (a > 1.0) { return wg_nan(); }
    let high = a > 0.5;
    let y = wg_asin_half(select(a, sqrt(0.5 * (1.0 - a)), high));
    return wg_keep_nan(wg_copysign(select(y, 1.57079633 - 2.0 * y, high), x), x, x);
}

fn wg_acos(x: f32) -> f32 {
    let a = abs(x);
    if (a > 1.0) { return wg_nan(); }
    if (a > 0.5) {
        let y = 2.0 * wg_asin_half(sqrt(0.5 * (1.0 - a)));
        return select(y, 3.14159265 - y, x < 0.0);
    }
    return wg_keep_nan(1.57079633 - wg_copysign(wg_asin_half(a), x), x, x);
}

fn wg_sinh(x: f32) -> f32 {
    let a = abs(x);
    if (a < 1.0) {
        let z = x * x;
        let p = fma(fma(fma(2.8174395e-6, z, 1.9836066e-4), z, 8.3333506e-3), z, 0.16666667);
        return fma(p * z, x, x);
    }
    // exp(a) would overflow before sinh does.
    let h = exp(0.5 * a);
    return wg_keep_nan(wg_copysign((0.5 * h) * h - 0.5 / (h * h), x), x, x);
}

fn wg_cosh(x: f32) -> f32 {
    let h = exp(0.5 * abs(x));
    return wg_keep_nan((0.5 * h) * h + 0.5 / (h * h), x, x);
}

fn wg_asinh(x: f32) -> f32 {
    let a = abs(x);
    let z = a * a;
    let near = wg_log1p(a + z / (1.0 + sqrt(1.0 + z)));
    let y = select(near, log(a) + 0.69314718, a > 1e9);
    return wg_keep_nan(wg_copysign(y, x), x, x);
}

fn wg_acosh(x: f32) -> f32 {
    if (x < 1.0) { return wg_nan(); }
    if (x > 1e9) { return log(x) + 0.69314718; }
    let t = x - 1.0;
    return wg_keep_nan(wg_log1p(t + sqrt(fma(t, t, 2.0 * t))), x, x);
}

fn wg_atanh(x: f32) -> f32 {
    let a = abs(x);
    if (a > 1.0) { return wg_nan(); }
    if (a == 1.0) { return wg_copysign(wg_inf(), x); }
    return wg_keep_nan(wg_copysign(0.5 * wg_log1p(2.0 * a / (1.0 - a)), x), x, x);
}

fn wg_erfc(x: f32) -> f32 {
    let a = min(abs(x), 10.5);
    let t = (a - 3.75) / (a + 3.75);
    var p = fma(1.0979648e-3, t, 2.3145401e-3);
    p = fma(p, t, -9.9188322e-3);
    p = fma(p, t, 2.8047480e-2);
    p = fma(p, t, -5.8729719e-2);
    p = fma(p, t, 9.2359126e-2);
    p = fma(p, t, -0.10879320);
    p = fma(p, t, 8.2273029e-2);
    p = fma(p, t, 3.5847982e-3);
    p = fma(p, t, -0.14024052);
    p = fma(p, t, 1.2375126);
    let y = exp(-a * a) * p / fma(2.0, a, 1.0);
    return wg_keep_nan(select(y, 2.0 - y, x < 0.0), x, x);
}

fn wg_softplus(x: f32) -> f32 {
    return wg_keep_nan(max(x, 0.0) + wg_log1p(exp(-abs(x))), x, x);
}
