//! What Linux 6.12 does with a virtio function: `virtio_pci_modern_dev.c`, `virtio_pci_modern.c`,
//! `virtio_pci_common.c` and `virtio.c`, step by step.

use virtio_pci::{Effect, Function, Host, Kind, NO_VECTOR, VERSION_1, bar, config_space, status};
use virtual_pc::msix::Control;

const SEG_MAX: u64 = 1 << 2;
const EVENT_IDX: u64 = 1 << 29;
const CONFIG: [u8; 60] = [7; 60];
const QUEUES: u16 = 2;
const HOST: Host = Host { idle: true, config: &CONFIG, pending: 0 };
const BUSY: Host = Host { idle: false, ..HOST };

struct Capability {
    offset: u64,
    length: u32,
    at: usize,
}

fn word(space: &[u8; 256], at: usize) -> u32 {
    u32::from_le_bytes(space[at..at + 4].try_into().unwrap())
}

/// `virtio_pci_find_capability`: the first of this cfg_type in memory.
fn find(space: &[u8; 256], kind: u8) -> Option<Capability> {
    let mut at = usize::from(space[0x34]);
    while at != 0 {
        if space[at] == 0x09 && space[at + 3] == kind && space[at + 4] <= 5 {
            let (offset, length) = (word(space, at + 8).into(), word(space, at + 12));
            return Some(Capability { offset, length, at });
        }
        at = usize::from(space[at + 1]);
    }
    None
}

struct Driver {
    function: Function,
    common: u64,
}

impl Driver {
    fn read(&mut self, at: u64, size: u8) -> u64 {
        self.function.read(self.common + at, size, &HOST)
    }

    fn write(&mut self, at: u64, size: u8, value: u64) -> Effect {
        self.function.write(self.common + at, size, value, &HOST)
    }

    /// `virtio_add_status`.
    fn add_status(&mut self, bits: u8) -> Effect {
        let now = self.read(0x14, 1);
        assert_ne!(now as u8 | bits, 0);
        self.write(0x14, 1, now | u64::from(bits))
    }

    /// `vp_modern_get_features`, `vp_modern_set_features`.
    fn device_features(&mut self) -> u64 {
        self.write(0x00, 4, 0);
        let low = self.read(0x04, 4);
        self.write(0x00, 4, 1);
        low | self.read(0x04, 4) << 32
    }

    fn set_features(&mut self, features: u64) {
        for (half, value) in [(0, features & 0xFFFF_FFFF), (1, features >> 32)] {
            self.write(0x08, 4, half);
            self.write(0x0C, 4, value);
        }
    }

    /// `setup_vq`, as far as it is about registers; gives where to notify.
    fn setup_vq(&mut self, index: u16, vector: u16, notify: u64) -> u64 {
        self.write(0x16, 2, index.into());
        let size = self.read(0x18, 2);
        assert!(size != 0 && self.read(0x1C, 2) == 0);
        // `vp_active_vq`: size, then `vp_modern_queue_address` by halves.
        self.write(0x18, 2, size);
        let rings = 0x1_0000_0000 + 0x1_0000 * u64::from(index);
        for (field, address) in [(0x20, rings), (0x28, rings + 0x1000), (0x30, rings + 0x2000)] {
            self.write(field, 4, address & 0xFFFF_FFFF);
            self.write(field + 4, 4, address >> 32);
        }
        // `vp_modern_queue_vector`.
        self.write(0x1A, 2, vector.into());
        assert_eq!(self.read(0x1A, 2), vector.into());
        // `vp_modern_map_vq_notify`.
        notify + self.read(0x1E, 2) * u64::from(bar::NOTIFY_MULTIPLIER)
    }
}

#[test]
fn probe_use_and_remove() {
    let shown =
        config_space::on_bus(Kind::Block, QUEUES, CONFIG.len() as u32, 0xC000_0000).unwrap();
    let space: [u8; 256] = std::array::from_fn(|at| shown.read(at as u8, 1) as u8);

    // `vp_modern_probe`.
    let device = u16::from_le_bytes([space[2], space[3]]);
    assert!((0x1040..=0x107F).contains(&device));
    let common = find(&space, 1).expect("common");
    let isr = find(&space, 3).expect("isr");
    let notify = find(&space, 2).expect("notify");
    let config = find(&space, 4).expect("device");
    assert!(common.length >= 56 && common.offset.is_multiple_of(4));
    assert!(isr.length >= 1 && notify.length >= 2 && notify.offset.is_multiple_of(2));
    assert_eq!((config.length as usize, config.offset % 4), (CONFIG.len(), 0));
    assert_eq!(word(&space, notify.at + 16), bar::NOTIFY_MULTIPLIER);
    assert!(u64::from(QUEUES - 1) * 4 + 2 <= notify.length.into());
    assert!(find(&space, 5).is_some(), "the window, which every device has (4.1.4.9.1)");

    let function = Function::new(SEG_MAX | EVENT_IDX, QUEUES, 256).unwrap();
    let mut driver = Driver { function, common: common.offset };

    // `register_virtio_device`: `vp_reset`, which waits for zero.
    assert_eq!(driver.write(0x14, 1, 0), Effect::Reset);
    assert_eq!(driver.read(0x14, 1), 0);
    driver.add_status(status::ACKNOWLEDGE);

    // `virtio_dev_probe`.
    driver.add_status(status::DRIVER);
    assert_eq!(driver.device_features(), VERSION_1 | SEG_MAX | EVENT_IDX);
    driver.set_features(VERSION_1 | SEG_MAX | EVENT_IDX);
    driver.add_status(status::FEATURES_OK);
    assert_ne!(driver.read(0x14, 1) & u64::from(status::FEATURES_OK), 0);

    // The driver reads its configuration, by `virtio_cread` between two equal generations.
    let before = driver.read(0x15, 1);
    assert_eq!(driver.function.read(config.offset + 12, 4, &HOST), 0x0707_0707);
    assert_eq!(driver.read(0x15, 1), before);

    // `vp_find_vqs_msix`: MSI-X on, entries written, a vector for the configuration, and one each.
    for entry in 0..=u64::from(QUEUES) {
        let at = bar::TABLE + 16 * entry;
        for (word, value) in [(0, 0xFEE0_0000), (4, 0), (8, 0x31 + entry), (12, 0)] {
            driver.function.write(at + word, 4, value, &HOST);
        }
    }
    assert_eq!(driver.write(0x10, 2, 0), Effect::Vectors);
    assert_eq!(driver.read(0x10, 2), 0);
    let notify_at: Vec<u64> =
        (0..QUEUES).map(|index| driver.setup_vq(index, index + 1, notify.offset)).collect();
    assert_eq!(notify_at, [bar::NOTIFY, bar::NOTIFY + 4]);
    // `vp_modern_find_vqs`: only then are they enabled.
    for index in 0..QUEUES {
        driver.write(0x16, 2, index.into());
        driver.write(0x1C, 2, 1);
        assert_eq!(driver.read(0x1C, 2), 1);
    }

    // `virtio_device_ready`.
    assert_eq!(driver.add_status(status::DRIVER_OK), Effect::Start);
    let on = Control { enabled: true, masked: false };
    for (index, queue) in driver.function.queues().iter().enumerate() {
        let rings = 0x1_0000_0000 + 0x1_0000 * index as u64;
        assert!(queue.enabled && queue.size == 256);
        assert_eq!(
            (queue.descriptors, queue.driver, queue.device),
            (rings, rings + 0x1000, rings + 0x2000)
        );
        let message = driver
            .function
            .written(queue.vector.into(), on)
            .map(|w| w.message())
            .transpose()
            .unwrap()
            .unwrap();
        assert_eq!(message.vector, 0x32 + index as u8);
    }
    assert_eq!(driver.function.features(), VERSION_1 | SEG_MAX | EVENT_IDX);

    // `virtio_dev_remove`: `vp_reset` waits until the server has let go of the queues.
    assert_eq!(driver.write(0x14, 1, 0), Effect::Reset);
    for _ in 0..3 {
        assert_ne!(driver.function.read(common.offset + 0x14, 1, &BUSY), 0);
    }
    assert_eq!(driver.read(0x14, 1), 0);
    // `vp_del_vqs`: vectors are taken back; the read flushes.
    for index in 0..QUEUES {
        driver.write(0x16, 2, index.into());
        driver.write(0x1A, 2, NO_VECTOR.into());
        assert_eq!(driver.read(0x1A, 2), NO_VECTOR.into());
    }
    driver.write(0x10, 2, NO_VECTOR.into());
    assert_eq!(driver.read(0x10, 2), NO_VECTOR.into());

    // Another driver, another time.
    driver.add_status(status::ACKNOWLEDGE | status::DRIVER);
    driver.set_features(VERSION_1);
    driver.add_status(status::FEATURES_OK);
    driver.setup_vq(0, NO_VECTOR, notify.offset);
    driver.write(0x1C, 2, 1);
    assert_eq!(driver.add_status(status::DRIVER_OK), Effect::Start);
    assert_eq!(driver.function.features(), VERSION_1);
    assert!(!driver.function.queues()[1].enabled);
}
