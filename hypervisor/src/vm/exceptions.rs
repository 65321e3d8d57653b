//! Vectors of the exceptions that the host injects into a guest (APM vol. 2, 8.2).

/// #UD.
pub const UNDEFINED: u8 = 6;
/// #DF.
pub const DOUBLE_FAULT: u8 = 8;
/// #NP.
pub const NOT_PRESENT: u8 = 11;
/// #GP.
pub const GENERAL_PROTECTION: u8 = 13;
/// #PF.
pub const PAGE_FAULT: u8 = 14;
