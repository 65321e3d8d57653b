//! ACPI tables, as far as the tests look: RSDP, XSDT or RSDT, FADT, MADT
//! (ACPI 6.5, 5.2). Every table reached is checksummed.

const PAGE_LIMIT: u64 = 1 << 32;
const MAX_TABLES: usize = 32;
/// Flag of a processor's entry in the MADT.
const ENABLED: u64 = 1;

/// A table.
#[derive(Clone, Copy)]
pub struct Table {
    address: u64,
    length: u64,
}

/// How the machine is put to sleep.
pub enum Sleep {
    /// Hardware-reduced: SLEEP_CONTROL_REG.
    Reduced {
        /// Its port.
        control: u16,
    },
    /// PM1a_CNT_BLK.
    Pm1 {
        /// Its port.
        control: u16,
    },
}

/// What the tests want of the FADT.
pub struct Fadt {
    /// Whether HW_REDUCED_ACPI is set.
    pub reduced: bool,
    /// How to power off.
    pub sleep: Sleep,
    /// Where the PM timer's four ports begin; zero without one.
    pub timer_port: u16,
    /// The reset register's port and the value to write.
    pub reset: (u16, u8),
    /// The DSDT.
    pub dsdt: Table,
}

/// The tables of the machine.
pub struct Tables {
    /// The RSDP's address.
    pub rsdp: u64,
    tables: [Option<Table>; MAX_TABLES],
}

fn byte(address: u64) -> u8 {
    // SAFETY: reads memory below 4 GiB, mapped one to one; callers check the range.
    unsafe { (address as *const u8).read_volatile() }
}

fn number(address: u64, bytes: u64) -> u64 {
    (0..bytes).fold(0, |n, i| n | u64::from(byte(address + i)) << (8 * i))
}

fn sums_to_zero(address: u64, length: u64) -> bool {
    (0..length).fold(0u8, |sum, i| sum.wrapping_add(byte(address + i))) == 0
}

fn has(address: u64, text: &[u8]) -> bool {
    text.iter().zip(address..).all(|(b, a)| byte(a) == *b)
}

impl Table {
    /// The table at `address`, if its length is sane and its checksum right.
    pub fn at(address: u64) -> Option<Table> {
        if address == 0 || address > PAGE_LIMIT - 36 {
            return None;
        }
        let table = Table { address, length: number(address + 4, 4) };
        let sane = (36..1 << 20).contains(&table.length) && address + table.length <= PAGE_LIMIT;
        (sane && sums_to_zero(address, table.length)).then_some(table)
    }

    /// Whether it has this signature.
    pub fn is(&self, signature: &[u8; 4]) -> bool {
        has(self.address, signature)
    }

    /// A little-endian number inside; zero beyond its end.
    pub fn number(&self, offset: u64, bytes: u64) -> u64 {
        if offset + bytes <= self.length { number(self.address + offset, bytes) } else { 0 }
    }

    /// Its length.
    pub fn length(&self) -> u64 {
        self.length
    }
}

impl Tables {
    /// Finds the tables from `rsdp`, or by searching where PCs have it when zero.
    pub fn find(rsdp: u64) -> Option<Tables> {
        let good = |a: &u64| has(*a, b"RSD PTR ") && sums_to_zero(*a, 20);
        let rsdp = match rsdp {
            0 => (0xE0000..0x10_0000).step_by(16).find(good)?,
            given => Some(given).filter(good)?,
        };
        let extended = byte(rsdp + 15) >= 2;
        if extended && !sums_to_zero(rsdp, number(rsdp + 20, 4).min(64)) {
            return None;
        }
        let (root, width) =
            if extended { (number(rsdp + 24, 8), 8) } else { (number(rsdp + 16, 4), 4) };
        let root = Table::at(root)?;
        let mut tables = [None; MAX_TABLES];
        for (slot, offset) in tables.iter_mut().zip((36..root.length).step_by(width)) {
            *slot = Some(Table::at(root.number(offset, width as u64))?);
        }
        Some(Tables { rsdp, tables })
    }

    /// How many tables the root names.
    pub fn count(&self) -> usize {
        self.tables.iter().flatten().count()
    }

    /// The first table with this signature.
    pub fn get(&self, signature: &[u8; 4]) -> Option<Table> {
        self.tables.iter().flatten().find(|t| t.is(signature)).copied()
    }

    /// The FADT, with a DSDT whose checksum is right.
    pub fn fadt(&self) -> Option<Fadt> {
        let t = self.get(b"FACP")?;
        let reduced = t.number(112, 4) >> 20 & 1 == 1;
        let sleep = if reduced {
            Sleep::Reduced { control: t.number(244 + 4, 8) as u16 }
        } else {
            Sleep::Pm1 { control: t.number(64, 4) as u16 }
        };
        let dsdt = if t.number(140, 8) != 0 { t.number(140, 8) } else { t.number(40, 4) };
        let reset = (t.number(116 + 4, 8) as u16, t.number(128, 1) as u8);
        let timer = if t.number(76, 4) != 0 { t.number(76, 4) } else { t.number(208 + 4, 8) };
        let timer_port = timer as u16;
        Some(Fadt { reduced, sleep, timer_port, reset, dsdt: Table::at(dsdt)? })
    }

    /// Processors the MADT lists as enabled, by their APIC ids; entries of both kinds.
    pub fn processors(&self) -> impl Iterator<Item = u32> {
        let madt = self.get(b"APIC");
        let mut offset = 44;
        core::iter::from_fn(move || {
            let madt = madt?;
            while offset + 2 <= madt.length {
                let at = offset;
                offset += madt.number(at + 1, 1).max(2);
                match madt.number(at, 1) {
                    0 if madt.number(at + 4, 4) & ENABLED != 0 => {
                        return Some(madt.number(at + 3, 1) as u32);
                    }
                    9 if madt.number(at + 8, 4) & ENABLED != 0 => {
                        return Some(madt.number(at + 4, 4) as u32);
                    }
                    _ => {}
                }
            }
            None
        })
    }
}
