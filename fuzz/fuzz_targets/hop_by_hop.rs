#![no_main]

#[path = "../checks/hop_by_hop.rs"]
mod check;

libfuzzer_sys::fuzz_target!(|data: &[u8]| check::check(data));
