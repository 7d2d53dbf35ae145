//! What fails on one place of a mesh: one error that says where, nothing half applied, nobody hangs.

crate::suite![
    plain: ;
    device:
];
