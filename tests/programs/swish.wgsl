// math       y = x / (1 + exp(-x))
// shapes     x and y of one shape
// dispatch   one invocation an element, 64 a workgroup; rows of workgroups when there are many
// numerics   exp(-x) overflows to infinity for x below -88, where y is -0: the limit
// cost       one read and one write an element
// source     Ramachandran, Zoph and Le, "Searching for activation functions", 2017
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {
    let i = id.y * groups.x * 64u + id.x;
    if i < arrayLength(&x) {
        y[i] = x[i] / (1.0 + exp(-x[i]));
    }
}
