//! Initial weights, drawn on the host from the stream of their name: equal on every device.

use wgrad_graph::{Element, HostTensor, Shape};

use crate::Rng;
use crate::rng::normal_quantile;

/// The distribution of initial weights.
///
/// He keeps the variance of activations through rectifiers, Glorot that of activations and gradients
/// through nearly linear layers.
#[derive(Copy, Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Init {
    /// Uniform in (-a, a), a = sqrt(6 / fan_in) (He et al. 2015).
    HeUniform,
    /// Normal with standard deviation sqrt(2 / fan_in) (He et al. 2015).
    HeNormal,
    /// Uniform in (-a, a), a = sqrt(6 / (fan_in + fan_out)) (Glorot and Bengio 2010).
    GlorotUniform,
    /// Normal with standard deviation sqrt(2 / (fan_in + fan_out)) (Glorot and Bengio 2010).
    GlorotNormal,
    /// Uniform in (-a, a).
    Uniform(f64),
    /// Normal with this standard deviation.
    Normal(f64),
    /// One number everywhere.
    Constant(f64),
}

impl Init {
    /// The weights: element `i` in row-major order comes from element `i` of the stream of `rng`.
    ///
    /// Numerics: computed in f64 and rounded once to f32. Uniform draws lie on a grid of 2^24 values;
    /// normal draws are the inverse distribution function of those, so none is beyond 5.5 deviations.
    ///
    /// # Panics
    /// When the shape has more than 2^32 elements: the counter of a stream ends there.
    #[track_caller]
    pub fn draw(self, rng: Rng, shape: impl Into<Shape>, fan_in: usize, fan_out: usize) -> HostTensor {
        let shape = shape.into();
        assert!(u32::try_from(shape.elems()).is_ok(), "init: shape {shape} has more than 2^32 elements");
        let (fan_in, fan_out) = (fan_in.max(1) as f64, fan_out.max(1) as f64);
        let uniform = |a: f64| draw(shape, |i| a * (2.0 * rng.uniform(0, i) - 1.0));
        let normal = |std: f64| draw(shape, |i| std * normal_quantile(rng.uniform(0, i)));
        match self {
            Init::HeUniform => uniform((6.0 / fan_in).sqrt()),
            Init::HeNormal => normal((2.0 / fan_in).sqrt()),
            Init::GlorotUniform => uniform((6.0 / (fan_in + fan_out)).sqrt()),
            Init::GlorotNormal => normal((2.0 / (fan_in + fan_out)).sqrt()),
            Init::Uniform(a) => uniform(a),
            Init::Normal(std) => normal(std),
            Init::Constant(x) => draw(shape, |_| x),
        }
    }
}

/// `[fan_in, fan_out]` of the weight of a convolution, `[outputs, inputs / groups, kernel..]`: connections
/// that end in an output and that start at an input, `inputs / groups * area` and `outputs * area`.
///
/// # Panics
/// When the shape has less than two axes.
#[track_caller]
pub fn conv_fans(weight: impl Into<Shape>) -> [usize; 2] {
    let shape = weight.into();
    assert!(shape.rank() > 1, "conv_fans: {shape} is no weight of a convolution");
    let area: usize = shape.dims()[2..].iter().product();
    [shape[1] * area, shape[0] * area]
}

fn draw(shape: Shape, at: impl Fn(u32) -> f64) -> HostTensor {
    let elems: Vec<f32> = (0..shape.elems()).map(|i| f32::from_f64(at(i as u32))).collect();
    HostTensor::new(shape, &elems).expect("one element was drawn for each of the shape")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moments(x: &HostTensor) -> (f64, f64, f64) {
        let x = x.to_vec::<f64>();
        let mean = x.iter().sum::<f64>() / x.len() as f64;
        let var = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / x.len() as f64;
        (mean, var.sqrt(), x.iter().fold(0.0, |max, x| x.abs().max(max)))
    }

    #[test]
    fn each_distribution_has_its_deviation_and_bound() {
        let (fan_in, fan_out) = (400, 100);
        for (init, std, bound) in [
            (Init::HeUniform, (2.0f64 / 400.0).sqrt(), (6.0f64 / 400.0).sqrt()),
            (Init::HeNormal, (2.0f64 / 400.0).sqrt(), 5.6 * (2.0f64 / 400.0).sqrt()),
            (Init::GlorotUniform, (2.0f64 / 500.0).sqrt(), (6.0f64 / 500.0).sqrt()),
            (Init::GlorotNormal, (2.0f64 / 500.0).sqrt(), 5.6 * (2.0f64 / 500.0).sqrt()),
            (Init::Uniform(0.3), 0.3 / 3.0f64.sqrt(), 0.3),
            (Init::Normal(0.02), 0.02, 5.6 * 0.02),
        ] {
            let x = init.draw(Rng::seed(1).at("w"), [fan_in, fan_out], fan_in, fan_out);
            let (mean, got, max) = moments(&x);
            assert!(mean.abs() < 4.0 * std / 200.0, "{init:?}: mean {mean}");
            assert!((got / std - 1.0).abs() < 0.02, "{init:?}: deviation {got}, expected {std}");
            assert!(max <= bound && max > 0.9 * bound.min(3.0 * std), "{init:?}: largest {max}");
        }
        let x = Init::Constant(0.5).draw(Rng::seed(1), [3], 1, 1);
        assert_eq!(x.to_vec::<f32>(), [0.5; 3]);
    }

    #[test]
    fn fans_of_convolutions_count_area_and_groups() {
        assert_eq!(conv_fans([32, 3, 5, 3]), [45, 480]);
        // 8 inputs in 4 groups.
        assert_eq!(conv_fans([16, 2, 3]), [6, 48]);
        let [fan_in, fan_out] = conv_fans([64, 32, 3, 3]);
        let x = Init::HeUniform.draw(Rng::seed(2), [64, 32, 3, 3], fan_in, fan_out);
        let bound = 2.0f64.sqrt() * (3.0 / fan_in as f64).sqrt();
        let (_, _, max) = moments(&x);
        assert!(max <= bound && max > 0.99 * bound, "{max} of {bound}");
    }

    #[test]
    fn weights_depend_on_seed_and_name_alone() {
        let draw = |seed, name| Init::HeNormal.draw(Rng::seed(seed).at(name), [64], 64, 64);
        assert_eq!(draw(1, "a"), draw(1, "a"));
        assert_ne!(draw(1, "a"), draw(1, "b"));
        assert_ne!(draw(1, "a"), draw(2, "a"));
    }
}
