//! How an NBD server is reached: its address, TLS, and how long it may be silent.

use super::field::{Field, in_file_order};
use nbd::{Place, Uri};
use rustls::pki_types::ServerName;
use serde::{Deserialize, Serialize};
use std::iter;
use std::path::PathBuf;
use std::time::Duration;

const TLS: [&str; 4] = ["ca", "certificate", "key", "name"];
/// How long a server may be silent while it is asked, if nothing else is said. A flush of much
/// data takes minutes.
pub const TIMEOUT: Duration = Duration::from_secs(300);
/// The shortest and the longest time, in microseconds.
const SHORTEST_TIMEOUT: u64 = 100_000;
const LONGEST_TIMEOUT: u64 = 3_600_000_000;

/// A server's export.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Server {
    pub uri: String,
    pub tls: Option<Tls>,
    /// How long a connection may be silent while something is asked for there.
    pub timeout: Duration,
}

/// Files of TLS, and who the server is to be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tls {
    /// Whose certificates are trusted.
    pub ca: PathBuf,
    /// This side's certificate and its key.
    pub own: Option<(PathBuf, PathBuf)>,
    /// The server's name, if it isn't that of the address.
    pub name: Option<String>,
}

impl Server {
    /// Puts together what was said.
    ///
    /// # Errors
    ///
    /// In a sentence, if it doesn't fit together.
    pub fn new(uri: &str, tls: Option<Tls>, timeout: Option<Duration>) -> Result<Server, String> {
        let read = Uri::parse(uri).map_err(|error| format!("{uri} is no NBD address: {error}"))?;
        match &tls {
            None if read.tls => {
                return Err(format!(
                    "{uri} is with TLS, and no CA is named that signs the server's certificate; add \
                     tls = {{ ca = \"ca.pem\" }} (--tls-ca)"
                ));
            }
            Some(_) if !read.tls => {
                return Err(format!(
                    "{uri} is without TLS; write nbds:// or nbds+unix://, or leave TLS out"
                ));
            }
            Some(Tls { name: None, .. }) if matches!(read.place, Place::Unix(_)) => {
                return Err(format!(
                    "{uri} doesn't say whom the server's certificate is to be for; name it"
                ));
            }
            _ => {}
        }
        Ok(Server { uri: uri.to_owned(), tls, timeout: timeout.unwrap_or(TIMEOUT) })
    }

    /// The files that it needs: the CA's, the own certificate and its key.
    pub fn files(&self) -> impl Iterator<Item = &PathBuf> {
        self.tls.iter().flat_map(|tls| {
            let own = tls.own.iter().flat_map(|(certificate, key)| [certificate, key]);
            iter::once(&tls.ca).chain(own)
        })
    }
}

/// `tls = { … }`.
pub fn tls(field: &Field<'_, '_, '_, '_>, place: &str) -> Option<Tls> {
    let table = field.table("a table such as { ca = \"ca.pem\" }")?;
    let (mut ca, mut certificate, mut key, mut name) = (None, None, None, None);
    let mut failed = false;
    for (word, value) in in_file_order(table) {
        let own = format!("tls.{}", word.get_ref());
        let own = Field { key: &own, value, ..*field };
        let known = match word.get_ref().as_ref() {
            "ca" => own.path("ca.pem").map(|path| ca = Some(path)),
            "certificate" => own.path("client.pem").map(|path| certificate = Some(path)),
            "key" => own.path("client.key").map(|path| key = Some(path)),
            "name" => {
                let needed = "a server's name in quotes, such as \"storage.example\"";
                let read = own.read(needed, server_name);
                read.map(|read| name = Some(read))
            }
            _ => {
                field.reader.unknown(word, place, "tls", &TLS);
                None
            }
        };
        failed |= known.is_none();
    }
    if failed {
        return None;
    }
    let Some(ca) = ca else {
        field.note("it has no `ca`; name the file of whose certificates are trusted");
        return None;
    };
    let own = match (certificate, key) {
        (Some(certificate), Some(key)) => Some((certificate, key)),
        (None, None) => None,
        _ => {
            field.note("`certificate` and `key` go together; give both or none");
            return None;
        }
    };
    Some(Tls { ca, own, name })
}

/// A name, or an address.
///
/// # Errors
///
/// If it can't be a server's.
pub fn server_name(text: &str) -> Result<String, String> {
    match ServerName::try_from(text) {
        Ok(_) => Ok(text.to_owned()),
        Err(_) => Err("it is no name of a server, such as \"storage.example\"".to_owned()),
    }
}

/// `timeout = "…"`.
pub fn timeout(field: &Field<'_, '_, '_, '_>) -> Option<Duration> {
    field.read("a time in quotes, such as \"60s\"", parse_timeout)
}

/// A time that a server may be silent.
///
/// # Errors
///
/// If it is none, or too short or long.
pub fn parse_timeout(text: &str) -> Result<Duration, String> {
    let micros = plan::parse_micros(text).map_err(|error| error.to_string())?;
    let micros = u64::from(micros);
    if !(SHORTEST_TIMEOUT..=LONGEST_TIMEOUT).contains(&micros) {
        return Err("a server's time has to be from 100ms to an hour, such as \"60s\"".to_owned());
    }
    Ok(Duration::from_micros(micros))
}
