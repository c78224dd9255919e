//! Choice of the loopback ports: those of the last run if they are free, else the next free ones.

use std::fs;
use std::io::ErrorKind;
use std::net::Ipv4Addr;
use std::path::Path;

use tokio::net::TcpListener;
use tracing::warn;

const FILE_NAME: &str = "ports";
/// Number of ports that are tried, from the first one on.
const MAX_PORTS_TRIED: u16 = 200;

/// A plain and a TLS listener. Port 0 selects any two free ports.
pub async fn listen(data_dir: &Path, first_port: u16) -> std::io::Result<Option<(TcpListener, TcpListener)>> {
    let file = data_dir.join(FILE_NAME);
    let (mut plain, mut tls) = match saved_ports(&file, first_port) {
        Some((plain, tls)) => (bind(plain).await?, bind(tls).await?),
        None => (None, None),
    };
    let mut port = first_port;
    for _ in 0..MAX_PORTS_TRIED {
        if plain.is_none() {
            plain = bind(port).await?;
        } else if tls.is_none() {
            tls = bind(port).await?;
        }
        port = match port.checked_add(u16::from(first_port != 0)) {
            Some(next) => next,
            None => break,
        };
    }
    let (Some(plain), Some(tls)) = (plain, tls) else { return Ok(None) };
    let text = format!("{first_port} {} {}\n", plain.local_addr()?.port(), tls.local_addr()?.port());
    // The file only keeps ports stable: without it they may differ after the next start.
    if let Err(error) = save_ports(&file, &text) {
        warn!(file = %file.display(), %error, "cannot save the chosen ports");
    }
    Ok(Some((plain, tls)))
}

/// Writes a new file and renames it over the old one, so that the old one survives a full disk.
fn save_ports(file: &Path, text: &str) -> std::io::Result<()> {
    if fs::read_to_string(file).is_ok_and(|known| known == text) {
        return Ok(());
    }
    let unfinished = file.with_extension("new");
    fs::write(&unfinished, text)?;
    fs::rename(unfinished, file)
}

/// `None` if the port is in use or not permitted.
async fn bind(port: u16) -> std::io::Result<Option<TcpListener>> {
    match TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await {
        Ok(listener) => Ok(Some(listener)),
        Err(error) if matches!(error.kind(), ErrorKind::AddrInUse | ErrorKind::PermissionDenied) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The two ports of the last run that started from the same first port.
fn saved_ports(file: &Path, first_port: u16) -> Option<(u16, u16)> {
    let text = fs::read_to_string(file).ok()?;
    let numbers: Vec<u16> = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    match numbers[..] {
        [first, plain, tls] if first == first_port && plain != 0 && tls != 0 && plain != tls => Some((plain, tls)),
        _ => None,
    }
}
