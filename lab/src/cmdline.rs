//! What the kernels of the project's own guests are told, whatever they run.

/// The start of their command line. A kernel of Debian's tests its cryptography in a thread of its
/// own after it has started the first program: hundreds of millions of instructions, big
/// exponentiations most of them, that would share the CPU with whatever is measured or timed.
pub const LINUX: &str = "console=ttyS0 cryptomgr.notests";
