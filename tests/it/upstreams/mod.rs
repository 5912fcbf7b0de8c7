//! Upstreams of every kind: where they are, what they speak, how they fail.

mod ends;
mod goaway;
mod grpc;
mod grpc_problems;
mod grpc_streams;
mod h2_server;
mod h2c;
mod https;
mod sockets;
