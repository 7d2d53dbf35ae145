//! Convolutions and pooling.

use wgrad_autograd::{Context, Conv, ConvTranspose, Param, Pool, Tensor};
use wgrad_graph::Result;

use crate::{Init, Mode, Module, ParamSet, Rng, conv_fans};

/// Weight and bias of a layer: `NAME.weight` from the stream of `rng` there, `NAME.bias` of zeros.
fn params(
    ctx: &Context,
    name: &str,
    shape: &[usize],
    outputs: usize,
    rng: Rng,
    init: Init,
) -> Result<(Param, Option<Param>)> {
    let named = |part: &str| format!("{name}.{part}");
    let [fan_in, fan_out] = conv_fans(shape);
    let weight = init.draw(rng.at(&named("weight")), shape, fan_in, fan_out);
    let bias = Init::Constant(0.0).draw(rng, [outputs], 1, 1);
    Ok((Param::new(ctx, &named("weight"), weight)?, Some(Param::new(ctx, &named("bias"), bias)?)))
}

/// Channels in so many groups, or why not.
fn grouped(name: &str, [inputs, outputs]: [usize; 2], groups: usize) -> Result<()> {
    if groups == 0 || inputs % groups != 0 || outputs % groups != 0 {
        wgrad_graph::bail!(Argument, name, "{inputs} and {outputs} channels in {groups} groups");
    }
    Ok(())
}

macro_rules! convolution {
    ($(#[$doc:meta])* $name:ident, $axes:literal, $method:ident, $options:ident, $inputs_first:literal) => {
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub struct $name {
            /// Called `NAME.weight`.
            pub weight: Param,
            /// `[outputs]`, called `NAME.bias`; `None` for none.
            pub bias: Option<Param>,
            /// Stride, padding, dilation, groups.
            pub options: $options<$axes>,
        }

        impl $name {
            /// A layer from `channels[0]` to `channels[1]` channels with He-uniform weights (for a rectifier
            /// after it) and a bias of zeros.
            ///
            /// # Errors
            /// `Argument` when the groups do not divide the channels; what the device meets when the
            /// parameters are written.
            pub fn new(
                ctx: &Context,
                name: &str,
                channels: [usize; 2],
                kernel: [usize; $axes],
                options: $options<$axes>,
                rng: Rng,
            ) -> Result<$name> {
                Self::with(ctx, name, channels, kernel, options, rng, Init::HeUniform)
            }

            /// The same with weights drawn from `init`, which counts connections by kernel and groups.
            ///
            /// # Errors
            /// As `new`.
            pub fn with(
                ctx: &Context,
                name: &str,
                channels: [usize; 2],
                kernel: [usize; $axes],
                options: $options<$axes>,
                rng: Rng,
                init: Init,
            ) -> Result<$name> {
                grouped(name, channels, options.groups)?;
                let [inputs, outputs] = channels;
                let ends = match $inputs_first {
                    true => [inputs, outputs / options.groups],
                    false => [outputs, inputs / options.groups],
                };
                let (weight, bias) =
                    params(ctx, name, &[&ends[..], &kernel[..]].concat(), outputs, rng, init)?;
                Ok($name { weight, bias, options })
            }
        }

        impl Module for $name {
            #[track_caller]
            fn forward(&self, x: Tensor) -> Tensor {
                x.$method(self.weight.t(), self.bias.as_ref().map(Param::t), self.options)
            }

            fn params(&self) -> ParamSet {
                [Some(self.weight.clone()), self.bias.clone()].into_iter().flatten().collect()
            }

            fn set_mode(&mut self, _: Mode) {}
        }
    };
}

convolution! {
    /// Convolution over one axis: `[N, inputs, L] -> [N, outputs, count]`; the weight is
    /// `[outputs, inputs / groups, K]`.
    Conv1d, 1, conv1d, Conv, false
}
convolution! {
    /// Convolution over two axes: `[N, inputs, H, W] -> [N, outputs, ..]`; the weight is
    /// `[outputs, inputs / groups, KH, KW]`.
    Conv2d, 2, conv2d, Conv, false
}
convolution! {
    /// Convolution over three axes: `[N, inputs, D, H, W] -> [N, outputs, ..]`; the weight is
    /// `[outputs, inputs / groups, KD, KH, KW]`.
    Conv3d, 3, conv3d, Conv, false
}
convolution! {
    /// Transposed convolution over one axis; the weight is `[inputs, outputs / groups, K]`.
    ConvTranspose1d, 1, conv_transpose1d, ConvTranspose, true
}
convolution! {
    /// Transposed convolution over two axes; the weight is `[inputs, outputs / groups, KH, KW]`.
    ConvTranspose2d, 2, conv_transpose2d, ConvTranspose, true
}
convolution! {
    /// Transposed convolution over three axes; the weight is `[inputs, outputs / groups, KD, KH, KW]`.
    ConvTranspose3d, 3, conv_transpose3d, ConvTranspose, true
}

macro_rules! pooling {
    ($(#[$doc:meta])* $name:ident, $method:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub struct $name(pub Pool);

        impl $name {
            /// Windows of these sizes beside each other, or as a `Pool` says.
            pub fn new(how: impl Into<Pool>) -> $name {
                $name(how.into())
            }
        }

        impl Module for $name {
            #[track_caller]
            fn forward(&self, x: Tensor) -> Tensor {
                x.$method(self.0.clone())
            }

            fn params(&self) -> ParamSet {
                ParamSet::default()
            }

            fn set_mode(&mut self, _: Mode) {}
        }
    };
}

pooling! {
    /// The largest element of each window on the last axes: `MaxPool::new([2, 2])`.
    MaxPool, max_pool
}
pooling! {
    /// The mean of each window on the last axes: `AvgPool::new([2, 2])`.
    AvgPool, avg_pool
}
