//! A way to an address that was checked, for a client that is to know only the name.
//!
//! The drivers resolve the host by themselves, and the name that a certificate is held against is the one that they
//! resolve. Over a socket of the file system they resolve nothing and still check the name, so they are given one, and
//! what passes it is carried to the address as it is. It takes one connection.

use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use tokio::net::{TcpStream, UnixListener};
use tokio::sync::oneshot;
use uuid::Uuid;

use super::session::SqlError;

/// Until it is dropped somebody may connect; what is connected stays.
pub struct Relay {
    folder: PathBuf,
    socket: PathBuf,
    _waiting: oneshot::Sender<()>,
}

impl Relay {
    /// Connects to the address.
    pub async fn to(address: SocketAddr, port: u16) -> Result<Self, SqlError> {
        let server = TcpStream::connect(address)
            .await
            .and_then(|server| server.set_nodelay(true).map(|()| server))
            .map_err(|error| SqlError::Lost(format!("{address}: {error}")))?;
        let folder = std::env::temp_dir().join(format!("saga-runner-{}", Uuid::new_v4().simple()));
        // The name that clients of PostgreSQL look for in a folder.
        let socket = folder.join(format!(".s.PGSQL.{port}"));
        let door = Door::open(&folder, &socket)
            .map_err(|error| SqlError::Lost(format!("{}: {error}", folder.display())))?;
        let (waiting, dropped) = oneshot::channel();
        tokio::spawn(carry(door, server, dropped));
        Ok(Self {
            folder,
            socket,
            _waiting: waiting,
        })
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    pub fn socket(&self) -> &Path {
        &self.socket
    }
}

/// A socket in a folder that nobody else may enter; both are gone with the value.
struct Door {
    folder: PathBuf,
    listener: UnixListener,
}

impl Door {
    fn open(folder: &Path, socket: &Path) -> std::io::Result<Self> {
        std::fs::DirBuilder::new().mode(0o700).create(folder)?;
        let listener = UnixListener::bind(socket).inspect_err(|_| remove(folder))?;
        Ok(Self {
            folder: folder.to_owned(),
            listener,
        })
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        remove(&self.folder);
    }
}

fn remove(folder: &Path) {
    if let Err(error) = std::fs::remove_dir_all(folder) {
        tracing::warn!(folder = %folder.display(), %error, "cannot delete the folder of a socket");
    }
}

async fn carry(door: Door, mut server: TcpStream, dropped: oneshot::Receiver<()>) {
    let accepted = tokio::select! {
        accepted = door.listener.accept() => accepted,
        _ = dropped => return,
    };
    drop(door);
    let Ok((mut client, _)) = accepted else { return };
    // Both ends see what the other does, an end too.
    if let Err(error) = tokio::io::copy_bidirectional(&mut client, &mut server).await {
        tracing::debug!(%error, "connection to a database broke");
    }
}
