//! A TCP proxy that breaks what goes through it: between a sidecar and its store.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// What happens to octets that go through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    None,
    /// Every piece waits so long.
    Delay(Duration),
    /// Requests arrive, replies do not; a connection that lost one never carries one again.
    LosesReplies,
    /// Requests do not arrive.
    LosesRequests,
    /// After so many further octets of replies each connection breaks, in the middle of one.
    CutsRepliesAfter(u64),
    /// The same with requests.
    CutsRequestsAfter(u64),
    /// Connections break, new ones too.
    Refuses,
}

/// A running proxy.
#[derive(Debug, Clone)]
pub struct Faulty {
    pub addr: SocketAddr,
    fault: Arc<watch::Sender<Fault>>,
    target: Arc<Mutex<SocketAddr>>,
    left: Arc<AtomicU64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    Requests,
    Replies,
}

impl Faulty {
    pub fn to(target: SocketAddr) -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let proxy = Self {
            addr: listener.local_addr().unwrap(),
            fault: Arc::new(watch::Sender::new(Fault::None)),
            target: Arc::new(Mutex::new(target)),
            left: Arc::new(AtomicU64::new(0)),
        };
        let serving = proxy.clone();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async move {
                let listener = TcpListener::from_std(listener).unwrap();
                while let Ok((near, _)) = listener.accept().await {
                    tokio::spawn(serving.clone().carry(near));
                }
            });
        });
        proxy
    }

    /// From now on, for every connection.
    pub fn set(&self, fault: Fault) {
        let octets = match fault {
            Fault::CutsRepliesAfter(octets) | Fault::CutsRequestsAfter(octets) => octets,
            _ => 0,
        };
        self.left.store(octets, Ordering::SeqCst);
        self.fault.send_replace(fault);
    }

    /// New connections go there, as behind a name that is given to another server.
    pub fn redirect(&self, target: SocketAddr) {
        *self.target.lock().unwrap() = target;
    }

    async fn carry(self, near: TcpStream) {
        if *self.fault.borrow() == Fault::Refuses {
            return;
        }
        let target = *self.target.lock().unwrap();
        let Ok(far) = TcpStream::connect(target).await else {
            return;
        };
        near.set_nodelay(true).unwrap();
        far.set_nodelay(true).unwrap();
        let (from_near, to_near) = near.into_split();
        let (from_far, to_far) = far.into_split();
        let mut refuses = self.fault.subscribe();
        tokio::select! {
            () = self.pump(from_near, to_far, Direction::Requests) => {}
            () = self.pump(from_far, to_near, Direction::Replies) => {}
            _ = refuses.wait_for(|fault| *fault == Fault::Refuses) => {}
        }
    }

    async fn pump(&self, mut from: OwnedReadHalf, mut to: OwnedWriteHalf, direction: Direction) {
        let mut octets = vec![0; 16 << 10];
        // What TCP lost it loses for good: nothing comes after a gap.
        let mut lost = false;
        loop {
            let Ok(count @ 1..) = from.read(&mut octets).await else {
                return;
            };
            let fault = *self.fault.borrow();
            let mut piece = &octets[..count];
            lost |= matches!(
                (fault, direction),
                (Fault::LosesReplies, Direction::Replies)
                    | (Fault::LosesRequests, Direction::Requests)
            );
            if lost {
                continue;
            }
            match (fault, direction) {
                (Fault::Delay(time), _) => tokio::time::sleep(time).await,
                (Fault::CutsRepliesAfter(_), Direction::Replies)
                | (Fault::CutsRequestsAfter(_), Direction::Requests) => {
                    let left = self.left.load(Ordering::SeqCst);
                    let taken = left.min(count as u64);
                    self.left.fetch_sub(taken, Ordering::SeqCst);
                    piece = &piece[..usize::try_from(taken).unwrap()];
                }
                _ => {}
            }
            if to.write_all(piece).await.is_err() {
                return;
            }
            if piece.len() < count {
                // Cut in the middle: what was let through arrives, and then the end.
                drop(to.shutdown().await);
                return;
            }
        }
    }
}
