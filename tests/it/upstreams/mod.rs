//! Upstreams of every kind: where they are, what they speak, how they fail.

mod sockets;
