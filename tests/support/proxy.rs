//! A TCP proxy that breaks connections on demand.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// What happens to bytes on their way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    None,
    /// Connections stay open and nothing passes; what is read is lost.
    BlackHole,
    /// Nothing passes towards the client; it is kept and passes later.
    Stall,
    /// Every piece passes later by this much.
    Delay(Duration),
}

/// Ends with the value.
pub struct Proxy {
    address: SocketAddr,
    fault: watch::Sender<Fault>,
    /// Raised by one for each cut.
    cut: watch::Sender<u64>,
    acceptor: tokio::task::JoinHandle<()>,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.acceptor.abort();
    }
}

impl Proxy {
    pub async fn start(target: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind on loopback");
        let address = listener.local_addr().expect("an address after bind");
        let (fault, fault_seen) = watch::channel(Fault::None);
        let (cut, cut_seen) = watch::channel(0);
        let acceptor = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let (target, fault, mut cut) = (target.clone(), fault_seen.clone(), cut_seen.clone());
                cut.mark_unchanged();
                connections.spawn(async move {
                    let Ok(server) = TcpStream::connect(&target).await else {
                        return;
                    };
                    let _ = (client.set_nodelay(true), server.set_nodelay(true));
                    let (client_read, client_write) = client.into_split();
                    let (server_read, server_write) = server.into_split();
                    // A cut drops all four halves, which closes both connections.
                    tokio::select! {
                        () = carry(client_read, server_write, fault.clone(), Way::ToServer) => {}
                        () = carry(server_read, client_write, fault, Way::ToClient) => {}
                        _ = cut.changed() => {}
                    }
                });
            }
        });
        Self {
            address,
            fault,
            cut,
            acceptor,
        }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn url(&self) -> String {
        format!("nats://{}", self.address)
    }

    /// From now on.
    pub fn set(&self, fault: Fault) {
        self.fault.send_replace(fault);
    }

    /// Closes all open connections; new ones are accepted.
    pub fn cut(&self) {
        self.cut.send_modify(|cuts| *cuts += 1);
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    ToServer,
    ToClient,
}

async fn carry(
    mut from: impl AsyncReadExt + Unpin,
    mut to: impl AsyncWriteExt + Unpin,
    mut fault: watch::Receiver<Fault>,
    way: Way,
) {
    let mut buffer = vec![0; 65_536];
    loop {
        let read = match from.read(&mut buffer).await {
            Ok(0) | Err(_) => return,
            Ok(read) => read,
        };
        let holds_back = |fault: &Fault| *fault != Fault::Stall || way == Way::ToServer;
        if fault.wait_for(holds_back).await.is_err() {
            return;
        }
        let now = *fault.borrow();
        match now {
            Fault::BlackHole => continue,
            Fault::Delay(delay) => tokio::time::sleep(delay).await,
            Fault::None | Fault::Stall => {}
        }
        if to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
}
