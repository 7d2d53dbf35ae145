// math       dy/dx = s + x s (1 - s), s = 1 / (1 + exp(-x))
// shapes     x and y of one shape
// dispatch   one invocation an element, 64 a workgroup; rows of workgroups when there are many
// numerics   s is 0 where exp(-x) overflows, and so is the result
// cost       one read and one write an element
// source     the derivative of swish.wgsl
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {
    let i = id.y * groups.x * 64u + id.x;
    if i < arrayLength(&x) {
        let s = 1.0 / (1.0 + exp(-x[i]));
        y[i] = s + x[i] * s * (1.0 - s);
    }
}
