//! Where a server is, and which of its exports is meant: `nbd://host:port/export` and
//! `nbd+unix:///export?socket=/path`; with TLS `nbds://` and `nbds+unix://`.
use alloc::borrow::ToOwned as _;
use alloc::string::String;
use alloc::vec::Vec;
use thiserror::Error;

/// The port of a server that says no other.
const PORT: u16 = 10809;

/// A server and an export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uri {
    /// Where the server is.
    pub place: Place,
    /// The export's name; empty is the default one.
    pub export: String,
    /// Over TLS, or not at all.
    pub tls: bool,
}

/// Where a server is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A host, by its name or address, and a port.
    Host(String, u16),
    /// A socket's path.
    Unix(String),
}

/// Why it isn't one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum BadUri {
    /// It begins otherwise.
    #[error(
        "it doesn't begin with nbd://, nbd+unix://, nbds:// or nbds+unix://; as nbd://HOST/EXPORT does"
    )]
    Scheme,
    /// There is no host.
    #[error("it names no host")]
    Host,
    /// The port isn't one.
    #[error("its port isn't a number from 1 to 65535")]
    Port,
    /// `nbd+unix` without a socket.
    #[error("it has no ?socket=PATH")]
    Socket,
    /// `%` without two hexadecimal digits, or what comes of it isn't text.
    #[error("a % in it isn't followed by two hexadecimal digits of a text")]
    Percent,
}

impl Uri {
    /// Reads one.
    ///
    /// # Errors
    ///
    /// [`BadUri`].
    pub fn parse(text: &str) -> Result<Uri, BadUri> {
        let (scheme, rest) = text.split_once("://").ok_or(BadUri::Scheme)?;
        let (tls, is_unix) = match scheme {
            "nbd" => (false, false),
            "nbd+unix" => (false, true),
            "nbds" => (true, false),
            "nbds+unix" => (true, true),
            _ => return Err(BadUri::Scheme),
        };
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (host, export) = rest.split_once('/').unwrap_or((rest, ""));
        let export = decode(export)?;
        if is_unix {
            let socket = query.split('&').find_map(|part| part.strip_prefix("socket="));
            let socket = decode(socket.filter(|path| !path.is_empty()).ok_or(BadUri::Socket)?)?;
            return Ok(Uri { place: Place::Unix(socket), export, tls });
        }
        // An address of version 6 is in brackets.
        let (name, port) = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((name, port)) => (name, port.strip_prefix(':')),
            None => host.split_once(':').map_or((host, None), |(name, port)| (name, Some(port))),
        };
        if name.is_empty() {
            return Err(BadUri::Host);
        }
        let port = match port.map(str::parse) {
            None => PORT,
            Some(Ok(0)) | Some(Err(_)) => return Err(BadUri::Port),
            Some(Ok(port)) => port,
        };
        Ok(Uri { place: Place::Host(name.to_owned(), port), export, tls })
    }
}

fn decode(text: &str) -> Result<String, BadUri> {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = tail;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let digits = tail.first_chunk::<2>().and_then(|digits| core::str::from_utf8(digits).ok());
        let byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        bytes.push(byte.ok_or(BadUri::Percent)?);
        rest = tail.get(2..).unwrap_or_default();
    }
    String::from_utf8(bytes).map_err(|_| BadUri::Percent)
}
