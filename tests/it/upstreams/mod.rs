//! Upstreams of every kind: where they are, what they speak, how they fail.

mod goaway;
mod h2_server;
mod h2c;
mod https;
mod sockets;
