//! A FAT32 volume with one file, `\EFI\BOOT\BOOTX64.EFI`, laid out as Microsoft's "FAT File System
//! Specification" 1.03 has it, which UEFI 2.10 section 13.3 refers to.
//!
//! Guarantees: the volume passes a check of its file system; the file's clusters follow each other,
//! so that firmware reads it in one go; every date is FAT's first, and the only thing that a caller
//! chooses is the serial number.

use crate::field::put;

const SECTOR: usize = 512;
/// Before the FATs: the boot sector, FSInfo and the copies of both.
const RESERVED: usize = 32;
const FSINFO: usize = 1;
const COPY: usize = 6;
const FATS: usize = 2;
/// A volume with fewer than 65,525 clusters is no FAT32; the specification asks for a distance.
const FEWEST_CLUSTERS: usize = 65_600;
/// Where clusters become 4 KiB.
const LARGE_FILE: usize = 256 << 20;
/// The folders have a cluster each, and the file follows.
const ROOT: usize = 2;
const EFI: usize = 3;
const BOOT: usize = 4;
const FILE: usize = 5;
/// In the FAT: a chain's last cluster.
const END: u32 = 0x0FFF_FFFF;
const FOLDER: u8 = 0x10;
const LABEL: u8 = 0x08;
/// The first day that FAT knows, 1 January 1980.
const FIRST_DAY: u16 = 1 << 5 | 1;
/// INT 18h (the BIOS then tries the next disk), HLT and a jump back to that.
const BOOT_CODE: [u8; 5] = [0xCD, 0x18, 0xF4, 0xEB, 0xFD];
const NAME: &[u8; 11] = b"EXITLESS   ";

/// The sizes of a volume.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    sectors_per_cluster: usize,
    clusters: usize,
    /// Sectors of one FAT.
    fat: usize,
}

impl Layout {
    /// Of a volume for a file of so many bytes, less than 4 GiB.
    pub fn for_file(bytes: usize) -> Layout {
        let sectors_per_cluster = if bytes <= LARGE_FILE { 1 } else { 8 };
        let used = FILE - ROOT + bytes.div_ceil(sectors_per_cluster * SECTOR);
        let clusters = used.max(FEWEST_CLUSTERS);
        // The first two entries stand for no cluster.
        let fat = ((clusters + ROOT) * 4).div_ceil(SECTOR);
        Layout { sectors_per_cluster, clusters, fat }
    }

    /// Bytes of the volume.
    pub fn bytes(self) -> usize {
        (self.data() + self.clusters * self.sectors_per_cluster) * SECTOR
    }

    /// The sector that clusters start at.
    fn data(self) -> usize {
        RESERVED + FATS * self.fat
    }

    /// Where a cluster is, in bytes.
    fn cluster(self, number: usize) -> usize {
        (self.data() + (number - ROOT) * self.sectors_per_cluster) * SECTOR
    }

    /// Puts the volume with this file into `volume`, which has [`Layout::bytes`] and is zero;
    /// `first_sector` is the volume's place on its disk. None if that doesn't fit together.
    pub fn write(
        self,
        volume: &mut [u8],
        file: &[u8],
        serial: u32,
        first_sector: u32,
    ) -> Option<()> {
        let used = file.len().div_ceil(self.sectors_per_cluster * SECTOR);
        let size = u32::try_from(file.len()).ok()?;
        let boot = self.boot_sector(serial, first_sector)?;
        let info = fsinfo((self.clusters - used - (FILE - ROOT)) as u32, (FILE + used) as u32)?;
        for at in [0, COPY] {
            put(volume, at * SECTOR, &boot)?;
            put(volume, (at + FSINFO) * SECTOR, &info)?;
        }
        let folders = [0x0FFF_FFF8, END, END, END, END];
        let next = (1..used).map(|i| (FILE + i) as u32);
        let chain = next.chain((used > 0).then_some(END));
        let fat: Vec<u8> = folders.into_iter().chain(chain).flat_map(u32::to_le_bytes).collect();
        for copy in 0..FATS {
            put(volume, (RESERVED + copy * self.fat) * SECTOR, &fat)?;
        }
        let root = [entry(NAME, LABEL, 0, 0), entry(b"EFI        ", FOLDER, EFI, 0)];
        let efi = [
            entry(b".          ", FOLDER, EFI, 0),
            // The root folder's number isn't told here.
            entry(b"..         ", FOLDER, 0, 0),
            entry(b"BOOT       ", FOLDER, BOOT, 0),
        ];
        let first = if used > 0 { FILE } else { 0 };
        let boot = [
            entry(b".          ", FOLDER, BOOT, 0),
            entry(b"..         ", FOLDER, EFI, 0),
            entry(b"BOOTX64 EFI", 0, first, size),
        ];
        put(volume, self.cluster(ROOT), root.as_flattened())?;
        put(volume, self.cluster(EFI), efi.as_flattened())?;
        put(volume, self.cluster(BOOT), boot.as_flattened())?;
        put(volume, self.cluster(FILE), file)
    }

    /// Section 3.1 to 3.3.
    fn boot_sector(self, serial: u32, first_sector: u32) -> Option<[u8; SECTOR]> {
        let sectors = u32::try_from(self.bytes() / SECTOR).ok()?;
        let fat = u32::try_from(self.fat).ok()?;
        let mut boot = [0; SECTOR];
        let mut set = |at: usize, bytes: &[u8]| put(&mut boot, at, bytes);
        set(0, &[0xEB, 0x58, 0x90])?;
        set(3, b"EXITLESS")?;
        set(11, &(SECTOR as u16).to_le_bytes())?;
        set(13, &[self.sectors_per_cluster as u8, RESERVED as u8, 0, FATS as u8])?;
        set(21, &[0xF8])?;
        // A geometry that a BIOS could believe in.
        set(24, &[63, 0, 255, 0])?;
        set(28, &first_sector.to_le_bytes())?;
        set(32, &sectors.to_le_bytes())?;
        set(36, &fat.to_le_bytes())?;
        set(44, &(ROOT as u32).to_le_bytes())?;
        set(48, &[FSINFO as u8, 0, COPY as u8, 0])?;
        set(64, &[0x80, 0, 0x29])?;
        set(67, &serial.to_le_bytes())?;
        set(71, NAME)?;
        set(82, b"FAT32   ")?;
        set(90, &BOOT_CODE)?;
        set(510, &[0x55, 0xAA])?;
        Some(boot)
    }
}

/// Section 5: how many clusters are free, and where to look for one.
fn fsinfo(free: u32, next: u32) -> Option<[u8; SECTOR]> {
    let mut info = [0; SECTOR];
    let words =
        [(0, 0x4161_5252), (484, 0x6141_7272), (488, free), (492, next), (508, 0xAA55_0000)];
    for (at, word) in words {
        put(&mut info, at, &u32::to_le_bytes(word))?;
    }
    Some(info)
}

/// Section 6: a short name's entry in a folder.
fn entry(name: &[u8; 11], attributes: u8, cluster: usize, size: u32) -> [u8; 32] {
    let [low, high] = [cluster as u16, (cluster >> 16) as u16].map(u16::to_le_bytes);
    let day = FIRST_DAY.to_le_bytes();
    let mut entry = [0; 32];
    let parts: [(usize, &[u8]); 8] = [
        (0, name),
        (11, &[attributes]),
        (16, &day),
        (18, &day),
        (20, &high),
        (24, &day),
        (26, &low),
        (28, &size.to_le_bytes()),
    ];
    for (at, bytes) in parts {
        entry[at..at + bytes.len()].copy_from_slice(bytes);
    }
    entry
}

#[cfg(test)]
mod tests {
    use super::*;
    use fatfs::{Dir, FatType, FileSystem, FsOptions};
    use proptest::prelude::*;
    use std::io::{Cursor, Read};

    type Volume = Cursor<Vec<u8>>;

    fn volume(file: &[u8]) -> Vec<u8> {
        let layout = Layout::for_file(file.len());
        let mut volume = vec![0; layout.bytes()];
        layout.write(&mut volume, file, 0x1234_5678, 2048).unwrap();
        volume
    }

    fn opened(volume: Vec<u8>) -> FileSystem<Volume> {
        FileSystem::new(Cursor::new(volume), FsOptions::new()).unwrap()
    }

    fn names(folder: &Dir<Volume>) -> Vec<String> {
        folder.iter().map(|entry| entry.unwrap().file_name()).collect()
    }

    /// By another's eyes.
    fn read(volume: Vec<u8>) -> Vec<u8> {
        let files = opened(volume);
        let mut found = Vec::new();
        let root = files.root_dir();
        root.open_file("efi/boot/bootx64.efi").unwrap().read_to_end(&mut found).unwrap();
        found
    }

    #[test]
    fn the_volume_is_what_it_says() {
        let files = opened(volume(&[7; 1500]));
        assert_eq!((files.fat_type(), files.cluster_size()), (FatType::Fat32, 512));
        assert_eq!((files.volume_id(), files.volume_label()), (0x1234_5678, "EXITLESS".into()));
        let label = files.read_volume_label_from_root_dir().unwrap();
        assert_eq!(label.as_deref(), Some("EXITLESS"));
        let stats = files.stats().unwrap();
        assert_eq!((stats.total_clusters(), stats.free_clusters()), (65_600, 65_600 - 3 - 3));
        let root = files.root_dir();
        assert_eq!(names(&root), ["EFI"]);
        let efi = root.open_dir("EFI").unwrap();
        assert_eq!(names(&efi), [".", "..", "BOOT"]);
        assert_eq!(names(&efi.open_dir("..").unwrap()), ["EFI"]);
        let boot = efi.open_dir("BOOT").unwrap();
        assert_eq!(names(&boot.open_dir("..").unwrap()), [".", "..", "BOOT"]);
        let file = boot.iter().last().unwrap().unwrap();
        assert_eq!((file.file_name(), file.len()), ("BOOTX64.EFI".into(), 1500));
        let day = file.modified().date;
        assert_eq!((day.year, day.month, day.day), (1980, 1, 1));
    }

    /// The reader above believes the first copy of everything.
    #[test]
    fn the_copies_are_alike_and_every_free_cluster_is_free() {
        let file = [7; 5000];
        let (volume, layout) = (volume(&file), Layout::for_file(file.len()));
        let sectors =
            |first: usize, count: usize| &volume[first * SECTOR..(first + count) * SECTOR];
        assert_eq!(sectors(0, 2), sectors(COPY, 2));
        let [one, two] = [0, 1].map(|i| sectors(RESERVED + i * layout.fat, layout.fat));
        assert!(one == two);
        let used = FILE + file.len().div_ceil(SECTOR);
        let entries = one.as_chunks::<4>().0.iter().map(|entry| u32::from_le_bytes(*entry));
        let taken: Vec<_> = entries.enumerate().filter(|(_, next)| *next != 0).collect();
        assert_eq!(
            taken.iter().map(|(at, _)| *at).collect::<Vec<_>>(),
            (0..used).collect::<Vec<_>>()
        );
        assert_eq!(taken.last(), Some(&(used - 1, END)));
        assert!(layout.fat * SECTOR / 4 >= layout.clusters + ROOT);
    }

    #[test]
    fn a_large_volume_has_larger_clusters() {
        let layout = Layout::for_file(LARGE_FILE + 1);
        assert_eq!((layout.sectors_per_cluster, layout.clusters), (8, 65_600));
        // Only the volume is large: a test takes long to read that much.
        let mut volume = vec![0; layout.bytes()];
        layout.write(&mut volume, &[9; 10_000], 7, 2048).unwrap();
        assert_eq!(opened(volume.clone()).cluster_size(), 4096);
        assert_eq!(read(volume), [9; 10_000]);
        let most = Layout::for_file(u32::MAX as usize);
        assert!(most.bytes() > u32::MAX as usize && u32::try_from(most.bytes() / SECTOR).is_ok());
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let layout = Layout::for_file(10);
        let mut short = vec![0; layout.cluster(FILE) + 9];
        assert_eq!(layout.write(&mut short, &[1; 10], 0, 0), None);
        assert_eq!(read(volume(b"")), b"");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]
        #[test]
        fn any_file_reads_back(length in 0usize..20_000, seed: u8) {
            let file: Vec<u8> = (0..length).map(|i| (i >> 8 ^ i) as u8 ^ seed).collect();
            prop_assert_eq!(read(volume(&file)), file);
        }
    }
}
