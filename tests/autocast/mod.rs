//! Mixed precision: scopes of `autocast`, and what is computed in them.

#![expect(clippy::unwrap_used, reason = "tests")]

mod dispatches;
mod learning;
mod scaler;
mod scopes;
mod table;

crate::suite![
    plain: every_row_of_the_table, scopes_nest_and_end, scopes_belong_to_their_pass, other_dtypes_are_refused, scales_that_cannot_be_are_refused;
    device: products_are_of_rounded_operands, gradients_of_weights_are_not_rounded, a_weight_is_rounded_once_a_pass,
        checkpoints_repeat_what_was_computed, second_derivatives_flow, a_captured_step_keeps_its_scopes, what_is_not_finite_is_left_out_by_the_device, every_optimizer_skips,
        clipped_gradients_skip_by_their_norm, files_keep_scale_and_counts, an_mlp_learns_as_in_f32,
        a_gpt_learns_as_in_f32, stages_in_scopes_learn_as_one_context,
        a_step_takes_few_kernels,
];

use dispatches::a_step_takes_few_kernels;
use learning::{a_gpt_learns_as_in_f32, an_mlp_learns_as_in_f32, stages_in_scopes_learn_as_one_context};
use scaler::{
    clipped_gradients_skip_by_their_norm, every_optimizer_skips, files_keep_scale_and_counts,
    scales_that_cannot_be_are_refused, what_is_not_finite_is_left_out_by_the_device,
};
use scopes::{
    a_captured_step_keeps_its_scopes, a_weight_is_rounded_once_a_pass, checkpoints_repeat_what_was_computed,
    gradients_of_weights_are_not_rounded, other_dtypes_are_refused, products_are_of_rounded_operands,
    scopes_belong_to_their_pass, scopes_nest_and_end, second_derivatives_flow,
};
use table::every_row_of_the_table;
