//! A link between two servers that can be cut: a proxy of octets.
//!
//! While it is cut it takes what comes and passes nothing on, as a network does that lost its
//! route: neither side learns of it. Healing ends the connections that were cut.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use super::redis::next_addr;

/// A link to one server.
#[derive(Debug)]
pub struct Link {
    pub addr: SocketAddr,
    state: Arc<State>,
}

#[derive(Debug, Default)]
struct State {
    cut: AtomicBool,
    over: AtomicBool,
    open: Mutex<Vec<TcpStream>>,
}

impl Link {
    pub fn to(target: SocketAddr) -> Self {
        let listener = loop {
            // Another program may be there.
            if let Ok(listener) = TcpListener::bind(next_addr()) {
                break listener;
            }
        };
        let addr = listener.local_addr().unwrap();
        let state = Arc::new(State::default());
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            for near in listener.incoming() {
                if shared.over.load(Ordering::SeqCst) {
                    return;
                }
                let (Ok(near), Ok(far)) = (near, TcpStream::connect(target)) else {
                    continue;
                };
                let copies = [&near, &far].map(|side| side.try_clone().unwrap());
                shared.open.lock().unwrap().extend(copies);
                let [near_too, far_too] = [&near, &far].map(|side| side.try_clone().unwrap());
                let state = Arc::clone(&shared);
                thread::spawn(move || pump(near, far, &state));
                let state = Arc::clone(&shared);
                thread::spawn(move || pump(far_too, near_too, &state));
            }
        });
        Self { addr, state }
    }

    /// From now on nothing gets through.
    pub fn cut(&self) {
        self.state.cut.store(true, Ordering::SeqCst);
    }

    /// New connections get through again; what was cut never goes on after a gap.
    pub fn heal(&self) {
        self.state.cut.store(false, Ordering::SeqCst);
        self.close();
    }

    fn close(&self) {
        for side in self.state.open.lock().unwrap().drain(..) {
            drop(side.shutdown(Shutdown::Both));
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.state.over.store(true, Ordering::SeqCst);
        self.close();
        // Wakes the listener up, which then ends.
        drop(TcpStream::connect(self.addr));
    }
}

fn pump(mut from: TcpStream, mut to: TcpStream, state: &State) {
    let mut octets = [0; 16 * 1024];
    let mut spoilt = false;
    while let Ok(count @ 1..) = from.read(&mut octets) {
        spoilt |= state.cut.load(Ordering::SeqCst);
        if !spoilt && to.write_all(&octets[..count]).is_err() {
            break;
        }
    }
    drop(to.shutdown(Shutdown::Both));
    drop(from.shutdown(Shutdown::Both));
}
