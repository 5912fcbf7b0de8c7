//! Builders that start real servers on free loopback ports and return where they are bound.

pub(crate) mod redis;
