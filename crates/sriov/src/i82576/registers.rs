//! Offsets of the registers and their bits, by the datasheet's names (chapter 8).

pub const CTRL: u32 = 0x0000;
pub const CTRL_FD: u32 = 1 << 0;
pub const CTRL_SLU: u32 = 1 << 6;
pub const CTRL_FRCSPD: u32 = 1 << 11;
pub const CTRL_FRCDPX: u32 = 1 << 12;
pub const CTRL_RST: u32 = 1 << 26;
pub const CTRL_EXT: u32 = 0x0018;
pub const CTRL_EXT_PFRSTD: u32 = 1 << 14;

/// Access to the transceiver (8.2.4).
pub const MDIC: u32 = 0x0020;
pub const MDIC_READY: u32 = 1 << 28;
/// A write (01b at 27:26) to transceiver 1 (25:21), register 0 (20:16): 1 Gb/s, full duplex,
/// negotiate, now.
pub const MDIC_RESTART_LINK: u32 = 1 << 26 | 1 << 21 | 0x1340;

pub const ICR: u32 = 0x1500;
pub const IMC: u32 = 0x150C;
pub const GPIE: u32 = 0x1514;
pub const GPIE_NSICR: u32 = 1 << 0;
pub const GPIE_MULTIPLE_MSIX: u32 = 1 << 4;
pub const GPIE_EIAME: u32 = 1 << 30;
pub const GPIE_PBA: u32 = 1 << 31;
pub const EIMC: u32 = 0x1528;

pub const RCTL: u32 = 0x0100;
pub const RCTL_EN: u32 = 1 << 1;
pub const RCTL_LPE: u32 = 1 << 5;
pub const RCTL_BAM: u32 = 1 << 15;
pub const RCTL_VFE: u32 = 1 << 18;
pub const RCTL_SECRC: u32 = 1 << 26;
pub const QDE: u32 = 0x2408;
pub const RLPML: u32 = 0x5004;
/// Multicast filter, 128 words, as have the unicast and the VLAN filter.
pub const MTA: u32 = 0x5200;
pub const MTA_WORDS: usize = 128;
pub const UTA: u32 = 0xA000;
pub const VFTA: u32 = 0x5600;
pub const MRQC: u32 = 0x5818;
/// 011b: pools by address, no hashing inside them.
pub const MRQC_POOLS: u32 = 3;

pub const TCTL: u32 = 0x0400;
pub const TCTL_EN: u32 = 1 << 1;
pub const TCTL_PSP: u32 = 1 << 3;
pub const TCTL_CT: u32 = 0xF << 4;
pub const TCTL_RTLC: u32 = 1 << 24;

/// Addresses received, each for the pools in 25:18.
pub const RA_ENTRIES: u32 = 24;
pub const RAH_POOL_0: u32 = 1 << 18;
pub const RAH_AV: u32 = 1 << 31;

/// Low half of address `i`: the first sixteen are apart from the others.
pub const fn ral(i: u32) -> u32 {
    if i < 16 { 0x5400 + 8 * i } else { 0x54E0 + 8 * (i - 16) }
}

/// High half of address `i`, pools and valid bit.
pub const fn rah(i: u32) -> u32 {
    ral(i) + 4
}

// Pools and virtual functions (8.14).
pub const MBVFICR: u32 = 0x0C80;
pub const VFLRE: u32 = 0x0C88;
pub const VFRE: u32 = 0x0C8C;
pub const VFTE: u32 = 0x0C90;
pub const DTXSWC: u32 = 0x3500;
pub const DTXSWC_CHECK_MAC: u32 = 0xFF;
pub const DTXSWC_CHECK_VLAN: u32 = 0xFF00;
pub const DTXSWC_LOOPBACK: u32 = 1 << 31;
pub const VMVIR: u32 = 0x3700;
pub const VT_CTL: u32 = 0x581C;
pub const VT_CTL_NO_DEFAULT_POOL: u32 = 1 << 29;
pub const VT_CTL_REPLICATE: u32 = 1 << 30;
pub const RPLOLR: u32 = 0x5AF0;
pub const VLVF: u32 = 0x5D00;
pub const VLVF_ENTRIES: u32 = 32;

pub const VMOLR_RLPML: u32 = 0x3FFF;
pub const VMOLR_LPE: u32 = 1 << 16;
pub const VMOLR_AUPE: u32 = 1 << 24;
pub const VMOLR_ROMPE: u32 = 1 << 25;
pub const VMOLR_BAM: u32 = 1 << 27;
pub const VMOLR_STRVLAN: u32 = 1 << 30;
pub const VMOLR_STRCRC: u32 = 1 << 31;
/// Untagged frames, broadcasts, and of ordinary length.
pub const VMOLR_SET_UP: u32 = VMOLR_STRCRC | VMOLR_STRVLAN | VMOLR_BAM | VMOLR_AUPE;

/// A pool's settings.
pub const fn vmolr(pool: u32) -> u32 {
    0x5AD0 + 4 * pool
}

/// Interrupt throttle (8.8.12): the interval, in microseconds from this bit on; immediate
/// interrupts, which are its guest's; and that the count that runs goes on.
pub const EITR_US: u32 = 2;
pub const EITR_INTERVAL: u32 = 0x1FFF << EITR_US;
pub const EITR_LLI: u32 = 1 << 15;
pub const EITR_KEEP_COUNTER: u32 = 1 << 31;

/// A function's vector's: they are the last ones, from the end on (7.3.2.12).
pub const fn vf_eitr(pool: u32, vector: u32) -> u32 {
    0x1680 + 4 * (22 + vector - 3 * pool)
}

/// Frames that a function received, and sent (VFGPRC and VFGPTC, which nobody clears).
pub const fn vf_received(pool: u32) -> u32 {
    0x1_0010 + 0x100 * pool
}

/// See [`vf_received`].
pub const fn vf_sent(pool: u32) -> u32 {
    vf_received(pool) + 4
}

/// A transmit queue's TDLEN, TDH and TDT.
pub const fn tx_queue(queue: u32) -> [u32; 3] {
    [0xE008 + 0x40 * queue, 0xE010 + 0x40 * queue, 0xE018 + 0x40 * queue]
}

pub const P2V_STS: u32 = 1 << 0;
pub const P2V_ACK: u32 = 1 << 1;
pub const P2V_PFU: u32 = 1 << 3;

/// The host's end of a function's mailbox.
pub const fn p2v_mailbox(pool: u32) -> u32 {
    0x0C00 + 4 * pool
}

/// A word of its content.
pub const fn mailbox_word(pool: u32, word: u32) -> u32 {
    0x0800 + 64 * pool + 4 * word
}
