//! A disk that UEFI firmware starts a program from: a GUID partition table with one EFI system
//! partition, and in its FAT file system `\EFI\BOOT\BOOTX64.EFI`, which firmware looks for on
//! a disk that nobody told it of (UEFI 2.10 sections 3.5.1.1, 5.2, 5.3).
//!
//! Guarantees: the disk has 512-byte blocks, a protective MBR and both copies of the table;
//! identifiers follow from the program, so that the same program gives the same disk. Copied to a
//! larger one, its second copy of the table isn't at that one's end: firmware takes the first.

use crate::fat::Layout;
use gpt::{
    GptConfig, disk::LogicalBlockSize, mbr::ProtectiveMBR, partition::Partition, partition_types,
};
use std::{collections::BTreeMap, io::Cursor};
use uuid::Uuid;

/// Bytes of a block.
const BLOCK: u64 = 512;
/// Before the partition, and after it: room for the tables, and its alignment.
const MARGIN: u64 = 1 << 20;
const FIRST_BLOCK: u64 = MARGIN / BLOCK;
/// The longest file that FAT holds.
const MAX_FILE: u64 = u32::MAX as u64;
/// The UUID that those of a program's disk are derived from; any would do.
const NAMESPACE: Uuid = Uuid::from_u128(0x6F2C_7B0E_4A1D_4E53_9B27_0D5E_71C8_A9F4);

/// Why there is no disk.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// FAT's sizes have 32 bits.
    #[error("the program has {0} bytes, and a file on the disk has less than 4 GiB")]
    Large(u64),
    /// The partition table couldn't be made.
    #[error("the disk's partition table can't be made: {0}")]
    Table(String),
}

/// A disk with this UEFI program for x86-64.
pub fn with_program(program: &[u8]) -> Result<Vec<u8>, Error> {
    let size = program.len() as u64;
    if size > MAX_FILE {
        return Err(Error::Large(size));
    }
    let layout = Layout::for_file(program.len());
    let partition = (layout.bytes() as u64).next_multiple_of(MARGIN);
    let mut disk = vec![0; (MARGIN + partition + MARGIN) as usize];
    let content = Uuid::new_v5(&NAMESPACE, program);
    let (serial, ..) = content.as_fields();
    let volume = disk.get_mut(MARGIN as usize..).unwrap_or_default();
    layout.write(volume, program, serial, FIRST_BLOCK as u32).ok_or(Error::Large(size))?;
    write_table(&mut disk, partition, &content)?;
    Ok(disk)
}

/// Makes the protective MBR and both copies of the partition table.
fn write_table(disk: &mut Vec<u8>, partition: u64, content: &Uuid) -> Result<(), Error> {
    let blocks = disk.len() as u64 / BLOCK;
    let protected = u32::try_from(blocks - 1).unwrap_or(u32::MAX);
    let failed = |error: &dyn std::fmt::Display| Error::Table(error.to_string());
    let mut device = Cursor::new(disk);
    ProtectiveMBR::with_lb_size(protected)
        .overwrite_lba0(&mut device)
        .map_err(|error| failed(&error))?;
    let (disk_guid, part_guid) =
        (Uuid::new_v5(content, b"disk"), Uuid::new_v5(content, b"partition"));
    let system = Partition {
        part_type_guid: partition_types::EFI,
        part_guid,
        first_lba: FIRST_BLOCK,
        last_lba: (MARGIN + partition) / BLOCK - 1,
        flags: 0,
        name: "Exitless".to_owned(),
    };
    let config = GptConfig::new().writable(true).logical_block_size(LogicalBlockSize::Lb512);
    let mut table =
        config.create_from_device(device, Some(disk_guid)).map_err(|error| failed(&error))?;
    table.update_partitions(BTreeMap::from([(1, system)])).map_err(|error| failed(&error))?;
    table.write().map_err(|error| failed(&error))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use fatfs::{FatType, FileSystem, FsOptions};
    use std::io::Read;

    /// The one partition's place in bytes, by the copy of the table at the disk's start or, if
    /// that is damaged, at its end.
    fn partition(disk: &[u8]) -> (usize, usize) {
        let table = GptConfig::new().open_from_device(Cursor::new(disk.to_vec())).unwrap();
        let parts: Vec<_> = table.partitions().values().filter(|p| p.is_used()).collect();
        assert_eq!(parts.len(), 1);
        assert_eq!(parts[0].part_type_guid, partition_types::EFI);
        (parts[0].first_lba as usize * 512, (parts[0].last_lba as usize + 1) * 512)
    }

    fn program_on(disk: &[u8]) -> Vec<u8> {
        let (start, end) = partition(disk);
        let volume = Cursor::new(disk[start..end].to_vec());
        let files = FileSystem::new(volume, FsOptions::new()).unwrap();
        assert_eq!(files.fat_type(), FatType::Fat32);
        let mut found = Vec::new();
        let folder = files.root_dir();
        folder.open_file("efi/boot/bootx64.efi").unwrap().read_to_end(&mut found).unwrap();
        found
    }

    #[test]
    fn the_program_is_where_firmware_looks_and_the_disk_is_always_the_same() {
        let program: Vec<u8> =
            (0..3_000_000u32).map(|n| (n.wrapping_mul(7919) >> 8) as u8).collect();
        let disk = with_program(&program).unwrap();
        assert!(program_on(&disk) == program);
        assert!(with_program(&program).unwrap() == disk);
        // UEFI 2.10 table 5.3: one partition of type 0xEE from block 1 to the disk's end.
        assert_eq!(
            (&disk[446..451], &disk[510..512]),
            (&[0, 0, 2, 0, 0xEE][..], &[0x55, 0xAA][..])
        );
        let last = (disk.len() / 512 - 1) as u32;
        assert_eq!(disk[454..462], [1, last].map(u32::to_le_bytes).concat());
        let other = with_program(&program[1..]).unwrap();
        let guid = |disk: &[u8]| disk[512 + 56..512 + 72].to_vec();
        assert_ne!(guid(&disk), guid(&other));
    }

    #[test]
    fn either_copy_of_the_table_is_enough() {
        let disk = with_program(b"program").unwrap();
        for damaged in [512 + 20, disk.len() - 512 + 20] {
            let mut disk = disk.clone();
            disk[damaged] ^= 1;
            assert_eq!(program_on(&disk), b"program");
        }
    }
}
