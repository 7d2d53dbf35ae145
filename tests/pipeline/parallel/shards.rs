//! Layers that several devices share.

crate::suite![
    plain: ;
    device:
];
