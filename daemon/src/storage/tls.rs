//! TLS to an NBD server: who this side is and whom it trusts, and one connection's records.
//!
//! Guarantees: files are read by [`Identity::new`] alone, so connections that are made later need
//! none. Nothing is handed out, and nothing sent but the handshake, before the server's certificate
//! was found to be signed by the CA and for the name. No session is resumed: each connection looks
//! at the certificate again.
//!
//! Not guaranteed: that a certificate wasn't revoked.

use crate::config::{Server, Tls};
use crate::text;
use anyhow::{Context as _, Result, bail};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};
use rustls::client::Resumption;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{CertificateError, ClientConfig, ClientConnection, Error, RootCertStore};
use std::fs::File;
use std::io::{ErrorKind, IoSlice, Read as _, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Bytes of a file that are read at most.
const LONGEST: u64 = 16 << 20;

/// Who this side is, whom it trusts, and whom it expects.
pub struct Identity {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
    ca: PathBuf,
}

impl Identity {
    /// Reads the [`files`]. The server is to be of this name.
    ///
    /// # Errors
    ///
    /// In a sentence with the file's name.
    pub fn new(tls: &Tls, host: &str, files: Vec<OwnedFd>) -> Result<Identity> {
        let mut files = files.into_iter();
        let mut next = |path: &Path| {
            let file = files.next().context("a file is missing")?;
            read(path, file)
        };
        let name = tls.name.as_deref().unwrap_or(host).to_owned();
        let expected = ServerName::try_from(name.clone());
        let expected = expected.with_context(|| format!("`{name}` is no name of a server"))?;
        let shown = tls.ca.display();
        let mut roots = RootCertStore::empty();
        for certificate in certificates(&tls.ca, &next(&tls.ca)?)? {
            let added = roots.add(certificate);
            added.with_context(|| format!("{shown} has a certificate that can't be a CA's"))?;
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots);
        let mut config = match &tls.own {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let (shown, key_shown) = (certificate.display(), key.display());
                let chain = certificates(certificate, &next(certificate)?)?;
                let made = builder.with_client_auth_cert(chain, secret(key, &next(key)?)?);
                made.map_err(|error| match error {
                    Error::InconsistentKeys(_) => anyhow::Error::msg(format!(
                        "the key in {key_shown} doesn't fit the certificate in {shown}"
                    )),
                    other => anyhow::Error::new(other)
                        .context(format!("{shown} and {key_shown} can't be used")),
                })?
            }
        };
        config.resumption = Resumption::disabled();
        Ok(Identity { config: Arc::new(config), name: expected, ca: tls.ca.clone() })
    }

    /// A connection that is about to begin.
    pub fn connection(&self) -> Result<Records> {
        let connection = ClientConnection::new(Arc::clone(&self.config), self.name.clone());
        let connection = connection.context("TLS can't begin")?;
        Ok(Records { connection, came: Vec::new(), ca: self.ca.clone() })
    }
}

/// The files that a server needs, open: those of [`Server::files`], in their order.
///
/// # Errors
///
/// In a sentence with the file's name.
pub fn files(server: &Server) -> Result<Vec<OwnedFd>> {
    let open = |path: &PathBuf| {
        let file = File::open(path).with_context(|| format!("{} can't be read", path.display()))?;
        Ok(file.into())
    };
    server.files().map(open).collect()
}

/// The same, as memory: who reads them can't be made to wait by a file system.
///
/// # Errors
///
/// As for [`files`].
pub fn copies(server: &Server) -> Result<Vec<OwnedFd>> {
    let files = server.files().zip(files(server)?);
    files.map(|(path, file)| text::given(&read(path, file)?)).collect()
}

fn read(path: &Path, file: OwnedFd) -> Result<Vec<u8>> {
    text::taken(file, LONGEST).with_context(|| format!("{} can't be read", path.display()))
}

fn certificates(path: &Path, text: &[u8]) -> Result<Vec<CertificateDer<'static>>> {
    let shown = path.display();
    let found = CertificateDer::pem_slice_iter(text).collect::<Result<Vec<_>, _>>();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => bail!("{shown} has no certificate (-----BEGIN CERTIFICATE-----)"),
        Err(error) => Err(error).with_context(|| format!("{shown} is no PEM file")),
    }
}

fn secret(path: &Path, text: &[u8]) -> Result<PrivateKeyDer<'static>> {
    let found = PrivateKeyDer::from_pem_slice(text);
    let shown = path.display();
    found.with_context(|| {
        format!("{shown} has no private key without a password (-----BEGIN PRIVATE KEY-----)")
    })
}

/// A connection's records.
pub struct Records {
    connection: ClientConnection,
    /// What came and isn't opened.
    came: Vec<u8>,
    ca: PathBuf,
}

impl Records {
    /// Is there something of it that the socket hasn't taken?
    pub fn is_sending(&self) -> bool {
        self.connection.wants_write()
    }

    /// Sends of these bytes what the socket takes, and of what it hadn't taken: how many of them
    /// are done with.
    ///
    /// # Errors
    ///
    /// If the server takes nothing any more.
    pub fn push(&mut self, socket: BorrowedFd<'_>, bytes: &[u8]) -> Result<usize> {
        let mut taken = 0;
        loop {
            let rest = bytes.get(taken..).unwrap_or_default();
            taken += self.connection.writer().write(rest).context("nothing can be sealed")?;
            if !self.connection.wants_write() {
                return Ok(taken);
            }
            match self.connection.write_tls(&mut Sending(socket)) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(taken),
                Err(error) => return Err(error).context("the server takes nothing"),
            }
        }
    }

    /// Tells the server that nothing more comes.
    pub fn close(&mut self, socket: BorrowedFd<'_>) {
        self.connection.send_close_notify();
        let _ = self.push(socket, &[]);
    }

    /// Where what comes is put, before [`Self::open`].
    pub fn room(&mut self) -> &mut Vec<u8> {
        &mut self.came
    }

    /// Opens what came.
    ///
    /// # Errors
    ///
    /// If the server isn't who it should be, refuses this side, or ends the connection; what it
    /// said before is there.
    pub fn open(&mut self, socket: BorrowedFd<'_>, plain: &mut Vec<u8>) -> Result<()> {
        let came = std::mem::take(&mut self.came);
        let mut rest = &came[..];
        while !rest.is_empty() {
            self.connection.read_tls(&mut rest).context("the server's records make no sense")?;
            let opened = self.connection.process_new_packets();
            let state = match opened {
                Ok(state) => state,
                Err(error) => {
                    // It is told why.
                    let _ = self.push(socket, &[]);
                    bail!("{}", self.sentence(&error));
                }
            };
            let old = plain.len();
            plain.resize(old + state.plaintext_bytes_to_read(), 0);
            self.connection.reader().read_exact(&mut plain[old..]).context("a record is short")?;
            if state.peer_has_closed() {
                bail!("the server closed the connection");
            }
        }
        self.came = came;
        self.came.clear();
        Ok(())
    }

    fn sentence(&self, error: &Error) -> String {
        let ca = self.ca.display();
        match error {
            Error::InvalidCertificate(wrong) => match wrong {
                CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                    format!("the server's certificate isn't signed by that of {ca}")
                }
                CertificateError::NotValidForNameContext { expected, presented } => {
                    // They come as `DnsName("a.example")`.
                    let name = |name: &'_ String| name.split('"').nth(1).unwrap_or(name).to_owned();
                    let names = presented.iter().map(name).collect::<Vec<_>>().join(", ");
                    let names = if names.is_empty() { "no name" } else { &names };
                    let expected = expected.to_str();
                    format!("the server's certificate is for {names}, and not for {expected}")
                }
                CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                    "the server's certificate has expired".to_owned()
                }
                other => format!("the server's certificate can't be trusted: {other}"),
            },
            Error::AlertReceived(alert) => {
                format!("the server refuses this side over TLS: {alert:?}")
            }
            other => format!("TLS with the server fails: {other}"),
        }
    }
}

/// What sends records, several at a time.
struct Sending<'a>(BorrowedFd<'a>);

impl Write for Sending<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> std::io::Result<usize> {
        let mut nothing = SendAncillaryBuffer::default();
        Ok(sendmsg(self.0.as_fd(), parts, &mut nothing, SendFlags::NOSIGNAL)?)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
