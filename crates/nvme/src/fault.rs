//! Why a controller isn't used, or isn't used any more.

use thiserror::Error;

/// The controller, or its namespace, isn't one that this driver can use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Unfit {
    /// CAP says so.
    #[error("it doesn't know the NVM command set")]
    Commands,
    /// CAP says so.
    #[error("its smallest page isn't 4 KiB")]
    Pages,
    /// CAP says so.
    #[error("its queues have {0} entries at most, and more are needed")]
    ShortQueues(u32),
    /// It is for discovery or administration.
    #[error("it is no I/O controller, but of type {0}")]
    Kind(u8),
    /// Of queues.
    #[error("its queues' entries have unusual sizes")]
    Entries,
    /// None is active.
    #[error("it has no namespace")]
    NoNamespace,
    /// Of the namespace's format.
    #[error("its namespace is formatted with metadata")]
    Metadata,
    /// Of the namespace's format: a power of two.
    #[error("its namespace's blocks have 2^{0} bytes, and only 512 to 4096 can be used")]
    Block(u32),
    /// Of the namespace, in blocks.
    #[error("its namespace has {0} blocks")]
    Size(u64),
    /// It isn't what it was before a reset.
    #[error("after a reset its namespace is another")]
    Changed,
}

/// What went wrong with a controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Fault {
    /// It isn't usable.
    #[error(transparent)]
    Unfit(#[from] Unfit),
    /// Its registers read as all ones.
    #[error("it is gone")]
    Gone,
    /// CSTS.CFS.
    #[error("it reports a fatal error")]
    Fatal,
    /// CSTS.RDY didn't follow CC.EN to 1.
    #[error("it doesn't become ready")]
    NotReady,
    /// CSTS.RDY didn't follow CC.EN to 0: it may still access memory.
    #[error("it doesn't stop")]
    NotStopped,
    /// An admin command wasn't completed in time.
    #[error("it doesn't complete admin commands")]
    AdminTimeout,
    /// An admin command that is needed failed, with this status.
    #[error("it fails an admin command with status {0:#x}")]
    Admin(u16),
    /// CSTS.SHST doesn't say that a shutdown is complete.
    #[error("it doesn't end its shutdown")]
    NotShutDown,
    /// An I/O command wasn't completed in time.
    #[error("it doesn't complete commands in time")]
    Timeout,
}
