//! What ends a connection. Texts are the ends of sentences.
use alloc::string::String;
use thiserror::Error;

/// What the server did.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Error {
    /// It doesn't begin as a server of the fixed newstyle does.
    #[error("what answers is no NBD server of the fixed newstyle")]
    Magic,
    /// It has no such export, or gives it to nobody who asks like this.
    #[error("the server refuses the export: {0}")]
    Refused(String),
    /// It only speaks TLS.
    #[error("the server asks for TLS: write nbds:// and say which certificates")]
    Tls,
    /// It was asked for TLS, and has none.
    #[error("the server has no TLS: {0}")]
    NoTls(String),
    /// It ended the handshake without saying how large the export is.
    #[error("the server doesn't say how large the export is")]
    NoSize,
    /// A reply of the handshake is longer than any may be.
    #[error("the server's answer of {0} bytes is too long")]
    TooLong(u32),
    /// A reply that isn't one, or to something else.
    #[error("the server's reply makes no sense")]
    Reply,
    /// A reply to a request that there isn't.
    #[error("the server replies to a request that there isn't")]
    Cookie,
    /// Data that is none of the request's.
    #[error("the server sends data that wasn't asked for")]
    Data,
}
