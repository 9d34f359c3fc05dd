//! Metrics of a recording: `--metrics` and `--otlp`.
//!
//! In: the summary's sums by process. Out: OpenMetrics by HTTP, OTLP by HTTP. The thread that empties the rings copies
//! the sums on request (`super::state`), and does nothing else for metrics; threads of this module make names, labels
//! and texts from a copy. Not here: what is counted (gpurec_analysis::usage).

mod families;
mod http;
mod labels;
mod otlp;
mod push;
mod server;
#[cfg(test)]
mod tests;
mod text;

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::{Result, anyhow};
use nix::unistd::geteuid;

use super::state::{self, Teller};
use crate::process::identity::Identity;
use crate::process::rights::as_caller;
use labels::Pods;
pub use push::{Endpoint, Pusher};

/// What to serve and where.
#[derive(Clone, Debug, Default)]
pub struct Config {
    pub address: Option<SocketAddr>,
    pub endpoint: Option<Endpoint>,
    /// The number of kernels of each process that have their own series.
    pub kernels: usize,
}

impl Config {
    pub fn is_on(&self) -> bool {
        self.address.is_some() || self.endpoint.is_some()
    }
}

/// The address of `--metrics`: `ADDR:PORT`, `:PORT` or `PORT`. Without an address only this machine can connect.
pub fn address(text: &str) -> Result<SocketAddr, String> {
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    let (host, port) = text.rsplit_once(':').unwrap_or(("", text));
    let expected =
        "must be ADDR:PORT, with an IP address such as 127.0.0.1:9400 or [::]:9400, or a port alone";
    let port = port.parse().map_err(|_| expected.to_owned())?;
    match host {
        "" | "localhost" => Ok(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port)),
        _ => Err(expected.to_owned()),
    }
}

/// The port, open before anything is recorded.
pub struct Open {
    config: Config,
    listener: Option<TcpListener>,
}

/// Opens the port with the rights of the user who called sudo, whose choice it is.
pub fn open(config: &Config, user: &Identity) -> Result<Open> {
    let listen = |address: &SocketAddr| {
        let bind = || TcpListener::bind(address);
        // Without sudo gpurec has its own capabilities, as a service may have one for such ports.
        let listener = if geteuid().is_root() { as_caller(user, bind)?? } else { bind()? };
        listener.set_nonblocking(true)?;
        Ok(listener)
    };
    let listener =
        config.address.as_ref().map(|address| listen(address).map_err(|error| refused(address, &error)));
    Ok(Open { config: config.clone(), listener: listener.transpose()? })
}

fn refused(address: &SocketAddr, error: &io::Error) -> anyhow::Error {
    let (why, remedy) = match error.kind() {
        ErrorKind::AddrInUse => {
            let port = address.port();
            (
                "another program has this port".to_owned(),
                format!(
                    "give another port to --metrics, or end that program (ss -ltnp 'sport = {port}' names it)"
                ),
            )
        }
        ErrorKind::AddrNotAvailable => (
            "this machine has no such address".to_owned(),
            "give --metrics one that `ip address` shows, or a port alone".to_owned(),
        ),
        ErrorKind::PermissionDenied => (
            "ports below 1024 need a right that you do not have yourself".to_owned(),
            "give --metrics a port from 1024 on".to_owned(),
        ),
        _ => (error.to_string(), "give another address to --metrics".to_owned()),
    };
    anyhow!("cannot serve metrics at {address}: {why}; {remedy}")
}

impl Open {
    /// Where the metrics are: the port that Linux chose, if the user gave 0.
    pub fn url(&self) -> Option<String> {
        let address = self.listener.as_ref()?.local_addr().ok()?;
        Some(format!("http://{address}/metrics"))
    }

    /// Starts the threads that serve. `say` prints a message to the user.
    pub fn serve(self, start: SystemTime, say: impl Fn(&str) + Send + 'static) -> io::Result<Serving> {
        let (asker, mut teller) = state::channel(start);
        let pods = Arc::new(Pods::default());
        if let Some(listener) = self.listener {
            server::start(listener, asker.clone(), pods.clone())?;
        }
        let pusher = match self.config.endpoint {
            Some(endpoint) => Some(push::start(endpoint, asker, &mut teller, pods, Box::new(say))?),
            None => None,
        };
        Ok(Serving { teller, pusher })
    }
}

pub struct Serving {
    /// For the thread that empties the rings.
    pub teller: Teller,
    pub pusher: Option<Pusher>,
}

/// How long a request waits for the thread that empties the rings.
const PATIENCE: Duration = Duration::from_secs(5);
